/*
 * Writes results of `ctworker score` from a thread of its own, in order, as items become final: turning
 * numbers into text takes a tenth of a GPU's time to compute them.
 */
#ifndef CTW_WORKER_SCORE_WRITER_H
#define CTW_WORKER_SCORE_WRITER_H

#include <stdio.h>

#include "worker/score_lines.h"

struct ctw_score_writer;

/* The items and `out` must outlive it. CTW_ENOMEM. */
enum ctw_status ctw_score_writer_open(struct ctw_score_writer **out, struct ctw_score_item *items,
                                      int n_decoders, FILE *file, struct ctw_err *err) CTW_MUST_CHECK;

/* Items before `end` are final and no longer touched by the caller. */
void ctw_score_writer_advance(struct ctw_score_writer *w, int64_t end);

/* Has it met an error? Then there is no use in computing more. */
bool ctw_score_writer_failed(struct ctw_score_writer *w);

/*
 * Waits until all that is final has been written. *n_written: items. An item that has no finite result
 * is CTW_ENUMERIC, with its line; CTW_EIO: the file.
 */
enum ctw_status ctw_score_writer_close(struct ctw_score_writer *w, int64_t *n_written,
                                       struct ctw_err *err) CTW_MUST_CHECK;

#endif
