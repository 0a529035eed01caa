/*
 * Youtu LLM: DeepSeek V3's latent attention, and a dense MLP in every layer. Defaults: YoutuConfig.
 */
#include "worker/model/families/latent_keys.h"

static void describe(struct ctw_config *c)
{
    const struct latent_absent absent = latent_deepseek_v3();
    const struct ctw_sizes s = ctw_key_sizes(c, &(struct ctw_sizes){.vocab = 128256,
                                                                    .hidden = 2048,
                                                                    .inner = 6144,
                                                                    .n_layers = 32,
                                                                    .n_head = 16,
                                                                    .n_kv = 16,
                                                                    .max_length = 131072});
    struct ctw_latent_attention attention = latent_keys(c, &s, &absent);
    const struct ctw_norm_form norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-6);
    const struct ctw_mlp mlp = {.inner = s.inner,
                                .act = ctw_key_activation(c, "hidden_act", CTW_ACT_SILU)};
    ctw_describe_model(c, &s, &(struct ctw_model_rules){.norm = norm, .tied = true});
    latent_rope(c, &attention, &absent);
    for (int64_t i = 0; i < s.n_layers; i++)
        latent_layer(c, i, &norm, &attention, &mlp, NULL);
}

const struct ctw_family ctw_family_youtu = {
    .model_type = "youtu", .architecture = "YoutuForCausalLM", .describe = describe};
