/*
 * The identity of a checkpoint: a SHA-256 over the config's text and every byte of every tensor
 * that the model reads. File names and offsets do not matter: a checkpoint that is copied or
 * sharded differently keeps its identity.
 *
 * The code that reads a tensor's bytes digests them in blocks of CTW_BLOCK_BYTES from the tensor's
 * start, in any order and with any number of threads. The identity is known once every block has
 * been added.
 */
#ifndef CTW_WORKER_IDENTITY_H
#define CTW_WORKER_IDENTITY_H

#include <stdatomic.h>

#include "base/json.h"
#include "worker/checkpoint/container/container.h"

enum { CTW_BLOCK_BYTES = 1 << 20 };

struct ctw_identity;

/* The identity of these tensors, which the container owns and which may repeat. Keeps pointers to
 * them. `beside`: another file that belongs to the config; NULL: none. */
enum ctw_status ctw_identity_open(struct ctw_identity **out, const struct ctw_json *config,
                                  const struct ctw_json *beside,
                                  const struct ctw_tensor *const *tensors, int64_t n_tensors,
                                  struct ctw_err *err) CTW_MUST_CHECK;
void ctw_identity_close(struct ctw_identity *id); /* NULL is fine */

/* The number of the tensor's first block; its other blocks follow. `t` is one of `tensors`. */
int64_t ctw_identity_first_block(const struct ctw_identity *id, const struct ctw_tensor *t);
/* Adds a block's bytes. Adding a block again is a no-op. Thread-safe. */
void ctw_identity_add(struct ctw_identity *id, int64_t block, const void *data, size_t bytes);
/* The same for bytes that are read again and again: CTW_EIO if the block was added before, with
 * other bytes; the message names the file and the tensor. */
enum ctw_status ctw_identity_check(struct ctw_identity *id, const struct ctw_container *c,
                                   int64_t block, const void *data, size_t bytes,
                                   struct ctw_err *err) CTW_MUST_CHECK;
/* 64 hex digits over all but the tensors' bytes, known at once: equal identities have equal
 * outlines. Valid until id is closed. */
const char *ctw_identity_outline(const struct ctw_identity *id);
/* Each block has been added, or another thread is just adding it: waits until all are. */
void ctw_identity_wait(const struct ctw_identity *id);
/* 64 hex digits; "" until every block has been added. Thread-safe. Valid until id is closed. */
const char *ctw_identity_text(const struct ctw_identity *id);
/* The part of the blocks that has been added, 0..1. Thread-safe. */
double ctw_identity_share(const struct ctw_identity *id);

/*
 * Reads all tensors in the order of the files, with n_threads (0: all CPUs), and adds their blocks;
 * logs progress if reading takes long. CTW_EIO; CTW_ECANCELED: *stop was set (stop may be NULL).
 */
enum ctw_status ctw_identity_read(struct ctw_identity *id, const struct ctw_container *c,
                                  int n_threads, const atomic_bool *stop,
                                  struct ctw_err *err) CTW_MUST_CHECK;
/* Reads all tensors again; the identity must be known. CTW_EIO names a file and a tensor in it
 * whose bytes changed. */
enum ctw_status ctw_identity_verify(const struct ctw_identity *id, const struct ctw_container *c,
                                    int n_threads, const atomic_bool *stop,
                                    struct ctw_err *err) CTW_MUST_CHECK;

#endif
