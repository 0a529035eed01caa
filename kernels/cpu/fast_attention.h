/*
 * Causal softmax attention with online softmax over tiles of ATTN_KEYS keys, which are counted from
 * the start of the sequence. A task is one key-value head and some queries of one sequence with all
 * heads of the group: its lanes, query-major. Scores are computed transposed, keys by lanes, so
 * that the whole softmax is lane by lane and the weights P have the layout that P V reads.
 *
 * A lane's result depends only on its own query and keys: a masked key has weight exactly 0, and a
 * tile without a key for the lane multiplies its sums by exactly 1 and adds exactly 0. The result
 * therefore does not depend on which queries share a task. (Zeros lose their sign at the end,
 * because adding 0 may change it; values that are not finite are kept from lanes that do not see
 * their key.)
 */
#ifndef CTW_KERNELS_CPU_FAST_ATTENTION_H
#define CTW_KERNELS_CPU_FAST_ATTENTION_H

#include <stdlib.h>

/* ---- one tile of keys for ATTN_LANES lanes ------------------------------------------------ */

/*
 * The largest score of VL lanes from `lane` on, ignoring NaN, with keys outside low..high masked.
 * Scores are left as products if the scale can be applied later; else they are scaled, and capped
 * or given their ALiBi, here.
 */
INLINE vf largest_score(const struct attn_job *job, struct attn_local *l, int64_t lane, int n_keys,
                        bool masked)
{
    const vf none = vf_set1(-INFINITY), scale = vf_set1(job->early_scale);
    float *p = l->p + lane;
    vf largest = none;
    for (int key = 0; key < n_keys; key++) {
        vf s = vf_load(p + key * ATTN_LANES), at_key = vf_set1((float)key);
        if (!job->scale_late) {
            s = vf_mul(s, scale);
            if (job->op->softcap > 0)
                s = vf_softcap(s, job->op->softcap);
            if (job->op->alibi != NULL)
                s = vf_fma(vf_load(l->slope + lane), vf_sub(at_key, vf_load(l->pos + lane)), s);
        }
        if (masked) {
            s = vf_select_le(at_key, vf_load(l->high + lane), s, none);
            s = vf_select_le(vf_load(l->low + lane), at_key, s, none);
        }
        vf_store(p + key * ATTN_LANES, s);
        largest = vf_max(s, largest); /* skips NaN */
    }
    return largest;
}

/* Scores of -infinity for keys that NR lanes from `lane` on do not see. */
static void hide_unseen(const struct attn_job *job, const struct attn_local *l, int64_t lane0,
                        int lane, int n_keys)
{
    for (int key = 0; key < n_keys; key++)
        for (int i = lane; i < lane + NR; i++)
            if (!lane_sees(job, l, lane0 + i, key))
                l->p[key * ATTN_LANES + i] = -INFINITY;
}

/* Scores times the scale, plus the learned bias, of NR lanes from `lane` on. */
static void add_relative(const struct attn_job *job, const struct attn_local *l, int64_t lane0,
                         int lane, int n_keys)
{
    const struct ctw_relative *r = &job->op->relative;
    for (int i = lane; i < lane + NR; i++) {
        const int64_t at = min64(lane0 + i, l->n_lanes - 1), query = at / job->group;
        const int64_t state = l->state0 + query * r->ld + at % job->group * r->rank;
        const int64_t pos = l->pos0 + query;
        const int64_t from = max64(0, pos - r->extent + 1), to = min64(n_keys, pos + 1);
        const float factor = r->factor != NULL ? r->factor[l->key0 + pos] : 1;
        float bias[ATTN_KEYS] = {0};
        for (int64_t j = 0; j < r->rank; j++) {
            const float x = ctw_load_float(r->states, job->op->dtype, state + j);
            const int64_t key0 = (j + 1) * r->extent - 1 - pos;
            for (int64_t key = from; key < to; key++)
                bias[key] += x * job->relative[key0 + key];
        }
        for (int key = 0; key < n_keys; key++) {
            float *p = l->p + key * ATTN_LANES + i;
            *p = *p * job->op->scale + factor * bias[key];
        }
    }
}

/* The weights exp(scale * p + minus) of NR lanes from `lane` on for n_keys keys from `key` on;
 * added to sum in key order. n_keys is a constant: 1, or ATTN_STEP. */
INLINE void weigh(enum mode mode, struct attn_local *l, int lane, int key, const int n_keys,
                  vf scale, const vf minus[NV], vf sum[NV])
{
    float *p = l->p + key * ATTN_LANES + lane;
    vf e[ATTN_STEP * NV];
    UNROLL
    for (int i = 0; i < n_keys * NV; i++)
        e[i] = vf_fma(vf_load(p + i / NV * ATTN_LANES + i % NV * VL), scale, minus[i % NV]);
    vf_exp_weight_each(e, n_keys * NV);
    UNROLL
    for (int i = 0; i < n_keys * NV; i++)
        sum[i % NV] = vf_add(sum[i % NV], e[i]);
#if CTW_HAS_PAIRS
    if (mode == PAIRS) {
        UNROLL
        for (int v = 0; v < NV; v++)
            vf_store(l->pairs + key / 2 * ATTN_LANES + lane + v * VL,
                     vf_make_pairs(e[v], n_keys == 2 ? e[NV + v] : vf_zero()));
        return;
    }
#endif
    UNROLL
    for (int i = 0; i < n_keys * NV; i++)
        vf_store(p + i / NV * ATTN_LANES + i % NV * VL, e[i]);
    (void)mode;
}

/*
 * Turns scores into weights exp(scale * score - max) for NR lanes of the tile from `lane` on;
 * updates max and sum; alpha is the factor for earlier sums.
 */
INLINE void softmax_panel(enum mode mode, const struct attn_job *job, struct attn_local *l,
                          int64_t lane0, int lane, int n_keys, bool masked)
{
    const vf scale = vf_set1(job->scale_late ? job->op->scale : 1);
    vf largest[NV], minus[NV], sum[NV];
    scores(mode, job, l, lane0, lane, n_keys, largest);
    if (l->seen != NULL)
        hide_unseen(job, l, lane0, lane, n_keys);
    if (job->relative != NULL)
        add_relative(job, l, lane0, lane, n_keys);
    bool known = job->scale_late && !masked && n_keys % ATTN_ROWS == 0;
    for (int v = 0; v < NV; v++) {
        int64_t at_v = lane + v * VL;
        if (!known)
            largest[v] = largest_score(job, l, at_v, n_keys, masked);
        vf old = vf_load(l->max + lane0 + at_v), max = vf_max(vf_mul(largest[v], scale), old);
        /* If no key was seen so far, subtract 0 instead of -infinity. */
        vf shift = vf_select_le(max, vf_set1(-INFINITY), vf_zero(), max);
        minus[v] = vf_sub(vf_zero(), shift);
        sum[v] = vf_zero();
        vf_store(l->max + lane0 + at_v, max);
        vf_store(l->alpha + at_v, vf_exp_weight(vf_sub(old, shift)));
    }
    int key = 0;
    for (; key + ATTN_STEP <= n_keys; key += ATTN_STEP)
        weigh(mode, l, lane, key, ATTN_STEP, scale, minus, sum);
    if (key < n_keys)
        weigh(mode, l, lane, key, 1, scale, minus, sum);
    for (int v = 0; v < NV; v++) {
        float *old = l->sum + lane0 + lane + v * VL;
        vf_store(old, vf_fma(vf_load(old), vf_load(l->alpha + lane + v * VL), sum[v]));
    }
}

/* The lanes' slopes, and their positions, which are exact as floats. Positions are counted from the
 * tile's first key. */
INLINE void place_lanes(const struct attn_job *job, int kv, struct attn_local *l, int64_t lane0,
                        int64_t pos0)
{
    const float *alibi = job->op->alibi + kv * job->group;
    for (int64_t i = 0; i < ATTN_LANES; i++) {
        l->slope[i] = alibi[(lane0 + i) % job->group];
        l->pos[i] = (float)(pos0 + (lane0 + i) / job->group);
    }
}

/* The first key that the query at pos sees. Both are counted from the tile's first key. */
INLINE int64_t first_key(const struct ctw_op_attention *op, const struct attn_local *l, int64_t pos)
{
    return ctw_attn_first(op, pos + l->key0) - l->key0;
}

/* One tile of keys for one tile of lanes. Positions are counted from the tile's first key. */
INLINE void attend(enum mode mode, const struct attn_job *job, const struct attn_block *b, int kv,
                   struct attn_local *l, int64_t lane0)
{
    int64_t n = min64(ATTN_LANES, l->n_lanes - lane0);
    int64_t pos0 = b->seq->pos0 + b->first - l->key0;
    int64_t first = pos0 + lane0 / job->group, last = pos0 + (lane0 + n - 1) / job->group;
    if (last < 0 || first_key(job->op, l, first) >= l->n_keys)
        return; /* no lane sees a key of the tile */
    int n_keys = (int)min64(l->n_keys, last + 1);
    bool masked = l->seen != NULL || first < l->n_keys - 1 || first_key(job->op, l, last) > 0;
    if (masked) {
        for (int64_t i = 0; i < ATTN_LANES; i++) {
            int64_t pos = pos0 + min64(lane0 + i, l->n_lanes - 1) / job->group;
            l->high[i] = (float)max64(-1, min64(pos, ATTN_KEYS));
            l->low[i] = (float)max64(0, min64(first_key(job->op, l, pos), ATTN_KEYS));
        }
    }
    if (job->op->alibi != NULL)
        place_lanes(job, kv, l, lane0, pos0);
    l->pos0 = pos0;
    for (int lane = 0; lane < n; lane += NR)
        softmax_panel(mode, job, l, lane0, lane, n_keys, masked);
    weigh_values(mode, job, l, lane0, (int)n, n_keys, masked && !l->v_finite);
}

/* One tile of keys for all the task's lanes. */
INLINE void attend_keys(enum mode mode, const struct attn_job *job, const struct attn_block *b,
                        int kv, struct key_cursor *cursor, struct attn_local *l)
{
    pack_keys(mode, job, kv, cursor, l);
    for (int64_t lane0 = 0; lane0 < l->n_lanes; lane0 += ATTN_LANES)
        attend(mode, job, b, kv, l, lane0);
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
        const vf sum = vf_set1(l->sum[lane]), factor = vf_set1(op->v_factor);
        for (int64_t d = 0; d < job->width; d += VL)
            vf_store(out + d, vf_mul(vf_div(vf_add(vf_load(out + d), vf_zero()), sum), factor));
        narrow(at(op->out, op->dtype, (row * op->n_head + head) * op->head_v), op->dtype, out,
               op->head_v);
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
    l.seen = job->op->seen == NULL ? NULL
                                   : job->op->seen + (b->seq->q_row + b->first) * job->op->ld_seen +
                                         kv * job->op->seen_head;
    l.state0 = (b->seq->q_row + b->first) * job->op->relative.ld +
               kv * job->group * job->op->relative.rank;
    pack_queries(job, b, kv, &l);
    products_begin(job->mode);

    struct key_cursor cursor = {b->seq->runs, 0};
    int64_t pos = b->seq->pos0 + b->first, last = pos + b->n - 1;
    int64_t from = ctw_attn_first(job->op, pos);
    for (l.key0 = from / ATTN_KEYS * ATTN_KEYS; l.key0 <= last; l.key0 += ATTN_KEYS) {
        l.n_keys = (int)min64(ATTN_KEYS, last + 1 - l.key0);
#if CTW_HAS_PAIRS
        if (job->mode == PAIRS) {
            attend_keys(PAIRS, job, b, kv, &cursor, &l);
            continue;
        }
#endif
        attend_keys(FLOATS, job, b, kv, &cursor, &l);
    }
    products_end(job->mode);
    store_lanes(job, b, kv, &l);
}

static int dearest_first(const void *a, const void *b)
{
    int64_t x = ((const struct attn_block *)a)->cost, y = ((const struct attn_block *)b)->cost;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* Splits all queries into blocks of at most `per_block`; only counts if out is NULL. */
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
            b.cost = b.n * (keys - ctw_attn_first(op, seq->pos0 + i));
            out[n] = b;
        }
    }
    return n;
}

/* Sizes that depend only on the shape of the heads; returns the floats per thread. */
static int64_t shape_attention(struct attn_job *job, int group, int head, int head_v,
                               enum mode mode)
{
    struct attn_local l;
    job->mode = mode;
    job->group = group;
    job->kw = n_words(mode, head);
    job->width = round_up(head_v, NR);
    job->max_lanes = round_up(max64(group, TASK_LANES), ATTN_LANES);
    return job->local_floats = attn_layout(job, NULL, &l);
}

/* The bias's proj as floats, each row from its last column on: distances fall with keys. */
static void load_relative(const struct ctw_relative *r, float *out)
{
    for (int64_t i = 0; i < r->rank; i++)
        for (int64_t d = 0; d < r->extent; d++)
            out[(i + 1) * r->extent - 1 - d] =
                ctw_load_float(r->proj, r->proj_dtype, i * r->extent + d);
}

static enum ctw_status fast_attention(struct ctw_cpu *cpu, const struct ctw_op_attention *op,
                                      struct ctw_err *err)
{
    struct attn_job job = {.op = op};
    const int64_t proj = op->relative.rank * op->relative.extent;
    job.scale_late = op->scale > 0 && op->softcap == 0 && op->alibi == NULL && proj == 0;
    job.early_scale = proj == 0 ? op->scale : 1;
    shape_attention(&job, op->n_head / op->n_kv, op->head, op->head_v, mode_of(op->dtype));
    int64_t per_block = max64(1, TASK_LANES / job.group);
    int64_t n_blocks = cut_blocks(op, per_block, NULL);
    if (n_blocks == 0)
        return CTW_OK;
    size_t locals = (size_t)(ctw_threads_count(cpu->threads) * job.local_floats) * sizeof(float);
    const size_t blocks = (size_t)n_blocks * sizeof(*job.blocks);
    void *scratch;
    enum ctw_status st =
        ctw_cpu_scratch(cpu, locals + blocks + (size_t)proj * sizeof(float), &scratch, err);
    if (st != CTW_OK)
        return st;
    job.local = scratch;
    job.blocks = (struct attn_block *)((char *)scratch + locals);
    cut_blocks(op, per_block, job.blocks);
    if (proj > 0) {
        float *relative = (float *)((char *)job.blocks + blocks);
        load_relative(&op->relative, relative);
        job.relative = relative;
    }
    qsort(job.blocks, (size_t)n_blocks, sizeof(*job.blocks), dearest_first);
    ctw_threads_for(cpu->threads, n_blocks * op->n_kv, attn_item, &job);
    return CTW_OK;
}

#endif
