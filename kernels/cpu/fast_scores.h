/*
 * The two products of attention, for ATTN_LANES lanes and one tile of keys: scores p[key][lane] = q
 * k, and out = out * alpha + P V. Both in vectors, and in AMX's tiles, where rows are keys for the
 * scores and lanes for P V.
 */
#ifndef CTW_KERNELS_CPU_FAST_SCORES_H
#define CTW_KERNELS_CPU_FAST_SCORES_H

/* ---- in vectors --------------------------------------------------------------------------- */

/* p[key][lane] = q k for n_rows keys and NR lanes of the tile; updates largest. */
INLINE void score_rows(enum mode mode, const struct attn_job *job, const struct attn_local *l,
                       int64_t lane0, int lane, int key, const int n_rows, vf largest[NV])
{
    vf acc[ATTN_ROWS][NV];
    tile_product(mode, acc, n_rows, job->kw, l->k + key * job->kw, 1, ATTN_ROWS, 0,
                 l->q + (lane0 + lane) * job->kw);
    UNROLL
    for (int i = 0; i < n_rows; i++) {
        UNROLL
        for (int v = 0; v < NV; v++) {
            largest[v] = vf_max(acc[i][v], largest[v]); /* skips NaN */
            vf_store(l->p + (key + i) * ATTN_LANES + lane + v * VL, acc[i][v]);
        }
    }
}

/* The same for n_keys keys, rounded up to a multiple of ATTN_ROWS / 2; updates largest with all
 * keys. */
INLINE void score_panel(enum mode mode, const struct attn_job *job, const struct attn_local *l,
                        int64_t lane0, int lane, int n_keys, vf largest[NV])
{
    int key = 0;
    for (int v = 0; v < NV; v++)
        largest[v] = vf_set1(-INFINITY);
    for (; key + ATTN_ROWS / 2 < n_keys; key += ATTN_ROWS)
        score_rows(mode, job, l, lane0, lane, key, ATTN_ROWS, largest);
    if (key < n_keys)
        score_rows(mode, job, l, lane0, lane, key, ATTN_ROWS / 2, largest);
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

/* The same for n_lanes lanes of the tile. The last rows may be past the task's lanes: computed from
 * arbitrary data, not used. */
INLINE void vector_values(enum mode mode, const struct attn_job *job, const struct attn_local *l,
                          int64_t lane0, int n_lanes, int n_keys)
{
    int lane = 0;
    for (; lane + ATTN_ROWS / 2 < n_lanes; lane += ATTN_ROWS)
        value_rows(mode, job, l, lane0, lane, ATTN_ROWS, l->v, n_keys);
    if (lane < n_lanes)
        value_rows(mode, job, l, lane0, lane, ATTN_ROWS / 2, l->v, n_keys);
}

/* sums[v] = the lane's weights times one panel of values. */
INLINE void vector_lane(enum mode mode, const struct attn_local *l, int lane, const float *panel,
                        int n_keys, vf sums[NV])
{
    vf acc[1][NV];
    const float *p = (mode == PAIRS ? l->pairs : l->p) + lane;
    tile_product(mode, acc, 1, n_words(mode, n_keys), p, 1, ATTN_LANES, 0, panel);
    for (int v = 0; v < NV; v++)
        sums[v] = acc[0][v];
}

/* ---- in AMX's tiles ----------------------------------------------------------------------- */

#if CTW_HAS_AMX
enum { AMX_KEY_WORDS = ATTN_KEYS / 2 };
_Static_assert((int)ATTN_LANES % (int)TILE_ROWS == 0, "lanes are whole tiles");
_Static_assert((int)AMX_KEY_WORDS % (int)TILE_WORDS == 0, "keys are whole tiles");

/* p[key][lane] = q k for NR lanes and n_keys keys, rounded up to whole tiles; the largest scores of
 * the n_keys. */
static void amx_scores(const struct attn_job *job, const struct attn_local *l, int64_t lane0,
                       int lane, int n_keys, vf largest[NV])
{
    float *p = l->p + lane;
    amx_rows(n_keys, job->kw, l->k, l->q + (lane0 + lane) * job->kw, p, ATTN_LANES, true);
    for (int v = 0; v < NV; v++) {
        largest[v] = vf_set1(-INFINITY);
        for (int key = 0; key < n_keys; key++) /* skips NaN */
            largest[v] = vf_max(vf_load(p + key * ATTN_LANES + v * VL), largest[v]);
    }
}

/* The weights as rows of lanes, in tiles, in place of the scores, which are no longer needed: the
 * rest of the last tile of keys is zero. */
static void amx_turn_weights(struct attn_local *l, int n_lanes, int n_keys)
{
    const int64_t filled = filled_words(PAIRS, n_keys), end = n_words(PAIRS, n_keys);
    for (int64_t lane = 0; lane < n_lanes; lane += TILE_ROWS)
        for (int64_t w = 0; w < end; w += VL)
            for (int64_t part = 0; part < TILE_ROWS; part += VL) {
                const float *from = l->pairs + w * ATTN_LANES + lane + part;
                float *to = l->p + lane * end + w / TILE_WORDS * TILE_FLOATS + part * TILE_WORDS +
                            w % TILE_WORDS;
                vf r[VL];
                for (int64_t i = 0; i < VL; i++)
                    r[i] = w + i < filled ? vf_load(from + i * ATTN_LANES) : vf_zero();
                vf_transpose(r);
                for (int64_t i = 0; i < VL; i++)
                    vf_store(to + i * TILE_WORDS, r[i]);
            }
}

/* out = out * alpha + P V for n_lanes lanes, after amx_turn_weights(). */
static void amx_values(const struct attn_job *job, const struct attn_local *l, int64_t lane0,
                       int n_lanes, int n_keys)
{
    const int64_t n = n_words(PAIRS, n_keys);
    float *sums = l->tmp; /* [2 * TILE_ROWS][NR] */
    for (int lane = 0; lane < n_lanes; lane += 2 * TILE_ROWS) {
        const int n_rows = (int)min64(2 * TILE_ROWS, n_lanes - lane);
        for (int64_t d = 0; d < job->width; d += NR) {
            amx_rows(n_rows, n, l->p + lane * n, l->v + d * AMX_KEY_WORDS, sums, NR, true);
            for (int i = 0; i < n_rows; i++) {
                float *out = l->out + (lane0 + lane + i) * job->width + d;
                const vf alpha = vf_set1(l->alpha[lane + i]);
                UNROLL
                for (int v = 0; v < NV; v++)
                    vf_store(out + v * VL,
                             vf_fma(vf_load(out + v * VL), alpha, vf_load(sums + i * NR + v * VL)));
            }
        }
    }
}

/* As vector_lane(), after amx_turn_weights(): the lane's whole tile is multiplied, because a
 * product of another shape has the same bits but needs another configuration. */
static void amx_lane(const struct attn_local *l, int lane, const float *panel, int n_keys,
                     vf out[NV])
{
    const int64_t n = n_words(PAIRS, n_keys);
    float sums[TILE_ROWS * NR];
    amx_one(n, l->p + lane / TILE_ROWS * TILE_ROWS * n, panel, sums, NR, true);
    for (int v = 0; v < NV; v++)
        out[v] = vf_load(sums + lane % TILE_ROWS * NR + v * VL);
}
#endif

/* ---- either ------------------------------------------------------------------------------- */

/* Scores of NR lanes, and the largest of all that are computed. */
INLINE void scores(enum mode mode, const struct attn_job *job, const struct attn_local *l,
                   int64_t lane0, int lane, int n_keys, vf largest[NV])
{
#if CTW_HAS_AMX
    if (mode == PAIRS) {
        amx_scores(job, l, lane0, lane, n_keys, largest);
        return;
    }
#endif
    score_panel(mode, job, l, lane0, lane, n_keys, largest);
}

/* Does the lane's query see the key of the tile? Called only if op->seen lists the keys that it
 * sees. */
INLINE bool lane_sees(const struct attn_job *job, const struct attn_local *l, int64_t lane, int key)
{
    int64_t query = min64(lane, l->n_lanes - 1) / job->group, p = l->key0 + key;
    return (l->seen[query * job->op->ld_seen + p / 32] >> p % 32 & 1) != 0;
}

/*
 * out = out * alpha + P V for one lane after another, if a value in the tile is not finite: values
 * that the lane does not see count as zero, so that 0 times infinity does not reach it.
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
                bool seen = (float)key >= l->low[lane] && (float)key <= l->high[lane] &&
                            (l->seen == NULL || lane_sees(job, l, lane0 + lane, key));
                for (int c = 0; !seen && c < NR; c++)
                    memset(bytes + (size_t)(key / per_word * NR + c) * sizeof(float) +
                               (size_t)(key % per_word) * part,
                           0, part);
            }
            vf sums[NV];
#if CTW_HAS_AMX
            if (mode == PAIRS)
                amx_lane(l, lane, kept, n_keys, sums);
            else
#endif
                vector_lane(mode, l, lane, kept, n_keys, sums);
            float *out = l->out + (lane0 + lane) * job->width + d;
            for (int c = 0; c < NV; c++)
                vf_store(out + c * VL,
                         vf_fma(vf_load(out + c * VL), vf_set1(l->alpha[lane]), sums[c]));
        }
    }
}

/* out = out * alpha + P V for n_lanes lanes of the tile. apart: see value_lanes_apart(). */
INLINE void weigh_values(enum mode mode, const struct attn_job *job, struct attn_local *l,
                         int64_t lane0, int n_lanes, int n_keys, bool apart)
{
#if CTW_HAS_AMX
    if (mode == PAIRS)
        amx_turn_weights(l, n_lanes, n_keys);
#endif
    if (apart) {
        value_lanes_apart(mode, job, l, lane0, n_lanes, n_keys);
        return;
    }
#if CTW_HAS_AMX
    if (mode == PAIRS) {
        amx_values(job, l, lane0, n_lanes, n_keys);
        return;
    }
#endif
    vector_values(mode, job, l, lane0, n_lanes, n_keys);
}

#endif
