/* bitsandbytes: decoding bit by bit as the library does; configurations, states, and refusals. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/formats/bnb_4bit/decode.h"
#include "made_weight.h"
#define expect_refusal expect_model_refusal
#include "native_checkpoint.h"
#undef expect_refusal

struct four_case {
    const char *name;
    enum ctw_dtype dtype;
    bool fp4, nested;
    int64_t block, n, k;
    const char *sha256;
};

#include "bnb_vectors.h"

static void add_bytes(struct made *m, enum ctw_part_kind kind, int n_dims, int64_t d0, int64_t d1)
{
    uint8_t *p =
        add_part(m, kind, kind == CTW_PART_VALUES && n_dims == 2 && d1 > 1 ? CTW_I8 : CTW_U8,
                 n_dims, d0, d1);
    for (size_t i = 0; i < m->w.part[kind].bytes; i++)
        p[i] = (uint8_t)next_byte(m);
}

/* F32 numbers as another part than the scale. */
static void add_numbers(struct made *m, enum ctw_part_kind kind, int64_t n)
{
    const struct ctw_part scale = m->w.part[CTW_PART_SCALE];
    const void *data = m->data.part[CTW_PART_SCALE];
    add_scales(m, CTW_F32, 1, n, 1);
    m->w.part[kind] = m->w.part[CTW_PART_SCALE];
    m->data.part[kind] = m->data.part[CTW_PART_SCALE];
    m->w.part[CTW_PART_SCALE] = scale;
    m->data.part[CTW_PART_SCALE] = data;
}

static void make_four(struct made *m, const struct four_case *c)
{
    const int64_t blocks = (c->n * c->k + c->block - 1) / c->block;
    start(m, c->n, c->k,
          (struct ctw_quant_args){.present = true,
                                  .num_bits = 4,
                                  .is_float = true,
                                  .symmetric = true,
                                  .strategy = CTW_STRATEGY_GROUP,
                                  .group_size = c->block,
                                  .dtype = c->dtype,
                                  .fp4 = c->fp4,
                                  .scale_offset = c->nested ? 0.0125f : 0.0f});
    m->w.names = ctw_part_names_find("bitsandbytes");
    add_bytes(m, CTW_PART_VALUES, 2, c->n * c->k / 2, 1);
    if (c->nested) {
        add_bytes(m, CTW_PART_SCALE, 1, blocks, 0);
        add_numbers(m, CTW_PART_SCALE_VALUES, 256);
        add_numbers(m, CTW_PART_SCALE_SCALE, (blocks + 255) / 256);
    } else {
        add_scales(m, CTW_F32, 1, blocks, 1);
    }
    uint8_t *book = add_part(m, CTW_PART_CODE_VALUES, CTW_F32, 1, 16, 0);
    for (uint32_t i = 0; i < 16; i++) {
        float v = ctw_bnb_value(i, c->fp4);
        memcpy(book + 4 * i, &v, 4);
    }
    (void)add_part(m, CTW_PART_STATE, CTW_U8, 1, 80, 0);
}

static void four_bits_equal_bitsandbytes(void **state)
{
    (void)state;
    for (size_t i = 0; i < CTW_COUNT(four_cases); i++) {
        struct made m;
        make_four(&m, &four_cases[i]);
        check_ok(&m);
        assert_int_equal(m.w.format->id, CTW_FORMAT_bnb_4bit);
        expect_hash(&m, four_cases[i].name, four_cases[i].dtype, four_cases[i].sha256);
        finish(&m);
    }
}

static void int8_equals_bitsandbytes(void **state)
{
    (void)state;
    struct made m;
    start(&m, 9, 333, (struct ctw_quant_args){.present = true, .num_bits = 8, .symmetric = true});
    m.w.names = ctw_part_names_find("bitsandbytes");
    add_bytes(&m, CTW_PART_VALUES, 2, 9, 333);
    add_scales(&m, CTW_F32, 1, 9, 1);
    uint8_t *layout = add_part(&m, CTW_PART_LAYOUT, CTW_U8, 0, 0, 0);
    check_ok(&m);
    expect_hash(&m, "int8", CTW_F32, int8_sha256);
    *layout = 1;
    expect_refusal(&m, NULL, "weight_format: found 1, expected 0 (rows)");
}

static void parts_must_fit(void **state)
{
    (void)state;
    struct made m;
    const struct four_case plain = {"", CTW_BF16, false, false, 64, 4, 64, NULL};
    struct four_case nested = plain;
    nested.nested = true;
    make_four(&m, &plain);
    ((uint8_t *)(uintptr_t)m.data.part[CTW_PART_CODE_VALUES])[3] ^= 0x80;
    expect_refusal(&m, NULL, "weight.quant_map: found 1 as the value of code 0, expected -1");
    make_four(&m, &plain);
    m.w.part[CTW_PART_SCALE].shape[0] = 3;
    expect_refusal(&m, NULL, "weight.absmax: found F32 [3], expected F32 or U8 [4] (blocksize 64)");
    make_four(&m, &plain);
    m.w.part[CTW_PART_STATE].n_dims = -1;
    expect_refusal(&m, NULL, "quant_state.bitsandbytes__nf4: found absent, expected U8");
    make_four(&m, &nested);
    m.w.part[CTW_PART_SCALE_SCALE].n_dims = -1;
    expect_refusal(&m, NULL, "weight.nested_absmax: found absent, expected F32 [1]");
    make_four(&m, &plain);
    m.w.part[CTW_PART_SCALE_VALUES] = m.w.part[CTW_PART_CODE_VALUES];
    expect_refusal(&m, NULL, "weight.nested_quant_map: found F32 [16], expected none");
    make_four(&m, &plain);
    m.args.group_size = 48;
    expect_refusal(&m, NULL, "blocksize 48: expected a power of two");
    make_four(&m, &plain);
    m.args.num_bits = 8;
    expect_refusal(&m, NULL, "quantization_config says load_in_8bit");
    make_four(&m, &plain);
    m.args.group_size = 0; /* headers alone */
    check_ok(&m);
    assert_int_equal(m.w.group_size, 64);
    finish(&m);
}

/* ---- checkpoints ---- */

#define BNB(members) QUANTISED("\"quant_method\": \"bitsandbytes\", " members)

/* q_proj [32, 32], 16 blocks of 64; with a state. */
static void set_four(struct checkpoint *c, const char *json)
{
    static char shape[32];
    static float book[16];
    for (uint32_t i = 0; i < 16; i++)
        book[i] = ctw_bnb_value(i, false);
    (void)snprintf(shape, sizeof(shape), "%zu", strlen(json));
    set_parts(c, &(struct parts){{Q ".weight", "U8", "512, 1", 512, NULL},
                                 {Q ".weight.absmax", "F32", "16", 64, NULL},
                                 {Q ".weight.quant_map", "F32", "16", 64, (const char *)book}});
    add(c, Q ".weight.quant_state.bitsandbytes__nf4", "U8", shape, strlen(json), json);
}

static void states_and_configurations(void **state)
{
    struct checkpoint *c = *state;
#define STATE(blocksize, dtype, shape, more)                                                       \
    "{\"quant_type\": \"nf4\", \"blocksize\": " blocksize ", \"dtype\": \"" dtype                  \
    "\", \"shape\": " shape more "}"
#define FOUR BNB("\"load_in_4bit\": true, \"bnb_4bit_quant_type\": \"nf4\"")
    static const char good[] = STATE("64", "float16", "[32, 32]", "");
    static const struct {
        const char *config, *json, *words; /* NULL: it opens */
    } rows[] = {
        {FOUR, good, NULL},
        {BNB("\"_load_in_4bit\": true, \"llm_int8_skip_modules\": [\"lm_head\"]"), good, NULL},
        {QUANTISED("\"load_in_4bit\": true"), good, NULL},
        {BNB("\"load_in_4bit\": true, \"llm_int8_skip_modules\": [\"q_proj\"]"), good,
         "has no config group"},
        {BNB("\"load_in_8bit\": true"), good, "quantization_config says load_in_8bit"},
        {BNB("\"load_in_8bit\": false"), good,
         "expected one of load_in_4bit and load_in_8bit to be true"},
        {BNB("\"load_in_4bit\": true, \"bnb_4bit_quant_type\": \"af4\""), good,
         "\"af4\" is not supported; expected nf4 or fp4"},
        {FOUR, STATE("64", "float16", "[32, 16]", ""),
         "quant_state: shape: found (32, 16), expected (32, 32)"},
        {FOUR, STATE("32", "float16", "[32, 32]", ""),
         "absmax: found F32 [16], expected F32 or U8 [32] (blocksize 32)"},
        {FOUR, STATE("64", "float64", "[32, 32]", ""), "\"float64\" is not supported"},
        {FOUR, STATE("64", "float16", "[32, 32]", ", \"nested_blocksize\": 128"),
         "nested_blocksize"},
        {FOUR, "{\"quant_type\"", "quant_state: "},
        {BF16_CONFIG, good, "is a tensor of format \"bitsandbytes\", but the configuration does"},
    };
    for (size_t i = 0; i < CTW_COUNT(rows); i++) {
        c->config = rows[i].config;
        set_four(c, rows[i].json);
        if (rows[i].words != NULL) {
            expect_model_refusal(c, rows[i].words);
            continue;
        }
        struct ctw_weight w = q_weight(c, NULL);
        assert_int_equal(w.format->id, CTW_FORMAT_bnb_4bit);
        assert_int_equal(w.dtype, CTW_F16);
        assert_int_equal(w.group_size, 64);
    }
    c->config = BNB("\"load_in_8bit\": true");
    set_parts(c, &(struct parts){{Q ".weight", "I8", "32, 32", 1024, NULL},
                                 {Q ".SCB", "F32", "32", 128, NULL},
                                 {Q ".weight_format", "U8", "", 1, NULL}});
    assert_int_equal(q_weight(c, NULL).format->id, CTW_FORMAT_bnb_int8);
    find(c, Q ".SCB")->shape = "32, 1";
    expect_model_refusal(c, "SCB: found F32 [32, 1], expected F32 [32]");
    c->config = FOUR;
    find(c, Q ".SCB")->shape = "32";
    expect_model_refusal(c, "its tensors are LLM.int8()'s, but quantization_config says");
    /* load_in_4bit of a plain checkpoint quantises while it loads, which nobody does here. */
    set_parts(c, &(struct parts){{Q ".weight", "BF16", "32, 32", 2048, NULL},
                                 {NULL, NULL, NULL, 0, NULL},
                                 {NULL, NULL, NULL, 0, NULL}});
    expect_model_refusal(c, "says quant_method \"bitsandbytes\", but all weights are stored");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(four_bits_equal_bitsandbytes),
        cmocka_unit_test(int8_equals_bitsandbytes),
        cmocka_unit_test(parts_must_fit),
        TEST(states_and_configurations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
