/* config.json of the families with layer norms: defaults, older spellings, what is refused. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "config_text.h"

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && strcmp(s + n - m, end) == 0;
}

static int64_t n_biases(const struct ctw_config *c)
{
    int64_t n = 0;
    for (int64_t i = 0; i < c->n_wants; i++)
        n += ends_with(c->wants[i].name, ".bias");
    return n;
}

#define NEOX "{\"architectures\": [\"GPTNeoXForCausalLM\"], \"model_type\": \"gpt_neox\""
#define PHI "{\"architectures\": [\"PhiForCausalLM\"], \"model_type\": \"phi\""
#define FALCON "{\"architectures\": [\"FalconForCausalLM\"], \"model_type\": \"falcon\""
#define STABLELM "{\"architectures\": [\"StableLmForCausalLM\"], \"model_type\": \"stablelm\""
#define STARCODER2 "{\"architectures\": [\"Starcoder2ForCausalLM\"], \"model_type\": \"starcoder2\""
#define OPT "{\"architectures\": [\"OPTForCausalLM\"], \"model_type\": \"opt\""
#define BLOOM "{\"architectures\": [\"BloomForCausalLM\"], \"model_type\": \"bloom\""
#define MPT "{\"architectures\": [\"MPTForCausalLM\"], \"model_type\": \"mpt\""

struct row {
    const char *text;
    int64_t vocab, hidden, inner, layers, heads, kv, head, length, window;
    int rot_dim;    /* 0: no RoPE */
    int64_t biases; /* of a layer; those of the model around them are the second's */
    int64_t around;
    bool tied, parallel;
    enum ctw_activation act;
};

static void check(const struct row *row)
{
    struct ctw_config c;
    parse_ok(&c, row->text);
    const struct ctw_model *m = c.model;
    assert_int_equal(m->vocab, row->vocab);
    assert_int_equal(m->hidden, row->hidden);
    assert_int_equal(m->n_decoders, row->layers);
    assert_int_equal(m->max_length, row->length);
    assert_int_equal(m->tied, row->tied);
    for (int i = 1; i <= m->n_decoders; i++) {
        const struct ctw_layer *l = &m->layers[i];
        assert_int_equal(l->branch[CTW_MLP].dense.inner, row->inner);
        assert_int_equal(l->branch[CTW_MIXER].attention.n_head, row->heads);
        assert_int_equal(l->branch[CTW_MIXER].attention.n_kv, row->kv);
        assert_int_equal(l->branch[CTW_MIXER].attention.head, row->head);
        assert_int_equal(l->branch[CTW_MIXER].attention.window, row->window);
        assert_int_equal(l->branch[CTW_MLP].beside, row->parallel);
        assert_int_equal(l->branch[CTW_MLP].dense.act, row->act);
        assert_int_equal(l->branch[CTW_MIXER].attention.rope < 0
                             ? 0
                             : m->rope[l->branch[CTW_MIXER].attention.rope].rot_dim,
                         row->rot_dim);
        for (int place = 0; place < CTW_N_NORMS; place++)
            if (l->norm[place].present) {
                assert_true(l->norm[place].kind == CTW_NORM_LAYER);
                assert_true(l->norm[place].eps == 1e-5f);
            }
    }
    assert_int_equal(n_biases(&c), row->layers * row->biases + row->around);
    ctw_config_close(&c);
}

/* What transformers' configuration classes have when a file says nothing, and variants. */
static void families_have_their_defaults(void **state)
{
    (void)state;
    static const struct row rows[] = {
        {NEOX "}", 50432, 6144, 24576, 44, 64, 64, 96, 2048, 0, 24, 6, 1, false, true,
         CTW_ACT_GELU},
        {NEOX ", \"use_parallel_residual\": false, \"attention_bias\": false, \"rotary_pct\": 1.0}",
         50432, 6144, 24576, 44, 64, 64, 96, 2048, 0, 96, 4, 1, false, false, CTW_ACT_GELU},
        {PHI "}", 51200, 2048, 8192, 24, 32, 32, 64, 2048, 0, 32, 7, 2, false, true,
         CTW_ACT_GELU_TANH},
        {PHI ", \"qk_layernorm\": true, \"num_key_value_heads\": 8, \"partial_rotary_factor\": "
             "0.25}",
         51200, 2048, 8192, 24, 32, 8, 64, 2048, 0, 16, 9, 2, false, true, CTW_ACT_GELU_TANH},
        {FALCON "}", 65024, 4544, 18176, 32, 71, 1, 64, 2048, 0, 64, 1, 1, true, true,
         CTW_ACT_GELU},
        {FALCON ", \"new_decoder_architecture\": true, \"hidden_size\": 8192, "
                "\"num_attention_heads\": 128, \"num_kv_heads\": 8}",
         65024, 8192, 32768, 32, 128, 8, 64, 2048, 0, 64, 2, 1, true, true, CTW_ACT_GELU},
        {FALCON ", \"new_decoder_architecture\": true, \"num_ln_in_parallel_attn\": 1, "
                "\"n_embed\": 4096, \"num_attention_heads\": 32, \"num_kv_heads\": 8, "
                "\"ffn_hidden_size\": 16000}",
         65024, 4096, 16000, 32, 32, 8, 128, 2048, 0, 128, 1, 1, true, true, CTW_ACT_GELU},
        {FALCON ", \"alibi\": true, \"bias\": true, \"multi_query\": false, \"parallel_attn\": "
                "false, \"hidden_size\": 2048, \"num_attention_heads\": 32}",
         65024, 2048, 8192, 32, 32, 32, 64, 2048, 0, 0, 6, 1, true, false, CTW_ACT_GELU},
        {STABLELM "}", 50304, 2560, 6912, 32, 32, 32, 80, 4096, 0, 20, 2, 1, false, false,
         CTW_ACT_SILU},
        {STABLELM
         ", \"use_parallel_residual\": true, \"qk_layernorm\": true, \"use_qkv_bias\": true, "
         "\"hidden_size\": 5120, \"num_key_value_heads\": 8}",
         50304, 5120, 6912, 32, 32, 8, 160, 4096, 0, 40, 4, 1, false, true, CTW_ACT_SILU},
        {STARCODER2 "}", 49152, 3072, 12288, 30, 24, 2, 128, 4096, 0, 128, 8, 1, true, false,
         CTW_ACT_GELU_TANH},
        {STARCODER2 ", \"use_bias\": false, \"sliding_window\": 4096, \"head_dim\": 64}", 49152,
         3072, 12288, 30, 24, 2, 64, 4096, 4096, 64, 2, 1, true, false, CTW_ACT_GELU_TANH},
        {OPT "}", 50272, 768, 3072, 12, 12, 12, 64, 2048, 0, 0, 8, 1, true, false, CTW_ACT_RELU},
        {OPT ", \"do_layer_norm_before\": false, \"word_embed_proj_dim\": 512, \"enable_bias\": "
             "false, \"activation_function\": \"gelu\"}",
         50272, 768, 3072, 12, 12, 12, 64, 2048, 0, 0, 2, 0, true, false, CTW_ACT_GELU},
        {OPT ", \"layer_norm_elementwise_affine\": false, \"word_embed_proj_dim\": null}", 50272,
         768, 3072, 12, 12, 12, 64, 2048, 0, 0, 6, 0, true, false, CTW_ACT_RELU},
        {BLOOM "}", 250880, 64, 256, 2, 8, 8, 8, 2048, 0, 0, 6, 2, true, false, CTW_ACT_GELU_TANH},
        {BLOOM ", \"n_embed\": 14336, \"hidden_size\": 64, \"num_attention_heads\": 112, "
               "\"n_layer\": 70, \"pretraining_tp\": 4}",
         250880, 14336, 57344, 70, 112, 112, 128, 2048, 0, 0, 6, 2, true, false, CTW_ACT_GELU_TANH},
        {MPT "}", 50368, 2048, 8192, 24, 16, 16, 128, 2048, 0, 0, 0, 0, true, false, CTW_ACT_GELU},
        {MPT ", \"d_model\": 4096, \"n_heads\": 32, \"n_layers\": 32, \"max_seq_len\": 65536, "
             "\"attn_config\": null}",
         50368, 4096, 16384, 32, 32, 32, 128, 65536, 0, 0, 0, 0, true, false, CTW_ACT_GELU},
    };
    for (size_t i = 0; i < CTW_COUNT(rows); i++)
        check(&rows[i]);
}

/* One module for q, k and v: where each query and key head is. */
static void fused_projections(void **state)
{
    (void)state;
    static const struct {
        const char *text, *module;
        int64_t rows;
        struct ctw_qkv_columns columns;
        int shards;
    } rows[] = {
        {NEOX ", \"num_hidden_layers\": 1, \"hidden_size\": 64, \"num_attention_heads\": 4}",
         "gpt_neox.layers.0.attention.query_key_value",
         192,
         {192, 0, 16, 32, 48, 48, 0},
         1},
        {FALCON ", \"num_hidden_layers\": 1, \"hidden_size\": 64, \"num_attention_heads\": 4, "
                "\"new_decoder_architecture\": true, \"num_kv_heads\": 2}",
         "transformer.h.0.self_attention.query_key_value",
         128,
         {128, 0, 32, 48, 64, 64, 0},
         1},
        {FALCON ", \"num_hidden_layers\": 1, \"hidden_size\": 64, \"num_attention_heads\": 4}",
         "transformer.h.0.self_attention.query_key_value",
         96,
         {96, 0, 64, 80, 64, 16, 0},
         3},
    };
    for (size_t i = 0; i < CTW_COUNT(rows); i++) {
        struct ctw_config c;
        parse_ok(&c, rows[i].text);
        const struct ctw_layer *l = &c.model->layers[1];
        const struct ctw_want *w = find(&c, rows[i].module);
        assert_non_null(w);
        assert_int_equal(w->n, rows[i].rows);
        assert_int_equal(l->product[CTW_P_QKV].n_shards, rows[i].shards);
        assert_memory_equal(&l->branch[CTW_MIXER].attention.columns, &rows[i].columns,
                            sizeof(rows[i].columns));
        ctw_config_close(&c);
    }
}

/* Slopes of 2^-1 .. 2^-8, and of a number of heads that is not a power of two. */
static void alibi_slopes(void **state)
{
    (void)state;
    static const double expected[] = {0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125};
    struct ctw_config c;
    parse_ok(&c, FALCON ", \"num_hidden_layers\": 1, \"hidden_size\": 96, "
                        "\"num_attention_heads\": 6, \"alibi\": true}");
    for (int i = 0; i < 6; i++)
        assert_true(fabs(c.model->alibi[i] - expected[i] / 4) < 1e-8);
    assert_int_equal(c.n_ropes, 0);
    ctw_config_close(&c);
}

/* The 350M model. */
static void norms_of_the_residual_and_a_narrow_embedding(void **state)
{
    (void)state;
    struct ctw_config c;
    parse_ok(&c, OPT ", \"num_hidden_layers\": 1, \"do_layer_norm_before\": false, "
                     "\"word_embed_proj_dim\": 512}");
    const struct ctw_model *m = c.model;
    const struct ctw_layer *l = &m->layers[1];
    assert_true(m->embed_dim == 512);
    assert_true(m->position0 == 2);
    assert_true(m->length_limit == 2048);
    assert_true(l->norm[CTW_AT_MIXER_SUM].present);
    assert_true(l->norm[CTW_AT_MLP_SUM].present);
    assert_false(l->norm[CTW_AT_MIXER].present);
    assert_false(l->norm[CTW_AT_MLP].present);
    assert_false(m->layers[2].norm[CTW_AT_HEAD].present);
    const struct ctw_want *in = find(&c, "model.decoder.project_in");
    const struct ctw_want *out = find(&c, "model.decoder.project_out");
    const struct ctw_want *positions = find(&c, "model.decoder.embed_positions");
    assert_true(in != NULL);
    assert_true(in->layer == 0);
    assert_true(in->n == 768);
    assert_true(in->k == 512);
    assert_true(out != NULL);
    assert_true(out->layer == 2);
    assert_true(out->n == 512);
    assert_true(out->k == 768);
    assert_true(positions != NULL);
    assert_true(positions->n == 2050);
    assert_int_equal(m->layers[0].product[CTW_P_WIDTH].n_shards, 1);
    assert_int_equal(m->layers[2].product[CTW_P_WIDTH].n_shards, 1);
    ctw_config_close(&c);
}

/* The weight of each head's norm is a tensor of its own. */
static void norms_of_single_heads(void **state)
{
    (void)state;
    struct ctw_config c;
    char name[96];
    parse_ok(&c, STABLELM ", \"num_hidden_layers\": 1, \"qk_layernorm\": true, "
                          "\"num_key_value_heads\": 8}");
    const struct ctw_layer *l = &c.model->layers[1];
    assert_true(l->norm[CTW_AT_Q].present);
    assert_true(l->norm[CTW_AT_K].present);
    assert_int_equal(l->branch[CTW_MIXER].attention.head_norms, CTW_HEADS_OWN);
    for (int h = 0; h < 33; h++) {
        (void)snprintf(name, sizeof(name), "model.layers.0.self_attn.q_layernorm.norms.%d.weight",
                       h);
        const struct ctw_want *q = find(&c, name);
        assert_true(h == 32 ? q == NULL
                            : q != NULL && q->n == 80 && q->role == CTW_V_WEIGHT + CTW_AT_Q);
    }
    assert_non_null(find(&c, "model.layers.0.self_attn.k_layernorm.norms.7.weight"));
    assert_null(find(&c, "model.layers.0.self_attn.k_layernorm.norms.8.weight"));
    ctw_config_close(&c);
}

/* Keys of an object are read, or listed, one by one. */
static void an_object_of_keys(void **state)
{
    (void)state;
    struct ctw_config c;
    parse_ok(&c,
             MPT ", \"n_layers\": 1, \"attn_config\": {\"clip_qkv\": 6, \"softmax_scale\": 0.5, "
                 "\"alibi_bias_max\": 16, \"attn_impl\": \"torch\"}, \"resid_pdrop\": 0}");
    const struct ctw_layer *l = &c.model->layers[1];
    assert_true(l->branch[CTW_MIXER].attention.limit == 6);
    assert_true(l->branch[CTW_MIXER].attention.scale == 0.5f);
    assert_true(c.model->alibi[0] == 0.5f);
    assert_true(c.model->alibi[15] == 1.0f / 65536);
    assert_string_equal(c.unread.text, "attn_config.attn_impl, resid_pdrop");
    ctw_config_close(&c);
}

/* rope_theta was rotary_emb_base, and wins in rope_parameters. */
static void older_names_of_rope(void **state)
{
    (void)state;
    struct ctw_config c;
    parse_ok(&c, NEOX ", \"rotary_emb_base\": 500, \"rope_theta\": 10, \"rotary_pct\": 0.5, "
                      "\"partial_rotary_factor\": 0.75}");
    assert_true(c.rope[0].theta == 500);
    assert_true(c.rope[0].rot_dim == 48);
    assert_string_equal(c.unread.text, "rope_theta, partial_rotary_factor");
    ctw_config_close(&c);
}

static void refusals(void **state)
{
    (void)state;
    static const struct refusal rows[] = {
        {NEOX ", \"hidden_size\": 100, \"num_attention_heads\": 3}", "hidden_size 100 is not"},
        {NEOX ", \"head_dim\": 64}", "head_dim: expected hidden_size / num_attention_heads = 96"},
        {NEOX ", \"rotary_pct\": 0.52}", "0.52 of 96 elements is not an even number"},
        {PHI ", \"head_dim\": null}", "head_dim: found null"},
        {PHI ", \"hidden_act\": \"tanh\"}", "hidden_act: \"tanh\" is not supported"},
        {FALCON ", \"new_decoder_architecture\": true, \"parallel_attn\": false}",
         "parallel_attn: false is not supported with new_decoder_architecture"},
        {FALCON ", \"num_ln_in_parallel_attn\": 2}",
         "num_ln_in_parallel_attn: 2 is not supported without"},
        {FALCON ", \"num_ln_in_parallel_attn\": 3}",
         "num_ln_in_parallel_attn: expected a whole number from 1 to 2"},
        {FALCON ", \"new_decoder_architecture\": true, \"num_kv_heads\": 8}",
         "num_kv_heads: num_attention_heads is not a multiple of it"},
        {FALCON ", \"multi_query\": null}", "multi_query: found null"},
        {STABLELM ", \"head_dim\": 64}",
         "head_dim: expected hidden_size / num_attention_heads = 80"},
        {STABLELM ", \"num_key_value_heads\": 5}", "num_attention_heads 32 is not a multiple of"},
        {OPT ", \"num_attention_heads\": 7}", "hidden_size 768 is not a multiple of"},
        {OPT ", \"word_embed_proj_dim\": 0}", "word_embed_proj_dim: expected"},
        {BLOOM ", \"apply_residual_connection_post_layernorm\": true}",
         "apply_residual_connection_post_layernorm: true is not supported"},
        {BLOOM ", \"slow_but_exact\": true, \"pretraining_tp\": 4}", "slow_but_exact: true is not"},
        {MPT ", \"attn_config\": {\"alibi\": false}}", "attn_config.alibi: false is not supported"},
        {MPT ", \"attn_config\": {\"qk_ln\": true}}", "attn_config.qk_ln: true is not supported"},
        {MPT ", \"attn_config\": {\"prefix_lm\": true}}",
         "attn_config.prefix_lm: attention to later"},
        {MPT ", \"attn_config\": {\"clip_qkv\": -1}}", "attn_config.clip_qkv: found -1"},
        {MPT ", \"attn_config\": \"multihead\"}", "attn_config: expected an object"},
        {MPT ", \"logit_scale\": \"inv_sqrt_d_model\"}", "logit_scale: expected null"},
    };
    expect_refusals(rows, CTW_COUNT(rows));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(families_have_their_defaults),
        cmocka_unit_test(fused_projections),
        cmocka_unit_test(alibi_slopes),
        cmocka_unit_test(norms_of_the_residual_and_a_narrow_embedding),
        cmocka_unit_test(norms_of_single_heads),
        cmocka_unit_test(an_object_of_keys),
        cmocka_unit_test(older_names_of_rope),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
