/*
 * Progress of an engine's work for people: one line, redrawn on a terminal, quiet in a log.
 */
#ifndef CTW_WORKER_PROGRESS_H
#define CTW_WORKER_PROGRESS_H

#include "worker/engine/engine.h"

struct ctw_progress_line {
    double started_s, shown_s; /* monotonic clock */
};

void ctw_progress_line_start(struct ctw_progress_line *line);
/* Cheap when called often: draws at most five times a second. p->tok_total is an estimate; 0: none. */
void ctw_progress_line_show(struct ctw_progress_line *line, const struct ctw_progress *p);
/* Clears the line, and logs tokens, seconds and rate if there was anything. */
void ctw_progress_line_end(struct ctw_progress_line *line, const struct ctw_progress *p);

/* Logs which model runs how: backend, variant, dtype, maximum length, memory. */
void ctw_progress_announce(const struct ctw_engine_info *info);

#endif
