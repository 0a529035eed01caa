/* DeepSeek V2: latent attention, softmax scores without normalisation. Defaults: DeepseekV2Config.
 */
#include <string.h>

#include "worker/model/families/latent_keys.h"

static const struct latent_absent absent = {.q_rank = 1536,
                                            .kv_rank = 512,
                                            .nope = 128,
                                            .rope = 64,
                                            .head_v = 128,
                                            .always_interleaved = true,
                                            .rope_rules = {.theta = 10000.0},
                                            .n = 64,
                                            .inner = 1407,
                                            .n_shared = 2,
                                            .scale = 1};

static void key_choice(struct ctw_config *c, struct ctw_experts *x)
{
    const char *method = ctw_key_string(c, "topk_method", "greedy");
    x->router.score = CTW_SCORE_SOFTMAX;
    x->router.group_best = 1;
    if (strcmp(method, "group_limited_greedy") == 0)
        latent_groups(c, &absent, x);
    else if (strcmp(method, "greedy") != 0)
        ctw_key_fail(c, "topk_method", CTW_EUNSUP,
                     "found \"%s\", expected greedy or group_limited_greedy", method);
}

static void describe(struct ctw_config *c)
{
    const struct ctw_sizes s = ctw_key_sizes(c, &(struct ctw_sizes){.vocab = 102400,
                                                                    .hidden = 4096,
                                                                    .inner = 11008,
                                                                    .n_layers = 32,
                                                                    .n_head = 32,
                                                                    .max_length = 2048});
    struct ctw_latent_attention attention = latent_keys(c, &s, &absent);
    int64_t dense = ctw_key_int(c, "first_k_dense_replace", 0, CTW_NULL_REFUSED, 0, 1 << 20);
    const struct ctw_norm_form norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-6);
    struct ctw_mlp shared, mlp = {.inner = s.inner,
                                  .act = ctw_key_activation(c, "hidden_act", CTW_ACT_SILU),
                                  .bias = ctw_key_bool(c, "mlp_bias", false)};
    struct ctw_experts experts = latent_mixture(c, &absent, mlp.act, &shared);
    key_choice(c, &experts);
    shared.bias = mlp.bias;
    ctw_describe_model(c, &s, &(struct ctw_model_rules){.norm = norm});
    latent_rope(c, &attention, &absent);
    for (int64_t i = 0; i < s.n_layers; i++)
        latent_layer(c, i, &norm, &attention, &mlp, i < dense ? NULL : &experts);
}

const struct ctw_family ctw_family_deepseek_v2 = {
    .model_type = "deepseek_v2", .architecture = "DeepseekV2ForCausalLM", .describe = describe};
