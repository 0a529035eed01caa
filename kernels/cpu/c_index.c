/* The choice of keys by an indexer: the definition, for every variant. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/double_products.h"
#include "kernels/cpu/walk.h"

struct job {
    const struct ctw_op_index *op;
    const struct ctw_attn_seq *seq;
    double *scratch; /* of each thread: scores, and a copy of them */
    int64_t n_keys;
};

static size_t round_up_keys(int64_t n_keys)
{
    return (size_t)(n_keys + LANES - 1) / LANES * LANES;
}

size_t ctw_cpu_index_bytes(const struct ctw_cpu *cpu, int64_t n_keys)
{
    return (size_t)ctw_threads_count(cpu->threads) * 2 * round_up_keys(n_keys) * sizeof(double);
}

/* The number of keys that query i may see. */
static int64_t keys_of(const struct job *job, int64_t i)
{
    return (job->seq->pos0 + i + 1) / job->op->block;
}

/* scores[j] for the keys that query i may see: head after head. */
static void score_keys(const struct job *job, int64_t i, double *scores)
{
    const struct ctw_op_index *op = job->op;
    const int64_t row = job->seq->q_row + i, n = keys_of(job, i);
    float q[CTW_MAX_HEAD + LANES], k[CTW_MAX_HEAD + LANES];
    memset(scores, 0, (size_t)n * sizeof(*scores));
    for (int h = 0; h < op->n_head; h++) {
        const double weight =
            op->weights == NULL ? 1
                                : ctw_load_float(op->weights, op->dtype, row * op->ld_weights + h);
        struct ctw_walk walk = ctw_walk_begin(job->seq);
        widen(q, op->q, op->dtype, (row * op->n_head + h) * op->head, op->head);
        for (int64_t p = 0; p < n; p++) {
            const int64_t at = ctw_walk_row(&walk, (p + 1) * op->block - 1);
            widen(k, op->k, op->dtype, at * op->ld_k, op->head);
            double s = product(q, k, op->head);
            scores[p] += weight * (s < 0 ? 0 : s); /* NaN stays */
        }
    }
    for (int64_t p = 0; p < n; p++)
        scores[p] = isnan(scores[p]) ? -INFINITY : scores[p];
}

/* The k-th largest of n numbers, k from 1; they are reordered. */
static double kth_largest(double *x, int64_t n, int64_t k)
{
    int64_t first = 0, last = n - 1, at = k - 1;
    while (first < last) {
        double pivot = x[first + (last - first) / 2];
        int64_t i = first, j = last;
        while (i <= j) {
            while (x[i] > pivot)
                i++;
            while (x[j] < pivot)
                j--;
            if (i <= j) {
                double swap = x[i];
                x[i++] = x[j];
                x[j--] = swap;
            }
        }
        if (at <= j)
            last = j;
        else if (at >= i)
            first = i;
        else
            break;
    }
    return x[at];
}

static void see(uint32_t *seen, int64_t first, int64_t end)
{
    for (int64_t p = first; p < end; p++)
        seen[p / 32] |= (uint32_t)1 << p % 32;
}

static void index_one(void *arg, int64_t i, int thread)
{
    const struct job *job = arg;
    const struct ctw_op_index *op = job->op;
    const int64_t n = keys_of(job, i);
    double *scores = job->scratch + (size_t)thread * 2 * round_up_keys(job->n_keys);
    double *copy = scores + round_up_keys(job->n_keys), least = -INFINITY;
    uint32_t *seen = op->seen + (job->seq->q_row + i) * op->ld_seen;
    int64_t equal = n; /* how many of the scores equal to `least` are still to be chosen */
    const int64_t n_tok = job->seq->pos0 + i + 1, each = op->by_token ? op->block : 1;
    memset(seen, 0, (size_t)(((op->by_token ? n_tok : n) + 31) / 32) * sizeof(*seen));
    if (n > op->chosen) {
        score_keys(job, i, scores);
        memcpy(copy, scores, (size_t)n * sizeof(*copy));
        least = kth_largest(copy, n, op->chosen);
        equal = op->chosen;
        for (int64_t p = 0; p < n; p++)
            equal -= scores[p] > least;
    }
    for (int64_t p = 0; p < n; p++)
        if (n <= op->chosen || scores[p] > least || (scores[p] == least && equal-- > 0))
            see(seen, p * each, (p + 1) * each);
    if (op->by_token)
        see(seen, n * each, n_tok);
}

enum ctw_status ctw_cpu_index(struct ctw_cpu *cpu, const struct ctw_op_index *op,
                              struct ctw_err *err)
{
    struct job job = {.op = op};
    void *scratch;
    for (int64_t s = 0; s < op->n_seqs; s++) {
        int64_t n = (op->seqs[s].pos0 + op->seqs[s].n_q) / op->block;
        job.n_keys = n > job.n_keys ? n : job.n_keys;
    }
    enum ctw_status st = ctw_cpu_scratch(cpu, ctw_cpu_index_bytes(cpu, job.n_keys), &scratch, err);
    if (st != CTW_OK)
        return st;
    job.scratch = scratch;
    for (int64_t s = 0; s < op->n_seqs; s++) {
        job.seq = &op->seqs[s];
        ctw_threads_for(cpu->threads, op->seqs[s].n_q, index_one, &job);
    }
    return CTW_OK;
}
