/* Families with latent attention: their defaults, their tensors, their scales, what they refuse. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "config_text.h"
#include "worker/model/recipe/kinds.h"

#define FAMILY(architecture, type)                                                                 \
    "{\"architectures\": [\"" architecture "\"], \"model_type\": \"" type "\""
#define V2 FAMILY("DeepseekV2ForCausalLM", "deepseek_v2") ", \"num_experts_per_tok\": 6"
#define V3 FAMILY("DeepseekV3ForCausalLM", "deepseek_v3")
#define KIMI FAMILY("DeepseekV3ForCausalLM", "kimi_k2")
#define GLM FAMILY("Glm4MoeLiteForCausalLM", "glm4_moe_lite")
#define V32 FAMILY("DeepseekV32ForCausalLM", "deepseek_v32")
#define GLM5 FAMILY("GlmMoeDsaForCausalLM", "glm_moe_dsa")
#define MISTRAL FAMILY("Mistral4ForCausalLM", "mistral4")

/* clang-format off: a row a family */
#define V3_BUT_LENGTH(length)                                                                      \
    129280, 7168, length, 61, 128, 192, 64, 128, 1536, 512, 3, 2048, 2048, 256, 8, 8, 4,           \
        CTW_SCORE_SIGMOID, true, 2.5

/* What the families' own classes have when a file says nothing. */
static const struct {
    const char *text;
    int64_t vocab, hidden, length;
    int n_layers, n_head, head, turning, head_v, q_rank, kv_rank, dense;
    int64_t inner, shared;
    int n_experts, chosen, groups, kept;
    enum ctw_score score;
    bool normalised;
    double scale;
    struct ctw_indexer index;
    enum ctw_rope_pairing index_pairing;
} defaults[] = {
    {V2 "}",
     102400,
     4096,
     2048,
     32,
     32,
     192,
     64,
     128,
     1536,
     512,
     0,
     1407,
     2814,
     64,
     6,
     0,
     0,
     CTW_SCORE_SOFTMAX,
     false,
     1,
     {0},
     0},
    {V3 "}", V3_BUT_LENGTH(4096), {0}, 0},
    {KIMI "}", V3_BUT_LENGTH(4096), {0}, 0},
    {V32 "}", V3_BUT_LENGTH(163840), {.chosen = 2048, .n_head = 64, .head = 128}, CTW_ROPE_HALVES},
    {GLM "}",
     154880,
     2048,
     202752,
     47,
     20,
     256,
     64,
     256,
     768,
     512,
     1,
     1536,
     1536,
     64,
     4,
     0,
     0,
     CTW_SCORE_SIGMOID,
     true,
     1.8,
     {0},
     0},
    {GLM5 "}",
     154880,
     6144,
     202752,
     78,
     64,
     256,
     64,
     256,
     2048,
     512,
     3,
     2048,
     2048,
     256,
     8,
     0,
     0,
     CTW_SCORE_SIGMOID,
     true,
     2.5,
     {.chosen = 2048, .n_head = 32, .head = 128},
     CTW_ROPE_INTERLEAVED},
    {MISTRAL "}",
     131072,
     4096,
     1048576,
     36,
     32,
     128,
     64,
     128,
     1024,
     256,
     0,
     2048,
     2048,
     128,
     4,
     0,
     0,
     CTW_SCORE_SOFTMAX,
     true,
     1,
     {0},
     0},
};
/* clang-format on */

static void families_have_their_defaults(void **state)
{
    (void)state;
    for (size_t i = 0; i < CTW_COUNT(defaults); i++) {
        struct ctw_config c;
        parse_ok(&c, defaults[i].text);
        const struct ctw_model *m = c.model;
        const struct ctw_layer *l = &m->layers[1], *mixed = &m->layers[1 + defaults[i].dense];
        const struct ctw_route_rule *route = &mixed->branch[CTW_MLP].mixture.route;
        print_message("%s\n", defaults[i].text);
        assert_true(m->vocab == defaults[i].vocab);
        assert_true(m->hidden == defaults[i].hidden);
        assert_true(m->max_length == defaults[i].length);
        assert_true(m->n_decoders == defaults[i].n_layers);
        assert_true(l->branch[CTW_MIXER].latent.n_head == defaults[i].n_head);
        assert_true(l->branch[CTW_MIXER].latent.head == defaults[i].head);
        assert_true(l->branch[CTW_MIXER].latent.turning == defaults[i].turning);
        assert_true(l->branch[CTW_MIXER].latent.head_v == defaults[i].head_v);
        assert_true(l->branch[CTW_MIXER].latent.q_rank == defaults[i].q_rank);
        assert_true(l->branch[CTW_MIXER].latent.kv_rank == defaults[i].kv_rank);
        assert_true(l->norm[CTW_AT_KV_A].eps == 1e-6f);
        assert_true(l->norm[CTW_AT_Q_A].eps == 1e-6f);
        assert_true(defaults[i].dense == 0 || l->n_experts == 0);
        assert_true(mixed->branch[CTW_MLP].mixture.inner == defaults[i].inner);
        assert_true(ctw_layer_facts(mixed).inner == defaults[i].shared);
        assert_true(route->n_experts == defaults[i].n_experts);
        assert_true(route->chosen == defaults[i].chosen);
        assert_true(route->n_groups == defaults[i].groups);
        assert_true(route->kept_groups == defaults[i].kept);
        assert_true(route->score == defaults[i].score);
        assert_true(route->normalised == defaults[i].normalised);
        assert_true(fabs(route->scale - defaults[i].scale) < 1e-6);
        assert_true(route->sum_add == (defaults[i].normalised ? 1e-20f : 0));
        assert_int_equal(m->rope[0].pairing, CTW_ROPE_INTERLEAVED);
        assert_int_equal(m->rope[0].rot_dim, defaults[i].turning);
        assert_int_equal(l->branch[CTW_MIXER].latent.index.chosen, defaults[i].index.chosen);
        assert_int_equal(l->branch[CTW_MIXER].latent.index.n_head, defaults[i].index.n_head);
        assert_int_equal(l->branch[CTW_MIXER].latent.index.head, defaults[i].index.head);
        if (l->branch[CTW_MIXER].latent.index.chosen > 0) {
            assert_int_equal(m->rope[l->branch[CTW_MIXER].latent.index.rope].pairing,
                             defaults[i].index_pairing);
            assert_int_equal(m->rope[l->branch[CTW_MIXER].latent.index.rope].rot_dim,
                             defaults[i].turning);
        }
        for (int j = 1; j <= m->n_decoders; j++)
            assert_false(m->layers[j].branch[CTW_MIXER].latent.index.shared);
        ctw_config_close(&c);
    }
}

static void expect(struct ctw_config *c, const char *text, const char *const *names)
{
    parse_ok(c, text);
    for (; *names != NULL; names++)
        if (find(c, *names) == NULL)
            fail_msg("%s: %s is not described", text, *names);
}

#define NAMES(...) ((const char *const[]){__VA_ARGS__, NULL})
#define AT(layer, name) "model.layers." layer "." name

static void tensors_have_deepseeks_names(void **state)
{
    (void)state;
    struct ctw_config c;
    expect(&c, V3 "}",
           NAMES(AT("0", "self_attn.q_a_proj"), AT("0", "self_attn.q_a_layernorm.weight"),
                 AT("0", "self_attn.q_b_proj"), AT("0", "self_attn.kv_a_proj_with_mqa"),
                 AT("0", "self_attn.kv_a_layernorm.weight"), AT("0", "self_attn.kv_b_proj"),
                 AT("0", "self_attn.o_proj"), AT("2", "mlp.gate_proj"),
                 AT("3", "mlp.gate.e_score_correction_bias"), AT("3", "mlp.experts.255.down_proj"),
                 AT("60", "mlp.shared_experts.up_proj")));
    const struct ctw_want *kv_b = find(&c, AT("0", "self_attn.kv_b_proj"));
    assert_true(kv_b->n == 128 * (128 + 128));
    assert_true(kv_b->k == 512);
    assert_true(find(&c, AT("0", "self_attn.o_proj"))->k == 128 * 128);
    assert_true(c.n_drafts == 1);
    assert_true(c.first_draft == 61);
    ctw_config_close(&c);

    expect(&c, V3 ", \"q_lora_rank\": null, \"attention_bias\": true}",
           NAMES(AT("0", "self_attn.q_proj"), AT("0", "self_attn.kv_a_proj_with_mqa.bias"),
                 AT("0", "self_attn.o_proj.bias")));
    assert_null(find(&c, AT("0", "self_attn.q_a_proj")));
    assert_null(find(&c, AT("0", "self_attn.q_proj.bias")));
    ctw_config_close(&c);

    expect(&c, V32 "}",
           NAMES(AT("0", "self_attn.indexer.wq_b"), AT("0", "self_attn.indexer.wk"),
                 AT("0", "self_attn.indexer.weights_proj"),
                 AT("0", "self_attn.indexer.k_norm.weight"),
                 AT("0", "self_attn.indexer.k_norm.bias")));
    const struct ctw_want *wq_b = find(&c, AT("0", "self_attn.indexer.wq_b"));
    assert_true(wq_b->n == 64 * 128);
    assert_true(wq_b->k == 1536);
    ctw_config_close(&c);

    expect(&c, MISTRAL "}",
           NAMES(AT("0", "mlp.experts.gate_up_proj"), AT("0", "mlp.experts.down_proj")));
    assert_true(c.model->layers[1].branch[CTW_MIXER].latent.q_factors);
    assert_true(c.model->q_factor_beta == 0.1);
    assert_true(c.model->q_factor_length == 8192);
    ctw_config_close(&c);
}

#define YARN(more)                                                                                 \
    ", \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 40, "                                    \
    "\"original_max_position_embeddings\": 4096" more "}}"

/* YaRN's factor, for queries and for keys, is part of the scale. */
static void scales(void **state)
{
    (void)state;
    const double plain = 1 / sqrt(192), m = 0.1 * log(40) + 1, m_707 = 0.0707 * log(40) + 1;
    const double mistral = 1 / sqrt(128), m_128 = 0.1 * log(128) + 1;
    const struct {
        const char *text;
        double scale, table; /* of cosines and sines */
    } rows[] = {
        {V3 "}", plain, 1},
        {V3 YARN(""), plain, m},
        {V3 YARN(", \"mscale\": 1.0, \"mscale_all_dim\": 1.0"), plain * m * m, 1},
        {V2 YARN(", \"mscale\": 0.707, \"mscale_all_dim\": 0.707"), plain * m_707 * m_707, 1},
        {V2 YARN(", \"mscale\": 1.0, \"mscale_all_dim\": 0"), plain, m},
        /* The class's own YaRN, whatever theta a file has beside it. */
        {MISTRAL "}", mistral * m_128 * m_128, 1},
        {MISTRAL ", \"rope_theta\": 500.0, \"rope_scaling\": null}", mistral * m_128 * m_128, 1},
    };
    for (size_t i = 0; i < CTW_COUNT(rows); i++) {
        struct ctw_config c;
        parse_ok(&c, rows[i].text);
        print_message("%s\n", rows[i].text);
        assert_true(fabs(c.model->layers[1].branch[CTW_MIXER].latent.scale - rows[i].scale) < 1e-7);
        assert_true(fabs(c.model->rope[0].scale - rows[i].table) < 1e-6);
        ctw_config_close(&c);
    }
}

static void keys_change_the_layers(void **state)
{
    (void)state;
    struct ctw_config c;
    parse_ok(&c, V3 ", \"rope_interleave\": false, \"first_k_dense_replace\": 61}");
    assert_int_equal(c.model->rope[0].pairing, CTW_ROPE_HALVES);
    assert_int_equal(c.model->layers[61].n_experts, 0);
    ctw_config_close(&c);
    parse_ok(&c, V2 ", \"topk_method\": \"group_limited_greedy\", \"n_group\": 8, "
                    "\"topk_group\": 3, \"rope_interleave\": false}");
    const struct ctw_route_rule *route = &c.model->layers[1].branch[CTW_MLP].mixture.route;
    assert_true(route->n_groups == 8);
    assert_true(route->kept_groups == 3);
    assert_true(route->group_best == 1);
    assert_int_equal(c.model->rope[0].pairing, CTW_ROPE_INTERLEAVED); /* always */
    ctw_config_close(&c);
    /* A field of the class that its modules do not read. */
    parse_ok(&c, V32 ", \"mlp_bias\": true}");
    assert_null(find(&c, "model.layers.0.mlp.gate_proj.bias"));
    ctw_config_close(&c);
    static const char *const by_type[] = {
        GLM ", \"num_hidden_layers\": 2, \"mlp_layer_types\": [\"sparse\", \"dense\"]}",
        GLM5 ", \"num_hidden_layers\": 2, \"mlp_layer_types\": [\"sparse\", \"dense\"]}"};
    for (size_t i = 0; i < CTW_COUNT(by_type); i++) {
        parse_ok(&c, by_type[i]);
        assert_int_not_equal(c.model->layers[1].n_experts, 0);
        assert_int_equal(c.model->layers[2].n_experts, 0);
        ctw_config_close(&c);
    }
}

/* Layers that use the choice of a layer before have no indexer. */
static void choices_are_shared(void **state)
{
    (void)state;
    static const struct {
        const char *more, *own; /* own: F for a layer with an indexer */
    } rows[] = {
        {"\"index_topk_freq\": 1", "FFFFFF"},
        {"\"index_topk_freq\": 2", "FFSFSF"},
        {"\"index_topk_freq\": 3, \"index_skip_topk_offset\": 1", "FSSFSS"},
        {"\"index_topk_pattern\": \"FSFSSF\", \"index_topk_freq\": 2", "FSFSSF"},
        {"\"indexer_types\": [\"full\", \"full\", \"shared\", \"shared\", \"full\", \"shared\"], "
         "\"index_topk_pattern\": \"FFFFFF\"",
         "FFSSFS"},
    };
    for (size_t i = 0; i < CTW_COUNT(rows); i++) {
        char text[512];
        struct ctw_config c;
        snprintf(text, sizeof(text), GLM5 ", \"num_hidden_layers\": 6, %s}", rows[i].more);
        parse_ok(&c, text);
        print_message("%s\n", text);
        for (int j = 0; j < 6; j++) {
            char name[64];
            bool own = rows[i].own[j] == 'F';
            snprintf(name, sizeof(name), "model.layers.%d.self_attn.indexer.wk", j);
            assert_int_equal(c.model->layers[1 + j].branch[CTW_MIXER].latent.index.shared, !own);
            assert_int_equal(c.model->layers[1 + j].branch[CTW_MIXER].latent.index.chosen, 2048);
            assert_int_equal(find(&c, name) != NULL, own);
        }
        ctw_config_close(&c);
    }
}

/* Kimi K2.5's text model is of either type, in a wrapper, whose class transformers spells anew. */
static void a_wrapper_has_any_text_model(void **state)
{
    (void)state;
    static const struct {
        const char *architecture, *type;
    } rows[] = {{"KimiK25", "kimi_k2"}, {"KimiK25", "deepseek_v3"}, {"Kimi_K25", "deepseek_v3"}};
    for (size_t i = 0; i < CTW_COUNT(rows); i++) {
        char text[512];
        struct ctw_config c;
        snprintf(text, sizeof(text),
                 "{\"architectures\": [\"%sForConditionalGeneration\"], \"model_type\": "
                 "\"kimi_k25\", \"text_config\": {\"model_type\": \"%s\", \"n_group\": 1, "
                 "\"topk_group\": 1, \"n_routed_experts\": 384}}",
                 rows[i].architecture, rows[i].type);
        parse_ok(&c, text);
        assert_int_equal(c.model->layers[4].n_experts, 384);
        assert_true(c.model->tied);
        assert_true(c.tied_by_default); /* the wrapper's default */
        ctw_config_close(&c);
    }
}

static void what_cannot_be_is_refused(void **state)
{
    (void)state;
    static const struct refusal rows[] = {
        {V2 ", \"topk_method\": \"noaux_tc\"}", "topk_method: found \"noaux_tc\", expected"},
        {V3 ", \"num_key_value_heads\": 8}", "num_key_value_heads: found 8, expected"},
        {V3 ", \"qk_rope_head_dim\": 63}", "qk_rope_head_dim: found 63, expected an"},
        {V3 ", \"qk_nope_head_dim\": 500}", "qk_nope_head_dim: attention heads of 564"},
        {V3 ", \"kv_lora_rank\": null}", "kv_lora_rank: found null, expected a value"},
        {V3 ", \"n_group\": 7}", "groups of experts, which must be of equal"},
        {V3 ", \"topk_group\": 9}", "topk_group: expected a whole number from 1"},
        {MISTRAL ", \"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 1e4}}",
         "llama_4_scaling_beta: expected a number in"},
        {GLM ", \"partial_rotary_factor\": 0.5}", "partial_rotary_factor: 32 elements of a"},
        {V32 ", \"q_lora_rank\": null}", "q_lora_rank: an indexer needs"},
        {V32 ", \"index_head_dim\": 32}", "at least qk_rope_head_dim (64)"},
        {V32 ", \"index_topk\": 0}", "index_topk: expected a whole number from 1"},
        {V32 ", \"index_topk\": null}", "index_topk: found null, expected a value"},
        {V32 ", \"index_n_heads\": 0}", "index_n_heads: expected a whole number from"},
        {GLM5 ", \"num_hidden_layers\": 2, \"index_topk_pattern\": \"FX\"}", "a letter F or S"},
        {GLM5 ", \"num_hidden_layers\": 2, \"index_topk_pattern\": \"F\"}",
         "index_topk_pattern: found \"F\", expected a"},
        {GLM5 ", \"num_hidden_layers\": 2, \"index_topk_pattern\": \"SF\"}", "layer 0 shares"},
        {GLM5 ", \"num_hidden_layers\": 2, \"indexer_types\": [\"full\", \"half\"]}",
         "indexer_types[1]: \"half\" is not supported;"},
    };
    expect_refusals(rows, CTW_COUNT(rows));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(families_have_their_defaults),
        cmocka_unit_test(tensors_have_deepseeks_names),
        cmocka_unit_test(scales),
        cmocka_unit_test(keys_change_the_layers),
        cmocka_unit_test(choices_are_shared),
        cmocka_unit_test(a_wrapper_has_any_text_model),
        cmocka_unit_test(what_cannot_be_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
