/*
 * OLMo 3: OLMo 2's layers, of which some have a window and a RoPE without scaling. Defaults:
 * Olmo3Config.
 */
#include "worker/model/families/family.h"

static const double theta = 500000.0;

/* transformers 4's rope_theta is for all layers. transformers 5 takes it for layers that see
 * everything, and its default for layers with a window. */
static void check_theta(struct ctw_config *c)
{
    for (int i = 0; i < c->n_ropes; i++)
        if (c->rope[i].rules.unscaled && c->rope[i].theta != theta &&
            !ctw_key_is_given(c, "rope_parameters"))
            ctw_key_fail(c, "rope_theta", CTW_EUNSUP,
                         "found %g; transformers' versions differ in whether it is also for layers "
                         "with a window: write rope_parameters instead",
                         c->rope[i].theta);
}

static void describe_layer(struct ctw_config *c, int64_t i, const struct ctw_norm_form *norm,
                           const struct ctw_attention_rules *attention, const struct ctw_mlp *mlp)
{
    ctw_describe_norm(c, i, CTW_AT_MIXER_OUT, norm, "post_attention_layernorm", 0);
    ctw_describe_norm(c, i, CTW_AT_MLP_OUT, norm, "post_feedforward_layernorm", 0);
    ctw_describe_attention(c, i, attention);
    ctw_describe_mlp(c, i, mlp);
}

static void describe(struct ctw_config *c)
{
    const struct ctw_sizes s = ctw_key_sizes(c, &(struct ctw_sizes){.vocab = 50304,
                                                                    .hidden = 4096,
                                                                    .inner = 11008,
                                                                    .n_layers = 32,
                                                                    .n_head = 32,
                                                                    .n_kv = 0,
                                                                    .max_length = 2048});
    /* head_dim is not a field of the class, but is read if present. */
    int64_t head = ctw_key_head_dim(c, &s, 0, 0);
    bool bias = ctw_key_bool(c, "attention_bias", false);
    int64_t window = ctw_key_int(c, "sliding_window", 4096, CTW_NULL_REFUSED, 1, 1 << 30);
    const int64_t *windows =
        ctw_key_windows(c, s.n_layers, window, &(struct ctw_window_rule){.every = 4});
    const struct ctw_norm_form norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-5);
    const struct ctw_qk_norms qk_norms = {.form = norm, .heads = CTW_HEADS_WIDE};
    enum ctw_activation act = ctw_key_activation(c, "hidden_act", CTW_ACT_SILU);
    const struct ctw_mlp mlp = {.inner = s.inner, .act = act};
    ctw_describe_model(c, &s, &(struct ctw_model_rules){.norm = norm});
    for (int64_t i = 0; i < s.n_layers; i++) {
        bool slides = windows[i] != 0;
        const struct ctw_rope_rules rope = {.head = head,
                                            .theta = theta,
                                            .layer_type =
                                                slides ? "sliding_attention" : "full_attention",
                                            .unscaled = slides};
        const struct ctw_attention_rules attention = {.head = head,
                                                      .rope = ctw_describe_rope(c, &rope),
                                                      .window = windows[i],
                                                      .qkv_bias = bias,
                                                      .o_bias = bias,
                                                      .norms = &qk_norms};
        describe_layer(c, i, &norm, &attention, &mlp);
    }
    check_theta(c);
}

const struct ctw_family ctw_family_olmo3 = {
    .model_type = "olmo3", .architecture = "Olmo3ForCausalLM", .describe = describe};
