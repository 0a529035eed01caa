/*
 * EXAONE 4: norms after the branches, norms of query and key heads. Models with a window have no
 * RoPE in the layers that see everything. Defaults: Exaone4Config.
 */
#include <inttypes.h>

#include "worker/model/families/family.h"

/* Each layer's window. sliding_window_pattern is read if there is no layer_types. */
static const int64_t *key_windows(struct ctw_config *c, int64_t n_layers, int64_t window)
{
    struct ctw_window_rule rule = ctw_key_window_pattern(c, "sliding_window_pattern", 4);
    if (window == 0)
        rule = (struct ctw_window_rule){.every = 1};
    else if (rule.every == 0 && rule.letters == NULL && !ctw_key_is_given(c, "layer_types"))
        ctw_key_fail(c, "sliding_window_pattern", CTW_EFORMAT,
                     "expected a number of at least 1, or letters L and G, as sliding_window is "
                     "%" PRId64 " and there is no layer_types",
                     window);
    return ctw_key_windows(c, n_layers, window, &rule);
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
    const struct ctw_sizes s = ctw_key_sizes(c, &(struct ctw_sizes){.vocab = 102400,
                                                                    .hidden = 4096,
                                                                    .inner = 16384,
                                                                    .n_layers = 32,
                                                                    .n_head = 32,
                                                                    .n_kv = 32,
                                                                    .max_length = 2048});
    /* head_dim is not a field of the class, but is read if present. */
    int64_t head = ctw_key_head_dim(c, &s, 0, 0);
    int64_t window = ctw_key_int(c, "sliding_window", 4096, 0, 1, 1 << 30);
    const int64_t *windows = key_windows(c, s.n_layers, window);
    const struct ctw_norm_form norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-5);
    const struct ctw_qk_norms qk_norms = {.form = norm, .heads = CTW_HEADS_ALIKE};
    enum ctw_activation act = ctw_key_activation(c, "hidden_act", CTW_ACT_SILU);
    const struct ctw_mlp mlp = {.inner = s.inner, .act = act};
    ctw_describe_model(c, &s, &(struct ctw_model_rules){.norm = norm});
    int rope = ctw_describe_rope(c, &(struct ctw_rope_rules){.head = head, .theta = 10000.0});
    for (int64_t i = 0; i < s.n_layers; i++) {
        const struct ctw_attention_rules attention = {.head = head,
                                                      .rope = window == 0 || windows[i] != 0 ? rope
                                                                                             : -1,
                                                      .window = windows[i],
                                                      .norms = &qk_norms};
        describe_layer(c, i, &norm, &attention, &mlp);
    }
}

const struct ctw_family ctw_family_exaone4 = {
    .model_type = "exaone4", .architecture = "Exaone4ForCausalLM", .describe = describe};
