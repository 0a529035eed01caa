/*
 * The running pass as all threads see it: its progress, and the throughput so far. Only running.c
 * changes it, with the queue's lock held. `n_live` alone is also read without the lock.
 */
#ifndef CTW_WORKER_RUNNING_H
#define CTW_WORKER_RUNNING_H

#include <stdatomic.h>

#include "worker/engine/engine.h"

/* ---- throughput: a ring of samples of the work done so far ---- */

enum { CTW_THROUGHPUT_SAMPLES = 64 };

/* Costs are in the units of ctw_sequence_cost(). */
struct ctw_throughput {
    int64_t ms[CTW_THROUGHPUT_SAMPLES];
    double tokens[CTW_THROUGHPUT_SAMPLES], cost[CTW_THROUGHPUT_SAMPLES];
    int n, next;
};

void ctw_throughput_reset(struct ctw_throughput *r);
/* `tokens` and `cost` are totals. A sample that follows the last one too soon is dropped. */
void ctw_throughput_add(struct ctw_throughput *r, int64_t now_ms, double tokens, double cost);
double ctw_throughput_tokens_per_s(const struct ctw_throughput *r); /* 0: unknown */
double ctw_throughput_cost_per_s(const struct ctw_throughput *r);

/* ---- the pass ---- */

struct ctw_running {
    atomic_int n_live; /* jobs in the pass that still want their results */
    bool active;
    struct ctw_progress progress;
    double tok_before, cost_before; /* of earlier passes, for rates */
    int64_t beat_ms;                /* last sign of progress */
    struct ctw_throughput rate;
};

/* Starts a new pass, which no job has joined yet. */
void ctw_running_clear(struct ctw_running *r);
void ctw_running_join(struct ctw_running *r);            /* one more job takes part */
void ctw_running_leave(struct ctw_running *r);           /* a job wants no more results */
bool ctw_running_is_wanted(const struct ctw_running *r); /* any thread, without the lock */

void ctw_running_begin(struct ctw_running *r, int64_t now_ms);
/* `cost` is the cost of the whole pass. */
void ctw_running_advance(struct ctw_running *r, const struct ctw_progress *p, double cost,
                         int64_t now_ms);
/*
 * The pass had n_tok input tokens. Rates count the work that was done: the whole pass if it was
 * completed, else up to the last sign of progress.
 */
void ctw_running_end(struct ctw_running *r, bool completed, int64_t n_tok, double cost,
                     int64_t now_ms);
/* After an idle time, which no rate counts. */
void ctw_running_resume(struct ctw_running *r, int64_t now_ms);
/* Since the last sign of progress; 0: no pass runs. */
uint64_t ctw_running_stalled_ms(const struct ctw_running *r, int64_t now_ms);

#endif
