/* Residual streams for the tests of ctw_difference() on the CPU and on a GPU, and the definition of
 * the results in long double. */
#ifndef CTW_TESTS_DIFFERENCE_PROBLEM_H
#define CTW_TESTS_DIFFERENCE_PROBLEM_H

#include "ops.h"

struct problem {
    int64_t n_seqs, n_rows, dim;
    struct buf start, x, y, rows, channels;
};

/* Sequences of up to `longest` rows; y is x with noise of a tenth, and channel c's noise is larger
 * than that of its neighbours if c % 7 == 3. */
static struct problem problem_open(int64_t n_seqs, int64_t longest, int64_t dim)
{
    struct problem p = {.n_seqs = n_seqs, .dim = dim};
    p.start = buf_open((size_t)(n_seqs + 1) * sizeof(int64_t), 0);
    int64_t *start = p.start.p;
    start[0] = 0;
    for (int64_t i = 0; i < n_seqs; i++)
        start[i + 1] = start[i] + 1 + rng_below(longest);
    p.n_rows = start[n_seqs];
    p.x = buf_random(CTW_F32, p.n_rows * dim, 3, 4);
    p.y = buf_copy(&p.x, 0);
    for (int64_t i = 0; i < p.n_rows * dim; i++)
        ((float *)p.y.p)[i] += (i % dim % 7 == 3 ? 0.5f : 0.1f) * rng_normal();
    p.rows = buf_open((size_t)p.n_rows * sizeof(struct ctw_difference_row), 0);
    p.channels = buf_open(
        (size_t)(n_seqs * ctw_difference_blocks(dim)) * sizeof(struct ctw_difference_channel), 0);
    return p;
}

static void problem_close(struct problem *p)
{
    struct buf *bufs[] = {&p->start, &p->x, &p->y, &p->rows, &p->channels};
    for (size_t i = 0; i < CTW_COUNT(bufs); i++)
        buf_close(bufs[i]);
}

/* ---- the definition ----------------------------------------------------------------------- */

static void compare(const struct problem *p, const struct ctw_difference_result *got, int64_t seq)
{
    const int64_t *start = p->start.p;
    long double reference = 0, error = 0, cosine = 0, relative = 0, largest = -1, by_channel = 0;
    for (int64_t t = start[seq]; t < start[seq + 1]; t++) {
        const float *x = (float *)p->x.p + t * p->dim, *y = (float *)p->y.p + t * p->dim;
        long double xx = 0, yy = 0, xy = 0, dd = 0;
        for (int64_t i = 0; i < p->dim; i++) {
            xx += (long double)x[i] * x[i];
            yy += (long double)y[i] * y[i];
            xy += (long double)x[i] * y[i];
            dd += ((long double)y[i] - x[i]) * ((long double)y[i] - x[i]);
        }
        reference += xx;
        error += dd;
        cosine += xy / (sqrtl(xx) * sqrtl(yy));
        relative += sqrtl(dd / xx);
    }
    for (int64_t i = 0; i < p->dim; i++) {
        long double sum = 0;
        for (int64_t t = start[seq]; t < start[seq + 1]; t++) {
            long double d =
                (long double)((float *)p->y.p)[t * p->dim + i] - ((float *)p->x.p)[t * p->dim + i];
            sum += d * d;
        }
        largest = sum > largest ? sum : largest;
        by_channel = i == got->channel ? sum : by_channel;
    }
    double n = (double)(start[seq + 1] - start[seq]);
    near(got->reference, (double)reference, 1e-13 * (double)reference, "reference", seq);
    near(got->error, (double)error, 1e-13 * (double)error, "error", seq);
    near(got->cosine, (double)cosine, 1e-13 * n, "cosine", seq);
    near(got->relative, (double)relative, 1e-13 * n, "relative", seq);
    near(got->channel_error, (double)largest, 1e-13 * (double)largest, "channel error", seq);
    near((double)by_channel, (double)largest, 1e-13 * (double)largest, "channel", seq);
}

#endif
