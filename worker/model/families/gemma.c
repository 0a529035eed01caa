/*
 * Gemma: Llama's layers, with GELU, norms of weight 1 + w, and scaled embeddings. Defaults:
 * GemmaConfig. The class reads hidden_act; early files say "gelu", and were run with the tanh form.
 */
#include "worker/model/families/gemma.h"

static void describe(struct ctw_config *c)
{
    const struct ctw_sizes s = ctw_key_sizes(c, &(struct ctw_sizes){.vocab = 256000,
                                                                    .hidden = 3072,
                                                                    .inner = 24576,
                                                                    .n_layers = 28,
                                                                    .n_head = 16,
                                                                    .n_kv = 16,
                                                                    .max_length = 8192});
    int64_t head = ctw_key_head_dim(c, &s, 256, CTW_NULL_REFUSED);
    bool bias = ctw_key_bool(c, "attention_bias", false);
    const struct ctw_norm_form norm = gemma_key_norm(c);
    enum ctw_activation act = ctw_key_activation(c, "hidden_act", CTW_ACT_GELU_TANH);
    act = act == CTW_ACT_GELU ? CTW_ACT_GELU_TANH : act;
    gemma_check_causal(c);
    ctw_describe_model(c, &s,
                       &(struct ctw_model_rules){
                           .norm = norm, .tied = true, .embed_scale = gemma_embed_scale(s.hidden)});
    int rope = ctw_describe_rope(c, &(struct ctw_rope_rules){.head = head, .theta = 10000.0});
    for (int64_t i = 0; i < s.n_layers; i++) {
        ctw_describe_norms(c, i, &norm);
        ctw_describe_attention(c, i,
                               &(struct ctw_attention_rules){
                                   .head = head, .rope = rope, .qkv_bias = bias, .o_bias = bias});
        ctw_describe_mlp(c, i, &(struct ctw_mlp){.inner = s.inner, .act = act});
    }
}

const struct ctw_family ctw_family_gemma = {
    .model_type = "gemma", .architecture = "GemmaForCausalLM", .describe = describe};
