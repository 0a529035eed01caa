/*
 * Shared by the tests of ctw_divergence on the CPU and on a GPU: logits of two models, and what the
 * operation must make of them, in long double.
 */
#ifndef CTW_TESTS_DIVERGENCE_PROBLEM_H
#define CTW_TESTS_DIVERGENCE_PROBLEM_H

#include "ops.h"

struct side {
    struct buf logits, norms;
    struct ctw_logits l;
};

struct problem {
    int64_t n_rows;
    struct side model, reference;
};

/* Norms are computed in double and rounded like a head's: to a multiple of about 1e-7. */
static void set_norms(struct side *s, int64_t n_rows)
{
    for (int64_t t = 0; t < n_rows; t++) {
        const float *x = (float *)s->logits.p + t * s->l.ld;
        double largest = -INFINITY, sum = 0;
        for (int64_t i = 0; i < s->l.n_vocab; i++)
            largest = x[i] > largest ? x[i] : largest;
        for (int64_t i = 0; i < s->l.n_vocab; i++)
            sum += exp(x[i] - largest);
        ((struct ctw_head_norm *)s->norms.p)[t] =
            (struct ctw_head_norm){largest, log(sum * (1 + 1e-7 * (double)rng_normal()))};
    }
}

static struct side side_open(int64_t n_rows, int64_t n_vocab)
{
    struct side s;
    int64_t ld = (n_vocab + CTW_LOGITS_ALIGN - 1) / CTW_LOGITS_ALIGN * CTW_LOGITS_ALIGN;
    s.logits = buf_open((size_t)(n_rows * ld) * sizeof(float), 0);
    s.norms = buf_open((size_t)n_rows * sizeof(struct ctw_head_norm), 0);
    memset(s.logits.p, 0xff, s.logits.bytes); /* NaN beyond the vocabulary */
    s.l = (struct ctw_logits){n_vocab, s.logits.p, ld, s.norms.p};
    return s;
}

/* Logits of deviation `spread`; the model's are the reference's plus noise and a constant. */
static struct problem problem_open(int64_t n_rows, int64_t n_model, int64_t n_reference,
                                   float spread, float noise)
{
    struct problem p = {n_rows, side_open(n_rows, n_model), side_open(n_rows, n_reference)};
    for (int64_t t = 0; t < n_rows; t++) {
        float *x = (float *)p.reference.logits.p + t * p.reference.l.ld;
        float *y = (float *)p.model.logits.p + t * p.model.l.ld, shift = 3 * rng_normal();
        for (int64_t i = 0; i < n_reference; i++)
            x[i] = spread * rng_normal();
        for (int64_t i = 0; i < n_model; i++)
            y[i] = (i < n_reference ? x[i] : spread * rng_normal()) + noise * rng_normal() + shift;
    }
    set_norms(&p.model, n_rows);
    set_norms(&p.reference, n_rows);
    return p;
}

static void problem_close(struct problem *p)
{
    struct buf *bufs[] = {&p->model.logits, &p->model.norms, &p->reference.logits,
                          &p->reference.norms};
    for (size_t i = 0; i < CTW_COUNT(bufs); i++)
        buf_close(bufs[i]);
}

/* ---- the definition ----------------------------------------------------------------------- */

static long double ln_sum_exp(const float *x, int64_t n)
{
    long double largest = -INFINITY, sum = 0;
    for (int64_t i = 0; i < n; i++)
        largest = x[i] > largest ? x[i] : largest;
    for (int64_t i = 0; i < n; i++)
        sum += expl(x[i] - largest);
    return largest + logl(sum);
}

/* Is id one of the row's five largest logits? Counts the ids that come before it. */
static bool in_top(const float *x, int64_t n, int64_t id)
{
    int before = 0;
    for (int64_t i = 0; i < n && before < 5; i++)
        before += x[i] > x[id] || (x[i] == x[id] && i < id);
    return before < 5;
}

struct wanted {
    long double kl, kl_reverse, tv, ref_top;
    int overlap5;
};

static struct wanted wanted(const struct problem *p, int64_t t)
{
    const float *x = (float *)p->reference.logits.p + t * p->reference.l.ld;
    const float *y = (float *)p->model.logits.p + t * p->model.l.ld;
    int64_t n_x = p->reference.l.n_vocab, n = n_x < p->model.l.n_vocab ? n_x : p->model.l.n_vocab;
    struct wanted w = {.ref_top = -INFINITY};
    long double nx = ln_sum_exp(x, n), ny = ln_sum_exp(y, n), all = ln_sum_exp(x, n_x);
    for (int64_t i = 0; i < n_x; i++)
        w.ref_top = x[i] - all > w.ref_top ? x[i] - all : w.ref_top;
    for (int64_t i = 0; i < n; i++) {
        long double lp = x[i] - nx, lq = y[i] - ny, a = expl(lp), b = expl(lq);
        w.kl += a > 0 ? a * (lp - lq) : 0;
        w.kl_reverse += b > 0 ? b * (lq - lp) : 0;
        w.tv += fabsl(a - b) / 2;
    }
    /* Only logits that one of both could have among its five are worth a count. */
    float x_fifth = -INFINITY;
    for (int64_t i = 0; i < n && n > 100; i++)
        if (x[i] > x_fifth && !in_top(x, n, i))
            x_fifth = x[i];
    for (int64_t i = 0; i < n; i++)
        w.overlap5 += x[i] >= x_fifth && in_top(x, n, i) && in_top(y, n, i);
    return w;
}

/*
 * Terms are within 3e-6, and 1.2e-7 times their ln p. Besides, ln(p / q) has the rounding of the
 * logits' difference and the norms' error, which set_norms() makes, together 1e-6: it changes tv by
 * as much, and a divergence by that times the sum of |p - q|, and by its square.
 */
static void compare(const struct problem *p, const struct ctw_divergence_result *got,
                    const char *what)
{
    for (int64_t t = 0; t < p->n_rows; t++) {
        struct wanted w = wanted(p, t);
        double slack = 2e-6 * (double)w.tv + 1e-12;
        near((double)got[t].kl, (double)w.kl, 5e-6 * (double)w.kl + slack, what, t);
        near((double)got[t].kl_reverse, (double)w.kl_reverse, 5e-6 * (double)w.kl_reverse + slack,
             what, t);
        near((double)got[t].tv, (double)w.tv, 5e-6 * (double)w.tv + 4e-7, what, t);
        near((double)got[t].ref_top, (double)w.ref_top,
             5e-7 + 2 * half_step(CTW_F32, (double)w.ref_top), what, t);
        assert_int_equal(got[t].overlap5, w.overlap5);
        assert_true(got[t].kl >= 0);
        assert_true(got[t].kl_reverse >= 0);
        assert_true(got[t].tv >= 0);
    }
}

#endif
