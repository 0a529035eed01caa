/*
 * EXAONE 3 and 3.5: Llama's layers under GPT-2's names. Defaults: ExaoneConfig.
 */
#include "worker/model/families/family.h"

static struct ctw_sizes key_sizes(struct ctw_config *c)
{
    const char *layers = ctw_key_either(c, "num_layers", "num_hidden_layers");
    return ctw_key_sizes_as(c,
                            &(struct ctw_sizes){.vocab = 102400,
                                                .hidden = 4096,
                                                .inner = 14336,
                                                .n_layers = 32,
                                                .n_head = 32,
                                                .n_kv = 8,
                                                .max_length = 4096},
                            &(struct ctw_size_keys){.n_layers = layers});
}

static void describe(struct ctw_config *c)
{
    const struct ctw_sizes s = key_sizes(c);
    const int64_t head = ctw_key_head_dim(c, &s, 0, 0);
    const bool bias = ctw_key_bool(c, "attention_bias", false);
    const struct ctw_norm_form norm =
        ctw_key_rms_norm(c, ctw_key_either(c, "layer_norm_epsilon", "rms_norm_eps"), 1e-5);
    const struct ctw_mlp mlp = {
        .inner = s.inner,
        .act = ctw_key_activation(c, ctw_key_either(c, "activation_function", "hidden_act"),
                                  CTW_ACT_SILU),
        .bias = ctw_key_bool(c, "mlp_bias", false),
        .gate = "mlp.c_fc_0",
        .up = "mlp.c_fc_1",
        .down = "mlp.c_proj"};
    ctw_describe_model(c, &s,
                       &(struct ctw_model_rules){.layers = "transformer.h",
                                                 .embed = "transformer.wte",
                                                 .final_norm = "transformer.ln_f",
                                                 .norm = norm});
    const struct ctw_attention_rules attention = {
        .head = head,
        .rope = ctw_describe_rope(c, &(struct ctw_rope_rules){.head = head, .theta = 500000.0}),
        .qkv_bias = bias,
        .o_bias = bias,
        .q = "attn.attention.q_proj",
        .k = "attn.attention.k_proj",
        .v = "attn.attention.v_proj",
        .o = "attn.attention.out_proj"};
    for (int64_t i = 0; i < s.n_layers; i++) {
        ctw_describe_norm(c, i, CTW_AT_MIXER, &norm, "ln_1", 0);
        ctw_describe_norm(c, i, CTW_AT_MLP, &norm, "ln_2", 0);
        ctw_describe_attention(c, i, &attention);
        ctw_describe_mlp(c, i, &mlp);
    }
}

/* transformers 5 uses, and names, its class for Llama. */
const struct ctw_family ctw_family_exaone = {.model_type = "exaone",
                                             .architecture = "ExaoneForCausalLM",
                                             .old_architecture = "LlamaForCausalLM",
                                             .describe = describe};
