/*
 * LFM 3: LFM 2's layers with norms after both branches, a gate of each head of attention's output,
 * and windows in some layers, which have a RoPE of their own. Also the text model of LFM 3 VL.
 * Defaults: Lfm3Config, Lfm3VlConfig.
 */
#include "kernels/conv.h"
#include "worker/model/families/layer_ropes.h"
#include "worker/model/recipe/short_conv.h"

enum mixer { CONV, FULL, SLIDING };

static void key_mixers(struct ctw_config *c, int64_t n, int mixer[CTW_MAX_DECODERS])
{
    static const char *const names[] = {"conv", "full_attention", "sliding_attention", NULL};
    for (int64_t i = 0; i < n; i++)
        mixer[i] = i % 4 == 2 ? FULL : i % 4 == 0 && i > 0 ? SLIDING : CONV;
    ctw_key_layer_kinds(c, "layer_types", n, names, mixer);
}

static int describe_rope(struct ctw_config *c, int64_t head, bool full)
{
    const struct ctw_rope_rules both = {.head = head, .theta = 1000000.0};
    return layer_rope(c, both, full,
                      "{\"rope_type\": \"proportional\", \"partial_rotary_factor\": 0.5, "
                      "\"rope_theta\": 1000000.0}",
                      "{\"rope_theta\": 10000.0}");
}

static void describe_norms(struct ctw_config *c, int64_t i, const struct ctw_norm_form *norm,
                           bool sandwich)
{
    ctw_describe_norm(c, i, CTW_AT_MIXER, norm, "operator_norm", 0);
    ctw_describe_norm(c, i, CTW_AT_MLP, norm, "ffn_norm", 0);
    if (!sandwich)
        return;
    ctw_describe_norm(c, i, CTW_AT_MIXER_OUT, norm, "post_operator_norm", 0);
    ctw_describe_norm(c, i, CTW_AT_MLP_OUT, norm, "post_ffn_norm", 0);
}

static void describe(struct ctw_config *c)
{
    enum { NO = CTW_NULL_REFUSED };
    const struct ctw_sizes s = ctw_key_sizes(c, &(struct ctw_sizes){.vocab = 128000,
                                                                    .hidden = 2048,
                                                                    .inner = 7680,
                                                                    .n_layers = 24,
                                                                    .n_head = 16,
                                                                    .n_kv = 4,
                                                                    .max_length = 128000});
    int mixer[CTW_MAX_DECODERS];
    key_mixers(c, s.n_layers, mixer);
    const int64_t window = ctw_key_int(c, "sliding_window", 256, NO, 1, 1 << 30);
    const int taps = (int)ctw_key_int(c, "conv_L_cache", 7, NO, 1, CTW_MAX_TAPS);
    const bool conv_bias = ctw_key_bool(c, "conv_bias", false);
    const bool bias = ctw_key_bool(c, "attention_bias", false);
    const bool sandwich = ctw_key_bool(c, "use_sandwich_norm", true);
    const struct ctw_norm_form norm =
        ctw_key_rms_norm(c, ctw_key_either(c, "norm_eps", "rms_norm_eps"), 1e-5);
    const struct ctw_qk_norms qk_norms = {.form = norm};
    struct ctw_attention_rules attention = {.head = ctw_key_head_dim(c, &s, 128, NO),
                                            .qkv_bias = bias,
                                            .o_bias = bias,
                                            .norms = &qk_norms};
    if (ctw_key_bool(c, "use_attention_gate", true)) {
        attention.gate = CTW_GATE_SIGMOID;
        attention.g = "self_attn.gate_proj";
    }
    const struct ctw_mlp mlp = {.inner = s.inner,
                                .act = CTW_ACT_SILU,
                                .gate = "feed_forward.w1",
                                .up = "feed_forward.w3",
                                .down = "feed_forward.w2"};
    ctw_describe_model(c, &s,
                       &(struct ctw_model_rules){
                           .norm = norm, .final_norm = "model.embedding_norm", .tied = true});
    for (int64_t i = 0; i < s.n_layers; i++) {
        describe_norms(c, i, &norm, sandwich);
        attention.window = mixer[i] == SLIDING ? window : 0;
        if (mixer[i] == CONV) {
            ctw_describe_short_conv(c, i, taps, conv_bias);
        } else {
            attention.rope = describe_rope(c, attention.head, mixer[i] == FULL);
            ctw_describe_attention(c, i, &attention);
        }
        ctw_describe_mlp(c, i, &mlp);
    }
}

static const struct ctw_renamed in_memory[] = {{"self_attn.gate_proj", "self_attn.g_proj"},
                                               {NULL, NULL}};

const struct ctw_family ctw_family_lfm3 = {.model_type = "lfm3",
                                           .architecture = "Lfm3ForCausalLM",
                                           .in_memory = in_memory,
                                           .describe = describe};

static const struct ctw_wrapper vision = {.text_type = "lfm3", .is_default = true, .tied = true};

const struct ctw_family ctw_family_lfm3_vl = {.model_type = "lfm3_vl",
                                              .architecture = "Lfm3VlForConditionalGeneration",
                                              .wrapper = &vision,
                                              .spellings = ctw_wrapped_spellings,
                                              .in_memory = in_memory,
                                              .describe = describe};
