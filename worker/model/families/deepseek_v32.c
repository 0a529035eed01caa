/*
 * DeepSeek V3.2: DeepSeek V3 with an indexer, which chooses the keys that attention sees. GLM 5,
 * the same with layers that use the choice of a layer before. Defaults: DeepseekV32Config,
 * GlmMoeDsaConfig.
 */
#include "worker/model/families/indexer_keys.h"

struct rules {
    struct latent_absent absent;
    struct ctw_sizes sizes;
    double eps;
    int64_t index_heads;
    enum ctw_rope_pairing index_pairing;
    bool shares; /* layers may use the choice of one before */
};

static void describe_with(struct ctw_config *c, const struct rules *r)
{
    bool own[CTW_MAX_DECODERS];
    const struct ctw_sizes s = ctw_key_sizes(c, &r->sizes);
    struct ctw_latent_attention attention = latent_keys(c, &s, &r->absent);
    const bool *sparse = ctw_key_layers_called(c, "mlp_layer_types", s.n_layers, "sparse", "dense");
    int64_t dense = ctw_key_int(c, "first_k_dense_replace", 3, CTW_NULL_REFUSED, 0, 1 << 20);
    const struct ctw_norm_form norm = ctw_key_rms_norm(c, "rms_norm_eps", r->eps);
    struct ctw_mlp shared,
        mlp = {.inner = s.inner, .act = ctw_key_activation(c, "hidden_act", CTW_ACT_SILU)};
    struct ctw_experts experts = latent_mixture(c, &r->absent, mlp.act, &shared);
    latent_groups(c, &r->absent, &experts);
    latent_sigmoid(c, &experts);
    attention.index = indexer_keys(c, r->index_heads, &attention);
    for (int64_t i = 0; i < s.n_layers; i++)
        own[i] = true;
    if (r->shares)
        indexer_layers(c, s.n_layers, true, 1, own);
    indexer_check_layers(c, s.n_layers, NULL, own);
    ctw_describe_model(c, &s, &(struct ctw_model_rules){.norm = norm});
    ctw_describe_drafts(c, ctw_key_int(c, "num_nextn_predict_layers", 0, 0, 0, 64));
    latent_rope(c, &attention, &r->absent);
    struct ctw_rope_rules index_rope = r->absent.rope_rules;
    index_rope.head = attention.rope;
    index_rope.pairing = r->index_pairing;
    attention.index.rope = ctw_describe_rope(c, &index_rope);
    for (int64_t i = 0; i < s.n_layers; i++) {
        attention.index.shared = !own[i];
        bool alone = sparse != NULL ? !sparse[i] : i < dense;
        latent_layer(c, i, &norm, &attention, &mlp, alone ? NULL : &experts);
    }
}

static void describe(struct ctw_config *c)
{
    struct rules rules = {.absent = latent_deepseek_v3(),
                          .sizes = {.vocab = 129280,
                                    .hidden = 7168,
                                    .inner = 18432,
                                    .n_layers = 61,
                                    .n_head = 128,
                                    .n_kv = 128,
                                    .max_length = 163840},
                          .eps = 1e-6,
                          .index_heads = 64,
                          .index_pairing = CTW_ROPE_HALVES};
    rules.absent.always_interleaved = true;
    describe_with(c, &rules);
}

static void describe_glm(struct ctw_config *c)
{
    static const struct rules rules = {.absent = {.q_rank = 2048,
                                                  .kv_rank = 512,
                                                  .nope = 192,
                                                  .rope = 64,
                                                  .head_v = 256,
                                                  .always_interleaved = true,
                                                  .rope_rules = {.theta = 10000.0},
                                                  .n = 256,
                                                  .chosen = 8,
                                                  .inner = 2048,
                                                  .n_shared = 1,
                                                  .n_groups = 1,
                                                  .kept_groups = 1,
                                                  .scale = 2.5},
                                       .sizes = {.vocab = 154880,
                                                 .hidden = 6144,
                                                 .inner = 12288,
                                                 .n_layers = 78,
                                                 .n_head = 64,
                                                 .n_kv = 64,
                                                 .max_length = 202752},
                                       .eps = 1e-5,
                                       .index_heads = 32,
                                       .index_pairing = CTW_ROPE_INTERLEAVED,
                                       .shares = true};
    describe_with(c, &rules);
}

const struct ctw_family ctw_family_deepseek_v32 = {
    .model_type = "deepseek_v32", .architecture = "DeepseekV32ForCausalLM", .describe = describe};

const struct ctw_family ctw_family_glm_moe_dsa = {
    .model_type = "glm_moe_dsa", .architecture = "GlmMoeDsaForCausalLM", .describe = describe_glm};
