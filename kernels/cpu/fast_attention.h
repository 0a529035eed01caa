/*
 * Causal softmax attention with online softmax over tiles of ATTN_KEYS keys, which are counted
 * from the start of the sequence. A task is one key-value head and some queries of one sequence
 * with all heads of the group: its lanes, query-major. Scores are computed transposed, keys by
 * lanes, so that everything in the softmax is lane by lane and the weights P come out in the
 * layout in which P V reads them.
 *
 * What a lane computes depends only on its own query and keys: a masked key has weight exactly 0,
 * a tile without a key for the lane multiplies its sums by exactly 1 and adds exactly 0. So it
 * makes no difference which queries share a task. (Zeros lose their sign at the end, as adding 0
 * may change that; values that are not finite are kept from lanes that do not see their key.)
 */
#ifndef CTW_KERNELS_CPU_FAST_ATTENTION_H
#define CTW_KERNELS_CPU_FAST_ATTENTION_H

#include <stdlib.h>

enum {
    TASK_LANES = 8 * ATTN_LANES, /* lanes that share a packed tile of keys */
    LANE_PANELS = ATTN_LANES / NR,
    PREFETCH_KEYS = 8
};

/* Queries first .. first+n-1 of one sequence. */
struct attn_block {
    const struct ctw_attn_seq *seq;
    int64_t first, n;
    int64_t cost; /* keys seen, all queries together */
};

struct attn_job {
    const struct ctw_op_attention *op;
    enum mode mode;
    int group;         /* query heads of a key head */
    bool scale_late;   /* scores are scaled within the exponent */
    int64_t kw;        /* words of a head */
    int64_t width;     /* elements of a head, up to a multiple of NR */
    int64_t max_lanes; /* of a task, up to a multiple of ATTN_LANES */
    struct attn_block *blocks;
    float *local;
    int64_t local_floats;
};

/* One thread's memory, and where its task stands. */
struct attn_local {
    float *q;     /* [max_lanes / NR][kw][NR] */
    float *out;   /* [max_lanes][width]: sums of P V */
    float *max;   /* [max_lanes]: the largest score so far, and the sum of exp(score - max) */
    float *sum;   /* [max_lanes] */
    float *k;     /* [ATTN_KEYS / ATTN_ROWS][kw][ATTN_ROWS] */
    float *v;     /* [width / NR][words of ATTN_KEYS][NR] */
    float *p;     /* [ATTN_KEYS][ATTN_LANES]: scores, then weights */
    float *pairs; /* [ATTN_KEYS / 2][ATTN_LANES]: weights in pair mode */
    float *tmp;   /* [NR][CTW_MAX_HEAD + VL] */
    float *alpha; /* [ATTN_LANES] */
    float *low;   /* [ATTN_LANES]: the first and the last key in the tile that the lane sees */
    float *high;
    int64_t n_lanes, key0;
    int n_keys;
    bool v_finite;
};

/* The task's place in the runs, for keys in ascending order. */
struct key_cursor {
    const struct ctw_kv_run *run;
    int64_t start; /* position of the run's first key */
};

INLINE int64_t key_row(struct key_cursor *c, int64_t pos)
{
    while (pos >= c->start + c->run->n_tok)
        c->start += c->run++->n_tok;
    return c->run->row + (pos - c->start);
}

INLINE int64_t take(float *base, int64_t *used, float **out, int64_t floats)
{
    *out = base == NULL ? NULL : base + *used;
    *used += round_up(floats, 16);
    return *used;
}

/* Lays one thread's memory out from base on (NULL: only counts); returns its floats. */
static int64_t attn_layout(const struct attn_job *job, float *base, struct attn_local *l)
{
    const int64_t stride = CTW_MAX_HEAD + VL;
    int64_t used = 0;
    take(base, &used, &l->q, job->max_lanes * job->kw);
    take(base, &used, &l->out, job->max_lanes * job->width);
    take(base, &used, &l->max, job->max_lanes);
    take(base, &used, &l->sum, job->max_lanes);
    take(base, &used, &l->k, ATTN_KEYS * job->kw + VL);
    take(base, &used, &l->v, ATTN_KEYS * job->width);
    take(base, &used, &l->p, ATTN_KEYS * ATTN_LANES);
    take(base, &used, &l->pairs, ATTN_KEYS / 2 * ATTN_LANES);
    take(base, &used, &l->tmp, NR * stride);
    take(base, &used, &l->alpha, ATTN_LANES);
    take(base, &used, &l->low, ATTN_LANES);
    return take(base, &used, &l->high, ATTN_LANES);
}

/* ---- packing ------------------------------------------------------------------------------ */

static void pack_queries(const struct attn_job *job, const struct attn_block *b, int kv,
                         struct attn_local *l)
{
    const struct ctw_op_attention *op = job->op;
    const int64_t stride = CTW_MAX_HEAD + VL;
    int64_t end = round_up(l->n_lanes, ATTN_LANES);
    for (int64_t lane0 = 0; lane0 < end; lane0 += NR) {
        memset(l->tmp, 0, (size_t)(NR * stride) * sizeof(float));
        for (int64_t i = 0; i < NR && lane0 + i < l->n_lanes; i++) {
            int64_t row = b->seq->q_row + b->first + (lane0 + i) / job->group;
            int64_t head = kv * job->group + (lane0 + i) % job->group;
            to_words(job->mode, l->tmp + i * stride,
                     at(op->q, op->dtype, (row * op->n_head + head) * op->head), op->dtype,
                     op->head);
        }
        pack_columns(l->q + lane0 * job->kw, l->tmp, stride, job->kw);
    }
    memset(l->out, 0, (size_t)(end * job->width) * sizeof(float));
    memset(l->sum, 0, (size_t)end * sizeof(float));
    for (int64_t i = 0; i < end; i++)
        l->max[i] = -INFINITY;
}

INLINE bool all_finite(const float *row, int64_t n)
{
    vf zero = vf_zero();
    for (int64_t i = 0; i < n; i += VL)
        zero = vf_fma(vf_load(row + i), vf_zero(), zero);
    return vf_sum(zero) == 0;
}

/* Rows of one head lie far apart: processors' own prefetching does not see them coming. */
INLINE void prefetch_head(const void *array, enum ctw_dtype dtype, int64_t from, int head)
{
    uintptr_t row = (uintptr_t)array + (uintptr_t)from * ctw_dtype_bytes(dtype);
    for (size_t b = 0; b < (size_t)head * ctw_dtype_bytes(dtype); b += 64)
        __builtin_prefetch((const void *)(row + b)); /* may lie past the array's end */
}

/* Value rows 2j and 2j+1 of the tile (one, where mode is FLOATS) into their place. */
static void pack_values(const struct attn_job *job, struct attn_local *l, int64_t j,
                        const float *even, const float *odd)
{
    const int64_t tile_words = job->mode == PAIRS ? ATTN_KEYS / 2 : ATTN_KEYS;
    for (int64_t d = 0; d < job->width; d += VL) {
        float *to = l->v + (d / NR * tile_words + j) * NR + d % NR;
#if CTW_HAS_PAIRS
        if (job->mode == PAIRS) {
            vf_store(to, vf_make_pairs(vf_load(even + d), vf_load(odd + d)));
            continue;
        }
#endif
        vf_store(to, vf_load(even + d));
    }
    (void)odd;
}

/* Gathers keys key0 .. key0+n_keys-1 and their values. Missing keys of the last product tile, and
 * the missing half of a last pair, are zero. */
static void pack_keys(const struct attn_job *job, int kv, struct key_cursor *cursor,
                      struct attn_local *l)
{
    const struct ctw_op_attention *op = job->op;
    const int64_t stride = CTW_MAX_HEAD + VL;
    float *values[2] = {l->tmp + ATTN_ROWS * stride, l->tmp + (ATTN_ROWS + 1) * stride};
    memset(l->tmp, 0, (size_t)((ATTN_ROWS + 2) * stride) * sizeof(float));
    l->v_finite = true;
    const int64_t ahead = (int64_t)PREFETCH_KEYS * op->n_kv * op->head;
    for (int key = 0; key < l->n_keys; key++) {
        int64_t from = (key_row(cursor, l->key0 + key) * op->n_kv + kv) * op->head;
        prefetch_head(op->k, op->dtype, from + ahead, op->head);
        prefetch_head(op->v, op->dtype, from + ahead, op->head);
        to_words(job->mode, l->tmp + key % ATTN_ROWS * stride, at(op->k, op->dtype, from),
                 op->dtype, op->head);
        float *value = values[job->mode == PAIRS ? key % 2 : 0];
        widen(value, at(op->v, op->dtype, from), op->dtype, op->head);
        l->v_finite &= all_finite(value, job->width);
        bool last = key + 1 == l->n_keys;
        if (last && key % ATTN_ROWS + 1 < ATTN_ROWS)
            memset(l->tmp + (key % ATTN_ROWS + 1) * stride, 0,
                   (size_t)((ATTN_ROWS - 1 - key % ATTN_ROWS) * stride) * sizeof(float));
        if (last || key % ATTN_ROWS == ATTN_ROWS - 1)
            pack_rows(l->k + key / ATTN_ROWS * ATTN_ROWS * job->kw, l->tmp, stride, ATTN_ROWS,
                      job->kw, false);
        if (job->mode == FLOATS) {
            pack_values(job, l, key, value, NULL);
        } else if (last || key % 2 == 1) {
            if (key % 2 == 0)
                memset(values[1], 0, (size_t)job->width * sizeof(float));
            pack_values(job, l, key / 2, values[0], values[1]);
        }
    }
}

/* ---- one tile of keys for ATTN_LANES lanes ------------------------------------------------ */

/* p[key][lane] = q k for n_keys keys, up to a multiple of ATTN_ROWS. */
INLINE void score_tile(enum mode mode, const struct attn_job *job, const struct attn_local *l,
                       int64_t lane0, int n_keys)
{
    for (int c = 0; c < LANE_PANELS; c++) {
        const float *q = l->q + (lane0 + c * NR) * job->kw;
        for (int key = 0; key < n_keys; key += ATTN_ROWS) {
            vf acc[ATTN_ROWS][NV];
            tile_product(mode, acc, ATTN_ROWS, job->kw, l->k + key * job->kw, 1, ATTN_ROWS, 0, q);
            UNROLL
            for (int i = 0; i < ATTN_ROWS; i++) {
                UNROLL
                for (int v = 0; v < NV; v++)
                    vf_store(l->p + (key + i) * ATTN_LANES + c * NR + v * VL, acc[i][v]);
            }
        }
    }
}

/*
 * The largest score of VL lanes, with keys outside low..high masked. Scores are left as products
 * where the scale can be applied later; else they are scaled and capped here.
 */
INLINE vf largest_score(const struct attn_job *job, float *p, int n_keys, bool masked,
                        const float *low, const float *high)
{
    const vf none = vf_set1(-INFINITY);
    vf largest = none;
    if (!job->scale_late) {
        const vf scale = vf_set1(job->op->scale);
        for (int key = 0; key < n_keys; key++) {
            vf s = vf_mul(vf_load(p + key * ATTN_LANES), scale);
            if (job->op->softcap > 0)
                s = vf_softcap(s, job->op->softcap);
            vf_store(p + key * ATTN_LANES, s);
        }
    }
    if (masked) {
        for (int key = 0; key < n_keys; key++) {
            vf s = vf_load(p + key * ATTN_LANES), at_key = vf_set1((float)key);
            s = vf_select_le(at_key, vf_load(high), s, none);
            s = vf_select_le(vf_load(low), at_key, s, none);
            vf_store(p + key * ATTN_LANES, s);
        }
    }
    for (int key = 0; key < n_keys; key++)
        largest = vf_max(vf_load(p + key * ATTN_LANES), largest); /* not the one that is NaN */
    return largest;
}

/*
 * Scores become weights exp(scale * score - max) for ATTN_LANES lanes; max and sum move on, alpha
 * is the factor for what was summed before.
 */
INLINE void softmax_tile(enum mode mode, const struct attn_job *job, struct attn_local *l,
                         int64_t lane0, int n_keys, bool masked)
{
    const vf scale = vf_set1(job->scale_late ? job->op->scale : 1);
    for (int v = 0; v < ATTN_LANES; v += VL) {
        float *p = l->p + v;
        vf old = vf_load(l->max + lane0 + v);
        vf max = largest_score(job, p, n_keys, masked, l->low + v, l->high + v);
        max = vf_max(vf_mul(max, scale), old);
        /* Where no key was seen so far, subtract 0 instead of -infinity. */
        vf shift = vf_select_le(max, vf_set1(-INFINITY), vf_zero(), max);
        vf minus = vf_sub(vf_zero(), shift), sum = vf_zero();
        for (int key = 0; key < n_keys; key++) {
            vf e = vf_exp_weight(vf_fma(vf_load(p + key * ATTN_LANES), scale, minus));
            sum = vf_add(sum, e);
            vf_store(p + key * ATTN_LANES, e);
        }
        vf alpha = vf_exp_weight(vf_sub(old, shift));
        vf_store(l->alpha + v, alpha);
        vf_store(l->max + lane0 + v, max);
        vf_store(l->sum + lane0 + v, vf_fma(vf_load(l->sum + lane0 + v), alpha, sum));
#if CTW_HAS_PAIRS
        if (mode == PAIRS) {
            if (n_keys % 2 == 1)
                vf_store(p + n_keys * ATTN_LANES, vf_zero());
            for (int j = 0; j < (n_keys + 1) / 2; j++) {
                const float *even = p + 2 * j * ATTN_LANES;
                vf_store(l->pairs + j * ATTN_LANES + v,
                         vf_make_pairs(vf_load(even), vf_load(even + ATTN_LANES)));
            }
        }
#endif
    }
    (void)mode;
}

/* out = out * alpha + P V for lanes lane .. lane+n_rows-1 of the tile at lane0. */
INLINE void value_rows(enum mode mode, const struct attn_job *job, const struct attn_local *l,
                       int64_t lane0, int lane, const int n_rows, const float *v, int n_keys)
{
    const int64_t tile_words = mode == PAIRS ? ATTN_KEYS / 2 : ATTN_KEYS;
    const float *p = (mode == PAIRS ? l->pairs : l->p) + lane;
    for (int64_t d = 0; d < job->width; d += NR) {
        vf acc[ATTN_ROWS][NV];
        tile_product(mode, acc, n_rows, n_words(mode, n_keys), p, 1, ATTN_LANES, 0,
                     v + d * tile_words);
        UNROLL
        for (int i = 0; i < n_rows; i++) {
            float *out = l->out + (lane0 + lane + i) * job->width + d;
            vf alpha = vf_set1(l->alpha[lane + i]);
            UNROLL
            for (int c = 0; c < NV; c++)
                vf_store(out + c * VL, vf_fma(vf_load(out + c * VL), alpha, acc[i][c]));
        }
    }
}

/*
 * As value_rows for one lane after another, where some value in the tile is not finite: those that
 * the lane does not see count as zero, lest 0 times infinity reach it.
 */
static void value_lanes_apart(enum mode mode, const struct attn_job *job, struct attn_local *l,
                              int64_t lane0, int n_lanes, int n_keys)
{
    enum { HALVES_MAX = 2 };
    const int64_t tile_words = mode == PAIRS ? ATTN_KEYS / 2 : ATTN_KEYS;
    const int per_word = mode == PAIRS ? HALVES_MAX : 1;
    float *kept = l->tmp; /* [tile_words][NR] of one panel */
    for (int lane = 0; lane < n_lanes; lane++) {
        for (int64_t d = 0; d < job->width; d += NR) {
            memcpy(kept, l->v + d * tile_words, (size_t)(tile_words * NR) * sizeof(float));
            char *bytes = (char *)kept;
            const size_t part = sizeof(float) / (size_t)per_word;
            for (int key = 0; key < ATTN_KEYS; key++) {
                bool seen = (float)key >= l->low[lane] && (float)key <= l->high[lane];
                for (int c = 0; !seen && c < NR; c++)
                    memset(bytes + (size_t)(key / per_word * NR + c) * sizeof(float) +
                               (size_t)(key % per_word) * part,
                           0, part);
            }
            vf acc[1][NV];
            const float *p = (mode == PAIRS ? l->pairs : l->p) + lane;
            tile_product(mode, acc, 1, n_words(mode, n_keys), p, 1, ATTN_LANES, 0, kept);
            float *out = l->out + (lane0 + lane) * job->width + d;
            for (int c = 0; c < NV; c++)
                vf_store(out + c * VL,
                         vf_fma(vf_load(out + c * VL), vf_set1(l->alpha[lane]), acc[0][c]));
        }
    }
}

/* One tile of keys for one tile of lanes. Positions are counted from the tile's first key. */
INLINE void attend(enum mode mode, const struct attn_job *job, const struct attn_block *b,
                   struct attn_local *l, int64_t lane0)
{
    int64_t n = min64(ATTN_LANES, l->n_lanes - lane0), window = job->op->window;
    int64_t pos0 = b->seq->pos0 + b->first - l->key0;
    int64_t first = pos0 + lane0 / job->group, last = pos0 + (lane0 + n - 1) / job->group;
    if (last < 0 || (window > 0 && first - window + 1 >= l->n_keys))
        return; /* no lane sees a key of the tile */
    int n_keys = (int)min64(l->n_keys, last + 1);
    bool masked = first < l->n_keys - 1 || (window > 0 && last - window + 1 > 0);
    if (masked) {
        for (int64_t i = 0; i < ATTN_LANES; i++) {
            int64_t pos = pos0 + min64(lane0 + i, l->n_lanes - 1) / job->group;
            l->high[i] = (float)max64(-1, min64(pos, ATTN_KEYS));
            l->low[i] = window > 0 ? (float)max64(0, min64(pos - window + 1, ATTN_KEYS)) : 0;
        }
    }
    score_tile(mode, job, l, lane0, n_keys);
    softmax_tile(mode, job, l, lane0, n_keys, masked);
    if (masked && !l->v_finite) {
        value_lanes_apart(mode, job, l, lane0, (int)n, n_keys);
        return;
    }
    for (int lane = 0; lane < n; lane += ATTN_ROWS)
        value_rows(mode, job, l, lane0, lane, ATTN_ROWS, l->v, n_keys);
}

/* ---- tasks -------------------------------------------------------------------------------- */

static void store_lanes(const struct attn_job *job, const struct attn_block *b, int kv,
                        struct attn_local *l)
{
    const struct ctw_op_attention *op = job->op;
    for (int64_t lane = 0; lane < l->n_lanes; lane++) {
        int64_t row = b->seq->q_row + b->first + lane / job->group;
        int64_t head = kv * job->group + lane % job->group;
        float *out = l->out + lane * job->width;
        const vf sum = vf_set1(l->sum[lane]);
        for (int64_t d = 0; d < job->width; d += VL)
            vf_store(out + d, vf_div(vf_add(vf_load(out + d), vf_zero()), sum));
        narrow(at(op->out, op->dtype, (row * op->n_head + head) * op->head), op->dtype, out,
               op->head);
    }
}

static void attn_item(void *arg, int64_t item, int thread)
{
    const struct attn_job *job = arg;
    const struct attn_block *b = &job->blocks[item / job->op->n_kv];
    int kv = (int)(item % job->op->n_kv);
    struct attn_local l;
    attn_layout(job, job->local + thread * job->local_floats, &l);
    l.n_lanes = b->n * job->group;
    pack_queries(job, b, kv, &l);

    struct key_cursor cursor = {b->seq->runs, 0};
    int64_t pos = b->seq->pos0 + b->first, last = pos + b->n - 1;
    int64_t from = job->op->window > 0 ? max64(0, pos - job->op->window + 1) : 0;
    for (l.key0 = from / ATTN_KEYS * ATTN_KEYS; l.key0 <= last; l.key0 += ATTN_KEYS) {
        l.n_keys = (int)min64(ATTN_KEYS, last + 1 - l.key0);
        pack_keys(job, kv, &cursor, &l);
        for (int64_t lane0 = 0; lane0 < l.n_lanes; lane0 += ATTN_LANES) {
#if CTW_HAS_PAIRS
            if (job->mode == PAIRS)
                attend(PAIRS, job, b, &l, lane0);
            else
#endif
                attend(FLOATS, job, b, &l, lane0);
        }
    }
    store_lanes(job, b, kv, &l);
}

static int dearest_first(const void *a, const void *b)
{
    int64_t x = ((const struct attn_block *)a)->cost, y = ((const struct attn_block *)b)->cost;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* Cuts all queries into blocks of at most `per_block`; counts only, where out is NULL. */
static int64_t cut_blocks(const struct ctw_op_attention *op, int64_t per_block,
                          struct attn_block *out)
{
    int64_t n = 0;
    for (int64_t s = 0; s < op->n_seqs; s++) {
        const struct ctw_attn_seq *seq = &op->seqs[s];
        for (int64_t i = 0; i < seq->n_q; i += per_block, n++) {
            if (out == NULL)
                continue;
            struct attn_block b = {.seq = seq, .first = i, .n = min64(per_block, seq->n_q - i)};
            int64_t keys = seq->pos0 + i + b.n;
            b.cost = b.n * (op->window > 0 ? min64(keys, op->window + b.n) : keys);
            out[n] = b;
        }
    }
    return n;
}

/* What depends on the shape of the heads only; returns the floats of one thread. */
static int64_t shape_attention(struct attn_job *job, int group, int head, enum mode mode)
{
    struct attn_local l;
    job->mode = mode;
    job->group = group;
    job->kw = n_words(mode, head);
    job->width = round_up(head, NR);
    job->max_lanes = round_up(max64(group, TASK_LANES), ATTN_LANES);
    return job->local_floats = attn_layout(job, NULL, &l);
}

static enum ctw_status fast_attention(struct ctw_cpu *cpu, const struct ctw_op_attention *op,
                                      struct ctw_err *err)
{
    struct attn_job job = {.op = op, .scale_late = op->scale > 0 && op->softcap == 0};
    shape_attention(&job, op->n_head / op->n_kv, op->head, mode_of(op->dtype));
    int64_t per_block = max64(1, TASK_LANES / job.group);
    int64_t n_blocks = cut_blocks(op, per_block, NULL);
    if (n_blocks == 0)
        return CTW_OK;
    size_t locals = (size_t)(ctw_threads_count(cpu->threads) * job.local_floats) * sizeof(float);
    void *scratch;
    enum ctw_status st =
        ctw_cpu_scratch(cpu, locals + (size_t)n_blocks * sizeof(*job.blocks), &scratch, err);
    if (st != CTW_OK)
        return st;
    job.local = scratch;
    job.blocks = (struct attn_block *)((char *)scratch + locals);
    cut_blocks(op, per_block, job.blocks);
    qsort(job.blocks, (size_t)n_blocks, sizeof(*job.blocks), dearest_first);
    ctw_threads_for(cpu->threads, n_blocks * op->n_kv, attn_item, &job);
    return CTW_OK;
}

#endif
