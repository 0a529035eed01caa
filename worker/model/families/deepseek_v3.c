/* DeepSeek V3 and R1, and Kimi K2, which is the same class under another model_type: latent
 * attention, grouped sigmoid routing. Defaults: DeepseekV3Config. Also Kimi K2.5's text model. */
#include "worker/model/families/latent_keys.h"

static void describe(struct ctw_config *c)
{
    const struct latent_absent absent = latent_deepseek_v3();
    const struct ctw_sizes s = ctw_key_sizes(c, &(struct ctw_sizes){.vocab = 129280,
                                                                    .hidden = 7168,
                                                                    .inner = 18432,
                                                                    .n_layers = 61,
                                                                    .n_head = 128,
                                                                    .n_kv = 128,
                                                                    .max_length = 4096});
    const char *drafts = ctw_key_either(c, "num_nextn_predict_layers", "num_mtp_layers");
    struct ctw_latent_attention attention = latent_keys(c, &s, &absent);
    int64_t dense = ctw_key_int(c, "first_k_dense_replace", 3, CTW_NULL_REFUSED, 0, 1 << 20);
    const struct ctw_norm_form norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-6);
    struct ctw_mlp shared,
        mlp = {.inner = s.inner, .act = ctw_key_activation(c, "hidden_act", CTW_ACT_SILU)};
    struct ctw_experts experts = latent_mixture(c, &absent, mlp.act, &shared);
    latent_groups(c, &absent, &experts);
    latent_sigmoid(c, &experts);
    ctw_describe_model(c, &s, &(struct ctw_model_rules){.norm = norm});
    ctw_describe_drafts(c, ctw_key_int(c, drafts, 1, 0, 0, 64));
    latent_rope(c, &attention, &absent);
    for (int64_t i = 0; i < s.n_layers; i++)
        latent_layer(c, i, &norm, &attention, &mlp, i < dense ? NULL : &experts);
}

const struct ctw_family ctw_family_deepseek_v3 = {
    .model_type = "deepseek_v3", .architecture = "DeepseekV3ForCausalLM", .describe = describe};

const struct ctw_family ctw_family_kimi_k2 = {
    .model_type = "kimi_k2", .architecture = "DeepseekV3ForCausalLM", .describe = describe};

const struct ctw_family ctw_family_kimi_k25 = {.model_type = "kimi_k25",
                                               .architecture = "KimiK25ForConditionalGeneration",
                                               /* that of the class in transformers 5 */
                                               .old_architecture =
                                                   "Kimi_K25ForConditionalGeneration",
                                               .wrapper = &(const struct ctw_wrapper){.tied = true},
                                               .spellings = ctw_wrapped_spellings,
                                               .describe = describe};
