/*
 * Mistral: Llama's layers, and one sliding window for all layers. Defaults: MistralConfig.
 * transformers' AutoConfig loads a file with layer_types as Ministral, which has the same defaults
 * and gives the window to the layers that layer_types names. Also the text model of Mistral 3's
 * wrapper.
 */
#include "worker/model/families/family.h"

static void describe(struct ctw_config *c)
{
    const struct ctw_sizes s = ctw_key_sizes(c, &(struct ctw_sizes){.vocab = 32000,
                                                                    .hidden = 4096,
                                                                    .inner = 14336,
                                                                    .n_layers = 32,
                                                                    .n_head = 32,
                                                                    .n_kv = 8,
                                                                    .max_length = 131072});
    int64_t head = ctw_key_head_dim(c, &s, 0, 0);
    int64_t window = ctw_key_int(c, "sliding_window", 4096, 0, 1, 1 << 30);
    const int64_t *windows =
        ctw_key_windows(c, s.n_layers, window, &(struct ctw_window_rule){.every = 0});
    const struct ctw_norm_form norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-6);
    enum ctw_activation act = ctw_key_activation(c, "hidden_act", CTW_ACT_SILU);
    ctw_describe_model(c, &s, &(struct ctw_model_rules){.norm = norm});
    int rope = ctw_describe_rope(c, &(struct ctw_rope_rules){.head = head, .theta = 10000.0});
    for (int64_t i = 0; i < s.n_layers; i++) {
        ctw_describe_norms(c, i, &norm);
        ctw_describe_attention(
            c, i, &(struct ctw_attention_rules){.head = head, .rope = rope, .window = windows[i]});
        ctw_describe_mlp(c, i, &(struct ctw_mlp){.inner = s.inner, .act = act});
    }
}

const struct ctw_family ctw_family_mistral = {
    .model_type = "mistral", .architecture = "MistralForCausalLM", .describe = describe};

const struct ctw_family ctw_family_ministral = {
    .model_type = "ministral", .architecture = "MinistralForCausalLM", .describe = describe};

const struct ctw_family ctw_family_mistral3 = {
    .model_type = "mistral3",
    .architecture = "Mistral3ForConditionalGeneration",
    .wrapper =
        &(const struct ctw_wrapper){.text_type = "mistral", .is_default = true, .tied = true},
    .spellings = ctw_wrapped_spellings,
    .describe = describe};
