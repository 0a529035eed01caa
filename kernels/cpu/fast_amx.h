/*
 * Products in AMX's tiles, of pairs of bf16: two tiles of rows by one panel of NR columns, which is
 * two tiles wide. Every sum is one chain over k in steps of 2 * TILE_WORDS values, see tile_dot().
 * The chain goes on from memory where k is swept in parts, and depends on nothing else.
 */
#ifndef CTW_KERNELS_CPU_FAST_AMX_H
#define CTW_KERNELS_CPU_FAST_AMX_H

#if CTW_HAS_AMX
_Static_assert((int)NR == 2 * (int)TILE_WORDS, "a panel is two tiles wide");

enum { TILE_FLOATS = TILE_ROWS * TILE_WORDS };

/*
 * c (+)= a b for 2 * TILE_ROWS rows: `low` and `high` are packed tiles of n words
 * (pack_amx_rows()), b is [n][NR], c is [2 * TILE_ROWS][ldc]. Tiles 0 to 3 are sums, 4 and 5 rows,
 * 6 and 7 columns.
 */
INLINE void amx_two(int64_t n, const float *low, const float *high, const float *b, float *c,
                    int64_t ldc, bool first)
{
    float *c_high = c + TILE_ROWS * ldc;
    if (first) {
        tile_zero(0);
        tile_zero(1);
        tile_zero(2);
        tile_zero(3);
    } else {
        tile_load(0, c, ldc);
        tile_load(1, c + TILE_WORDS, ldc);
        tile_load(2, c_high, ldc);
        tile_load(3, c_high + TILE_WORDS, ldc);
    }
    for (int64_t w = 0; w < n; w += TILE_WORDS) {
        tile_load(4, low + w * TILE_ROWS, TILE_WORDS);
        tile_load(6, b + w * NR, NR);
        tile_dot(0, 4, 6);
        tile_load(7, b + w * NR + TILE_WORDS, NR);
        tile_dot(1, 4, 7);
        tile_load(5, high + w * TILE_ROWS, TILE_WORDS);
        tile_dot(2, 5, 6);
        tile_dot(3, 5, 7);
    }
    tile_store(0, c, ldc);
    tile_store(1, c + TILE_WORDS, ldc);
    tile_store(2, c_high, ldc);
    tile_store(3, c_high + TILE_WORDS, ldc);
}

/* The same for TILE_ROWS rows. */
INLINE void amx_one(int64_t n, const float *a, const float *b, float *c, int64_t ldc, bool first)
{
    if (first) {
        tile_zero(0);
        tile_zero(1);
    } else {
        tile_load(0, c, ldc);
        tile_load(1, c + TILE_WORDS, ldc);
    }
    for (int64_t w = 0; w < n; w += TILE_WORDS) {
        tile_load(4, a + w * TILE_ROWS, TILE_WORDS);
        tile_load(6, b + w * NR, NR);
        tile_dot(0, 4, 6);
        tile_load(7, b + w * NR + TILE_WORDS, NR);
        tile_dot(1, 4, 7);
    }
    tile_store(0, c, ldc);
    tile_store(1, c + TILE_WORDS, ldc);
}

/* The same for n_rows rows, rounded up to whole tiles, of n words each, whose tiles follow one
 * another. */
static void amx_rows(int64_t n_rows, int64_t n, const float *a, const float *b, float *c,
                     int64_t ldc, bool first)
{
    int64_t r = 0;
    for (; r + TILE_ROWS < n_rows; r += 2 * TILE_ROWS)
        amx_two(n, a + r * n, a + (r + TILE_ROWS) * n, b, c + r * ldc, ldc, first);
    if (r < n_rows)
        amx_one(n, a + r * n, b, c + r * ldc, ldc, first);
}
#endif

/* Is this mode multiplied by AMX? */
INLINE bool uses_amx(enum mode mode)
{
    return CTW_HAS_AMX && mode == PAIRS;
}

/* A task of products calls these when it begins and when it ends. */
INLINE void products_begin(enum mode mode)
{
#if CTW_HAS_AMX
    if (uses_amx(mode))
        tiles_configure();
#endif
    (void)mode;
}

INLINE void products_end(enum mode mode)
{
#if CTW_HAS_AMX
    if (uses_amx(mode))
        tiles_release();
#endif
    (void)mode;
}

#endif
