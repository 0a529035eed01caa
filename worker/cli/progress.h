/*
 * Progress of an engine for human readers: one line, redrawn on a terminal, silent in a log.
 */
#ifndef CTW_WORKER_PROGRESS_H
#define CTW_WORKER_PROGRESS_H

#include "worker/engine/engine.h"

struct ctw_progress_line {
    double started_s, shown_s; /* monotonic clock */
};

void ctw_progress_line_start(struct ctw_progress_line *line);
/* Cheap to call often: draws at most five times per second. p->tok_total: an estimate; 0: unknown.
 */
void ctw_progress_line_show(struct ctw_progress_line *line, const struct ctw_progress *p);
/* Clears the line, and logs tokens, seconds and rate if there were any tokens. */
void ctw_progress_line_end(struct ctw_progress_line *line, const struct ctw_progress *p);

/* Logs the model and how it runs: backend, variant, dtype, maximum length, memory. */
void ctw_progress_announce(const struct ctw_engine_info *info);

#endif
