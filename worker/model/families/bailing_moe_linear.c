/*
 * Ling and Ring with linear attention: lightning attention, whose queries and keys have norms and
 * RoPE, and in the last layer of each group softmax attention (2.0) or latent attention (2.5 and
 * 2.6, of Ling 3's model_type, but of another class); sigmoid routing in groups. Defaults:
 * BailingMoeV2_5Config, for both.
 */
#include <math.h>

#include "kernels/ssm.h"
#include "worker/model/families/kda_keys.h"
#include "worker/model/recipe/lightning.h"

struct bailing {
    struct ctw_sizes sizes;
    int64_t head, group; /* group: of layers */
    int64_t norm_groups; /* of lightning attention's output */
    struct ctw_norm_form norm;
    bool qk_norm, qkv_bias, o_bias;
    struct ctw_attention_rules attention;
    struct ctw_latent_attention latent; /* n_head 0: `attention` instead */
};

/* Keys whose other values the makers' class does not have. */
static void check_rules(struct ctw_config *c)
{
    if (ctw_key_is_given(c, "score_function") && !ctw_key_is(c, "score_function", "sigmoid"))
        ctw_key_fail(c, "score_function", CTW_EUNSUP, "only \"sigmoid\" is supported");
    if (!ctw_key_bool(c, "moe_router_enable_expert_bias", true))
        ctw_key_fail(c, "moe_router_enable_expert_bias", CTW_EUNSUP, "only true is supported");
    if (ctw_key_is_true(c, "linear_silu"))
        ctw_key_fail(c, "linear_silu", CTW_EUNSUP, "only false is supported");
    if (ctw_key_is_true(c, "use_linear_silu"))
        ctw_key_fail(c, "use_linear_silu", CTW_EUNSUP, "only false is supported");
    if (!ctw_key_bool(c, "linear_rope", true))
        ctw_key_fail(c, "linear_rope", CTW_EUNSUP, "only true is supported");
}

static struct bailing key_bailing(struct ctw_config *c)
{
    struct bailing b = {.sizes = ctw_key_sizes(c, &(struct ctw_sizes){.vocab = 157184,
                                                                      .hidden = 2048,
                                                                      .inner = 5120,
                                                                      .n_layers = 20,
                                                                      .n_head = 16,
                                                                      .n_kv = 4,
                                                                      .max_length = 32768})};
    b.head = ctw_key_head_dim(c, &b.sizes, 128, 0);
    b.group = ctw_key_int(c, "layer_group_size", 5, CTW_NULL_REFUSED, 1, CTW_MAX_DECODERS);
    b.norm_groups = ctw_key_int(c, "group_norm_size", 4, CTW_NULL_REFUSED, 1, 1 << 16);
    b.norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-6);
    b.qk_norm = ctw_key_bool(c, "use_qk_norm", true);
    b.qkv_bias = ctw_key_bool(c, "use_qkv_bias", false);
    b.o_bias = ctw_key_bool(c, "use_bias", false);
    const int64_t n = b.sizes.n_head;
    if (b.head > CTW_MAX_STATE)
        ctw_key_fail(c, "head_dim", CTW_EUNSUP, "lightning attention has heads of up to 256");
    if ((n & (n - 1)) != 0)
        ctw_key_fail(c, "num_attention_heads", CTW_EUNSUP,
                     "only a power of two is supported with lightning attention");
    if (n * b.head % b.norm_groups != 0)
        ctw_key_fail(c, "group_norm_size", CTW_EFORMAT,
                     "found %lld, into which the heads' %lld elements do not divide",
                     (long long)b.norm_groups, (long long)(n * b.head));
    check_rules(c);
    return b;
}

static const char share[] = "partial_rotary_factor";

static struct ctw_rope_rules rope_rules(const struct bailing *b)
{
    return (struct ctw_rope_rules){
        .head = b->head, .theta = 600000.0, .partial_key = share, .partial = 0.5};
}

static bool attends(const struct bailing *b, int64_t i)
{
    return (i + 1) % b->group == 0 || i >= b->sizes.n_layers / b->group * b->group;
}

/* Of a layer's rates: less from layer to layer, counted from the second. */
static double rate_of(const struct bailing *b, int64_t i)
{
    return 1 - (double)(i - 1) / fmax((double)(b->sizes.n_layers - 1), 1) + 1e-5;
}

static void describe_lightning(struct ctw_config *c, int64_t i, const struct bailing *b, int rope)
{
    static const struct ctw_lightning_names names = {.qkv = "attention.query_key_value",
                                                     .gate = "attention.g_proj",
                                                     .norm = "attention.g_norm",
                                                     .out = "attention.dense",
                                                     .q_norm = "attention.query_layernorm",
                                                     .k_norm = "attention.key_layernorm"};
    const struct ctw_lightning_rules rules = {.is = {.n_head = b->sizes.n_head,
                                                     .head = b->head,
                                                     .scale = (float)(1 / sqrt((double)b->head)),
                                                     .norm_groups = b->norm_groups,
                                                     .rope = rope},
                                              .names = &names,
                                              .norm = &b->norm,
                                              .qk_norm = b->qk_norm ? &b->norm : NULL,
                                              .qkv_bias = b->qkv_bias,
                                              .out_bias = b->o_bias,
                                              .rate = rate_of(b, i)};
    ctw_describe_lightning(c, i, &rules);
}

/* `b` has the keys of its softmax attention, but for its RoPE. */
static void describe_model(struct ctw_config *c, struct bailing *b,
                           const struct latent_absent *latent_absent)
{
    static const char *const buffers[] = {".slope", NULL};
    static const struct kda_mixture mixture = {.n = 256,
                                               .inner = 512,
                                               .n_groups = 8,
                                               .kept_groups = 4,
                                               .scale = 1,
                                               .correction = "mlp.gate.expert_bias",
                                               .shared = {"mlp.shared_experts.gate_proj",
                                                          "mlp.shared_experts.up_proj",
                                                          "mlp.shared_experts.down_proj"}};
    const int64_t n = b->sizes.n_layers;
    const struct ctw_mlp mlp = {.inner = b->sizes.inner,
                                .act = ctw_key_activation(c, "hidden_act", CTW_ACT_SILU)};
    struct ctw_mlp shared;
    struct ctw_experts experts = kda_experts(c, &mixture, mlp.act, &shared);
    if (!experts.router.normalised)
        ctw_key_fail(c, "norm_topk_prob", CTW_EUNSUP, "only true is supported");
    experts.router.normalised = experts.chosen > 1;
    const int64_t n_dense =
        ctw_key_int(c, "first_k_dense_replace", 1, CTW_NULL_REFUSED, 0, CTW_MAX_DECODERS);
    ctw_describe_model(
        c, &b->sizes, &(struct ctw_model_rules){.embed = "model.word_embeddings", .norm = b->norm});
    ctw_describe_buffers(c, buffers);
    ctw_describe_drafts(c, ctw_key_int(c, "num_nextn_predict_layers", 0, 0, 0, 64));
    const struct ctw_rope_rules rules = rope_rules(b);
    const int rope = b->attention.rope = ctw_describe_rope(c, &rules);
    if (latent_absent != NULL)
        latent_rope(c, &b->latent, latent_absent);
    for (int64_t i = 0; i < n && c->status == CTW_OK; i++) {
        ctw_describe_norms(c, i, &b->norm);
        if (!attends(b, i))
            describe_lightning(c, i, b, rope);
        else if (latent_absent != NULL)
            ctw_describe_latent_attention(c, i, &b->latent);
        else
            ctw_describe_attention(c, i, &b->attention);
        if (i < n_dense)
            ctw_describe_mlp(c, i, &mlp);
        else
            ctw_describe_experts(c, i, &experts);
    }
}

static void describe(struct ctw_config *c)
{
    struct bailing b = key_bailing(c);
    const struct ctw_qk_norms norms = {
        .form = b.norm, .q = "attention.query_layernorm", .k = "attention.key_layernorm"};
    if (!ctw_key_is_given(c, share) && !ctw_key_is_given(c, "rope_parameters"))
        ctw_key_fail(c, share, CTW_EFORMAT, "expected the share of each head that turns");
    b.attention = (struct ctw_attention_rules){.head = b.head,
                                               .qkv_bias = b.qkv_bias,
                                               .o_bias = b.o_bias,
                                               .order = CTW_QKV_IN_ORDER,
                                               .qkv = "attention.query_key_value",
                                               .o = "attention.dense",
                                               .norms = b.qk_norm ? &norms : NULL};
    describe_model(c, &b, NULL);
}

static void describe_v2_5(struct ctw_config *c)
{
    struct bailing b = key_bailing(c);
    /* The part that turns has the frequencies of lightning attention's heads. */
    const struct latent_absent absent = {.kv_rank = 512,
                                         .nope = 128,
                                         .rope = 64,
                                         .head_v = 128,
                                         .always_interleaved = true,
                                         .rope_rules = rope_rules(&b)};
    if (!ctw_key_bool(c, "rope_interleave", true))
        ctw_key_fail(c, "rope_interleave", CTW_EUNSUP, "only true is supported");
    b.latent = latent_keys(c, &b.sizes, &absent);
    if (b.latent.bias && !b.qkv_bias)
        ctw_key_fail(c, "attention_bias", CTW_EUNSUP, "this family's key is use_qkv_bias");
    b.latent.bias = b.qkv_bias;
    b.latent.module = "attention";
    b.latent.out = "dense";
    describe_model(c, &b, &absent);
}

const struct ctw_family ctw_family_bailing_moe_linear = {.model_type = "bailing_moe_linear",
                                                         .architecture =
                                                             "BailingMoeLinearV2ForCausalLM",
                                                         .describe = describe};

const struct ctw_family ctw_family_bailing_moe_v2_5 = {.model_type = "bailing_hybrid",
                                                       .architecture = "BailingMoeV2_5ForCausalLM",
                                                       .describe = describe_v2_5};
