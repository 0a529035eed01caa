/*
 * Reference: causal softmax attention of one query row and head at a time, in two sweeps over the
 * keys (first the maximum of scores and sink, then the sums), everything in double.
 */
#include <math.h>

#include "kernels/cpu/cpu.h"
#include "kernels/math.h"

struct job {
    const struct ctw_op_attention *op;
    const struct ctw_attn_seq *seq;
};

/* The row of the key at each position is found by walking the runs. */
struct walk {
    const struct ctw_kv_run *run;
    int64_t in_run;
};

static struct walk walk_to(const struct ctw_attn_seq *seq, int64_t pos)
{
    struct walk w = {seq->runs, pos};
    while (w.in_run >= w.run->n_tok) {
        w.in_run -= w.run->n_tok;
        w.run++;
    }
    return w;
}

static int64_t walk_next(struct walk *w, bool last)
{
    int64_t row = w->run->row + w->in_run;
    w->in_run++;
    while (!last && w->in_run >= w->run->n_tok) {
        w->in_run -= w->run->n_tok;
        w->run++;
    }
    return row;
}

/* Of rows of q and k, which are heads. `bias`: by the distance of the key. */
static double score(const struct ctw_op_attention *op, int64_t q_row, int64_t k_row, double bias)
{
    double sum = 0;
    for (int i = 0; i < op->head; i++)
        sum += (double)ctw_load_float(op->q, op->dtype, q_row * op->head + i) *
               ctw_load_float(op->k, op->dtype, k_row * op->head + i);
    sum = sum * op->scale + bias;
    return op->softcap > 0 ? op->softcap * ctw_tanh(sum / op->softcap) : sum;
}

/* What the distance adds to the score of the query at position pos, row `row` of q, and the key at
 * p. */
static double bias_of(const struct ctw_op_attention *op, int64_t row, int h, int64_t pos, int64_t p)
{
    const struct ctw_relative *r = &op->relative;
    double sum = 0;
    if (op->alibi != NULL)
        return op->alibi[h] * (double)(p - pos);
    for (int i = 0; pos - p < r->extent && i < r->rank; i++)
        sum += (double)ctw_load_float(r->states, op->dtype, row * r->ld + h * r->rank + i) *
               ctw_load_float(r->proj, r->proj_dtype, i * r->extent + pos - p);
    return r->factor != NULL ? sum * r->factor[pos] : sum;
}

static bool sees(const struct ctw_op_attention *op, int64_t q_row, int kv, int64_t p)
{
    int64_t word = q_row * op->ld_seen + kv * op->seen_head + p / 32;
    return op->seen == NULL || (op->seen[word] >> p % 32 & 1) != 0;
}

static void one_query(const struct job *job, int64_t i, int h)
{
    const struct ctw_op_attention *op = job->op;
    int kv = h / (op->n_head / op->n_kv);
    int64_t pos = job->seq->pos0 + i;
    int64_t first = ctw_attn_first(op, pos);
    int64_t in_row = job->seq->q_row + i, q_row = in_row * op->n_head + h;

    double sink = -INFINITY, sum[CTW_MAX_HEAD] = {0};
    if (op->sinks != NULL)
        sink = ctw_load_float(op->sinks, op->sinks_dtype, h);
    double max = sink;
    struct walk w = walk_to(job->seq, first);
    for (int64_t p = first; p <= pos; p++) {
        int64_t row = walk_next(&w, p == pos) * op->n_kv + kv;
        if (!sees(op, in_row, kv, p))
            continue;
        max = fmax(max, score(op, q_row, row, bias_of(op, in_row, h, pos, p)));
    }
    double total = ctw_exp(sink - max);
    w = walk_to(job->seq, first);
    for (int64_t p = first; p <= pos; p++) {
        int64_t row = walk_next(&w, p == pos) * op->n_kv + kv;
        if (!sees(op, in_row, kv, p))
            continue;
        double e = ctw_exp(score(op, q_row, row, bias_of(op, in_row, h, pos, p)) - max);
        total += e;
        for (int d = 0; d < op->head_v; d++)
            sum[d] += e * ctw_load_float(op->v, op->dtype, row * op->head_v + d);
    }
    for (int d = 0; d < op->head_v; d++)
        ctw_store_float(op->out, op->dtype, q_row * op->head_v + d,
                        (float)(sum[d] / total * op->v_factor));
}

static void one_row(void *arg, int64_t i, int thread)
{
    (void)thread;
    const struct job *job = arg;
    for (int h = 0; h < job->op->n_head; h++)
        one_query(job, i, h);
}

enum ctw_status ctw_cpu_attention_c(struct ctw_cpu *cpu, const struct ctw_op_attention *op,
                                    struct ctw_err *err)
{
    (void)err;
    for (int64_t s = 0; s < op->n_seqs; s++) {
        struct job job = {.op = op, .seq = &op->seqs[s]};
        ctw_threads_for(cpu->threads, op->seqs[s].n_q, one_row, &job);
    }
    return CTW_OK;
}
