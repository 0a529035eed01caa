/* config.json of the families whose layers differ little from Llama's: defaults and refusals. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "config_text.h"

/* The biases of layer 0 and of the model around the layers. */
static int n_biases(const struct ctw_config *c)
{
    int n = 0;
    for (int64_t i = 0; i < c->n_wants; i++) {
        const char *dot = strrchr(c->wants[i].name, '.');
        n += c->wants[i].layer != 1 ? 0 : dot != NULL && strcmp(dot, ".bias") == 0;
    }
    return n;
}

#define COHERE "{\"architectures\": [\"CohereForCausalLM\"], \"model_type\": \"cohere\""
#define COHERE2 "{\"architectures\": [\"Cohere2ForCausalLM\"], \"model_type\": \"cohere2\""
#define GLM4 "{\"architectures\": [\"Glm4ForCausalLM\"], \"model_type\": \"glm4\""
#define SMOLLM3 "{\"architectures\": [\"SmolLM3ForCausalLM\"], \"model_type\": \"smollm3\""
#define MINISTRAL3 "{\"architectures\": [\"Ministral3ForCausalLM\"], \"model_type\": \"ministral3\""
#define HELIUM "{\"architectures\": [\"HeliumForCausalLM\"], \"model_type\": \"helium\""
#define ARCEE "{\"architectures\": [\"ArceeForCausalLM\"], \"model_type\": \"arcee\""
#define APERTUS "{\"architectures\": [\"ApertusForCausalLM\"], \"model_type\": \"apertus\""
#define NEMOTRON "{\"architectures\": [\"NemotronForCausalLM\"], \"model_type\": \"nemotron\""
#define GRANITE "{\"architectures\": [\"GraniteForCausalLM\"], \"model_type\": \"granite\""

/* What transformers' configuration classes have when a file says nothing. */
static void families_have_their_defaults(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t vocab, hidden, inner, layers, heads, kv, head, length;
        double theta, eps;
        int rot_dim, biases;
        bool tied, interleaved;
        enum ctw_activation act;
    } rows[] = {
        {COHERE "}", 256000, 8192, 22528, 40, 64, 64, 128, 8192, 500000, 1e-5, 128, 0, true, true,
         CTW_ACT_SILU},
        {COHERE2 "}", 256000, 8192, 22528, 40, 64, 64, 128, 8192, 10000, 1e-5, 128, 0, true, true,
         CTW_ACT_SILU},
        {GLM4 "}", 151552, 4096, 13696, 40, 32, 2, 128, 131072, 10000, 1.5625e-7, 64, 3, false,
         true, CTW_ACT_SILU},
        {"{\"model_type\": \"glm\", \"architectures\": [\"GlmForCausalLM\"]}", 151552, 4096, 13696,
         40, 32, 2, 128, 131072, 10000, 1.5625e-7, 64, 3, false, true, CTW_ACT_SILU},
        {GRANITE "}", 32000, 4096, 11008, 32, 32, 32, 128, 2048, 10000, 1e-6, 128, 0, false, false,
         CTW_ACT_SILU},
        {"{\"model_type\": \"ministral\", \"architectures\": [\"MinistralForCausalLM\"]}", 32000,
         4096, 14336, 32, 32, 8, 128, 131072, 10000, 1e-6, 128, 0, false, false, CTW_ACT_SILU},
        {SMOLLM3 "}", 128256, 2048, 11008, 36, 16, 4, 128, 32768, 2000000, 1e-6, 128, 0, true,
         false, CTW_ACT_SILU},
        {MINISTRAL3 "}", 131072, 4096, 14336, 34, 32, 8, 128, 262144, 1000000, 1e-5, 128, 0, false,
         false, CTW_ACT_SILU},
        {HELIUM "}", 48000, 2560, 7040, 24, 20, 20, 128, 4096, 100000, 1e-8, 128, 0, false, true,
         CTW_ACT_SILU},
        {ARCEE "}", 32000, 2560, 18432, 32, 32, 32, 80, 4096, 10000, 1e-5, 80, 0, false, false,
         CTW_ACT_RELU2},
        {APERTUS "}", 131072, 4096, 14336, 32, 32, 32, 128, 65536, 12000000, 1e-5, 128, 0, false,
         false, CTW_ACT_XIELU},
        {NEMOTRON "}", 256000, 6144, 24576, 32, 48, 48, 128, 4096, 10000, 1e-5, 64, 2, false, false,
         CTW_ACT_RELU2},
    };
    for (size_t i = 0; i < CTW_COUNT(rows); i++) {
        struct ctw_config c;
        parse_ok(&c, rows[i].text);
        const struct ctw_model *m = c.model;
        const struct ctw_layer *l = &m->layers[1];
        const struct ctw_norm_rule *norms[] = {&l->norm[CTW_AT_MIXER],
                                               &m->layers[m->n_layers - 1].norm[CTW_AT_HEAD]};
        assert_int_equal(m->vocab, rows[i].vocab);
        assert_int_equal(m->hidden, rows[i].hidden);
        assert_int_equal(m->n_decoders, rows[i].layers);
        assert_int_equal(m->max_length, rows[i].length);
        assert_int_equal(m->tied, rows[i].tied);
        assert_int_equal(l->branch[CTW_MLP].dense.inner, rows[i].inner);
        assert_int_equal(l->branch[CTW_MIXER].attention.n_head, rows[i].heads);
        assert_int_equal(l->branch[CTW_MIXER].attention.n_kv, rows[i].kv);
        assert_int_equal(l->branch[CTW_MIXER].attention.head, rows[i].head);
        assert_int_equal(l->branch[CTW_MLP].dense.act, rows[i].act);
        assert_int_equal(n_biases(&c), rows[i].biases);
        assert_int_equal(m->n_ropes, 1);
        assert_int_equal(m->rope[0].rot_dim, rows[i].rot_dim);
        assert_int_equal(m->rope[0].pairing == CTW_ROPE_INTERLEAVED, rows[i].interleaved);
        assert_true(c.rope[0].theta == rows[i].theta);
        for (size_t k = 0; k < CTW_COUNT(norms); k++) {
            assert_true(norms[k]->present);
            assert_true(norms[k]->eps == (float)rows[i].eps);
        }
        assert_null(c.unread.text);
        ctw_config_close(&c);
    }
}

/* Attention and MLP read one norm; norms of heads have their own weights. */
static void cohere(void **state)
{
    (void)state;
    struct ctw_config c;
    parse_ok(&c, COHERE ", \"use_qk_norm\": true, \"num_key_value_heads\": 8, \"logit_scale\": "
                        "0.25, \"attention_bias\": true}");
    const struct ctw_layer *l = &c.model->layers[1];
    const struct ctw_want *q = find(&c, "model.layers.0.self_attn.q_norm.weight");
    const struct ctw_want *k = find(&c, "model.layers.0.self_attn.k_norm.weight");
    assert_true(l->branch[CTW_MLP].beside);
    assert_true(l->norm[CTW_AT_MIXER].kind == CTW_NORM_LAYER);
    assert_true(!l->norm[CTW_AT_MLP].present);
    assert_true(l->norm[CTW_AT_Q].kind == CTW_NORM_LAYER);
    assert_true(l->branch[CTW_MIXER].attention.head_norms == CTW_HEADS_OWN);
    assert_true(!l->branch[CTW_MIXER].attention.norms_after_rope);
    assert_true(q->n == 64);
    assert_true(q->k == 128);
    assert_true(k->n == 8);
    assert_true(k->k == 128);
    assert_true(c.model->head_scale == 0.25f);
    assert_true(n_biases(&c) == 4);
    assert_null(find(&c, "model.layers.0.post_attention_layernorm.weight"));
    assert_null(find(&c, "model.layers.0.input_layernorm.bias"));
    ctw_config_close(&c);
}

/* Layers without a window have no RoPE in Cohere 2; layers without RoPE may have one in SmolLM3. */
static void layers_with_rope_or_window(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool ropes[4];
        int64_t windows[4];
    } rows[] = {
        {COHERE2 ", \"num_hidden_layers\": 4}", {true, true, true, false}, {4096, 4096, 4096, 0}},
        {COHERE2
         ", \"num_hidden_layers\": 4, \"sliding_window_pattern\": 2, \"sliding_window\": 9}",
         {true, false, true, false},
         {9, 0, 9, 0}},
        {COHERE2 ", \"num_hidden_layers\": 4, \"sliding_window_pattern\": 1}",
         {false, false, false, false},
         {0, 0, 0, 0}},
        {COHERE2 ", \"num_hidden_layers\": 4, \"layer_types\": [\"full_attention\", "
                 "\"sliding_attention\", \"sliding_attention\", \"full_attention\"]}",
         {false, true, true, false},
         {0, 4096, 4096, 0}},
        {"{\"model_type\": \"ministral\", \"num_hidden_layers\": 4, \"sliding_window\": 9, "
         "\"layer_types\": [\"full_attention\", \"sliding_attention\", \"full_attention\", "
         "\"full_attention\"]}",
         {true, true, true, true},
         {0, 9, 0, 0}},
        {SMOLLM3 ", \"num_hidden_layers\": 4}", {true, true, true, false}, {0, 0, 0, 0}},
        {SMOLLM3 ", \"num_hidden_layers\": 4, \"no_rope_layer_interval\": 2, "
                 "\"use_sliding_window\": true, \"sliding_window\": 64}",
         {true, false, true, false},
         {0, 64, 0, 64}},
        {SMOLLM3 ", \"num_hidden_layers\": 4, \"no_rope_layers\": [0, 1, 1, 0, 1], "
                 "\"use_sliding_window\": true, \"sliding_window\": 64}",
         {false, true, true, false},
         {64, 0, 0, 64}},
        {SMOLLM3 ", \"num_hidden_layers\": 4, \"no_rope_layers\": null, "
                 "\"use_sliding_window\": true, \"sliding_window\": 64, \"layer_types\": "
                 "[\"sliding_attention\", \"full_attention\", \"full_attention\", "
                 "\"sliding_attention\"]}",
         {true, true, true, false},
         {64, 0, 0, 64}},
        {SMOLLM3 ", \"num_hidden_layers\": 4, \"sliding_window\": 64}",
         {true, true, true, false},
         {0, 0, 0, 0}},
    };
    for (size_t i = 0; i < CTW_COUNT(rows); i++) {
        struct ctw_config c;
        parse_ok(&c, rows[i].text);
        for (int l = 0; l < 4; l++) {
            const struct ctw_layer *layer = &c.model->layers[l + 1];
            assert_int_equal(layer->branch[CTW_MIXER].attention.window, rows[i].windows[l]);
            assert_int_equal(layer->branch[CTW_MIXER].attention.rope, rows[i].ropes[l] ? 0 : -1);
        }
        ctw_config_close(&c);
    }
}

static void glm4(void **state)
{
    (void)state;
    struct ctw_config c;
    parse_ok(&c, GLM4 ", \"partial_rotary_factor\": 0.25, \"attention_bias\": false}");
    const struct ctw_layer *l = &c.model->layers[1];
    assert_true(l->norm[CTW_AT_MIXER_OUT].present);
    assert_true(l->norm[CTW_AT_MLP_OUT].present);
    assert_true(c.model->rope[0].rot_dim == 32);
    assert_true(n_biases(&c) == 0);
    assert_int_equal(find(&c, "model.layers.0.mlp.gate_up_proj")->n, 2 * 13696);
    assert_non_null(find(&c, "model.layers.0.post_self_attn_layernorm.weight"));
    assert_non_null(find(&c, "model.layers.0.post_mlp_layernorm.weight"));
    ctw_config_close(&c);
    parse_ok(&c, "{\"model_type\": \"glm\"}");
    l = &c.model->layers[1];
    assert_true(!l->norm[CTW_AT_MIXER_OUT].present);
    assert_true(!l->norm[CTW_AT_MLP_OUT].present);
    assert_null(find(&c, "model.layers.0.post_mlp_layernorm.weight"));
    ctw_config_close(&c);
}

static void granite(void **state)
{
    (void)state;
    struct ctw_config c;
    parse_ok(&c, GRANITE ", \"embedding_multiplier\": 12, \"attention_multiplier\": 0.0078125, "
                         "\"logits_scaling\": 16, \"residual_multiplier\": 0.25, "
                         "\"attention_bias\": true, \"mlp_bias\": true}");
    const struct ctw_layer *l = &c.model->layers[1];
    assert_true(c.model->embed_scale == 12);
    assert_true(c.model->head_scale == 0.0625f);
    assert_true(l->branch[CTW_MIXER].attention.scale == 0.0078125f);
    assert_true(l->branch[CTW_MIXER].factor == 0.25f);
    assert_true(l->branch[CTW_MLP].factor == 0.25f);
    assert_int_equal(n_biases(&c), 7);
    ctw_config_close(&c);
    parse_ok(&c, GRANITE "}");
    l = &c.model->layers[1];
    assert_true(l->branch[CTW_MIXER].attention.scale == 1);
    assert_true(l->branch[CTW_MIXER].factor == 1);
    assert_true(l->branch[CTW_MLP].factor == 1);
    assert_true(c.model->embed_scale == 1);
    assert_true(c.model->head_scale == 1);
    ctw_config_close(&c);
}

/* Queries grow with their position, by numbers of the RoPE's parameters. */
static void ministral3(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        double beta, length, theta;
        int64_t window;
    } rows[] = {
        {MINISTRAL3 "}", 0.1, 16384, 1e6, 0},
        {MINISTRAL3 ", \"rope_parameters\": null, \"sliding_window\": 9}", 0.1, 16384, 1e6, 9},
        {MINISTRAL3 ", \"rope_theta\": 5e5, \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 8, "
                    "\"original_max_position_embeddings\": 32768, \"llama_4_scaling_beta\": 0.5}}",
         0.5, 32768, 5e5, 0},
        {MINISTRAL3 ", \"max_position_embeddings\": 64, \"rope_parameters\": {\"rope_type\": "
                    "\"default\", \"llama_4_scaling_beta\": 0}}",
         0, 64, 1e4, 0},
        {"{\"model_type\": \"mistral3\", \"text_config\": {\"model_type\": \"ministral3\", "
         "\"rope_parameters\": {\"rope_type\": \"yarn\", \"factor\": 16.0, \"rope_theta\": 2e6, "
         "\"original_max_position_embeddings\": 128, \"llama_4_scaling_beta\": 0.2}}}",
         0.2, 128, 2e6, 0},
    };
    for (size_t i = 0; i < CTW_COUNT(rows); i++) {
        struct ctw_config c;
        parse_ok(&c, rows[i].text);
        assert_true(c.model->q_factor_beta == rows[i].beta);
        assert_true(c.model->q_factor_length == rows[i].length);
        assert_true(c.rope[0].theta == rows[i].theta);
        assert_true(c.model->rope[0].scale > 0);
        assert_true(c.model->layers[1].branch[CTW_MIXER].attention.q_factors);
        assert_true(c.model->layers[1].branch[CTW_MIXER].attention.window == rows[i].window);
        ctw_config_close(&c);
    }
}

/* MLPs without a gate. */
static void plain_mlps(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int biases;
    } rows[] = {
        {ARCEE ", \"attention_bias\": true, \"mlp_bias\": true}", 6},
        {NEMOTRON ", \"attention_bias\": true, \"mlp_bias\": true}", 2 + 6},
        {APERTUS ", \"attention_bias\": true}", 4},
    };
    for (size_t i = 0; i < CTW_COUNT(rows); i++) {
        struct ctw_config c;
        parse_ok(&c, rows[i].text);
        assert_true(!c.model->layers[1].branch[CTW_MLP].dense.gated);
        assert_true(n_biases(&c) == rows[i].biases);
        assert_non_null(find(&c, "model.layers.0.mlp.up_proj"));
        assert_null(find(&c, "model.layers.0.mlp.gate_proj"));
        ctw_config_close(&c);
    }
}

static void nemotron(void **state)
{
    (void)state;
    struct ctw_config c;
    parse_ok(&c, NEMOTRON "}");
    const struct ctw_norm_rule *norm = c.model->layers[1].norm;
    assert_true(norm[CTW_AT_MIXER].kind == CTW_NORM_LAYER);
    assert_true(norm[CTW_AT_MIXER].offset == 1);
    assert_true(norm[CTW_AT_MLP].kind == CTW_NORM_LAYER);
    assert_true(norm[CTW_AT_MLP].offset == 1);
    ctw_config_close(&c);
}

/* The numbers of xIELU are tensors; other activations have none. */
static void apertus(void **state)
{
    (void)state;
    struct ctw_config c;
    parse_ok(&c, APERTUS "}");
    const int act = ctw_vector_at(CTW_MLP, CTW_V_ACT);
    assert_int_equal(c.rope[0].type, CTW_ROPE_LLAMA3);
    assert_true(c.rope[0].factor == 8);
    assert_true(c.rope[0].original_length == 8192);
    assert_int_equal(find(&c, "model.layers.0.mlp.act_fn.alpha_p")->role, act);
    assert_int_equal(find(&c, "model.layers.0.mlp.act_fn.alpha_n")->role, act + 1);
    assert_int_equal(find(&c, "model.layers.31.mlp.act_fn.beta")->role, act + 2);
    assert_int_equal(find(&c, "model.layers.31.mlp.act_fn.eps")->role, act + 3);
    assert_true(c.model->layers[1].branch[CTW_MIXER].attention.head_norms == CTW_HEADS_ALIKE);
    assert_int_equal(find(&c, "model.layers.0.self_attn.k_norm.weight")->n, 128);
    assert_non_null(find(&c, "model.layers.0.attention_layernorm.weight"));
    assert_non_null(find(&c, "model.layers.0.feedforward_layernorm.weight"));
    ctw_config_close(&c);
    parse_ok(&c, APERTUS ", \"hidden_act\": \"relu2\", \"rope_scaling\": {\"type\": \"default\"}}");
    assert_int_equal(c.model->layers[1].branch[CTW_MLP].dense.act, CTW_ACT_RELU2);
    assert_null(find(&c, "model.layers.0.mlp.act_fn.beta"));
    assert_int_equal(c.rope[0].type, CTW_ROPE_DEFAULT);
    ctw_config_close(&c);
}

static void refusals(void **state)
{
    (void)state;
    static const struct refusal rows[] = {
        {COHERE ", \"logit_scale\": null}", "logit_scale: found null, expected a value"},
        {COHERE ", \"head_dim\": null}", "head_dim: found null, expected a value"},
        {COHERE ", \"num_attention_heads\": 63}", "hidden_size 8192 is not a multiple"},
        {COHERE2 ", \"sliding_window\": null}", "sliding_window: found null, expected a value"},
        {COHERE2 ", \"sliding_window_pattern\": 0}", "sliding_window_pattern: expected"},
        {COHERE2 ", \"num_hidden_layers\": 1, \"layer_types\": [\"chunked_attention\"]}",
         "layer_types[0]: \"chunked_attention\" is not supported"},
        {GLM4 ", \"head_dim\": null}", "head_dim: found null, expected a value"},
        {GLM4 ", \"partial_rotary_factor\": 0.086}", "0.086 of 128 elements is not an even number"},
        {GRANITE ", \"logits_scaling\": 0}", "logits_scaling: found 0, expected"},
        {GRANITE ", \"residual_multiplier\": null}", "residual_multiplier: found null"},
        {GRANITE ", \"hidden_act\": \"xielu\"}", "\"xielu\" is not supported"},
        {SMOLLM3 ", \"no_rope_layers\": [1, 0]}",
         "no_rope_layers: found 2 entries, expected at least num_hidden_layers = 36"},
        {SMOLLM3 ", \"num_hidden_layers\": 1, \"no_rope_layers\": [2]}",
         "no_rope_layers[0]: expected a whole number from 0 to 1"},
        {SMOLLM3 ", \"no_rope_layers\": 4}", "no_rope_layers: expected an array"},
        {SMOLLM3 ", \"no_rope_layer_interval\": 0}", "no_rope_layer_interval: expected"},
        {SMOLLM3 ", \"num_hidden_layers\": 1, \"sliding_window\": 64, \"layer_types\": "
                 "[\"sliding_attention\"]}",
         "use_sliding_window and sliding_window define no window"},
        {MINISTRAL3 ", \"head_dim\": 2, \"rope_parameters\": {\"rope_type\": \"longrope\", "
                    "\"short_factor\": [1], \"long_factor\": [2], \"llama_4_scaling_beta\": 0.1, "
                    "\"original_max_position_embeddings\": 64}}",
         "longrope is not supported beside learned positions or factors of queries"},
        {MINISTRAL3 ", \"rope_parameters\": {\"rope_type\": \"default\"}}",
         "llama_4_scaling_beta: expected a number in the RoPE's parameters"},
        {MINISTRAL3 ", \"rope_parameters\": {\"rope_type\": \"default\", "
                    "\"llama_4_scaling_beta\": 1, \"original_max_position_embeddings\": 0}}",
         "original_max_position_embeddings: found 0, expected a number above 0"},
        {APERTUS ", \"rope_scaling\": null}", "rope_scaling: found null, which is type default in"},
        {HELIUM ", \"head_dim\": null}", "head_dim: found null, expected a value"},
        {GRANITE ", \"hidden_act\": \"mish\"}", "\"mish\" is not supported"},
    };
    expect_refusals(rows, CTW_COUNT(rows));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(families_have_their_defaults),
        cmocka_unit_test(cohere),
        cmocka_unit_test(layers_with_rope_or_window),
        cmocka_unit_test(glm4),
        cmocka_unit_test(granite),
        cmocka_unit_test(ministral3),
        cmocka_unit_test(plain_mlps),
        cmocka_unit_test(nemotron),
        cmocka_unit_test(apertus),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
