/*
 * Gemma 2: norms before and after both branches, soft caps, every other layer with a window.
 * VaultGemma: the same without the norms after the branches. Defaults: Gemma2Config,
 * VaultGemmaConfig, which are equal.
 */
#include "worker/model/families/gemma.h"

/* vault: VaultGemma. */
static void describe_with(struct ctw_config *c, bool vault)
{
    const struct ctw_sizes s = ctw_key_sizes(c, &(struct ctw_sizes){.vocab = 256000,
                                                                    .hidden = 2304,
                                                                    .inner = 9216,
                                                                    .n_layers = 26,
                                                                    .n_head = 8,
                                                                    .n_kv = 4,
                                                                    .max_length = 8192});
    int64_t head = ctw_key_head_dim(c, &s, 256, CTW_NULL_REFUSED);
    bool bias = ctw_key_bool(c, "attention_bias", false);
    const struct ctw_norm_form norm = gemma_key_norm(c);
    enum ctw_activation act = ctw_key_activation(c, "hidden_activation", CTW_ACT_GELU_TANH);
    double scale = gemma_key_scale(c);
    double attn_cap = ctw_key_number(c, "attn_logit_softcapping", 50, 0, 1e-6, 1e9);
    double head_cap = ctw_key_number(c, "final_logit_softcapping", 30, 0, 1e-6, 1e9);
    int64_t window = ctw_key_int(c, "sliding_window", 4096, 0, 1, 1 << 30);
    const int64_t *windows =
        ctw_key_windows(c, s.n_layers, window, &(struct ctw_window_rule){.every = 2});
    gemma_check_causal(c);
    ctw_describe_model(c, &s,
                       &(struct ctw_model_rules){.norm = norm,
                                                 .tied = true,
                                                 .embed_scale = gemma_embed_scale(s.hidden),
                                                 .head_softcap = head_cap});
    int rope = ctw_describe_rope(c, &(struct ctw_rope_rules){.head = head, .theta = 10000.0});
    for (int64_t i = 0; i < s.n_layers; i++) {
        if (vault) {
            ctw_describe_norm(c, i, CTW_AT_MIXER, &norm, "input_layernorm", 0);
            ctw_describe_norm(c, i, CTW_AT_MLP, &norm, "pre_feedforward_layernorm", 0);
        } else {
            gemma_describe_norms(c, i, &norm);
        }
        ctw_describe_attention(c, i,
                               &(struct ctw_attention_rules){.head = head,
                                                             .rope = rope,
                                                             .window = windows[i],
                                                             .scale = scale,
                                                             .softcap = attn_cap,
                                                             .qkv_bias = bias,
                                                             .o_bias = bias});
        ctw_describe_mlp(c, i, &(struct ctw_mlp){.inner = s.inner, .act = act});
    }
}

static void describe(struct ctw_config *c)
{
    describe_with(c, false);
}

static void describe_vault(struct ctw_config *c)
{
    describe_with(c, true);
}

const struct ctw_family ctw_family_gemma2 = {
    .model_type = "gemma2", .architecture = "Gemma2ForCausalLM", .describe = describe};

const struct ctw_family ctw_family_vaultgemma = {.model_type = "vaultgemma",
                                                 .architecture = "VaultGemmaForCausalLM",
                                                 .describe = describe_vault};
