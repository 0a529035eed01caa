/* Pooled keys: the definition, for every variant, in double. */
#include <math.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/walk.h"
#include "kernels/math.h"
#include "kernels/pool.h"
#include "kernels/turn.h"

struct job {
    const struct ctw_op_pool *op;
    const struct ctw_attn_seq *seq;
    int64_t block0; /* the first block that ends among the queries */
};

/* The tokens that a block's key is made of: their rows, and the columns that they contribute. */
struct tokens {
    int64_t row[2 * CTW_MAX_POOL];
    int n, before; /* the first `before` are of the block before */
};

static void find_tokens(const struct job *job, int64_t block, struct tokens *out)
{
    const int64_t r = job->op->block;
    struct ctw_walk w = ctw_walk_begin(job->seq);
    out->before = job->op->overlaps && block > 0 ? (int)r : 0;
    out->n = out->before + (int)r;
    for (int j = 0; j < out->n; j++)
        out->row[j] = ctw_walk_row(&w, block * r - out->before + j);
}

/* Element i of the sum. */
static double pooled(const struct ctw_op_pool *op, const struct tokens *t, int64_t i)
{
    double logit[2 * CTW_MAX_POOL], most = -INFINITY, sum = 0, total = 0;
    const int64_t columns = op->overlaps ? 2 * (int64_t)op->dim : op->dim;
    for (int j = 0; j < t->n; j++) {
        bool first = j < t->before || !op->overlaps;
        int64_t column = first ? i : op->dim + i;
        int64_t in_block = j < t->before ? j : j - t->before;
        logit[j] = op->gate == NULL
                       ? 0
                       : (double)ctw_load_float(op->gate, op->dtype, t->row[j] * op->ldx + column) +
                             ctw_load_float(op->bias, op->bias_dtype, in_block * columns + column);
        most = logit[j] > most ? logit[j] : most;
    }
    for (int j = 0; j < t->n; j++) {
        bool first = j < t->before || !op->overlaps;
        int64_t column = first ? i : op->dim + i;
        double e = ctw_exp(logit[j] - most);
        total += e;
        sum += e * ctw_load_float(op->x, op->dtype, t->row[j] * op->ldx + column);
    }
    return sum / total;
}

static void turn(const struct ctw_op_pool *op, int64_t position, double *v)
{
    const int half = op->turning / 2;
    const float *cos_sin = op->cos_sin + position * op->turning;
    for (int i = 0; i < half; i++) {
        int first, second;
        ctw_turn_pair(op->pairing, op->turning, i, &first, &second);
        double a = v[first], b = v[second], c = cos_sin[i], s = cos_sin[half + i];
        v[first] = a * c - b * s;
        v[second] = b * c + a * s;
    }
}

static void pool_one(void *arg, int64_t item, int thread)
{
    (void)thread;
    const struct job *job = arg;
    const struct ctw_op_pool *op = job->op;
    const int64_t block = job->block0 + item;
    double v[CTW_MAX_HEAD], squares = 0;
    struct tokens t;
    find_tokens(job, block, &t);
    for (int i = 0; i < op->dim; i++) {
        v[i] = pooled(op, &t, i);
        squares += v[i] * v[i];
    }
    const double rms = sqrt(squares / op->dim + op->norm_eps);
    for (int i = 0; op->norm != NULL && i < op->dim; i++)
        v[i] = v[i] / rms * (ctw_load_float(op->norm, op->norm_dtype, i) + (double)op->norm_offset);
    if (op->turning > 0)
        turn(op, block * op->block, v + (op->turns_first ? 0 : op->dim - op->turning));
    for (int i = 0; i < op->dim; i++)
        ctw_store_float(op->y, op->dtype, t.row[t.n - 1] * op->ldy + i, (float)v[i]);
}

enum ctw_status ctw_cpu_pool(struct ctw_cpu *cpu, const struct ctw_op_pool *op, struct ctw_err *err)
{
    (void)err;
    for (int64_t s = 0; s < op->n_seqs; s++) {
        const struct ctw_attn_seq *seq = &op->seqs[s];
        struct job job = {op, seq, seq->pos0 / op->block};
        ctw_threads_for(cpu->threads, (seq->pos0 + seq->n_q) / op->block - job.block0, pool_one,
                        &job);
    }
    return CTW_OK;
}
