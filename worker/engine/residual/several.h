/*
 * Shared by the residual kinds of several streams: the pass's streams, [tokens, n hidden] of
 * CTW_RESIDUAL, and behind them [tokens, kept], numbers that a branch's read() leaves for its
 * join().
 */
#ifndef CTW_WORKER_SEVERAL_H
#define CTW_WORKER_SEVERAL_H

#include "kernels/streams.h"
#include "worker/engine/pass/step.h"

/* The chunk's streams, and the chunk's kept numbers. */
float *ctw_several_at(const struct ctw_step *s, int n);
float *ctw_several_kept(const struct ctw_step *s, int n, int64_t kept);

/* Copies the embedding, which is where the chunk's streams come, to all streams. */
enum ctw_status ctw_several_begin(const struct ctw_step *s, int n,
                                  struct ctw_err *err) CTW_MUST_CHECK;
/* Joins a branch's output with the streams: op's mix, apart, out, dtype and factor are set. No such
 * family has norms of outputs. */
enum ctw_status ctw_several_join(const struct ctw_step *s, int n, struct ctw_op_expand op,
                                 struct ctw_err *err) CTW_MUST_CHECK;

#endif
