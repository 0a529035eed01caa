/* Weights of a byte per value, MXFP4 and MXFP6: decoding bit by bit, and the refusal of parts that
 * do not fit. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "made_weight.h"

static void bytes_equal_compressed_tensors(void **state)
{
    (void)state;
    for (size_t i = 0; i < CTW_COUNT(bytes_cases); i++) {
        const struct bytes_case *c = &bytes_cases[i];
        struct made m;
        make_bytes(&m, c);
        check_ok(&m);
        assert_int_equal(m.w.format->id,
                         c->is_float ? CTW_FORMAT_float_quantized : CTW_FORMAT_int_quantized);
        assert_int_equal(m.w.dtype, c->dtype);
        expect_hash(&m, c->name, m.w.dtype, c->sha256);
        finish(&m);
    }
}

static void mx_equals_compressed_tensors(void **state)
{
    (void)state;
    for (size_t i = 0; i < CTW_COUNT(mx_cases); i++) {
        struct made m;
        make_mx(&m, &mx_cases[i]);
        check_ok(&m);
        assert_int_equal(m.w.dtype, CTW_BF16);
        expect_hash(&m, mx_cases[i].name, CTW_BF16, mx_cases[i].sha256);
        enum ctw_format_id id = m.w.format->id;
        m.w.part[CTW_PART_SCALE].dtype = CTW_F8_E8M0; /* the same exponents in torch's dtype */
        check_ok(&m);
        assert_int_equal(m.w.format->id, id);
        expect_hash(&m, mx_cases[i].name, CTW_BF16, mx_cases[i].sha256);
        finish(&m);
    }
}

/* All codes, in whole vectors and in a tail, with scales from the smallest to the largest. */
static void every_fp8_code_is_multiplied_once(void **state)
{
    (void)state;
    enum { K = 256 + 5 };
    static const uint16_t scales[] = {0x0001, 0x0080, 0x3c00, 0x3f80, 0x3c8d, 0x7f7f, 0xbf80};
    for (size_t s = 0; s < CTW_COUNT(scales); s++) {
        const struct bytes_case c = {"", true, CTW_BF16, CTW_STRATEGY_CHANNEL, 0, 0, true, false,
                                     1,  K,    NULL};
        struct made m;
        float out[K];
        make_bytes(&m, &c);
        uint8_t *values = (uint8_t *)(uintptr_t)m.data.part[CTW_PART_VALUES];
        for (int i = 0; i < K; i++)
            values[i] = (uint8_t)(i < 256 ? i : i - 256 + 125); /* with 0x7f, NaN */
        memcpy((void *)(uintptr_t)m.data.part[CTW_PART_SCALE], &scales[s], 2);
        check_ok(&m);
        m.w.format->decode(&m.w, &m.data, 0, 0, K, out);
        for (int i = 0; i < K; i++) {
            float want =
                ctw_round_float(ctw_e4m3_to_f32(values[i]) * ctw_bf16_to_f32(scales[s]), CTW_BF16);
            assert_true(isnan(want) ? isnan(out[i])
                                    : ctw_f32_to_bits(out[i]) == ctw_f32_to_bits(want));
        }
        finish(&m);
    }
}

/* All codes of E2M3, in a whole vector and in a tail, against their definition. */
static void every_fp6_code(void **state)
{
    (void)state;
    enum { K = 64 };
    for (int exponent = 100; exponent < 130; exponent += 7) {
        struct made m;
        float out[K];
        make_mx(&m, &(struct mx_case){"", 6, 1, K, NULL});
        uint8_t *values = (uint8_t *)(uintptr_t)m.data.part[CTW_PART_VALUES];
        memset(values, 0, K * 6 / 8);
        for (uint32_t i = 0; i < K; i++)
            put_code(values, 4, i, 6, false, i);
        memset((void *)(uintptr_t)m.data.part[CTW_PART_SCALE], exponent, K / 32);
        check_ok(&m);
        assert_int_equal(m.w.format->id, CTW_FORMAT_mxfp6);
        for (int n = K; n >= K - 5; n--) {
            m.w.format->decode(&m.w, &m.data, 0, 0, n, out);
            for (int i = 0; i < n; i++) {
                int e = i >> 3 & 3;
                float magnitude =
                    e == 0 ? (float)(i & 7) / 8 : ldexpf(1 + (float)(i & 7) / 8, e - 1);
                float want = ldexpf(i < 32 ? magnitude : -magnitude, exponent - 127);
                assert_true(ctw_f32_to_bits(out[i]) == ctw_f32_to_bits(want));
            }
        }
        finish(&m);
    }
}

/* A block's rows share its scales, whatever row comes first; the edges' blocks are short. */
static void blocks_are_found_by_division(void **state)
{
    (void)state;
    enum { N = 300, K = 260 };
    const struct bytes_case c = {"", true, CTW_BF16, CTW_STRATEGY_BLOCK, 128, 128, true, false,
                                 N,  K,    NULL};
    struct made m;
    uint16_t row[K];
    make_bytes(&m, &c);
    memset((void *)(uintptr_t)m.data.part[CTW_PART_VALUES], 0x38, N * K); /* 1 */
    for (int i = 0; i < 9; i++)
        ctw_store_float((void *)(uintptr_t)m.data.part[CTW_PART_SCALE], CTW_BF16, i,
                        (float)(i + 1));
    check_ok(&m);
    assert_true(m.w.group_rows == 128);
    assert_true(m.w.group_size == 128);
    assert_true(m.w.n_groups == 3);
    for (int64_t r = 0; r < N; r++) {
        ctw_weight_decode(&m.w, &m.data, r, 1, CTW_BF16, row, K);
        for (int64_t k = 0; k < K; k++)
            assert_true(ctw_bf16_to_f32(row[k]) == (float)(r / 128 * 3 + k / 128 + 1));
    }
    finish(&m);
}

/* 2^-127 is below fp32's normal numbers; code 255 is infinity, as in compressed-tensors. */
static void powers_of_two_at_the_ends(void **state)
{
    (void)state;
    static const float want[3] = {0x1p-127f, 0x1p127f, INFINITY};
    static const uint8_t code[3] = {0, 254, 255};
    static const uint8_t minus_one[9][3] = {
        [4] = {0xaa, 0xaa, 0xaa}, [6] = {0x28, 0x8a, 0xa2}, [8] = {0xb8, 0xb8, 0xb8}};
    for (int bits = 4; bits <= 8; bits += 2)
        for (int i = 0; i < 3; i++) {
            struct made m;
            float out[32];
            make_mx(&m, &(struct mx_case){"", bits, 1, 32, NULL});
            uint8_t *values = (uint8_t *)(uintptr_t)m.data.part[CTW_PART_VALUES];
            for (int b = 0; b < 4 * bits; b++)
                values[b] = minus_one[bits][b % 3];
            *(uint8_t *)(uintptr_t)m.data.part[CTW_PART_SCALE] = code[i];
            check_ok(&m);
            m.w.format->decode(&m.w, &m.data, 0, 0, 32, out);
            for (int c = 0; c < 32; c++)
                assert_true(out[c] == -want[i]);
            m.w.part[CTW_PART_SCALE].dtype = CTW_F8_E8M0; /* whose last code is NaN */
            m.w.format->decode(&m.w, &m.data, 0, 0, 32, out);
            for (int c = 0; c < 32; c++)
                assert_true(code[i] == 255 ? isnan(out[c]) != 0 : out[c] == -want[i]);
            finish(&m);
        }
}

static void bytes_refusals(void **state)
{
    (void)state;
    const struct bytes_case fp8 = {"",  true, CTW_BF16, CTW_STRATEGY_BLOCK, 128, 128, true, false,
                                   200, 300,  NULL};
    const struct bytes_case int8 = {"", false, CTW_BF16, CTW_STRATEGY_GROUP, 1, 32, false, false,
                                    24, 160,   NULL};
    struct made m;
    make_bytes(&m, &fp8);
    m.args.present = false;
    expect_refusal(&m, NULL, "its tensors are float-quantized, but quantization_config has no");
    make_bytes(&m, &fp8);
    m.args.is_float = false;
    expect_refusal(&m, NULL, "8-bit int, symmetric; expected 8-bit float, symmetric");
    make_bytes(&m, &fp8);
    m.args.symmetric = false;
    expect_refusal(&m, NULL, "8-bit float, asymmetric; expected 8-bit float, symmetric");
    make_bytes(&m, &fp8);
    m.args.symmetric = false;
    (void)add_part(&m, CTW_PART_ZERO_POINT, CTW_F8_E4M3, 2, 2, 3);
    expect_refusal(&m, NULL, "FP8 weights with zero points (symmetric: false)");
    make_bytes(&m, &fp8);
    m.args.block_rows = 64;
    expect_refusal(&m, NULL,
                   "weight_scale: found BF16 [2, 3], expected [4, 3] (strategy block, 64 x 128)");
    make_bytes(&m, &fp8);
    m.args.block_cols = 0;
    expect_refusal(&m, NULL, "block_structure [128, 0]");
    make_bytes(&m, &fp8);
    m.args.strategy = CTW_STRATEGY_TENSOR_GROUP;
    expect_refusal(&m, NULL, "strategy tensor_group are not supported");
    make_bytes(&m, &fp8);
    m.w.k = 301;
    expect_refusal(&m, NULL, "weight: found F8_E4M3 [200, 300], expected [200, 301]");
    make_bytes(&m, &fp8);
    (void)add_part(&m, CTW_PART_GLOBAL_SCALE, CTW_F32, 1, 1, 0);
    expect_refusal(&m, NULL, "weight_global_scale: found F32 [1], which a float-quantized");
    make_bytes(&m, &int8);
    m.args.symmetric = true;
    expect_refusal(&m, NULL, "weight_zero_point: found I8 [24, 5], expected none");
    make_bytes(&m, &int8);
    m.args.num_bits = 16;
    expect_refusal(&m, NULL, "16-bit int; expected 1 to 8 bits, int");
    make_bytes(&m, &int8);
    m.w.part[CTW_PART_ZERO_POINT].dtype = CTW_I32;
    expect_refusal(&m, NULL, "weight_zero_point: found I32 [24, 5], expected I8 [24, 5]");
    make_bytes(&m, &int8);
    m.args.group_size = 64;
    expect_refusal(&m, NULL, "not a multiple of group_size 64");
    make_bytes(&m, &int8);
    add_index(&m, 160, 5);
    expect_refusal(&m, NULL, "quantization_config does not say actorder group");
}

static void mx_refusals(void **state)
{
    (void)state;
    for (size_t i = 0; i < CTW_COUNT(mx_cases); i++) {
        struct made m;
        make_mx(&m, &mx_cases[i]);
        m.args.present = false;
        expect_refusal(&m, NULL, "so it should be dense");
        make_mx(&m, &mx_cases[i]);
        m.args.group_size = 16;
        expect_refusal(&m, NULL, "group_size 16; expected");
        make_mx(&m, &mx_cases[i]);
        m.args.num_bits = 5;
        expect_refusal(&m, NULL, "5-bit float");
        make_mx(&m, &mx_cases[i]);
        m.w.n--;
        expect_refusal(
            &m, NULL,
            (const char *[]){"weight_scale: found U8 [48, 13], expected U8 [47, 13]",
                             "weight_scale: found U8 [41, 23], expected U8 [40, 23]",
                             "weight_scale: found U8 [37, 19], expected U8 [36, 19]"}[i]);
        make_mx(&m, &mx_cases[i]);
        m.w.k -= 16;
        expect_refusal(&m, NULL, "not a multiple of 32");
        make_mx(&m, &mx_cases[i]);
        (void)add_part(&m, CTW_PART_ZERO_POINT, CTW_I8, 2, m.w.n, 1);
        expect_refusal(&m, NULL, "weight_zero_point: found I8");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_equal_compressed_tensors),
        cmocka_unit_test(mx_equals_compressed_tensors),
        cmocka_unit_test(every_fp8_code_is_multiplied_once),
        cmocka_unit_test(every_fp6_code),
        cmocka_unit_test(blocks_are_found_by_division),
        cmocka_unit_test(powers_of_two_at_the_ends),
        cmocka_unit_test(bytes_refusals),
        cmocka_unit_test(mx_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
