/*
 * Loading of rows of activations and weights into registers: widened, narrowed, and, of weights,
 * packed into the layout of columns that products read. Layouts hold 32-bit words: a float, or (in
 * pair mode) two bf16 neighbours in k. A row of k values is therefore n_words(k) words long.
 */
#ifndef CTW_KERNELS_CPU_FAST_ROWS_H
#define CTW_KERNELS_CPU_FAST_ROWS_H

#include <string.h>

#include "kernels/formats/all.h"

enum mode {
    FLOATS, /* words are fp32, products fp32 FMA */
    PAIRS   /* words are pairs of bf16 */
};

enum {
    SPAN = CTW_DECODE_ALIGN, /* values handled at a time */
    FETCH_COLUMNS = 16,      /* columns of a transposed weight that are prefetched */
    COLUMNS = 32             /* of gptq and awq weights that are decoded at a time */
};

#if CTW_HAS_AMX
_Static_assert((int)TILE_WORDS % (int)VL == 0, "a tile's row is whole vectors");
_Static_assert(2 * (int)TILE_WORDS == (int)COLUMNS, "columns are whole tiles");
#endif

INLINE int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

INLINE int64_t max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

INLINE int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

INLINE int64_t round_up(int64_t a, int64_t b)
{
    return ceil_div(a, b) * b;
}

INLINE enum mode mode_of(enum ctw_dtype dtype)
{
    return CTW_HAS_PAIRS && dtype == CTW_BF16 ? PAIRS : FLOATS;
}

/* The words that k values fill. */
INLINE int64_t filled_words(enum mode mode, int64_t k)
{
    return mode == PAIRS ? (k + 1) / 2 : k;
}

/* The words that products read of them: with AMX, whole tiles. The rest of the words is zero. */
INLINE int64_t n_words(enum mode mode, int64_t k)
{
#if CTW_HAS_AMX
    if (mode == PAIRS)
        return round_up(filled_words(mode, k), TILE_WORDS);
#endif
    return filled_words(mode, k);
}

/* Rows of a multiple of so many values are whole vectors of words, or whole tiles. */
INLINE int64_t whole_values(enum mode mode)
{
#if CTW_HAS_AMX
    if (mode == PAIRS)
        return 2 * TILE_WORDS;
#endif
    return mode == PAIRS ? 2 * VL : VL;
}

/* Prefetches element i of an array into L2; the element may be past the end. */
INLINE void fetch_l2(const float *p, int64_t i)
{
    __builtin_prefetch((const void *)((uintptr_t)p + (uintptr_t)i * sizeof(*p)), 0, 2);
}

/* Element i of an array of dtype. */
INLINE void *at(const void *p, enum ctw_dtype dtype, int64_t i)
{
    return (char *)(uintptr_t)p + (size_t)i * ctw_dtype_bytes(dtype);
}

/* dst[i] = src[i], exactly. */
static void widen(float *dst, const void *src, enum ctw_dtype dtype, int64_t n)
{
    int64_t i = 0;
    if (dtype == CTW_F32) {
        memcpy(dst, src, (size_t)n * sizeof(*dst));
        return;
    }
    if (dtype == CTW_BF16) {
        for (; i + VL <= n; i += VL)
            vf_store(dst + i, vf_load_bf16((const uint16_t *)src + i));
    } else {
        for (; i + VL <= n; i += VL)
            vf_store(dst + i, vf_load_f16((const uint16_t *)src + i));
    }
    for (; i < n; i++)
        dst[i] = ctw_load_float(src, dtype, i);
}

/* dst[i] = src[i], rounded once. */
static void narrow(void *dst, enum ctw_dtype dtype, const float *src, int64_t n)
{
    int64_t i = 0;
    if (dtype == CTW_F32) {
        memcpy(dst, src, (size_t)n * sizeof(*src));
        return;
    }
    if (dtype == CTW_BF16) {
        for (; i + VL <= n; i += VL)
            vf_store_bf16((uint16_t *)dst + i, vf_load(src + i));
    } else {
        for (; i + VL <= n; i += VL)
            vf_store_f16((uint16_t *)dst + i, vf_load(src + i));
    }
    for (; i < n; i++)
        ctw_store_float(dst, dtype, i, src[i]);
}

/* n values of dtype as words; the rest of the last word, up to a whole vector, is zero. */
static void to_words(enum mode mode, float *words, const void *src, enum ctw_dtype dtype, int64_t n)
{
    int64_t filled = filled_words(mode, n), end = round_up(n_words(mode, n), VL);
    memset(words + filled - 1, 0, (size_t)(end - filled + 1) * sizeof(*words));
    if (mode == PAIRS)
        memcpy(words, src, (size_t)n * 2); /* bf16, two per word */
    else
        widen(words, src, dtype, n);
}

/* VL words from element i of an array on: floats, or 16-bit values widened. */
INLINE vf load_words(const void *p, const enum ctw_dtype dtype, int64_t i)
{
    return dtype == CTW_BF16  ? vf_load_bf16((const uint16_t *)p + i)
           : dtype == CTW_F16 ? vf_load_f16((const uint16_t *)p + i)
                              : vf_load((const float *)p + i);
}

/*
 * Columns for a product: dst[word * NR + r] = rows[r][word] for n_words words. The rows are
 * `stride` elements apart and readable up to a multiple of VL words. dtype is a constant: CTW_F32
 * for words that need no conversion.
 */
INLINE void pack_columns_of(const enum ctw_dtype dtype, float *dst, const void *rows,
                            int64_t stride, int64_t n_words)
{
    for (int64_t w = 0; w < n_words; w += VL) {
        int n = (int)min64(VL, n_words - w);
        for (int v = 0; v < NV; v++) {
            vf r[VL];
            for (int i = 0; i < VL; i++)
                r[i] = load_words(rows, dtype, (v * VL + i) * stride + w);
            vf_transpose(r);
            if (n == VL) {
                for (int i = 0; i < VL; i++)
                    vf_store(dst + (w + i) * NR + v * VL, r[i]);
            } else {
                for (int i = 0; i < n; i++)
                    vf_store(dst + (w + i) * NR + v * VL, r[i]);
            }
        }
    }
}

static void pack_columns(float *dst, const float *rows, int64_t stride, int64_t n_words)
{
    pack_columns_of(CTW_F32, dst, rows, stride, n_words);
}

/* ---- weights ------------------------------------------------------------------------------ */

/* Is the weight stored as words of this mode, or as values that only need widening? */
INLINE bool stored_ready(enum mode mode, const struct ctw_weight *w, enum ctw_dtype dtype)
{
    return w->format->id == CTW_FORMAT_dense &&
           (w->dtype == dtype || (mode == FLOATS && dtype == CTW_F32));
}

/* Packs the first n columns of NR rows, `row` and every step-th after it, directly from the weight;
 * n and k are whole vectors and whole words. */
static void pack_stored(enum mode mode, float *dst, const struct ctw_shard *s, int64_t row,
                        int64_t n)
{
    const struct ctw_weight *w = s->weight;
    const void *rows = at(s->data->part[CTW_PART_VALUES], w->dtype, row * w->k);
    const int64_t stride = w->k * ctw_shard_step(s);
    if (mode == PAIRS)
        pack_columns(dst, rows, stride / 2, n / 2);
    else if (w->dtype == CTW_BF16)
        pack_columns_of(CTW_BF16, dst, rows, stride, n);
    else if (w->dtype == CTW_F16)
        pack_columns_of(CTW_F16, dst, rows, stride, n);
    else
        pack_columns(dst, rows, stride, n);
}

/*
 * Packs n_rows <= NR rows, `row` and every step-th after it, of a dense_transposed weight: they are
 * stored side by side, column after column, as the panel needs them.
 */
static void pack_transposed(enum mode mode, float *dst, const struct ctw_shard *s, int64_t row,
                            int64_t n_rows, enum ctw_dtype dtype)
{
    const struct ctw_weight *w = s->weight;
    const int64_t step = ctw_shard_step(s);
    const bool ready = mode == FLOATS && (dtype == CTW_F32 || dtype == w->dtype);
    const size_t ahead = (size_t)(FETCH_COLUMNS * w->n) * w->row_bytes;
    float values[NR];
    uint16_t half[NR];
    if (n_rows < NR || (mode == PAIRS && 2 * n_words(mode, w->k) != w->k))
        memset(dst, 0, (size_t)(n_words(mode, w->k) * NR) * sizeof(*dst));
    for (int64_t c = 0; c < w->k; c++) {
        const void *src = at(s->data->part[CTW_PART_VALUES], w->dtype, c * w->n + row);
        float *to = dst + c / (mode == PAIRS ? 2 : 1) * NR;
        __builtin_prefetch((const void *)((uintptr_t)src + ahead)); /* may be past the end */
        float *wide = ready ? to : values;
        if (step == 1)
            widen(wide, src, w->dtype, n_rows);
        for (int64_t r = 0; step > 1 && r < n_rows; r++)
            wide[r] = ctw_load_float(src, w->dtype, r * step);
        if (ready)
            continue;
        narrow(half, dtype, values, n_rows);
        if (mode == FLOATS)
            widen(to, half, dtype, n_rows);
        for (int64_t r = 0; r < n_rows && mode == PAIRS; r++)
            memcpy((uint16_t *)(to + r) + c % 2, &half[r], sizeof(half[r]));
    }
}

/* Can whole columns of n_rows neighbouring rows be decoded together? */
static bool has_columns(const struct ctw_shard *s, int64_t row, int64_t n_rows)
{
    const struct ctw_weight *w = s->weight;
    if (ctw_shard_step(s) != 1 || n_rows % 8 != 0)
        return false;
    return w->format->id == CTW_FORMAT_awq ? row % 8 == 0
                                           : w->format->id == CTW_FORMAT_gptq && 32 % w->bits == 0;
}

/* n columns of the rows from col0 on (a multiple of COLUMNS); dtype is w->dtype, a constant. */
INLINE void decode_columns(const struct ctw_shard *s, int64_t row, int64_t n_rows, int64_t col0,
                           int64_t n, const enum ctw_dtype dtype, float *dst)
{
    const struct ctw_weight *w = s->weight;
    if (w->format->id == CTW_FORMAT_awq)
        ctw_awq_columns(w, s->data, row, (int)n_rows, col0, n, dtype, dst, NR);
    else if (w->bits == 4)
        ctw_gptq_columns(w, s->data, row, (int)n_rows, col0, n, 4, dtype, dst, NR);
    else
        ctw_gptq_columns(w, s->data, row, (int)n_rows, col0, n, w->bits, dtype, dst, NR);
}

/* Packs n_rows <= NR rows of words that lie along the rows (has_columns()). */
static void pack_along(enum mode mode, float *dst, const struct ctw_shard *s, int64_t row,
                       int64_t n_rows, enum ctw_dtype dtype)
{
    const struct ctw_weight *w = s->weight;
    float values[COLUMNS * NR] = {0};
    uint16_t half[COLUMNS * NR];
    for (int64_t c = 0; c < w->k; c += COLUMNS) {
        const int64_t n = min64(COLUMNS, w->k - c);
        const int64_t end = mode == PAIRS ? 2 * n_words(mode, n) : n; /* of the last word */
        float *to = dst + n_words(mode, c) * NR;
        memset(values + n * NR, 0, (size_t)((end - n) * NR) * sizeof(*values));
        if (w->dtype == CTW_F16)
            decode_columns(s, row, n_rows, c, n, CTW_F16, values);
        else if (w->dtype == CTW_BF16)
            decode_columns(s, row, n_rows, c, n, CTW_BF16, values);
        else
            decode_columns(s, row, n_rows, c, n, CTW_F32, values);
        if (mode == FLOATS && (dtype == CTW_F32 || dtype == w->dtype)) {
            memcpy(to, values, (size_t)(n * NR) * sizeof(*to));
            continue;
        }
        narrow(half, dtype, values, end * NR);
        if (mode == FLOATS)
            widen(to, half, dtype, n * NR);
        for (int64_t i = 0; i < end && mode == PAIRS; i += 2)
            for (int64_t r = 0; r < NR; r++) {
                uint32_t both = half[i * NR + r] | (uint32_t)half[(i + 1) * NR + r] << 16;
                memcpy(to + i / 2 * NR + r, &both, sizeof(both));
            }
    }
}

/* Row `row`, columns col0 .. col0+n-1, as words of the activations' dtype; n <= SPAN. */
static void weight_words(enum mode mode, float *words, const struct ctw_shard *s, int64_t row,
                         int64_t col0, int64_t n, enum ctw_dtype dtype)
{
    const struct ctw_weight *w = s->weight;
    float tmp[SPAN];
    float *values = mode == PAIRS ? tmp : words;
    if (mode == PAIRS && stored_ready(mode, w, dtype)) {
        const char *stored = s->data->part[CTW_PART_VALUES];
        to_words(PAIRS, words, stored + 2 * (row * w->k + col0), CTW_BF16, n);
        return;
    }
    DECODERS[w->format->id](w, s->data, row, col0, n, values);
    if (mode == PAIRS) {
        for (int64_t i = filled_words(mode, n) - 1; i < round_up(n_words(mode, n), VL); i++)
            words[i] = 0;
        narrow(words, CTW_BF16, values, n);
        return;
    }
    if (dtype != CTW_F32 && dtype != w->dtype) {
        uint16_t half[SPAN];
        narrow(half, dtype, values, n);
        widen(values, half, dtype, n);
    }
    for (int64_t i = n; i < round_up(n, VL); i++)
        words[i] = 0;
}

/*
 * Decodes one panel: rows row0 .. row0+n_rows-1 of the concatenated shards, at most NR, into dst
 * [words of k][NR]; missing rows are zero. tmp: NR * SPAN floats.
 */
static void decode_panel(enum mode mode, float *dst, float *tmp, const struct ctw_shard *shards,
                         int64_t row0, int64_t n_rows, enum ctw_dtype dtype)
{
    int64_t k = shards[0].weight->k;
    const struct ctw_shard *shard[NR];
    int64_t row[NR];
    for (int r = 0; r < n_rows; r++) {
        shard[r] = shards;
        row[r] = row0 + r;
        while (row[r] >= shard[r]->n)
            row[r] -= shard[r]++->n;
        row[r] = shard[r]->row0 + row[r] * ctw_shard_step(shard[r]);
    }
    if (shard[n_rows - 1] == shard[0] &&
        shard[0]->weight->format->id == CTW_FORMAT_dense_transposed &&
        shard[0]->weight->rows_of_head == shard[0]->weight->n) {
        pack_transposed(mode, dst, shard[0], row[0], n_rows, dtype);
        return;
    }
    if (shard[n_rows - 1] == shard[0] && has_columns(shard[0], row[0], n_rows)) {
        pack_along(mode, dst, shard[0], row[0], n_rows, dtype);
        return;
    }
    memset(tmp + n_rows * SPAN, 0, (size_t)(NR - n_rows) * SPAN * sizeof(*tmp));
    int64_t c = 0;
    if (n_rows == NR && shard[NR - 1] == shard[0] && k % 2 == 0 &&
        stored_ready(mode, shard[0]->weight, dtype)) {
        c = k % (mode == PAIRS ? whole_values(mode) : 2 * VL) == 0 ? k : k / SPAN * SPAN;
        pack_stored(mode, dst, shard[0], row[0], c);
    }
    for (; c < k; c += SPAN) {
        int64_t n = min64(SPAN, k - c);
        for (int r = 0; r < n_rows; r++)
            weight_words(mode, tmp + r * SPAN, shard[r], row[r], c, n, dtype);
        pack_columns(dst + n_words(mode, c) * NR, tmp, SPAN, n_words(mode, n));
    }
}

#endif
