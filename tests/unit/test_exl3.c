/* EXL3 against the library's own functions, which tests/tools/exl3_vectors.py runs, and its
 * refusals. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/formats/exl3/decode.h"
#include "made_weight.h"

struct exl3_case {
    const char *name;
    int rate;             /* twice the bits of a weight */
    const char *codebook; /* "": 3inst */
    bool signs, tiny;     /* the first files' packed signs; scales with subnormal products */
    int64_t n, k;
    const char *sha256; /* of LinearEXL3.get_weight_tensor(), without padding */
};

struct table_case {
    const char *name;
    int bits;
    int64_t n, k;
    const char *sha256; /* of dequant_rows() in fp16, without padding */
};

#include "exl3_vectors.h"

static void add_halves(struct made *m, enum ctw_part_kind kind, int n_dims, int64_t d0, int64_t d1,
                       bool tiny)
{
    uint8_t *p = add_part(m, kind, CTW_F16, n_dims, d0, d1);
    for (size_t i = 0; i < m->w.part[kind].bytes; i += 2) {
        uint32_t v = next_byte(m);
        v |= next_byte(m) << 8;
        uint16_t h = (uint16_t)(tiny ? v & 0x97ffu : (v & 0x83ffu) | 0x3800u);
        memcpy(p + i, &h, 2);
    }
}

static uint8_t *add_bytes(struct made *m, enum ctw_part_kind kind, int n_dims, int64_t d0,
                          int64_t d1)
{
    uint8_t *p = add_part(m, kind, CTW_I16, n_dims, d0, d1);
    for (size_t i = 0; i < m->w.part[kind].bytes; i++)
        p[i] = (uint8_t)next_byte(m);
    return p;
}

static void make_exl3(struct made *m, const struct exl3_case *c)
{
    const int64_t down = (c->k + 127) / 128 * 8, right = (c->n + 127) / 128 * 8,
                  words = 8 * c->rate;
    start(m, c->n, c->k, (struct ctw_quant_args){.present = true, .symmetric = true});
    m->w.names = ctw_part_names_find("exl3");
    m->w.part[CTW_PART_VALUES].name = "trellis";
    add_bytes(m, CTW_PART_VALUES, 2, down * right, words);
    struct ctw_part *values = &m->w.part[CTW_PART_VALUES];
    values->n_dims = 3;
    values->shape[0] = down;
    values->shape[1] = right;
    values->shape[2] = words;
    for (int i = 0; i < 2; i++) {
        const enum ctw_part_kind kind = i == 0 ? CTW_PART_COLUMN_SCALE : CTW_PART_SCALE;
        if (c->signs)
            add_bytes(m, kind, 1, i == 0 ? down : right, 0);
        else
            add_halves(m, kind, 1, 16 * (i == 0 ? down : right), 0, c->tiny);
    }
    if (c->codebook[0] == '\0')
        return;
    bool mcg = strcmp(c->codebook, "mcg") == 0;
    const uint32_t factor = mcg ? CTW_EXL3_MCG_FACTOR : CTW_EXL3_MUL1_FACTOR;
    memcpy(add_part(m, CTW_PART_CODEBOOK, CTW_I32, 0, 0, 0), &factor, 4);
    m->w.part[CTW_PART_CODEBOOK].name = c->codebook;
}

static void make_table(struct made *m, const struct table_case *c)
{
    const int64_t groups = (c->k + 255) / 256, ring = 1 + 16 * c->bits;
    start(m, c->n, c->k, (struct ctw_quant_args){.present = true, .symmetric = true});
    m->w.names = ctw_part_names_find("exl3");
    m->w.part[CTW_PART_VALUES].name = "trellis";
    uint8_t *rings = add_bytes(m, CTW_PART_VALUES, 2, c->n, groups * ring);
    for (int64_t i = 0; i < c->n * groups; i++) {
        uint16_t scale = (uint16_t)((ctw_load_u16(rings + 2 * i * ring) & 0x87ffu) | 0x2800u);
        memcpy(rings + 2 * i * ring, &scale, 2);
    }
    add_halves(m, CTW_PART_SIGNS, 2, groups, 256, false);
}

static void matrices_equal_the_library(void **state)
{
    (void)state;
    for (size_t i = 0; i < CTW_COUNT(exl3_cases); i++) {
        struct made m;
        make_exl3(&m, &exl3_cases[i]);
        check_ok(&m);
        assert_int_equal(m.w.format->id, CTW_FORMAT_exl3);
        assert_int_equal(m.w.dtype, CTW_F16);
        expect_hash(&m, exl3_cases[i].name, CTW_F16, exl3_cases[i].sha256);
        finish(&m);
    }
}

static void tables_equal_the_library(void **state)
{
    (void)state;
    for (size_t i = 0; i < CTW_COUNT(table_cases); i++) {
        struct made m;
        make_table(&m, &table_cases[i]);
        check_ok(&m);
        assert_int_equal(m.w.format->id, CTW_FORMAT_exl3_table);
        expect_hash(&m, table_cases[i].name, CTW_F16, table_cases[i].sha256);
        finish(&m);
    }
}

/* Of one tile of 4 bits whose half-words are 0x1234 j + 0x5678. */
static void states_and_codebooks(void **state)
{
    (void)state;
    static const struct {
        uint32_t state;
        uint16_t values[3]; /* fp16: 3inst, mcg, mul1 */
    } rows[] = {{0x0000, {0x3a25, 0x3f60, 0xc2e8}}, {0x0001, {0xbb5b, 0x304e, 0x3921}},
                {0x1234, {0xc066, 0x3e0f, 0xb89e}}, {0x8000, {0xb7f8, 0xb915, 0xbaf2}},
                {0xabcd, {0xb98e, 0x35e7, 0xbd42}}, {0xffff, {0xb110, 0x3acd, 0xb936}}};
    static const struct {
        int t;
        uint32_t state;
    } states[] = {{0, 0xf106}, {1, 0x1068}, {2, 0x068a}, {3, 0x68ac}, {255, 0xbf10}};
    uint8_t tile[128];
    for (uint32_t j = 0; j < 64; j++) {
        uint16_t word = (uint16_t)(0x1234u * j + 0x5678u);
        memcpy(tile + 2 * j, &word, 2);
    }
    for (size_t i = 0; i < CTW_COUNT(states); i++)
        assert_int_equal(ctw_exl3_state(tile, 8, states[i].t), states[i].state);
    for (size_t i = 0; i < CTW_COUNT(rows); i++)
        for (int book = 0; book < 3; book++)
            assert_int_equal(ctw_f32_to_f16(ctw_exl3_value(rows[i].state, book)),
                             rows[i].values[book]);
}

/* Any rows, and any columns from a multiple of CTW_DECODE_ALIGN on, are those of the matrix; and
 * nothing is written behind them. */
static void parts_agree_with_the_matrix(void **state)
{
    (void)state;
    enum { N = 200, K = 300, LD = 320 };
    const struct exl3_case c = {"", 3, "mul1", false, false, N, K, NULL};
    static const int64_t parts[][4] = {/* row, rows, column, columns */
                                       {0, 3, 0, 300},
                                       {126, 5, 256, 44},
                                       {199, 1, 0, 7}};
    static float all[N][K], out[8][LD];
    struct made m;
    make_exl3(&m, &c);
    check_ok(&m);
    ctw_weight_decode(&m.w, &m.data, 0, N, CTW_F32, all, K);
    for (size_t i = 0; i < CTW_COUNT(parts); i++) {
        const int64_t *p = parts[i];
        memset(out, 0x55, sizeof(out));
        ctw_weight_decode_rows(&m.w, &m.data, p[0], p[1], p[2], p[3], out[0], LD);
        for (int64_t r = 0; r < p[1]; r++) {
            uint32_t guard;
            assert_memory_equal(out[r], all[p[0] + r] + p[2], (size_t)p[3] * 4);
            memcpy(&guard, &out[r][p[3]], 4);
            assert_int_equal(guard, 0x55555555);
        }
        m.w.format->decode(&m.w, &m.data, p[0], p[2], p[3], out[7]);
        assert_memory_equal(out[7], all[p[0]] + p[2], (size_t)p[3] * 4);
    }
    finish(&m);
}

static void contradictions(void **state)
{
    (void)state;
    const struct exl3_case good = {"", 8, "mul1", false, false, 130, 200, NULL};
    struct made m;
    static const struct {
        enum ctw_part_kind kind;
        int dim; /* -1: the dtype; -2: absent */
        int64_t value;
        const char *words;
    } rows[] = {
        {CTW_PART_VALUES, 0, 8, "trellis: found I16 [8, 16, 64], expected I16 [16, 16, 16 * bits]"},
        {CTW_PART_VALUES, 1, 8, "for a [130, 200] matrix, padded to blocks of 128"},
        {CTW_PART_VALUES, 2, 72, "16 times 1 to 8 bits, or times 1.5, 2.5 or 3.5"},
        {CTW_PART_VALUES, 2, 144, "16 times 1 to 8 bits"},
        {CTW_PART_VALUES, 2, 8, "16 times 1 to 8 bits"},
        {CTW_PART_VALUES, 2, 60, "16 times 1 to 8 bits"},
        {CTW_PART_COLUMN_SCALE, 0, 200, "suh: found F16 [200], expected F16 [256], or packed"},
        {CTW_PART_COLUMN_SCALE, -1, CTW_BF16, "suh: found BF16 [256], expected F16 [256]"},
        {CTW_PART_SCALE, -1, CTW_I16,
         "svh: found I16 [256], expected F16 [256], or packed signs "
         "I16 [16]"},
        {CTW_PART_SCALE, -2, 0, "svh: found absent, expected F16 [256]"},
        {CTW_PART_CODEBOOK, -1, CTW_F32, "mul1: found F32 [], expected I32 []"},
    };
    for (size_t i = 0; i < CTW_COUNT(rows); i++) {
        make_exl3(&m, &good);
        struct ctw_part *part = &m.w.part[rows[i].kind];
        if (rows[i].dim >= 0)
            part->shape[rows[i].dim] = rows[i].value;
        else if (rows[i].dim == -1)
            part->dtype = (enum ctw_dtype)rows[i].value;
        else
            part->n_dims = -1;
        expect_refusal(&m, NULL, rows[i].words);
    }
    make_exl3(&m, &good);
    m.w.part[CTW_PART_VALUES].shape[2] = 40;
    m.w.part[CTW_PART_CODEBOOK].n_dims = -1;
    expect_refusal(&m, NULL, "whole bits: 2.5 bits need the codebook mul1, whose tensor is absent");
    make_exl3(&m, &good);
    m.w.part[CTW_PART_CODEBOOK].name = "mcg";
    expect_refusal(&m, NULL, "mcg: found the multiplier 0x83DCD12D, expected 0xCBAC1FED");
    make_exl3(&m, &good);
    m.args.present = false;
    expect_refusal(&m, NULL, "no config group for it");
    make_exl3(&m, &good);
    add_halves(&m, CTW_PART_SIGNS, 2, 1, 256, false);
    expect_refusal(&m, NULL, "signs: found F16 [1, 256], which a exl3 weight does not have");
}

static void contradictions_of_tables(void **state)
{
    (void)state;
    const struct table_case good = {"", 3, 4, 300, NULL};
    struct made m;
    make_table(&m, &good);
    m.w.part[CTW_PART_VALUES].shape[1] = 96;
    expect_refusal(&m, NULL, "trellis: found I16 [4, 96], expected I16 [4, 2 * (1 + 16 * bits)]");
    make_table(&m, &good);
    m.w.part[CTW_PART_SIGNS].shape[0] = 1;
    expect_refusal(&m, NULL, "signs: found F16 [1, 256], expected F16 [2, 256]");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matrices_equal_the_library),
        cmocka_unit_test(tables_equal_the_library),
        cmocka_unit_test(states_and_codebooks),
        cmocka_unit_test(parts_agree_with_the_matrix),
        cmocka_unit_test(contradictions),
        cmocka_unit_test(contradictions_of_tables),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
