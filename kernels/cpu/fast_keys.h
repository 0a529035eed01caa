/*
 * The data of an attention task, and the packing of queries, keys and values into the layouts that
 * the products read. See fast_attention.h.
 */
#ifndef CTW_KERNELS_CPU_FAST_KEYS_H
#define CTW_KERNELS_CPU_FAST_KEYS_H

enum {
    TASK_LANES = 8 * ATTN_LANES, /* lanes that share a packed tile of keys */
    PREFETCH_KEYS = 8
};

/* Queries first .. first+n-1 of one sequence. */
struct attn_block {
    const struct ctw_attn_seq *seq;
    int64_t first, n;
    int64_t cost; /* keys seen, summed over all queries */
};

struct attn_job {
    const struct ctw_op_attention *op;
    enum mode mode;
    int group;             /* query heads per key head */
    bool scale_late;       /* scores are scaled in the exponent */
    float early_scale;     /* or by this, before they are capped or biased */
    int64_t kw;            /* words per head */
    int64_t width;         /* elements per value head, rounded up to a multiple of NR */
    int64_t max_lanes;     /* per task, rounded up to a multiple of ATTN_LANES */
    const float *relative; /* [rank, extent]: the bias's proj from its last column on, or NULL */
    struct attn_block *blocks;
    float *local;
    int64_t local_floats;
};

/* One thread's memory, and the state of its task. */
struct attn_local {
    float *q;   /* [max_lanes / NR][kw][NR] */
    float *out; /* [max_lanes][width]: sums of P V */
    float *max; /* [max_lanes]: the maximum of the sink and the scores so far, and the sum of */
    float *sum; /* [max_lanes]: exp(score - max) */
    float *k; /* [ATTN_KEYS / height][kw][height] for vectors' tiles; AMX's: see pack_amx_rows() */
    float *v; /* [width / NR][words of ATTN_KEYS][NR] */
    float *p; /* [ATTN_KEYS][ATTN_LANES]: scores, then weights */
    float *pairs; /* [ATTN_KEYS / 2][ATTN_LANES]: weights in pair mode */
    float *tmp;   /* [NR][CTW_MAX_HEAD + VL] */
    float *alpha; /* [ATTN_LANES] */
    float *low;   /* [ATTN_LANES]: the first and the last key in the tile that the lane sees */
    float *high;
    float *slope; /* [ATTN_LANES]: ALiBi's, and the lane's position in the tile */
    float *pos;
    int64_t n_lanes, key0;
    const uint32_t *seen; /* the keys that the first query sees, or NULL */
    int64_t state0;       /* of op->relative.states: the first lane's */
    int64_t pos0;         /* the first lane's position in the tile, which may be negative */
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

/* The number of contiguous keys from pos on, at the cursor. */
INLINE int64_t keys_left(const struct key_cursor *c, int64_t pos)
{
    return c->start + c->run->n_tok - pos;
}

INLINE int64_t take(float *base, int64_t *used, float **out, int64_t floats)
{
    *out = base == NULL ? NULL : base + *used;
    *used += round_up(floats, 16);
    return *used;
}

/* Lays out one thread's memory from base on (NULL: only counts); returns its floats. */
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
    take(base, &used, &l->high, ATTN_LANES);
    take(base, &used, &l->slope, ATTN_LANES);
    return take(base, &used, &l->pos, ATTN_LANES);
}

/* ---- packing ------------------------------------------------------------------------------ */

static void pack_queries(const struct attn_job *job, const struct attn_block *b, int kv,
                         struct attn_local *l)
{
    const struct ctw_op_attention *op = job->op;
    const int64_t stride = CTW_MAX_HEAD + VL;
    int64_t end = round_up(l->n_lanes, NR);
    for (int64_t lane0 = 0; lane0 < end; lane0 += NR) {
        int64_t n = min64(NR, l->n_lanes - lane0);
        memset(l->tmp + n * stride, 0, (size_t)((NR - n) * stride) * sizeof(float));
        for (int64_t i = 0; i < n; i++) {
            int64_t row = b->seq->q_row + b->first + (lane0 + i) / job->group;
            int64_t head = kv * job->group + (lane0 + i) % job->group;
            to_words(job->mode, l->tmp + i * stride,
                     at(op->q, op->dtype, (row * op->n_head + head) * op->head), op->dtype,
                     op->head);
        }
        pack_columns(l->q + lane0 * job->kw, l->tmp, stride, job->kw);
    }
    memset(l->out, 0, (size_t)(end * job->width) * sizeof(float));
    for (int64_t i = 0; i < end; i++) {
        float sink = -INFINITY;
        if (op->sinks != NULL && i < l->n_lanes)
            sink = ctw_load_float(op->sinks, op->sinks_dtype, kv * job->group + i % job->group);
        l->max[i] = sink;
        l->sum[i] = 1; /* exp(sink - max): without a sink, the first tile cancels it */
    }
}

/* Rows of one head are far apart: hardware prefetching does not detect them. */
INLINE void prefetch_head(const void *array, enum ctw_dtype dtype, int64_t from, int head)
{
    uintptr_t row = (uintptr_t)array + (uintptr_t)from * ctw_dtype_bytes(dtype);
    for (size_t b = 0; b < (size_t)head * ctw_dtype_bytes(dtype); b += 64)
        __builtin_prefetch((const void *)(row + b)); /* may be past the array's end */
}

/*
 * Packs value rows 2j and 2j+1 of the tile (one row if mode is FLOATS). Returns zero plus 0 times
 * each value: 0, unless a value is not finite.
 */
INLINE vf pack_values(enum mode mode, const struct attn_job *job, struct attn_local *l, int64_t j,
                      const float *even, const float *odd, vf zero)
{
    const int64_t tile_words = mode == PAIRS ? ATTN_KEYS / 2 : ATTN_KEYS;
    for (int64_t d = 0; d < job->width; d += VL) {
        float *to = l->v + (d / NR * tile_words + j) * NR + d % NR;
        vf x = vf_load(even + d);
        zero = vf_fma(x, vf_zero(), zero);
#if CTW_HAS_PAIRS
        if (mode == PAIRS) {
            vf y = vf_load(odd + d);
            zero = vf_fma(y, vf_zero(), zero);
            x = vf_make_pairs(x, y);
        }
#endif
        vf_store(to, x);
    }
    (void)odd;
    return zero;
}

/* Gathers keys key0 .. key0+n_keys-1 and their values. Missing keys of the last product tile, and
 * the missing half of a last pair, are zero. */
INLINE void pack_keys(enum mode mode, const struct attn_job *job, int kv, struct key_cursor *cursor,
                      struct attn_local *l)
{
    const struct ctw_op_attention *op = job->op;
    const int64_t stride = CTW_MAX_HEAD + VL;
    const int64_t row = (int64_t)op->n_kv * op->head, row_v = (int64_t)op->n_kv * op->head_v;
    const int64_t per_word = mode == PAIRS ? 2 : 1;
    /* Keys that are already whole vectors of words are packed directly from the array. */
    const bool words =
        (mode == PAIRS || op->dtype == CTW_F32) && op->head % whole_values(mode) == 0;
    const int height = tile_height(mode);
    float *values[2] = {l->tmp + height * stride, l->tmp + (height + 1) * stride};
    vf zero = vf_zero();
    for (int i = 0; i < 2; i++)
        memset(values[i], 0, (size_t)job->width * sizeof(float));
    for (int key0 = 0; key0 < l->n_keys; key0 += height) {
        int n = (int)min64(height, l->n_keys - key0);
        int64_t from = (key_row(cursor, l->key0 + key0) * op->n_kv + kv) * op->head;
        bool here = words && n == height && keys_left(cursor, l->key0 + key0) >= n;
        if (here)
            pack_height(mode, l->k + key0 * job->kw, at(op->k, op->dtype, from), row / per_word,
                        job->kw, false);
        for (int i = 0; i < n; i++) {
            int64_t head_row = key_row(cursor, l->key0 + key0 + i) * op->n_kv + kv;
            int64_t from_v = head_row * op->head_v;
            from = head_row * op->head;
            prefetch_head(op->k, op->dtype, from + PREFETCH_KEYS * row, op->head);
            prefetch_head(op->v, op->dtype, from_v + PREFETCH_KEYS * row_v, op->head_v);
            if (!here)
                to_words(mode, l->tmp + i * stride, at(op->k, op->dtype, from), op->dtype,
                         op->head);
            int key = key0 + i;
            widen(values[key % per_word], at(op->v, op->dtype, from_v), op->dtype, op->head_v);
            if (key % per_word == per_word - 1)
                zero = pack_values(mode, job, l, key / per_word, values[0], values[1], zero);
        }
        if (here)
            continue;
        memset(l->tmp + n * stride, 0, (size_t)((height - n) * stride) * sizeof(float));
        pack_height(mode, l->k + key0 * job->kw, l->tmp, stride, job->kw, false);
    }
    if (l->n_keys % per_word != 0) {
        memset(values[1], 0, (size_t)job->width * sizeof(float));
        zero = pack_values(mode, job, l, l->n_keys / per_word, values[0], values[1], zero);
    }
    memset(values[0], 0, (size_t)job->width * sizeof(float)); /* of the last tile's rest */
    for (int64_t j = filled_words(mode, l->n_keys); j < n_words(mode, l->n_keys); j++)
        pack_values(mode, job, l, j, values[0], values[0], vf_zero());
    l->v_finite = vf_sum(zero) == 0;
}

#endif
