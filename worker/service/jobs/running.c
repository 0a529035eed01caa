#include "worker/service/jobs/running.h"

/* ---- throughput ---- */

void ctw_throughput_reset(struct ctw_throughput *r)
{
    r->n = 0;
    r->next = 0;
}

void ctw_throughput_add(struct ctw_throughput *r, int64_t now_ms, double tokens, double cost)
{
    enum { SPACING_MS = 500 }; /* the ring then holds half a minute */
    int last = (r->next + CTW_THROUGHPUT_SAMPLES - 1) % CTW_THROUGHPUT_SAMPLES;
    if (r->n > 0 && now_ms - r->ms[last] < SPACING_MS)
        return;
    r->ms[r->next] = now_ms;
    r->tokens[r->next] = tokens;
    r->cost[r->next] = cost;
    r->next = (r->next + 1) % CTW_THROUGHPUT_SAMPLES;
    if (r->n < CTW_THROUGHPUT_SAMPLES)
        r->n++;
}

static double per_s(const struct ctw_throughput *r, const double *work)
{
    if (r->n < 2)
        return 0;
    int last = (r->next + CTW_THROUGHPUT_SAMPLES - 1) % CTW_THROUGHPUT_SAMPLES;
    int oldest = (r->next + CTW_THROUGHPUT_SAMPLES - r->n) % CTW_THROUGHPUT_SAMPLES;
    return (work[last] - work[oldest]) * 1000 / (double)(r->ms[last] - r->ms[oldest]);
}

double ctw_throughput_tokens_per_s(const struct ctw_throughput *r)
{
    return per_s(r, r->tokens);
}

double ctw_throughput_cost_per_s(const struct ctw_throughput *r)
{
    return per_s(r, r->cost);
}

/* ---- the pass ---- */

void ctw_running_clear(struct ctw_running *r)
{
    atomic_store(&r->n_live, 0);
}

void ctw_running_join(struct ctw_running *r)
{
    atomic_fetch_add(&r->n_live, 1);
}

void ctw_running_leave(struct ctw_running *r)
{
    atomic_fetch_sub(&r->n_live, 1);
}

bool ctw_running_is_wanted(const struct ctw_running *r)
{
    return atomic_load(&r->n_live) > 0;
}

void ctw_running_begin(struct ctw_running *r, int64_t now_ms)
{
    r->progress = (struct ctw_progress){0};
    r->active = true;
    r->beat_ms = now_ms;
}

void ctw_running_advance(struct ctw_running *r, const struct ctw_progress *p, double cost,
                         int64_t now_ms)
{
    r->progress = *p;
    r->beat_ms = now_ms;
    double share = p->tok_total > 0 ? (double)p->tok_done / (double)p->tok_total : 0;
    ctw_throughput_add(&r->rate, now_ms, r->tok_before + (double)p->tok_done,
                       r->cost_before + share * cost);
}

void ctw_running_end(struct ctw_running *r, bool completed, int64_t n_tok, double cost,
                     int64_t now_ms)
{
    r->active = false;
    r->beat_ms = now_ms;
    if (completed) {
        r->tok_before += (double)n_tok;
        r->cost_before += cost;
    } else if (n_tok > 0) {
        r->tok_before += (double)r->progress.tok_done;
        r->cost_before += (double)r->progress.tok_done / (double)n_tok * cost;
    }
    ctw_throughput_add(&r->rate, now_ms, r->tok_before, r->cost_before);
}

void ctw_running_resume(struct ctw_running *r, int64_t now_ms)
{
    ctw_throughput_reset(&r->rate);
    ctw_throughput_add(&r->rate, now_ms, r->tok_before, r->cost_before);
}

uint64_t ctw_running_stalled_ms(const struct ctw_running *r, int64_t now_ms)
{
    return r->active && now_ms > r->beat_ms ? (uint64_t)(now_ms - r->beat_ms) : 0;
}
