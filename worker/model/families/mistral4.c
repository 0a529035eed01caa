/*
 * Mistral 4: latent attention with queries that grow with their position, softmax routing; files
 * stack the experts, if they are not quantised. Also the text model of Mistral 3's wrapper.
 * Defaults: Mistral4Config.
 */
#include "worker/model/families/latent_keys.h"
#include "worker/model/families/ministral.h"

/* transformers' RoPE for a file without one. */
static const char absent_rope[] =
    "{\"rope_type\": \"yarn\", \"rope_theta\": 10000.0, \"factor\": 128.0, "
    "\"original_max_position_embeddings\": 8192, \"beta_fast\": 32.0, \"beta_slow\": 1.0, "
    "\"mscale\": 1.0, \"mscale_all_dim\": 1.0}";

/* The rotated share of heads is given, or qk_rope_head_dim's. */
static struct latent_absent absent_of(const struct ctw_latent_attention *a)
{
    struct latent_absent absent = {.rope_rules = {.head = 1,
                                                  .theta = 10000.0,
                                                  .absent = absent_rope,
                                                  .partial_key = "partial_rotary_factor"},
                                   .mscale_all_dim = 1};
    absent.rope_rules.partial = (double)a->rope / (double)(a->nope + a->rope);
    return absent;
}

static void describe(struct ctw_config *c)
{
    static const struct latent_absent absent = {.q_rank = 1024,
                                                .kv_rank = 256,
                                                .nope = 64,
                                                .rope = 64,
                                                .head_v = 128,
                                                .n = 128,
                                                .chosen = 4,
                                                .inner = 2048,
                                                .n_shared = 1,
                                                .n_groups = 1,
                                                .kept_groups = 1,
                                                .scale = 1};
    const struct ctw_sizes s = ctw_key_sizes(c, &(struct ctw_sizes){.vocab = 131072,
                                                                    .hidden = 4096,
                                                                    .inner = 12288,
                                                                    .n_layers = 36,
                                                                    .n_head = 32,
                                                                    .n_kv = 32,
                                                                    .max_length = 1048576});
    struct ctw_latent_attention attention = latent_keys(c, &s, &absent);
    const struct latent_absent with_rope = absent_of(&attention);
    int64_t dense = ctw_key_int(c, "first_k_dense_replace", 0, CTW_NULL_REFUSED, 0, 1 << 20);
    const struct ctw_norm_form norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-6);
    struct ctw_mlp shared,
        mlp = {.inner = s.inner, .act = ctw_key_activation(c, "hidden_act", CTW_ACT_SILU)};
    struct ctw_experts experts = latent_mixture(c, &absent, mlp.act, &shared);
    latent_groups(c, &absent, &experts);
    experts.router.score = CTW_SCORE_SOFTMAX;
    experts.router.group_best = 2;
    experts.router.normalised = ctw_key_bool(c, "norm_topk_prob", true);
    experts.router.sum_add = 1e-20;
    experts.stacked = experts.fused = true;
    ctw_describe_model(c, &s, &(struct ctw_model_rules){.norm = norm});
    latent_rope(c, &attention, &with_rope);
    ministral_query_factor(c, 8192);
    attention.q_factors = true;
    for (int64_t i = 0; i < s.n_layers; i++)
        latent_layer(c, i, &norm, &attention, &mlp, i < dense ? NULL : &experts);
}

const struct ctw_family ctw_family_mistral4 = {
    .model_type = "mistral4", .architecture = "Mistral4ForCausalLM", .describe = describe};

const struct ctw_family ctw_family_mistral3_mistral4 = {
    .model_type = "mistral3",
    .architecture = "Mistral3ForConditionalGeneration",
    .wrapper = &(const struct ctw_wrapper){.text_type = "mistral4", .tied = true},
    .spellings = ctw_wrapped_spellings,
    .describe = describe};
