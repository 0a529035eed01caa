/* Reference: the difference of two residual streams. Sums of single rows, then of blocks of
 * channels down a sequence's rows, then of sequences. Every sum is in double, in order. */
#include <math.h>

#include "kernels/cpu/cpu.h"

static void one_row(void *arg, int64_t t, int thread)
{
    (void)thread;
    const struct ctw_op_difference *op = arg;
    const float *x = op->x + t * op->dim, *y = op->y + t * op->dim;
    double xx = 0, yy = 0, xy = 0, error = 0;
    for (int64_t i = 0; i < op->dim; i++) {
        double d = (double)y[i] - x[i];
        xx += (double)x[i] * x[i];
        yy += (double)y[i] * y[i];
        xy += (double)x[i] * y[i];
        error += d * d;
    }
    double both = sqrt(xx * yy); /* xx exactly, if y is x */
    op->rows[t] = (struct ctw_difference_row){
        .reference = xx,
        .error = error,
        .cosine = both == 0 ? xx == yy : xy / both,
        .relative = xx == 0 ? error != 0 : sqrt(error / xx),
    };
}

static void one_block(void *arg, int64_t item, int thread)
{
    (void)thread;
    const struct ctw_op_difference *op = arg;
    int64_t n_blocks = ctw_difference_blocks(op->dim), seq = item / n_blocks;
    int64_t c0 = item % n_blocks * CTW_DIFFERENCE_BLOCK, n = op->dim - c0;
    double error[CTW_DIFFERENCE_BLOCK] = {0};
    n = n < CTW_DIFFERENCE_BLOCK ? n : CTW_DIFFERENCE_BLOCK;
    for (int64_t t = op->start[seq]; t < op->start[seq + 1]; t++) {
        const float *x = op->x + t * op->dim + c0, *y = op->y + t * op->dim + c0;
        for (int64_t i = 0; i < n; i++)
            error[i] += ((double)y[i] - x[i]) * ((double)y[i] - x[i]);
    }
    int64_t largest = 0;
    for (int64_t i = 1; i < n; i++)
        largest = error[i] > error[largest] ? i : largest;
    op->channels[item] = (struct ctw_difference_channel){error[largest], c0 + largest};
}

static void one_seq(void *arg, int64_t seq, int thread)
{
    (void)thread;
    const struct ctw_op_difference *op = arg;
    int64_t n_blocks = ctw_difference_blocks(op->dim);
    const struct ctw_difference_channel *c = op->channels + seq * n_blocks, *largest = c;
    struct ctw_difference_result r = {0};
    for (int64_t t = op->start[seq]; t < op->start[seq + 1]; t++) {
        r.reference += op->rows[t].reference;
        r.error += op->rows[t].error;
        r.cosine += op->rows[t].cosine;
        r.relative += op->rows[t].relative;
    }
    for (int64_t b = 1; b < n_blocks; b++)
        largest = c[b].error > largest->error ? &c[b] : largest;
    r.channel_error = largest->error;
    r.channel = largest->channel;
    op->out[seq] = r;
}

enum ctw_status ctw_cpu_difference(struct ctw_cpu *cpu, const struct ctw_op_difference *op,
                                   struct ctw_err *err)
{
    struct ctw_op_difference copy = *op;
    (void)err;
    ctw_threads_for(cpu->threads, op->n_rows, one_row, &copy);
    ctw_threads_for(cpu->threads, op->n_seqs * ctw_difference_blocks(op->dim), one_block, &copy);
    ctw_threads_for(cpu->threads, op->n_seqs, one_seq, &copy);
    return CTW_OK;
}
