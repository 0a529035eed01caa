/* Throughput: a ring of samples of the work done so far. rate.c alone changes it. */
#ifndef CTW_WORKER_RATE_H
#define CTW_WORKER_RATE_H

#include <stdint.h>

enum { CTW_RATE_SAMPLES = 64 };

/* Costs are in the units of ctw_unit_cost(). */
struct ctw_rate {
    int64_t ms[CTW_RATE_SAMPLES];
    double tokens[CTW_RATE_SAMPLES], cost[CTW_RATE_SAMPLES];
    int n, next;
};

void ctw_rate_reset(struct ctw_rate *r);
/* `tokens` and `cost` are totals. A sample that follows the last one too soon is dropped. */
void ctw_rate_add(struct ctw_rate *r, int64_t now_ms, double tokens, double cost);
double ctw_rate_tokens_per_s(const struct ctw_rate *r); /* 0: unknown */
double ctw_rate_cost_per_s(const struct ctw_rate *r);

#endif
