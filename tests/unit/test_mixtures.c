/* Families with mixtures of experts: their defaults, their tensors, and what they refuse. */
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
#include "worker/model/recipe/kinds.h"

#define FAMILY(architecture, type)                                                                 \
    "{\"architectures\": [\"" architecture "\"], \"model_type\": \"" type "\""
#define GLM FAMILY("Glm4MoeForCausalLM", "glm4_moe") ", \"head_dim\": 128"
#define DOTS                                                                                       \
    FAMILY("Dots1ForCausalLM", "dots1")                                                            \
    ", \"n_routed_experts\": 128, \"num_experts_per_tok\": 6, \"n_shared_experts\": 2"
#define SOLAR FAMILY("SolarOpenForCausalLM", "solar_open")
#define MINIMAX FAMILY("MiniMaxM2ForCausalLM", "minimax_m2")
#define GPT_OSS FAMILY("GptOssForCausalLM", "gpt_oss")
#define ERNIE FAMILY("Ernie4_5_MoeForCausalLM", "ernie4_5_moe")
#define HUNYUAN FAMILY("HunYuanMoEV1ForCausalLM", "hunyuan_v1_moe")
#define HY FAMILY("HYV3ForCausalLM", "hy_v3")
#define AFMOE FAMILY("AfmoeForCausalLM", "afmoe")
#define DBRX FAMILY("DbrxForCausalLM", "dbrx")
#define GRANITE FAMILY("GraniteMoeForCausalLM", "granitemoe")
#define OLMOE FAMILY("OlmoeForCausalLM", "olmoe")
#define PHIMOE FAMILY("PhimoeForCausalLM", "phimoe")
#define LLAMA4 FAMILY("Llama4ForCausalLM", "llama4_text")
#define MIMO FAMILY("MiMoV2FlashForCausalLM", "mimo_v2_flash")
#define LAGUNA FAMILY("LagunaForCausalLM", "laguna")
#define STEP FAMILY("Step3p5ForCausalLM", "step3p5")
#define GEMMA4                                                                                     \
    FAMILY("Gemma4ForCausalLM", "gemma4_text")                                                     \
    ", \"hidden_size_per_layer_input\": 0, \"enable_moe_block\": true"

struct defaults {
    const char *text;
    int64_t vocab, hidden, length;
    int n_layers, n_head, n_kv, head, dense; /* dense: layers before the first mixture */
    int64_t dense_inner, shared_inner;       /* 0: there is none */
    int n_experts, chosen;
    int64_t inner;
    enum ctw_score score;
    bool normalised;
    double scale, theta;
    bool tied;
};

/* What the families' own classes have when a file says nothing. */
static void families_have_their_defaults(void **state)
{
    (void)state;
    static const struct defaults rows[] = {
        {GLM "}", 151552, 4096, 131072, 46, 96, 8, 128, 1, 10944, 1408, 128, 8, 1408,
         CTW_SCORE_SIGMOID, true, 1, 10000, false},
        {DOTS "}", 152064, 4608, 2048, 62, 32, 32, 144, 0, 0, 2816, 128, 6, 1408, CTW_SCORE_SIGMOID,
         false, 1, 10000, false},
        {SOLAR "}", 196608, 4096, 131072, 48, 64, 8, 128, 0, 0, 1280, 128, 8, 1280,
         CTW_SCORE_SIGMOID, true, 1, 1000000, false},
        {MINIMAX "}", 200064, 3072, 196608, 62, 48, 8, 128, 0, 0, 0, 256, 8, 1536,
         CTW_SCORE_SIGMOID, true, 1, 5000000, false},
        {GPT_OSS "}", 201088, 2880, 131072, 36, 64, 8, 64, 0, 0, 0, 128, 4, 2880,
         CTW_SCORE_SOFTMAX_CHOSEN, false, 1, 150000, false},
        {ERNIE "}", 103424, 2560, 131072, 28, 20, 4, 128, 1, 12288, 3072, 64, 6, 1536,
         CTW_SCORE_SOFTMAX, true, 1, 500000, true},
        {HUNYUAN "}", 290943, 4096, 2048, 32, 32, 32, 128, 0, 0, 11008, 1, 1, 11008,
         CTW_SCORE_SOFTMAX, true, 1, 10000, false},
        {HY "}", 120832, 4096, 131072, 80, 64, 8, 128, 1, 13312, 1536, 192, 8, 1536,
         CTW_SCORE_SIGMOID, true, 2.826, 11158840, false},
        {AFMOE "}", 200192, 2048, 16384, 32, 16, 16, 128, 1, 6144, 2816, 64, 6, 1408,
         CTW_SCORE_SIGMOID, true, 1, 10000, false},
        {DBRX "}", 32000, 2048, 2048, 24, 16, 1, 128, 0, 0, 0, 4, 1, 3584, CTW_SCORE_SOFTMAX, true,
         1, 10000, false},
        {GRANITE "}", 32000, 4096, 2048, 32, 32, 32, 128, 0, 0, 0, 8, 2, 11008,
         CTW_SCORE_SOFTMAX_CHOSEN, false, 1, 10000, false},
        {OLMOE "}", 50304, 2048, 4096, 16, 16, 16, 128, 0, 0, 0, 64, 8, 2048, CTW_SCORE_SOFTMAX,
         false, 1, 10000, false},
        {PHIMOE "}", 32064, 4096, 131072, 32, 32, 8, 128, 0, 0, 0, 16, 2, 6400,
         CTW_SCORE_SPARSEMIXER, false, 1, 1000000, false},
        {LLAMA4 "}", 202048, 5120, 131072, 48, 40, 8, 128, 0, 0, 8192, 16, 1, 8192,
         CTW_SCORE_SIGMOID, false, 1, 500000, false},
        {MIMO "}", 152576, 4096, 131072, 48, 64, 4, 192, 1, 16384, 0, 256, 8, 2048,
         CTW_SCORE_SIGMOID, true, 1, 5000000, false},
        {LAGUNA "}", 100352, 2048, 131072, 40, 48, 8, 128, 1, 8192, 512, 256, 8, 512,
         CTW_SCORE_SIGMOID, true, 1, 500000, false},
        {STEP "}", 128815, 4096, 128000, 45, 64, 8, 128, 3, 11264, 1280, 288, 8, 1280,
         CTW_SCORE_SIGMOID, true, 1, 10000, false},
    };
    for (size_t i = 0; i < CTW_COUNT(rows); i++) {
        struct ctw_config c;
        parse_ok(&c, rows[i].text);
        const struct ctw_model *m = c.model;
        const struct ctw_layer *first = &m->layers[1], *mixed = &m->layers[1 + rows[i].dense];
        const struct ctw_route_rule *route = &mixed->branch[CTW_MLP].mixture.route;
        print_message("%s\n", rows[i].text);
        assert_true(m->vocab == rows[i].vocab);
        assert_true(m->hidden == rows[i].hidden);
        assert_true(m->max_length == rows[i].length);
        assert_true(m->tied == rows[i].tied);
        assert_true(m->n_decoders == rows[i].n_layers);
        assert_true(first->branch[CTW_MIXER].attention.n_head == rows[i].n_head);
        assert_true(first->branch[CTW_MIXER].attention.n_kv == rows[i].n_kv);
        assert_true(first->branch[CTW_MIXER].attention.head == rows[i].head);
        if (rows[i].dense > 0) {
            assert_true(first->n_experts == 0);
            assert_true(ctw_layer_facts(first).inner == rows[i].dense_inner);
        }
        assert_true(ctw_layer_facts(mixed).inner == rows[i].shared_inner);
        assert_true(route->n_experts == rows[i].n_experts);
        assert_true(route->chosen == rows[i].chosen);
        assert_true(mixed->branch[CTW_MLP].mixture.inner == rows[i].inner);
        assert_true(route->score == rows[i].score);
        assert_true(route->normalised == rows[i].normalised);
        assert_true(fabs(route->scale - rows[i].scale) < 1e-6);
        assert_true(c.rope[0].theta == rows[i].theta);
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

static void tensors_have_the_families_names(void **state)
{
    (void)state;
    struct ctw_config c;
    expect(&c, GLM ", \"use_qk_norm\": true}",
           NAMES("model.layers.0.mlp.gate_proj", "model.layers.1.mlp.gate",
                 "model.layers.1.mlp.gate.e_score_correction_bias",
                 "model.layers.1.mlp.experts.127.down_proj",
                 "model.layers.1.mlp.shared_experts.up_proj",
                 "model.layers.1.self_attn.q_norm.weight"));
    assert_true(ctw_name_is_apart(&c, "model.layers.46.eh_proj.weight"));
    assert_false(ctw_name_is_apart(&c, "model.layers.47.eh_proj.weight"));
    assert_false(ctw_name_is_apart(&c, "model.layers.45.mlp.gate.weight"));
    ctw_config_close(&c);

    expect(&c, GPT_OSS "}",
           NAMES("model.layers.0.self_attn.sinks", "model.layers.0.mlp.router",
                 "model.layers.0.mlp.router.bias", "model.layers.0.mlp.experts.gate_up_proj",
                 "model.layers.0.mlp.experts.gate_up_proj_bias"));
    assert_true(c.model->layers[1].branch[CTW_MIXER].attention.window == 128);
    assert_true(c.model->layers[2].branch[CTW_MIXER].attention.window == 0);
    /* Not "Linear": a stack that is stored dense is a bare parameter. */
    const struct ctw_want *stack = find(&c, "model.layers.0.mlp.experts.gate_up_proj");
    assert_string_equal(stack->class_name, CTW_CLASS_EXPERTS);
    const struct ctw_glu *glu = &c.model->layers[1].branch[CTW_MLP].mixture.glu;
    assert_true(glu->kind == CTW_GLU_OFFSET);
    assert_true(glu->limit == 7);
    assert_true(glu->alpha == 1.702f);
    assert_true(c.rope[0].type == CTW_ROPE_YARN);
    assert_true(c.rope[0].factor == 32);
    assert_true(c.rope[0].theta == 150000);
    ctw_config_close(&c);

    /* theta alone leaves the class's own YaRN. */
    parse_ok(&c, GPT_OSS ", \"rope_theta\": 500.0, \"rope_scaling\": null}");
    assert_true(c.rope[0].type == CTW_ROPE_YARN);
    assert_true(c.rope[0].theta == 500);
    ctw_config_close(&c);

    expect(&c, GRANITE "}",
           NAMES("model.layers.0.block_sparse_moe.router.layer",
                 "model.layers.0.block_sparse_moe.input_linear",
                 "model.layers.0.block_sparse_moe.output_linear"));
    ctw_config_close(&c);

    expect(&c, STEP ", \"moe_layers_enum\": \"4, 5\", \"swiglu_limits\": 2}",
           NAMES("model.layers.3.mlp.gate_proj", "model.layers.4.moe.gate_proj",
                 "model.layers.4.moe.router_bias", "model.layers.5.share_expert.down_proj",
                 "model.layers.0.self_attn.g_proj", "model.layers.6.mlp.gate_proj"));
    assert_true(c.model->layers[5].branch[CTW_MLP].mixture.glu.kind == CTW_GLU_CLAMPED_ACT);
    assert_true(c.model->layers[5].branch[CTW_MLP].mixture.glu.limit == 2);
    assert_true(c.model->layers[5].branch[CTW_MLP].mixture.shared.glu.limit == 0);
    ctw_config_close(&c);

    expect(&c, GEMMA4 ", \"num_experts\": 8, \"top_k_experts\": 2, \"moe_intermediate_size\": 64}",
           NAMES("model.layers.0.router.scale", "model.layers.0.router.per_expert_scale",
                 "model.layers.0.experts.gate_up_proj",
                 "model.layers.0.pre_feedforward_layernorm_2.weight",
                 "model.layers.0.post_feedforward_layernorm_1.weight"));
    assert_true(fabsf(c.model->layers[1].branch[CTW_MLP].mixture.route.factor - 1 / sqrtf(2304)) <
                1e-8F);
    ctw_config_close(&c);
}

/* The group of the described matrix; NULL: none. */
static const struct ctw_quant_group *group_of(const struct ctw_config *c, const char *name)
{
    const struct ctw_quant_group *g;
    const struct ctw_want *want = find(c, name);
    struct ctw_err err;
    assert_non_null(want);
    assert_int_equal(ctw_name_find_group(c, want, NULL, &g, &err), CTW_OK);
    return g;
}

/* Tools list modules as transformers 5's class calls them in memory, whatever the file's names. */
static void names_in_memory_match_too(void **state)
{
    (void)state;
#define GROUP(name, target, bits)                                                                  \
    "\"" name "\": {\"targets\": [\"" target "\"], \"weights\": {\"num_bits\": " bits              \
    ", \"strategy\": \"channel\"}}"
    struct ctw_config c;
    expect(&c,
           MINIMAX
           ", \"quantization_config\": {\"quant_method\": \"compressed-tensors\", "
           "\"config_groups\": {" GROUP("all", "Linear", "8") ", " GROUP(
               "experts", "re:.*mlp\\\\.experts.*", "4") "}, \"ignore\": "
                                                         "[\"model.layers.1.mlp.experts.2.w1\"]}}",
           NAMES("model.layers.1.block_sparse_moe.experts.2.w1"));
    static const struct {
        const char *name;
        int bits;
    } rows[] = {{"model.layers.1.block_sparse_moe.experts.3.w1", 4},
                {"model.layers.1.block_sparse_moe.experts.2.w1", 0},
                {"model.layers.1.self_attn.q_proj", 8}};
    for (size_t i = 0; i < CTW_COUNT(rows); i++) {
        const struct ctw_quant_group *g = group_of(&c, rows[i].name);
        assert_int_equal(g != NULL ? g->args.num_bits : 0, rows[i].bits);
    }
    ctw_config_close(&c);
    /* Granite's class has the files' name for the block. */
    parse_ok(&c, GRANITE ", \"quantization_config\": {\"quant_method\": \"compressed-tensors\", "
                         "\"config_groups\": {" GROUP("mlps", "re:.*mlp.*", "8") "}}}");
    assert_null(group_of(&c, "model.layers.0.block_sparse_moe.input_linear"));
    ctw_config_close(&c);
}

/* Each family's names in memory: a target that is one of them quantises the file's module. */
static void families_have_names_in_memory(void **state)
{
    (void)state;
    static const struct {
        const char *text, *file, *in_memory;
        bool other; /* is it the name of another module? */
    } rows[] = {
        {PHIMOE, "block_sparse_moe.gate", "mlp.router", false},
        {PHIMOE, "block_sparse_moe.gate", "mlp.gate", false},
        {PHIMOE, "block_sparse_moe.experts.3.w2", "mlp.experts.3.w2", false},
        {GRANITE, "block_sparse_moe.router.layer", "block_sparse_moe.router", false},
        {GRANITE, "block_sparse_moe.input_linear", "block_sparse_moe.experts.gate_up_proj", false},
        {GRANITE, "block_sparse_moe.output_linear", "block_sparse_moe.experts.down_proj", false},
        {HY, "mlp.router.gate", "mlp.gate", false},
        {HY, "mlp.shared_mlp.up_proj", "mlp.shared_experts.up_proj", false},
        {LAGUNA, "mlp.shared_expert.down_proj", "mlp.shared_experts.down_proj", false},
        {STEP, "moe.gate", "mlp.gate", false},
        {STEP, "moe.gate_proj", "mlp.experts.gate_proj", false},
        {STEP, "share_expert.up_proj", "mlp.shared_experts.up_proj", false},
        {STEP, "moe.gate_proj", "mlp.gate_proj", true},
    };
    for (size_t i = 0; i < CTW_COUNT(rows); i++) {
        struct ctw_config c;
        char text[1024], name[128];
        (void)snprintf(text, sizeof(text),
                       "%s, \"quantization_config\": {\"quant_method\": \"compressed-tensors\", "
                       "\"config_groups\": {" GROUP("one", "model.layers.5.%s", "4") "}}}",
                       rows[i].text, rows[i].in_memory);
        parse_ok(&c, text);
        for (int layer = 5; layer <= 6; layer++) {
            (void)snprintf(name, sizeof(name), "model.layers.%d.%s", layer, rows[i].file);
            if ((group_of(&c, name) != NULL) != (layer == 5 && !rows[i].other))
                fail_msg("%s: %s", name, rows[i].in_memory);
        }
        ctw_config_close(&c);
    }
}

static void layers_differ(void **state)
{
    (void)state;
    struct ctw_config c;
    parse_ok(&c, LLAMA4 ", \"no_rope_layers\": [], \"interleave_moe_layer_step\": 2}");
    const struct ctw_layer *l = &c.model->layers[1];
    assert_true(l[0].branch[CTW_MIXER].attention.rope == 0);
    assert_true(l[0].branch[CTW_MIXER].attention.chunk == 8192);
    assert_true(!l[0].branch[CTW_MIXER].attention.q_factors);
    assert_true(l[0].branch[CTW_MIXER].attention.norms_after_rope);
    assert_true(l[0].norm[CTW_AT_Q].present);
    assert_true(l[3].branch[CTW_MIXER].attention.rope == -1);
    assert_true(l[3].branch[CTW_MIXER].attention.chunk == 0);
    assert_true(l[3].branch[CTW_MIXER].attention.q_factors);
    assert_false(l[3].norm[CTW_AT_Q].present);
    assert_true(ctw_layer_facts(&l[0]).inner == 16384);
    assert_true(l[0].n_experts == 0);
    assert_true(ctw_layer_facts(&l[1]).inner == 8192);
    assert_true(l[1].branch[CTW_MLP].mixture.on_input);
    assert_true(c.model->q_factor_beta == 0.1);
    assert_true(c.model->q_factor_length == 8192);
    assert_true(c.model->q_factor_first == 1);
    ctw_config_close(&c);
}

/* Windows and heads that differ between layers. */
static void windows_and_heads_differ(void **state)
{
    (void)state;
    struct ctw_config c;
    const struct ctw_layer *l;
    parse_ok(&c, MIMO ", \"sliding_window_size\": 128, \"routed_scaling_factor\": null}");
    l = &c.model->layers[1];
    assert_true(l[0].branch[CTW_MIXER].attention.window == 0);
    assert_true(l[0].branch[CTW_MIXER].attention.n_kv == 4);
    assert_true(l[0].branch[CTW_MIXER].attention.head_v == 128);
    assert_true(l[1].branch[CTW_MIXER].attention.window == 129);
    assert_true(l[1].branch[CTW_MIXER].attention.n_kv == 8);
    assert_true(l[5].branch[CTW_MIXER].attention.window == 0);
    assert_true(c.rope[0].rot_dim == 64);
    assert_true(c.rope[1].theta == 10000);
    assert_non_null(find(&c, "model.layers.1.self_attn.attention_sink_bias"));
    assert_null(find(&c, "model.layers.0.self_attn.attention_sink_bias"));
    ctw_config_close(&c);

    parse_ok(&c, MIMO "}");
    assert_true(c.model->layers[2].branch[CTW_MIXER].attention.window == 129);
    assert_true(c.model->layers[2].branch[CTW_MIXER].attention.v_factor == 0.707f);
    ctw_config_close(&c);

    /* What the experts add is normed: no score shows whether weights add up to 1, but for eps. */
    parse_ok(&c, GEMMA4 ", \"num_experts\": 8, \"top_k_experts\": 2, "
                        "\"moe_intermediate_size\": 64}");
    l = &c.model->layers[1];
    assert_true(l->branch[CTW_MLP].mixture.route.normalised);
    assert_true(l->norm[ctw_norm_at(CTW_MLP, CTW_AT_EXPERTS_OUT)].present);
    ctw_config_close(&c);

    parse_ok(&c, HUNYUAN ", \"num_experts\": 8, \"num_hidden_layers\": 2, \"moe_topk\": [2, 3]}");
    assert_true(c.model->layers[1].branch[CTW_MLP].mixture.route.chosen == 2);
    assert_true(c.model->layers[2].branch[CTW_MLP].mixture.route.chosen == 3);
    ctw_config_close(&c);

    parse_ok(&c, ERNIE ", \"moe_layer_interval\": 2, \"moe_layer_end_index\": 5}");
    l = &c.model->layers[1];
    assert_true(l[1].n_experts == 64);
    assert_true(l[2].n_experts == 0);
    assert_true(l[5].n_experts == 64);
    assert_true(l[7].n_experts == 0);
    ctw_config_close(&c);

    parse_ok(&c,
             LAGUNA ", \"num_hidden_layers\": 2, \"num_attention_heads_per_layer\": [48, 64], "
                    "\"mlp_layer_types\": [\"sparse\", \"dense\"], \"layer_types\": "
                    "[\"full_attention\", \"sliding_attention\"], \"gating\": \"per-element\"}");
    l = &c.model->layers[1];
    assert_true(l[0].branch[CTW_MIXER].attention.n_head == 48);
    assert_true(l[1].branch[CTW_MIXER].attention.n_head == 64);
    assert_true(l[1].branch[CTW_MIXER].attention.window == 512);
    assert_true(l[0].n_experts == 256);
    assert_true(l[1].n_experts == 0);
    assert_true(find(&c, "model.layers.1.self_attn.g_proj")->n == 64 * 128);
    ctw_config_close(&c);

    parse_ok(&c, MINIMAX ", \"rotary_dim\": 64}");
    assert_int_equal(c.rope[0].rot_dim, 64);
    ctw_config_close(&c);

    parse_ok(&c, OLMOE ", \"clip_qkv\": 8}");
    assert_true(c.model->layers[1].branch[CTW_MIXER].attention.limit == 8);
    assert_true(c.model->layers[1].branch[CTW_MIXER].attention.limits_normed);
    ctw_config_close(&c);
}

/* AFMoE: RoPE only in layers with a window, an embedding that may be scaled. */
static void afmoe(void **state)
{
    (void)state;
    struct ctw_config c;
    const struct ctw_layer *l;
    parse_ok(&c, AFMOE ", \"num_shared_experts\": 0, \"num_dense_layers\": 0, "
                       "\"global_attn_every_n_layers\": 2, \"mup_enabled\": true}");
    l = &c.model->layers[1];
    assert_true(l[0].branch[CTW_MIXER].attention.window == 1024);
    assert_int_equal(l[0].branch[CTW_MIXER].attention.rope, 0);
    assert_true(l[1].branch[CTW_MIXER].attention.window == 0);
    assert_int_equal(l[1].branch[CTW_MIXER].attention.rope, -1);
    assert_true(l[0].n_experts == 64);
    assert_true(ctw_layer_facts(&l[0]).inner == 0);
    assert_true(c.model->embed_scale == (float)sqrt(2048));
    ctw_config_close(&c);
}

/* DBRX: keys in objects, whose theta only transformers 4 and the makers' code read. */
static void dbrx(void **state)
{
    (void)state;
    struct ctw_config c;
    parse_ok(&c, DBRX ", \"d_model\": 1024, \"n_heads\": 8, \"attn_config\": {\"kv_n_heads\": 2, "
                      "\"clip_qkv\": 8, \"rope_theta\": 500000}, \"ffn_config\": {\"ffn_act_fn\": "
                      "{\"name\": \"gelu\"}, \"moe_normalize_expert_weights\": null}}");
    const struct ctw_branch *b = c.model->layers[1].branch;
    assert_true(b[CTW_MIXER].attention.n_kv == 2);
    assert_true(b[CTW_MIXER].attention.limit == 8);
    assert_int_equal(b[CTW_MLP].mixture.act, CTW_ACT_GELU);
    assert_false(b[CTW_MLP].mixture.route.normalised);
    assert_true(c.rope[0].theta == 500000);
    assert_true(find(&c, "transformer.blocks.0.ffn.experts.mlp.w2")->flat);
    assert_true(find(&c, "transformer.blocks.0.ffn.experts.mlp.w2")->transposed);
    assert_false(find(&c, "transformer.blocks.0.ffn.experts.mlp.v1")->transposed);
    assert_null(c.unread.text);
    ctw_config_close(&c);

    parse_ok(&c, DBRX ", \"rope_theta\": 500000, \"attn_config\": {\"rope_theta\": 500000}}");
    assert_true(c.rope[0].theta == 500000);
    ctw_config_close(&c);
}

static void refusals(void **state)
{
    (void)state;
    static const struct refusal rows[] = {
        {FAMILY("Dots1ForCausalLM", "dots1") "}", "n_routed_experts: expected a number"},
        {GLM ", \"n_group\": 3}", "groups of experts"},
        {GLM ", \"n_group\": 8, \"topk_group\": 9}", "groups that a token chooses from"},
        {GLM ", \"num_experts_per_tok\": 0}", "num_experts_per_tok: expected a whole number"},
        {PHIMOE ", \"num_experts_per_tok\": 4}", "num_experts_per_tok: expected a whole number"},
        {GEMMA4 "}", "enable_moe_block: is true, which needs num_experts"},
        {LAGUNA ", \"moe_apply_router_weight_on_input\": true}",
         "moe_apply_router_weight_on_input: is not supported"},
        {LAGUNA ", \"mlp_layer_types\": [\"sparse\"]}", "mlp_layer_types: found 1 entries"},
        {LAGUNA ", \"num_hidden_layers\": 1, \"mlp_layer_types\": [\"hash\"]}",
         "mlp_layer_types[0]: \"hash\" is not supported"},
        {STEP ", \"moe_layers_enum\": \"3;4\"}", "moe_layers_enum: expected numbers of layers"},
        {LLAMA4 ", \"num_hidden_layers\": 1, \"layer_types\": [\"sliding_attention\"]}",
         "layer_types[0]: \"sliding_attention\" is not supported"},
        {HUNYUAN ", \"moe_topk\": [1, 2]}", "moe_topk: found 2 entries"},
        {AFMOE ", \"sliding_window\": null}", "sliding_window: found null"},
        {DBRX ", \"ffn_config\": {\"moe_normalize_expert_weights\": 2}}",
         "ffn_config.moe_normalize_expert_weights: expected 1, the sum of the weights, or null"},
        {DBRX ", \"ffn_config\": {\"ffn_act_fn\": {\"name\": \"tan\"}}}",
         "\"tan\" is not supported"},
        {DBRX ", \"ffn_config\": {\"ffn_act_fn\": 1}}", "ffn_act_fn: expected an object"},
        {DBRX ", \"rope_theta\": 10000, \"attn_config\": {\"rope_theta\": 500000}}",
         "attn_config.rope_theta: found 500000, but rope_theta is 10000 outside of attn_config"},
        {HY ", \"num_experts\": 4, \"num_experts_per_tok\": 5}", "experts that a token chooses"},
    };
    expect_refusals(rows, CTW_COUNT(rows));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(families_have_their_defaults),
        cmocka_unit_test(tensors_have_the_families_names),
        cmocka_unit_test(names_in_memory_match_too),
        cmocka_unit_test(families_have_names_in_memory),
        cmocka_unit_test(layers_differ),
        cmocka_unit_test(windows_and_heads_differ),
        cmocka_unit_test(afmoe),
        cmocka_unit_test(dbrx),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
