/*
 * Mamba 1 and 2, and Falcon Mamba, whose layers are Mamba 1's with norms of dt, B and C: a state
 * space in every layer, and nothing else. Defaults: MambaConfig, Mamba2Config, FalconMambaConfig.
 */
#include "worker/model/families/state_space_keys.h"

/* No key says how long sequences may be; lm-eval takes so many tokens then. */
enum { LONGEST = 2048 };

static const struct ctw_size_keys size_keys = {
    .inner = "", .n_head = "", .n_kv = "", .max_length = ""};

static struct ctw_sizes sizes(struct ctw_config *c, int64_t vocab, int64_t hidden, int64_t n_layers)
{
    return ctw_key_sizes_as(c,
                            &(struct ctw_sizes){.vocab = vocab,
                                                .hidden = hidden,
                                                .inner = hidden,
                                                .n_layers = n_layers,
                                                .n_head = 1,
                                                .n_kv = 1,
                                                .max_length = LONGEST},
                            &size_keys);
}

static void describe_layers(struct ctw_config *c, const struct ctw_sizes *s,
                            const struct ctw_norm_form *norm, bool tied,
                            struct ctw_state_space_rules *r)
{
    r->module = "mixer";
    r->is.taps = (int)ssm_key(c, "conv_kernel", 4, CTW_MAX_TAPS);
    r->bias = r->out_bias = ctw_key_bool(c, "use_bias", false);
    r->conv_bias = ctw_key_bool(c, "use_conv_bias", true);
    ssm_key_activation(c, "hidden_act");
    ctw_describe_model(c, s,
                       &(struct ctw_model_rules){.layers = "backbone.layers",
                                                 .embed = "backbone.embeddings",
                                                 .final_norm = "backbone.norm_f",
                                                 .norm = *norm,
                                                 .tied = tied});
    c->model->own_length = 0;
    for (int64_t i = 0; i < s->n_layers; i++) {
        ctw_describe_norm(c, i, CTW_AT_MIXER, norm, "norm", 0);
        ctw_describe_state_space(c, i, r);
    }
}

static void describe(struct ctw_config *c)
{
    const struct ctw_sizes s = sizes(c, 32768, 4096, 64);
    const struct ctw_norm_form norm = ctw_key_rms_norm(c, "layer_norm_epsilon", 1e-5);
    struct ctw_state_space_rules r = {
        .norm = &norm,
        .is = {.n_head = ssm_key(c, "num_heads", 128, 1 << 16),
               .head = ssm_key(c, "head_dim", 64, 1 << 16),
               .n_groups = ssm_key(c, "n_groups", 8, 1 << 16),
               .n_state = ssm_key(c, "state_size", 128, CTW_MAX_STATE)}};
    double expand = ctw_key_number(c, "expand", 2, CTW_NULL_REFUSED, 1e-3, 1e3);
    if (c->status == CTW_OK && (int64_t)(expand * (double)s.hidden) != ctw_ssm_inner(&r.is))
        ctw_key_fail(c, "expand", CTW_EFORMAT, "expected num_heads * head_dim / hidden_size");
    ssm_key_limit(c, &r.is);
    describe_layers(c, &s, &norm, false, &r);
}

/* parts: of dt, B and C; NULL: none. */
static void describe_first(struct ctw_config *c, const struct ctw_norm_form *parts)
{
    const struct ctw_sizes s = sizes(c, 50280, 768, 32);
    const struct ctw_norm_form norm = ctw_key_rms_norm(c, "layer_norm_epsilon", 1e-5);
    double expand = ctw_key_number(c, "expand", 2, CTW_NULL_REFUSED, 1e-3, 1e3);
    struct ctw_state_space_rules r = {
        .parts = parts,
        .is = {.selects = true,
               .n_head = (int64_t)(expand * (double)s.hidden),
               .head = 1,
               .n_groups = 1,
               .n_state = ssm_key(c, "state_size", 16, CTW_MAX_STATE),
               .dt_rank = ssm_key_auto(c, "time_step_rank", (s.hidden + 15) / 16),
               .dt_max = INFINITY}};
    describe_layers(c, &s, &norm, true, &r);
}

static void describe_falcon(struct ctw_config *c)
{
    struct ctw_norm_form parts = ctw_key_rms_norm(c, "mixer_rms_eps", 1e-6);
    parts.weightless = true;
    describe_first(c, &parts);
}

static void describe_mamba(struct ctw_config *c)
{
    describe_first(c, NULL);
}

const struct ctw_family ctw_family_mamba = {.model_type = "mamba",
                                            .architecture = "MambaForCausalLM",
                                            .prefix = "backbone.",
                                            .describe = describe_mamba};

const struct ctw_family ctw_family_mamba2 = {.model_type = "mamba2",
                                             .architecture = "Mamba2ForCausalLM",
                                             .prefix = "backbone.",
                                             .describe = describe};

const struct ctw_family ctw_family_falcon_mamba = {.model_type = "falcon_mamba",
                                                   .architecture = "FalconMambaForCausalLM",
                                                   .prefix = "backbone.",
                                                   .describe = describe_falcon};
