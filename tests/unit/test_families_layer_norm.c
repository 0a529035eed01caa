/* config.json of the families with layer norms: defaults, older spellings, what is refused. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "worker/model/families/family.h"

static enum ctw_status parse(struct ctw_config *c, const char *text, struct ctw_err *err)
{
    return ctw_config_parse(c, text, strlen(text), "config.json", err);
}

static void parse_ok(struct ctw_config *c, const char *text)
{
    struct ctw_err err = {0};
    if (parse(c, text, &err) != CTW_OK)
        fail_msg("%s: %s", text, err.msg);
}

static const struct ctw_want *find(const struct ctw_config *c, const char *name)
{
    for (int64_t i = 0; i < c->n_wants; i++)
        if (strcmp(c->wants[i].name, name) == 0)
            return &c->wants[i];
    return NULL;
}

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
        assert_int_equal(l->inner, row->inner);
        assert_int_equal(l->n_head, row->heads);
        assert_int_equal(l->n_kv, row->kv);
        assert_int_equal(l->head, row->head);
        assert_int_equal(l->window, row->window);
        assert_int_equal(l->parallel, row->parallel);
        assert_int_equal(l->act, row->act);
        assert_int_equal(l->rope < 0 ? 0 : m->rope[l->rope].rot_dim, row->rot_dim);
        for (int place = 0; place < CTW_N_NORMS; place++)
            if (l->norm[place].present)
                assert_true(l->norm[place].kind == CTW_NORM_LAYER && l->norm[place].eps == 1e-5f);
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
         {192, 0, 16, 32, 48, 48},
         1},
        {FALCON ", \"num_hidden_layers\": 1, \"hidden_size\": 64, \"num_attention_heads\": 4, "
                "\"new_decoder_architecture\": true, \"num_kv_heads\": 2}",
         "transformer.h.0.self_attention.query_key_value",
         128,
         {128, 0, 32, 48, 64, 64},
         1},
        {FALCON ", \"num_hidden_layers\": 1, \"hidden_size\": 64, \"num_attention_heads\": 4}",
         "transformer.h.0.self_attention.query_key_value",
         96,
         {96, 0, 64, 80, 64, 16},
         3},
    };
    for (size_t i = 0; i < CTW_COUNT(rows); i++) {
        struct ctw_config c;
        parse_ok(&c, rows[i].text);
        const struct ctw_layer *l = &c.model->layers[1];
        const struct ctw_want *w = find(&c, rows[i].module);
        assert_non_null(w);
        assert_int_equal(w->n, rows[i].rows);
        assert_int_equal(l->product[CTW_SLOT_QKV].n_shards, rows[i].shards);
        assert_memory_equal(&l->columns, &rows[i].columns, sizeof(l->columns));
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

/* rope_theta was rotary_emb_base, and wins in rope_parameters. */
static void older_names_of_rope(void **state)
{
    (void)state;
    struct ctw_config c;
    parse_ok(&c, NEOX ", \"rotary_emb_base\": 500, \"rope_theta\": 10, \"rotary_pct\": 0.5, "
                      "\"partial_rotary_factor\": 0.75}");
    assert_true(c.rope[0].theta == 500 && c.rope[0].rot_dim == 48);
    assert_string_equal(c.unread.text, "rope_theta, partial_rotary_factor");
    ctw_config_close(&c);
}

static void refusals(void **state)
{
    (void)state;
    static const struct {
        const char *text, *words;
    } rows[] = {
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
    };
    for (size_t i = 0; i < CTW_COUNT(rows); i++) {
        struct ctw_config c;
        struct ctw_err err = {0};
        assert_int_not_equal(parse(&c, rows[i].text, &err), CTW_OK);
        if (strstr(err.msg, rows[i].words) == NULL || strncmp(err.msg, "config.json: ", 13) != 0)
            fail_msg("%s: \"%s\" does not say \"%s\"", rows[i].text, err.msg, rows[i].words);
        ctw_config_close(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(families_have_their_defaults),
        cmocka_unit_test(fused_projections),
        cmocka_unit_test(alibi_slopes),
        cmocka_unit_test(older_names_of_rope),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
