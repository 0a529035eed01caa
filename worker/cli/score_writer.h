/*
 * Writes results of `ctworker score` in a separate thread, in order, as items become final:
 * formatting numbers as text takes a tenth of the time in which a GPU computes them. The writer
 * holds at most two blocks: one is being scored, the other is being written.
 */
#ifndef CTW_WORKER_SCORE_WRITER_H
#define CTW_WORKER_SCORE_WRITER_H

#include "worker/cli/output_file.h"
#include "worker/cli/score_lines.h"

struct ctw_score_writer;

/* `file` must outlive the writer, which writes one byte to wake_fd after an error. CTW_ENOMEM. */
enum ctw_status ctw_score_writer_open(struct ctw_score_writer **out, int n_decoders,
                                      struct ctw_output_file *file, int wake_fd,
                                      struct ctw_err *err) CTW_MUST_CHECK;

/* Hands over the next block, in which no item is final yet. Waits until the block before the last
 * block has been written. */
void ctw_score_writer_begin(struct ctw_score_writer *w, struct ctw_score_block *block);
/* Items of the block before `end` are final and no longer touched by the caller. */
void ctw_score_writer_advance(struct ctw_score_writer *w, int64_t end);
/* All items of the block are final; the writer owns the block. */
void ctw_score_writer_finish(struct ctw_score_writer *w);

/* Has writing failed? Then further results are useless. */
bool ctw_score_writer_failed(struct ctw_score_writer *w);

/*
 * Waits until all final items have been written. *n_scored: log-probabilities in the written lines.
 * CTW_ENUMERIC: an item has no finite result, and the message names its line; CTW_EIO: writing the
 * file failed.
 */
enum ctw_status ctw_score_writer_close(struct ctw_score_writer *w, int64_t *n_scored,
                                       struct ctw_err *err) CTW_MUST_CHECK;

#endif
