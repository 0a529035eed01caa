/* Qwen 3 Next and Qwen 3.5: keys, tensors, kinds of layers, refusals. */
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

static void tensors(void **state)
{
    (void)state;
    static const struct {
        const char *text, *name;
        int64_t n, k; /* n 0: there is none */
    } rows[] = {
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
    for (size_t i = 0; i < CTW_COUNT(rows); i++) {
        struct ctw_config c;
        parse_ok(&c, rows[i].text);
        const struct ctw_want *w = find(&c, rows[i].name);
        if ((w != NULL) != (rows[i].n != 0) ||
            (w != NULL && (w->n != rows[i].n || w->k != rows[i].k)))
            fail_msg("%s: %s is not as expected", rows[i].text, rows[i].name);
        ctw_config_close(&c);
    }
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

static void refusals(void **state)
{
    (void)state;
    static const struct refusal rows[] = {
        {DENSE ", \"output_gate_type\": \"tanh\"}", "output_gate_type: \"tanh\" is not supported"},
        {DENSE ", \"linear_num_value_heads\": 24}",
         "linear_num_value_heads: found 24, expected a multiple of linear_num_key_heads = 16"},
        {DENSE ", \"linear_key_head_dim\": 512}", "linear_key_head_dim: expected a whole number"},
        {DENSE ", \"hidden_act\": \"relu\"}", "hidden_act: delta rules have silu alone"},
        {DENSE ", \"num_hidden_layers\": 1, \"layer_types\": [\"mamba\"]}",
         "layer_types[0]: \"mamba\" is not supported"},
    };
    expect_refusals(rows, CTW_COUNT(rows));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors),
        cmocka_unit_test(gates_and_heads),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
