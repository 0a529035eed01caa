/*
 * Final hidden states of a model, kept in files so that its layers need not run again: comparing
 * further models with it only takes its head. docs/FORMATS.md describes the files.
 *
 * Reading and writing never fail: what cannot be read is computed, and what cannot be written is
 * not kept; the log says so once. Several processes may share a folder. One thread uses a handle.
 */
#ifndef CTW_WORKER_HIDDEN_H
#define CTW_WORKER_HIDDEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct ctw_hidden_dir;

enum { CTW_HIDDEN_MIN_BYTES = 1 << 20 };

/* Makes the folder unless it is there. limit: bytes of all files; before new files exceed them,
 * those that were not used for the longest time go. */
enum ctw_status ctw_hidden_open(struct ctw_hidden_dir **out, const char *dir, uint64_t limit,
                                struct ctw_err *err) CTW_MUST_CHECK;
void ctw_hidden_close(struct ctw_hidden_dir *d); /* NULL is fine */

/* What the states depend on: a SHA-256. */
struct ctw_hidden_key {
    unsigned char bytes[32];
};

/* Of tokens[0 .. n_tok-1] whose targets begin at `first`, and the model. */
struct ctw_hidden_key ctw_hidden_key_of(const char *identity, const char *numerics,
                                        const int32_t *tokens, int64_t n_tok, int64_t first);

/* The states of a sequence's targets. */
struct ctw_hidden_rows {
    struct ctw_hidden_key key;
    int64_t n_rows;
    size_t row_bytes;
    void *rows; /* [n_rows, row_bytes] */
};

/* Reads all of them; false: some are not there, or damaged, and `rows` are undefined. */
bool ctw_hidden_read(struct ctw_hidden_dir *d, const struct ctw_hidden_rows *records, int64_t n);
void ctw_hidden_write(struct ctw_hidden_dir *d, const struct ctw_hidden_rows *record);

#endif
