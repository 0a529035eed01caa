/*
 * The text model of Muse Glimmer: a normalised embedding, norms before and after both branches,
 * query and key heads divided by their lengths, a gate of each value of attention's output, and a
 * window in layers that have RoPE. Defaults: MuseGlimmerTextConfig.
 */
#include <math.h>

#include "worker/model/families/family.h"


struct muse {
    struct ctw_norm_form norm, after, heads; /* after: of branches' outputs */
    struct ctw_qk_norms qk_norms;
    struct ctw_attention_rules attention;
    const int64_t *windows;
    const double *theta;         /* of each layer, of which only 0 counts: no RoPE; NULL: absent */
    bool full[CTW_MAX_DECODERS]; /* if no key says: every fourth layer, from the last one back */
};

static void key_attention(struct ctw_config *c, const struct ctw_sizes *s, struct muse *m)
{
    const bool bias = ctw_key_bool(c, "attention_bias", false);
    const int64_t head = ctw_key_head_dim(c, s, 128, CTW_NULL_REFUSED);
    const double factor = ctw_key_number(c, "qk_scale_factor", 3.87, CTW_NULL_REFUSED, 1e-6, 1e6);
    const int64_t window = ctw_key_int(c, "sliding_window", 2048, 0, 1, 1 << 30);
    for (int64_t i = 0; i < s->n_layers; i++)
        m->full[i] = (s->n_layers - 1 - i) % 4 == 0;
    m->windows =
        ctw_key_windows(c, s->n_layers, window, &(struct ctw_window_rule){.full = m->full});
    m->theta = ctw_key_layer_numbers(c, "layer_rope_theta", s->n_layers, 0, 1e15);
    m->qk_norms = (struct ctw_qk_norms){.form = m->heads};
    m->attention = (struct ctw_attention_rules){.head = head,
                                                .scale = factor / sqrt((double)head),
                                                .qkv_bias = bias,
                                                .o_bias = bias,
                                                .gate = CTW_GATE_SIGMOID,
                                                .gate_values = true,
                                                .g = "self_attn.gate_proj",
                                                .norms = &m->qk_norms};
}

static void describe_norms(struct ctw_config *c, int64_t i, const struct muse *m)
{
    ctw_describe_norm(c, i, CTW_AT_MIXER, &m->norm, "input_layernorm", 0);
    ctw_describe_norm(c, i, CTW_AT_MIXER_OUT, &m->after, "post_attention_layernorm", 0);
    ctw_describe_norm(c, i, CTW_AT_MLP, &m->norm, "pre_feedforward_layernorm", 0);
    ctw_describe_norm(c, i, CTW_AT_MLP_OUT, &m->after, "post_feedforward_layernorm", 0);
}

static void describe(struct ctw_config *c)
{
    const struct ctw_sizes s = ctw_key_sizes(c, &(struct ctw_sizes){.vocab = 202048,
                                                                    .hidden = 6656,
                                                                    .inner = 19968,
                                                                    .n_layers = 52,
                                                                    .n_head = 32,
                                                                    .n_kv = 2,
                                                                    .max_length = 131072});
    struct muse m = {.norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-5),
                     .after = ctw_key_rms_norm(c, "post_norm_eps", 1e-8)};
    const struct ctw_norm_form last = m.norm;
    m.heads = m.norm;
    m.heads.weightless = true;
    m.norm.offset = m.after.offset = 1;
    key_attention(c, &s, &m);
    const struct ctw_mlp mlp = {.inner = s.inner,
                                .act = ctw_key_activation(c, "hidden_activation", CTW_ACT_SILU)};
    ctw_describe_model(c, &s,
                       &(struct ctw_model_rules){
                           .norm = last,
                           .head_scale = ctw_key_number(c, "output_multiplier", 0.19611613513818404,
                                                        CTW_NULL_REFUSED, 1e-9, 1e9),
                           .head_softcap = ctw_key_number(c, "final_logit_softcapping", 20,
                                                          CTW_NULL_REFUSED, 1e-6, 1e9)});
    ctw_describe_norm(c, CTW_EMBEDDING, CTW_AT_EMBED, &m.heads, "", 0);
    const int rope =
        ctw_describe_rope(c, &(struct ctw_rope_rules){.head = m.attention.head, .theta = 10000.0});
    for (int64_t i = 0; i < s.n_layers; i++) {
        const bool turns = m.theta != NULL ? m.theta[i] != 0 : !m.full[i];
        m.attention.rope = turns ? rope : -1;
        m.attention.window = m.windows[i];
        describe_norms(c, i, &m);
        ctw_describe_attention(c, i, &m.attention);
        ctw_describe_mlp(c, i, &mlp);
    }
}

const struct ctw_family ctw_family_muse_glimmer = {
    .model_type = "muse_glimmer",
    .architecture = "MuseGlimmerForConditionalGeneration",
    .wrapper = &(const struct ctw_wrapper){.text_type = "muse_glimmer_text", .is_default = true},
    .spellings = ctw_wrapped_spellings,
    .describe = describe};
