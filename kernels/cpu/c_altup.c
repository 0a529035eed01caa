/* The definition of ctw_altup(), for every variant: in double. */
#include "kernels/altup.h"

#include <math.h>

#include "kernels/cpu/cpu.h"
#include "kernels/math.h"

enum { LANES = 8 }; /* partial sums */

static double sum_lanes(const double *s)
{
    return ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
}

static double mean_square(const float *x, int64_t dim)
{
    double squares[LANES] = {0};
    for (int64_t i = 0; i < dim; i++)
        squares[i % LANES] += (double)x[i] * x[i];
    return sum_lanes(squares) / (double)dim;
}

static double load(const struct ctw_stream_weights *w, int64_t i)
{
    return ctw_load_float(w->at, w->dtype, i);
}

/* c [rows] */
static void coefficients(const struct ctw_op_altup *op, const float *r, int rows, double *c)
{
    const double size = (double)op->dim * sqrt(mean_square(r, op->dim) + op->eps);
    double m[CTW_MAX_STREAMS];
    for (int j = 0; j < op->n; j++) {
        double dot[LANES] = {0};
        for (int64_t i = 0; i < op->dim; i++)
            dot[i % LANES] += load(&op->router, j * op->dim + i) * load(&op->norm, i) * r[i];
        m[j] = ctw_tanh(sum_lanes(dot) / size);
    }
    for (int k = 0; k < rows; k++) {
        c[k] = 0;
        for (int j = 0; j < op->n; j++)
            c[k] += load(&op->coefs, k * op->n + j) * m[j];
    }
}

static void predict(const struct ctw_op_altup *op, float *x, const double *c)
{
    for (int64_t i = 0; i < op->dim; i++) {
        double old[CTW_MAX_STREAMS];
        for (int s = 0; s < op->n; s++)
            old[s] = x[s * op->dim + i];
        for (int s = 0; s < op->n; s++) {
            double sum = old[s];
            for (int j = 0; j < op->n; j++)
                sum += c[s * op->n + j] * old[j];
            x[s * op->dim + i] = (float)sum;
        }
    }
}

static void correct(const struct ctw_op_altup *op, float *x, const float *r, const double *c)
{
    for (int64_t i = 0; i < op->dim; i++) {
        const double step = (double)r[i] - x[op->active * op->dim + i];
        for (int s = 0; s < op->n; s++)
            x[s * op->dim + i] = (float)(x[s * op->dim + i] + (1 + c[s]) * step);
    }
}

static void level(const struct ctw_op_altup *op, float *x)
{
    const double most = mean_square(x, op->dim);
    for (int s = 1; s < op->n; s++) {
        float *of = x + s * op->dim;
        const double own = mean_square(of, op->dim);
        const double factor = sqrt(most / (own < op->eps ? (double)op->eps : own)); /* NaN stays */
        for (int64_t i = 0; i < op->dim; i++)
            of[i] = (float)(of[i] * factor);
    }
}

static void one_row(void *arg, int64_t t, int thread)
{
    (void)thread;
    const struct ctw_op_altup *op = arg;
    float *x = op->x + t * op->n * op->dim;
    double c[CTW_MAX_STREAMS * CTW_MAX_STREAMS];
    if (op->form == CTW_ALTUP_LEVEL) {
        level(op, x);
    } else if (op->form == CTW_ALTUP_PREDICT) {
        coefficients(op, x + op->active * op->dim, op->n * op->n, c);
        predict(op, x, c);
    } else {
        coefficients(op, op->r + t * op->dim, op->n, c);
        correct(op, x, op->r + t * op->dim, c);
    }
}

enum ctw_status ctw_cpu_altup(struct ctw_cpu *cpu, const struct ctw_op_altup *op,
                              struct ctw_err *err)
{
    (void)err;
    struct ctw_op_altup copy = *op;
    ctw_threads_for(cpu->threads, op->n_tok, one_row, &copy);
    return CTW_OK;
}
