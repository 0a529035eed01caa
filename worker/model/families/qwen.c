/*
 * Qwen 1: Llama's layers under GPT-2's names, with one projection for q, k and v. Defaults: its own
 * configuration_qwen.py, of which an older version has other names.
 */
#include "worker/model/families/family.h"

static struct ctw_sizes key_sizes(struct ctw_config *c, bool old)
{
    struct ctw_sizes s =
        ctw_key_sizes_as(c,
                         &(struct ctw_sizes){.vocab = old ? 151851 : 151936,
                                             .hidden = 4096,
                                             .inner = 22016,
                                             .n_layers = 32,
                                             .n_head = 32,
                                             .max_length = old ? 1024 : 8192},
                         &(struct ctw_size_keys){.hidden = old ? "n_embd" : NULL,
                                                 .inner = old ? "ffn_hidden_size" : NULL,
                                                 .n_layers = old ? "n_layer" : NULL,
                                                 .n_head = old ? "n_head" : NULL,
                                                 .n_kv = "",
                                                 .max_length = old ? "n_positions" : NULL});
    s.inner /= 2; /* the file counts the rows of gate and up */
    return s;
}

/* Above seq_length, theta and the scale of queries depend on a sequence's length. */
static void limit_length(struct ctw_config *c, bool old)
{
    int64_t length = ctw_key_int(c, "seq_length", 0, CTW_NULL_REFUSED, 1, 1 << 30);
    bool ntk = ctw_key_bool(c, "use_dynamic_ntk", !old);
    bool logn = ctw_key_bool(c, "use_logn_attn", !old);
    if (!ntk && !logn)
        return;
    if (length == 0)
        ctw_key_fail(c, "seq_length", CTW_EFORMAT,
                     "expected, as use_dynamic_ntk or use_logn_attn refers to it");
    c->model->length_limit = length;
    if (c->model->max_length > length)
        c->model->max_length = length;
    c->model->limited_by = ntk ? "use_dynamic_ntk" : "use_logn_attn";
}

static void describe(struct ctw_config *c)
{
    bool old = ctw_key_is_given(c, "n_embd");
    const struct ctw_sizes s = key_sizes(c, old);
    int64_t head = ctw_key_int(c, "kv_channels", 128, CTW_NULL_REFUSED, 2, CTW_MAX_HEAD);
    const struct ctw_norm_form norm = ctw_key_rms_norm(c, "layer_norm_epsilon", old ? 1e-5 : 1e-6);
    bool bias = !ctw_key_bool(c, "no_bias", true);
    bool scaled = ctw_key_bool(c, "scale_attn_weights", true);
    if (ctw_key_bool(c, "apply_residual_connection_post_layernorm", false))
        ctw_key_fail(c, "apply_residual_connection_post_layernorm", CTW_EUNSUP,
                     "residuals of normalised activations are not supported");
    ctw_describe_model(c, &s,
                       &(struct ctw_model_rules){.layers = "transformer.h",
                                                 .embed = "transformer.wte",
                                                 .final_norm = "transformer.ln_f",
                                                 .norm = norm});
    limit_length(c, old);
    const struct ctw_attention_rules attention = {
        .head = head,
        .rope = ctw_describe_rope(c, &(struct ctw_rope_rules){.head = head,
                                                              .theta = 10000.0,
                                                              .theta_key = "rotary_emb_base",
                                                              .partial_key = "rotary_pct"}),
        .scale = scaled ? 0 : 1,
        .order = CTW_QKV_IN_ORDER,
        .qkv = "attn.c_attn",
        .o = "attn.c_proj",
        .qkv_bias = true,
        .o_bias = bias};
    const struct ctw_mlp mlp = {.inner = s.inner,
                                .act = CTW_ACT_SILU,
                                .bias = bias,
                                .gate = "mlp.w2",
                                .up = "mlp.w1",
                                .down = "mlp.c_proj"};
    for (int64_t i = 0; i < s.n_layers; i++) {
        ctw_describe_norm(c, i, CTW_AT_MIXER, &norm, "ln_1", 0);
        ctw_describe_norm(c, i, CTW_AT_MLP, &norm, "ln_2", 0);
        ctw_describe_attention(c, i, &attention);
        ctw_describe_mlp(c, i, &mlp);
    }
}

const struct ctw_family ctw_family_qwen = {
    .model_type = "qwen", .architecture = "QWenLMHeadModel", .describe = describe};
