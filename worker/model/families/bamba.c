/*
 * Bamba: Mamba 2 in most layers, attention in those that the file lists, with RoPE on half of each
 * head, and a gated MLP in all. Defaults: BambaConfig.
 */
#include "worker/model/families/state_space_keys.h"

static void key_mamba(struct ctw_config *c, int64_t hidden, const struct ctw_norm_form *norm,
                      struct ctw_state_space_rules *r)
{
    const int64_t inner = hidden * ssm_key(c, "mamba_expand", 2, 1 << 10);
    r->module = "mamba";
    r->norm = norm;
    r->is.n_head = ssm_key(c, "mamba_n_heads", 128, 1 << 16);
    r->is.head = ssm_key_auto(c, "mamba_d_head", inner / r->is.n_head);
    r->is.n_groups = r->is.norm_groups = ssm_key(c, "mamba_n_groups", 1, 1 << 16);
    r->is.n_state = ssm_key(c, "mamba_d_state", 256, CTW_MAX_STATE);
    r->is.taps = (int)ssm_key(c, "mamba_d_conv", 4, CTW_MAX_TAPS);
    r->conv_bias = ctw_key_bool(c, "mamba_conv_bias", true);
    r->bias = r->out_bias = ctw_key_bool(c, "mamba_proj_bias", false);
    ssm_key_limit(c, &r->is);
    if (c->status == CTW_OK && ctw_ssm_inner(&r->is) != inner)
        ctw_key_fail(c, "mamba_d_head", CTW_EFORMAT,
                     "expected mamba_expand * hidden_size / mamba_n_heads");
}

/* The class sets a share at the top level to one half; that of rope_parameters counts. */
static int describe_rope(struct ctw_config *c, int64_t head)
{
    static const char share[] = "partial_rotary_factor";
    if (ctw_key_number(c, share, 0.5, 0.5, 0, 1) != 0.5)
        ctw_key_fail(c, share, CTW_EUNSUP,
                     "transformers rotates half of each head, whatever this key has: remove it, or "
                     "move it into rope_parameters");
    return ctw_describe_rope(
        c, &(struct ctw_rope_rules){
               .head = head, .theta = 10000.0, .partial_key = share, .partial = 0.5});
}

static void describe(struct ctw_config *c)
{
    const struct ctw_sizes s = ctw_key_sizes(c, &(struct ctw_sizes){.vocab = 128000,
                                                                    .hidden = 4096,
                                                                    .inner = 14336,
                                                                    .n_layers = 32,
                                                                    .n_head = 32,
                                                                    .n_kv = 8,
                                                                    .max_length = 262144});
    /* head_dim is not a field of the class, but is read if present. */
    const int64_t head = ctw_key_head_dim(c, &s, 0, 0);
    const bool bias = ctw_key_bool(c, "attention_bias", false);
    const bool *attends = ctw_key_layer_set(c, "attn_layer_indices", s.n_layers);
    const struct ctw_norm_form norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-5);
    const struct ctw_mlp mlp = {.inner = s.inner,
                                .act = ctw_key_activation(c, "hidden_act", CTW_ACT_SILU),
                                .bias = ctw_key_bool(c, "mlp_bias", false),
                                .gate = "feed_forward.gate_proj",
                                .up = "feed_forward.up_proj",
                                .down = "feed_forward.down_proj"};
    struct ctw_state_space_rules mamba = {0};
    key_mamba(c, s.hidden, &norm, &mamba);
    if (mlp.act != CTW_ACT_SILU)
        ctw_key_fail(c, "hidden_act", CTW_EUNSUP, "only silu is supported in Mamba layers");
    ctw_describe_model(
        c, &s, &(struct ctw_model_rules){.final_norm = "model.final_layernorm", .norm = norm});
    const struct ctw_attention_rules attention = {
        .head = head, .rope = describe_rope(c, head), .qkv_bias = bias, .o_bias = bias};
    for (int64_t i = 0; i < s.n_layers; i++) {
        ctw_describe_norm(c, i, CTW_AT_MIXER, &norm, "input_layernorm", 0);
        ctw_describe_norm(c, i, CTW_AT_MLP, &norm, "pre_ff_layernorm", 0);
        if (attends != NULL && attends[i])
            ctw_describe_attention(c, i, &attention);
        else
            ctw_describe_state_space(c, i, &mamba);
        ctw_describe_mlp(c, i, &mlp);
    }
}

const struct ctw_family ctw_family_bamba = {
    .model_type = "bamba", .architecture = "BambaForCausalLM", .describe = describe};
