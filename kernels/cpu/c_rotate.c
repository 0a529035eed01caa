/* Rotations of activations, for every variant: blocks of a row times a matrix, in double. */
#include "kernels/cpu/cpu.h"

struct job {
    const struct ctw_op_rotate *op;
    double *blocks; /* two blocks of how->size for each thread */
};

/* Sylvester's Hadamard matrix: sums and differences of pairs, of pairs of pairs, .. */
static void hadamard(double *v, int64_t size)
{
    for (int64_t h = 1; h < size; h *= 2)
        for (int64_t at = 0; at < size; at += 2 * h)
            for (int64_t i = at; i < at + h; i++) {
                double a = v[i], b = v[i + h];
                v[i] = a + b;
                v[i + h] = a - b;
            }
}

/* y = x times a matrix, which is read row by row. */
static void multiply(double *y, const double *x, const float *matrix, int64_t size)
{
    for (int64_t o = 0; o < size; o++)
        y[o] = 0;
    for (int64_t i = 0; i < size; i++)
        for (int64_t o = 0; o < size; o++)
            y[o] += x[i] * (double)matrix[i * size + o];
}

static void rotate_row(void *arg, int64_t t, int thread)
{
    const struct job *job = arg;
    const struct ctw_op_rotate *op = job->op;
    const struct ctw_rotation *how = op->how;
    double *x = job->blocks + 2 * how->size * thread, *y = how->matrix != NULL ? x + how->size : x;
    const float *first = how->signs_last ? NULL : how->signs;
    const float *last = how->signs_last ? how->signs : NULL;
    int64_t from = (op->rows != NULL ? op->rows[t] : t) * op->ldx, to = t * op->ldy;
    for (int64_t at = 0; at < op->dim; at += how->size) {
        for (int64_t i = 0; i < how->size; i++)
            x[i] = (double)ctw_load_float(op->x, op->dtype, from + at + i) *
                   (first != NULL ? (double)first[i] : 1);
        if (how->matrix != NULL)
            multiply(y, x, how->matrix, how->size);
        else
            hadamard(y, how->size);
        for (int64_t i = 0; i < how->size; i++) {
            double v = y[i] * (double)how->factor * (last != NULL ? (double)last[i] : 1);
            ctw_store_float(op->y, op->dtype, to + at + i, (float)v);
        }
    }
}

/* Of scratch: a block's elements and results, of each thread, in double. */
size_t ctw_cpu_rotate_bytes(const struct ctw_cpu *cpu, int64_t size)
{
    return 2 * (size_t)size * (size_t)ctw_threads_count(cpu->threads) * sizeof(double);
}

enum ctw_status ctw_cpu_rotate(struct ctw_cpu *cpu, const struct ctw_op_rotate *op,
                               struct ctw_err *err)
{
    struct job job = {.op = op};
    void *blocks;
    enum ctw_status st =
        ctw_cpu_scratch(cpu, ctw_cpu_rotate_bytes(cpu, op->how->size), &blocks, err);
    if (st != CTW_OK)
        return st;
    job.blocks = blocks;
    ctw_threads_for(cpu->threads, op->n_tok, rotate_row, &job);
    return CTW_OK;
}
