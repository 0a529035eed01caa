/* Weights of other methods than compressed-tensors: decoding bit by bit, as the libraries that
 * define the formats do. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "made_weight.h"

/* GPTQ and AWQ */
struct transposed_case {
    const char *name;
    int bits;
    bool zero_less_one, symmetric, indexed;
    int64_t group, n, k;
    const char *sha256; /* of the decoded fp16 */
};

struct fp8_case {
    const char *name;
    enum ctw_dtype scales; /* F32; U8 and F8_E8M0: exponents */
    int64_t rows, columns; /* of a block; 0: one scale */
    int64_t n, k;
    const char *sha256; /* of the decoded fp32, or with exponents bf16 */
};

#include "native_vectors.h"

static void add_words(struct made *m, enum ctw_part_kind kind, int64_t rows, int64_t columns)
{
    uint8_t *p = add_part(m, kind, CTW_I32, 2, rows, columns);
    for (int64_t i = 0; i < 4 * rows * columns; i++)
        p[i] = (uint8_t)next_byte(m);
}

static void make_transposed(struct made *m, const struct transposed_case *c, const char *method)
{
    bool awq = strcmp(method, "awq") == 0;
    struct ctw_quant_args args = {.present = true,
                                  .num_bits = c->bits,
                                  .symmetric = c->symmetric,
                                  .zero_less_one = c->zero_less_one,
                                  .strategy = c->group ? CTW_STRATEGY_GROUP : CTW_STRATEGY_CHANNEL,
                                  .group_size = c->group};
    int64_t groups = c->group != 0 ? c->k / c->group : 1;
    start(m, c->n, c->k, args);
    m->w.names = ctw_part_names_find(method);
    if (awq)
        add_words(m, CTW_PART_VALUES, c->k, c->n / 8);
    else
        add_words(m, CTW_PART_VALUES, c->k * c->bits / 32, c->n);
    add_scales(m, CTW_F16, 2, groups, c->n);
    add_words(m, CTW_PART_ZERO_POINT, groups, c->n * c->bits / 32);
    if (c->symmetric)
        memset((void *)(uintptr_t)m->data.part[CTW_PART_ZERO_POINT], 0x77,
               m->w.part[CTW_PART_ZERO_POINT].bytes);
    if (c->indexed)
        add_index(m, c->k, groups);
}

static void expect_cases(const struct transposed_case *cases, size_t n, const char *method)
{
    for (size_t i = 0; i < n; i++) {
        struct made m;
        make_transposed(&m, &cases[i], method);
        check_ok(&m);
        assert_string_equal(m.w.format->name, method);
        assert_true(m.w.dtype == CTW_F16);
        assert_true(m.w.zero_less_one == cases[i].zero_less_one);
        assert_int_equal(m.w.indexed, cases[i].indexed);
        expect_hash(&m, cases[i].name, CTW_F16, cases[i].sha256);
        finish(&m);
    }
}

static void gptq_equals_gptqmodel(void **state)
{
    (void)state;
    expect_cases(gptq_cases, CTW_COUNT(gptq_cases), "gptq");
}

static void awq_equals_autoawq(void **state)
{
    (void)state;
    expect_cases(awq_cases, CTW_COUNT(awq_cases), "awq");
}

/* transformers' function takes blocks that divide the matrix. */
static void fp8_equals_transformers(void **state)
{
    (void)state;
    for (size_t i = 0; i < CTW_COUNT(fp8_cases); i++) {
        const struct fp8_case *c = &fp8_cases[i];
        struct made m;
        make_bytes(&m, &(struct bytes_case){c->name, true, c->scales,
                                            c->rows ? CTW_STRATEGY_BLOCK : CTW_STRATEGY_TENSOR,
                                            c->rows, c->columns, true, false, c->n, c->k, NULL});
        m.w.names = ctw_part_names_find("fp8");
        check_ok(&m);
        assert_int_equal(m.w.dtype, c->scales == CTW_F32 ? CTW_F32 : CTW_BF16);
        expect_hash(&m, c->name, m.w.dtype, c->sha256);
        finish(&m);
    }
}

static void nvfp4_equals_modelopt(void **state)
{
    (void)state;
    for (size_t i = 0; i < CTW_COUNT(modelopt_cases); i++) {
        struct made m;
        make_nvfp4(&m, &modelopt_cases[i]);
        m.w.names = ctw_part_names_find("modelopt");
        check_ok(&m);
        assert_int_equal(m.w.format->id, CTW_FORMAT_nvfp4_modelopt);
        expect_hash(&m, modelopt_cases[i].name, CTW_F32, modelopt_cases[i].sha256);
        finish(&m);
    }
}

/* gpt-oss' shape of the same bytes: each block of 32 columns is a dimension. */
static void mxfp4_in_blocks(void **state)
{
    (void)state;
    const struct mx_case *c = &mx_cases[0];
    struct made m;
    make_mx(&m, c);
    struct ctw_part *values = &m.w.part[CTW_PART_VALUES];
    m.w.names = ctw_part_names_find("mxfp4");
    values->n_dims = 3;
    values->shape[1] = c->k / 32;
    values->shape[2] = 16;
    check_ok(&m);
    expect_hash(&m, c->name, CTW_BF16, c->sha256);
    values->shape[1] = c->k / 16;
    values->shape[2] = 8;
    expect_refusal(&m, NULL, "_blocks: found U8 [48, 26, 8], expected U8 [48, 208]");
}

/* The last code: infinity in bytes, NaN in torch's dtype. */
static void the_last_exponent_is_as_torch_has_it(void **state)
{
    (void)state;
    enum { K = 300 };
    static const enum ctw_dtype dtypes[] = {CTW_U8, CTW_F8_E8M0};
    for (int i = 0; i < 2; i++) {
        struct made m;
        float out[K];
        make_bytes(&m, &(struct bytes_case){"", true, dtypes[i], CTW_STRATEGY_BLOCK, 2, 100, true,
                                            false, 2, K, NULL});
        memset((void *)(uintptr_t)m.data.part[CTW_PART_VALUES], 0x38, 2 * K); /* 1 */
        memcpy((void *)(uintptr_t)m.data.part[CTW_PART_SCALE], "\x00\xff\xfe", 3);
        check_ok(&m);
        m.w.format->decode(&m.w, &m.data, 1, 0, K, out);
        assert_true(out[0] == 0x1p-127f);
        assert_true(out[99] == 0x1p-127f);
        assert_true(out[200] == 0x1p127f);
        assert_true(dtypes[i] == CTW_U8 ? isinf(out[100]) : isnan(out[100]));
        assert_true(dtypes[i] == CTW_U8 ? isinf(out[199]) : isnan(out[199]));
        finish(&m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gptq_equals_gptqmodel),
        cmocka_unit_test(awq_equals_autoawq),
        cmocka_unit_test(fp8_equals_transformers),
        cmocka_unit_test(nvfp4_equals_modelopt),
        cmocka_unit_test(mxfp4_in_blocks),
        cmocka_unit_test(the_last_exponent_is_as_torch_has_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
