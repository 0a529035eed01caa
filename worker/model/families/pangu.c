/*
 * openPangu Embedded: Llama's layers, with biases of q, k, v and o. Defaults: its own
 * configuration_openpangu_dense.py.
 */
#include "worker/model/families/family.h"

static void describe(struct ctw_config *c)
{
    const struct ctw_sizes s = ctw_key_sizes(c, &(struct ctw_sizes){.vocab = 153376,
                                                                    .hidden = 4096,
                                                                    .inner = 12800,
                                                                    .n_layers = 34,
                                                                    .n_head = 32,
                                                                    .n_kv = 8,
                                                                    .max_length = 32768});
    /* head_dim is not a field of the class, but is read if present. */
    const int64_t head = ctw_key_head_dim(c, &s, 0, 0);
    const bool bias = ctw_key_bool(c, "bias", true);
    const struct ctw_norm_form norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-5);
    const struct ctw_mlp mlp = {.inner = s.inner,
                                .act = ctw_key_activation(c, "hidden_act", CTW_ACT_SILU)};
    ctw_describe_model(c, &s, &(struct ctw_model_rules){.norm = norm});
    const struct ctw_attention_rules attention = {
        .head = head,
        .rope = ctw_describe_rope(c, &(struct ctw_rope_rules){.head = head, .theta = 16000000.0}),
        .qkv_bias = bias,
        .o_bias = bias};
    for (int64_t i = 0; i < s.n_layers; i++) {
        ctw_describe_norms(c, i, &norm);
        ctw_describe_attention(c, i, &attention);
        ctw_describe_mlp(c, i, &mlp);
    }
}

const struct ctw_family ctw_family_pangu = {.model_type = "PanguEmbedded",
                                            .architecture = "PanguEmbeddedForCausalLM",
                                            .describe = describe};
