/* Reference: how two rows of logits differ, in double. */
#include <math.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/top.h"
#include "kernels/math.h"

/* ln of the sum of exp(logit) over the first n ids. */
static double normaliser(const struct ctw_logits *l, int64_t row, int64_t n)
{
    const float *x = l->logits + row * l->ld;
    double largest = -INFINITY, sum = 0;
    if (n == l->n_vocab)
        return l->norms[row].largest + l->norms[row].ln_sum;
    for (int64_t i = 0; i < n; i++)
        largest = x[i] > largest ? x[i] : largest;
    for (int64_t i = 0; i < n; i++)
        sum += ctw_exp(x[i] - largest);
    return largest + ctw_ln(sum);
}

/* e^-d - 1 + d, precise also for small d. */
static double excess(double d)
{
    if (fabs(d) > 0.01)
        return ctw_exp(-d) - 1 + d;
    return d * d * (1.0 / 2 - d * (1.0 / 6 - d * (1.0 / 24 - d * (1.0 / 120 - d / 720))));
}

/* p ln(p / q) - p + q, d = ln(p / q) */
static double term(double p, double q, double d)
{
    return p == 0 ? q : q == 0 ? p * d - p : p * excess(d);
}

static void one_row(void *arg, int64_t t, int thread)
{
    (void)thread;
    const struct ctw_op_divergence *op = arg;
    const struct ctw_logits *m = &op->model, *r = &op->reference;
    const float *x = r->logits + t * r->ld, *y = m->logits + t * m->ld;
    int64_t n = m->n_vocab < r->n_vocab ? m->n_vocab : r->n_vocab;
    double x_norm = normaliser(r, t, n), y_norm = normaliser(m, t, n);
    double kl = 0, kl_reverse = 0, tv = 0;
    struct top x_top = {0}, y_top = {0};
    for (int64_t i = 0; i < n; i++) {
        double p = ctw_exp(x[i] - x_norm), q = ctw_exp(y[i] - y_norm);
        double d = ((double)x[i] - y[i]) - (x_norm - y_norm);
        kl += term(p, q, d);
        kl_reverse += term(q, p, -d);
        tv += fabs(p - q) / 2;
        top_add(&x_top, x, (int32_t)i);
        top_add(&y_top, y, (int32_t)i);
    }
    op->out[t] = (struct ctw_divergence_result){.kl = (float)kl,
                                                .kl_reverse = (float)kl_reverse,
                                                .tv = (float)tv,
                                                .ref_top = (float)-r->norms[t].ln_sum,
                                                .overlap5 = top_common(&x_top, &y_top)};
}

enum ctw_status ctw_cpu_divergence_c(struct ctw_cpu *cpu, const struct ctw_op_divergence *op,
                                     struct ctw_err *err)
{
    struct ctw_op_divergence copy = *op;
    (void)err;
    ctw_threads_for(cpu->threads, op->n_rows, one_row, &copy);
    return CTW_OK;
}
