/* Families of 2026 without recurrent layers: tensors by their keys, properties of layers, refusals.
 */
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
#define V4 "{\"architectures\": [\"DeepseekV4ForCausalLM\"], \"model_type\": \"deepseek_v4\""
#define HY "{\"architectures\": [\"HYV4ForCausalLM\"], \"model_type\": \"hy_v4\""
#define HY_VL                                                                                      \
    "{\"architectures\": [\"HYV4VLForConditionalGeneration\"], \"model_type\": \"hy_v4_vl\", "     \
    "\"text_config\": {\"model_type\": \"hy_v4_vl_text\""
#define GLM                                                                                        \
    "{\"architectures\": [\"Glm5NextForConditionalGeneration\"], \"model_type\": \"glm5_next\", "  \
    "\"text_config\": {\"model_type\": \"glm5_next_text\""
#define INKLING                                                                                    \
    "{\"architectures\": [\"InklingForConditionalGeneration\"], "                                  \
    "\"model_type\": \"inkling_mm_model\", \"text_config\": {\"model_type\": \"inkling_text\""
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
        {V4 "}", "layers.42.attn.wo_a", 8192, 4096},
        {V4 "}", "layers.2.ffn.gate.tid2eid", 129280, 6},
        {V4 "}", "layers.2.ffn.gate.bias", 0, 0},
        {V4 "}", "layers.3.ffn.gate.bias", 256, 0},
        {V4 "}", "layers.0.hc_attn_fn", 24, 16384},
        {V4 ", \"hc_mult\": 2}", "hc_head_fn", 2, 8192},
        {V4 "}", "layers.0.attn.compressor.ape", 128, 512},
        {V4 "}", "layers.3.attn.indexer.compressor.ape", 4, 256},
        {V4 ", \"compress_rate_csa\": 8}", "layers.3.attn.compressor.ape", 8, 1024},
        {V4 ", \"num_hash_layers\": 4, \"num_local_experts\": 32}", "layers.3.ffn.gate", 32, 4096},
        {V4 TWO "\"mlp_layer_types\": [\"moe\", \"hash_moe\"]}", "layers.1.ffn.gate.tid2eid",
         129280, 6},
    };
    expect_tensors(rows, CTW_COUNT(rows));
}

static void tensors_beside_streams(void **state)
{
    (void)state;
    static const struct tensor_row rows[] = {
        {HY "}", "model.layers.0.hc_pre.hc_attn_layer.hc_fn", 8, 11264},
        {HY "}", "model.layers.33.hc_pre.hc_mlp_layer.hc_scale", 2, 0},
        {HY ", \"hc_mult\": 2}", "model.hc_pre.hc_head.hc_head_fn", 2, 5632},
        {HY "}", "model.layers.0.self_attn.linear_gate", 8192, 2816},
        {HY "}", "model.layers.0.self_attn.learnable_sink_param", 32, 0},
        {HY "}", "model.layers.1.self_attn.indexer.wq_b", 2048, 1536},
        {HY "}", "model.layers.2.self_attn.indexer.wq_b", 0, 0},
        {HY "}", "model.layers.5.self_attn.indexer.k_norm.bias", 128, 0},
        {HY "}", "model.layers.0.mlp.gate_proj", 6912, 2816},
        {HY "}", "model.layers.1.mlp.shared_experts.gate_proj", 768, 2816},
        {HY ", \"index_topk_pattern\": \"FF\", \"num_hidden_layers\": 3}",
         "model.layers.2.self_attn.indexer.wk", 0, 0},
        {HY_VL "}}", "model.layers.77.self_attn.q_b_proj", 16384, 2048},
        {HY_VL "}}", "model.layers.0.self_attn.indexer.weights_proj", 32, 6144},
        {HY_VL "}}", "model.layers.1.mlp.gate", 256, 6144},
        {GLM "}}", "model.layers.0.hc_attn_fn", 24, 16384},
        {GLM "}}", "hc_head_fn", 0, 0},
        {GLM "}}", "model.layers.0.self_attn.f_a_proj", 128, 4096},
        {GLM "}}", "model.layers.2.self_attn.A_log", 64, 0},
        {GLM "}}", "model.layers.3.self_attn.kv_a_proj_with_mqa", 512, 4096},
        {GLM "}}", "model.layers.3.self_attn.q_b_proj", 16384, 1536},
        {GLM "}}", "model.layers.3.self_attn.indexer.index_kpool_compress_ape", 16, 128},
        {GLM "}}", "model.layers.3.self_attn.indexer.index_kpool_compress_gate", 128, 4096},
        {GLM "}}", "model.layers.2.mlp.down_proj", 4096, 12288},
        {GLM "}}", "model.layers.3.mlp.experts.287.down_proj", 4096, 2048},
        {GLM ", \"linear_attn_config\": {\"head_dim\": 64, \"num_heads\": 32}}}",
         "model.layers.0.self_attn.dt_bias", 2048, 0},
        {GLM TWO "\"layer_types\": [\"full_attention\", \"linear_attention\"]}}",
         "model.layers.0.self_attn.indexer.wk", 128, 4096},
        {GLM TWO "\"layer_types\": [\"indexed_attention\", \"deepseek_sparse_attention\"], "
                 "\"index_topk_pattern\": \"FS\"}}",
         "model.layers.1.self_attn.indexer.wk", 0, 0},
    };
    expect_tensors(rows, CTW_COUNT(rows));
}

/* A layer's window, and whether it has RoPE. */
static void inkling_has_biases_and_convolutions(void **state)
{
    (void)state;
    static const struct tensor_row rows[] = {
        {INKLING "}}", "model.embed", 201024, 6144},
        {INKLING "}}", "model.embed_norm.weight", 6144, 0},
        {INKLING "}}", "lm_head", 201024, 6144},
        {INKLING "}}", "model.layers.0.attn.wk_dv", 2048, 6144},
        {INKLING "}}", "model.layers.5.attn.wk_dv", 1024, 6144},
        {INKLING "}}", "model.layers.0.attn.wr_du", 1024, 6144},
        {INKLING "}}", "model.layers.0.attn.rel_logits_proj.proj", 16, 512},
        {INKLING "}}", "model.layers.5.attn.rel_logits_proj.proj", 16, 1024},
        {INKLING "}}", "model.layers.0.attn.v_sconv.weight", 2048, 4},
        {INKLING "}}", "model.layers.0.attn_sconv.weight", 6144, 4},
        {INKLING "}}", "model.layers.0.mlp_sconv.weight", 6144, 4},
        {INKLING "}}", "model.layers.0.mlp.gate", 258, 6144},
        {INKLING "}}", "model.layers.0.mlp.gate.bias", 256, 0},
        {INKLING "}}", "model.layers.0.mlp.gate.global_scale", 1, 0},
        {INKLING "}}", "model.layers.0.mlp.experts.w13_weight", 6144, 6144},
        {INKLING "}}", "model.layers.0.mlp.shared_experts.shared_w2_weight", 6144, 3072},
        {INKLING ", \"dense_mlp_idx\": 1}}", "model.layers.0.mlp.w13_dn", 49152, 6144},
        {INKLING ", \"dense_mlp_idx\": 1}}", "model.layers.0.mlp.global_scale", 1, 0},
        {INKLING ", \"dense_mlp_idx\": 1}}", "model.layers.1.mlp.w13_dn", 0, 0},
        {INKLING ", \"dense_mlp_idx\": 1, \"dense_intermediate_size\": 64, "
                 "\"intermediate_size\": 32}}",
         "model.layers.0.mlp.w2_md", 6144, 64},
        {INKLING ", \"dense_intermediate_size\": 64, \"intermediate_size\": 32}}",
         "model.layers.0.mlp.experts.w2_weight", 6144, 32},
        {INKLING ", \"moe_intermediate_size\": 48}}", "model.layers.0.mlp.experts.w2_weight", 6144,
         48},
        {INKLING TWO "\"local_layer_ids\": [1]}}", "model.layers.0.attn.rel_logits_proj.proj", 16,
         1024},
        {INKLING TWO "\"layer_types\": [\"hybrid\", \"hybrid_sliding\"], \"local_layer_ids\": [0], "
                     "\"sliding_window\": 48, \"conv_kernel_size\": 3}}",
         "model.layers.1.attn.rel_logits_proj.proj", 16, 48},
        {INKLING ", \"conv_kernel_size\": 3}}", "model.layers.1.attn.k_sconv.weight", 2048, 3},
        {INKLING TWO "\"mlp_layer_types\": [\"sparse\", \"dense\"], \"dense_mlp_idx\": 2}}",
         "model.layers.0.mlp.gate", 258, 6144},
    };
    expect_tensors(rows, CTW_COUNT(rows));
}

static void inkling_has_full_layers_and_factors(void **state)
{
    (void)state;
    struct ctw_config c;
    struct ctw_err err = {0};
    assert_int_equal(parse(&c,
                           INKLING ", \"unpadded_vocab_size\": 200058, "
                                   "\"log_scaling_n_floor\": 128}}",
                           &err),
                     CTW_OK);
    assert_true(c.model->vocab == 200058);
    assert_true(c.model->head_scale == 1 / 24.0f);
    assert_true(c.model->q_factor_beta == 0.1);
    assert_true(c.model->q_factor_length == 128);
    assert_true(c.model->q_factor_smooth);
    assert_true(c.model->q_factor_first == 1);
    for (int i = 0; i < 12; i++) {
        const struct ctw_layer *l = &c.model->layers[i + 1];
        const struct ctw_attention *a = &l->branch[CTW_MIXER].attention;
        const bool full = i % 6 == 5;
        assert_int_equal(a->window, full ? 0 : 512);
        assert_int_equal(a->relative.extent, full ? 1024 : 512);
        assert_true(a->q_factors == full);
        assert_true(a->relative.factors == full);
        assert_true(a->scale == 1 / 128.0f);
        assert_true(a->rope == -1);
        assert_true(a->conv_taps == 4);
        assert_int_equal(l->branch[CTW_MLP].mixture.route.always, 2);
        assert_int_equal(l->branch[CTW_MLP].mixture.route.chosen, 8);
        assert_int_equal(l->branch[CTW_MLP].conv_taps, 4);
    }
    ctw_config_close(&c);
    assert_int_equal(parse(&c, INKLING "}}", &err), CTW_OK); /* no floor: no factors */
    assert_true(c.model->q_factor_beta == 0);
    assert_true(c.model->vocab == 201024);
    assert_false(c.model->layers[6].branch[CTW_MIXER].attention.q_factors);
    ctw_config_close(&c);
}

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

/* A layer's blocks, how many of them are chosen, and the base of its RoPE. */
static void pooled_layers(void **state)
{
    (void)state;
#define TYPES                                                                                      \
    TWO "\"layer_types\": [\"heavily_compressed_attention\", \"sliding_attention\"], "             \
        "\"compress_rates\": {\"compressed_sparse_attention\": 4, "                                \
        "\"heavily_compressed_attention\": 64}"
    static const struct {
        const char *text;
        int layer;
        int64_t block, chosen;
        double theta;
    } rows[] = {
        {V4 ", \"num_hidden_layers\": 4}", 0, 128, 0, 1.6e5},
        {V4 ", \"num_hidden_layers\": 4}", 2, 128, 0, 1.6e5},
        {V4 ", \"num_hidden_layers\": 4}", 3, 4, 512, 1.6e5},
        {V4 TWO "\"compress_ratios\": [0, 4, 128]}", 0, 0, 0, 1e4},
        {V4 TWO "\"compress_ratios\": [0, 4, 128], \"index_topk\": 9}", 1, 4, 9, 1.6e5},
        {V4 TYPES "}", 0, 64, 0, 1.6e5},
        {V4 TYPES ", \"compress_ratios\": [0, 4, 128]}", 1, 0, 0, 1e4},
        {V4 TWO "\"compress_rope_theta\": 50000}", 1, 128, 0, 5e4},
        {"{\"architectures\": [\"DeepseekV4ForCausalLM\"], \"model_type\": \"deepseek_ref\"" TWO
         "\"compress_ratios\": [4, 0]}",
         0, 4, 512, 1.6e5},
    };
    for (size_t i = 0; i < CTW_COUNT(rows); i++) {
        struct ctw_config c;
        parse_ok(&c, rows[i].text);
        const struct ctw_branch *b = &c.model->layers[rows[i].layer + 1].branch[CTW_MIXER];
        const struct ctw_pooled *x = &b->pooled;
        const struct ctw_rope *rope = &c.model->rope[x->rope];
        const double slowest = pow(rows[i].theta, -62.0 / 64);
        assert_int_equal(b->kind, CTW_KIND_pooled);
        if (x->block != rows[i].block || x->index.chosen != rows[i].chosen ||
            x->overlaps != (rows[i].chosen > 0) || rope->rot_dim != 64 ||
            fabs(rope->inv_freq[31] / slowest - 1) > 1e-5 || x->window != 128)
            fail_msg("%s: layer %d is not as expected", rows[i].text, rows[i].layer);
        ctw_config_close(&c);
    }
}

/* YaRN of layers with pooled keys does not scale cosines, unless an object of their own is silent.
 */
static void pooled_layers_have_yarn_of_their_own(void **state)
{
    (void)state;
#define YARN "\"rope_type\": \"yarn\", \"factor\": 16, \"original_max_position_embeddings\": 65536"
    static const struct {
        const char *text;
        double scale;
    } rows[] = {
        {V4 ", \"rope_scaling\": {" YARN "}}", 1},
        {V4 ", \"rope_scaling\": {" YARN ", \"attention_factor\": 1.5}}", 1.5},
        {V4 ", \"rope_parameters\": {\"main\": {\"rope_type\": \"default\"}, \"compress\": {" YARN
            "}}}",
         1.2772588722239782},
    };
    for (size_t i = 0; i < CTW_COUNT(rows); i++) {
        struct ctw_config c;
        parse_ok(&c, rows[i].text);
        assert_true(c.model->rope[0].scale == 1);
        assert_true(c.model->rope[1].scale == (float)rows[i].scale);
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

/* What GLM's and Hunyuan's layers do beyond their tensors. */
static void streams_pools_and_decays(void **state)
{
    (void)state;
    struct ctw_config c;
    parse_ok(&c, HY TWO "\"hc_magnitude\": 1.5, \"hc_eps\": 0.5}");
    const struct ctw_streams *s = &c.model->layers[1].residual.streams;
    const struct ctw_latent *x = &c.model->layers[1].branch[CTW_MIXER].latent;
    assert_int_equal(s->n_sinkhorn, 0);
    assert_true(s->post_factor == 1.5f);
    assert_true(s->post_eps == 0.5f);
    assert_true(s->eps == 0.5f);
    assert_true(x->index.turns_last);
    assert_true(x->index.pool == 0);
    assert_true(x->rope == x->index.rope);
    assert_int_equal(x->n_gates, 32 * 256);
    assert_int_equal(c.model->rope[x->rope].pairing, CTW_ROPE_HALVES);
    assert_true(c.model->layers[1].norm[CTW_AT_INDEX_K].eps == 1e-5f);
    assert_true(c.model->layers[1].norm[CTW_AT_KV_A].eps == 1e-6f);
    assert_int_equal(c.model->layers[1].branch[CTW_MLP].dense.glu.kind, CTW_GLU_PLAIN);
    assert_true(c.model->layers[2].branch[CTW_MLP].mixture.glu.limit == 10);
    ctw_config_close(&c);
    parse_ok(&c, HY TWO "\"swiglu_limit\": 0}");
    assert_int_equal(c.model->layers[2].branch[CTW_MLP].mixture.glu.kind, CTW_GLU_PLAIN);
    ctw_config_close(&c);
    parse_ok(&c, GLM ", \"num_hidden_layers\": 4, \"index_topk\": 96, \"index_kpool\": 12}}");
    s = &c.model->layers[1].residual.streams;
    x = &c.model->layers[4].branch[CTW_MIXER].latent;
    assert_true(s->n_sinkhorn == 20);
    assert_true(s->post_factor == 0);
    assert_true(x->index.chosen == 96);
    assert_true(x->index.pool == 12);
    assert_true(x->index.rope == -1);
    assert_true(x->rope == -1);
    assert_true(x->turning == 0);
    assert_true(c.model->layers[4].norm[CTW_AT_KV_A].eps == 1e-5f);
    assert_true(c.model->layers[1].branch[CTW_MLP].dense.glu.limit == 10);
    ctw_config_close(&c);
    static const struct {
        const char *text;
        float bound;
    } rows[] = {
        {GLM "}}", -5},
        {GLM ", \"linear_lower_bound\": -3}}", -3},
        {GLM ", \"linear_lower_bound\": null}}", 0},
        {GLM ", \"linear_attn_config\": {\"gate_lower_bound\": -2}}}", -2},
        {GLM ", \"linear_attn_config\": {\"gate_lower_bound\": null}}}", -5},
        {GLM ", \"linear_attn_config\": {\"gate_lower_bound\": null, \"safe_gate\": false}}}", 0},
    };
    for (size_t i = 0; i < CTW_COUNT(rows); i++) {
        parse_ok(&c, rows[i].text);
        const struct ctw_delta_rule *d = &c.model->layers[1].branch[CTW_MIXER].delta_rule;
        if (d->least_log != rows[i].bound)
            fail_msg("%s: the bound is %g", rows[i].text, (double)d->least_log);
        ctw_config_close(&c);
    }
}

static void refusals(void **state)
{
    (void)state;
    static const struct refusal rows[] = {
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
        {V4 TWO "\"compress_ratios\": [0, 8]}",
         "compress_ratios: layer 1 is neither sliding_attention, compressed_sparse_attention nor "},
        {V4 TWO "\"layer_types\": [\"full_attention\", \"sliding_attention\"]}",
         "layer_types: layer 0 is neither"},
        {V4 ", \"scoring_func\": \"softmax\"}",
         "scoring_func: \"softmax\" is not supported; supported: sqrtsoftplus, sigmoid"},
        {V4 ", \"o_groups\": 7}", "o_groups: found 7, expected a divisor"},
        {V4 ", \"index_head_dim\": 32}", "must turn by as many elements: 64"},
        {HY TWO "\"indexer_types\": [\"shared\", \"full\"]}",
         "indexer_types: layer 0 shares the choice of a layer before it"},
        {GLM ", \"indexer_types\": [\"full\", \"full\", \"full\", \"shared\"], "
             "\"num_hidden_layers\": 4}}",
         "indexer_types: layer 3 shares the choice of a layer before it"},
        {GLM ", \"index_topk\": 100}}",
         "index_topk: found 100, expected a multiple of index_kpool (16)"},
        {GLM ", \"index_kpool_always_select_tail\": false}}",
         "index_kpool_always_select_tail: false is not supported"},
        {GLM ", \"qk_rope_head_dim\": 64}}",
         "qk_rope_head_dim: expected a whole number from 0 to 0, found the number 64"},
        {INKLING ", \"shared_expert_sink\": false}}", "shared_expert_sink: false is not supported"},
        {INKLING ", \"n_shared_experts\": 0}}", "n_shared_experts: expected"},
        {INKLING ", \"swa_num_key_value_heads\": 7}}",
         "swa_num_key_value_heads: found 7, expected a divisor of swa_num_attention_heads (64)"},
        {INKLING "}, \"tie_word_embeddings\": true}", "tie_word_embeddings: true is not supported"},
        {INKLING TWO "\"layer_types\": [\"hybrid\", \"full\"]}}",
         "\"full\" is not supported; supported: hybrid_sliding, hybrid"},
        {GLM TWO "\"layer_types\": [\"linear_attention\", \"mamba\"]}}",
         "layer_types: layer 1 is \"mamba\"; supported: linear_attention"},
    };
    expect_refusals(rows, CTW_COUNT(rows));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors),
        cmocka_unit_test(tensors_beside_streams),
        cmocka_unit_test(inkling_has_biases_and_convolutions),
        cmocka_unit_test(inkling_has_full_layers_and_factors),
        cmocka_unit_test(windows_and_positions),
        cmocka_unit_test(factors_and_norms),
        cmocka_unit_test(choices_of_blocks),
        cmocka_unit_test(pooled_layers),
        cmocka_unit_test(pooled_layers_have_yarn_of_their_own),
        cmocka_unit_test(streams_pools_and_decays),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
