/*
 * BitNet's models in bf16: Llama's layers, with norms over attention's output and over the MLP's
 * inner activations. Defaults: BitNetConfig.
 */
#include "worker/model/families/family.h"

static void describe(struct ctw_config *c)
{
    const struct ctw_sizes s = ctw_key_sizes(c, &(struct ctw_sizes){.vocab = 128256,
                                                                    .hidden = 2560,
                                                                    .inner = 6912,
                                                                    .n_layers = 30,
                                                                    .n_head = 20,
                                                                    .n_kv = 5,
                                                                    .max_length = 2048});
    /* head_dim is not a field of the class, but is read if present. */
    int64_t head = ctw_key_head_dim(c, &s, 0, 0);
    bool bias = ctw_key_bool(c, "attention_bias", false);
    const struct ctw_norm_form norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-5);
    enum ctw_activation act = ctw_key_activation(c, "hidden_act", CTW_ACT_RELU2);
    ctw_describe_model(c, &s, &(struct ctw_model_rules){.norm = norm});
    int rope = ctw_describe_rope(c, &(struct ctw_rope_rules){.head = head, .theta = 500000.0});
    for (int64_t i = 0; i < s.n_layers; i++) {
        ctw_describe_norms(c, i, &norm);
        ctw_describe_norm(c, i, CTW_AT_HEADS_OUT, &norm, "self_attn.attn_sub_norm",
                          s.n_head * head);
        ctw_describe_norm(c, i, ctw_norm_at(CTW_MLP, CTW_AT_INNER), &norm, "mlp.ffn_sub_norm",
                          s.inner);
        ctw_describe_attention(c, i,
                               &(struct ctw_attention_rules){
                                   .head = head, .rope = rope, .qkv_bias = bias, .o_bias = bias});
        ctw_describe_mlp(c, i, &(struct ctw_mlp){.inner = s.inner, .act = act});
    }
}

const struct ctw_family ctw_family_bitnet = {
    .model_type = "bitnet", .architecture = "BitNetForCausalLM", .describe = describe};
