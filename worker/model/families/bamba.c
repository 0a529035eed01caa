/*
 * Bamba: Mamba 2 in most layers, attention in the layers of attn_layer_indices, with RoPE on half
 * of each head, and a gated MLP in all. Defaults: BambaConfig.
 */
#include "worker/model/families/state_space_keys.h"

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
                                .act = CTW_ACT_SILU,
                                .bias = ctw_key_bool(c, "mlp_bias", false),
                                .gate = "feed_forward.gate_proj",
                                .up = "feed_forward.up_proj",
                                .down = "feed_forward.down_proj"};
    struct ctw_state_space_rules mamba = {0};
    ssm_key_activation(c, "hidden_act");
    ssm_key_mamba2(c, s.hidden, &mamba);
    mamba.norm = &norm;
    mamba.is.norm_groups = mamba.is.n_groups;
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
