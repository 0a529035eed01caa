/*
 * Part of test_elementwise.cu: helpers (buffers between guard bytes, random numbers, checks), and
 * weights of every format with random contents, on the host and on the device.
 */
#ifndef CTW_TESTS_GPU_WEIGHTS_H
#define CTW_TESTS_GPU_WEIGHTS_H

#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern "C" {
#include "kernels/formats/format.h"
#include "kernels/formats/ggml/ggml_types.h"
}
#include "kernels/cuda/cuda.h"

static int n_failed, n_checks;
static struct ctw_err last_err;

static void must(cudaError_t e, const char *what)
{
    if (e != cudaSuccess) {
        printf("FAILED %s: %s\n", what, cudaGetErrorString(e));
        exit(1);
    }
}

#define OK(call)                                                                                   \
    do {                                                                                           \
        if ((call) != CTW_OK) {                                                                    \
            printf("FAILED %s: %s\n", #call, last_err.msg);                                        \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

/* Prints one line, and counts it. */
static void report(bool ok, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    printf("%s ", ok ? "ok    " : "FAILED");
    vprintf(fmt, ap);
    printf("\n");
    va_end(ap);
    n_checks++;
    n_failed += !ok;
}

/* ---- random numbers ----------------------------------------------------------------------- */

static uint64_t rng_state = 1;

static uint32_t rng(void)
{
    rng_state = rng_state * 6364136223846793005u + 1442695040888963407u;
    uint64_t x = rng_state ^ rng_state >> 29;
    return (uint32_t)((x * 0x9e3779b97f4a7c15u) >> 32);
}

static float rng_normal(void)
{
    float sum = 0;
    for (int i = 0; i < 4; i++)
        sum += (float)(rng() >> 8) * 0x1p-24f - 0.5f;
    return sum * 1.7320508f;
}

/* ---- buffers ------------------------------------------------------------------------------ */

enum { GUARD = 1024, POISON = 0xa5 };

/* Device memory whose bytes, and those around it, are POISON. `misalign` bytes past a multiple of
 * 256.
 */
struct buf {
    char *base, *p;
    size_t bytes;
};

static struct buf buf_open(size_t bytes, size_t misalign)
{
    struct buf b;
    b.bytes = bytes;
    must(cudaMalloc((void **)&b.base, bytes + 2 * GUARD + 64), "cudaMalloc");
    must(cudaMemset(b.base, POISON, bytes + 2 * GUARD + 64), "cudaMemset");
    must(cudaDeviceSynchronize(), "cudaMemset");
    b.p = b.base + GUARD + misalign;
    return b;
}

static struct buf buf_from(const void *host, size_t bytes, size_t misalign)
{
    struct buf b = buf_open(bytes, misalign);
    must(cudaMemcpy(b.p, host, bytes, cudaMemcpyHostToDevice), "upload");
    must(cudaDeviceSynchronize(), "upload"); /* the stream under test does not wait for it */
    return b;
}

/* Waits for the device; returns its content in memory from malloc(). */
static void *buf_read(const struct buf *b)
{
    void *host = malloc(b->bytes + 1);
    must(cudaDeviceSynchronize(), "running");
    must(cudaMemcpy(host, b->p, b->bytes, cudaMemcpyDeviceToHost), "download");
    return host;
}

static bool guards_whole(const struct buf *b)
{
    size_t all = b->bytes + 2 * GUARD + 64, bad = 0, from = (size_t)(b->p - b->base);
    uint8_t *host = (uint8_t *)malloc(all);
    must(cudaDeviceSynchronize(), "running");
    must(cudaMemcpy(host, b->base, all, cudaMemcpyDeviceToHost), "download");
    for (size_t i = 0; i < all; i++)
        bad += (i < from || i >= from + b->bytes) && host[i] != POISON;
    free(host);
    return bad == 0;
}

static void buf_close(struct buf *b)
{
    must(cudaFree(b->base), "cudaFree");
    b->base = NULL;
}

/* n elements of dtype on the host, normal with deviation `scale`. */
static void *host_random(enum ctw_dtype dtype, int64_t n, float scale)
{
    void *p = malloc((size_t)n * ctw_dtype_bytes(dtype) + 1);
    for (int64_t i = 0; i < n; i++)
        ctw_store_float(p, dtype, i, rng_normal() * scale);
    return p;
}

/* ---- weights ------------------------------------------------------------------------------ */

/* clang-format off */
enum format {
    DENSE, TRANSPOSED, PACK, NVFP4, NVFP4_MODELOPT, MODELOPT_AWQ, FLOAT8, INT8, MXFP8, MXFP6, MXFP4, GPTQ,
    AWQ, GGML, MLX, NVFP4_MLX, BNB, EXL3
};
/* clang-format on */
/* Any bytes, including bytes that are not valid codes, because no check refuses them. */
enum zeros { NO_ZEROS, PACKED_ZEROS, INT8_ZEROS };

struct kind {
    const char *name;
    enum format format;
    int bits;             /* GGML: the id of the type; EXL3: twice the bits */
    enum ctw_dtype dtype; /* of values, or of scales; NVFP4: of its global scale. U8 and F8_E8M0:
                             exponents; BNB, U8: scales that are codes, of BF16 values; EXL3, I16:
                             packed signs as scales */
    int group; /* 0: a row; -1: the whole matrix; below: blocks of -group rows and columns.
                  NVFP4: about its global scale (0: none), or the inverse of its factor. GGML: rows
                  of a head in RoPE's order; EXL3: the codebook */
    enum zeros zeros;
    bool indexed, whole; /* activation order; whole codes in each word; of NVFP4_MODELOPT: scales
                            of 32 columns; BNB, indexed: FP4 */
    int misalign;        /* bytes; below 0: of all parts but the values */
    int64_t n, k;
};

struct made {
    struct ctw_weight w;
    struct ctw_weight_data host, device;
    struct ctw_shard shard;
    struct buf part[CTW_N_PARTS];
};

static uint8_t *add_part(struct made *m, enum ctw_part_kind kind, enum ctw_dtype dtype, int n_dims,
                         int64_t d0, int64_t d1)
{
    struct ctw_part *part = &m->w.part[kind];
    part->dtype = dtype;
    part->n_dims = n_dims;
    part->shape[0] = d0;
    part->shape[1] = d1;
    part->bytes = ctw_dtype_bytes(dtype) * (size_t)d0 * (size_t)d1;
    uint8_t *p = (uint8_t *)malloc(part->bytes + 1);
    for (size_t i = 0; i < part->bytes; i++)
        p[i] = (uint8_t)(rng() >> 13);
    m->host.part[kind] = p;
    return p;
}

static int64_t words(int64_t n, int bits, bool whole)
{
    return whole ? (n + 32 / bits - 1) / (32 / bits) : (n * bits + 31) / 32;
}

static void make_floats(uint8_t *p, enum ctw_dtype dtype, int64_t n, bool scales)
{
    for (int64_t i = 0; i < n; i++)
        ctw_store_float(p, dtype, i,
                        scales ? 0.002f * (float)((int)(rng() % 129) - 64) : rng_normal());
}

/* A shuffle, as activation order is one. */
static void make_index(struct made *m, int64_t k, int64_t groups)
{
    uint8_t *p = add_part(m, CTW_PART_GROUP_INDEX, CTW_I32, 1, k, 1);
    for (int64_t i = 0; i < k; i++) {
        int64_t other = (int64_t)(rng() % (uint32_t)(i + 1));
        int32_t g = (int32_t)(i * groups / k), there;
        memcpy(&there, p + 4 * other, 4);
        memcpy(p + 4 * i, &there, 4);
        memcpy(p + 4 * other, &g, 4);
    }
}

/* The strategy that c->group says, and the shape of its scales. */
static void read_group(const struct kind *c, struct ctw_quant_args *args, int64_t *rows,
                       int64_t *groups)
{
    int64_t block = c->group < -1 ? -c->group : 0;
    *rows = c->group == -1 ? 1 : block > 0 ? (c->n + block - 1) / block : c->n;
    *groups = c->group > 0 ? c->k / c->group : block > 0 ? (c->k + block - 1) / block : 1;
    args->symmetric = c->zeros == NO_ZEROS;
    args->strategy = c->group == -1  ? CTW_STRATEGY_TENSOR
                     : c->group > 0  ? CTW_STRATEGY_GROUP
                     : c->group == 0 ? CTW_STRATEGY_CHANNEL
                                     : CTW_STRATEGY_BLOCK;
    args->group_size = c->group > 0 ? c->group : 0;
    args->block_rows = args->block_cols = block;
    args->actorder_group = c->indexed;
}

static void make_pack(struct made *m, const struct kind *c, struct ctw_quant_args *args)
{
    int64_t rows, groups;
    read_group(c, args, &rows, &groups);
    args->num_bits = c->bits;
    add_part(m, CTW_PART_VALUES, CTW_I32, 2, c->n, words(c->k, c->bits, c->whole));
    make_floats(add_part(m, CTW_PART_SCALE, c->dtype, 2, rows, groups), c->dtype, rows * groups,
                true);
    if (c->zeros == PACKED_ZEROS)
        add_part(m, CTW_PART_ZERO_POINT, CTW_I32, 2, words(rows, c->bits, c->whole), groups);
    if (c->zeros == INT8_ZEROS)
        add_part(m, CTW_PART_ZERO_POINT, CTW_I8, 2, rows, groups);
    if (c->indexed)
        make_index(m, c->k, groups);
}

/* NaN's payload is not the same on host and device. */
static void without_nan(uint8_t *codes, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        codes[i] = (codes[i] & 0x7f) == 0x7f ? 0x7e : codes[i];
}

enum { ODD_SCALES = 64 }; /* the first scales of a weight; more would make a rate another's */

/* Exponents from 96 to 127, and any but 255, of infinity or NaN (as the product of either with 0).
 */
static void add_exponents(struct made *m, enum ctw_dtype dtype, int64_t rows, int64_t groups)
{
    uint8_t *scale = add_part(m, CTW_PART_SCALE, dtype, 2, rows, groups);
    for (int64_t i = 0; i < rows * groups; i++)
        scale[i] = i >= ODD_SCALES ? 96 + scale[i] % 32 : scale[i] == 255 ? 0 : scale[i];
}

/* FLOAT8 and INT8. Some scales are large, and their values infinite in fp16. */
static void make_bytes(struct made *m, const struct kind *c, struct ctw_quant_args *args)
{
    int64_t rows, groups;
    read_group(c, args, &rows, &groups);
    args->num_bits = 8;
    args->is_float = c->format == FLOAT8;
    uint8_t *values =
        add_part(m, CTW_PART_VALUES, args->is_float ? CTW_F8_E4M3 : CTW_I8, 2, c->n, c->k);
    if (args->is_float)
        without_nan(values, c->n * c->k);
    if (ctw_dtype_bytes(c->dtype) == 1) {
        add_exponents(m, c->dtype, rows, groups);
    } else {
        uint8_t *scales = add_part(m, CTW_PART_SCALE, c->dtype, 2, rows, groups);
        make_floats(scales, c->dtype, rows * groups, true);
        for (int64_t i = 0; i < rows * groups && i < ODD_SCALES; i += 7)
            ctw_store_float(scales, c->dtype, i, i % 2 == 0 ? 300.0f : -1e-8f);
    }
    if (!args->symmetric)
        add_part(m, CTW_PART_ZERO_POINT, CTW_I8, 2, rows, groups);
    if (c->indexed)
        make_index(m, c->k, groups);
}

static void make_mx(struct made *m, const struct kind *c, struct ctw_quant_args *args)
{
    args->num_bits = c->bits;
    args->is_float = args->symmetric = true;
    args->strategy = CTW_STRATEGY_GROUP;
    args->group_size = 32;
    uint8_t *values = add_part(m, CTW_PART_VALUES, c->bits == 8 ? CTW_F8_E4M3 : CTW_U8, 2, c->n,
                               c->k * c->bits / 8);
    if (c->bits == 8)
        without_nan(values, c->n * c->k);
    add_exponents(m, c->dtype == CTW_F8_E8M0 ? CTW_F8_E8M0 : CTW_U8, c->n, c->k / 32);
}

/* GPTQ (with zero points: of version 1) and AWQ. */
static void make_transposed(struct made *m, const struct kind *c, struct ctw_quant_args *args)
{
    int64_t groups = c->group > 0 ? (c->k + c->group - 1) / c->group : 1;
    args->num_bits = c->bits;
    args->symmetric = c->zeros == NO_ZEROS;
    args->zero_less_one = c->format == GPTQ && c->zeros != NO_ZEROS;
    args->strategy = c->group > 0 ? CTW_STRATEGY_GROUP : CTW_STRATEGY_CHANNEL;
    args->group_size = c->group;
    if (c->format == GPTQ)
        add_part(m, CTW_PART_VALUES, CTW_I32, 2, words(c->k, c->bits, false), c->n);
    else
        add_part(m, CTW_PART_VALUES, CTW_I32, 2, c->k, c->n / 8);
    make_floats(add_part(m, CTW_PART_SCALE, c->dtype, 2, groups, c->n), c->dtype, groups * c->n,
                true);
    add_part(m, CTW_PART_ZERO_POINT, CTW_I32, 2, groups, words(c->n, c->bits, false));
    if (c->indexed)
        make_index(m, c->k, groups);
}

static const char *method_of(enum format format)
{
    return format == NVFP4_MODELOPT || format == MODELOPT_AWQ ? "modelopt"
           : format == GPTQ                                   ? "gptq"
           : format == AWQ                                    ? "awq"
           : format == GGML                                   ? "ggml"
           : format == MLX || format == NVFP4_MLX             ? "mlx"
           : format == BNB                                    ? "bitsandbytes"
           : format == EXL3                                   ? "exl3"
                                                              : "compressed-tensors";
}

/* Where a type of block has its fp16 factors; -1: no more. */
static void factors_of(uint32_t id, int *first, int *second)
{
    *first = 0, *second = -1;
    switch (id) {
    case CTW_BLOCK_Q4_1:
    case CTW_BLOCK_Q5_1:
    case CTW_BLOCK_Q4_K:
    case CTW_BLOCK_Q5_K:
        *second = 2;
        break;
    case CTW_BLOCK_Q2_K:
        *first = 80, *second = 82;
        break;
    case CTW_BLOCK_Q3_K:
        *first = 108;
        break;
    case CTW_BLOCK_Q6_K:
        *first = 208;
        break;
    case CTW_BLOCK_TQ1_0:
        *first = 52;
        break;
    case CTW_BLOCK_TQ2_0:
        *first = 64;
        break;
    case CTW_BLOCK_IQ1_M: /* in the highest nibbles of its words of scales */
    case CTW_BLOCK_MXFP4:
    case CTW_BLOCK_NVFP4:
        *first = -1;
        break;
    default:
        break;
    }
}

/* Random blocks, but factors of at most 2^-9, some of them subnormal. */
static void make_ggml(struct made *m, const struct kind *c)
{
    const struct ctw_block_type *type = ctw_block_type_find((uint32_t)c->bits);
    uint64_t bytes;
    if (type == NULL || !ctw_block_bytes(type, (uint64_t)(c->n * c->k), &bytes)) {
        printf("FAILED %s: no such blocks\n", c->name);
        exit(1);
    }
    uint8_t *values = add_part(m, CTW_PART_VALUES, CTW_U8, 1, (int64_t)bytes, 1);
    struct ctw_part *part = &m->w.part[CTW_PART_VALUES];
    int at[2];
    factors_of(type->id, &at[0], &at[1]);
    for (uint8_t *b = values; b < values + bytes; b += type->bytes) {
        for (int i = 0; i < 2; i++)
            if (at[i] >= 0)
                b[at[i] + 1] &= 0x97;
        if (type->id == CTW_BLOCK_IQ1_M)
            b[55] &= 0x9f;
    }
    part->block = type;
    part->n_dims = 2;
    part->shape[0] = c->n;
    part->shape[1] = c->k;
    part->paired = c->group;
}

static void make_mlx(struct made *m, const struct kind *c, struct ctw_quant_args *args)
{
    const int64_t groups = c->k / c->group;
    args->num_bits = c->bits;
    args->group_size = c->group;
    args->strategy = CTW_STRATEGY_GROUP;
    add_part(m, CTW_PART_VALUES, CTW_U32, 2, c->n, c->k * c->bits / 32);
    make_floats(add_part(m, CTW_PART_SCALE, c->dtype, 2, c->n, groups), c->dtype, c->n * groups,
                true);
    make_floats(add_part(m, CTW_PART_GROUP_BIAS, c->dtype, 2, c->n, groups), c->dtype,
                c->n * groups, false);
}

static void make_bnb(struct made *m, const struct kind *c, struct ctw_quant_args *args)
{
    static const float nf4[16] = {
        -0x1p+0f,        -0x1.647362p-1f, -0x1.0cd66p-1f,  -0x1.9465400p-2f,
        -0x1.23449ap-2f, -0x1.7a6a7ep-3f, -0x1.74f0e2p-4f, 0.0f,
        0x1.45f5fep-4f,  0x1.4995c6p-3f,  0x1.f809bap-3f,  0x1.5a0674p-2f,
        0x1.c34970p-2f,  0x1.200f56p-1f,  0x1.722766p-1f,  0x1p+0f};
    static const float fp4[8] = {0.0f,           0x1.555556p-8f, 0x1.555556p-1f, 0x1p+0f,
                                 0x1.555556p-2f, 0x1p-1f,        0x1.555556p-3f, 0x1p-2f};
    const bool nested = c->dtype == CTW_U8;
    const int64_t blocks = (c->n * c->k + c->group - 1) / c->group, outer = (blocks + 255) / 256;
    args->num_bits = 4;
    args->is_float = args->symmetric = true;
    args->group_size = c->group;
    args->fp4 = c->indexed;
    args->dtype = nested ? CTW_BF16 : c->dtype;
    args->scale_offset = nested ? 0.0123f : 0.0f;
    add_part(m, CTW_PART_VALUES, CTW_U8, 2, c->n * c->k / 2, 1);
    uint8_t *scale = add_part(m, CTW_PART_SCALE, nested ? CTW_U8 : CTW_F32, 1, blocks, 1);
    if (nested) {
        make_floats(add_part(m, CTW_PART_SCALE_VALUES, CTW_F32, 1, 256, 1), CTW_F32, 256, false);
        make_floats(add_part(m, CTW_PART_SCALE_SCALE, CTW_F32, 1, outer, 1), CTW_F32, outer, true);
    } else {
        make_floats(scale, CTW_F32, blocks, true);
    }
    uint8_t *book = add_part(m, CTW_PART_CODE_VALUES, CTW_F32, 1, 16, 1);
    for (int i = 0; i < 16; i++)
        ctw_store_float(book, CTW_F32, i,
                        !c->indexed ? nf4[i]
                        : i < 8     ? fp4[i]
                        : i == 8    ? 0.0f
                                    : -fp4[i - 8]);
    add_part(m, CTW_PART_STATE, CTW_U8, 1, 8, 1);
}

static void make_exl3(struct made *m, const struct kind *c, struct ctw_quant_args *args)
{
    static const char *const books[] = {NULL, "mcg", "mul1"};
    static const uint32_t factors[] = {0, 0xcbac1fedu, 0x83dcd12du};
    const int64_t n = (c->n + 127) / 128 * 128, k = (c->k + 127) / 128 * 128;
    args->num_bits = c->bits / 2;
    add_part(m, CTW_PART_VALUES, CTW_I16, 3, k / 16, n / 16);
    struct ctw_part *values = &m->w.part[CTW_PART_VALUES];
    free((void *)(uintptr_t)m->host.part[CTW_PART_VALUES]);
    values->shape[2] = 8 * c->bits;
    values->bytes = (size_t)(k * n / 16 * c->bits);
    uint8_t *p = (uint8_t *)malloc(values->bytes);
    for (size_t i = 0; i < values->bytes; i++)
        p[i] = (uint8_t)(rng() >> 13);
    m->host.part[CTW_PART_VALUES] = p;
    for (int i = 0; i < 2; i++) {
        const enum ctw_part_kind kind = i == 0 ? CTW_PART_SCALE : CTW_PART_COLUMN_SCALE;
        const int64_t all = i == 0 ? n : k;
        uint8_t *scale = add_part(m, kind, c->dtype, 1, c->dtype == CTW_I16 ? all / 16 : all, 1);
        if (c->dtype == CTW_F16)
            make_floats(scale, CTW_F16, all, true);
    }
    if (c->group == 0)
        return;
    memcpy(add_part(m, CTW_PART_CODEBOOK, CTW_I32, 0, 1, 1), &factors[c->group], 4);
    m->w.part[CTW_PART_CODEBOOK].name = books[c->group];
}

static void make_nvfp4(struct made *m, const struct kind *c, struct ctw_quant_args *args)
{
    args->num_bits = 4;
    args->is_float = args->symmetric = true;
    args->strategy = c->group == 0 ? CTW_STRATEGY_GROUP : CTW_STRATEGY_TENSOR_GROUP;
    args->group_size = 16;
    add_part(m, CTW_PART_VALUES, CTW_U8, 2, c->n, c->k / 2);
    int64_t groups = c->k / (c->whole ? 32 : 16);
    uint8_t *scale = add_part(m, CTW_PART_SCALE, CTW_F8_E4M3, 2, c->n, groups);
    for (int64_t i = 0; i < c->n * groups; i++)
        scale[i] = (scale[i] & 0x7f) == 0x7f ? 0x7e : scale[i]; /* NaN's payload is not the same */
    float divisor = (float)c->group + 0.3f;
    if (c->group == 0)
        return;
    ctw_store_float(add_part(m, CTW_PART_GLOBAL_SCALE, c->dtype, 1, 1, 1), c->dtype, 0,
                    c->format == NVFP4            ? divisor
                    : c->format == NVFP4_MODELOPT ? 1 / divisor
                                                  : 2688 / divisor);
}

static void make_awq_modelopt(struct made *m, const struct kind *c, struct ctw_quant_args *args)
{
    int64_t groups = c->k / c->group;
    args->num_bits = 4;
    args->symmetric = true;
    args->strategy = CTW_STRATEGY_GROUP;
    add_part(m, CTW_PART_VALUES, CTW_U8, 2, c->n / 2, c->k);
    make_floats(add_part(m, CTW_PART_SCALE, c->dtype, 2, c->n, groups), c->dtype, c->n * groups,
                true);
    make_floats(add_part(m, CTW_PART_COLUMN_SCALE, CTW_BF16, 1, c->k, 1), CTW_BF16, c->k, false);
}

static void weight_open(struct made *m, const struct kind *c)
{
    struct ctw_quant_args args;
    memset(&args, 0, sizeof(args));
    memset(m, 0, sizeof(*m));
    m->w.names = ctw_part_names_find(method_of(c->format));
    for (int i = 0; i < CTW_N_PARTS; i++)
        m->w.part[i].n_dims = -1;
    m->w.n = c->n;
    m->w.k = c->k;
    bool transposed = c->format == TRANSPOSED;
    args.present = c->format != DENSE && c->format != GGML && !transposed;
    if (c->format == GGML)
        make_ggml(m, c);
    else if (!args.present)
        make_floats(add_part(m, CTW_PART_VALUES, c->dtype, 2, transposed ? c->k : c->n,
                             transposed ? c->n : c->k),
                    c->dtype, c->n * c->k, false);
    else if (c->format == PACK)
        make_pack(m, c, &args);
    else if (c->format == NVFP4 || c->format == NVFP4_MODELOPT || c->format == NVFP4_MLX)
        make_nvfp4(m, c, &args);
    else if (c->format == MODELOPT_AWQ)
        make_awq_modelopt(m, c, &args);
    else if (c->format == FLOAT8 || c->format == INT8)
        make_bytes(m, c, &args);
    else if (c->format == GPTQ || c->format == AWQ)
        make_transposed(m, c, &args);
    else if (c->format == MLX)
        make_mlx(m, c, &args);
    else if (c->format == BNB)
        make_bnb(m, c, &args);
    else if (c->format == EXL3)
        make_exl3(m, c, &args);
    else
        make_mx(m, c, &args);
    m->w.part[CTW_PART_VALUES].transposed = transposed;
    OK(ctw_format_find(&m->w.format, m->w.names, m->w.part, &last_err));
    OK(m->w.format->check(&m->w, &args, NULL, &last_err));
    if (m->w.format->check_data != NULL)
        OK(m->w.format->check_data(&m->w, &m->host, &last_err));
    for (int i = 0; i < CTW_N_PARTS; i++) {
        if (m->host.part[i] == NULL)
            continue;
        int misalign = c->misalign < 0 && i == CTW_PART_VALUES ? 0 : abs(c->misalign);
        m->part[i] = buf_from(m->host.part[i], m->w.part[i].bytes, (size_t)misalign);
        m->device.part[i] = m->part[i].p;
    }
    m->shard = ctw_shard_of(&m->w, &m->device);
}

static void weight_close(struct made *m)
{
    for (int i = 0; i < CTW_N_PARTS; i++) {
        free((void *)(uintptr_t)m->host.part[i]);
        if (m->part[i].base != NULL)
            buf_close(&m->part[i]);
    }
}

/* All rows as the host decodes them. */
static void *weight_decoded(const struct made *m, enum ctw_dtype dtype)
{
    void *p = malloc((size_t)(m->w.n * m->w.k) * ctw_dtype_bytes(dtype));
    ctw_weight_decode(&m->w, &m->host, 0, m->w.n, dtype, p, m->w.k);
    return p;
}

#endif
