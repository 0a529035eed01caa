#include "worker/service/rate.h"

void ctw_rate_reset(struct ctw_rate *r)
{
    r->n = 0;
    r->next = 0;
}

void ctw_rate_add(struct ctw_rate *r, int64_t now_ms, double tokens, double cost)
{
    enum { SPACING_MS = 500 }; /* the ring then holds half a minute */
    int last = (r->next + CTW_RATE_SAMPLES - 1) % CTW_RATE_SAMPLES;
    if (r->n > 0 && now_ms - r->ms[last] < SPACING_MS)
        return;
    r->ms[r->next] = now_ms;
    r->tokens[r->next] = tokens;
    r->cost[r->next] = cost;
    r->next = (r->next + 1) % CTW_RATE_SAMPLES;
    if (r->n < CTW_RATE_SAMPLES)
        r->n++;
}

static double per_s(const struct ctw_rate *r, const double *work)
{
    if (r->n < 2)
        return 0;
    int last = (r->next + CTW_RATE_SAMPLES - 1) % CTW_RATE_SAMPLES;
    int oldest = (r->next + CTW_RATE_SAMPLES - r->n) % CTW_RATE_SAMPLES;
    return (work[last] - work[oldest]) * 1000 / (double)(r->ms[last] - r->ms[oldest]);
}

double ctw_rate_tokens_per_s(const struct ctw_rate *r)
{
    return per_s(r, r->tokens);
}

double ctw_rate_cost_per_s(const struct ctw_rate *r)
{
    return per_s(r, r->cost);
}
