/* Dense, packed and NVFP4 weights: decoding bit by bit, and the refusal of parts that do not fit.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/formats/nvfp4/decode.h"
#include "made_weight.h"

/* ---- what decoding gives ---- */

static void pack_quantized_equals_compressed_tensors(void **state)
{
    (void)state;
    for (size_t i = 0; i < CTW_COUNT(pack_cases); i++) {
        struct made m;
        make_pack(&m, &pack_cases[i], false);
        check_ok(&m);
        assert_int_equal(m.w.dtype, pack_cases[i].dtype);
        assert_int_equal(m.w.indexed, pack_cases[i].indexed);
        expect_hash(&m, pack_cases[i].name, m.w.dtype, pack_cases[i].sha256);
        finish(&m);
    }
}

/* The layout of old files holds the same values. */
static void whole_codes_decode_alike(void **state)
{
    (void)state;
    int seen = 0;
    for (size_t i = 0; i < CTW_COUNT(pack_cases); i++) {
        const struct pack_case *c = &pack_cases[i];
        struct made m;
        if (32 % c->bits == 0)
            continue;
        make_pack(&m, c, true);
        check_ok(&m);
        assert_true(m.w.whole_codes);
        expect_hash(&m, c->name, m.w.dtype, c->sha256);
        finish(&m);
        seen++;
    }
    assert_true(seen >= 5);
}

static void nvfp4_equals_compressed_tensors(void **state)
{
    (void)state;
    for (size_t i = 0; i < CTW_COUNT(nvfp4_cases); i++) {
        struct made m;
        make_nvfp4(&m, &nvfp4_cases[i]);
        check_ok(&m);
        assert_int_equal(m.w.dtype, CTW_BF16);
        expect_hash(&m, nvfp4_cases[i].name, CTW_BF16, nvfp4_cases[i].sha256);
        finish(&m);
    }
}

/* Words that compressed-tensors' own tests and documents show. */
static void known_words(void **state)
{
    (void)state;
    static const struct {
        int bits, n;
        uint32_t word[3];
        int8_t first[8];
    } rows[] = {
        {4, 8, {0x8fedcba9}, {1, 2, 3, 4, 5, 6, 7, 0}},
        {4, 8, {0x01234567}, {-1, -2, -3, -4, -5, -6, -7, -8}},
        {8, 2, {0x00008281}, {1, 2}},
        {3, 32, {0x88fac688, 0xc688fac6, 0xfac688fa}, {-4, -3, -2, -1, 0, 1, 2, 3}},
    };
    const uint16_t one = 0x3f80;
    for (size_t i = 0; i < CTW_COUNT(rows); i++) {
        struct made m;
        float out[32];
        start(&m, 1, rows[i].n,
              (struct ctw_quant_args){.present = true,
                                      .num_bits = rows[i].bits,
                                      .symmetric = true,
                                      .strategy = CTW_STRATEGY_CHANNEL});
        int64_t n_words = words(rows[i].n, rows[i].bits, false);
        memcpy(add_part(&m, CTW_PART_VALUES, CTW_I32, 2, 1, n_words), rows[i].word,
               (size_t)n_words * 4);
        memcpy(add_part(&m, CTW_PART_SCALE, CTW_BF16, 2, 1, 1), &one, 2);
        check_ok(&m);
        m.w.format->decode(&m.w, &m.data, 0, 0, rows[i].n, out);
        for (int j = 0; j < rows[i].n; j++)
            assert_true(out[j] == (float)rows[i].first[j % 8]);
        finish(&m);
    }
}

static void nvfp4_keeps_minus_zero(void **state)
{
    (void)state;
    static const uint8_t bytes[8] = {0xf9, 0xb9, 0x7a, 0x80, 0x10, 0x32, 0x54, 0x76};
    static const float want[16] = {-.5f, -6,  -.5f, -1.5f, -1, 6, 0, -0.0f,
                                   0,    .5f, 1,    1.5f,  2,  3, 4, 6};
    struct made m;
    float out[16];
    make_nvfp4(&m, &(struct nvfp4_case){"", 1, 16, 1.0f, NULL});
    memcpy((void *)(uintptr_t)m.data.part[CTW_PART_VALUES], bytes, 8);
    *(uint8_t *)(uintptr_t)m.data.part[CTW_PART_SCALE] = 0x38; /* 1 */
    check_ok(&m);
    m.w.format->decode(&m.w, &m.data, 0, 0, 16, out);
    assert_memory_equal(out, want, sizeof(want));
    finish(&m);
}

/* All significands of a scale over all of a global scale's, and all codes over some with exponents.
 */
static void nvfp4_scales_divide_without_dividing(void **state)
{
    (void)state;
    static const float globals[] = {0x1p-60f, 0x1.fffffep-60f, 3.7e-5f, 1, 37.3f,
                                    2688,     53760.1f,        0x1p60f};
    int64_t n_wrong = 0;
    for (uint32_t mantissa = 0; mantissa < 1u << 23; mantissa++) {
        float global = ctw_bits_to_f32(0x3f800000u | mantissa), inverse = 1 / global;
        for (uint8_t code = 0x38; code < 0x40; code++) { /* 1 .. 1.875 */
            float want = ctw_e4m3_to_f32(code) / global,
                  got = ctw_nvfp4_scale(code, global, inverse);
            n_wrong += ctw_f32_to_bits(got) != ctw_f32_to_bits(want);
        }
    }
    assert_int_equal(n_wrong, 0);
    for (size_t i = 0; i < CTW_COUNT(globals); i++)
        for (unsigned code = 0; code < 256; code++) {
            float want = ctw_e4m3_to_f32((uint8_t)code) / globals[i];
            float got = ctw_nvfp4_scale((uint8_t)code, globals[i], 1 / globals[i]);
            assert_true(isnan(want) ? isnan(got) : ctw_f32_to_bits(got) == ctw_f32_to_bits(want));
        }
}

static void dense_is_widened_exactly(void **state)
{
    (void)state;
    enum { N = 4, K = 16384 }; /* all 65,536 codes */
    static const enum ctw_dtype dtypes[] = {CTW_BF16, CTW_F16};
    float *out = malloc(sizeof(float) * K);
    assert_non_null(out);
    for (size_t d = 0; d < CTW_COUNT(dtypes); d++) {
        struct made m;
        start(&m, N, K, (struct ctw_quant_args){.present = false});
        uint8_t *values = add_part(&m, CTW_PART_VALUES, dtypes[d], 2, N, K);
        for (uint32_t i = 0; i < N * K; i++)
            memcpy(values + 2 * i, &(uint16_t){(uint16_t)i}, 2);
        check_ok(&m);
        for (uint32_t i = 0; i < N * K; i++) {
            if (i % K == 0)
                m.w.format->decode(&m.w, &m.data, i / K, 0, K, out);
            float got = out[i % K], want = ctw_load_float(values, dtypes[d], i);
            assert_true(memcmp(&got, &want, 4) == 0 || (isnan(got) && isnan(want)));
        }
        finish(&m);
    }
    free(out);
}

/* A dense weight [n, k] stored as [k, n], all values different. */
static void make_transposed(struct made *m, enum ctw_dtype dtype, int64_t n, int64_t k)
{
    start(m, n, k, (struct ctw_quant_args){.present = false});
    uint8_t *values = add_part(m, CTW_PART_VALUES, dtype, 2, k, n);
    m->w.part[CTW_PART_VALUES].transposed = true;
    for (int64_t i = 0; i < n * k; i++)
        ctw_store_float(values, dtype, i, (float)(i - 100));
}

static void transposed_rows_are_stored_columns(void **state)
{
    (void)state;
    enum { N = 3, K = 300 };
    static const enum ctw_dtype dtypes[] = {CTW_BF16, CTW_F16, CTW_F32};
    for (size_t d = 0; d < CTW_COUNT(dtypes); d++) {
        struct made m;
        float row[K], span[K];
        make_transposed(&m, dtypes[d], N, K);
        check_ok(&m);
        assert_int_equal(m.w.format->id, CTW_FORMAT_dense_transposed);
        assert_true(ctw_weight_is_dense(&m.w));
        assert_int_equal(m.w.dtype, dtypes[d]);
        for (int64_t r = 0; r < N; r++) {
            m.w.format->decode(&m.w, &m.data, r, 0, K, row);
            for (int64_t c = 0; c < K; c++)
                assert_true(row[c] == ctw_round_float((float)(c * N + r - 100), dtypes[d]));
            m.w.format->decode(&m.w, &m.data, r, CTW_DECODE_ALIGN, K - CTW_DECODE_ALIGN, span);
            assert_memory_equal(span, row + CTW_DECODE_ALIGN,
                                (K - CTW_DECODE_ALIGN) * sizeof(*span));
        }
        finish(&m);
    }
}

/* Spans that start at a multiple of CTW_DECODE_ALIGN and end anywhere give the row's values, and
 * write nothing behind their end. */
static void spans_agree_with_rows(void **state)
{
    (void)state;
    static const int64_t widths[] = {1, 7, 31, 33, 255, 256, 257, 300};
    enum { PACK = CTW_COUNT(pack_cases), NVFP4 = PACK + CTW_COUNT(nvfp4_cases) };
    enum { BYTES = NVFP4 + CTW_COUNT(bytes_cases), ALL = BYTES + CTW_COUNT(mx_cases) };
    for (size_t i = 0; i < ALL; i++) {
        struct made m;
        float row[2048], span[2048];
        if (i < PACK)
            make_pack(&m, &pack_cases[i], false);
        else if (i < NVFP4)
            make_nvfp4(&m, &nvfp4_cases[i - PACK]);
        else if (i < BYTES)
            make_bytes(&m, &bytes_cases[i - NVFP4]);
        else
            make_mx(&m, &mx_cases[i - BYTES]);
        check_ok(&m);
        m.w.format->decode(&m.w, &m.data, m.w.n - 1, 0, m.w.k, row);
        for (int64_t c = 0; c < m.w.k; c += CTW_DECODE_ALIGN)
            for (size_t j = 0; j < CTW_COUNT(widths) && c + widths[j] <= m.w.k; j++) {
                memset(span, 0x55, sizeof(span));
                m.w.format->decode(&m.w, &m.data, m.w.n - 1, c, widths[j], span);
                assert_memory_equal(span, row + c, (size_t)widths[j] * 4);
                uint32_t guard;
                memcpy(&guard, span + widths[j], 4);
                assert_int_equal(guard, 0x55555555);
            }
        finish(&m);
    }
}

/* Blocks of 3 rows and 40 columns, short at the lower and right edges, by their definition. */
static void blocks_have_a_scale_and_a_zero_point(void **state)
{
    (void)state;
    enum { N = 7, K = 300, HEIGHT = 3, WIDTH = 40, RIGHT = 8 };
    const struct pack_case c = {
        "", 4, CTW_F32, CTW_STRATEGY_BLOCK, HEIGHT, WIDTH, false, false, false, N, K, NULL};
    struct made m;
    float out[K];
    make_pack(&m, &c, false);
    check_ok(&m);
    const uint8_t *values = m.data.part[CTW_PART_VALUES];
    const int8_t *zero = m.data.part[CTW_PART_ZERO_POINT];
    for (int64_t row = 0; row < N; row++) {
        m.w.format->decode(&m.w, &m.data, row, 0, K, out);
        for (int64_t col = 0; col < K; col++) {
            int code = values[row * m.w.row_bytes + col / 2] >> (col % 2 * 4) & 15;
            int64_t block = row / HEIGHT * RIGHT + col / WIDTH;
            double scale = ctw_load_float(m.data.part[CTW_PART_SCALE], CTW_F32, block);
            assert_true(out[col] == (float)((code - 8 - zero[block]) * scale));
        }
    }
    finish(&m);
}

/* ---- what is refused ---- */

static const struct pack_case plain = {
    "plain", 4, CTW_BF16, CTW_STRATEGY_GROUP, 1, 32, false, true, false, 24, 160, NULL};

static void contradictions_are_refused(void **state)
{
    (void)state;
    struct made m;
    make_pack(&m, &plain, false);
    m.args.present = false;
    expect_refusal(&m, NULL, "no config group");
    make_pack(&m, &plain, false);
    m.args.symmetric = true;
    expect_refusal(&m, NULL, "weight_zero_point: found I32 [3, 5], expected none");
    make_pack(&m, &plain, false);
    m.args.num_bits = 3;
    expect_refusal(&m, NULL, "weight_packed: found I32 [24, 20], expected I32 [24, 15]");
    make_pack(&m, &plain, false);
    m.args.group_size = 64;
    expect_refusal(&m, NULL, "not a multiple of group_size 64");
    make_pack(&m, &plain, false);
    m.args.strategy = CTW_STRATEGY_CHANNEL;
    expect_refusal(&m, NULL, "weight_scale: found BF16 [24, 5], expected [24, 1]");
    make_pack(&m, &plain, false);
    m.args.is_float = true;
    expect_refusal(&m, NULL, "4-bit float");
    make_pack(&m, &plain, false);
    m.args.strategy = CTW_STRATEGY_TENSOR_GROUP;
    (void)add_part(&m, CTW_PART_GLOBAL_SCALE, CTW_F32, 1, 1, 0);
    expect_refusal(&m, NULL, "pack-quantized weights with strategy tensor_group are not supported");
    make_pack(&m, &plain, false);
    expect_refusal(&m, (int64_t[]){24, 161}, "weight_shape: found (24, 161)");
    make_pack(&m, &plain, false);
    (void)add_part(&m, CTW_PART_GLOBAL_SCALE, CTW_F32, 1, 1, 0);
    expect_refusal(&m, NULL, "weight_global_scale: found F32 [1]");
}

static void blocks_are_checked(void **state)
{
    (void)state;
    const struct pack_case c = {"", 4,   CTW_BF16, CTW_STRATEGY_BLOCK, 16, 64, false, true, false,
                                24, 160, NULL};
    struct made m;
    make_pack(&m, &c, false); /* zero points packed, as no library packs those of blocks */
    expect_refusal(&m, NULL, "weight_zero_point: found I32 [1, 3], expected I8 [2, 3]");
    make_pack(&m, &c, false);
    m.args.block_cols = 32;
    expect_refusal(&m, NULL, "weight_scale: found BF16 [2, 3], expected [2, 5] (strategy block");
    make_pack(&m, &c, false);
    m.args.block_rows = 0;
    expect_refusal(&m, NULL, "block_structure [0, 64]");
}

/* compressed-tensors leaves out an index that was never set, and once left out zero points that
 * are all 0: as a symmetric weight of sequential groups. */
static void parts_that_say_nothing_may_be_absent(void **state)
{
    (void)state;
    struct pack_case c = plain;
    float want[160], got[160];
    struct made m;
    c.symmetric = true;
    make_pack(&m, &c, false);
    check_ok(&m);
    m.w.format->decode(&m.w, &m.data, 23, 0, 160, want);
    finish(&m);
    make_pack(&m, &c, false);
    m.args.symmetric = false;
    m.args.actorder_group = true;
    check_ok(&m);
    assert_true(!m.w.indexed);
    assert_true(m.w.symmetric);
    assert_true(!m.w.zero_packed);
    m.w.format->decode(&m.w, &m.data, 23, 0, 160, got);
    assert_memory_equal(got, want, sizeof(want));
    finish(&m);
}

static void ambiguous_packing_is_refused(void **state)
{
    (void)state;
    struct made m;
    struct pack_case c = {"", 3,  CTW_BF16, CTW_STRATEGY_CHANNEL, 0, 0, true, false, false,
                          4,  33, NULL};
    make_pack(&m, &c, false);
    expect_refusal(&m, NULL, "both in the layout");
    c.k = 10; /* one word: the layouts are the same */
    make_pack(&m, &c, false);
    check_ok(&m);
    finish(&m);
}

static void set_index(struct made *m, int64_t column, int32_t group)
{
    memcpy((char *)(uintptr_t)m->data.part[CTW_PART_GROUP_INDEX] + 4 * column, &group, 4);
}

static void group_indices_are_checked(void **state)
{
    (void)state;
    struct pack_case c = {"", 4,   CTW_BF16, CTW_STRATEGY_GROUP, 1, 32, true, false, true,
                          8,  160, NULL};
    struct made m;
    make_pack(&m, &c, false);
    set_index(&m, 9, 5);
    expect_refusal(&m, NULL, "weight_g_idx: found 5 for column 9, expected 0 .. 4");
    make_pack(&m, &c, false);
    set_index(&m, 9, -2);
    expect_refusal(&m, NULL, "weight_g_idx: found -2");
    make_pack(&m, &c, false);
    set_index(&m, 0, 1);
    expect_refusal(&m, NULL, "expected group_size 32");
    make_pack(&m, &c, false);
    set_index(&m, 159, -1); /* never set: groups one after another */
    check_ok(&m);
    assert_false(m.w.indexed);
    finish(&m);
}

static void nvfp4_refusals(void **state)
{
    (void)state;
    struct nvfp4_case c = nvfp4_cases[0];
    struct made m;
    c.global_scale = 0.0f;
    make_nvfp4(&m, &c);
    expect_refusal(&m, NULL, "weight_global_scale: found 0");
    c.global_scale = NAN;
    make_nvfp4(&m, &c);
    expect_refusal(&m, NULL, "weight_global_scale");
    c.global_scale = 1.0f;
    make_nvfp4(&m, &c);
    m.args.group_size = 32;
    expect_refusal(&m, NULL, "group_size 32");
    make_nvfp4(&m, &c);
    m.w.n--;
    expect_refusal(&m, NULL, "weight_packed: found U8 [48, 184]");
    c.global_scale = NONE; /* which tensor_group must have */
    make_nvfp4(&m, &c);
    m.args.strategy = CTW_STRATEGY_TENSOR_GROUP;
    expect_refusal(&m, NULL, "weight_global_scale: found absent, expected one F32");
}

static void transposed_refusals(void **state)
{
    (void)state;
    struct made m;
    make_transposed(&m, CTW_BF16, 4, 64);
    m.w.n = 64; /* a square would hide a wrong layout; any other shape shows it */
    m.w.k = 4;
    expect_refusal(&m, NULL, "weight: found BF16 [64, 4], expected [4, 64] (inputs, outputs)");
    make_transposed(&m, CTW_BF16, 4, 64);
    m.args.present = true;
    expect_refusal(&m, NULL,
                   "one that is quantised is not supported (weight BF16 [64, 4], and "
                   "quantization_config quantises it)");
    make_transposed(&m, CTW_BF16, 4, 64);
    (void)add_part(&m, CTW_PART_ZERO_POINT, CTW_I8, 2, 4, 1);
    expect_refusal(&m, NULL, "weight_zero_point: found I8 [4, 1], which a dense-transposed");
    make_pack(&m, &plain, false);
    m.w.part[CTW_PART_VALUES].transposed = true;
    expect_refusal(&m, NULL, "one that is quantised is not supported (weight I32 [24, 20]");
    start(&m, 4, 64, (struct ctw_quant_args){.present = false});
    (void)add_part(&m, CTW_PART_VALUES, CTW_F8_E4M3, 2, 64, 4);
    (void)add_part(&m, CTW_PART_SCALE, CTW_BF16, 2, 4, 1);
    m.w.part[CTW_PART_VALUES].transposed = true;
    expect_refusal(&m, NULL, "one that is quantised is not supported (weight F8_E4M3 [64, 4]");
}

static void unknown_tensors_are_named(void **state)
{
    (void)state;
    struct made m;
    start(&m, 4, 64, (struct ctw_quant_args){.present = true, .num_bits = 8, .is_float = true});
    (void)add_part(&m, CTW_PART_VALUES, CTW_F8_E4M3, 2, 4, 64);
    expect_refusal(&m, NULL, "look like FP8 without scales, which is not supported");
    start(&m, 4, 64, (struct ctw_quant_args){.present = true, .num_bits = 8, .is_float = true});
    (void)add_part(&m, CTW_PART_VALUES, CTW_F8_E5M2, 2, 4, 64);
    (void)add_part(&m, CTW_PART_SCALE, CTW_BF16, 2, 4, 1);
    expect_refusal(&m, NULL, "look like FP8 of 5 exponent bits (E5M2), which is not supported");
    start(&m, 4, 64, (struct ctw_quant_args){.present = true, .num_bits = 16});
    (void)add_part(&m, CTW_PART_VALUES, CTW_I16, 2, 4, 64);
    (void)add_part(&m, CTW_PART_SCALE, CTW_BF16, 2, 4, 1);
    expect_refusal(&m, NULL, "look like integers of more than 8 bits, which is not supported");
    start(&m, 4, 64, (struct ctw_quant_args){.present = true, .num_bits = 4});
    (void)add_part(&m, CTW_PART_VALUES, CTW_BF16, 2, 4, 64);
    expect_refusal(&m, NULL, "stored dense (BF16)");
    start(&m, 4, 65, (struct ctw_quant_args){.present = false});
    (void)add_part(&m, CTW_PART_VALUES, CTW_BF16, 2, 4, 64);
    expect_refusal(&m, NULL, "weight: found BF16 [4, 64], expected [4, 65]");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pack_quantized_equals_compressed_tensors),
        cmocka_unit_test(whole_codes_decode_alike),
        cmocka_unit_test(nvfp4_equals_compressed_tensors),
        cmocka_unit_test(known_words),
        cmocka_unit_test(nvfp4_keeps_minus_zero),
        cmocka_unit_test(nvfp4_scales_divide_without_dividing),
        cmocka_unit_test(dense_is_widened_exactly),
        cmocka_unit_test(transposed_rows_are_stored_columns),
        cmocka_unit_test(spans_agree_with_rows),
        cmocka_unit_test(blocks_have_a_scale_and_a_zero_point),
        cmocka_unit_test(contradictions_are_refused),
        cmocka_unit_test(blocks_are_checked),
        cmocka_unit_test(parts_that_say_nothing_may_be_absent),
        cmocka_unit_test(ambiguous_packing_is_refused),
        cmocka_unit_test(group_indices_are_checked),
        cmocka_unit_test(nvfp4_refusals),
        cmocka_unit_test(transposed_refusals),
        cmocka_unit_test(unknown_tensors_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
