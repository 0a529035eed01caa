/*
 * Qwen 2 and 2.5: biases on q, k and v always; windows by layer. Defaults: Qwen2Config. MiMo has
 * layers for drafts in addition, "model.mtp_layers". The text models of Qwen 2 VL and 2.5 VL have
 * the defaults of Qwen2VLTextConfig and Qwen2_5_VLTextConfig, which are equal.
 */
#include "worker/model/families/qwen.h"

/* transformers' defaults. */
struct defaults {
    struct ctw_sizes sizes;
    int64_t max_window_layers;
    double norm_eps, rope_theta;
};

static void describe_with(struct ctw_config *c, const struct defaults *absent, bool mrope)
{
    const struct ctw_sizes s = ctw_key_sizes(c, &absent->sizes);
    /* head_dim is not a field of the class, but is read if present. */
    int64_t head = ctw_key_head_dim(c, &s, 0, 0);
    const int64_t *windows = qwen_windows(c, s.n_layers, absent->max_window_layers);
    const struct ctw_norm_form norm = ctw_key_rms_norm(c, "rms_norm_eps", absent->norm_eps);
    enum ctw_activation act = ctw_key_activation(c, "hidden_act", CTW_ACT_SILU);
    ctw_describe_model(c, &s, &(struct ctw_model_rules){.norm = norm});
    int rope = ctw_describe_rope(
        c, &(struct ctw_rope_rules){.head = head, .theta = absent->rope_theta, .mrope = mrope});
    for (int64_t i = 0; i < s.n_layers; i++) {
        ctw_describe_norms(c, i, &norm);
        ctw_describe_attention(
            c, i,
            &(struct ctw_attention_rules){
                .head = head, .rope = rope, .window = windows[i], .qkv_bias = true});
        ctw_describe_mlp(c, i, &(struct ctw_mlp){.inner = s.inner, .act = act});
    }
}

static void describe(struct ctw_config *c)
{
    static const struct defaults absent = {.sizes = {.vocab = 151936,
                                                     .hidden = 4096,
                                                     .inner = 22016,
                                                     .n_layers = 32,
                                                     .n_head = 32,
                                                     .n_kv = 32,
                                                     .max_length = 32768},
                                           .max_window_layers = 28,
                                           .norm_eps = 1e-6,
                                           .rope_theta = 10000.0};
    describe_with(c, &absent, false);
}

static void describe_vl(struct ctw_config *c)
{
    static const struct defaults absent = {.sizes = {.vocab = 152064,
                                                     .hidden = 8192,
                                                     .inner = 29568,
                                                     .n_layers = 80,
                                                     .n_head = 64,
                                                     .n_kv = 8,
                                                     .max_length = 32768},
                                           .max_window_layers = 80,
                                           .norm_eps = 1e-5,
                                           .rope_theta = 1000000.0};
    describe_with(c, &absent, true);
}

const struct ctw_family ctw_family_qwen2 = {
    .model_type = "qwen2", .architecture = "Qwen2ForCausalLM", .describe = describe};

const struct ctw_family ctw_family_mimo = {
    .model_type = "mimo", .architecture = "MiMoForCausalLM", .describe = describe};

const struct ctw_family ctw_family_qwen2_vl = {.model_type = "qwen2_vl",
                                               .architecture = "Qwen2VLForConditionalGeneration",
                                               .wrapper = &(const struct ctw_wrapper){.flat = true},
                                               .spellings = ctw_wrapped_spellings,
                                               .describe = describe_vl};

const struct ctw_family ctw_family_qwen2_5_vl = {
    .model_type = "qwen2_5_vl",
    .architecture = "Qwen2_5_VLForConditionalGeneration",
    .wrapper = &(const struct ctw_wrapper){.flat = true},
    .spellings = ctw_wrapped_spellings,
    .describe = describe_vl};
