/*
 * The LM head, without logits in memory unless they are wanted: the vocabulary is split into
 * blocks, by n_vocab alone. Each block is reduced for every row to a small state, MAX_COLUMNS
 * logits at a time; then the blocks' states are merged in order. A state's sum is relative to its
 * own maximum, in fp32; blocks are added in double. If the weight comes in parts, states wait in
 * scratch memory for the next.
 */
#ifndef CTW_KERNELS_CPU_FAST_HEAD_H
#define CTW_KERNELS_CPU_FAST_HEAD_H

#include "kernels/head_targets.h"
#include "kernels/math.h"

enum { HEAD_BLOCKS = 64, HEAD_BLOCK_MIN = 1024 };
_Static_assert(CTW_CPU_HEAD_ROWS % MAX_COLUMNS == 0, "parts begin where columns do");

struct head_state {
    float max, sum; /* sum of exp(logit - max) */
    int32_t greedy; /* the lowest id whose logit is max */
};

struct head_job {
    const struct ctw_op_head *op;
    enum mode mode;
    int64_t k, kw;
    int64_t first, end;        /* the ids of this part */
    int64_t block;             /* ids per block, a multiple of MAX_COLUMNS */
    struct rows a;             /* packed x */
    struct head_state *states; /* [blocks][n_rows] */
    float *local;
    int64_t local_floats;
};

INLINE int64_t head_block(int64_t n_vocab)
{
    return max64(HEAD_BLOCK_MIN, round_up(ceil_div(n_vocab, HEAD_BLOCKS), MAX_COLUMNS));
}

/* sum + exp(x - shift) for n vectors, a constant, in order. */
INLINE vf add_exp_each(vf sum, const float *x, vf shift, const int n)
{
    vf e[EACH_MOST];
    EACH(e[i] = vf_sub(vf_load(x + i * VL), shift))
    vf_exp_each(e, n);
    EACH(sum = vf_add(sum, e[i]))
    return sum;
}

/* Adds n logits (the rest of the last vector is -infinity) to a row's state. */
INLINE void add_logits(struct head_state *s, const float *x, int n, int32_t id0)
{
    vf largest = vf_set1(s->max), sum = vf_zero();
    for (int i = 0; i < n; i += VL)
        largest = vf_max(vf_load(x + i), largest); /* if a logit is NaN, keeps the other operand */
    float max = vf_largest(largest);
    if (max > s->max) {
        int i = 0;
        while (vf_first_equal(vf_load(x + i), max) == VL)
            i += VL;
        s->greedy = id0 + i + vf_first_equal(vf_load(x + i), max);
    }
    const float shift = max == -INFINITY ? 0 : max;
    int i = 0;
    for (; i + EACH_AT_ONCE * VL <= n; i += EACH_AT_ONCE * VL)
        sum = add_exp_each(sum, x + i, vf_set1(shift), EACH_AT_ONCE);
    for (; i < n; i += VL)
        sum = add_exp_each(sum, x + i, vf_set1(shift), 1);
    float old[VL];
    vf_store(old, vf_exp(vf_set1(s->max - shift)));
    s->sum = s->sum * old[0] + vf_sum(sum);
    s->max = max;
}

/* Turns n sums into logits; the rest of the last vector becomes -infinity. */
INLINE void finish_logits(const struct ctw_op_head *op, float *x, const float *bias, int n)
{
    if (op->weight->bias != NULL)
        add_row(x, bias, n);
    for (int i = 0; op->weight->output != NULL && i < n; i++)
        x[i] = ctw_quantise_logit(op->weight->output, x[i]);
    if (op->scale != 1 || op->softcap > 0) {
        for (int i = 0; i < n; i += VL) {
            vf v = vf_mul(vf_load(x + i), vf_set1(op->scale));
            vf_store(x + i, op->softcap > 0 ? vf_softcap(v, op->softcap) : v);
        }
    }
    for (int i = n; i < round_up(n, VL); i++)
        x[i] = -INFINITY;
}

/* The values in the NR words of one row of a panel: one, or two neighbours in k, for each column.
 */
INLINE void split_words(enum mode mode, float v[2][NR], const float *words)
{
    if (mode == FLOATS) {
        memcpy(v[0], words, NR * sizeof(*words));
        return;
    }
    for (int r = 0; r < NR; r++) {
        uint32_t both;
        memcpy(&both, words + r, sizeof(both));
        const uint32_t bits[2] = {both << 16, both & 0xffff0000u};
        memcpy(&v[0][r], &bits[0], sizeof(float));
        memcpy(&v[1][r], &bits[1], sizeof(float));
    }
}

/* The other way round, each value rounded to dtype. */
INLINE void join_words(enum mode mode, float *words, float v[2][NR], enum ctw_dtype dtype)
{
    uint16_t half[2][NR];
    if (dtype == CTW_F32) {
        memcpy(words, v[0], NR * sizeof(*words));
        return;
    }
    narrow(half[0], dtype, v[0], NR);
    if (mode == FLOATS) {
        widen(words, half[0], dtype, NR);
        return;
    }
    narrow(half[1], dtype, v[1], NR);
    for (int r = 0; r < NR; r++) {
        uint32_t both = half[0][r] | (uint32_t)half[1][r] << 16;
        memcpy(words + r, &both, sizeof(both));
    }
}

/* Gives each column of a panel [kw][NR] unit length, see ctw_op_head. */
static void to_unit_length(enum mode mode, float *panel, int64_t kw, enum ctw_dtype dtype)
{
    const int per_word = mode == PAIRS ? 2 : 1;
    double squares[NR] = {0};
    float length[NR], v[2][NR];
    for (int64_t w = 0; w < kw; w++) {
        split_words(mode, v, panel + w * NR);
        for (int i = 0; i < per_word; i++)
            for (int r = 0; r < NR; r++)
                squares[r] += (double)v[i][r] * v[i][r];
    }
    for (int r = 0; r < NR; r++)
        length[r] = ctw_unit_length(squares[r]);
    for (int64_t w = 0; w < kw; w++) {
        split_words(mode, v, panel + w * NR);
        for (int i = 0; i < per_word; i++)
            for (int r = 0; r < NR; r++)
                v[i][r] /= length[r];
        join_words(mode, panel + w * NR, v, dtype);
    }
}

/* Logits id0 .. id0+n-1, n <= MAX_COLUMNS, of every row. */
static void head_columns(const struct head_job *job, const struct linear_local *l,
                         struct head_state *states, int64_t id0, int64_t n)
{
    const struct ctw_op_head *op = job->op;
    int64_t n_panels = ceil_div(n, NR);
    decode_panels(job->mode, l->panels, l->decode, op->weight, id0 - job->first, n, op->dtype);
    for (int64_t p = 0; p < n_panels && op->unit_rows; p++)
        to_unit_length(job->mode, l->panels + p * job->kw * NR, job->kw, op->dtype);
    if (op->weight->bias != NULL)
        load_bias(l->row, op->weight, id0 - job->first, n);
    for (int64_t t = 0; t < op->n_rows; t += MC) {
        int64_t rows = min64(MC, op->n_rows - t);
        block_product(job->mode, &job->a, t, rows, l->panels, n_panels, l->c);
        for (int64_t i = 0; i < rows; i++) {
            float *x = l->c + i * n_panels * NR;
            const int32_t end = ctw_head_target(op->first_target, t + i + 1);
            finish_logits(op, x, l->row, (int)n);
            for (int32_t j = ctw_head_target(op->first_target, t + i); j < end; j++)
                if (op->targets[j] >= id0 && op->targets[j] < id0 + n)
                    op->out[j].logprob = x[op->targets[j] - id0];
            if (op->logits != NULL)
                memcpy(op->logits + (t + i) * op->ld_logits + id0, x, (size_t)n * sizeof(*x));
            add_logits(&states[t + i], x, (int)n, (int32_t)id0);
        }
    }
}

/* What this part has of a block. */
static void head_item(void *arg, int64_t item, int thread)
{
    const struct head_job *job = arg;
    const struct ctw_op_head *op = job->op;
    struct linear_local l = linear_local(job->local + thread * job->local_floats, job->kw);
    int64_t number = job->first / job->block + item, id0 = number * job->block;
    struct head_state *states = job->states + number * op->n_rows;
    int64_t end = min64(id0 + job->block, job->end);
    for (int64_t t = 0; id0 >= job->first && t < op->n_rows; t++)
        states[t] = (struct head_state){.max = -INFINITY, .greedy = (int32_t)id0};
    products_begin(job->mode);
    for (int64_t id = max64(id0, job->first); id < end; id += MAX_COLUMNS)
        head_columns(job, &l, states, id, min64(MAX_COLUMNS, end - id));
    products_end(job->mode);
}

static void merge_row(const struct head_job *job, int64_t t)
{
    const struct ctw_op_head *op = job->op;
    int64_t n_blocks = ceil_div(op->n_vocab, job->block);
    const struct head_state *best = &job->states[t];
    for (int64_t b = 1; b < n_blocks; b++) {
        const struct head_state *s = &job->states[b * op->n_rows + t];
        if (s->max > best->max)
            best = s;
    }
    double sum = 0;
    for (int64_t b = 0; b < n_blocks; b++) {
        const struct head_state *s = &job->states[b * op->n_rows + t];
        sum += s->sum * ctw_exp((double)s->max - best->max);
    }
    const int32_t end = ctw_head_target(op->first_target, t + 1);
    const double ln_sum = ctw_ln(sum);
    for (int32_t j = ctw_head_target(op->first_target, t); j < end; j++) {
        double logprob = (double)op->out[j].logprob - best->max - ln_sum;
        op->out[j] = (struct ctw_head_result){(float)logprob, best->greedy};
    }
    if (op->norms != NULL)
        op->norms[t] = (struct ctw_head_norm){best->max, ln_sum};
}

static void merge_item(void *arg, int64_t item, int thread)
{
    (void)thread;
    const struct head_job *job = arg;
    for (int64_t t = item * MC; t < min64((item + 1) * MC, job->op->n_rows); t++)
        merge_row(job, t);
}

static enum ctw_status fast_head(struct ctw_cpu *cpu, const struct ctw_op_head *op,
                                 struct ctw_err *err)
{
    struct head_job job = {.op = op, .mode = mode_of(op->dtype)};
    if (op->n_rows == 0)
        return CTW_OK;
    job.k = op->weight->weight->k;
    job.kw = n_words(job.mode, job.k);
    job.first = op->id0;
    job.end = min64(op->id0 + op->weight->n, op->n_vocab);
    job.block = head_block(op->n_vocab);
    job.local_floats = linear_local_floats(job.kw);
    int64_t n_blocks = ceil_div(op->n_vocab, job.block),
            n_threads = ctw_threads_count(cpu->threads);
    int64_t a_floats = packed_floats(job.mode, op->n_rows, job.kw);
    size_t bytes = (size_t)(a_floats + n_threads * job.local_floats) * sizeof(float);
    void *scratch;
    enum ctw_status st = ctw_cpu_scratch(
        cpu, bytes + (size_t)(n_blocks * op->n_rows) * sizeof(*job.states), &scratch, err);
    if (st != CTW_OK)
        return st;
    job.a = rows_open(job.mode, scratch, op->n_rows, job.kw);
    job.local = job.a.words + a_floats;
    job.states = (struct head_state *)((char *)scratch + bytes);
    pack_x(cpu, job.mode, &job.a, op->x, op->dtype, job.k, op->n_rows, job.k);
    ctw_threads_for(cpu->threads, ceil_div(job.end, job.block) - job.first / job.block, head_item,
                    &job);
    if (job.end == op->n_vocab)
        ctw_threads_for(cpu->threads, ceil_div(op->n_rows, MC), merge_item, &job);
    return CTW_OK;
}

#endif
