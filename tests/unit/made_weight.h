/*
 * Weights of every format with contents that tests/tools/format_vectors.py repeats. Include it
 * after cmocka.h.
 */
#ifndef CTW_TESTS_MADE_WEIGHT_H
#define CTW_TESTS_MADE_WEIGHT_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/sha256.h"
#include "kernels/formats/format.h"

struct made {
    struct ctw_weight w;
    struct ctw_weight_data data;
    struct ctw_quant_args args;
    uint32_t gen;
};

static inline uint32_t next_byte(struct made *m)
{
    m->gen = m->gen * 1664525u + 1013904223u;
    return m->gen >> 24;
}

/* A part of `n` elements in exactly sized memory, one byte off alignment, so that a sanitizer sees
 * every read beyond it and every aligned access. */
static inline uint8_t *add_part(struct made *m, enum ctw_part_kind kind, enum ctw_dtype dtype,
                                int n_dims, int64_t d0, int64_t d1)
{
    struct ctw_part *part = &m->w.part[kind];
    size_t bytes = ctw_dtype_bytes(dtype);
    part->dtype = dtype;
    part->n_dims = n_dims;
    part->shape[0] = d0;
    part->shape[1] = d1;
    bytes *= (size_t)(n_dims > 0 ? d0 : 1) * (size_t)(n_dims > 1 ? d1 : 1);
    part->bytes = bytes;
    uint8_t *p = calloc(bytes + 1, 1);
    assert_non_null(p);
    m->data.part[kind] = p + 1;
    return p + 1;
}

static inline void start(struct made *m, int64_t n, int64_t k, struct ctw_quant_args args)
{
    memset(m, 0, sizeof(*m));
    memset(&m->w, 0xa5, sizeof(m->w)); /* check() must fill every field */
    for (int i = 0; i < CTW_N_PARTS; i++)
        m->w.part[i] = (struct ctw_part){.n_dims = -1};
    m->w.names = ctw_part_names_find("compressed-tensors");
    m->w.n = n;
    m->w.k = k;
    m->args = args;
    m->gen = 1;
}

static inline void finish(struct made *m)
{
    for (int i = 0; i < CTW_N_PARTS; i++)
        if (m->data.part[i] != NULL)
            free((char *)(uintptr_t)m->data.part[i] - 1);
}

static inline enum ctw_status check(struct made *m, const int64_t *shape_part, struct ctw_err *err)
{
    enum ctw_status st = ctw_format_find(&m->w.format, m->w.names, m->w.part, err);
    if (st == CTW_OK)
        st = m->w.format->check(&m->w, &m->args, shape_part, err);
    if (st == CTW_OK && m->w.format->check_data != NULL)
        st = m->w.format->check_data(&m->w, &m->data, err);
    return st;
}

static inline void check_ok(struct made *m)
{
    struct ctw_err err = {0};
    enum ctw_status st = check(m, NULL, &err);
    if (st != CTW_OK)
        fail_msg("%s", err.msg);
}

/* Puts code v as number i of a stream whose words are `stride` bytes apart. */
static inline void put_code(uint8_t *stream, size_t stride, int64_t i, int bits, bool whole_codes,
                            uint32_t v)
{
    for (int b = 0; b < bits; b++) {
        int64_t bit =
            whole_codes ? i / (32 / bits) * 32 + i % (32 / bits) * bits + b : i * bits + b;
        stream[(size_t)(bit / 32) * stride + (size_t)(bit % 32 / 8)] |=
            (uint8_t)((v >> b & 1u) << (bit % 8));
    }
}

static inline int64_t words(int64_t n, int bits, bool whole_codes)
{
    return whole_codes ? (n + 32 / bits - 1) / (32 / bits) : (n * bits + 31) / 32;
}

static inline void add_scales(struct made *m, enum ctw_dtype dtype, int n_dims, int64_t d0,
                              int64_t d1)
{
    uint8_t *p = add_part(m, CTW_PART_SCALE, dtype, n_dims, d0, d1);
    for (int64_t i = 0; i < d0 * d1; i++) {
        uint32_t v = next_byte(m);
        v |= next_byte(m) << 8;
        float f = ((float)(int32_t)v - 32768.0f) / 8388608.0f;
        uint16_t h = (uint16_t)(dtype == CTW_BF16 ? (v & 0x83ffu) | 0x3800u : v & 0x97ffu);
        memcpy(p + i * (dtype == CTW_F32 ? 4 : 2), dtype == CTW_F32 ? (void *)&f : (void *)&h,
               dtype == CTW_F32 ? 4 : 2);
    }
}

struct pack_case {
    const char *name;
    int bits;
    enum ctw_dtype dtype;
    enum ctw_strategy strategy;
    int64_t height, width; /* of a block; of a group: 1 and its size */
    bool symmetric, zero_packed, indexed;
    int64_t n, k;
    const char *sha256; /* of the decoded bytes in dtype, from compressed-tensors' decompress() */
};

enum { NONE = -1 };

struct nvfp4_case {
    const char *name;
    int64_t n, k;
    float global_scale; /* NONE: strategy group, without one */
    const char *sha256;
};

/* float-quantized and int-quantized */
struct bytes_case {
    const char *name;
    bool is_float;
    enum ctw_dtype dtype;
    enum ctw_strategy strategy;
    int64_t height, width; /* of a block; of a group: 1 and its size */
    bool symmetric, indexed;
    int64_t n, k;
    const char *sha256;
};

struct mx_case {
    const char *name;
    int bits;
    int64_t n, k;
    const char *sha256;
};

#include "format_vectors.h"

static inline void add_zero_points(struct made *m, const struct pack_case *c, bool whole_codes,
                                   int64_t rows, int64_t groups)
{
    uint8_t *p;
    if (c->zero_packed)
        p = add_part(m, CTW_PART_ZERO_POINT, CTW_I32, 2, words(rows, c->bits, whole_codes), groups);
    else
        p = add_part(m, CTW_PART_ZERO_POINT, CTW_I8, c->strategy == CTW_STRATEGY_TENSOR ? 1 : 2,
                     rows, groups);
    for (int64_t i = 0; i < rows * groups; i++) {
        uint32_t v = next_byte(m) & ((1u << c->bits) - 1u);
        if (c->zero_packed)
            put_code(p + 4 * (i % groups), 4 * (size_t)groups, i / groups, c->bits, whole_codes, v);
        else
            p[i] = (uint8_t)(v - (1u << (c->bits - 1)));
    }
}

/* Column c is in group c * 7 % groups. */
static inline void add_index(struct made *m, int64_t k, int64_t groups)
{
    uint8_t *index = add_part(m, CTW_PART_GROUP_INDEX, CTW_I32, 1, k, 0);
    for (int64_t i = 0; i < k; i++) {
        int32_t g = (int32_t)(i * 7 % groups);
        memcpy(index + 4 * i, &g, 4);
    }
}

static inline void make_pack(struct made *m, const struct pack_case *c, bool whole_codes)
{
    struct ctw_quant_args args = {.present = true,
                                  .num_bits = c->bits,
                                  .symmetric = c->symmetric,
                                  .strategy = c->strategy,
                                  .group_size = c->strategy == CTW_STRATEGY_GROUP ? c->width : 0,
                                  .block_rows = c->strategy == CTW_STRATEGY_BLOCK ? c->height : 0,
                                  .block_cols = c->strategy == CTW_STRATEGY_BLOCK ? c->width : 0,
                                  .actorder_group = c->indexed,
                                  .format = "pack-quantized"};
    start(m, c->n, c->k, args);
    int64_t row_words = words(c->k, c->bits, whole_codes);
    uint8_t *values = add_part(m, CTW_PART_VALUES, CTW_I32, 2, c->n, row_words);
    for (int64_t i = 0; i < c->n * c->k; i++)
        put_code(values + i / c->k * row_words * 4, 4, i % c->k, c->bits, whole_codes,
                 next_byte(m) & ((1u << c->bits) - 1u));
    bool tensor = c->strategy == CTW_STRATEGY_TENSOR;
    int64_t rows = tensor ? 1 : c->height == 0 ? c->n : (c->n + c->height - 1) / c->height;
    int64_t groups = c->width == 0 ? 1 : (c->k + c->width - 1) / c->width;
    add_scales(m, c->dtype, tensor ? 1 : 2, rows, groups);
    if (!c->symmetric)
        add_zero_points(m, c, whole_codes, rows, groups);
    if (c->indexed)
        add_index(m, c->k, groups);
}

static inline void make_nvfp4(struct made *m, const struct nvfp4_case *c)
{
    struct ctw_quant_args args = {.present = true,
                                  .num_bits = 4,
                                  .is_float = true,
                                  .symmetric = true,
                                  .strategy = c->global_scale != NONE ? CTW_STRATEGY_TENSOR_GROUP
                                                                      : CTW_STRATEGY_GROUP,
                                  .group_size = 16};
    start(m, c->n, c->k, args);
    uint8_t *values = add_part(m, CTW_PART_VALUES, CTW_U8, 2, c->n, c->k / 2);
    for (int64_t i = 0; i < c->n * c->k / 2; i++)
        values[i] = (uint8_t)next_byte(m);
    uint8_t *scale = add_part(m, CTW_PART_SCALE, CTW_F8_E4M3, 2, c->n, c->k / 16);
    for (int64_t i = 0; i < c->n * c->k / 16; i++) {
        scale[i] = (uint8_t)next_byte(m);
        scale[i] = (scale[i] & 0x7f) == 0x7f ? 0 : scale[i];
    }
    if (c->global_scale != NONE)
        memcpy(add_part(m, CTW_PART_GLOBAL_SCALE, CTW_F32, 1, 1, 0), &c->global_scale, 4);
}

/* Exponents as scales, without 255. */
static inline void add_exponents(struct made *m, enum ctw_dtype dtype, int n_dims, int64_t d0,
                                 int64_t d1)
{
    uint8_t *scale = add_part(m, CTW_PART_SCALE, dtype, n_dims, d0, d1);
    for (int64_t i = 0; i < d0 * d1; i++) {
        scale[i] = (uint8_t)next_byte(m);
        scale[i] = scale[i] == 255 ? 0 : scale[i];
    }
}

/* FP8 codes have no NaN. */
static inline void add_codes(struct made *m, bool is_float, int64_t n, int64_t k)
{
    uint8_t *values = add_part(m, CTW_PART_VALUES, is_float ? CTW_F8_E4M3 : CTW_I8, 2, n, k);
    for (int64_t i = 0; i < n * k; i++) {
        values[i] = (uint8_t)next_byte(m);
        values[i] = is_float && (values[i] & 0x7f) == 0x7f ? 0 : values[i];
    }
}

static inline void make_bytes(struct made *m, const struct bytes_case *c)
{
    bool tensor = c->strategy == CTW_STRATEGY_TENSOR, blocks = c->strategy == CTW_STRATEGY_BLOCK;
    struct ctw_quant_args args = {.present = true,
                                  .num_bits = 8,
                                  .is_float = c->is_float,
                                  .symmetric = c->symmetric,
                                  .strategy = c->strategy,
                                  .group_size = blocks ? 0 : c->width,
                                  .block_rows = blocks ? c->height : 0,
                                  .block_cols = blocks ? c->width : 0,
                                  .actorder_group = c->indexed};
    int64_t rows = tensor ? 1 : c->height == 0 ? c->n : (c->n + c->height - 1) / c->height;
    int64_t groups = c->width == 0 ? 1 : (c->k + c->width - 1) / c->width;
    start(m, c->n, c->k, args);
    add_codes(m, c->is_float, c->n, c->k);
    if (ctw_dtype_bytes(c->dtype) == 1)
        add_exponents(m, c->dtype, tensor ? 1 : 2, rows, groups);
    else
        add_scales(m, c->dtype, tensor ? 1 : 2, rows, groups);
    if (!c->symmetric) {
        uint8_t *zero = add_part(m, CTW_PART_ZERO_POINT, CTW_I8, tensor ? 1 : 2, rows, groups);
        for (int64_t i = 0; i < rows * groups; i++)
            zero[i] = (uint8_t)next_byte(m);
    }
    if (c->indexed)
        add_index(m, c->k, groups);
}

static inline void make_mx(struct made *m, const struct mx_case *c)
{
    struct ctw_quant_args args = {.present = true,
                                  .num_bits = c->bits,
                                  .is_float = true,
                                  .symmetric = true,
                                  .strategy = CTW_STRATEGY_GROUP,
                                  .group_size = 32};
    start(m, c->n, c->k, args);
    if (c->bits == 8) {
        add_codes(m, true, c->n, c->k);
    } else {
        uint8_t *values = add_part(m, CTW_PART_VALUES, CTW_U8, 2, c->n, c->k * c->bits / 8);
        for (int64_t i = 0; i < c->n * c->k * c->bits / 8; i++)
            values[i] = (uint8_t)next_byte(m);
    }
    add_exponents(m, CTW_U8, 2, c->n, c->k / 32);
}

static inline void expect_hash(struct made *m, const char *name, enum ctw_dtype dtype,
                               const char *sha256)
{
    char hex[65];
    struct ctw_sha256 sha;
    size_t bytes = (size_t)(m->w.n * m->w.k) * ctw_dtype_bytes(dtype);
    void *out = malloc(bytes);
    assert_non_null(out);
    ctw_weight_decode(&m->w, &m->data, 0, m->w.n, dtype, out, m->w.k);
    ctw_sha256_init(&sha);
    ctw_sha256_update(&sha, out, bytes);
    ctw_sha256_final_hex(&sha, hex);
    free(out);
    if (strcmp(hex, sha256) != 0)
        fail_msg("%s: decoded to %s, expected %s", name, hex, sha256);
}

static inline void expect_refusal(struct made *m, const int64_t *shape_part,
                                  const char *words_in_message)
{
    struct ctw_err err = {0};
    assert_int_not_equal(check(m, shape_part, &err), CTW_OK);
    if (strstr(err.msg, words_in_message) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", err.msg, words_in_message);
    finish(m);
}

#endif
