/*
 * The tile operations of AMX-BF16. A tile is 16 rows of 16 32-bit words: sums in fp32, or pairs of
 * bf16. A thread configures its tiles before it uses them and releases them afterwards: then no
 * switch to another thread has to save them.
 *
 * tile_dot(c, a, b) is TDPBF16PS (Intel SDM, volume 2). For row m of a and column n of b:
 *
 *     even = odd = 0
 *     for k in 0..15:
 *         even = fma(a[m][k].low,  b[k][n].low,  even)
 *         odd  = fma(a[m][k].high, b[k][n].high, odd)
 *     c[m][n] = c[m][n] + (even + odd)
 *
 * Each step is rounded once, to nearest even. Subnormal operands count as zero, subnormal results
 * become zero, and MXCSR is neither read nor written.
 *
 * With CTW_AMX_EMULATED, the operations are exactly this, in C, for tests on processors without
 * AMX. They also stop the program if the tiles are not configured, or configured twice.
 */
#ifndef CTW_KERNELS_CPU_AMX_TILES_H
#define CTW_KERNELS_CPU_AMX_TILES_H

#include <immintrin.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { TILE_ROWS = 16, TILE_WORDS = 16, N_TILES = 8 };

#if CTW_AMX_EMULATED

enum {
    MXCSR_DAZ_FTZ = 0x8040,
    MXCSR_ALL_MASKED = 0x1f80 /* no exception traps; rounds to nearest even */
};

struct emulated_tiles {
    float tile[N_TILES][TILE_ROWS][TILE_WORDS];
    bool configured;
};

static _Thread_local struct emulated_tiles emulated;

static inline float (*emulated_tile(int t))[TILE_WORDS]
{
    if (!emulated.configured)
        __builtin_trap(); /* the processor: #UD */
    return emulated.tile[t];
}

static inline void tiles_configure(void)
{
    if (emulated.configured)
        __builtin_trap(); /* a task left its tiles behind */
    emulated.configured = true;
}

static inline void tiles_release(void)
{
    emulated_tile(0);
    emulated.configured = false;
}

static inline void tile_zero(int t)
{
    memset(emulated_tile(t), 0, sizeof(emulated.tile[t]));
}

static inline void tile_load(int t, const float *p, int64_t ld)
{
    float(*to)[TILE_WORDS] = emulated_tile(t);
    for (int i = 0; i < TILE_ROWS; i++)
        memcpy(to[i], p + i * ld, sizeof(to[i]));
}

static inline void tile_store(int t, float *p, int64_t ld)
{
    float(*from)[TILE_WORDS] = emulated_tile(t);
    for (int i = 0; i < TILE_ROWS; i++)
        memcpy(p + i * ld, from[i], sizeof(from[i]));
}

/* The halves of a pair of bf16. */
static inline float pair_low(float pair)
{
    uint32_t bits;
    memcpy(&bits, &pair, sizeof(bits));
    bits <<= 16;
    memcpy(&pair, &bits, sizeof(bits));
    return pair;
}

static inline float pair_high(float pair)
{
    uint32_t bits;
    memcpy(&bits, &pair, sizeof(bits));
    bits &= 0xffff0000u;
    memcpy(&pair, &bits, sizeof(bits));
    return pair;
}

/* Not inlined: arithmetic must not move across the writes of MXCSR in tile_dot(). */
static __attribute__((noinline)) void emulated_dot(float (*c)[TILE_WORDS], float (*a)[TILE_WORDS],
                                                   float (*b)[TILE_WORDS])
{
    float low[TILE_WORDS][TILE_WORDS], high[TILE_WORDS][TILE_WORDS]; /* of b */
    for (int k = 0; k < TILE_WORDS; k++)
        for (int n = 0; n < TILE_WORDS; n++) {
            low[k][n] = pair_low(b[k][n]);
            high[k][n] = pair_high(b[k][n]);
        }
    for (int m = 0; m < TILE_ROWS; m++) {
        float even[TILE_WORDS] = {0}, odd[TILE_WORDS] = {0};
        for (int k = 0; k < TILE_WORDS; k++)
            for (int n = 0; n < TILE_WORDS; n++) {
                even[n] = fmaf(pair_low(a[m][k]), low[k][n], even[n]);
                odd[n] = fmaf(pair_high(a[m][k]), high[k][n], odd[n]);
            }
        for (int n = 0; n < TILE_WORDS; n++)
            c[m][n] = c[m][n] + (even[n] + odd[n]);
    }
}

static inline void tile_dot(int c, int a, int b)
{
    const unsigned before = _mm_getcsr();
    _mm_setcsr(MXCSR_ALL_MASKED | MXCSR_DAZ_FTZ);
    emulated_dot(emulated_tile(c), emulated_tile(a), emulated_tile(b));
    _mm_setcsr(before);
}

#else

/* What LDTILECFG reads. */
struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

static inline void tiles_configure(void)
{
    enum { BYTES = 4 * TILE_WORDS };
    static const struct tile_config config = {
        .palette = 1,
        .row_bytes = {BYTES, BYTES, BYTES, BYTES, BYTES, BYTES, BYTES, BYTES},
        .rows = {TILE_ROWS, TILE_ROWS, TILE_ROWS, TILE_ROWS, TILE_ROWS, TILE_ROWS, TILE_ROWS,
                 TILE_ROWS},
    };
    _tile_loadconfig(&config);
}

static inline void tiles_release(void)
{
    _tile_release();
}

/* Macros, because a tile's number is part of the instruction: it must be a literal. gcc 12 does not
 * know that a load reads memory. */
#define tile_zero(t) _tile_zero(t)
#define tile_load(t, p, ld)                                                                        \
    do {                                                                                           \
        __asm__ volatile("" ::: "memory");                                                         \
        _tile_loadd(t, p, (ld) * (int64_t)sizeof(float));                                          \
    } while (0)
#define tile_store(t, p, ld) _tile_stored(t, p, (ld) * (int64_t)sizeof(float))
#define tile_dot(c, a, b) _tile_dpbf16ps(c, a, b)

#endif

#endif
