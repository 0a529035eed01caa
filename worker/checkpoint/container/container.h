/*
 * A checkpoint as a set of named tensors. The table of kinds in container.c says which files are
 * read: safetensors, which is a folder (one file, or shards with model.safetensors.index.json), or
 * GGUF (a file, or the parts of a split one; or the folder of one model). All kinds yield the same
 * records, and nothing above this header knows which kind a checkpoint has.
 *
 * Files are mapped read-only and never copied whole. If a file becomes shorter while it is mapped,
 * the missing part reads as zeros (base/map_guard.h). So results computed from the map are valid
 * only after ctw_container_check(), which checks that the files are still the files that were
 * opened. Replacing a file by renaming another file over it (as download tools do) is harmless.
 *
 * A check sees a write by the file's times. A write through a mapping changes them only if the page
 * was clean, and in some file systems never. So the bytes must be digested again before results
 * count, unless the files are settled: then every write is seen.
 *
 * Immutable once open: any number of threads may read it.
 */
#ifndef CTW_WORKER_CONTAINER_H
#define CTW_WORKER_CONTAINER_H

#include "kernels/formats/format.h"
#include "worker/checkpoint/container/metadata.h"

struct ctw_container;

/* The location of one tensor. Valid until the container is closed. */
struct ctw_tensor {
    const char *name;
    /*
     * NULL, or why the tensor cannot be read ("its dtype, F4, is not supported"): harmless unless
     * the model needs this tensor. dtype is then CTW_N_DTYPES and n_dims 0, which no check of a
     * weight accepts.
     */
    const char *unusable;
    enum ctw_dtype dtype;
    const struct ctw_block_type *block; /* as in struct ctw_part */
    int64_t paired;                     /* as in struct ctw_part */
    int added;                          /* to the weights of a norm: 1 + w is stored */
    bool as_rates;                      /* A_log of a recurrent layer: -exp(A_log) is stored, or
                                           exp(A_log) of a delta rule */
    bool tiled; /* with it: value heads in the order of struct ctw_op_delta */
    int n_dims; /* 0..CTW_MAX_DIMS */
    int64_t shape[CTW_MAX_DIMS];
    int file;        /* index for ctw_container_file() */
    uint64_t offset; /* of the first byte in the file; not necessarily aligned */
    size_t bytes;
};

/* The folder of a checkpoint, and the file in it that is meant. */
struct ctw_checkpoint_path {
    char dir[4096];
    char file[256]; /* "": the folder's */
};

/* A path of a checkpoint: a folder, or a file of a kind whose models are files. CTW_EINVAL: it is
 * too long. */
enum ctw_status ctw_checkpoint_path(struct ctw_checkpoint_path *out, const char *path,
                                    struct ctw_err *err) CTW_MUST_CHECK;
/* Does the folder's file `name` belong to that checkpoint's container? */
bool ctw_checkpoint_has_file(const struct ctw_checkpoint_path *path, const char *name);

/*
 * Opens the checkpoint at `path` (whose files may be symbolic links). A folder of several kinds is
 * one of the first in the table. Checks every header completely and reads no tensor's data, except
 * to compare two tensors of one name. As in transformers, an index only lists the shards: warns if
 * the index places a tensor wrongly. Messages begin with the file's name in the folder.
 *
 * CTW_ENOTFOUND  no such folder, or no readable checkpoint in it; the message says what is there
 * CTW_EINVAL     the folder holds several models
 * CTW_EFORMAT    a rule of the files' kind is broken, or two tensors of one name differ
 * CTW_EIO, CTW_ENOMEM
 */
enum ctw_status ctw_container_open(struct ctw_container **out, const char *path,
                                   struct ctw_err *err) CTW_MUST_CHECK;
void ctw_container_close(struct ctw_container *c); /* NULL is fine */
/* The files' own key-value metadata, of the first file if they are several; NULL: this kind has
 * none. */
const struct ctw_metadata *ctw_container_metadata(const struct ctw_container *c);
/* The quantisation method (struct ctw_part_names) that this kind of container implies; NULL: the
 * model's keys say which. */
const char *ctw_container_method(const struct ctw_container *c);
/*
 * Replaces the tensors by n others, which are parts of them under other names: the same files and
 * bytes. Takes over both arrays, of base/mem.h (`names`: what their names point to), also after a
 * failure. Only before anyone keeps a tensor.
 */
enum ctw_status ctw_container_rename(struct ctw_container *c, struct ctw_tensor *tensors, int64_t n,
                                     char *names, struct ctw_err *err) CTW_MUST_CHECK;

int64_t ctw_container_count(const struct ctw_container *c);
/* Tensor i, in the order of files and offsets. */
const struct ctw_tensor *ctw_container_at(const struct ctw_container *c, int64_t i);
/* NULL: no such tensor. Constant time. */
const struct ctw_tensor *ctw_container_find(const struct ctw_container *c, const char *name);
/* The tensor's bytes in the map. */
const void *ctw_container_data(const struct ctw_container *c, const struct ctw_tensor *t);
/* Reads bytes offset .. offset+bytes-1 of a file into dst, bypassing the map: for many threads that
 * read large blocks. Thread-safe. CTW_EIO names the file. */
enum ctw_status ctw_container_read(const struct ctw_container *c, int file, uint64_t offset,
                                   void *dst, size_t bytes, struct ctw_err *err) CTW_MUST_CHECK;
/* Asks the kernel to read all small tensors at once, as reading them one by one through the map
 * would cost a disk's latency each. Best effort. */
void ctw_container_read_ahead(const struct ctw_container *c);
/* True: a file is a copy of its header alone (`inspect ORG/NAME`). Then all contents read as zeros,
 * and nothing may be concluded from them. */
bool ctw_container_is_headers_alone(const struct ctw_container *c);
/* CTW_ENOTFOUND, with the remedy, if a file is a copy of its header alone. */
enum ctw_status ctw_container_check_weights(const struct ctw_container *c,
                                            struct ctw_err *err) CTW_MUST_CHECK;
/* The file's name in the folder, for messages. */
const char *ctw_container_file(const struct ctw_container *c, int file);
int ctw_container_n_files(const struct ctw_container *c);
uint64_t ctw_container_bytes(const struct ctw_container *c); /* of all files */
/* CTW_EIO if a file became shorter and a read of its map hit the missing part. Cheap. */
enum ctw_status ctw_container_check_maps(const struct ctw_container *c,
                                         struct ctw_err *err) CTW_MUST_CHECK;
/* CTW_EIO if a file's size changed, or if ctw_container_check_maps() fails. *touched: a file was
 * written to since it was opened or accepted, so it may hold other bytes. Not thread-safe; neither
 * is ctw_container_accept(). */
enum ctw_status ctw_container_check(struct ctw_container *c, bool *touched,
                                    struct ctw_err *err) CTW_MUST_CHECK;
/* Declares that the files, as the last check saw them, hold the same bytes as before. `settled`:
 * what ctw_container_settle() returned before these bytes were digested. */
void ctw_container_accept(struct ctw_container *c, bool settled);
/*
 * True: the times of the files show every write from now on. For that no write may be under way,
 * so each file must be at rest at `now_s` of the system's clock (files_stamp.h), and its pages are
 * made clean. False also if a file was written to since it was opened or accepted.
 */
bool ctw_container_settle(const struct ctw_container *c, int64_t now_s);
/* What the last accept declared; false before it. */
bool ctw_container_is_settled(const struct ctw_container *c);
/* NULL, or a file whose times never show a write through a mapping, since its file system keeps no
 * such times (tmpfs), or is not known to (a network's): results must not be computed from its map.
 */
const char *ctw_container_hides_writes(const struct ctw_container *c);
/* The check for opening: *touched is an error, too. */
enum ctw_status ctw_container_check_untouched(struct ctw_container *c,
                                              struct ctw_err *err) CTW_MUST_CHECK;

#endif
