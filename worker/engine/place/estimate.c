/* The cost of a placement in words: one string for the log, `info` and `inspect`, with a ';'
 * between two lines. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/text.h"
#include "worker/engine/place/placing.h"

struct text {
    char *buf;
    size_t cap, n;
};

__attribute__((format(printf, 2, 3))) static void add(struct text *t, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(t->buf + t->n, t->cap - t->n, format, args);
    va_end(args);
    t->n = n >= 0 && (size_t)n < t->cap - t->n ? t->n + (size_t)n : t->cap - 1;
}

static void add_bytes(struct text *t, double bytes)
{
    char size[32];
    add(t, "%s", ctw_format_bytes(size, sizeof(size), bytes));
}

/* Where the weights are. */
static void add_place(struct text *t, const struct ctw_placing *p, const struct ctw_model *model,
                      int n_devices)
{
    add(t, "%s, ", ctw_place_name(p->place));
    add_bytes(t, (double)p->weights);
    if (p->place == CTW_SHARDED) {
        add(t, " over %d devices, ", p->n_shards);
        add_bytes(t, (double)p->memory);
        add(t, " of memory on each: %d of %d layers whole, 1/%d of %s others, ", p->n_whole,
            model->n_layers, p->n_shards, p->hosted + p->streamed > 0 ? "some" : "the");
    } else if (p->place == CTW_STREAMED) {
        add(t, " in ");
        add_bytes(t, (double)p->memory);
        add(t, " of memory%s: %d of %d layers stay%s, the others pass through ",
            n_devices > 1 ? " on each device" : "", p->n_whole, model->n_layers,
            p->n_whole == 1 ? "s" : "");
    } else {
        add(t, "%s", n_devices > 1 ? " on each device" : "");
        if (p->unmapped != NULL)
            add(t, ", copied, since the file system of %s does not show writes", p->unmapped);
        return;
    }
    add(t, "a ring of ");
    add_bytes(t, (double)p->ring);
}

static void add_memory(struct text *t, const struct ctw_placing *p, const struct ctw_plan *plan,
                       int n_devices)
{
    if (p->place == CTW_MAPPED && p->memory + plan->total > p->have) {
        add(t, ";passes need ");
        add_bytes(t, (double)plan->total);
        add(t, " of the ");
        add_bytes(t, (double)p->have);
        add(t, " that were free, and weights that do not fit beside them are read in every pass");
        return;
    }
    add(t, ";%s ", n_devices > 1 ? "each device needs" : "needs");
    add_bytes(t, (double)(p->memory + plan->total));
    add(t, " of the ");
    add_bytes(t, (double)p->have);
    add(t, p->is_limited ? " that it may use: " : " that were free: ");
    add_bytes(t, (double)p->memory);
    add(t, " for weights, ");
    add_bytes(t, (double)plan->total);
    add(t, " for passes");
}

/* Bytes that arrive while earlier layers compute. */
static double add_coming(struct text *t, const char *what, uint64_t bytes,
                         const struct ctw_rate *rate)
{
    double s = (double)bytes / fmax(1, rate->value);
    add(t, "%s ", what);
    add_bytes(t, (double)bytes);
    add(t, " at about ");
    add_bytes(t, rate->value);
    add(t, "/s, which takes %.3g s, and ", s);
    return s;
}

/* What a pass costs, and what bounds it. */
static void add_pass(struct text *t, const struct ctw_placing *p, const struct ctw_model *model,
                     const struct ctw_plan *plan, int n_devices)
{
    const struct ctw_rates *r = &p->rates;
    int64_t pass_tokens = plan->pass_tokens;
    int64_t n_chunks = (pass_tokens + plan->chunk_tokens - 1) / plan->chunk_tokens;
    uint64_t gathered = p->gathered + p->repeated * (uint64_t)(n_chunks - 1);
    double compute_s = (double)pass_tokens * ctw_rates_token_flops(model) / r->compute.value;
    double read_s = 0, gather_s = 0;
    uint64_t n = (uint64_t)p->n_sharing, shared = p->streamed + p->hosted;
    add(t, ";every pass ");
    if (p->streamed > 0)
        read_s = add_coming(t, "reads", p->streamed / n, &r->read);
    if (p->hosted > 0)
        read_s += add_coming(t, "copies from host memory", p->hosted / n, &r->host);
    if (n > 1) /* if the devices are at the same layers */
        read_s += add_coming(t, "copies from neighbours", shared - shared / n, &r->gather);
    if (p->gathered > 0)
        gather_s = add_coming(t, "gathers", gathered, &r->gather);
    double coming_s = fmax(read_s, gather_s);
    double pass_s = p->one_at_a_time ? compute_s + coming_s : fmax(compute_s, coming_s);
    add(t, "computes for about %.3g s with %lld tokens: bound by %s", compute_s,
        (long long)pass_tokens,
        coming_s <= compute_s ? "computing"
        : read_s >= gather_s  ? "reading"
                              : "gathering");
    if (p->one_at_a_time)
        add(t, ", one after the other");
    add(t, ";about %.0f tokens/s%s, by %.3g TFLOP/s (%s)", n_devices * (double)pass_tokens / pass_s,
        n_devices > 1 ? " on all devices together" : "", r->compute.value / 1e12,
        r->compute.source);
    if (p->streamed > 0)
        add(t, ", reading from %s (%s)", r->read_from, r->read.source);
    if (p->hosted > 0)
        add(t, ", from host memory (%s)", r->host.source);
    if (p->gathered > 0 || n > 1)
        add(t, ", the link between devices (%s)", r->gather.source);
}

void ctw_placing_describe(struct ctw_placing *p, const struct ctw_model *model,
                          const struct ctw_plan *plan, int n_devices)
{
    struct text t = {.buf = p->note, .cap = sizeof(p->note)};
    add_place(&t, p, model, n_devices);
    add_memory(&t, p, plan, n_devices);
    if (p->rates.compute.value > 0)
        add_pass(&t, p, model, plan, n_devices);
}
