/*
 * Residual streams collapsed and expanded, for every variant. Products with fn: fp32 sums in LANES
 * lanes over BLOCK elements, whose sums are added in double, in the order of the blocks.
 */
#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/math.h"
#include "kernels/streams.h"

enum { LANES = 16, BLOCK = 1024, MOST = CTW_MAX_STREAMS };
enum { ROWS = 2 * MOST + MOST * MOST }; /* of fn */

/* n <= BLOCK elements from `from` on, widened; zeros up to a multiple of LANES. */
static void widen(float *to, const struct ctw_stream_weights *w, int64_t from, int n)
{
    if (w->dtype == CTW_F32)
        memcpy(to, (const char *)w->at + (size_t)from * sizeof(*to), (size_t)n * sizeof(*to));
    for (int i = 0; w->dtype != CTW_F32 && i < n; i++)
        to[i] = ctw_load_float(w->at, w->dtype, from + i);
    for (int i = n; i % LANES != 0; i++)
        to[i] = 0;
}

static double product(const float *x, const float *y, int n)
{
    float sum[LANES] = {0};
    for (int i = 0; i < n; i += LANES)
        for (int l = 0; l < LANES; l++)
            sum[l] += x[i + l] * y[i + l];
    double all = 0;
    for (int l = 0; l < LANES; l++)
        all += sum[l];
    return all;
}

/* m = fn f / rms(f). Returns whether f's squares have a sum. */
static bool project(const struct ctw_op_collapse *op, const float *f, int64_t n_rows, double *m)
{
    float x[BLOCK], w[BLOCK];
    const int64_t k = op->n * op->dim;
    const struct ctw_stream_weights all = {f, CTW_F32};
    double squares = 0;
    memset(m, 0, (size_t)n_rows * sizeof(*m));
    for (int64_t from = 0; from < k; from += BLOCK) {
        const int n = k - from < BLOCK ? (int)(k - from) : BLOCK;
        widen(x, &all, from, n);
        squares += product(x, x, n);
        for (int64_t r = 0; r < n_rows; r++) {
            widen(w, &op->fn, r * k + from, n);
            m[r] += product(x, w, n);
        }
    }
    const double rms = sqrt(squares / (double)k + op->norm_eps);
    for (int64_t r = 0; r < n_rows; r++)
        m[r] /= rms;
    return isfinite(squares);
}

static double sigmoid(double x)
{
    return 1 / (1 + ctw_exp(-x));
}

static double number(const struct ctw_stream_weights *w, int64_t i)
{
    return ctw_load_float(w->at, w->dtype, i);
}

/* Divides comb [n, n] by its sums over s (columns) or over t. */
static void balance(double *comb, int n, bool columns, double eps)
{
    for (int i = 0; i < n; i++) {
        double sum = 0;
        for (int j = 0; j < n; j++)
            sum += comb[columns ? j * n + i : i * n + j];
        for (int j = 0; j < n; j++)
            comb[columns ? j * n + i : i * n + j] /= sum + eps;
    }
}

/* comb, of its logits in place. */
static void mix_of(const struct ctw_op_collapse *op, double *comb)
{
    const int n = op->n;
    for (int i = 0; op->n_sinkhorn == 0 && i < n * n; i++)
        comb[i] = i / n == i % n;
    if (op->n_sinkhorn == 0)
        return;
    for (int s = 0; s < n; s++) {
        double most = -INFINITY, sum = 0, *row = comb + s * n;
        for (int t = 0; t < n; t++)
            most = row[t] > most ? row[t] : most;
        for (int t = 0; t < n; t++)
            sum += row[t] = ctw_exp(row[t] - most);
        for (int t = 0; t < n; t++)
            row[t] = row[t] / sum + op->eps;
    }
    balance(comb, n, true, op->eps);
    for (int i = 1; i < op->n_sinkhorn; i++) {
        balance(comb, n, false, op->eps);
        balance(comb, n, true, op->eps);
    }
}

static void collapse_one(void *arg, int64_t t, int thread)
{
    (void)thread;
    const struct ctw_op_collapse *op = arg;
    const int n = op->n;
    const int64_t from = op->rows != NULL ? op->rows[t] : t;
    const float *f = op->x + from * n * op->dim;
    double m[ROWS];
    const bool mean = op->fn.at == NULL;
    const int64_t n_rows = mean ? 0 : ctw_stream_rows(n, op->mix != NULL, op->n_sinkhorn);
    if (!project(op, f, n_rows, m) && op->bad != NULL && op->bad[from] < 0)
        op->bad[from] = op->stamp;
    for (int64_t r = 0; r < n_rows; r++)
        m[r] = m[r] * number(&op->scale, r < n ? 0 : r < 2 * n ? 1 : 2) + number(&op->base, r);
    float pre[MOST];
    for (int s = 0; s < n; s++)
        pre[s] = mean ? 1 / (float)n : (float)(sigmoid(m[s]) + op->eps);
    float *y = op->y + t * op->dim;
    for (int64_t i = 0; i < op->dim; i++)
        y[i] = pre[0] * f[i];
    for (int s = 1; s < n; s++)
        for (int64_t i = 0; i < op->dim; i++)
            y[i] += pre[s] * f[s * op->dim + i];
    if (op->mix == NULL)
        return;
    float *mix = op->mix + t * ctw_stream_mix(n);
    mix_of(op, m + 2 * n);
    for (int s = 0; s < n; s++)
        mix[s] = (float)(op->post_factor * sigmoid(m[n + s]) + op->post_eps);
    for (int i = 0; i < n * n; i++)
        mix[n + i] = (float)m[2 * n + i];
}

enum ctw_status ctw_cpu_collapse(struct ctw_cpu *cpu, const struct ctw_op_collapse *op,
                                 struct ctw_err *err)
{
    (void)err;
    struct ctw_op_collapse copy = *op;
    ctw_threads_for(cpu->threads, op->n_tok, collapse_one, &copy);
    return CTW_OK;
}

static void expand_one(void *arg, int64_t row, int thread)
{
    (void)thread;
    const struct ctw_op_expand *op = arg;
    const int n = op->n;
    const float *post = op->mix + row * (op->apart ? n : ctw_stream_mix(n)), *comb = post + n;
    float *x = op->x + row * n * op->dim, out[BLOCK], sum[MOST][BLOCK];
    const struct ctw_stream_weights outs = {op->out, op->dtype};
    for (int64_t from = 0; from < op->dim; from += BLOCK) {
        const int count = op->dim - from < BLOCK ? (int)(op->dim - from) : BLOCK;
        widen(out, &outs, row * op->dim + from, count);
        for (int t = 0; t < n; t++) {
            for (int i = 0; i < count; i++)
                sum[t][i] = post[t] * op->factor * out[i];
            for (int s = op->apart ? t : 0; s < (op->apart ? t + 1 : n); s++)
                for (int i = 0; i < count; i++)
                    sum[t][i] += (op->apart ? 1 : comb[s * n + t]) * x[s * op->dim + from + i];
        }
        for (int t = 0; t < n; t++)
            memcpy(x + t * op->dim + from, sum[t], (size_t)count * sizeof(float));
    }
}

enum ctw_status ctw_cpu_expand(struct ctw_cpu *cpu, const struct ctw_op_expand *op,
                               struct ctw_err *err)
{
    (void)err;
    struct ctw_op_expand copy = *op;
    ctw_threads_for(cpu->threads, op->n_tok, expand_one, &copy);
    return CTW_OK;
}
