/*
 * A checkpoint folder as a set of named tensors. safetensors (one file, or shards with
 * model.safetensors.index.json) is the only producer so far; others yield the same records.
 * Files are mapped read-only and never copied whole.
 */
#ifndef CTW_WORKER_CONTAINER_H
#define CTW_WORKER_CONTAINER_H

#include "kernels/formats/format.h"

struct ctw_container;

/* Where one tensor lies. Valid until the container is closed. */
struct ctw_tensor {
    const char *name;
    enum ctw_dtype dtype;
    int n_dims; /* 0..CTW_MAX_DIMS */
    int64_t shape[CTW_MAX_DIMS];
    int file;        /* index for ctw_container_file() */
    uint64_t offset; /* of its first byte in the file; not necessarily aligned */
    size_t bytes;
};

/* Opens dir (whose files may be symbolic links). Everything about every header is checked. */
enum ctw_status ctw_container_open(struct ctw_container **out, const char *dir,
                                   struct ctw_err *err) CTW_MUST_CHECK;
void ctw_container_close(struct ctw_container *c); /* NULL is fine */

int64_t ctw_container_count(const struct ctw_container *c);
const struct ctw_tensor *ctw_container_at(const struct ctw_container *c, int64_t i);
/* NULL: no such tensor. Constant time. */
const struct ctw_tensor *ctw_container_find(const struct ctw_container *c, const char *name);
/* The tensor's bytes in the map. */
const void *ctw_container_data(const struct ctw_container *c, const struct ctw_tensor *t);
/* The file's name in the folder, for messages. */
const char *ctw_container_file(const struct ctw_container *c, int file);
uint64_t ctw_container_bytes(const struct ctw_container *c); /* of all files */

#endif
