/*
 * Product tiles: the only place where matrices are multiplied. A tile is up to MR rows by NR
 * columns. Every element is one chain of multiply-adds in the order of k, from zero. The chain
 * depends on nothing else, so results do not depend on a row's or column's neighbours.
 */
#ifndef CTW_KERNELS_CPU_FAST_TILE_H
#define CTW_KERNELS_CPU_FAST_TILE_H

/*
 * acc[i][v] = sum over w < n of a[i * a_row + w * a_word] * b[w * NR + v * VL ..], in words.
 * n_rows, a_row, a_word and ahead are constants at every call. `ahead` > 0: prefetches a this many
 * words before use, including words that follow its n words.
 */
INLINE void tile_product(enum mode mode, vf acc[][NV], const int n_rows, int64_t n, const float *a,
                         const int a_row, const int a_word, const int ahead, const float *b)
{
    UNROLL
    for (int i = 0; i < n_rows; i++) {
        UNROLL
        for (int v = 0; v < NV; v++)
            acc[i][v] = vf_zero();
    }
    for (int64_t w = 0; w < n; w++) {
        vf bv[NV];
        if (ahead > 0) /* may be past the array's end */
            __builtin_prefetch((const void *)((uintptr_t)a + sizeof(float) * ahead * a_word));
        UNROLL
        for (int v = 0; v < NV; v++)
            bv[v] = vf_load(b + v * VL);
        UNROLL
        for (int i = 0; i < n_rows; i++) {
            vf ai = vf_set1(a[i * a_row]);
            UNROLL
            for (int v = 0; v < NV; v++) {
#if CTW_HAS_PAIRS
                if (mode == PAIRS)
                    acc[i][v] = vf_dot_pairs(acc[i][v], ai, bv[v]);
                else
#endif
                    acc[i][v] = vf_fma(ai, bv[v], acc[i][v]);
            }
        }
        a += a_word;
        b += NR;
    }
    (void)mode;
}

/* c (+)= a b for one tile of n_rows rows; a packed by MR. */
INLINE void tile_rows(enum mode mode, const int n_rows, int64_t n, const float *a, const float *b,
                      float *c, int64_t ldc, bool first)
{
    vf acc[MR][NV];
    tile_product(mode, acc, n_rows, n, a, 1, MR, AHEAD, b);
    if (!first) {
        UNROLL
        for (int i = 0; i < n_rows; i++) {
            UNROLL
            for (int v = 0; v < NV; v++)
                acc[i][v] = vf_add(vf_load(c + i * ldc + v * VL), acc[i][v]);
        }
    }
    UNROLL
    for (int i = 0; i < n_rows; i++) {
        UNROLL
        for (int v = 0; v < NV; v++)
            vf_store(c + i * ldc + v * VL, acc[i][v]);
    }
}

/*
 * The compiled tile heights: fewer rows save much if tokens are few. They are functions and not
 * inlined, because compilers merge inlined copies into one function with a variable number of rows
 * and keep its sums in memory.
 */
#define TILE(name, mode, n_rows)                                                                   \
    static __attribute__((noinline, aligned(64))) void name(                                       \
        int64_t n, const float *a, const float *b, float *c, int64_t ldc, bool first)              \
    {                                                                                              \
        tile_rows(mode, n_rows, n, a, b, c, ldc, first);                                           \
    }
TILE(tile_floats_full, FLOATS, MR)
TILE(tile_floats_half, FLOATS, MR / 2)
TILE(tile_floats_2, FLOATS, 2)
TILE(tile_floats_1, FLOATS, 1)
#if CTW_HAS_PAIRS
TILE(tile_pairs_full, PAIRS, MR)
TILE(tile_pairs_half, PAIRS, MR / 2)
TILE(tile_pairs_2, PAIRS, 2)
TILE(tile_pairs_1, PAIRS, 1)
#endif
#undef TILE

typedef void tile_fn(int64_t n, const float *a, const float *b, float *c, int64_t ldc, bool first);

/* The smallest compiled height with at least n_rows rows. */
INLINE tile_fn *tile_for(enum mode mode, int64_t n_rows)
{
    int size = n_rows > MR / 2 ? 0 : n_rows > 2 ? 1 : n_rows == 2 ? 2 : 3;
    static tile_fn *const floats[] = {tile_floats_full, tile_floats_half, tile_floats_2,
                                      tile_floats_1};
#if CTW_HAS_PAIRS
    static tile_fn *const pairs[] = {tile_pairs_full, tile_pairs_half, tile_pairs_2, tile_pairs_1};
    if (mode == PAIRS)
        return pairs[size];
#endif
    (void)mode;
    return floats[size];
}

/* The length of a sweep over kw words: equal parts of at most KC, multiples of 8. */
INLINE int64_t sweep_words(int64_t kw)
{
    return round_up(ceil_div(kw, ceil_div(kw, KC)), 8);
}

/*
 * Packed rows: sweep by sweep, and tile by tile within a sweep, [words of the sweep][MR] per tile.
 * A block thus reads each sweep sequentially, which is easy to prefetch.
 */
struct rows {
    float *words;
    int64_t n, kw; /* rows, rounded up to a multiple of MR, and words per row */
};

/* The tile at row r, a multiple of MR, in the sweep of n words from k0 on. */
INLINE float *rows_tile(const struct rows *a, int64_t r, int64_t k0, int64_t n)
{
    return a->words + k0 * a->n + r * n;
}

/*
 * c = a b for n_rows rows from row0 (a multiple of MR) on and n_panels panels of columns: c is
 * [n_rows rounded up to MR][n_panels * NR]. A sum over k is the sum, in order, of its sweeps' sums.
 */
static void block_product(enum mode mode, const struct rows *a, int64_t row0, int64_t n_rows,
                          const float *b, int64_t n_panels, float *c)
{
    const int64_t kw = a->kw;
    int64_t step = sweep_words(kw), ldc = n_panels * NR, last = (n_rows - 1) / MR * MR;
    tile_fn *full = tile_for(mode, MR), *rest = tile_for(mode, n_rows - last);
    for (int64_t k0 = 0; k0 < kw; k0 += step) {
        int64_t n = min64(step, kw - k0);
        for (int64_t p = 0; p < n_panels; p++) {
            const float *bp = b + (p * kw + k0) * NR, *ap = rows_tile(a, row0, k0, n);
            float *cp = c + p * NR;
            for (int64_t r = 0; r < last; r += MR)
                full(n, ap + r * n, bp, cp + r * ldc, ldc, k0 == 0);
            rest(n, ap + last * n, bp, cp + last * ldc, ldc, k0 == 0);
        }
    }
}

#endif
