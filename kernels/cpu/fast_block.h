/*
 * Products of packed rows with panels of columns, block by block: rows are packed once, and a block
 * reads its words from the L2 cache.
 */
#ifndef CTW_KERNELS_CPU_FAST_BLOCK_H
#define CTW_KERNELS_CPU_FAST_BLOCK_H

/* The length of a sweep over kw words: equal parts of at most KC, multiples of 8, or of a tile. */
INLINE int64_t sweep_words(enum mode mode, int64_t kw)
{
    return round_up(ceil_div(kw, ceil_div(kw, KC)), uses_amx(mode) ? 16 : 8);
}

/*
 * Packed rows: sweep by sweep, and tile by tile within a sweep (pack_height()). A block thus reads
 * each sweep sequentially, which is easy to prefetch.
 */
struct rows {
    float *words;
    int64_t n, kw; /* rows, rounded up to a multiple of a tile's height, and words per row */
};

/* The tile at row r, a multiple of a tile's height, in the sweep of n words from k0 on. */
INLINE float *rows_tile(const struct rows *a, int64_t r, int64_t k0, int64_t n)
{
    return a->words + k0 * a->n + r * n;
}

/* c (+)= a b for n_rows rows of n words and one panel, in vectors. */
static void vector_rows(enum mode mode, int64_t n_rows, int64_t n, const float *a, const float *b,
                        float *c, int64_t ldc, bool first)
{
    const int64_t last = (n_rows - 1) / MR * MR;
    tile_fn *full = tile_for(mode, MR), *rest = tile_for(mode, n_rows - last);
    for (int64_t r = 0; r < last; r += MR)
        full(n, a + r * n, b, c + r * ldc, ldc, first);
    rest(n, a + last * n, b, c + last * ldc, ldc, first);
}

/*
 * c = a b for n_rows rows from row0 (a multiple of a tile's height) on and n_panels panels of
 * columns: c is [n_rows rounded up to whole tiles][n_panels * NR]. In vectors, a sum over k is the
 * sum, in order, of its sweeps' sums; in AMX's tiles, one chain over all sweeps.
 */
static void block_product(enum mode mode, const struct rows *a, int64_t row0, int64_t n_rows,
                          const float *b, int64_t n_panels, float *c)
{
    const int64_t kw = a->kw, step = sweep_words(mode, kw), ldc = n_panels * NR;
    for (int64_t k0 = 0; k0 < kw; k0 += step) {
        int64_t n = min64(step, kw - k0);
        for (int64_t p = 0; p < n_panels; p++) {
            const float *bp = b + (p * kw + k0) * NR, *ap = rows_tile(a, row0, k0, n);
#if CTW_HAS_AMX
            if (mode == PAIRS) {
                amx_rows(n_rows, n, ap, bp, c + p * NR, ldc, k0 == 0);
                continue;
            }
#endif
            vector_rows(mode, n_rows, n, ap, bp, c + p * NR, ldc, k0 == 0);
        }
    }
}

#endif
