/*
 * The record of a run of `ctworker score`: one JSON object that says how the results were made and
 * whether they are complete. It is a separate file, so that every result line has the same form.
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
 * Replaces the file's content. The first record, written before anything is scored, has "complete"
 * false: a killed run leaves this record.
 */
enum ctw_status ctw_score_meta_write(struct ctw_output_file *f, const struct ctw_engine *engine,
                                     const struct ctw_score_counts *counts,
                                     struct ctw_err *err) CTW_MUST_CHECK;

#endif
