/* GLM 4.7 Flash: latent attention, sigmoid routing. Defaults: Glm4MoeLiteConfig. */
#include "worker/model/families/latent_keys.h"

static void describe(struct ctw_config *c)
{
    static const struct latent_absent absent = {
        .q_rank = 768,
        .kv_rank = 512,
        .nope = 192,
        .rope = 64,
        .head_v = 256,
        .rope_rules = {.theta = 10000.0, .partial_key = "partial_rotary_factor"},
        .n = 64,
        .chosen = 4,
        .inner = 1536,
        .n_shared = 1,
        .n_groups = 1,
        .kept_groups = 1,
        .scale = 1.8};
    const struct ctw_sizes s = ctw_key_sizes(c, &(struct ctw_sizes){.vocab = 154880,
                                                                    .hidden = 2048,
                                                                    .inner = 10240,
                                                                    .n_layers = 47,
                                                                    .n_head = 20,
                                                                    .n_kv = 20,
                                                                    .max_length = 202752});
    struct ctw_latent_attention attention = latent_keys(c, &s, &absent);
    const bool *sparse = ctw_key_layers_called(c, "mlp_layer_types", s.n_layers, "sparse", "dense");
    const struct ctw_norm_form norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-5);
    struct ctw_mlp shared,
        mlp = {.inner = s.inner, .act = ctw_key_activation(c, "hidden_act", CTW_ACT_SILU)};
    struct ctw_experts experts = latent_mixture(c, &absent, mlp.act, &shared);
    latent_groups(c, &absent, &experts);
    latent_sigmoid(c, &experts);
    ctw_describe_model(c, &s, &(struct ctw_model_rules){.norm = norm});
    ctw_describe_drafts(c, ctw_key_int(c, "num_nextn_predict_layers", 0, 0, 0, 64));
    latent_rope(c, &attention, &absent);
    for (int64_t i = 0; i < s.n_layers; i++) {
        bool alone = sparse != NULL ? !sparse[i] : i == 0;
        latent_layer(c, i, &norm, &attention, &mlp, alone ? NULL : &experts);
    }
}

const struct ctw_family ctw_family_glm4_moe_lite = {
    .model_type = "glm4_moe_lite", .architecture = "Glm4MoeLiteForCausalLM", .describe = describe};
