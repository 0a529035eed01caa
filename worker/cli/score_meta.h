/*
 * The record beside the results of `ctworker score`: one JSON object that says what scored them and
 * whether they are complete. Result lines hold no such thing, so that every line has one form.
 */
#ifndef CTW_WORKER_SCORE_META_H
#define CTW_WORKER_SCORE_META_H

#include "worker/cli/output_file.h"
#include "worker/engine/engine.h"

struct ctw_score_counts {
    int64_t items;  /* result lines, all whole */
    int64_t scored; /* log-probabilities in them */
    bool complete;  /* the whole input has been scored */
};

/*
 * Replaces what the file holds. The first writing, before anything is scored, is not complete: that
 * is what a run leaves that is killed.
 */
enum ctw_status ctw_score_meta_write(struct ctw_output_file *f, const struct ctw_engine *engine,
                                     const struct ctw_score_counts *counts,
                                     struct ctw_err *err) CTW_MUST_CHECK;

#endif
