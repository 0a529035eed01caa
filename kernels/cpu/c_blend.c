/* The definition of ctw_blend(), for every variant: in double. */
#include "kernels/blend.h"

#include <math.h>

#include "kernels/cpu/cpu.h"
#include "kernels/math.h"

enum { LANES = 8 }; /* partial sums */

static double sum_lanes(const double *s)
{
    return ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
}

static double score(const struct ctw_op_blend *op, const float *x)
{
    double dot[LANES] = {0}, squares[LANES] = {0};
    for (int64_t i = 0; i < op->dim; i++) {
        float w = ctw_load_float(op->a, op->a_dtype, i);
        if (op->b != NULL)
            w *= ctw_load_float(op->b, op->b_dtype, i);
        dot[i % LANES] += (double)w * x[i];
        squares[i % LANES] += (double)x[i] * x[i];
    }
    return sum_lanes(dot) / sqrt(sum_lanes(squares) / (double)op->dim + op->eps);
}

static void one_row(void *arg, int64_t t, int thread)
{
    (void)thread;
    const struct ctw_op_blend *op = arg;
    const int64_t row = op->rows != NULL ? op->rows[t] : t;
    const float *x = op->x + row * op->ldx;
    float *y = op->y + row * op->ldy;
    double weight[CTW_MAX_BLEND], most = -INFINITY, total = 0;
    for (int s = 0; s < op->n_parts; s++) {
        weight[s] = score(op, x + s * op->dim);
        most = weight[s] > most ? weight[s] : most;
    }
    for (int s = 0; s < op->n_parts; s++)
        total += weight[s] = ctw_exp(weight[s] - most);
    for (int64_t i = 0; i < op->dim; i++) {
        double sum = 0;
        for (int s = 0; s < op->n_parts; s++)
            sum += weight[s] * x[s * op->dim + i];
        y[i] = (float)(sum / total);
    }
}

enum ctw_status ctw_cpu_blend(struct ctw_cpu *cpu, const struct ctw_op_blend *op,
                              struct ctw_err *err)
{
    (void)err;
    struct ctw_op_blend copy = *op;
    ctw_threads_for(cpu->threads, op->n_tok, one_row, &copy);
    return CTW_OK;
}
