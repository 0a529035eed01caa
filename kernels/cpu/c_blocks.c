/* The choice of blocks of keys: the definition, for every variant. */
#include "kernels/blocks.h"

#include <math.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/double_products.h"

struct job {
    const struct ctw_op_blocks *op;
    const struct ctw_attn_seq *seq;
};

/* scores[b] of head h, for the blocks up to the query's own. */
static void score_blocks(const struct job *job, int64_t i, int h, float *scores)
{
    const struct ctw_op_blocks *op = job->op;
    const int64_t row = job->seq->q_row + i, n = job->seq->pos0 + i + 1;
    const int64_t own = (n - 1) / op->block;
    float q[CTW_MAX_HEAD + LANES], k[CTW_MAX_HEAD + LANES];
    int64_t p = 0;
    widen(q, op->q, op->dtype, (row * op->n_head + h) * op->head, op->head);
    for (int64_t b = 0; b <= own; b++)
        scores[b] = ctw_block_is_local(op, b, own) ? INFINITY : -INFINITY;
    for (const struct ctw_kv_run *run = job->seq->runs; p < n; run++)
        for (int64_t r = 0; r < run->n_tok && p < n; r++, p++) {
            float *best = &scores[p / op->block];
            if (*best == INFINITY)
                continue;
            widen(k, op->k, op->dtype, (run->row + r) * op->head, op->head);
            *best = fmaxf(*best, (float)product(q, k, op->head)); /* skips NaN */
        }
}

/* How many of n scores are in front of score b. */
static int64_t rank_of(const float *scores, int64_t n, int64_t b)
{
    int64_t rank = 0;
    for (int64_t i = 0; i < n; i++)
        rank += scores[i] > scores[b] || (scores[i] == scores[b] && i < b);
    return rank;
}

static void see_keys(uint32_t *seen, int64_t first, int64_t end)
{
    for (int64_t p = first; p < end; p++)
        seen[p / 32] |= (uint32_t)1 << p % 32;
}

static void one_query(void *arg, int64_t i, int thread)
{
    (void)thread;
    const struct job *job = arg;
    const struct ctw_op_blocks *op = job->op;
    const int64_t row = job->seq->q_row + i, n_keys = job->seq->pos0 + i + 1;
    const int64_t n = ctw_blocks_of(n_keys, op->block);
    for (int h = 0; h < op->n_head; h++) {
        float *scores = op->scores + (row * op->n_head + h) * op->ld_scores;
        uint32_t *seen = op->seen + row * op->ld_seen + h * op->seen_head;
        memset(seen, 0, (size_t)((n_keys + 31) / 32) * sizeof(*seen));
        if (n > op->chosen)
            score_blocks(job, i, h, scores);
        for (int64_t b = 0; b < n; b++) {
            int64_t end = (b + 1) * op->block;
            if (n <= op->chosen || rank_of(scores, n, b) < op->chosen)
                see_keys(seen, b * op->block, end < n_keys ? end : n_keys);
        }
    }
}

enum ctw_status ctw_cpu_blocks(struct ctw_cpu *cpu, const struct ctw_op_blocks *op,
                               struct ctw_err *err)
{
    (void)err;
    for (int64_t s = 0; s < op->n_seqs; s++) {
        struct job job = {.op = op, .seq = &op->seqs[s]};
        ctw_threads_for(cpu->threads, op->seqs[s].n_q, one_query, &job);
    }
    return CTW_OK;
}
