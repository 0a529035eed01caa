/*
 * The thread that owns the engines: opens and closes models, plans jobs, and scores one pass after
 * another. A pass takes units of all jobs of one model, one unit at a time from the job that has
 * been served the fewest tokens so far, until the engine's pass is full. So no job waits for
 * another one's end, and small jobs ride along. A sequence's score does not depend on what else is
 * in its pass.
 *
 * Which sequence is too long for the memory may show only when its pass is prepared. Then each job of
 * that pass gets a pass to itself, and only a job whose own pass finds no memory fails.
 */
#ifndef CTW_WORKER_SCORER_H
#define CTW_WORKER_SCORER_H

#include "base/log.h"
#include "worker/service/queue.h"

struct ctw_pass_unit {
    struct ctw_job *job;
    int64_t unit;
    bool taken;
};

enum { CTW_SCORER_NOTES = 16, CTW_SCORER_NOTE_MAX = 512 };

struct ctw_scorer {
    struct ctw_queue *queue;
    struct ctw_engine_options options; /* model_dir comes from the model's slot */
    /* the pass being made or run */
    struct ctw_seq *seqs;
    struct ctw_pass_unit *units;
    int64_t n, cap;
    double pass_cost;
    int n_decoders;
    const struct ctw_engine *engine; /* of the last pass */
    int64_t shown_ms;
    /* Lines for the log, written when the lock is not held: standard error may be a full pipe. */
    struct {
        enum ctw_log_level level;
        char text[CTW_SCORER_NOTE_MAX];
    } notes[CTW_SCORER_NOTES];
    int n_notes;
};

/* Runs until ctw_queue_stop(), which cancels all jobs. */
void ctw_scorer_run(struct ctw_scorer *s);
void ctw_scorer_fini(struct ctw_scorer *s);

/* Fills the pass; returns its model, NULL when there is nothing to do. Lock held. */
struct ctw_model_slot *ctw_scorer_make_pass(struct ctw_scorer *s);

#endif
