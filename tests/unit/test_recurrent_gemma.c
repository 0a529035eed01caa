/* RecurrentGemma: its layers, its defaults, and what it refuses. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "config_text.h"

#define GEMMA                                                                                      \
    "{\"architectures\": [\"RecurrentGemmaForCausalLM\"], \"model_type\": \"recurrent_gemma\""
#define IN(i) "model.layers." #i ".temporal_block."

static void tensors(void **state)
{
    (void)state;
    static const struct tensor_row rows[] = {
        {GEMMA "}", IN(0) "linear_y", 2560, 2560},
        {GEMMA "}", IN(1) "rg_lru.input_gate_weight", 2560, 256},
        {GEMMA "}", IN(1) "rg_lru.recurrent_gate_bias", 10, 256},
        {GEMMA "}", IN(1) "conv_1d.weight", 2560, 4},
        {GEMMA ", \"lru_width\": 1280, \"conv1d_width\": 3}", IN(1) "conv_1d.weight", 1280, 3},
        {GEMMA ", \"lru_width\": 1280}", IN(1) "linear_out", 2560, 1280},
        {GEMMA ", \"lru_width\": null}", IN(1) "rg_lru.recurrent_param", 2560, 0},
        {GEMMA "}", IN(2) "linear_y", 0, 0},
        {GEMMA "}", IN(2) "k_proj", 2560, 2560},
        {GEMMA ", \"num_key_value_heads\": 1}", IN(23) "v_proj", 256, 2560},
        {GEMMA ", \"head_dim\": 128}", IN(23) "q_proj", 1280, 2560},
        {GEMMA ", \"attention_bias\": true}", IN(23) "q_proj.bias", 2560, 0},
        {GEMMA "}", IN(23) "q_proj.bias", 0, 0},
        {GEMMA "}", IN(23) "o_proj.bias", 2560, 0},
        {GEMMA ", \"block_types\": [\"attention\", \"recurrent\"]}", IN(24) "q_proj", 2560, 2560},
        {GEMMA ", \"block_types\": [\"attention\", \"recurrent\"]}", IN(25) "linear_x", 2560, 2560},
        {GEMMA "}", "model.layers.25.mlp_block.gate_proj", 3840, 2560},
        {GEMMA "}", "model.layers.25.mlp_block.down_proj.bias", 2560, 0},
        {GEMMA "}", "model.layers.25.channel_pre_norm.weight", 2560, 0},
        {GEMMA "}", "model.final_norm.weight", 2560, 0},
        {GEMMA ", \"tie_word_embeddings\": false}", "lm_head", 256000, 2560},
    };
    expect_tensors(rows, CTW_COUNT(rows));
}

static void defaults(void **state)
{
    (void)state;
    struct ctw_config c;
    parse_ok(&c, GEMMA ", \"num_hidden_layers\": 3}");
    const struct ctw_model *m = c.model;
    assert_true(m->embed_scale == 50.5f); /* sqrt(2560) in bf16 */
    assert_true(m->head_softcap == 30);
    assert_int_equal(m->max_length, 2048);
    assert_int_equal(m->own_length, 0);
    assert_int_equal(m->rope[0].rot_dim, 128);
    assert_int_equal(m->layers[1].branch[CTW_MIXER].kind, CTW_KIND_recurrence);
    assert_int_equal(m->layers[1].branch[CTW_MIXER].recurrence.act, CTW_ACT_GELU_TANH);
    assert_int_equal(m->layers[3].branch[CTW_MIXER].kind, CTW_KIND_attention);
    assert_int_equal(m->layers[3].branch[CTW_MIXER].attention.window, 2048);
    assert_true(m->layers[3].norm[CTW_AT_MIXER].offset == 1);
    ctw_config_close(&c);
    parse_ok(&c, GEMMA ", \"sliding_window\": 8, \"partial_rotary_factor\": 0.25}");
    assert_int_equal(c.model->layers[3].branch[CTW_MIXER].attention.window, 8);
    assert_int_equal(c.model->rope[0].rot_dim, 64);
    ctw_config_close(&c);
}

static void refusals(void **state)
{
    (void)state;
    static const struct refusal rows[] = {
        {GEMMA ", \"lru_width\": 2561}", "lru_width: found 2561, which num_attention_heads (10)"},
        {GEMMA ", \"num_attention_heads\": 20}", "recurrences have up to 19 heads"},
        {GEMMA ", \"block_types\": []}", "block_types: expected \"recurrent\" or \"attention\""},
        {GEMMA ", \"block_types\": [\"mamba\"]}", "\"mamba\" is not supported; supported: recur"},
        {GEMMA ", \"conv1d_width\": 9}", "conv1d_width: expected a whole number from 1 to 8"},
        {GEMMA ", \"logits_soft_cap\": null}", "logits_soft_cap: found null"},
        {GEMMA ", \"attention_window_size\": null}", "attention_window_size: found null"},
    };
    expect_refusals(rows, CTW_COUNT(rows));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors),
        cmocka_unit_test(defaults),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
