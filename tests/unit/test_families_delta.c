/* Qwen 3 Next, Qwen 3.5, Kimi Linear, Bailing Hybrid, OLMo Hybrid: keys, tensors, kinds of layers,
 * refusals. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "config_text.h"
#include "worker/model/names/names.h"

#define NEXT "{\"architectures\": [\"Qwen3NextForCausalLM\"], \"model_type\": \"qwen3_next\""
#define DENSE "{\"architectures\": [\"Qwen3_5ForCausalLM\"], \"model_type\": \"qwen3_5_text\""
#define MOE "{\"architectures\": [\"Qwen3_5MoeForCausalLM\"], \"model_type\": \"qwen3_5_moe_text\""
#define PRUNED                                                                                     \
    "{\"architectures\": [\"Qwen3_5MoeForConditionalGeneration\"], \"model_type\": "               \
    "\"qwen3_5_moe_text\""
#define MINICPM_V                                                                                  \
    "{\"architectures\": [\"MiniCPMV4_6ForConditionalGeneration\"], \"model_type\": "              \
    "\"minicpmv4_6\", \"text_config\": {\"model_type\": \"qwen3_5_text\"}"

#define KIMI "{\"architectures\": [\"KimiLinearForCausalLM\"], \"model_type\": \"kimi_linear\""
#define K3                                                                                         \
    "{\"architectures\": [\"KimiK3ForConditionalGeneration\"], \"model_type\": \"kimi_k3\", "      \
    "\"text_config\": {\"hidden_act\": \"situ\""
#define K3_BLOCKS                                                                                  \
    ", \"num_hidden_layers\": 5, \"first_k_dense_replace\": 1, \"attn_res_block_size\": 2"
#define OLMO "{\"architectures\": [\"OlmoHybridForCausalLM\"], \"model_type\": \"olmo_hybrid\""
#define BAILING                                                                                    \
    "{\"architectures\": [\"BailingHybridForCausalLM\"], \"model_type\": \"bailing_hybrid\""
#define TWO_LISTS                                                                                  \
    ", \"num_hidden_layers\": 2, \"linear_attn_config\": {\"full_attn_layers\": [1], "             \
    "\"kda_layers\": [2], \"head_dim\": 64, \"num_heads\": 8, \"short_conv_kernel_size\": 3}"

static void tensors(void **state)
{
    (void)state;
    static const struct tensor_row rows[] = {
        {DENSE "}", "model.layers.0.linear_attn.in_proj_qkv", 8192, 4096},
        {DENSE "}", "model.layers.0.linear_attn.in_proj_z", 4096, 4096},
        {DENSE "}", "model.layers.30.linear_attn.in_proj_a", 32, 4096},
        {DENSE "}", "model.layers.2.linear_attn.conv1d.weight", 8192, 4},
        {DENSE "}", "model.layers.2.linear_attn.norm.weight", 128, 0},
        {DENSE "}", "model.layers.3.linear_attn.in_proj_z", 0, 0},
        {DENSE "}", "model.layers.3.self_attn.q_proj", 8192, 4096},
        {DENSE "}", "model.layers.3.self_attn.k_proj", 1024, 4096},
        {DENSE "}", "model.layers.3.self_attn.o_proj", 4096, 4096},
        {DENSE ", \"full_attention_interval\": 2}", "model.layers.1.self_attn.k_norm.weight", 256,
         0},
        {DENSE ", \"linear_num_value_heads\": 48}", "model.layers.0.linear_attn.A_log", 48, 0},
        {DENSE ", \"num_hidden_layers\": 1, \"layer_types\": [\"full_attention\"]}",
         "model.layers.0.self_attn.q_proj", 8192, 4096},
        {MINICPM_V "}", "model.layers.0.linear_attn.dt_bias", 32, 0},
        {MOE "}", "model.layers.0.mlp.experts.gate_up_proj", 1024, 2048},
        {PRUNED ", \"num_experts\": 100}", "model.layers.0.mlp.gate", 100, 2048},
        {MOE "}", "model.layers.0.mlp.shared_expert_gate", 1, 2048},
        {NEXT "}", "model.layers.0.linear_attn.in_proj_qkvz", 12288, 2048},
        {NEXT "}", "model.layers.0.linear_attn.in_proj_ba", 64, 2048},
        {NEXT "}", "model.layers.0.mlp.experts.511.down_proj", 2048, 512},
        {NEXT ", \"mlp_only_layers\": [1]}", "model.layers.1.mlp.down_proj", 2048, 5632},
    };
    expect_tensors(rows, CTW_COUNT(rows));
}

/* Of files that have q, k and v apart. */
static void tensors_apart(void **state)
{
    (void)state;
    static const struct tensor_row rows[] = {
        {KIMI "}", "model.layers.0.self_attn.q_proj", 4096, 2304},
        {KIMI "}", "model.layers.0.self_attn.f_a_proj", 128, 2304},
        {KIMI "}", "model.layers.3.self_attn.g_b_proj", 4096, 128},
        {KIMI "}", "model.layers.3.self_attn.dt_bias", 4096, 0},
        {KIMI "}", "model.layers.26.self_attn.A_log", 32, 0},
        {KIMI "}", "model.layers.4.self_attn.kv_b_proj", 8192, 512},
        {KIMI "}", "model.layers.4.self_attn.b_proj", 0, 0},
        {KIMI "}", "model.layers.0.mlp.up_proj", 9216, 2304},
        {KIMI "}", "model.layers.1.block_sparse_moe.experts.255.w2", 2304, 1024},
        {KIMI ", \"num_shared_experts\": 2}",
         "model.layers.1.block_sparse_moe.shared_experts.up_proj", 2048, 2304},
        {K3 "}}", "model.layers.0.self_attention_res_norm.weight", 0, 0},
        {K3 "}}", "model.layers.0.self_attn.g_a_proj", 128, 7168},
        {K3 "}}", "model.layers.0.block_sparse_moe.gate", 256, 7168},
        {K3 ", \"moe_layer_freq\": 2}}", "model.layers.1.mlp.down_proj", 7168, 33792},
        {K3 ", \"mla_use_output_gate\": true}}", "model.layers.4.self_attn.g_proj", 12288, 7168},
        {K3 K3_BLOCKS "}}", "model.layers.4.mlp_res_norm.weight", 7168, 0},
        {K3 K3_BLOCKS "}}", "model.layers.4.mlp_res_proj.weight", 1, 7168},
        {K3 K3_BLOCKS "}}", "model.output_attn_res_norm.weight", 7168, 0},
        {K3 K3_BLOCKS ", \"routed_expert_hidden_size\": 64, \"latent_moe_use_norm\": true}}",
         "model.layers.1.block_sparse_moe.routed_expert_norm.weight", 64, 0},
        {K3 K3_BLOCKS ", \"routed_expert_hidden_size\": 64}}",
         "model.layers.1.block_sparse_moe.routed_expert_norm.weight", 0, 0},
        {K3 ", \"linear_attn_config\": {\"use_full_rank_gate\": true}}}",
         "model.layers.0.self_attn.g_proj", 4096, 7168},
        {KIMI TWO_LISTS "}", "model.layers.0.self_attn.kv_a_proj_with_mqa", 576, 2304},
        {KIMI TWO_LISTS "}", "model.layers.1.self_attn.v_conv1d.weight", 512, 3},
        {KIMI TWO_LISTS ", \"mlp_layer_types\": [\"sparse\", \"dense\"]}",
         "model.layers.0.block_sparse_moe.gate", 256, 2304},
        {BAILING "}", "model.word_embeddings", 157184, 2560},
        {BAILING "}", "model.layers.0.attention.f_proj", 4096, 2560},
        {BAILING "}", "model.layers.0.attention.g_proj", 4096, 2560},
        {BAILING "}", "model.layers.4.attention.dense", 2560, 4096},
        {BAILING "}", "model.layers.5.attention.g_proj", 32, 2560},
        {BAILING "}", "model.layers.5.attention.q_proj", 6144, 2560},
        {BAILING ", \"q_lora_rank\": 64}", "model.layers.41.attention.q_a_layernorm.weight", 64, 0},
        {BAILING ", \"layer_group_size\": 2}", "model.layers.1.attention.kv_b_proj", 8192, 512},
        {BAILING "}", "model.layers.1.mlp.gate_proj", 6144, 2560},
        {BAILING "}", "model.layers.2.mlp.gate.expert_bias", 512, 0},
        {BAILING "}", "model.layers.2.mlp.experts.511.down_proj", 2560, 768},
        {OLMO "}", "model.layers.0.linear_attn.q_proj", 2880, 3840},
        {OLMO "}", "model.layers.2.linear_attn.g_proj", 5760, 3840},
        {OLMO "}", "model.layers.2.linear_attn.a_proj", 30, 3840},
        {OLMO "}", "model.layers.2.attention_layer_norm.weight", 3840, 0},
        {OLMO "}", "model.layers.3.self_attn.q_norm.weight", 3840, 0},
        {OLMO "}", "model.layers.3.post_feedforward_layernorm.weight", 3840, 0},
        {OLMO ", \"num_hidden_layers\": 2}", "model.layers.1.self_attn.k_proj", 3840, 3840},
        {OLMO ", \"num_hidden_layers\": 1, \"layer_types\": [\"linear_attention\"]}",
         "model.layers.0.linear_attn.v_conv1d.weight", 5760, 4},
    };
    expect_tensors(rows, CTW_COUNT(rows));
}

static void gates_and_heads(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        enum ctw_activation gate;
    } rows[] = {
        {DENSE "}", CTW_ACT_SILU},
        {DENSE ", \"output_gate_type\": \"swish\"}", CTW_ACT_SILU},
        {DENSE ", \"output_gate_type\": \"sigmoid\"}", CTW_ACT_SIGMOID},
    };
    for (size_t i = 0; i < CTW_COUNT(rows); i++) {
        struct ctw_config c;
        parse_ok(&c, rows[i].text);
        const struct ctw_branch *rule = &c.model->layers[1].branch[CTW_MIXER];
        const struct ctw_branch *full = &c.model->layers[4].branch[CTW_MIXER];
        assert_int_equal(rule->kind, CTW_KIND_delta_rule);
        assert_int_equal(rule->delta_rule.gate, rows[i].gate);
        assert_int_equal(full->kind, CTW_KIND_attention);
        assert_true(full->attention.gate_in_q);
        assert_int_equal(full->attention.gate, CTW_GATE_SIGMOID);
        assert_int_equal(full->attention.columns.q_head, 512);
        assert_int_equal(c.model->rope[full->attention.rope].rot_dim, 64); /* a quarter */
        ctw_config_close(&c);
    }
}

static void decays_and_positions(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool by_channel, twice, turns; /* turns: attention has RoPE */
        double least_log;
    } rows[] = {
        {BAILING "}", true, false, true, -5},
        {BAILING ", \"kda_lower_bound\": -3}", true, false, true, -3},
        {BAILING ", \"kda_safe_gate\": false}", true, false, true, 0},
        {KIMI "}", true, false, false, 0},
        {OLMO "}", false, true, true, 0},
        {OLMO ", \"linear_allow_neg_eigval\": false, \"rope_theta\": null}", false, false, false,
         0},
        {OLMO ", \"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": null}}", false,
         true, false, 0},
        {OLMO ", \"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 5e5}}", false,
         true, true, 0},
    };
    for (size_t i = 0; i < CTW_COUNT(rows); i++) {
        struct ctw_config c;
        parse_ok(&c, rows[i].text);
        const struct ctw_branch *rule = &c.model->layers[1].branch[CTW_MIXER];
        assert_int_equal(rule->kind, CTW_KIND_delta_rule);
        assert_int_equal(rule->delta_rule.by_channel, rows[i].by_channel);
        assert_int_equal(rule->delta_rule.twice, rows[i].twice);
        assert_true(rule->delta_rule.least_log == (float)rows[i].least_log);
        for (int l = 2; l < c.model->n_layers; l++) {
            const struct ctw_branch *b = &c.model->layers[l].branch[CTW_MIXER];
            if (b->kind == CTW_KIND_attention)
                assert_int_equal(b->attention.rope >= 0, rows[i].turns);
            if (b->kind == CTW_KIND_latent)
                assert_int_equal(b->latent.rope >= 0, rows[i].turns);
        }
        ctw_config_close(&c);
    }
}

/* Which sums the branches of a model with blocks of two layers read and add to. */
static void sums_of_blocks(void **state)
{
    (void)state;
    static const struct {
        int read[2], adds_to;
        bool begins;
    } rows[] = {{{1, 2}, 1, true},
                {{2, 2}, 1, false},
                {{2, 3}, 2, true},
                {{3, 3}, 2, false},
                {{3, 4}, 3, true}};
    struct ctw_config c;
    parse_ok(&c, K3 K3_BLOCKS "}}");
    for (int i = 0; i < (int)CTW_COUNT(rows); i++) {
        const struct ctw_block_sums *s = &c.model->layers[i + 1].residual.block_sums;
        assert_int_equal(c.model->layers[i + 1].residual.kind, CTW_RESIDUAL_block_sums);
        assert_int_equal(s->n_read[CTW_MIXER], rows[i].read[0]);
        assert_int_equal(s->n_read[CTW_MLP], rows[i].read[1]);
        assert_int_equal(s->adds_to, rows[i].adds_to);
        assert_int_equal(s->begins, rows[i].begins);
        assert_int_equal(s->n_sums, 4);
    }
    assert_int_equal(c.model->layers[6].residual.block_sums.n_read[0], 4);
    assert_true(c.model->layers[2].branch[CTW_MLP].mixture.glu.kind == CTW_GLU_BOUNDED);
    ctw_config_close(&c);
}

static void refusals(void **state)
{
    (void)state;
    static const struct refusal rows[] = {
        {DENSE ", \"output_gate_type\": \"tanh\"}", "output_gate_type: \"tanh\" is not supported"},
        {DENSE ", \"linear_num_value_heads\": 24}",
         "linear_num_value_heads: found 24, expected a multiple of linear_num_key_heads = 16"},
        {DENSE ", \"linear_key_head_dim\": 512}", "linear_key_head_dim: expected a whole number"},
        {DENSE ", \"hidden_act\": \"relu\"}", "hidden_act: delta rules have silu alone"},
        {KIMI ", \"linear_head_dim\": 256}",
         "linear_head_dim: expected a whole number from 1 to 128"},
        {KIMI ", \"num_hidden_layers\": 2, \"linear_attn_config\": {\"full_attn_layers\": [1], "
              "\"kda_layers\": [3]}}",
         "layer 2, counted from 1, is neither here nor in kda_layers"},
        {K3 ", \"mla_use_nope\": false}}", "mla_use_nope: false is not supported"},
        {KIMI ", \"hidden_act\": \"gelu\"}", "hidden_act: delta rules have silu alone"},
        {BAILING ", \"kda_lower_bound\": 1}", "kda_lower_bound: found 1, expected -1000 to -0.001"},
        {BAILING ", \"head_dim\": 192}", "head_dim: expected a whole number from 1 to 128"},
        {OLMO ", \"linear_num_value_heads\": 31}",
         "linear_num_value_heads: found 31, expected a multiple of linear_num_key_heads = 30"},
        {OLMO ", \"hidden_act\": \"gelu\"}", "hidden_act: delta rules have silu alone"},
        {DENSE ", \"num_hidden_layers\": 1, \"layer_types\": [\"mamba\"]}",
         "layer_types[0]: \"mamba\" is not supported"},
    };
    expect_refusals(rows, CTW_COUNT(rows));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors),         cmocka_unit_test(tensors_apart),
        cmocka_unit_test(gates_and_heads), cmocka_unit_test(decays_and_positions),
        cmocka_unit_test(sums_of_blocks),  cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
