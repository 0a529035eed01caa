/*
 * nanochat: norms without weights, also of the embedding, and of query and key heads after RoPE,
 * which turns heads the other way; a plain MLP with the square of relu; a soft cap of the logits.
 * Defaults: NanoChatConfig.
 */
#include "worker/model/families/family.h"

static void describe(struct ctw_config *c)
{
    const struct ctw_sizes s = ctw_key_sizes(c, &(struct ctw_sizes){.vocab = 50304,
                                                                    .hidden = 768,
                                                                    .inner = 8192,
                                                                    .n_layers = 12,
                                                                    .n_head = 6,
                                                                    .n_kv = 0,
                                                                    .max_length = 2048});
    /* head_dim is not a field of the class, but is read if present. */
    const int64_t head = ctw_key_head_dim(c, &s, 0, CTW_NULL_REFUSED);
    const bool bias = ctw_key_bool(c, "attention_bias", false);
    const double cap = ctw_key_number(c, "final_logit_softcapping", 15, 0, 1e-6, 1e9);
    struct ctw_norm_form norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-6);
    norm.weightless = true;
    const struct ctw_qk_norms qk_norms = {.form = norm, .after_rope = true};
    const struct ctw_mlp mlp = {.inner = s.inner,
                                .act = ctw_key_activation(c, "hidden_act", CTW_ACT_RELU2),
                                .plain = true,
                                .up = "mlp.fc1",
                                .down = "mlp.fc2"};
    ctw_describe_model(c, &s, &(struct ctw_model_rules){.norm = norm, .head_softcap = cap});
    ctw_describe_norm(c, CTW_EMBEDDING, CTW_AT_EMBED, &norm, "", 0);
    const struct ctw_rope_rules rope = {.head = head, .theta = 10000.0, .backwards = true};
    const struct ctw_attention_rules attention = {.head = head,
                                                  .rope = ctw_describe_rope(c, &rope),
                                                  .qkv_bias = bias,
                                                  .o_bias = bias,
                                                  .norms = &qk_norms};
    for (int64_t i = 0; i < s.n_layers; i++) {
        ctw_describe_norms(c, i, &norm);
        ctw_describe_attention(c, i, &attention);
        ctw_describe_mlp(c, i, &mlp);
    }
}

const struct ctw_family ctw_family_nanochat = {
    .model_type = "nanochat", .architecture = "NanoChatForCausalLM", .describe = describe};
