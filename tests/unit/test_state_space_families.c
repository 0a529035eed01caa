/* Families with state spaces or lightning attention, and LFM 2's mixtures: tensors by their keys,
 * and refusals. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "config_text.h"
#include "worker/model/names/names.h"

#define LFM2_MOE "{\"architectures\": [\"Lfm2MoeForCausalLM\"], \"model_type\": \"lfm2_moe\""
#define MAMBA2 "{\"architectures\": [\"Mamba2ForCausalLM\"], \"model_type\": \"mamba2\""
#define FALCON_MAMBA                                                                               \
    "{\"architectures\": [\"FalconMambaForCausalLM\"], \"model_type\": \"falcon_mamba\""
#define NEMOTRON_H "{\"architectures\": [\"NemotronHForCausalLM\"], \"model_type\": \"nemotron_h\""
#define FALCON_H1 "{\"architectures\": [\"FalconH1ForCausalLM\"], \"model_type\": \"falcon_h1\""
#define BAMBA "{\"architectures\": [\"BambaForCausalLM\"], \"model_type\": \"bamba\""
#define JAMBA "{\"architectures\": [\"JambaForCausalLM\"], \"model_type\": \"jamba\""
#define MINIMAX "{\"architectures\": [\"MiniMaxForCausalLM\"], \"model_type\": \"minimax\""
#define MINIMAX_M1                                                                                 \
    "{\"architectures\": [\"MiniMaxM1ForCausalLM\"], \"model_type\": \"minimax_m1\", "             \
    "\"num_hidden_layers\": 2, \"attn_type_list\": [0, 1]"
#define MAKERS MINIMAX_M1 ", \"postnorm\": true"
#define RING_WITHOUT_SHARE                                                                         \
    "{\"architectures\": [\"BailingMoeLinearV2ForCausalLM\"], \"model_type\": "                    \
    "\"bailing_moe_linear\""
#define RING RING_WITHOUT_SHARE ", \"partial_rotary_factor\": 0.5"
#define LING_2_5_OF(type)                                                                          \
    "{\"architectures\": [\"BailingMoeV2_5ForCausalLM\"], \"model_type\": \"" type "\""
#define LING_2_5 LING_2_5_OF("bailing_hybrid") ", \"num_key_value_heads\": 16"
#define ZAMBA2 "{\"architectures\": [\"Zamba2ForCausalLM\"], \"model_type\": \"zamba2\""
#define HYBRID                                                                                     \
    "{\"architectures\": [\"GraniteMoeHybridForCausalLM\"], \"model_type\": "                      \
    "\"granitemoehybrid\", \"num_hidden_layers\": 2"

static void tensors(void **state)
{
    (void)state;
    static const struct tensor_row rows[] = {
        {LFM2_MOE "}", "model.layers.1.feed_forward.w1", 7168, 2048},
        {LFM2_MOE "}", "model.layers.2.feed_forward.experts.31.w2", 2048, 1792},
        {LFM2_MOE "}", "model.layers.2.feed_forward.expert_bias", 32, 0},
        {LFM2_MOE ", \"use_expert_bias\": false}", "model.layers.2.feed_forward.expert_bias", 0, 0},
        {MAMBA2 "}", "backbone.layers.0.mixer.in_proj", 18560, 4096},
        {MAMBA2 "}", "backbone.layers.63.mixer.conv1d.weight", 10240, 4},
        {MAMBA2 ", \"time_step_limit\": [0.0, Infinity]}", "backbone.layers.0.mixer.A_log", 128, 0},
        {MAMBA2 ", \"time_step_limit\": [0, {\"__float__\": \"Infinity\"}], \"use_bias\": true}",
         "backbone.layers.0.mixer.in_proj.bias", 18560, 0},
        {FALCON_MAMBA "}", "backbone.layers.31.mixer.A_log", 1536, 16},
        {FALCON_MAMBA "}", "backbone.layers.0.mixer.x_proj", 80, 1536},
        {FALCON_MAMBA ", \"time_step_rank\": 8}", "backbone.layers.0.mixer.dt_proj", 1536, 8},
        {NEMOTRON_H "}", "model.layers.0.mixer.in_proj", 18560, 4096},
        {NEMOTRON_H "}", "model.layers.1.mixer.experts.7.up_proj", 7688, 4096},
        {NEMOTRON_H "}", "model.layers.2.mixer.k_proj", 1024, 4096},
        {NEMOTRON_H "}", "model.layers.3.mixer.down_proj", 4096, 21504},
        {NEMOTRON_H ", \"time_step_limit\": [0.0, 1e308], \"hybrid_override_pattern\": \"-M\"}",
         "model.layers.0.mixer.up_proj", 21504, 4096},
        {NEMOTRON_H ", \"num_hidden_layers\": 9, \"layers_block_type\": [\"attention\", \"moe\"], "
                    "\"hybrid_override_pattern\": \"M\", \"moe_latent_size\": 64}",
         "model.layers.1.mixer.experts.0.down_proj", 64, 7688},
        {NEMOTRON_H ", \"layers_block_type\": [\"moe\"], \"moe_latent_size\": 64}",
         "model.layers.0.mixer.fc2_latent_proj", 4096, 64},
        {FALCON_H1 "}", "model.layers.0.mamba.in_proj", 2688, 4096},
        {FALCON_H1 ", \"mamba_d_ssm\": null, \"mamba_rms_norm\": true}",
         "model.layers.0.mamba.norm.weight", 8192, 0},
        {BAMBA "}", "model.layers.31.mamba.in_proj", 17024, 4096},
        {BAMBA ", \"attn_layer_indices\": null, \"mamba_d_state\": 128, \"mamba_n_groups\": 4}",
         "model.layers.9.mamba.conv1d.weight", 9216, 4},
        {BAMBA ", \"attn_layer_indices\": [9, 40], \"attention_bias\": true}",
         "model.layers.9.self_attn.o_proj.bias", 4096, 0},
        {BAMBA ", \"attn_layer_indices\": [9], \"partial_rotary_factor\": 0.5}",
         "model.layers.9.mamba.in_proj", 0, 0},
        {JAMBA "}", "model.layers.4.self_attn.q_proj", 4096, 4096},
        {JAMBA "}", "model.layers.3.mamba.dt_layernorm.weight", 256, 0},
        {JAMBA "}", "model.layers.3.feed_forward.experts.15.gate_proj", 14336, 4096},
        {JAMBA ", \"mamba_dt_rank\": \"auto\"}", "model.layers.2.feed_forward.up_proj", 14336,
         4096},
        {HYBRID ", \"mamba_d_state\": 64}", "model.layers.1.mamba.conv1d.weight", 8320, 4},
        {ZAMBA2 "}", "model.layers.0.mamba.in_proj", 10376, 2560},
        {ZAMBA2 "}", "model.layers.51.mamba_decoder.mamba.norm.weight", 5120, 0},
        {ZAMBA2 "}", "model.layers.51.linear", 2560, 2560},
        {ZAMBA2 "}", "model.layers.6.shared_transformer.input_layernorm.weight", 5120, 0},
        {ZAMBA2 "}", "model.layers.6.shared_transformer.self_attn.v_proj", 5120, 5120},
        {ZAMBA2 "}", "model.layers.6.shared_transformer.self_attn.o_proj", 2560, 5120},
        {ZAMBA2 "}", "model.layers.12.shared_transformer.self_attn.q_proj", 0, 0},
        {ZAMBA2 "}", "model.layers.6.shared_transformer.self_attn.linear_q_adapter_list.0.0", 0, 0},
        {ZAMBA2 "}", "model.layers.6.shared_transformer.feed_forward.gate_up_proj_adapter_list.8.1",
         20480, 128},
        {ZAMBA2
         ", \"num_mem_blocks\": 2, \"use_shared_attention_adapter\": true, \"adapter_rank\": 5}",
         "model.layers.12.shared_transformer.self_attn.linear_k_adapter_list.7.0", 5, 5120},
        {ZAMBA2
         ", \"num_hidden_layers\": 2, \"layers_block_type\": [\"linear_attention\", \"hybrid\"]}",
         "model.layers.1.shared_transformer.feed_forward.down_proj", 2560, 10240},
    };
    expect_tensors(rows, CTW_COUNT(rows));
}

static void tensors_of_lightning_attention(void **state)
{
    (void)state;
    static const struct tensor_row rows[] = {
        {MINIMAX "}", "model.layers.1.self_attn.qkv_proj", 12288, 4096},
        {MINIMAX "}", "model.layers.31.self_attn.norm.weight", 4096, 0},
        {MINIMAX "}", "model.layers.0.self_attn.k_proj", 1024, 4096},
        {MINIMAX ", \"head_dim\": 64}", "model.layers.1.self_attn.output_gate", 2048, 4096},
        {MINIMAX "}", "model.layers.31.input_layernorm.weight", 4096, 0},
        {MINIMAX "}", "model.layers.31.block_sparse_moe.experts.7.w2", 4096, 14336},
        {MAKERS "}", "model.layers.0.self_attn.out_proj", 4096, 4096},
        {MAKERS "}", "model.layers.1.self_attn.o_proj", 4096, 4096},
        {RING "}", "model.layers.0.attention.query_key_value", 6144, 2048},
        {RING "}", "model.layers.4.attention.query_key_value", 3072, 2048},
        {RING "}", "model.layers.3.attention.g_norm.weight", 2048, 0},
        {RING "}", "model.layers.4.attention.g_norm.weight", 0, 0},
        {RING "}", "model.layers.3.attention.key_layernorm.weight", 128, 0},
        {RING ", \"use_qk_norm\": false}", "model.layers.3.attention.key_layernorm.weight", 0, 0},
        {RING ", \"use_qk_norm\": false}", "model.layers.4.attention.key_layernorm.weight", 0, 0},
        {RING ", \"layer_group_size\": 6}", "model.layers.18.attention.query_key_value", 3072,
         2048},
        {RING ", \"use_bias\": true}", "model.layers.0.attention.dense.bias", 2048, 0},
        {RING ", \"use_qkv_bias\": true}", "model.layers.0.attention.query_key_value.bias", 6144,
         0},
        {RING "}", "model.layers.0.mlp.gate_proj", 5120, 2048},
        {RING "}", "model.layers.1.mlp.experts.255.gate_proj", 512, 2048},
        {RING "}", "model.layers.1.mlp.gate.expert_bias", 256, 0},
        {LING_2_5 "}", "model.layers.0.attention.g_proj", 2048, 2048},
        {LING_2_5 "}", "model.layers.4.attention.kv_a_proj_with_mqa", 576, 2048},
        {LING_2_5 "}", "model.layers.4.attention.q_proj", 3072, 2048},
        {LING_2_5 ", \"use_qkv_bias\": true, \"q_lora_rank\": 64}",
         "model.layers.4.attention.q_a_proj.bias", 64, 0},
        {LING_2_5_OF("") ", \"num_key_value_heads\": 16}", "model.layers.4.attention.dense", 2048,
         2048},
    };
    expect_tensors(rows, CTW_COUNT(rows));
}

static void refusals(void **state)
{
    (void)state;
    static const struct refusal rows[] = {
        {HYBRID ", \"num_local_experts\": 0, \"layer_types\": [\"attention\", \"conv\"]}",
         "layer_types[1]: \"conv\" is not supported"},
        {HYBRID ", \"mamba_d_head\": 65}", "mamba_d_head: expected mamba_expand * hidden_size /"},
        {HYBRID ", \"mamba_d_head\": \"any\"}", "mamba_d_head: expected a number, or \"auto\""},
        {HYBRID ", \"mamba_d_state\": 257}",
         "mamba_d_state: expected a whole number from 1 to 256"},
        {MAMBA2 ", \"time_step_limit\": [0.5, 0.25]}", "time_step_limit: expected the smaller"},
        {MAMBA2 ", \"time_step_limit\": [0.5]}", "time_step_limit: found 1 entries, expected 2"},
        {MAMBA2 ", \"hidden_act\": \"gelu\"}", "hidden_act: only silu is supported"},
        {MAMBA2 ", \"n_groups\": 3}", "must divide into 3 groups"},
        {NEMOTRON_H ", \"hybrid_override_pattern\": \"MX\"}",
         "hybrid_override_pattern: expected 1 to"},
        {NEMOTRON_H ", \"layers_block_type\": [\"conv\"]}",
         "layers_block_type[0]: \"conv\" is not"},
        {NEMOTRON_H ", \"moe_latent_size\": 4097}", "the latent width of the experts: found 4097"},
        {FALCON_H1 ", \"ssm_multipliers\": [1, 1, 0, 1, 1]}", "ssm_multipliers[2]: a factor of 0"},
        {FALCON_H1 ", \"attention_bias\": true, \"key_multiplier\": 2}",
         "attention_bias: not supp"},
        {BAMBA ", \"mamba_d_head\": 65}", "mamba_d_head: expected mamba_expand * hidden_size /"},
        {BAMBA ", \"mamba_n_groups\": 3}", "must divide into 3 groups"},
        {BAMBA ", \"hidden_act\": \"gelu\"}", "hidden_act: only silu is supported"},
        {BAMBA ", \"partial_rotary_factor\": 1.0}", "partial_rotary_factor: transformers rotates"},
        {MINIMAX_M1 "}", "postnorm: only true is supported"},
        {MAKERS ", \"shared_intermediate_size\": 64}", "shared_intermediate_size: a shared expert"},
        {MAKERS ", \"num_attention_heads\": 6, \"head_dim\": 64, \"num_key_value_heads\": 2}",
         "num_attention_heads: only a power of two"},
        {MAKERS ", \"layernorm_mlp_alpha\": 0}", "layernorm_mlp_alpha: "},
        {MINIMAX ", \"head_dim\": 512}", "head_dim: lightning attention has heads of up to 256"},
        {"{\"architectures\": [\"MiniMaxText01ForCausalLM\"], \"model_type\": \"minimax_text_01\"}",
         "attn_type_list: expected 0 (lightning) or 1 (full)"},
        {RING_WITHOUT_SHARE "}", "partial_rotary_factor: expected the share of each head"},
        {RING ", \"score_function\": \"softmax\"}", "score_function: only \"sigmoid\""},
        {RING ", \"moe_router_enable_expert_bias\": false}",
         "moe_router_enable_expert_bias: only true"},
        {RING ", \"linear_silu\": true}", "linear_silu: only false is supported"},
        {RING ", \"use_linear_silu\": true}", "use_linear_silu: only false is supported"},
        {RING ", \"linear_rope\": false}", "linear_rope: only true is supported"},
        {RING ", \"norm_topk_prob\": false}", "norm_topk_prob: only true is supported"},
        {RING ", \"num_attention_heads\": 12}", "num_attention_heads: only a power of two"},
        {RING ", \"group_norm_size\": 3}", "group_norm_size: found 3, into which"},
        {RING ", \"head_dim\": 512}", "head_dim: lightning attention has heads of up to 256"},
        {LING_2_5 ", \"rope_interleave\": false}", "rope_interleave: only true is supported"},
        {LING_2_5 ", \"partial_rotary_factor\": 0.25}", "expected qk_rope_head_dim (64)"},
        {LING_2_5_OF("bailing_hybrid") "}", "num_key_value_heads: found 4, expected"},
        {ZAMBA2 ", \"num_hidden_layers\": 2}", "layers_block_type: expected a name for each of"},
        {ZAMBA2 ", \"num_hidden_layers\": 1, \"layers_block_type\": [\"attention\"]}",
         "layers_block_type[0]: \"attention\" is not supported; supported: mamba, hybrid"},
        {ZAMBA2 ", \"n_mamba_heads\": 7}", "n_mamba_heads: expected a divisor of mamba_expand"},
        {ZAMBA2 ", \"add_bias_linear\": true}", "add_bias_linear: true is not supported"},
        {ZAMBA2 ", \"use_long_context\": true}", "use_long_context: true is not supported"},
        {JAMBA ", \"attn_layer_offset\": 8}", "attn_layer_offset: expected less than"},
    };
    expect_refusals(rows, CTW_COUNT(rows));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors),
        cmocka_unit_test(tensors_of_lightning_attention),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
