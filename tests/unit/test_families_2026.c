/* Families of 2026 with attention alone: tensors by their keys, properties of layers, refusals. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "config_text.h"
#include "worker/model/names/names.h"

#define EXAONE4_5                                                                                  \
    "{\"architectures\": [\"Exaone4_5_ForConditionalGeneration\"], \"model_type\": \"exaone4_5\""
#define EXAONE_MOE "{\"architectures\": [\"ExaoneMoeForCausalLM\"], \"model_type\": \"exaone_moe\""
#define GEMMA                                                                                      \
    "{\"architectures\": [\"Gemma4UnifiedForConditionalGeneration\"], "                            \
    "\"model_type\": \"gemma4_unified\", \"text_config\": {\"model_type\": "                       \
    "\"gemma4_unified_text\""
#define MUSE                                                                                       \
    "{\"architectures\": [\"MuseGlimmerForConditionalGeneration\"], "                              \
    "\"model_type\": \"muse_glimmer\", \"text_config\": {\"model_type\": \"muse_glimmer_text\""
#define COHERE "{\"architectures\": [\"Cohere2MoeForCausalLM\"], \"model_type\": \"cohere2_moe\""
#define MINIMAX "{\"architectures\": [\"MiniMaxM3ForCausalLM\"], \"model_type\": \"minimax_m3\""
#define MINIMAX_VL                                                                                 \
    "{\"architectures\": [\"MiniMaxM3SparseForConditionalGeneration\"], "                          \
    "\"model_type\": \"minimax_m3_vl\", \"text_config\": {\"num_hidden_layers\": 2"
#define TWO ", \"num_hidden_layers\": 2, "

static void tensors(void **state)
{
    (void)state;
    static const struct tensor_row rows[] = {
        {EXAONE4_5 ", \"text_config\": {\"model_type\": \"exaone4_5_text\"}}",
         "model.layers.31.post_feedforward_layernorm.weight", 4096, 0},
        {EXAONE4_5 ", \"text_config\": {\"model_type\": \"exaone4\"}}",
         "model.layers.0.self_attn.q_norm.weight", 128, 0},
        {EXAONE_MOE "}", "model.layers.0.mlp.up_proj", 16384, 4096},
        {EXAONE_MOE "}", "model.layers.1.input_layernorm.weight", 4096, 0},
        {EXAONE_MOE "}", "model.layers.1.mlp.e_score_correction_bias", 64, 0},
        {EXAONE_MOE "}", "model.layers.31.mlp.experts.63.down_proj", 4096, 1024},
        {EXAONE_MOE ", \"num_shared_experts\": 2}", "model.layers.1.mlp.shared_experts.gate_proj",
         2048, 4096},
        {EXAONE_MOE TWO "\"mlp_layer_types\": [\"sparse\", \"dense\"]}", "model.layers.0.mlp.gate",
         64, 4096},
        {GEMMA "}}", "model.layers.5.self_attn.q_proj", 4096, 2304},
        {GEMMA "}}", "model.embed_tokens_per_layer", 0, 0},
        {GEMMA ", \"attention_k_eq_v\": true, \"num_global_key_value_heads\": 1}}",
         "model.layers.5.self_attn.k_proj", 512, 2304},
        {MUSE "}}", "model.layers.0.self_attn.gate_proj", 4096, 6656},
        {MUSE "}}", "model.layers.51.post_feedforward_layernorm.weight", 6656, 0},
        {MUSE "}}", "model.layers.0.self_attn.q_norm.weight", 0, 0},
        {MUSE ", \"attention_bias\": true}}", "model.layers.0.self_attn.o_proj.bias", 6656, 0},
        {COHERE "}", "model.layers.0.mlp.experts.7.up_proj", 22528, 8192},
        {COHERE "}", "model.layers.0.mlp.shared_experts.up_proj", 0, 0},
        {COHERE "}", "model.layers.0.input_layernorm.bias", 0, 0},
        {COHERE ", \"num_shared_experts\": 2}", "model.layers.0.mlp.shared_experts.up_proj", 45056,
         8192},
        {COHERE ", \"first_k_dense_replace\": 1, \"prefix_dense_intermediate_size\": 64}",
         "model.layers.0.mlp.down_proj", 8192, 64},
        {COHERE ", \"first_k_dense_replace\": 1}", "model.layers.1.mlp.gate", 8, 8192},
        {MINIMAX "}", "model.layers.59.block_sparse_moe.experts.127.w2", 6144, 3072},
        {MINIMAX "}", "model.layers.0.block_sparse_moe.shared_experts.gate_proj", 3072, 6144},
        {MINIMAX "}", "model.layers.0.self_attn.index_q_proj", 0, 0},
        {MINIMAX TWO "\"layer_types\": [\"full_attention\", \"minimax_m3_sparse\"]}",
         "model.layers.1.self_attn.index_q_proj", 512, 6144},
        {MINIMAX TWO "\"moe_layer_freq\": [0, 1]}", "model.layers.0.mlp.down_proj", 6144, 12288},
        {MINIMAX_VL ", \"sparse_attention_config\": {\"sparse_attention_freq\": [1, 0], "
                    "\"sparse_index_dim\": 256}}}",
         "model.layers.0.self_attn.index_k_norm.weight", 256, 0},
        {MINIMAX_VL ", \"sparse_attention_config\": {\"sparse_attention_freq\": [1, 0]}}}",
         "model.layers.1.self_attn.index_k_proj", 0, 0},
    };
    expect_tensors(rows, CTW_COUNT(rows));
}

/* A layer's window, and whether it has RoPE. */
static void windows_and_positions(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int layer;
        int64_t window;
        bool turns;
    } rows[] = {
        {EXAONE_MOE "}", 0, 4096, true},
        {EXAONE_MOE "}", 3, 0, false},
        {GEMMA "}}", 0, 1024, true},
        {GEMMA "}}", 5, 0, true},
        {MUSE "}}", 0, 2048, true},
        {MUSE "}}", 51, 0, false},
        {MUSE ", \"num_hidden_layers\": 6}}", 1, 0, false},
        {MUSE TWO "\"layer_types\": [\"full_attention\", \"sliding_attention\"], "
                  "\"layer_rope_theta\": [5e5, 0]}}",
         0, 0, true},
        {MUSE TWO "\"layer_types\": [\"full_attention\", \"sliding_attention\"], "
                  "\"layer_rope_theta\": [5e5, 0]}}",
         1, 2048, false},
        {COHERE "}", 0, 4096, true},
        {COHERE "}", 3, 0, false},
        {COHERE ", \"first_k_dense_replace\": 1}", 0, 0, true},
        {COHERE ", \"first_k_dense_replace\": 1}", 4, 0, false},
        {COHERE ", \"first_k_dense_replace\": 2, \"prefix_dense_sliding_window_pattern\": 2}", 1, 0,
         false},
    };
    for (size_t i = 0; i < CTW_COUNT(rows); i++) {
        struct ctw_config c;
        parse_ok(&c, rows[i].text);
        const struct ctw_layer *l = &c.model->layers[rows[i].layer + 1];
        const struct ctw_attention *a = &l->branch[CTW_MIXER].attention;
        if (a->window != rows[i].window || (a->rope >= 0) != rows[i].turns)
            fail_msg("%s: layer %d is not as expected", rows[i].text, rows[i].layer);
        ctw_config_close(&c);
    }
}

static void factors_and_norms(void **state)
{
    (void)state;
    struct ctw_config c;
    parse_ok(&c, MUSE ", \"qk_scale_factor\": 2}}");
    assert_true(c.model->layers[1].branch[CTW_MIXER].attention.scale ==
                (float)(2 / 11.313708498984761));
    assert_true(c.model->layers[0].norm[CTW_AT_EMBED].present);
    assert_true(c.model->layers[1].norm[CTW_AT_MIXER_OUT].eps == 1e-8f);
    assert_true(c.model->head_softcap == 20);
    ctw_config_close(&c);
    static const struct {
        const char *keys;
        float factor;
        enum ctw_norm_kind kind;
    } rows[] = {
        {"", 1, CTW_NORM_LAYER},
        {", \"num_shared_experts\": 1", 0.5f, CTW_NORM_LAYER},
        {", \"num_shared_experts\": 1, \"shared_expert_combination_strategy\": \"sum\"", 1,
         CTW_NORM_LAYER},
        {", \"rms_norm_eps\": 1e-6", 1, CTW_NORM_RMS},
    };
    for (size_t i = 0; i < CTW_COUNT(rows); i++) {
        char text[512];
        (void)snprintf(text, sizeof(text), "%s%s}", COHERE, rows[i].keys);
        parse_ok(&c, text);
        assert_true(c.model->layers[1].branch[CTW_MLP].beside);
        assert_true(c.model->layers[1].branch[CTW_MLP].factor == rows[i].factor);
        assert_int_equal(c.model->layers[1].norm[CTW_AT_MIXER].kind, rows[i].kind);
        ctw_config_close(&c);
    }
}

/* The choice of blocks; the keys of older files win. */
static void choices_of_blocks(void **state)
{
    (void)state;
    struct ctw_config c;
    parse_ok(&c, MINIMAX TWO "\"layer_types\": [\"full_attention\", \"minimax_m3_sparse\"], "
                             "\"rotary_dim\": 64}");
    const struct ctw_attention *a = &c.model->layers[2].branch[CTW_MIXER].attention;
    assert_int_equal(c.model->layers[1].branch[CTW_MIXER].attention.choice.block, 0);
    assert_int_equal(a->choice.block, 128);
    assert_int_equal(a->choice.chosen, 16);
    assert_int_equal(a->choice.local, 1);
    assert_int_equal(c.model->rope[a->rope].rot_dim, 64);
    assert_true(c.model->layers[1].norm[CTW_AT_MIXER].offset == 1);
    ctw_config_close(&c);
    parse_ok(&c, MINIMAX_VL ", \"index_block_size\": 64, \"sparse_attention_config\": "
                            "{\"sparse_attention_freq\": [0, 1], \"sparse_block_size\": 32, "
                            "\"sparse_topk_blocks\": 5, \"sparse_local_block\": 0}}}");
    a = &c.model->layers[2].branch[CTW_MIXER].attention;
    assert_int_equal(a->choice.block, 32);
    assert_int_equal(a->choice.chosen, 5);
    assert_int_equal(a->choice.local, 0);
    ctw_config_close(&c);
}

static void refusals(void **state)
{
    (void)state;
    static const struct {
        const char *text, *words;
    } rows[] = {
        {COHERE ", \"expert_selection_fn\": \"topk\"}",
         "expert_selection_fn: \"topk\" is not supported; supported: sigmoid, softmax"},
        {COHERE ", \"shared_expert_combination_strategy\": \"max\"}",
         "shared_expert_combination_strategy: \"max\" is not supported; supported: average, sum"},
        {GEMMA ", \"use_bidirectional_attention\": \"all\"}}",
         "use_bidirectional_attention: attention to later tokens"},
        {MUSE TWO "\"layer_rope_theta\": [5e5]}}", "layer_rope_theta: found 1 entries"},
        {MINIMAX ", \"num_key_value_heads\": 8}",
         "index_n_heads: 4 heads choose blocks for 8 key heads; expected as many"},
        {MINIMAX ", \"index_local_blocks\": 17}",
         "index_local_blocks: found 17, expected at most index_topk_blocks (16)"},
        {MINIMAX ", \"index_head_dim\": 64}",
         "index_head_dim: found 64, expected at least the 128 elements that RoPE rotates"},
    };
    for (size_t i = 0; i < CTW_COUNT(rows); i++) {
        struct ctw_config c;
        struct ctw_err err = {0};
        assert_int_not_equal(parse(&c, rows[i].text, &err), CTW_OK);
        if (strstr(err.msg, rows[i].words) == NULL)
            fail_msg("%s: \"%s\" does not say \"%s\"", rows[i].text, err.msg, rows[i].words);
        ctw_config_close(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors),           cmocka_unit_test(windows_and_positions),
        cmocka_unit_test(factors_and_norms), cmocka_unit_test(choices_of_blocks),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
