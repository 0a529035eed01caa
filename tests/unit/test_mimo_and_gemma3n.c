/* MiMo V2 and Gemma 3n: their defaults, what their layers compute, and what they refuse. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "config_text.h"
#include "worker/model/names/names.h"
#include "worker/model/recipe/kinds.h"

#define MIMO "{\"architectures\": [\"MiMoV2ForCausalLM\"], \"model_type\": \"mimo_v2\""
#define TWO ", \"num_hidden_layers\": 2"
#define EXPERTS                                                                                    \
    ", \"n_routed_experts\": 8, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 64"
#define WINDOWS ", \"hybrid_layer_pattern\": [0, 1], \"sliding_window\": 128"
#define GEMMA "{\"architectures\": [\"Gemma3nForCausalLM\"], \"model_type\": \"gemma3n_text\""

static void tensors(void **state)
{
    (void)state;
    static const struct tensor_row rows[] = {
        {MIMO "}", "model.layers.31.self_attn.q_proj", 4096, 4096},
        {MIMO "}", "model.layers.31.mlp.up_proj", 22016, 4096},
        {MIMO TWO EXPERTS ", \"moe_layer_freq\": [0, 1]}", "model.layers.0.mlp.up_proj", 22016,
         4096},
        {MIMO TWO EXPERTS ", \"moe_layer_freq\": [0, 1]}", "model.layers.1.mlp.experts.7.up_proj",
         64, 4096},
        {MIMO TWO EXPERTS ", \"moe_layer_freq\": 1}", "model.layers.0.mlp.experts.7.up_proj", 64,
         4096},
        {MIMO TWO EXPERTS "}", "model.layers.1.mlp.experts.0.up_proj", 0, 0},
        {MIMO TWO ", \"attention_projection_layout\": \"fused_qkv\", \"v_head_dim\": 64}",
         "model.layers.0.self_attn.qkv_proj", 32 * (128 + 128 + 64), 4096},
        {MIMO TWO WINDOWS ", \"swa_head_dim\": 64, \"swa_num_key_value_heads\": 8}",
         "model.layers.1.self_attn.v_proj", 8 * 64, 4096},
        {MIMO TWO WINDOWS ", \"add_swa_attention_sink_bias\": true}",
         "model.layers.1.self_attn.attention_sink_bias", 32, 0},
        {MIMO TWO WINDOWS ", \"add_swa_attention_sink_bias\": true}",
         "model.layers.0.self_attn.attention_sink_bias", 0, 0},
        {GEMMA "}", "model.embed_tokens_per_layer", 262144, 35 * 256},
        {GEMMA "}", "model.altup_projections.2", 2048, 2048},
        {GEMMA "}", "model.altup_unembed_projections.3", 0, 0},
        {GEMMA "}", "model.layers.34.altup.prediction_coefs.weight", 16, 4},
        {GEMMA "}", "model.layers.34.altup.correct_output_scale", 2048, 0},
        {GEMMA "}", "model.layers.0.laurel.linear_left", 64, 2048},
        {GEMMA "}", "model.layers.19.self_attn.k_proj", 512, 2048},
        {GEMMA TWO ", \"num_kv_shared_layers\": 0, \"intermediate_size\": [64, 96]}",
         "model.layers.1.mlp.up_proj", 96, 2048},
    };
    expect_tensors(rows, CTW_COUNT(rows));
}

static void mimo_layers(void **state)
{
    (void)state;
    struct ctw_config c;
    parse_ok(&c, MIMO TWO WINDOWS ", \"swa_rope_theta\": 5e4, "
                                  "\"rope_parameters\": {\"rope_type\": \"default\", "
                                  "\"rope_theta\": 2e6, \"partial_rotary_factor\": 0.5}, "
                                  "\"attention_value_scale\": 0.5}");
    const struct ctw_attention *full = &c.model->layers[1].branch[CTW_MIXER].attention;
    const struct ctw_attention *slides = &c.model->layers[2].branch[CTW_MIXER].attention;
    assert_int_equal(full->window, 0);
    assert_int_equal(slides->window, 128);
    assert_true(slides->v_factor == 0.5f);
    assert_int_equal(c.model->rope[full->rope].rot_dim, 64);
    /* The second angle of 64 elements is theta^(-2/64): rope_parameters' for full layers, the key
     * of their own for the others. */
    assert_true(fabs(c.model->rope[full->rope].inv_freq[1] - pow(2e6, -1.0 / 32)) < 1e-6);
    assert_true(fabs(c.model->rope[slides->rope].inv_freq[1] - pow(5e4, -1.0 / 32)) < 1e-6);
    ctw_config_close(&c);
    parse_ok(&c, MIMO TWO ", \"hybrid_block_size\": 2, \"sliding_window_size\": 9}");
    assert_int_equal(c.model->layers[1].branch[CTW_MIXER].attention.window, 9);
    assert_int_equal(c.model->layers[2].branch[CTW_MIXER].attention.window, 0);
    ctw_config_close(&c);
    parse_ok(&c, MIMO TWO
             ", \"n_routed_experts\": 8, \"num_experts_per_tok\": 1, \"moe_layer_freq\": 1}");
    assert_false(c.model->layers[1].branch[CTW_MLP].mixture.route.normalised);
    ctw_config_close(&c);
}

static void gemma_layers(void **state)
{
    (void)state;
    struct ctw_config c;
    parse_ok(&c, GEMMA "}");
    const struct ctw_layer *l = &c.model->layers[1];
    assert_int_equal(c.model->n_decoders, 35);
    assert_int_equal(l->residual.kind, CTW_RESIDUAL_alternating);
    assert_int_equal(l->residual.alternating.n, 4);
    assert_int_equal(l->residual.alternating.low, 64);
    assert_true(c.model->head_softcap == 30);
    assert_int_equal(l->branch[CTW_MLP].dense.inner, 16384);
    /* The quantile of 0.95, for ten layers of more than ten. */
    assert_true(fabsf(l->branch[CTW_MLP].dense.cutoff - 1.6448536f) < 1e-6f);
    assert_true(c.model->layers[10].branch[CTW_MLP].dense.cutoff > 1);
    assert_true(c.model->layers[11].branch[CTW_MLP].dense.cutoff == 0);
    /* Every fifth layer is full; the last 15 use what layers 18 and 19 keep. */
    assert_int_equal(l->branch[CTW_MIXER].attention.window, 512);
    assert_int_equal(c.model->layers[5].branch[CTW_MIXER].attention.window, 0);
    assert_int_equal(c.model->layers[19].branch[CTW_MIXER].attention.keeps_kv, 0);
    assert_int_equal(c.model->layers[20].branch[CTW_MIXER].attention.keeps_kv, 1);
    assert_int_equal(c.model->layers[21].branch[CTW_MIXER].attention.uses_kv, 0);
    assert_int_equal(c.model->layers[35].branch[CTW_MIXER].attention.uses_kv, 1);
    assert_true(c.model->layers[35].branch[CTW_MIXER].attention.scale == 1);
    ctw_config_close(&c);
    parse_ok(&c,
             GEMMA TWO ", \"num_kv_shared_layers\": 0, \"activation_sparsity_pattern\": [0, 0.5], "
                       "\"altup_correct_scale\": false}");
    assert_true(c.model->layers[1].branch[CTW_MLP].dense.cutoff == 0);
    assert_true(fabsf(c.model->layers[2].branch[CTW_MLP].dense.cutoff) < 1e-6f);
    assert_false(c.model->layers[1].residual.alternating.scales);
    ctw_config_close(&c);
}

static void refusals(void **state)
{
    (void)state;
    static const struct refusal rows[] = {
        {MIMO ", \"attention_projection_layout\": \"kqv\"}",
         "attention_projection_layout: \"kqv\" is not supported; supported: split, fused_qkv"},
        {MIMO TWO EXPERTS ", \"scoring_func\": \"softmax\"}",
         "scoring_func: \"softmax\" is not supported; supported: sigmoid"},
        {MIMO TWO EXPERTS ", \"topk_method\": \"greedy\"}",
         "topk_method: \"greedy\" is not supported; supported: noaux_tc"},
        {MIMO TWO ", \"hybrid_layer_pattern\": [0, 1]}",
         "sliding_window: expected a number of keys"},
        {MIMO ", \"swa_num_attention_heads\": 30, \"swa_num_key_value_heads\": 4}",
         "swa_num_attention_heads: expected a multiple of swa_num_key_value_heads"},
        {GEMMA TWO "}", "num_kv_shared_layers: found 15, but no earlier layer"},
        {GEMMA ", \"num_hidden_layers\": 3, \"num_kv_shared_layers\": 2, \"layer_types\": "
               "[\"sliding_attention\", \"full_attention\", \"sliding_attention\"]}",
         "num_kv_shared_layers: found 2, but no earlier layer is of the type of layer 1"},
        {GEMMA ", \"altup_active_idx\": 4}",
         "altup_active_idx: expected a whole number from 0 to 3"},
        {GEMMA ", \"activation_sparsity_pattern\": [0.5]}",
         "activation_sparsity_pattern: found 1 entries"},
    };
    expect_refusals(rows, CTW_COUNT(rows));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors),
        cmocka_unit_test(mimo_layers),
        cmocka_unit_test(gemma_layers),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
