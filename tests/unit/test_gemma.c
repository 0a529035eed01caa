/* config.json of the Gemma families, GPT-2 and OLMo 2: defaults, what differs by layer, and
 * refusals. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "config_text.h"

#define GEMMA "{\"architectures\": [\"GemmaForCausalLM\"], \"model_type\": \"gemma\""
#define GEMMA2 "{\"architectures\": [\"Gemma2ForCausalLM\"], \"model_type\": \"gemma2\""
#define GEMMA3 "{\"architectures\": [\"Gemma3ForCausalLM\"], \"model_type\": \"gemma3_text\""
#define GEMMA3_VISION                                                                              \
    "{\"architectures\": [\"Gemma3ForConditionalGeneration\"], \"model_type\": \"gemma3\""
#define GEMMA4 "{\"architectures\": [\"Gemma4ForCausalLM\"], \"model_type\": \"gemma4_text\""
#define OLMO2 "{\"architectures\": [\"Olmo2ForCausalLM\"], \"model_type\": \"olmo2\""
#define GPT2 "{\"architectures\": [\"GPT2LMHeadModel\"], \"model_type\": \"gpt2\""

/* What transformers' configuration classes have when a file says nothing. */
static void defaults(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t vocab, hidden, inner, layers, heads, kv, head, length;
        float scale, cap, head_cap, embed, eps, offset;
        double theta; /* of the first layer's RoPE; 0: it has none */
        int every;    /* every such layer is full; 0: all are */
        int64_t window;
    } rows[] = {
        {GEMMA "}", 256000, 3072, 24576, 28, 16, 16, 256, 8192, 1.0f / 16, 0, 0, 55.5f, 1e-6f, 1,
         1e4, 0, 0},
        {GEMMA2 "}", 256000, 2304, 9216, 26, 8, 4, 256, 8192, 1.0f / 16, 50, 30, 48, 1e-6f, 1, 1e4,
         2, 4096},
        {GEMMA3 "}", 262208, 2304, 9216, 26, 8, 4, 256, 131072, 1.0f / 16, 0, 0, 48, 1e-6f, 1, 1e4,
         6, 4096},
        {GEMMA4 "}", 262144, 2304, 9216, 30, 8, 4, 256, 131072, 1, 0, 0, 48, 1e-6f, 0, 1e4, 6, 512},
        {GPT2 "}", 50257, 768, 3072, 12, 12, 12, 64, 1024, 0.125f, 0, 0, 1, 1e-5f, 0, 0, 0, 0},
    };
    for (size_t i = 0; i < CTW_COUNT(rows); i++) {
        struct ctw_config c;
        parse_ok(&c, rows[i].text);
        const struct ctw_model *m = c.model;
        assert_int_equal(m->vocab, rows[i].vocab);
        assert_int_equal(m->hidden, rows[i].hidden);
        assert_int_equal(m->n_decoders, rows[i].layers);
        assert_int_equal(m->max_length, rows[i].length);
        assert_true(m->tied);
        assert_true(m->embed_scale == rows[i].embed);
        assert_true(m->head_softcap == rows[i].head_cap);
        const struct ctw_norm_rule *last = &m->layers[m->n_layers - 1].norm[CTW_AT_HEAD];
        int rope = m->layers[1].branch[CTW_MIXER].attention.rope;
        assert_true(last->present);
        assert_true(last->eps == rows[i].eps);
        assert_true(last->offset == rows[i].offset);
        assert_true((rope >= 0 ? c.rope[rope].theta : 0) == rows[i].theta);
        for (int l = 1; l <= m->n_decoders; l++) {
            const struct ctw_layer *layer = &m->layers[l];
            bool full = rows[i].every == 0 || l % rows[i].every == 0;
            bool wide = full && i == 3; /* Gemma 4's heads in full layers */
            assert_int_equal(layer->branch[CTW_MLP].dense.inner, rows[i].inner);
            assert_int_equal(layer->branch[CTW_MIXER].attention.n_head, rows[i].heads);
            assert_int_equal(layer->branch[CTW_MIXER].attention.n_kv, rows[i].kv);
            assert_int_equal(layer->branch[CTW_MIXER].attention.head, wide ? 512 : rows[i].head);
            assert_int_equal(layer->branch[CTW_MIXER].attention.window, full ? 0 : rows[i].window);
            assert_true(layer->branch[CTW_MIXER].attention.scale == rows[i].scale);
            assert_true(layer->branch[CTW_MIXER].attention.softcap == rows[i].cap);
            assert_true(layer->branch[CTW_MLP].dense.act == CTW_ACT_GELU_TANH);
            assert_true(layer->branch[CTW_MLP].scalar == 1);
        }
        ctw_config_close(&c);
    }
}

static void norms_and_ropes(void **state)
{
    (void)state;
    struct ctw_config c;
    parse_ok(&c, GEMMA3 ", \"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 8.0}}");
    const struct ctw_model *m = c.model;
    const struct ctw_layer *local = &m->layers[1], *full = &m->layers[6];
    assert_int_equal(m->n_ropes, 2);
    assert_true(local->branch[CTW_MIXER].attention.rope != full->branch[CTW_MIXER].attention.rope);
    /* Element 1 of 128: theta^(-2 / 256), divided by the factor in full layers alone. */
    assert_true(fabs(m->rope[local->branch[CTW_MIXER].attention.rope].inv_freq[1] -
                     pow(1e4, -2.0 / 256)) < 1e-6);
    assert_true(fabs(m->rope[full->branch[CTW_MIXER].attention.rope].inv_freq[1] -
                     pow(1e6, -2.0 / 256) / 8) < 1e-6);
    static const int places[] = {CTW_AT_MIXER,   CTW_AT_MIXER_OUT, CTW_AT_MLP,
                                 CTW_AT_MLP_OUT, CTW_AT_Q,         CTW_AT_K};
    for (size_t i = 0; i < CTW_COUNT(places); i++) {
        assert_true(full->norm[places[i]].present);
        assert_true(full->norm[places[i]].offset == 1);
    }
    assert_true(!full->norm[CTW_AT_V].present);
    assert_true(!full->branch[CTW_MLP].beside);
    assert_true(full->branch[CTW_MLP].dense.gated);
    ctw_config_close(&c);
}

/* Caps of Gemma 3 that its classes in transformers ignore: of scores, and of the multimodal class's
 * logits. */
static void caps_without_effect(void **state)
{
    (void)state;
#define CAPS "\"attn_logit_softcapping\": 5.0, \"final_logit_softcapping\": 30.0}"
    static const struct {
        const char *text;
        float head_cap;
    } rows[] = {{GEMMA3 ", " CAPS, 30}, {GEMMA3_VISION ", \"text_config\": {" CAPS "}", 0}};
    for (size_t i = 0; i < CTW_COUNT(rows); i++) {
        struct ctw_config c;
        parse_ok(&c, rows[i].text);
        assert_true(c.model->head_softcap == rows[i].head_cap);
        for (int l = 1; l <= c.model->n_decoders; l++)
            assert_true(c.model->layers[l].branch[CTW_MIXER].attention.softcap == 0);
        ctw_config_close(&c);
    }
}

/* Layers 0 .. 7 of Gemma 4: full are 5 and 7; the last three share keys of layers 4 (window) and,
 * if all is well, 5. */
static void shared_keys(void **state)
{
    (void)state;
    struct ctw_config c;
    parse_ok(&c, GEMMA4 ", \"num_hidden_layers\": 8, \"num_kv_shared_layers\": 2, "
                        "\"use_double_wide_mlp\": true, \"vocab_size_per_layer_input\": 300000}");
    const struct ctw_layer *l = c.model->layers + 1;
    static const int keeps[] = {-1, -1, -1, -1, 0, 1, -1, -1},
                     uses[] = {-1, -1, -1, -1, -1, -1, 0, 1};
    assert_int_equal(c.model->n_kept, 2);
    for (int i = 0; i < 8; i++) {
        assert_int_equal(l[i].branch[CTW_MIXER].attention.keeps_kv, keeps[i]);
        assert_int_equal(l[i].branch[CTW_MIXER].attention.uses_kv, uses[i]);
        assert_int_equal(l[i].branch[CTW_MLP].dense.inner, i >= 6 ? 18432 : 9216);
        assert_int_equal(l[i].product[CTW_P_QKV].n_shards, i >= 6 ? 1 : 3);
    }
    assert_int_equal(find(&c, "model.layers.7.self_attn.k_proj")->kind, CTW_WANT_UNUSED);
    assert_int_equal(find(&c, "model.embed_tokens_per_layer")->k, 8 * 256);
    assert_int_equal(c.model->input_dim, 256);
    ctw_config_close(&c);
}

static void layers_by_per_layer_config(void **state)
{
    (void)state;
    struct ctw_config c;
    parse_ok(&c, GEMMA4 ", \"num_hidden_layers\": 6, \"hidden_size_per_layer_input\": 0, "
                        "\"attention_k_eq_v\": true, \"global_head_dim\": 128, "
                        "\"per_layer_config\": {\"5\": {\"head_dim\": 64, \"num_key_value_heads\": "
                        "2}}}");
    const struct ctw_layer *l = c.model->layers + 1;
    assert_int_equal(l[0].branch[CTW_MIXER].attention.head, 256);
    assert_int_equal(l[5].branch[CTW_MIXER].attention.head, 64);
    assert_int_equal(l[5].branch[CTW_MIXER].attention.n_kv, 2);
    assert_null(find(&c, "model.layers.5.self_attn.v_proj"));
    assert_true(l[5].branch[CTW_MIXER].attention.columns.v ==
                l[5].branch[CTW_MIXER].attention.columns.k);
    assert_true(l[0].branch[CTW_MIXER].attention.columns.v !=
                l[0].branch[CTW_MIXER].attention.columns.k);
    assert_true(l[5].norm[CTW_AT_V].present);
    ctw_config_close(&c);

    /* As transformers writes it: as many digits as the last entry has. */
    parse_ok(&c, GEMMA4 ", \"num_hidden_layers\": 12, \"hidden_size_per_layer_input\": 0, "
                        "\"per_layer_config\": {\"05\": {\"head_dim\": 64}, \"11\": {\"head_dim\": "
                        "128}}}");
    l = c.model->layers + 1;
    assert_int_equal(l[4].branch[CTW_MIXER].attention.head, 256);
    assert_int_equal(l[5].branch[CTW_MIXER].attention.head, 64);
    assert_int_equal(l[11].branch[CTW_MIXER].attention.head, 128);
    ctw_config_close(&c);
}

/* The last layer sees everything, whatever layer_types calls it. */
static void last_layer_is_full(void **state)
{
    (void)state;
    struct ctw_config c;
    parse_ok(&c, GEMMA4 ", \"num_hidden_layers\": 2, \"layer_types\": [\"sliding_attention\", "
                        "\"sliding_attention\"]}");
    assert_true(c.model->layers[1].branch[CTW_MIXER].attention.window == 512);
    assert_true(c.model->layers[1].branch[CTW_MIXER].attention.head == 256);
    assert_true(c.model->layers[2].branch[CTW_MIXER].attention.window == 0);
    assert_true(c.model->layers[2].branch[CTW_MIXER].attention.head == 512);
    ctw_config_close(&c);
}

/* Everything of GPT-2 that is not Llama's. */
static void gpt2(void **state)
{
    (void)state;
    struct ctw_config c;
    parse_ok(&c, GPT2 ", \"n_inner\": 100, \"scale_attn_by_inverse_layer_idx\": true}");
    const struct ctw_model *m = c.model;
    const struct ctw_want *up = find(&c, "transformer.h.1.mlp.c_fc");
    assert_true(up->transposed);
    assert_true(up->n == 100);
    assert_true(up->k == 768);
    assert_int_equal(find(&c, "transformer.wpe")->n, 1024);
    assert_true(m->layers[2].branch[CTW_MIXER].attention.scale == 0.0625f);
    assert_true(m->layers[2].branch[CTW_MIXER].attention.rope == -1);
    assert_true(m->layers[2].norm[CTW_AT_MLP].kind == CTW_NORM_LAYER);
    assert_true(!m->layers[2].branch[CTW_MLP].dense.gated);
    assert_int_equal(m->length_limit, 1024);
    ctw_config_close(&c);
}

static void olmo2(void **state)
{
    (void)state;
    struct ctw_config c;
    parse_ok(&c, OLMO2 ", \"num_key_value_heads\": 4}");
    const struct ctw_layer *l = &c.model->layers[1];
    assert_true(c.model->vocab == 50304);
    assert_true(c.model->hidden == 4096);
    assert_true(l->branch[CTW_MLP].dense.inner == 11008);
    assert_true(c.model->n_decoders == 32);
    assert_true(l->branch[CTW_MIXER].attention.n_head == 32);
    assert_true(l->branch[CTW_MIXER].attention.head == 128);
    assert_true(c.model->max_length == 2048);
    assert_true(!c.model->tied);
    assert_true(l->branch[CTW_MLP].dense.act == CTW_ACT_SILU);
    assert_true(c.rope[l->branch[CTW_MIXER].attention.rope].theta == 1e4);
    assert_true(l->norm[CTW_AT_Q].eps == 1e-5f);
    assert_true(!l->norm[CTW_AT_MIXER].present);
    assert_true(l->norm[CTW_AT_MIXER_OUT].present);
    assert_true(!l->norm[CTW_AT_MLP].present);
    assert_true(l->norm[CTW_AT_MLP_OUT].present);
    assert_true(l->branch[CTW_MIXER].attention.head_norms == CTW_HEADS_WIDE);
    assert_true(!l->branch[CTW_MIXER].attention.norms_after_rope);
    assert_true(l->branch[CTW_MIXER].attention.n_kv == 4);
    ctw_config_close(&c);
}

/* A RoPE for sequences of two lengths. */
#define LONG(original)                                                                             \
    "{\"rope_type\": \"longrope\", \"short_factor\": [1], \"long_factor\": [2], "                  \
    "\"original_max_position_embeddings\": " original "}"

static void refusals(void **state)
{
    (void)state;
    static const struct refusal rows[] = {
        {GEMMA ", \"use_bidirectional_attention\": true}", "attention to later tokens"},
        {GEMMA3 ", \"sliding_window_pattern\": 0}",
         "sliding_window_pattern: expected a whole number from 1"},
        {GEMMA3 ", \"query_pre_attn_scalar\": 0}", "query_pre_attn_scalar: found 0"},
        {GEMMA4 ", \"enable_moe_block\": true}",
         "enable_moe_block: is true, which needs num_experts"},
        {GEMMA4 ", \"use_bidirectional_attention\": \"all\"}", "attention to later tokens"},
        {GEMMA4 ", \"num_kv_shared_layers\": 30}", "no earlier layer is of the type of layer 0"},
        {GEMMA4 ", \"num_kv_shared_layers\": 31}",
         "num_kv_shared_layers: expected a whole number from 0 to 30"},
        {GEMMA4 ", \"vocab_size_per_layer_input\": 7}", "expected at least vocab_size"},
        {GEMMA4 ", \"per_layer_config\": {\"5\": {\"sinks\": true}}}",
         "per_layer_config.5.sinks: this key of a layer is not supported"},
        {GEMMA4 ", \"per_layer_config\": {\"5\": {\"num_key_value_heads\": 3}}}",
         "not a multiple of layer 5's 3 key-value heads"},
        {GEMMA4 ", \"num_hidden_layers\": 4, \"per_layer_config\": {\"4\": {}}}",
         "per_layer_config.4: expected the index of a layer, 0 to 3"},
        {GEMMA4 ", \"per_layer_config\": {\"05\": {}, \"5\": {}}}",
         "per_layer_config.5: is a second entry of layer 5"},
        {GEMMA4 ", \"per_layer_config\": {\"0x5\": {}}}", "per_layer_config.0x5: expected the"},
        {GEMMA4 ", \"per_layer_config\": {\"\": {}}}", "expected the index of a layer"},
        {GEMMA4 ", \"per_layer_config\": {\"x\": {}}}", "per_layer_config.x: expected the"},
        {GEMMA2 ", \"per_layer_config\": {\"5\": {\"head_dim\": 64}}}", "separate settings"},
        {GEMMA ", \"head_dim\": 7}", "head_dim: found 7, expected an even number, 2 to 512"},
        {GEMMA2 ", \"attn_logit_softcapping\": -1}", "attn_logit_softcapping: found -1, expected"},
        {GEMMA2 ", \"num_hidden_layers\": 2, \"layer_types\": [\"full_attention\"]}",
         "layer_types: found 1 entries, expected num_hidden_layers = 2"},
        {GEMMA3 ", \"head_dim\": 2, \"rope_parameters\": {\"full_attention\": " LONG(
             "20") ", \"sliding_attention\": " LONG("64") "}}",
         "original_max_position_embeddings 64 and 20 in one model are not supported"},
        {GEMMA4 ", \"global_head_dim\": 63}", "63 elements is not an even number of elements"},
        {GEMMA4 ", \"num_hidden_layers\": 12, \"num_kv_shared_layers\": 2, \"per_layer_config\": "
                "{\"10\": {\"num_key_value_heads\": 8}}}",
         "layer 10 has 8 key-value heads of 256 elements, but uses those of layer 9, which has 4 "
         "of 256"},
        {GEMMA4 ", \"per_layer_config\": {\"0\": {\"head_dim\": 2}, \"1\": {\"head_dim\": 4}, "
                "\"2\": {\"head_dim\": 6}, \"3\": {\"head_dim\": 8}}}",
         "more than 4 different RoPEs in one model are not supported"},
        {GPT2 ", \"n_positions\": 0}", "n_positions: expected a whole number from 1"},
        {GPT2 ", \"n_layer\": null}", "n_layer: found null, expected a value"},
        {OLMO2 ", \"num_key_value_heads\": 5}", "is not a multiple of num_key_value_heads 5"},
        {OLMO2 ", \"rms_norm_eps\": null}", "rms_norm_eps: found null, expected a value"},
        {GPT2 ", \"add_cross_attention\": true}", "attention to an encoder"},
        {GPT2 ", \"n_head\": 7}", "n_embd 768 is not a multiple of n_head 7"},
    };
    expect_refusals(rows, CTW_COUNT(rows));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults),
        cmocka_unit_test(norms_and_ropes),
        cmocka_unit_test(caps_without_effect),
        cmocka_unit_test(shared_keys),
        cmocka_unit_test(layers_by_per_layer_config),
        cmocka_unit_test(last_layer_is_full),
        cmocka_unit_test(gpt2),
        cmocka_unit_test(olmo2),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
