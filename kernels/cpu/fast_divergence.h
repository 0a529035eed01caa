/*
 * The divergence of two rows of logits. A task is one row. Sums are in fp32 over SPAN columns, one
 * chain per lane and vector, and in double over these spans, all in the order of the vocabulary. A
 * term's relative error is within 3e-6, and 1.2e-7 times its ln p.
 */
#ifndef CTW_KERNELS_CPU_FAST_DIVERGENCE_H
#define CTW_KERNELS_CPU_FAST_DIVERGENCE_H

#include "kernels/cpu/top.h"
#include "kernels/math.h"

enum { DIVERGENCE_AT_ONCE = 2 }; /* vectors */

/* Adds ids id0 .. id0+n-1 of x. `span` holds their logits and the padding of the last vector. */
static void top_add_span(struct top *top, const float *x, int32_t id0, int n, const float *span)
{
    vf largest = vf_set1(-INFINITY);
    for (int i = 0; i < n; i += VL)
        largest = vf_max(vf_load(span + i), largest);
    if (top->n == TOP && !(vf_largest(largest) > x[top->id[TOP - 1]]))
        return;
    for (int i = 0; i < n; i++)
        if (top->n < TOP || x[id0 + i] > x[top->id[TOP - 1]])
            top_add(top, x, id0 + i);
}

/* n <= SPAN logits. Padding of the last vector is finite, but so small that its probability is 0.
 * `space`: [SPAN], used if there is padding. */
INLINE const float *divergence_span(const float *x, int n, float *space)
{
    if (n % VL == 0)
        return x;
    memcpy(space, x, (size_t)n * sizeof(*x));
    for (int i = n; i < round_up(n, VL); i++)
        space[i] = -1e30f;
    return space;
}

/* What a row's logits are reduced by. */
struct row_norm {
    double largest, ln_sum;
};

/* Over the first n ids. */
static struct row_norm row_norm(const struct ctw_logits *l, int64_t row, int64_t n)
{
    const float *x = l->logits + row * l->ld;
    if (n == l->n_vocab)
        return (struct row_norm){l->norms[row].largest, l->norms[row].ln_sum};
    double largest = -INFINITY, sum = 0;
    for (int64_t i = 0; i < n; i++)
        largest = x[i] > largest ? x[i] : largest;
    for (int64_t i0 = 0; i0 < n; i0 += SPAN) {
        float space[SPAN];
        int some = (int)min64(SPAN, n - i0);
        const float *span = divergence_span(x + i0, some, space);
        vf sums = vf_zero(), from = vf_set1((float)largest);
        for (int i = 0; i < some; i += VL)
            sums = vf_add(sums, vf_exp(vf_sub(vf_load(span + i), from)));
        sum += vf_sum(sums);
    }
    return (struct row_norm){largest, ctw_ln(sum)};
}

/* Both rows' factors: ln p = (x - largest) - ln_sum, and ln(p / q) = (x - y) - shift - shift_rest.
 */
struct divergence_row {
    vf p_largest, p_ln_sum, q_largest, q_ln_sum, shift, shift_rest;
};

static struct divergence_row divergence_row(struct row_norm p, struct row_norm q)
{
    double shift = (p.largest - q.largest) + (p.ln_sum - q.ln_sum);
    return (struct divergence_row){
        vf_set1((float)p.largest), vf_set1((float)p.ln_sum),
        vf_set1((float)q.largest), vf_set1((float)q.ln_sum),
        vf_set1((float)shift),     vf_set1((float)(shift - (float)shift))};
}

/* Lane by lane: p ln(p / q) - p + q, q ln(q / p) - q + p, and |p - q|. */
struct divergence_sums {
    vf kl, kl_reverse, tv;
};

/* |a| */
INLINE vf vf_abs(vf a)
{
    return vf_copysign(a, vf_zero());
}

/*
 * Adds n vectors, a constant, in order. With d = ln(p / q) and, for |d| <= 0.34, rest(d) = (e^d - 1
 * - d) / d^2, the terms are p d^2 rest(-d), q d^2 rest(d) and p |d - d^2 rest(-d)|: nothing
 * cancels. For other d, they are computed as they are defined; there, p ln(p / q) is 0 if p is 0.
 */
INLINE void divergence_each(struct divergence_sums *s, const struct divergence_row *row,
                            const float *x, const float *y, const int n)
{
    const vf zero = vf_zero(), near = vf_set1(0.34f);
    vf d[EACH_MOST], minus[EACH_MOST], p[EACH_MOST], q[EACH_MOST], a[EACH_MOST], b[EACH_MOST];
    EACH(d[i] = vf_sub(vf_load(x + i * VL), vf_load(y + i * VL)))
    EACH(d[i] = vf_sub(vf_sub(d[i], row->shift), row->shift_rest))
    EACH(minus[i] = vf_sub(zero, d[i]))
    EACH(p[i] = vf_sub(vf_sub(vf_load(x + i * VL), row->p_largest), row->p_ln_sum))
    EACH(q[i] = vf_sub(vf_sub(vf_load(y + i * VL), row->q_largest), row->q_ln_sum))
    vf_exp_each(p, n);
    vf_exp_each(q, n);
    vf_exp_rest_each(a, minus, n);
    vf_exp_rest_each(b, d, n);
    EACH(a[i] = vf_mul(a[i], vf_mul(d[i], d[i])))
    EACH(b[i] = vf_mul(b[i], vf_mul(d[i], d[i])))
    UNROLL
    for (int i = 0; i < n; i++) {
        vf size = vf_abs(d[i]), difference = vf_sub(p[i], q[i]);
        vf kl = vf_sub(vf_mul(p[i], d[i]), difference);
        vf kl_reverse = vf_add(vf_mul(q[i], minus[i]), difference);
        kl = vf_select_le(p[i], zero, q[i], kl);
        kl_reverse = vf_select_le(q[i], zero, p[i], kl_reverse);
        vf tv = vf_mul(p[i], vf_abs(vf_sub(d[i], a[i])));
        s->kl = vf_add(s->kl, vf_select_le(size, near, vf_mul(p[i], a[i]), kl));
        s->kl_reverse =
            vf_add(s->kl_reverse, vf_select_le(size, near, vf_mul(q[i], b[i]), kl_reverse));
        s->tv = vf_add(s->tv, vf_select_le(size, near, tv, vf_abs(difference)));
    }
}

static void divergence_item(void *arg, int64_t t, int thread)
{
    (void)thread;
    const struct ctw_op_divergence *op = arg;
    const struct ctw_logits *m = &op->model, *r = &op->reference;
    const float *x = r->logits + t * r->ld, *y = m->logits + t * m->ld;
    int64_t n = min64(m->n_vocab, r->n_vocab);
    const struct divergence_row row = divergence_row(row_norm(r, t, n), row_norm(m, t, n));
    double kl = 0, kl_reverse = 0, tv = 0;
    struct top x_top = {0}, y_top = {0};
    for (int64_t i0 = 0; i0 < n; i0 += SPAN) {
        float x_space[SPAN], y_space[SPAN];
        int some = (int)min64(SPAN, n - i0), i = 0;
        const float *xs = divergence_span(x + i0, some, x_space);
        const float *ys = divergence_span(y + i0, some, y_space);
        struct divergence_sums s = {vf_zero(), vf_zero(), vf_zero()};
        for (; i + DIVERGENCE_AT_ONCE * VL <= some; i += DIVERGENCE_AT_ONCE * VL)
            divergence_each(&s, &row, xs + i, ys + i, DIVERGENCE_AT_ONCE);
        for (; i < some; i += VL)
            divergence_each(&s, &row, xs + i, ys + i, 1);
        kl += vf_sum(s.kl);
        kl_reverse += vf_sum(s.kl_reverse);
        tv += vf_sum(s.tv);
        top_add_span(&x_top, x, (int32_t)i0, some, xs);
        top_add_span(&y_top, y, (int32_t)i0, some, ys);
    }
    op->out[t] = (struct ctw_divergence_result){.kl = (float)kl,
                                                .kl_reverse = (float)kl_reverse,
                                                .tv = (float)(tv / 2),
                                                .ref_top = (float)-r->norms[t].ln_sum,
                                                .overlap5 = top_common(&x_top, &y_top)};
}

static enum ctw_status fast_divergence(struct ctw_cpu *cpu, const struct ctw_op_divergence *op,
                                       struct ctw_err *err)
{
    struct ctw_op_divergence copy = *op;
    (void)err;
    ctw_threads_for(cpu->threads, op->n_rows, divergence_item, &copy);
    return CTW_OK;
}

#endif
