/*
 * Product tiles of vectors: the only place where matrices are multiplied, but for AMX's
 * (fast_amx.h). A tile is up to MR rows by NR columns. Every element is one chain of multiply-adds
 * in the order of k, from zero. The chain depends on nothing else, so results do not depend on a
 * row's or column's neighbours.
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
#if CTW_HAS_PAIRS && !CTW_HAS_AMX
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
#if CTW_HAS_PAIRS && !CTW_HAS_AMX
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
#if CTW_HAS_PAIRS && !CTW_HAS_AMX
    static tile_fn *const pairs[] = {tile_pairs_full, tile_pairs_half, tile_pairs_2, tile_pairs_1};
    if (mode == PAIRS)
        return pairs[size];
#endif
    (void)mode;
    return floats[size];
}

#endif
