/* EXL3's files: heads beside tied embeddings, padded biases, embedding tables, and what is refused.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "native_checkpoint.h"

#define EXL3 "\"quant_method\": \"exl3\", \"bits\": 4.0, \"head_bits\": 6"

/* Any bytes are a trellis, and any packed signs are scales. */
static const char zeros[8 * 8 * 128];

static const struct parts q_proj = {{Q ".trellis", "I16", "8, 8, 64", sizeof(zeros), zeros},
                                    {Q ".su", "I16", "8", 16, zeros},
                                    {Q ".sv", "I16", "8", 16, zeros}};

static void a_head_beside_a_tied_embedding(void **state)
{
    struct checkpoint *c = *state;
    c->config = QUANTISED(EXL3) ", \"tie_word_embeddings\": true";
    drop(c, "lm_head.weight");
    add(c, "lm_head.trellis", "I16", "8, 8, 64", sizeof(zeros), zeros);
    add(c, "lm_head.su", "I16", "8", 16, zeros);
    add(c, "lm_head.sv", "I16", "8", 16, zeros);
    struct ctw_model *m = open_ok(c);
    assert_false(m->tied);
    assert_int_equal(m->layers[2].matrix[CTW_M_HEAD].weight.format->id, CTW_FORMAT_exl3);
    ctw_model_close(m);
    c->n -= 3; /* a tied head, and a quantised module */
    set_parts(c, &q_proj);
    m = open_ok(c);
    assert_true(m->tied);
    ctw_model_close(m);
}

static void configurations(void **state)
{
    struct checkpoint *c = *state;
    set_parts(c, &q_proj);
    expect_refusal(c, "q_proj.trellis is a tensor of format \"EXL3\"");
    write_beside(c, "quantization_config.json", "{\"quant_method\": \"other\"}");
    expect_refusal(c, "q_proj.trellis is a tensor of format \"EXL3\"");
    write_beside(c, "quantization_config.json", "{" EXL3 ", \"tensor_storage\": {}}");
    assert_int_equal(q_weight(c, NULL).format->id, CTW_FORMAT_exl3);
    remove_beside(c, "quantization_config.json");
    c->config = QUANTISED(EXL3);
    assert_int_equal(q_weight(c, NULL).bits, 4);
    add(c, Q ".mul1", "I32", "", 4, "\x2d\xd1\xdc\x83");
    (void)q_weight(c, NULL);
    add(c, Q ".mcg", "I32", "", 4, "\xed\x1f\xac\xcb");
    expect_refusal(c, "q_proj.mcg (I32 []) has no use");
    drop(c, Q ".mcg");
    find(c, Q ".trellis")->name = LAYER "self_attn.q_proj_rank0.trellis";
    expect_refusal(c, "the file holds experts cut into slices (\"_rank0\")");
}

static void biases_may_be_padded(void **state)
{
    struct checkpoint *c = *state;
    c->config = QUANTISED(EXL3) ", \"attention_bias\": true";
    set_parts(c, &q_proj);
    add(c, Q ".bias", "F16", "128", 256, zeros);
    add(c, LAYER "self_attn.k_proj.bias", "F16", "128", 256, zeros);
    add(c, LAYER "self_attn.v_proj.bias", "F16", "16", 32, zeros);
    add(c, LAYER "self_attn.o_proj.bias", "F16", "32", 64, zeros);
    (void)q_weight(c, NULL);
    find(c, LAYER "self_attn.o_proj.bias")->shape = "64";
    find(c, LAYER "self_attn.o_proj.bias")->bytes = 128;
    expect_refusal(c, "o_proj.bias: found F16 [64], expected BF16, F16 or F32 [32]");
}

static void embedding_tables(void **state)
{
    struct checkpoint *c = *state;
    c->config = QUANTISED(EXL3);
    drop(c, "model.embed_tokens.weight");
    add(c, "model.embed_tokens.trellis", "I16", "16, 65", 16 * 130, zeros);
    add(c, "model.embed_tokens.signs", "F16", "1, 256", 512, zeros);
    struct ctw_model *m = open_ok(c);
    const struct ctw_weight *w = &m->layers[0].matrix[CTW_M_EMBED].weight;
    assert_int_equal(w->format->id, CTW_FORMAT_exl3_table);
    assert_int_equal(w->bits, 4);
    ctw_model_close(m);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {CASE(a_head_beside_a_tied_embedding), CASE(configurations),
                                       CASE(biases_may_be_padded), CASE(embedding_tables)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
