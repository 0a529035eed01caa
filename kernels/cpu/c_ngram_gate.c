/* The definition of ctw_ngram_gate(), for every variant: in double. */
#include "kernels/ngram_gate.h"

#include <math.h>

#include "kernels/cpu/cpu.h"
#include "kernels/math.h"

/* sigmoid(sign(g) sqrt(max(|g|, 1e-6))) */
static double gate_of(double g)
{
    const double least = 1e-6, size = sqrt(fabs(g) > least ? fabs(g) : least);
    const double v = g > 0 ? size : g < 0 ? -size : 0 * g; /* NaN stays */
    return 1 / (1 + ctw_exp(-v));
}

/* A stream's gate; *squares is the sum of its squares. */
static double stream_gate(const struct ctw_op_ngram_gate *op, int64_t row, int s, double *squares)
{
    const int64_t first = s * op->dim, dim = op->dim;
    const float *x = op->x + row * op->n * dim + first;
    double xx = 0, kk = 0, dot = 0;
    for (int64_t i = 0; i < dim; i++) {
        const double k = ctw_load_float(op->key, op->dtype, row * op->ld + first + i);
        const double kw = ctw_load_float(op->key_norm.at, op->key_norm.dtype, first + i);
        const double xw = ctw_load_float(op->x_norm.at, op->x_norm.dtype, first + i);
        xx += (double)x[i] * x[i];
        kk += k * k;
        dot += k * (kw + op->offset) * x[i] * (xw + op->offset);
    }
    *squares = xx;
    return gate_of(dot / sqrt(xx / (double)dim + op->eps) / sqrt(kk / (double)dim + op->eps) /
                   sqrt((double)dim));
}

static void one_row(void *arg, int64_t row, int thread)
{
    (void)thread;
    const struct ctw_op_ngram_gate *op = arg;
    const int64_t width = op->n * op->dim;
    double squares, all = 0;
    for (int s = 0; s < op->n; s++) {
        const double gate = stream_gate(op, row, s, &squares);
        all += squares;
        for (int64_t i = 0; i < op->dim; i++)
            ctw_store_float(op->y, op->dtype, row * width + s * op->dim + i,
                            (float)(gate * ctw_load_float(op->value, op->dtype, row * op->ld + i)));
    }
    if (op->bad != NULL && !isfinite((float)all) && op->bad[row] < 0)
        op->bad[row] = op->stamp;
}

enum ctw_status ctw_cpu_ngram_gate(struct ctw_cpu *cpu, const struct ctw_op_ngram_gate *op,
                                   struct ctw_err *err)
{
    (void)err;
    struct ctw_op_ngram_gate copy = *op;
    ctw_threads_for(cpu->threads, op->n_tok, one_row, &copy);
    return CTW_OK;
}
