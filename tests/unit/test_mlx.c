/* MLX: decoding bit by bit as mx.dequantize() does on the CPU; configurations, and refusals. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "capture.h"
#include "made_weight.h"
#define expect_refusal expect_model_refusal
#include "native_checkpoint.h"
#undef expect_refusal

struct affine_case {
    const char *name;
    enum ctw_dtype dtype;
    int bits;
    int64_t group, n, k;
    const char *sha256;
};

struct float_case {
    const char *name;
    int width;    /* bytes of codes that share a scale */
    float global; /* 0: none */
    int64_t n, k;
    const char *sha256;
};

#include "mlx_vectors.h"

static uint8_t *add_bytes(struct made *m, enum ctw_part_kind kind, enum ctw_dtype dtype, int64_t d0,
                          int64_t d1)
{
    uint8_t *p = add_part(m, kind, dtype, 2, d0, d1);
    for (size_t i = 0; i < m->w.part[kind].bytes; i++)
        p[i] = (uint8_t)next_byte(m);
    return p;
}

static void begin(struct made *m, int64_t n, int64_t k, int bits, bool is_float, int64_t group)
{
    start(m, n, k,
          (struct ctw_quant_args){.present = true,
                                  .num_bits = bits,
                                  .is_float = is_float,
                                  .symmetric = true,
                                  .strategy = CTW_STRATEGY_GROUP,
                                  .group_size = group});
    m->w.names = ctw_part_names_find("mlx");
}

static void make_affine(struct made *m, const struct affine_case *c)
{
    begin(m, c->n, c->k, c->bits, false, c->group);
    (void)add_bytes(m, CTW_PART_VALUES, CTW_U32, c->n, c->k * c->bits / 32);
    add_scales(m, c->dtype, 2, c->n, c->k / c->group);
    /* The biases follow in the same way. */
    const struct ctw_part scale = m->w.part[CTW_PART_SCALE];
    const void *data = m->data.part[CTW_PART_SCALE];
    add_scales(m, c->dtype, 2, c->n, c->k / c->group);
    m->w.part[CTW_PART_GROUP_BIAS] = m->w.part[CTW_PART_SCALE];
    m->data.part[CTW_PART_GROUP_BIAS] = m->data.part[CTW_PART_SCALE];
    m->w.part[CTW_PART_SCALE] = scale;
    m->data.part[CTW_PART_SCALE] = data;
}

static void affine_equals_mlx(void **state)
{
    (void)state;
    for (size_t i = 0; i < CTW_COUNT(affine_cases); i++) {
        const struct affine_case *c = &affine_cases[i];
        struct made m;
        make_affine(&m, c);
        check_ok(&m);
        assert_int_equal(m.w.format->id, CTW_FORMAT_mlx_affine);
        assert_int_equal(m.w.dtype, c->dtype);
        expect_hash(&m, c->name, c->dtype, c->sha256);
        finish(&m);
    }
}

static void make_float(struct made *m, const struct float_case *c)
{
    const int bits = c->width == 32 ? 8 : 4;
    const int64_t group = c->width == 8 ? 16 : 32;
    begin(m, c->n, c->k, bits, true, group);
    uint8_t *codes = add_bytes(m, CTW_PART_VALUES, CTW_U32, c->n, c->k * bits / 32);
    for (int64_t i = 0; bits == 8 && i < c->n * c->k; i++)
        codes[i] = (codes[i] & 0x7f) == 0x7f ? 0 : codes[i];
    uint8_t *scales = add_bytes(m, CTW_PART_SCALE, CTW_U8, c->n, c->k / group);
    for (int64_t i = 0; i < c->n * c->k / group; i++)
        if (group == 16 ? (scales[i] & 0x7f) == 0x7f : scales[i] == 255)
            scales[i] = 0;
    if (c->global != 0)
        memcpy(add_part(m, CTW_PART_GLOBAL_SCALE, CTW_F32, 0, 0, 0), &c->global, 4);
}

static void floats_equal_mlx(void **state)
{
    (void)state;
    for (size_t i = 0; i < CTW_COUNT(float_cases); i++) {
        const struct float_case *c = &float_cases[i];
        struct made m;
        make_float(&m, c);
        ctw_parts_as_mlx(m.w.part);
        check_ok(&m);
        assert_int_equal(m.w.format->id, c->global != 0   ? CTW_FORMAT_nvfp4_mlx
                                         : c->width == 8  ? CTW_FORMAT_nvfp4
                                         : c->width == 32 ? CTW_FORMAT_mxfp8
                                                          : CTW_FORMAT_mxfp4);
        expect_hash(&m, c->name, c->global != 0 ? CTW_F32 : CTW_BF16, c->sha256);
        finish(&m);
    }
}

static void a_global_scale_is_a_number(void **state)
{
    (void)state;
    struct made m;
    struct float_case c = float_cases[CTW_COUNT(float_cases) - 1];
    c.global = 1.0f / 0.0f;
    make_float(&m, &c);
    ctw_parts_as_mlx(m.w.part);
    expect_refusal(&m, NULL, "global_scale: found inf, expected a finite number");
}

/* ---- checkpoints ---- */

#define MLX(members) BF16_CONFIG ", \"quantization\": {" members "}"

/* q_proj [32, 32], in one group a row. */
static void set_affine(struct checkpoint *c, const char *words, size_t bytes)
{
    set_parts(c, &(struct parts){{Q ".weight", "U32", words, bytes, NULL},
                                 {Q ".scales", "BF16", "32, 1", 64, NULL},
                                 {Q ".biases", "BF16", "32, 1", 64, NULL}});
}

static void configurations(void **state)
{
    struct checkpoint *c = *state;
    static const struct {
        const char *config, *words; /* NULL: it opens */
    } rows[] = {
        {MLX("\"group_size\": 32, \"bits\": 4"), NULL},
        {MLX("\"group_size\": 32, \"bits\": 4, \"mode\": \"affine\", \"" Q "\": true"), NULL},
        {QUANTISED("\"group_size\": 32, \"bits\": 4"), NULL},
        /* mlx-lm's key comes first. */
        {MLX("\"group_size\": 32, \"bits\": 4") ", \"quantization_config\": {\"quant_method\": "
                                                "\"hqq\"}",
         NULL},
        /* The shapes decide where no arguments are the module's own. */
        {MLX("\"group_size\": 64, \"bits\": 8"), NULL},
        {MLX("\"group_size\": 64, \"bits\": 8, \"" Q "\": {\"group_size\": 32, \"bits\": 4}"),
         NULL},
        {MLX("\"group_size\": 32, \"bits\": 4, \"" Q "\": {\"group_size\": 32, \"bits\": 8}"),
         Q ": weight: found U32 [32, 4], expected U32 [32, 8] for a [32, 32] matrix of 8 bits"},
        {MLX("\"group_size\": 32, \"bits\": 4, \"" Q "\": {\"bits\": 4}"),
         "32 columns are not a multiple of group_size 64, which MLX needs"},
        {MLX("\"group_size\": 32, \"bits\": 4, \"" Q "\": {\"mode\": \"mxfp4\"}"),
         "its scales are numbers, as in mode affine, but the configuration says a mode of 4-bit"},
        {MLX("\"group_size\": 32, \"bits\": 4, \"" Q "\": false"), "has no config group"},
        {MLX("\"group_size\": 32, \"bits\": 4, \"" Q "\": {\"bits\": 7, \"group_size\": 32}"),
         "7 bits: expected 1, 2, 3, 4, 5, 6 or 8"},
        {MLX("\"group_size\": 32, \"bits\": 4, \"" Q "\": {\"bits\": 4, \"group_size\": 16}"),
         "group_size 16: expected 32, 64 or 128"},
        {MLX("\"group_size\": 32, \"bits\": 9"),
         "quantization.bits: expected a whole number from 1 to 8, found the number 9"},
        {MLX("\"group_size\": 32, \"bits\": 4, \"mode\": \"nf4\""),
         "\"nf4\" is not supported; expected affine, mxfp4, mxfp8 or nvfp4"},
        {MLX("\"group_size\": 64, \"bits\": 4, \"mode\": \"mxfp4\""),
         "mode \"mxfp4\" has 4 bits and group_size 32; found 4 and 64"},
        {BF16_CONFIG, "is a tensor of format \"MLX\", but the configuration does not say "
                      "quant_method \"mlx\""},
    };
    set_affine(c, "32, 4", 512);
    for (size_t i = 0; i < CTW_COUNT(rows); i++) {
        c->config = rows[i].config;
        if (rows[i].words != NULL) {
            expect_model_refusal(c, rows[i].words);
            continue;
        }
        struct ctw_weight w = q_weight(c, NULL);
        assert_int_equal(w.format->id, CTW_FORMAT_mlx_affine);
        assert_int_equal(w.bits, 4);
        assert_int_equal(w.group_size, 32);
    }
}

static void tensors_must_fit(void **state)
{
    struct checkpoint *c = *state;
    struct capture log;
    c->config = MLX("\"group_size\": 32, \"bits\": 4");
    set_affine(c, "32, 4", 512);
    find(c, Q ".biases")->shape = "32, 2";
    find(c, Q ".biases")->bytes = 128;
    expect_model_refusal(c, "biases: found BF16 [32, 2], expected BF16 [32, 1], as scales");
    drop(c, Q ".biases");
    expect_model_refusal(c, "biases: found absent, expected BF16 [32, 1], as scales");
    add(c, Q ".biases", "F16", "32, 1", 64, NULL);
    expect_model_refusal(c, "biases: found F16 [32, 1], expected BF16 [32, 1], as scales");
    set_affine(c, "32, 3", 384); /* 3 bits by its shape, which the log says */
    capture_start(&log, CTW_LOG_WARN);
    assert_int_equal(q_weight(c, NULL).bits, 3);
    capture_stop(&log);
    capture_expect(&log, "(the first is " Q ") is stored quantised, but not as");
    set_parts(c, &(struct parts){{Q ".weight", "U32", "32, 4", 512, NULL},
                                 {Q ".scales", "U8", "32, 2", 64, NULL},
                                 {NULL, NULL, NULL, 0, NULL}});
    assert_int_equal(q_weight(c, NULL).format->id, CTW_FORMAT_nvfp4);
    add(c, Q ".global_scale", "F32", "", 4, NULL);
    assert_int_equal(q_weight(c, NULL).format->id, CTW_FORMAT_nvfp4_mlx);
    drop(c, Q ".global_scale");
    find(c, Q ".scales")->shape = "32, 3";
    find(c, Q ".scales")->bytes = 96;
    expect_model_refusal(c, "scales: found U8 [32, 3], expected U8 [32, 1]");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(affine_equals_mlx),
        cmocka_unit_test(floats_equal_mlx),
        cmocka_unit_test(a_global_scale_is_a_number),
        TEST(configurations),
        TEST(tensors_must_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
