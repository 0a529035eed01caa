/*
 * The packing of rows of activations for products: each row's words side by side with those of the
 * other rows of a product tile, or, for AMX, in tiles.
 */
#ifndef CTW_KERNELS_CPU_FAST_PACK_H
#define CTW_KERNELS_CPU_FAST_PACK_H

/*
 * Rows for a product: dst[word * n_rows + r] = rows[r][word], n_rows <= VL. Whole vectors are
 * stored, each overwriting what the previous one left beyond its n_rows words; the last store is
 * partial. `next`: the rows that are packed next.
 */
INLINE void pack_rows(float *dst, const float *rows, int64_t stride, const int n_rows,
                      int64_t n_words, const bool next)
{
    for (int64_t w = 0; w < n_words; w += VL) {
        int n = (int)min64(VL, n_words - w);
        vf r[VL];
        if (next) {
            UNROLL
            for (int i = 0; i < n_rows; i++)
                fetch_l2(rows, (n_rows + i) * stride + w);
        }
        for (int i = 0; i < VL; i++)
            r[i] = i < n_rows ? vf_load(rows + i * stride + w) : vf_zero();
        vf_transpose(r);
        for (int i = 0; i < n; i++) {
            float *to = dst + (w + i) * n_rows;
            if (i + 1 < n)
                vf_store(to, r[i]);
            else
                vf_store_n(to, r[i], n_rows);
        }
    }
}

#if CTW_HAS_AMX
/* TILE_ROWS rows as tiles, which lie one after another: dst[word / TILE_WORDS][r][word %
 * TILE_WORDS] = rows[r][word] for n_words words, whole tiles. */
INLINE void pack_amx_rows(float *dst, const float *rows, int64_t stride, int64_t n_words,
                          const bool next)
{
    for (int64_t w = 0; w < n_words; w += TILE_WORDS) {
        UNROLL
        for (int i = 0; i < TILE_ROWS; i++) {
            if (next)
                fetch_l2(rows, (TILE_ROWS + i) * stride + w);
            for (int v = 0; v < TILE_WORDS; v += VL)
                vf_store(dst + w * TILE_ROWS + i * TILE_WORDS + v,
                         vf_load(rows + i * stride + w + v));
        }
    }
}
#endif

enum {
#if CTW_HAS_AMX
    MOST_ROWS = TILE_ROWS, /* of a packed tile of any mode */
#else
    MOST_ROWS = MR,
#endif
};

/* Rows of a packed tile. */
INLINE int tile_height(enum mode mode)
{
#if CTW_HAS_AMX
    if (mode == PAIRS)
        return TILE_ROWS;
#endif
    (void)mode;
    return MR;
}

/* tile_height() rows in the layout of the mode. */
INLINE void pack_height(enum mode mode, float *dst, const float *rows, int64_t stride,
                        int64_t n_words, const bool next)
{
#if CTW_HAS_AMX
    if (mode == PAIRS) {
        pack_amx_rows(dst, rows, stride, n_words, next);
        return;
    }
#endif
    (void)mode;
    pack_rows(dst, rows, stride, MR, n_words, next);
}

/* Packs n_rows rows of x, `ld` elements apart, at most a tile's, into dst; missing rows are zero.
 * tmp: MOST_ROWS * SPAN floats. Rows that are already words are read in place. */
static void pack_tile(enum mode mode, float *dst, float *tmp, const void *x, enum ctw_dtype dtype,
                      int64_t ld, int64_t n_rows, int64_t k)
{
    const int64_t per_word = mode == PAIRS ? 2 : 1;
    const int height = tile_height(mode);
    bool words = n_rows == height && (mode == PAIRS || dtype == CTW_F32) && ld % per_word == 0;
    memset(tmp + n_rows * SPAN, 0, (size_t)(height - n_rows) * SPAN * sizeof(*tmp));
    for (int64_t c = 0; c < k; c += SPAN) {
        int64_t n = min64(SPAN, k - c);
        float *to = dst + n_words(mode, c) * height;
        if (words && n % whole_values(mode) == 0) {
            pack_height(mode, to, at(x, dtype, c), ld / per_word, n / per_word, true);
            continue;
        }
        for (int r = 0; r < n_rows; r++)
            to_words(mode, tmp + r * SPAN, at(x, dtype, r * ld + c), dtype, n);
        pack_height(mode, to, tmp, SPAN, n_words(mode, n), false);
    }
}

/* n values of a row times its weight, rounded to dtype, as words. n <= SPAN */
static void weighted_words(enum mode mode, float *words, const void *row, float weight,
                           enum ctw_dtype dtype, int64_t n)
{
    float values[SPAN];
    widen(values, row, dtype, n);
    for (int64_t i = 0; i < n; i++)
        values[i] *= weight;
    if (dtype != CTW_F32) {
        uint16_t half[SPAN];
        narrow(half, dtype, values, n);
        to_words(mode, words, half, dtype, n);
    } else {
        to_words(mode, words, values, dtype, n);
    }
}

/* The same for rows[0 .. n_rows-1] of x, from column col on; each times its weight, unless `weight`
 * is NULL. */
static void pack_gathered(enum mode mode, float *dst, float *tmp, const void *x,
                          enum ctw_dtype dtype, int64_t ld, int64_t col, const int32_t *rows,
                          const float *weight, int64_t n_rows, int64_t k)
{
    const int height = tile_height(mode);
    memset(tmp + n_rows * SPAN, 0, (size_t)(height - n_rows) * SPAN * sizeof(*tmp));
    for (int64_t c = 0; c < k; c += SPAN) {
        int64_t n = min64(SPAN, k - c);
        for (int r = 0; r < n_rows; r++) {
            const void *from = at(x, dtype, rows[r] * ld + col + c);
            if (weight != NULL)
                weighted_words(mode, tmp + r * SPAN, from, weight[r], dtype, n);
            else
                to_words(mode, tmp + r * SPAN, from, dtype, n);
        }
        pack_height(mode, dst + n_words(mode, c) * height, tmp, SPAN, n_words(mode, n), false);
    }
}

#endif
