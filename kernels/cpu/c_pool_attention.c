/*
 * Attention over pooled keys and a window, for every variant. A query's keys are taken one after
 * another, with fp32 products in LANES lanes, and the sums so far are scaled whenever the largest
 * score grows: a result depends on the query and its keys alone.
 */
#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/walk.h"
#include "kernels/math.h"
#include "kernels/pool.h"

enum { LANES = 16, WIDE = CTW_MAX_HEAD + LANES };

struct job {
    const struct ctw_op_pool_attention *op;
    const struct ctw_attn_seq *seq;
};

/* One query head, and its sums so far. */
struct sums {
    float q[WIDE], v[WIDE];
    double total;
    float most; /* the largest score, or the sink */
};

/* `head` elements, widened; zeros up to a multiple of LANES. */
static void widen(float *to, const void *array, enum ctw_dtype dtype, int64_t from, int n)
{
    const char *at = (const char *)array + (size_t)from * ctw_dtype_bytes(dtype);
    uint16_t half[CTW_MAX_HEAD];
    if (dtype == CTW_F32)
        memcpy(to, at, (size_t)n * sizeof(*to));
    else
        memcpy(half, at, (size_t)n * sizeof(*half));
    for (int i = 0; dtype == CTW_BF16 && i < n; i++)
        to[i] = ctw_bf16_to_f32(half[i]);
    for (int i = 0; dtype == CTW_F16 && i < n; i++)
        to[i] = ctw_f16_to_f32(half[i]);
    memset(to + n, 0, LANES * sizeof(*to));
}

static float product(const float *x, const float *y, int n)
{
    float sum[LANES] = {0};
    for (int i = 0; i < n; i += LANES)
        for (int l = 0; l < LANES; l++)
            sum[l] += x[i + l] * y[i + l];
    for (int by = LANES / 2; by > 0; by /= 2)
        for (int l = 0; l < by; l++)
            sum[l] += sum[l + by];
    return sum[0];
}

static void begin(struct sums *s, const struct ctw_op_pool_attention *op, int64_t q_row, int h)
{
    widen(s->q, op->q, op->dtype, q_row, op->head);
    memset(s->v, 0, sizeof(s->v));
    s->most = op->sinks != NULL ? ctw_load_float(op->sinks, op->sinks_dtype, h) : -INFINITY;
    s->total = s->most == -INFINITY ? 0 : ctw_exp((double)s->most - (double)s->most);
}

/* Adds the key k, which is its value. */
static void add_key(struct sums *s, const struct ctw_op_pool_attention *op, const float *k)
{
    const int n = op->head;
    float score = op->scale * product(s->q, k, n);
    if (score > s->most) {
        float scale = (float)ctw_exp((double)s->most - (double)score);
        s->total *= scale;
        for (int i = 0; i < n; i++)
            s->v[i] *= scale;
        s->most = score;
    }
    float e = (float)ctw_exp((double)score - (double)s->most);
    s->total += e;
    for (int i = 0; i < n; i++)
        s->v[i] += e * k[i];
}

static bool sees(const struct ctw_op_pool_attention *op, int64_t row, int64_t n, int64_t block)
{
    return op->seen == NULL || n <= op->seen_from ||
           (op->seen[row * op->ld_seen + block / 32] >> block % 32 & 1) != 0;
}

static void one_head(const struct job *job, int64_t i, int h)
{
    const struct ctw_op_pool_attention *op = job->op;
    const int64_t row = job->seq->q_row + i, pos = job->seq->pos0 + i;
    const int64_t n_blocks = (pos + 1) / op->block;
    const int64_t q_row = (row * op->n_head + h) * op->head;
    struct sums s;
    float k[WIDE];
    begin(&s, op, q_row, h);
    struct ctw_walk w = ctw_walk_begin(job->seq);
    for (int64_t b = 0; b < n_blocks; b++) {
        if (!sees(op, row, n_blocks, b))
            continue;
        int64_t at = ctw_walk_row(&w, (b + 1) * op->block - 1);
        widen(k, op->pooled, op->dtype, at * op->ld_pooled, op->head);
        add_key(&s, op, k);
    }
    w = ctw_walk_begin(job->seq);
    for (int64_t p = pos < op->window ? 0 : pos + 1 - op->window; p <= pos; p++) {
        widen(k, op->k, op->dtype, ctw_walk_row(&w, p) * op->head, op->head);
        add_key(&s, op, k);
    }
    for (int d = 0; d < op->head; d++)
        ctw_store_float(op->out, op->dtype, q_row + d, (float)(s.v[d] / s.total));
}

static void one_query(void *arg, int64_t i, int thread)
{
    (void)thread;
    const struct job *job = arg;
    for (int h = 0; h < job->op->n_head; h++)
        one_head(job, i, h);
}

enum ctw_status ctw_cpu_pool_attention(struct ctw_cpu *cpu, const struct ctw_op_pool_attention *op,
                                       struct ctw_err *err)
{
    (void)err;
    for (int64_t s = 0; s < op->n_seqs; s++) {
        struct job job = {op, &op->seqs[s]};
        ctw_threads_for(cpu->threads, op->seqs[s].n_q, one_query, &job);
    }
    return CTW_OK;
}
