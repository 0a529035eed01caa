/*
 * Shared by the tests of operations: a seeded generator, buffers between guard bytes, weights of
 * every format with random contents, and a loop over the variants that run on this machine.
 * CTW_TEST_SEED sets the seed, which is printed.
 */
#ifndef CTW_TESTS_OPS_H
#define CTW_TESTS_OPS_H

#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "kernels/cpu/cpu.h"

#define UNUSED_OK __attribute__((unused))

#ifndef CTW_NOT_SANITIZED /* names of CPU variants, between commas */
#define CTW_NOT_SANITIZED ""
#endif

/* The thread sanitizer makes these tests 50 times slower, and checks threads, not numbers: under
 * it, long loops over cases run only each THIN-th case; a prime, so that all types and forms
 * still occur. */
#ifdef __SANITIZE_THREAD__
enum { THIN = 7 };
#else
enum { THIN = 1 };
#endif

/* The longest loops, which call the same code again and again, are thinned under the address
 * sanitizer too; primes that leave no shape and no dtype out. COARSE: for shorter loops. */
#ifdef __SANITIZE_ADDRESS__
enum { SPARSE = 11, COARSE = 5 };
#else
enum { SPARSE = THIN, COARSE = THIN };
#endif

/* ---- random numbers ----------------------------------------------------------------------- */

static uint64_t rng_state;

UNUSED_OK static uint32_t rng(void)
{
    rng_state = rng_state * 6364136223846793005u + 1442695040888963407u;
    uint64_t x = rng_state ^ rng_state >> 29;
    return (uint32_t)((x * 0x9e3779b97f4a7c15u) >> 32);
}

/* 0 .. n-1 */
UNUSED_OK static int64_t rng_below(int64_t n)
{
    return (int64_t)(rng() % (uint64_t)n);
}

/* About normal, of variance 1. */
UNUSED_OK static float rng_normal(void)
{
    double sum = -6;
    for (int i = 0; i < 12; i++)
        sum += rng() * 0x1p-32;
    return (float)sum;
}

/* ---- buffers ------------------------------------------------------------------------------ */

enum { GUARD = 192, GUARD_BYTE = 0xa5 };

struct buf {
    uint8_t *base;
    void *p;
    size_t bytes;
};

/* `misalign` bytes past a multiple of 64. */
UNUSED_OK static struct buf buf_open(size_t bytes, size_t misalign)
{
    struct buf b = {.bytes = bytes};
    b.base = ctw_alloc_aligned(bytes + 2 * GUARD + 64);
    assert_non_null(b.base);
    memset(b.base, GUARD_BYTE, bytes + 2 * GUARD + 64);
    b.p = b.base + GUARD + misalign;
    return b;
}

UNUSED_OK static void buf_check(const struct buf *b)
{
    const uint8_t *p = b->p;
    for (int i = 1; i <= GUARD; i++) {
        if (p[-i] != GUARD_BYTE || p[b->bytes + (size_t)i - 1] != GUARD_BYTE)
            fail_msg("a byte %d outside a buffer of %zu was written", i, b->bytes);
    }
}

UNUSED_OK static void buf_close(struct buf *b)
{
    buf_check(b);
    ctw_free_aligned(b->base);
    b->base = NULL;
}

/* n elements of dtype, normal with deviation `scale`. */
UNUSED_OK static struct buf buf_random(enum ctw_dtype dtype, int64_t n, float scale,
                                       size_t misalign)
{
    struct buf b = buf_open((size_t)n * ctw_dtype_bytes(dtype), misalign);
    for (int64_t i = 0; i < n; i++)
        ctw_store_float(b.p, dtype, i, rng_normal() * scale);
    return b;
}

UNUSED_OK static struct buf buf_copy(const struct buf *from, size_t misalign)
{
    struct buf b = buf_open(from->bytes, misalign);
    memcpy(b.p, from->p, from->bytes);
    return b;
}

UNUSED_OK static void *element(const void *p, enum ctw_dtype dtype, int64_t i)
{
    return (char *)(uintptr_t)p + (size_t)i * ctw_dtype_bytes(dtype);
}

/* ---- errors ------------------------------------------------------------------------------- */

/* Half the distance between neighbours of dtype at |x|, the error of one rounding. */
UNUSED_OK static double half_step(enum ctw_dtype dtype, double x)
{
    int bits = dtype == CTW_F32 ? 24 : dtype == CTW_BF16 ? 8 : 11;
    int least = dtype == CTW_F16 ? -24 : dtype == CTW_BF16 ? -133 : -149;
    double step = ldexp(1, -bits) * fabs(x);
    return step > ldexp(1, least - 1) ? step : ldexp(1, least - 1);
}

/* got and want are equal within bound, or both not finite in the same way. */
UNUSED_OK static void near(double got, double want, double bound, const char *what, int64_t at)
{
    if (isnan(want) ? isnan(got) : isinf(want) ? got == want : fabs(got - want) <= bound)
        return;
    fail_msg("%s, element %" PRId64 ": %.9g, expected %.9g within %.3g", what, at, got, want,
             bound);
}

/* ---- weights ------------------------------------------------------------------------------ */

enum weight_kind {
    W_BF16,
    W_F16,
    W_F32,
    W_BF16_TRANSPOSED,
    W_F16_TRANSPOSED,
    W_F32_TRANSPOSED,
    W_INT4,      /* pack-quantized, group 32, bf16 scales; k must be a multiple of 32 */
    W_INT8_ZERO, /* pack-quantized, 8 bits, a scale and zero point for each row, fp16 scales */
    W_INT3,      /* pack-quantized, 3 bits, a scale for each row */
    W_NVFP4,     /* k must be a multiple of 16 */
    W_FP8,       /* float-quantized, blocks of 24 rows and 40 columns, bf16 scales */
    W_FP8_E8M0,  /* the same with exponents as scales */
    W_INT8,      /* int-quantized, a scale and zero point for each row, fp16 scales */
    W_MXFP4,     /* k must be a multiple of 32 */
    W_MXFP8,     /* likewise */
    W_GPTQ, /* of any bits, group, order and version, fp16 scales; k must be a multiple of 32 */
    W_AWQ,  /* likewise; the matrix has up to 7 more rows, so that they are whole words */
    N_WEIGHT_KINDS
};

struct test_weight {
    struct ctw_weight w;
    struct ctw_weight_data data;
    struct ctw_shard shard;
    struct buf part[CTW_N_PARTS];
    struct buf bias;
};

UNUSED_OK static bool weight_possible(enum weight_kind kind, int64_t k)
{
    if (kind == W_INT3) /* old and new files that cannot be told apart are refused */
        return k <= 10 || (3 * k + 31) / 32 != (k + 9) / 10;
    if (kind == W_FP8_E8M0 && (k + 39) / 40 == k / 32) /* the scales of one row are MXFP8's */
        return false;
    bool by_32 = kind == W_INT4 || kind >= W_MXFP4;
    return by_32 ? k % 32 == 0 : kind == W_NVFP4 ? k % 16 == 0 : true;
}

UNUSED_OK static void set_part(struct test_weight *t, enum ctw_part_kind kind, enum ctw_dtype dtype,
                               int64_t rows, int64_t cols)
{
    struct ctw_part *part = &t->w.part[kind];
    *part = (struct ctw_part){.dtype = dtype, .n_dims = 2, .shape = {rows, cols}};
    part->bytes = (size_t)(rows * cols) * ctw_dtype_bytes(dtype);
    /* Files guarantee no alignment; neither do these weights. */
    t->part[kind] = buf_open(part->bytes, (size_t)(1 + rng_below(13)));
    uint8_t *p = t->part[kind].p;
    bool is_scale = kind == CTW_PART_SCALE;
    if (dtype == CTW_BF16 || dtype == CTW_F16 || dtype == CTW_F32) {
        for (int64_t i = 0; i < rows * cols; i++)
            ctw_store_float(p, dtype, i,
                            is_scale ? 0.002f * (float)(1 + rng_below(64)) : rng_normal());
    } else {
        for (size_t i = 0; i < part->bytes; i++) /* E4M3 scales: 0.5 .. 15 */
            p[i] = (uint8_t)(is_scale ? 0x30 + rng_below(40) : rng_below(256));
    }
    t->data.part[kind] = p;
}

/* The kinds from W_FP8 on. FP8 codes have no NaN, which would hide all others. */
UNUSED_OK static void set_byte_parts(struct test_weight *t, enum weight_kind kind, int64_t n,
                                     int64_t k, struct ctw_quant_args *args)
{
    *args = (struct ctw_quant_args){.present = true,
                                    .num_bits = kind == W_MXFP4 ? 4 : 8,
                                    .is_float = kind != W_INT8,
                                    .symmetric = kind != W_INT8,
                                    .strategy = CTW_STRATEGY_CHANNEL};
    set_part(t, CTW_PART_VALUES,
             kind == W_INT8    ? CTW_I8
             : kind == W_MXFP4 ? CTW_U8
                               : CTW_F8_E4M3,
             n, kind == W_MXFP4 ? k / 2 : k);
    uint8_t *values = t->part[CTW_PART_VALUES].p;
    for (int64_t i = 0; i < n * k && args->is_float && kind != W_MXFP4; i++)
        values[i] = (values[i] & 0x7f) == 0x7f ? 0 : values[i];
    if (kind == W_FP8 || kind == W_FP8_E8M0) {
        args->strategy = CTW_STRATEGY_BLOCK;
        args->block_rows = 24;
        args->block_cols = 40;
        bool exponents = kind == W_FP8_E8M0;
        set_part(t, CTW_PART_SCALE, exponents ? CTW_F8_E8M0 : CTW_BF16, (n + 23) / 24,
                 (k + 39) / 40);
        uint8_t *scale = t->part[CTW_PART_SCALE].p;
        for (int64_t i = 0; i < (n + 23) / 24 * ((k + 39) / 40) && exponents; i++)
            scale[i] = (uint8_t)(118 + scale[i] % 8);
    } else if (kind == W_INT8) {
        set_part(t, CTW_PART_SCALE, CTW_F16, n, 1);
        set_part(t, CTW_PART_ZERO_POINT, CTW_I8, n, 1);
    } else {
        args->strategy = CTW_STRATEGY_GROUP;
        args->group_size = 32;
        set_part(t, CTW_PART_SCALE, CTW_U8, n, k / 32);
        uint8_t *scale = t->part[CTW_PART_SCALE].p;
        for (int64_t i = 0; i < n * k / 32; i++)
            scale[i] = (uint8_t)(120 + scale[i] % 8);
    }
}

/* GPTQ and AWQ. */
UNUSED_OK static void set_word_parts(struct test_weight *t, enum weight_kind kind, int64_t k,
                                     struct ctw_quant_args *args)
{
    static const int all_bits[] = {4, 2, 3, 8};
    const bool gptq = kind == W_GPTQ;
    const int bits = gptq ? all_bits[rng_below(4)] : 4;
    const int64_t group = rng_below(3) == 0 ? k : 16 << rng_below(2);
    *args = (struct ctw_quant_args){.present = true,
                                    .num_bits = bits,
                                    .strategy = CTW_STRATEGY_GROUP,
                                    .group_size = group,
                                    .zero_less_one = gptq && rng_below(2) == 0};
    t->w.names = ctw_part_names_find(gptq ? "gptq" : "awq");
    t->w.n = gptq ? t->w.n : (t->w.n + 7) / 8 * 8;
    set_part(t, CTW_PART_VALUES, CTW_I32, gptq ? k * bits / 32 : k, gptq ? t->w.n : t->w.n / 8);
    set_part(t, CTW_PART_SCALE, CTW_F16, k / group, t->w.n);
    set_part(t, CTW_PART_ZERO_POINT, CTW_I32, k / group, (t->w.n * bits + 31) / 32);
    if (!gptq || rng_below(3) != 0)
        return;
    set_part(t, CTW_PART_GROUP_INDEX, CTW_I32, k, 1); /* activation order */
    t->w.part[CTW_PART_GROUP_INDEX].n_dims = 1;
    for (int64_t c = 0; c < k; c++)
        memcpy((char *)t->part[CTW_PART_GROUP_INDEX].p + 4 * c,
               &(int32_t){(int32_t)rng_below(k / group)}, 4);
}

/* A weight [n, k] of the kind with random contents; bias 0 or 1. */
UNUSED_OK static void weight_open(struct test_weight *t, enum weight_kind kind, int64_t n,
                                  int64_t k, int bias)
{
    static const enum ctw_dtype dense[] = {CTW_BF16, CTW_F16, CTW_F32};
    struct ctw_quant_args args = {
        .present = true, .symmetric = true, .strategy = CTW_STRATEGY_CHANNEL};
    memset(t, 0, sizeof(*t));
    t->w.names = ctw_part_names_find("compressed-tensors");
    for (int i = 0; i < CTW_N_PARTS; i++)
        t->w.part[i].n_dims = -1;
    t->w.n = n;
    t->w.k = k;
    if (kind <= W_F32) {
        args.present = false;
        set_part(t, CTW_PART_VALUES, dense[kind], n, k);
    } else if (kind <= W_F32_TRANSPOSED) {
        args.present = false;
        set_part(t, CTW_PART_VALUES, dense[kind - W_BF16_TRANSPOSED], k, n);
        t->w.part[CTW_PART_VALUES].transposed = true;
    } else if (kind == W_NVFP4) {
        args = (struct ctw_quant_args){.present = true,
                                       .num_bits = 4,
                                       .is_float = true,
                                       .symmetric = true,
                                       .strategy = CTW_STRATEGY_TENSOR_GROUP,
                                       .group_size = 16};
        set_part(t, CTW_PART_VALUES, CTW_U8, n, k / 2);
        set_part(t, CTW_PART_SCALE, CTW_F8_E4M3, n, k / 16);
        set_part(t, CTW_PART_GLOBAL_SCALE, CTW_F32, 1, 1);
        t->w.part[CTW_PART_GLOBAL_SCALE].n_dims = 1;
        ctw_store_float(t->part[CTW_PART_GLOBAL_SCALE].p, CTW_F32, 0, 37.5f);
    } else if (kind >= W_GPTQ) {
        set_word_parts(t, kind, k, &args);
    } else if (kind >= W_FP8) {
        set_byte_parts(t, kind, n, k, &args);
    } else {
        args.num_bits = kind == W_INT4 ? 4 : kind == W_INT3 ? 3 : 8;
        args.symmetric = kind != W_INT8_ZERO;
        if (kind == W_INT4) {
            args.strategy = CTW_STRATEGY_GROUP;
            args.group_size = 32;
        }
        set_part(t, CTW_PART_VALUES, CTW_I32, n, (k * args.num_bits + 31) / 32);
        set_part(t, CTW_PART_SCALE, kind == W_INT8_ZERO ? CTW_F16 : CTW_BF16, n,
                 kind == W_INT4 ? k / 32 : 1);
        if (kind == W_INT8_ZERO)
            set_part(t, CTW_PART_ZERO_POINT, CTW_I32, (n * 8 + 31) / 32, 1);
    }
    struct ctw_err err;
    if (ctw_format_find(&t->w.format, t->w.names, t->w.part, &err) != CTW_OK ||
        t->w.format->check(&t->w, &args, NULL, &err) != CTW_OK)
        fail_msg("a weight of kind %d [%" PRId64 ", %" PRId64 "]: %s", (int)kind, n, k, err.msg);
    t->shard = ctw_shard_of(&t->w, &t->data);
    t->shard.n = n;
    if (bias) {
        t->shard.bias_dtype = (enum ctw_dtype)rng_below(3);
        t->bias = buf_random(t->shard.bias_dtype, n, 1, (size_t)rng_below(7));
        t->shard.bias = t->bias.p;
    }
}

/* The same, a third of the time as n rows of a taller matrix; its bias is that of the rows. */
UNUSED_OK static void weight_open_rows(struct test_weight *t, enum weight_kind kind, int64_t n,
                                       int64_t k, int bias)
{
    bool taller = rng_below(3) == 0;
    int64_t above = taller ? rng_below(40) : 0, below = taller ? rng_below(20) : 0;
    weight_open(t, kind, above + n + below, k, bias);
    t->shard.row0 = above;
    t->shard.n = n;
}

UNUSED_OK static void weight_close(struct test_weight *t);

/* Replaces the n weights of shards[0 .. n-1] by one in w[0] that has their rows one after another,
 * as a fused projection has. */
UNUSED_OK static void weights_fuse(struct test_weight *w, struct ctw_shard *shards, int n,
                                   int64_t k)
{
    static const enum weight_kind kinds[] = {
        W_BF16, W_BF16_TRANSPOSED, W_INT8_ZERO, W_FP8, W_NVFP4, W_GPTQ, W_AWQ};
    enum weight_kind kind;
    do
        kind = kinds[rng_below(CTW_COUNT(kinds))];
    while (!weight_possible(kind, k));
    int64_t total = 0;
    for (int i = 0; i < n; i++) {
        total += shards[i].n;
        weight_close(&w[i]);
        w[i] = (struct test_weight){0};
    }
    weight_open_rows(&w[0], kind, total, k, (int)rng_below(2));
    const struct test_weight *t = &w[0];
    int64_t row = t->shard.row0;
    for (int i = 0; i < n; i++) {
        struct ctw_shard s = t->shard;
        s.row0 = row;
        s.n = shards[i].n;
        if (s.bias != NULL)
            s.bias = (const char *)s.bias + (size_t)row * ctw_dtype_bytes(s.bias_dtype);
        shards[i] = s;
        row += s.n;
    }
}

UNUSED_OK static void weight_close(struct test_weight *t)
{
    for (int i = 0; i < CTW_N_PARTS; i++)
        if (t->part[i].base != NULL)
            buf_close(&t->part[i]);
    if (t->bias.base != NULL)
        buf_close(&t->bias);
}

/* A shard with n rows of a shard of a dense weight, and their bias, which refer to it. */
struct rows_part {
    struct ctw_weight w;
    struct ctw_weight_data data;
    struct ctw_shard shard;
};

UNUSED_OK static void rows_part_open(struct rows_part *part, const struct ctw_shard *of,
                                     int64_t row0, int64_t n)
{
    const char *values = of->data->part[CTW_PART_VALUES], *bias = of->bias;
    part->w = ctw_weight_rows(of->weight, n);
    part->data = (struct ctw_weight_data){
        .part = {values + (size_t)(of->row0 + row0) * of->weight->row_bytes}};
    part->shard = ctw_shard_of(&part->w, &part->data);
    part->shard.bias_dtype = of->bias_dtype;
    if (bias != NULL)
        part->shard.bias = bias + (size_t)row0 * ctw_dtype_bytes(of->bias_dtype);
}

/* Row `row` as products see it: decoded, rounded to dtype. */
UNUSED_OK static void weight_row(const struct test_weight *t, int64_t row, enum ctw_dtype dtype,
                                 float *out)
{
    t->w.format->decode(&t->w, &t->data, row, 0, t->w.k, out);
    for (int64_t i = 0; i < t->w.k; i++)
        out[i] = ctw_round_float(out[i], dtype);
}

/* ---- backends ----------------------------------------------------------------------------- */

static struct ctw_err last_err;

#define OK(call)                                                                                   \
    do {                                                                                           \
        if ((call) != CTW_OK)                                                                      \
            fail_msg("%s: %s", #call, last_err.msg);                                               \
    } while (0)

UNUSED_OK static struct ctw_backend *backend(const char *variant, int n_threads)
{
    struct ctw_backend *be;
    OK(ctw_backend_open(&be, "cpu",
                        &(struct ctw_backend_options){.variant = variant, .n_threads = n_threads},
                        &last_err));
    return be;
}

/* A variant that a build with a sanitizer compiles without it (kernels/CMakeLists.txt) is tested in
 * the other builds. */
static bool left_out(const char *variant)
{
    const char *at = CTW_NOT_SANITIZED;
    for (size_t n; *at != '\0'; at += n + (at[n] == ',')) {
        n = strcspn(at, ",");
        if (strncmp(at, variant, n) == 0 && variant[n] == '\0')
            return true;
    }
    return false;
}

/* Does the processor have what the variant needs? Asked once: a virtual machine answers slowly. */
static bool runs_here(int v)
{
    enum { NOT_ASKED, NO, YES, MOST_VARIANTS = 16 };
    static int answer[MOST_VARIANTS];
    if (answer[v] == NOT_ASKED)
        answer[v] = ctw_cpu_variants[v]->lacks() == NULL ? YES : NO;
    return answer[v] == YES;
}

/* The i-th fast variant that runs here; NULL past the last. */
UNUSED_OK static const char *fast_variant(int i)
{
    for (int v = 0; ctw_cpu_variants[v] != NULL; v++) {
        const char *name = ctw_cpu_variants[v]->name;
        if (runs_here(v) && strcmp(name, "c") != 0 && !left_out(name) && i-- == 0)
            return name;
    }
    return NULL;
}

/* The i-th fast variant that runs here, or the reference if no fast variant runs here. */
UNUSED_OK static const char *fast_variant_or_c(int i)
{
    const char *v = fast_variant(i);
    return v == NULL && i == 0 ? "c" : v;
}

/* The fast variants that this machine runs, then "c"; NULL: no more. */
UNUSED_OK static const char *any_variant(int i)
{
    const char *v = fast_variant(i);
    return v == NULL && (i == 0 || fast_variant(i - 1) != NULL) ? "c" : v;
}

/* Seeds the generator and prints what is tested; for a group's setup. */
UNUSED_OK static int ops_setup(void **state)
{
    (void)state;
    const char *seed = getenv("CTW_TEST_SEED");
    rng_state = seed != NULL ? strtoull(seed, NULL, 0) : 1;
    printf("CTW_TEST_SEED=%" PRIu64 "; variants:", rng_state);
    for (int v = 0; ctw_cpu_variants[v] != NULL; v++)
        printf(" %s%s", ctw_cpu_variants[v]->name,
               !runs_here(v)                         ? " (skipped: not on this processor)"
               : left_out(ctw_cpu_variants[v]->name) ? " (skipped: compiled without sanitizer)"
                                                     : "");
    printf("\n");
    for (int i = 0; i < 8; i++)
        rng();
    return 0;
}

#endif
