/*
 * MiniCPM 3: dense latent attention, with factors of the embedding, of the branches' outputs, and
 * of the logits. Defaults: MiniCPM3Config.
 */
#include "worker/model/families/latent_keys.h"

static double key_factor(struct ctw_config *c, const char *name, double absent, double null)
{
    return ctw_key_number(c, name, absent, null, 1e-6, 1e6);
}

static void describe(struct ctw_config *c)
{
    struct latent_absent absent = {.q_rank = 768,
                                   .kv_rank = 256,
                                   .nope = 64,
                                   .rope = 32,
                                   .always_halves = true,
                                   .rope_rules = {.theta = 10000.0}};
    const struct ctw_sizes s = ctw_key_sizes(c, &(struct ctw_sizes){.vocab = 73448,
                                                                    .hidden = 2560,
                                                                    .inner = 6400,
                                                                    .n_layers = 62,
                                                                    .n_head = 40,
                                                                    .n_kv = 40,
                                                                    .max_length = 32768});
    absent.head_v = s.n_head > 0 ? s.hidden / s.n_head : 1;
    struct ctw_latent_attention attention = latent_keys(c, &s, &absent);
    const struct ctw_norm_form norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-5);
    const struct ctw_mlp mlp = {.inner = s.inner,
                                .act = ctw_key_activation(c, "hidden_act", CTW_ACT_SILU),
                                .bias = ctw_key_bool(c, "mlp_bias", false)};
    const double layers = sqrt((double)s.n_layers), hidden = (double)s.hidden;
    const double depth = key_factor(c, "scale_depth", 1.4, layers) / layers;
    const double base = key_factor(c, "dim_model_base", 256, hidden);
    ctw_describe_model(
        c, &s,
        &(struct ctw_model_rules){
            .norm = norm,
            .tied = true,
            .embed_scale = ctw_key_number(c, "scale_emb", 12, CTW_NULL_REFUSED, 1e-6, 1e6),
            .head_scale = base / hidden});
    latent_rope(c, &attention, &absent);
    for (int64_t i = 0; i < s.n_layers; i++) {
        ctw_describe_branch(c, i, CTW_MIXER)->factor = ctw_describe_branch(c, i, CTW_MLP)->factor =
            (float)depth;
        latent_layer(c, i, &norm, &attention, &mlp, NULL);
    }
}

const struct ctw_family ctw_family_minicpm3 = {
    .model_type = "minicpm3", .architecture = "MiniCPM3ForCausalLM", .describe = describe};
