/*
 * OLMo Hybrid: gated delta rules, whose beta may reach 2, and in some layers OLMo 3's attention,
 * with norms after both branches, mostly without RoPE. Defaults: OlmoHybridConfig.
 */
#include <string.h>

#include "kernels/conv.h"
#include "kernels/delta.h"
#include "worker/model/families/family.h"
#include "worker/model/recipe/delta_rule.h"

static const struct ctw_delta_names names = {.module = "linear_attn", .a = "a", .out = "o_proj"};

static int key_count(struct ctw_config *c, const char *name, int64_t absent, int64_t most)
{
    return (int)ctw_key_int(c, name, absent, absent, 1, most);
}

static struct ctw_delta_rule key_delta(struct ctw_config *c, const struct ctw_sizes *s)
{
    struct ctw_delta_rule d = {.gate = CTW_ACT_SILU};
    d.n_key = key_count(c, "linear_num_key_heads", s->n_head, 4096);
    d.n_value = key_count(c, "linear_num_value_heads", s->n_head, 4096);
    d.key = key_count(c, "linear_key_head_dim",
                      (int64_t)(0.75 * (double)s->hidden / (double)d.n_key), CTW_MAX_DELTA_HEAD);
    d.value = key_count(c, "linear_value_head_dim", 2 * (int64_t)d.key, CTW_MAX_DELTA_HEAD);
    d.taps = (int)ctw_key_int(c, "linear_conv_kernel_dim", 4, CTW_NULL_REFUSED, 1, CTW_MAX_TAPS);
    d.twice = ctw_key_bool(c, "linear_allow_neg_eigval", true);
    if (d.n_value % d.n_key != 0)
        ctw_key_fail(c, "linear_num_value_heads", CTW_EFORMAT,
                     "found %d, expected a multiple of linear_num_key_heads = %d", d.n_value,
                     d.n_key);
    return d;
}

/* rope_theta null, wherever it is: there is no RoPE. */
static bool has_rope(const struct ctw_config *c)
{
    const struct ctw_json_node *in = ctw_json_get(c->text, "rope_parameters");
    const struct ctw_json_node *theta = in != NULL ? ctw_json_get(in, "rope_theta") : NULL;
    theta = theta != NULL ? theta : ctw_json_get(c->text, "rope_theta");
    return theta == NULL || !ctw_json_is_null(theta);
}

static void describe_layer(struct ctw_config *c, int64_t i, const struct ctw_norm_form *norm,
                           const struct ctw_attention_rules *attention,
                           const struct ctw_delta_rule *delta)
{
    /* the class has this whatever rms_norm_eps is */
    static const struct ctw_norm_form heads_norm = {.kind = CTW_NORM_RMS, .eps = 1e-5};
    if (delta != NULL) {
        ctw_describe_norm(c, i, CTW_AT_MIXER, norm, "attention_layer_norm", 0);
        ctw_describe_norm(c, i, CTW_AT_MLP, norm, "feedforward_layer_norm", 0);
        ctw_describe_delta_apart(c, i, delta, &heads_norm, &names);
    } else {
        ctw_describe_norm(c, i, CTW_AT_MIXER_OUT, norm, "post_attention_layernorm", 0);
        ctw_describe_norm(c, i, CTW_AT_MLP_OUT, norm, "post_feedforward_layernorm", 0);
        ctw_describe_attention(c, i, attention);
    }
}

static void describe(struct ctw_config *c)
{
    const struct ctw_sizes s = ctw_key_sizes(c, &(struct ctw_sizes){.vocab = 100352,
                                                                    .hidden = 3840,
                                                                    .inner = 11008,
                                                                    .n_layers = 32,
                                                                    .n_head = 30,
                                                                    .max_length = 65536});
    /* head_dim is not a field of the class, but is read if present. */
    const int64_t head = ctw_key_head_dim(c, &s, 0, 0);
    const bool bias = ctw_key_bool(c, "attention_bias", false);
    const bool *linear =
        ctw_key_layers_called(c, "layer_types", s.n_layers, "linear_attention", "full_attention");
    const struct ctw_delta_rule delta = key_delta(c, &s);
    const struct ctw_norm_form norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-6);
    const struct ctw_qk_norms qk_norms = {.form = norm, .heads = CTW_HEADS_WIDE};
    if (ctw_key_activation(c, "hidden_act", CTW_ACT_SILU) != CTW_ACT_SILU)
        ctw_key_fail(c, "hidden_act", CTW_EUNSUP, "delta rules have silu alone");
    ctw_describe_model(c, &s, &(struct ctw_model_rules){.norm = norm});
    const struct ctw_rope_rules rope = {.head = head, .theta = 10000.0};
    const struct ctw_attention_rules attention = {.head = head,
                                                  .rope = has_rope(c) ? ctw_describe_rope(c, &rope)
                                                                      : -1,
                                                  .qkv_bias = bias,
                                                  .o_bias = bias,
                                                  .norms = &qk_norms};
    for (int64_t i = 0; i < s.n_layers; i++) {
        const bool few = s.n_layers < 4 && i == s.n_layers - 1; /* one layer must attend */
        const bool attends = linear != NULL ? !linear[i] : i % 4 == 3 || few;
        describe_layer(c, i, &norm, &attention, attends ? NULL : &delta);
        ctw_describe_mlp(c, i, &(struct ctw_mlp){.inner = s.inner, .act = CTW_ACT_SILU});
    }
}

const struct ctw_family ctw_family_olmo_hybrid = {
    .model_type = "olmo_hybrid", .architecture = "OlmoHybridForCausalLM", .describe = describe};
