/*
 * Which checkpoint a model is: a SHA-256 over the config's text and every byte of every tensor that
 * the model reads. Files and offsets do not matter: a checkpoint that is copied or sharded anew
 * stays the same.
 *
 * A tensor's bytes are digested in blocks of CTW_BLOCK_BYTES from its start, by whoever reads them,
 * in any order and by any number of threads. The identity is known when the last block is in.
 */
#ifndef CTW_WORKER_IDENTITY_H
#define CTW_WORKER_IDENTITY_H

#include <stdatomic.h>
#include <stdbool.h>

#include "base/json.h"
#include "worker/checkpoint/container.h"

enum { CTW_BLOCK_BYTES = 1 << 20 };

struct ctw_identity;

/* Of the tensors, which are the container's and may repeat. Keeps pointers to them. */
enum ctw_status ctw_identity_open(struct ctw_identity **out, const struct ctw_json *config,
                                  const struct ctw_tensor *const *tensors, int64_t n_tensors,
                                  struct ctw_err *err) CTW_MUST_CHECK;
void ctw_identity_close(struct ctw_identity *id); /* NULL is fine */

/* The number of the tensor's first block; the others follow. The tensor is one of the model's. */
int64_t ctw_identity_first_block(const struct ctw_identity *id, const struct ctw_tensor *t);
/* The block's bytes; a block that is in already stays as it is. Any thread. */
void ctw_identity_add(struct ctw_identity *id, int64_t block, const void *data, size_t bytes);
/* 64 hex digits; "" until all blocks are in. Any thread; valid until it is closed. */
const char *ctw_identity_text(const struct ctw_identity *id);

/*
 * Reads all tensors in the order of the files, by n_threads (0: all CPUs), and adds their blocks;
 * says how far it is when that takes long. CTW_EIO; CTW_ECANCELED: *stop (which may be NULL) was
 * set.
 */
enum ctw_status ctw_identity_read(struct ctw_identity *id, const struct ctw_container *c,
                                  int n_threads, const atomic_bool *stop,
                                  struct ctw_err *err) CTW_MUST_CHECK;
/* Reads them again. CTW_EIO names the file and the first tensor that is not what it was. The
 * identity is known. */
enum ctw_status ctw_identity_verify(const struct ctw_identity *id, const struct ctw_container *c,
                                    int n_threads, const atomic_bool *stop,
                                    struct ctw_err *err) CTW_MUST_CHECK;

#endif
