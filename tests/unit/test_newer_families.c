/* Families of transformers 5 that are close to others: defaults, tensors, layers, refusals. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "config_text.h"
#include "worker/model/names/names.h"

#define FAMILY(architecture, type)                                                                 \
    "{\"architectures\": [\"" architecture "\"], \"model_type\": \"" type "\""
#define SHARED FAMILY("GraniteMoeSharedForCausalLM", "granitemoeshared")
#define SWASH FAMILY("GraniteSWAForCausalLM", "granite_swa")
#define MOE_SWASH FAMILY("GraniteMoeSWAForCausalLM", "granitemoe_swa")
#define VAULT FAMILY("VaultGemmaForCausalLM", "vaultgemma")
#define FLEX FAMILY("FlexOlmoForCausalLM", "flex_olmo")
#define SARVAM FAMILY("SarvamMoEForCausalLM", "sarvam_moe")
#define SARVAM_MLA FAMILY("SarvamMLAForCausalLM", "sarvam_mla")
#define AXK1 FAMILY("AXK1ForCausalLM", "axk1")
#define IQUEST FAMILY("IQuestCoderForCausalLM", "iquestcoder")
#define NANO FAMILY("NanoChatForCausalLM", "nanochat")
#define FUYU FAMILY("FuyuForCausalLM", "fuyu")
#define MELLUM FAMILY("MellumForCausalLM", "mellum")
#define FLINT FAMILY("FlintForCausalLM", "flint")
#define KOLIBRI FAMILY("Kolibri1ForCausalLM", "kolibri1")
#define LFM3 FAMILY("Lfm3ForCausalLM", "lfm3")
#define LARA FAMILY("LaraMiniForCausalLM", "lara_mini")
#define APERTUS FAMILY("Apertus1p5TextForCausalLM", "apertus1p5_text")

/* What the classes have when a file says nothing, of layer 1. */
static void families_have_their_defaults(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t vocab, hidden, length;
        int n_layers, n_head, n_kv, head, rot_dim;
        double theta, eps;
        bool tied;
    } rows[] = {
        {SHARED "}", 32000, 4096, 2048, 32, 32, 32, 128, 128, 1e4, 1e-6, false},
        {SWASH "}", 100352, 2560, 8192, 24, 20, 4, 128, 128, 1e4, 1e-5, true},
        {MOE_SWASH "}", 32000, 4096, 2048, 32, 32, 32, 128, 128, 1e4, 1e-6, false},
        {VAULT "}", 256000, 2304, 8192, 26, 8, 4, 256, 256, 1e4, 1e-6, true},
        {FLEX "}", 100352, 4096, 4096, 32, 32, 32, 128, 128, 5e5, 1e-6, false},
        {SARVAM "}", 262144, 4096, 131072, 19, 64, 4, 64, 64, 8e6, 1e-6, false},
        {IQUEST "}", 76800, 5120, 131072, 80, 40, 8, 128, 128, 1e4, 1e-5, false},
        {NANO "}", 50304, 768, 2048, 12, 6, 6, 128, 128, 1e4, 1e-6, false},
        {FUYU ", \"rope_theta\": 25000.0}", 262144, 4096, 16384, 36, 64, 64, 64, 32, 25000, 1e-5,
         false},
        {MELLUM "}", 98304, 2304, 131072, 28, 32, 4, 128, 128, 5e5, 1e-6, false},
        {KOLIBRI "}", 128000, 2560, 262144, 50, 48, 4, 128, 128, 1e4, 1e-6, false},
        {FLINT "}", 150144, 2048, 262144, 49, 32, 4, 128, 128, 1e4, 1e-6, false},
        {APERTUS "}", 266752, 4096, 65536, 32, 32, 32, 128, 128, 12e6, 1e-5, false},
        {APERTUS ", \"output_vocab_size\": 131272}", 131272, 4096, 65536, 32, 32, 32, 128, 128,
         12e6, 1e-5, false},
    };
    for (size_t i = 0; i < CTW_COUNT(rows); i++) {
        struct ctw_config c;
        parse_ok(&c, rows[i].text);
        const struct ctw_model *m = c.model;
        const struct ctw_attention *a = &m->layers[1].branch[CTW_MIXER].attention;
        assert_true(m->vocab == rows[i].vocab);
        assert_true(m->hidden == rows[i].hidden);
        assert_true(m->max_length == rows[i].length);
        assert_int_equal(m->n_decoders, rows[i].n_layers);
        assert_true(a->n_head == rows[i].n_head);
        assert_true(a->n_kv == rows[i].n_kv);
        assert_int_equal(a->head, rows[i].head);
        assert_int_equal(m->rope[0].rot_dim, rows[i].rot_dim);
        assert_true(c.rope[0].theta == rows[i].theta);
        assert_true(m->layers[m->n_decoders + 1].norm[CTW_AT_MIXER].eps == (float)rows[i].eps);
        assert_true(m->tied == rows[i].tied);
        assert_null(c.unread.text);
        ctw_config_close(&c);
    }
}

static void tensors_of_sarvam_and_axk1(void **state)
{
    (void)state;
    static const struct tensor_row rows[] = {
        {SARVAM "}", "model.word_embeddings", 262144, 4096},
        {SARVAM "}", "model.layers.0.attention.query_key_value", 72 * 64, 4096},
        {SARVAM "}", "model.layers.0.attention.query_key_value.bias", 0, 0},
        {SARVAM ", \"use_qkv_bias\": true}", "model.layers.0.attention.query_key_value.bias",
         72 * 64, 0},
        {SARVAM "}", "model.layers.18.attention.dense", 4096, 4096},
        {SARVAM "}", "model.layers.18.attention.key_layernorm.weight", 64, 0},
        {SARVAM ", \"use_qk_norm\": false}", "model.layers.18.attention.key_layernorm.weight", 0,
         0},
        {SARVAM "}", "model.layers.0.mlp.up_proj", 8192, 4096},
        {SARVAM "}", "model.layers.1.mlp.gate.expert_bias", 128, 0},
        {SARVAM "}", "model.layers.1.mlp.shared_experts.down_proj", 4096, 1024},
        {SARVAM ", \"num_experts\": 64, \"num_shared_experts\": 2}",
         "model.layers.1.mlp.shared_experts.down_proj", 4096, 2048},
        {SARVAM ", \"num_experts\": 64}", "model.layers.1.mlp.experts.64.up_proj", 0, 0},
        {SARVAM_MLA "}", "model.layers.0.self_attn.q_proj", 64 * 192, 4096},
        {SARVAM_MLA "}", "model.layers.0.mlp.up_proj", 16384, 4096},
        {SARVAM_MLA "}", "model.layers.1.mlp.experts.127.up_proj", 2048, 4096},
        {SARVAM_MLA ", \"num_experts\": 16, \"num_shared_experts\": 2}",
         "model.layers.31.mlp.shared_experts.up_proj", 4096, 4096},
        {AXK1 "}", "model.layers.0.self_attn.q_b_proj", 64 * 192, 1536},
        {AXK1 "}", "model.layers.1.post_mlp_layernorm.weight", 7168, 0},
        {AXK1 "}", "model.layers.0.post_mlp_layernorm.weight", 0, 0},
        {AXK1 "}", "model.layers.1.mlp.experts.191.up_proj", 2048, 7168},
        {AXK1 ", \"moe_layer_freq\": 2}", "model.layers.1.mlp.up_proj", 18432, 7168},
        {AXK1 "}", "model.layers.1.mlp.gate.e_score_correction_bias", 0, 0}, /* no file has it */
    };
    expect_tensors(rows, CTW_COUNT(rows));
}

static void tensors(void **state)
{
    (void)state;
    static const struct tensor_row rows[] = {
        {SHARED "}", "model.layers.0.shared_mlp.input_linear", 0, 0},
        {SHARED ", \"shared_intermediate_size\": 96}", "model.layers.0.shared_mlp.input_linear",
         192, 4096},
        {SHARED ", \"shared_intermediate_size\": 96}", "model.layers.31.shared_mlp.output_linear",
         4096, 96},
        {SWASH "}", "model.layers.0.self_attn.sinks", 20, 0},
        {SWASH "}", "model.layers.23.mlp.gate_proj", 8192, 2560},
        {MOE_SWASH "}", "model.layers.31.self_attn.sinks", 32, 0},
        {MOE_SWASH ", \"shared_intermediate_size\": 1280}",
         "model.layers.0.shared_mlp.input_linear", 2560, 4096},
        {VAULT "}", "model.layers.0.pre_feedforward_layernorm.weight", 2304, 0},
        {VAULT "}", "model.layers.0.post_attention_layernorm.weight", 0, 0},
        {VAULT "}", "model.layers.0.post_feedforward_layernorm.weight", 0, 0},
        {FLEX "}", "model.layers.0.input_layernorm.weight", 0, 0},
        {FLEX "}", "model.layers.31.post_feedforward_layernorm.weight", 4096, 0},
        {FLEX "}", "model.layers.31.self_attn.k_norm.weight", 4096, 0},
        {FLEX "}", "model.layers.31.mlp.experts.6.up_proj", 11008, 4096},
        {FLEX "}", "model.layers.31.mlp.gate", 7, 4096},
        {IQUEST "}", "model.layers.79.mlp.up_proj", 27648, 5120},
        {IQUEST "}", "model.layers.0.self_attn.q_proj.bias", 0, 0},
        {NANO "}", "model.layers.0.mlp.fc1", 8192, 768},
        {NANO "}", "model.layers.11.mlp.fc2", 768, 8192},
        {NANO "}", "model.layers.0.input_layernorm.weight", 0, 0},
        {NANO "}", "model.norm.weight", 0, 0},
        {NANO ", \"attention_bias\": true}", "model.layers.0.self_attn.o_proj.bias", 768, 0},
        {FUYU "}", "model.layers.35.self_attn.query_key_value.bias", 3 * 4096, 0},
        {MELLUM "}", "model.layers.27.mlp.experts.63.down_proj", 2304, 896},
        {MELLUM "}", "model.layers.0.self_attn.q_norm.weight", 128, 0},
        {FLINT "}", "model.layers.1.mlp.up_proj", 6144, 2048},
        {FLINT "}", "model.layers.2.mlp.experts.255.up_proj", 512, 2048},
        {FLINT "}", "model.layers.2.mlp.shared_expert.up_proj", 1024, 2048},
        {FLINT "}", "model.layers.2.mlp.shared_expert_gate", 0, 0},
        {FLINT "}", "model.layers.48.self_attn.softmax_offset", 32, 0},
        {FLINT ", \"mlp_only_layers\": []}", "model.layers.0.mlp.experts.0.up_proj", 512, 2048},
        {KOLIBRI "}", "model.layers.0.moe.router.expert_bias", 384, 0},
        {KOLIBRI "}", "model.layers.49.mlp.experts.383.down_proj", 2560, 512},
        {KOLIBRI "}", "model.layers.49.mlp.shared_experts.down_proj", 2560, 512},
        {KOLIBRI "}", "model.layers.49.post_ffn_norm.weight", 2560, 0},
        {LARA "}", "model.layers.0.linear_attn.in_proj", 2 * 1024 + 2 * 2048 + 2 * 16, 1024},
        {LARA "}", "model.layers.0.linear_attn.out_norm.weight", 128, 0},
        {LARA "}", "model.layers.32.linear_attn.out_proj", 1024, 2048},
        {LARA "}", "model.layers.33.self_attn.k_norm.weight", 128, 0},
        {LARA "}", "model.layers.33.mlp.shared_expert.down_proj", 1024, 512},
        {LARA "}", "model.layers.33.mlp.shared_expert_gate", 0, 0},
        {APERTUS ", \"output_vocab_size\": 131272}", "model.embed_tokens", 266752, 4096},
        {APERTUS ", \"output_vocab_size\": 131272}", "lm_head", 131272, 4096},
        {APERTUS ", \"output_vocab_size\": null}", "lm_head", 266752, 4096},
        {LFM3 "}", "model.layers.0.conv.in_proj", 3 * 2048, 2048},
        {LFM3 "}", "model.layers.2.self_attn.gate_proj", 16, 2048},
        {LFM3 "}", "model.layers.23.post_operator_norm.weight", 2048, 0},
        {LFM3 "}", "model.layers.4.feed_forward.w2", 2048, 7680},
        {LFM3 ", \"use_sandwich_norm\": false}", "model.layers.23.post_ffn_norm.weight", 0, 0},
        {LFM3 ", \"use_attention_gate\": false}", "model.layers.2.self_attn.gate_proj", 0, 0},
    };
    expect_tensors(rows, CTW_COUNT(rows));
}

static const struct ctw_attention *attention(const struct ctw_config *c, int64_t i)
{
    return &c->model->layers[i + 1].branch[CTW_MIXER].attention;
}

/* Layers in a cycle of five: delta rules, windows with RoPE, and attention with neither. */
static void lara(void **state)
{
    (void)state;
    struct ctw_config c;
    parse_ok(&c, LARA "}");
    assert_true(c.model->tied);
    assert_int_equal(c.model->n_decoders, 34);
    for (int64_t i = 0; i < 34; i++) {
        const bool full = i % 5 == 3, delta = i % 5 == 0 || i % 5 == 2;
        const enum ctw_kind kind = c.model->layers[i + 1].branch[CTW_MIXER].kind;
        assert_int_equal(kind, delta ? CTW_KIND_delta_rule : CTW_KIND_attention);
        if (delta)
            continue;
        assert_int_equal(attention(&c, i)->rope, full ? -1 : 0);
        assert_int_equal(attention(&c, i)->window, full ? 0 : 512);
    }
    assert_null(c.unread.text);
    ctw_config_close(&c);

    parse_ok(&c, LARA ", \"num_hidden_layers\": 2, \"layer_types\": [\"full_attention\", "
                      "\"linear_attention\"]}");
    assert_int_equal(attention(&c, 0)->window, 0);
    assert_int_equal(c.model->layers[2].branch[CTW_MIXER].kind, CTW_KIND_delta_rule);
    ctw_config_close(&c);
}

/* Granite Swash 2B's own file; and a theta by layer. */
static void granite_swash(void **state)
{
    (void)state;
    struct ctw_config c;
    parse_ok(&c, SWASH ", \"num_hidden_layers\": 5, \"embedding_multiplier\": 12, "
                       "\"residual_multiplier\": 0.28, \"logits_scaling\": 10, "
                       "\"attention_multiplier\": 0.0078125, \"rope_theta\": 10000, "
                       "\"layer_types\": [\"full_attention\", \"sliding_attention\", "
                       "\"sliding_attention\", \"sliding_attention\", \"full_attention\"]}");
    assert_true(attention(&c, 0)->window == 0);
    assert_true(attention(&c, 3)->window == 128);
    assert_true(attention(&c, 0)->rope == 0);
    assert_true(attention(&c, 3)->rope == 0);
    assert_true(attention(&c, 3)->scale == 0.0078125f);
    assert_true(c.model->layers[1].branch[CTW_MLP].factor == 0.28f);
    assert_true(c.model->head_scale == 0.1f);
    assert_int_equal(c.n_ropes, 1);
    assert_null(c.unread.text);
    ctw_config_close(&c);

    parse_ok(&c, MOE_SWASH ", \"num_hidden_layers\": 5, \"rope_theta\": 7, "
                           "\"layer_rope_theta\": [0, 1e4, 5e5, 1e4, 0]}");
    assert_true(attention(&c, 0)->rope == -1);
    assert_true(attention(&c, 1)->rope == 0);
    assert_true(attention(&c, 2)->rope == 1);
    assert_true(attention(&c, 3)->rope == 0);
    assert_true(attention(&c, 4)->window == 0); /* every fourth layer from the first */
    assert_true(attention(&c, 1)->window == 128);
    assert_true(c.rope[1].theta == 5e5);
    assert_string_equal(c.unread.text, "rope_theta");
    ctw_config_close(&c);
}

static void gemma_and_olmo(void **state)
{
    (void)state;
    struct ctw_config c;
    parse_ok(&c, VAULT ", \"num_hidden_layers\": 2, \"hidden_size\": 1152, "
                       "\"num_attention_heads\": 4, \"intermediate_size\": 6912, "
                       "\"sliding_window\": 512, \"final_logit_softcapping\": null, "
                       "\"attn_logit_softcapping\": null}");
    assert_true(attention(&c, 0)->window == 512);
    assert_true(attention(&c, 1)->window == 0);
    assert_true(attention(&c, 1)->scale == 0.0625f);
    assert_true(c.model->embed_scale == 34); /* the root of 1152, in bf16 */
    assert_true(c.model->head_softcap == 0);
    ctw_config_close(&c);

    parse_ok(&c, FLEX ", \"norm_topk_prob\": true, \"clip_qkv\": 8}");
    assert_true(c.model->layers[1].branch[CTW_MLP].mixture.route.normalised);
    assert_int_equal(c.model->layers[1].branch[CTW_MLP].mixture.route.chosen, 5);
    assert_true(c.model->layers[1].norm[CTW_AT_MLP_OUT].present);
    assert_false(c.model->layers[1].norm[CTW_AT_MLP].present);
    assert_string_equal(c.unread.text, "clip_qkv");
    ctw_config_close(&c);
}

static void sarvam(void **state)
{
    (void)state;
    struct ctw_config c;
    parse_ok(&c, SARVAM ", \"num_experts\": 128, \"num_shared_experts\": 1, \"head_dim\": 64, "
                        "\"num_mtp_layers\": 0, \"rope_scaling\": null}");
    const struct ctw_route_rule *r = &c.model->layers[2].branch[CTW_MLP].mixture.route;
    assert_int_equal(r->chosen, 6);
    assert_true(r->scale == 2.5f);
    assert_true(r->normalised);
    assert_int_equal(r->score, CTW_SCORE_SIGMOID);
    assert_null(c.unread.text);
    ctw_config_close(&c);

    /* The makers' name of a RoPE type. */
    parse_ok(&c, SARVAM_MLA ", \"rope_scaling\": {\"type\": \"deepseek_yarn\", \"factor\": 40, "
                            "\"original_max_position_embeddings\": 4096, \"mscale\": 1.0, "
                            "\"mscale_all_dim\": 1.0}, \"max_position_embeddings\": 131072}");
    assert_int_equal(c.rope[0].type, CTW_ROPE_YARN);
    assert_int_equal(c.rope[0].rules.pairing, CTW_ROPE_INTERLEAVED);
    const double m = 0.1 * log(40) + 1;
    assert_true(fabs(c.model->layers[1].branch[CTW_MIXER].latent.scale * sqrt(192) / (m * m) - 1) <
                1e-6);
    r = &c.model->layers[2].branch[CTW_MLP].mixture.route;
    assert_int_equal(r->n_experts, 128);
    assert_int_equal(r->n_groups <= 1 ? 1 : r->n_groups, 1);
    assert_null(c.unread.text);
    ctw_config_close(&c);

    parse_ok(&c, "{\"architectures\": [\"Glm4MoeForCausalLM\"], \"model_type\": \"sarvam_moe\"}");
    ctw_config_close(&c);
    parse_ok(&c, "{\"architectures\": [\"DeepseekV3ForCausalLM\"], \"model_type\": "
                 "\"sarvam_mla\"}");
    ctw_config_close(&c);
    parse_ok(&c, "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"iquestcoder\"}");
    ctw_config_close(&c);
}

/* nanochat's heads turn the other way. */
static void nanochat(void **state)
{
    (void)state;
    struct ctw_config c, llama;
    parse_ok(&c, NANO ", \"rope_theta\": 1e5}");
    parse_ok(&llama,
             FAMILY("LlamaForCausalLM", "llama") ", \"head_dim\": 128, \"rope_theta\": 1e5}");
    for (int i = 0; i < 64; i++)
        assert_true(c.model->rope[0].inv_freq[i] == -llama.model->rope[0].inv_freq[i]);
    assert_true(c.model->layers[0].norm[CTW_AT_EMBED].present);
    assert_true(c.model->head_softcap == 15);
    assert_true(c.model->layers[1].norm[CTW_AT_Q].present);
    ctw_config_close(&c);
    ctw_config_close(&llama);
}

/* Mellum 2's own file, but for its layers; LFM 3 and Flint. */
static void layers_by_type(void **state)
{
    (void)state;
    struct ctw_config c;
    parse_ok(&c, MELLUM ", \"num_hidden_layers\": 2, \"layer_types\": [\"sliding_attention\", "
                        "\"full_attention\"], \"mlp_layer_types\": [\"sparse\", \"dense\"], "
                        "\"rope_parameters\": {\"full_attention\": {\"rope_type\": \"yarn\", "
                        "\"rope_theta\": 500000.0, \"factor\": 16.0, "
                        "\"original_max_position_embeddings\": 8192, \"beta_fast\": 32.0, "
                        "\"beta_slow\": 1.0, \"attention_factor\": 1.2772588722239782}, "
                        "\"sliding_attention\": {\"rope_type\": \"default\", \"rope_theta\": "
                        "500000.0}}, \"use_sliding_window\": true}");
    assert_true(attention(&c, 0)->window == 1024);
    assert_true(attention(&c, 1)->window == 0);
    assert_int_equal(c.rope[0].type, CTW_ROPE_DEFAULT);
    assert_int_equal(c.rope[1].type, CTW_ROPE_YARN);
    assert_true(c.model->rope[1].scale == 1.2772588722239782f);
    assert_true(c.model->layers[1].branch[CTW_MLP].mixture.route.normalised);
    assert_true(c.model->layers[2].branch[CTW_MLP].dense.inner == 7168);
    assert_string_equal(c.unread.text, "use_sliding_window");
    assert_true(ctw_name_is_apart(&c, "mtp.layers.0.mlp.gate.weight"));
    ctw_config_close(&c);

    parse_ok(&c, FLINT ", \"num_hidden_layers\": 6}");
    static const int windows[] = {0, 0, 513, 513, 513, 0};
    for (int i = 0; i < 6; i++) {
        assert_true(attention(&c, i)->window == windows[i]);
        assert_true(attention(&c, i)->rope == (windows[i] > 0 ? 0 : -1));
    }
    const struct ctw_route_rule *r = &c.model->layers[3].branch[CTW_MLP].mixture.route;
    assert_int_equal(r->score, CTW_SCORE_SIGMOID);
    assert_true(r->normalised);
    ctw_config_close(&c);

    parse_ok(&c, KOLIBRI "}");
    for (int i = 0; i < 50; i++) {
        assert_true(attention(&c, i)->window == (i % 5 == 4 ? 0 : 513));
        assert_true(attention(&c, i)->rope == (i % 5 == 4 ? -1 : 0));
    }
    r = &c.model->layers[1].branch[CTW_MLP].mixture.route;
    assert_true(r->corrects_logits);
    assert_false(r->normalised);
    assert_true(c.model->layers[1].norm[CTW_AT_MIXER_OUT].present);
    ctw_config_close(&c);
    parse_ok(&c, KOLIBRI ", \"sliding_window\": null}");
    assert_true(attention(&c, 4)->rope == 0);
    assert_true(attention(&c, 0)->window == 0);
    ctw_config_close(&c);

    parse_ok(&c, LFM3 "}");
    assert_int_equal(c.model->layers[1].branch[CTW_MIXER].kind, CTW_KIND_short_conv);
    assert_int_equal(c.model->layers[1].branch[CTW_MIXER].short_conv.taps, 7);
    assert_int_equal(c.model->layers[3].branch[CTW_MIXER].kind, CTW_KIND_attention);
    assert_true(attention(&c, 2)->window == 0);
    assert_true(attention(&c, 4)->window == 256);
    assert_int_equal(c.rope[0].type, CTW_ROPE_PROPORTIONAL);
    assert_true(c.rope[0].theta == 1e6);
    assert_true(c.rope[1].theta == 1e4);
    assert_true(c.model->tied);
    assert_null(c.unread.text);
    ctw_config_close(&c);
}

/* Fuyu's own file has the text model's keys at the top level. */
static void fuyu(void **state)
{
    (void)state;
    struct ctw_config c;
    parse_ok(&c, FUYU ", \"hidden_act\": \"relu2\", \"hidden_size\": 4096, \"image_size\": 300, "
                      "\"layer_norm_eps\": 1e-05, \"num_hidden_layers\": 2, \"patch_size\": 30, "
                      "\"qk_layernorm\": true, \"rope_scaling\": null, \"rope_theta\": 25000.0, "
                      "\"tie_word_embeddings\": false, \"vocab_size\": 262144}");
    assert_string_equal(c.family->model_type, "fuyu");
    assert_string_equal(c.unread.text, "image_size, patch_size");
    assert_true(ctw_name_is_apart(&c, "vision_embed_tokens.weight"));
    ctw_config_close(&c);
    parse_ok(&c, FUYU ", \"text_config\": {\"num_hidden_layers\": 3, \"rope_theta\": 25000.0}}");
    assert_int_equal(c.model->n_decoders, 3);
    ctw_config_close(&c);
}

/* What the hosts' classes have beside the text model. */
static void towers_of_hosts(void **state)
{
    (void)state;
    static const char *const names[] = {
        "model.aligner.low_res_proj.weight",       /* DeepSeek VL */
        "model.high_res_vision_alpha",             /* its larger models */
        "model.high_res_vision_neck.conv1.weight", /* likewise */
        "model.generation_embeddings.weight",      /* Janus */
        "model.vqmodel.encoder.conv_in.weight",    /* Janus */
        "model.vision_encoder.ln_pre.weight",      /* LightOn OCR */
        "model.merger.mlp.0.linear_1.weight",      /* MiniCPM-V 4.6 and 4.7 */
        "model.visual_embeddings_table.weight",    /* Ovis 2 */
        "model.projector.readout.0.weight",        /* Video LLaMA 3 */
        "image_tower.post_layernorm.weight",       /* Video LLaVA */
        "model.video_tower.post_layernorm.weight", /* Video LLaVA */
        "audio_tower.conv1.weight",                /* Qwen 2 Audio */
    };
    struct ctw_config c, plain;
    parse_ok(&c, FAMILY("JanusForConditionalGeneration", "janus") ", \"text_config\": {}}");
    parse_ok(&plain, FAMILY("LlamaForCausalLM", "llama") "}");
    for (size_t i = 0; i < CTW_COUNT(names); i++) {
        assert_true(ctw_name_is_apart(&c, names[i]));
        assert_false(ctw_name_is_apart(&plain, names[i]));
    }
    ctw_config_close(&c);
    ctw_config_close(&plain);
}

static void refusals(void **state)
{
    (void)state;
    static const struct refusal rows[] = {
        {SWASH ", \"sliding_window\": null}", "sliding_window: found null"},
        {SWASH ", \"layer_rope_theta\": [0, 1e4]}", "layer_rope_theta: found 2 entries, expected"},
        {SWASH ", \"num_hidden_layers\": 5, \"layer_rope_theta\": [1, 2, 3, 4, 5]}",
         "expected a number above 1"},
        {SWASH ", \"num_hidden_layers\": 5, \"layer_rope_theta\": [2, 3, 4, 5, 6]}",
         "more than 4 different RoPEs in one model are not supported"},
        {SHARED ", \"shared_intermediate_size\": -1}",
         "shared_intermediate_size: expected a whole"},
        {VAULT ", \"use_bidirectional_attention\": true}",
         "use_bidirectional_attention: attention to later tokens"},
        {IQUEST ", \"clip_qkv\": 8}", "clip_qkv: a number is not supported"},
        {IQUEST ", \"use_sliding_window\": true}", "use_sliding_window: true is not supported"},
        {"{\"architectures\": [\"IQuestLoopCoderForCausalLM\"], \"model_type\": "
         "\"iquestloopcoder\"}",
         "model_type \"iquestloopcoder\" (architecture \"IQuestLoopCoderForCausalLM\") is not"},
        {"{\"architectures\": [\"IQuestLoopCoderForCausalLM\"], \"model_type\": \"iquestcoder\"}",
         "architecture \"IQuestLoopCoderForCausalLM\") is not supported"},
        {AXK1 ", \"q_lora_rank\": null}", "q_lora_rank: expected a number: queries have a latent"},
        {AXK1 ", \"mlp_layer_types\": [\"dense\"]}", "mlp_layer_types: found 1 entries"},
        {SARVAM_MLA ", \"rope_scaling\": {\"type\": \"other_yarn\"}}",
         "RoPE type \"other_yarn\" is not supported"},
        {LFM3 ", \"num_hidden_layers\": 1, \"layer_types\": [\"linear_attention\"]}",
         "\"linear_attention\" is not supported; supported: conv, full_attention"},
        {LARA ", \"num_hidden_layers\": 1, \"layer_types\": [\"conv\"]}",
         "\"conv\" is not supported; supported: linear_attention, full_attention, "
         "sliding_attention"},
        {LARA ", \"layer_types\": [\"full_attention\"]}", "layer_types: found 1 entries"},
        {LARA ", \"hidden_act\": \"gelu\"}", "hidden_act: delta rules have silu alone"},
        {LARA ", \"linear_num_value_heads\": 12}", "expected a multiple of linear_num_key_heads"},
        {APERTUS ", \"output_vocab_size\": 131272, \"tie_word_embeddings\": true}",
         "output_vocab_size: a head of fewer rows than the embedding with tie_word_embeddings"},
        {APERTUS ", \"output_vocab_size\": 266753}",
         "output_vocab_size: expected a whole number from 1 to 266752"},
        {LFM3 ", \"conv_L_cache\": 9}", "conv_L_cache: expected a whole number from 1 to 8"},
        {LFM3 ", \"rope_parameters\": {\"rope_type\": \"default\"}}",
         "has no object for \"full_attention\""},
        {MELLUM ", \"mlp_layer_types\": [\"sparse\"]}", "mlp_layer_types: found 1 entries"},
        {KOLIBRI ", \"num_hidden_layers\": 1, \"sliding_window\": null, \"layer_types\": "
                 "[\"sliding_attention\"]}",
         "sliding_window define no window"},
        {NANO ", \"hidden_act\": \"gelu2\"}", "hidden_act: \"gelu2\""},
    };
    expect_refusals(rows, CTW_COUNT(rows));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(families_have_their_defaults),
        cmocka_unit_test(tensors),
        cmocka_unit_test(tensors_of_sarvam_and_axk1),
        cmocka_unit_test(lara),
        cmocka_unit_test(granite_swash),
        cmocka_unit_test(gemma_and_olmo),
        cmocka_unit_test(sarvam),
        cmocka_unit_test(nanochat),
        cmocka_unit_test(layers_by_type),
        cmocka_unit_test(fuyu),
        cmocka_unit_test(towers_of_hosts),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
