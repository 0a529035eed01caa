/*
 * Lara 4 Mini: Qwen 3.5's gated delta rules, whose inputs are one product, and Qwen 3's attention
 * in the other layers, with a window and RoPE or with neither; mixtures with a shared expert.
 * Defaults: LaraMiniConfig.
 */
#include "worker/model/families/qwen_hybrid.h"

enum mixer { DELTA, FULL, SLIDING };

static void key_mixers(struct ctw_config *c, int64_t n, int mixer[CTW_MAX_DECODERS])
{
    static const int cycle[] = {DELTA, SLIDING, DELTA, FULL, SLIDING};
    static const char *const names[] = {"linear_attention", "full_attention", "sliding_attention",
                                        NULL};
    for (int64_t i = 0; i < n; i++)
        mixer[i] = cycle[i % (int64_t)CTW_COUNT(cycle)];
    ctw_key_layer_kinds(c, "layer_types", n, names, mixer);
}

static void describe(struct ctw_config *c)
{
    const struct ctw_sizes s = ctw_key_sizes_as(c,
                                                &(struct ctw_sizes){.vocab = 151936,
                                                                    .hidden = 1024,
                                                                    .n_layers = 34,
                                                                    .n_head = 16,
                                                                    .n_kv = 4,
                                                                    .max_length = 131072},
                                                &(struct ctw_size_keys){.inner = ""});
    const int64_t head = ctw_key_head_dim(c, &s, 128, CTW_NULL_REFUSED);
    const bool bias = ctw_key_bool(c, "attention_bias", false);
    const int64_t window = ctw_key_int(c, "sliding_window", 512, CTW_NULL_REFUSED, 1, 1 << 30);
    int mixer[CTW_MAX_DECODERS];
    key_mixers(c, s.n_layers, mixer);
    const struct ctw_norm_form norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-6);
    const struct ctw_qk_norms qk_norms = {.form = norm};
    const struct ctw_delta_rule delta =
        qwen_delta(c, &(struct qwen_delta_form){8, 16, .in_one = true});
    if (ctw_key_activation(c, "hidden_act", CTW_ACT_SILU) != CTW_ACT_SILU)
        ctw_key_fail(c, "hidden_act", CTW_EUNSUP, "delta rules have silu alone");
    struct ctw_experts experts =
        qwen_experts(c, CTW_ACT_SILU, &(struct qwen_absent){128, 4, 512, true});
    struct ctw_mlp shared;
    qwen_shared_expert(c, &experts, 512, &shared);
    experts.stacked = experts.fused = true;
    ctw_describe_model(c, &s, &(struct ctw_model_rules){.norm = norm, .tied = true});
    const int rope = ctw_describe_rope(c, &(struct ctw_rope_rules){.head = head, .theta = 10000.0});
    for (int64_t i = 0; i < s.n_layers; i++) {
        const bool slides = mixer[i] == SLIDING;
        ctw_describe_norms(c, i, &norm);
        if (mixer[i] == DELTA)
            ctw_describe_delta_rule(c, i, &delta, &norm);
        else
            ctw_describe_attention(c, i,
                                   &(struct ctw_attention_rules){.head = head,
                                                                 .rope = slides ? rope : -1,
                                                                 .window = slides ? window : 0,
                                                                 .qkv_bias = bias,
                                                                 .o_bias = bias,
                                                                 .norms = &qk_norms});
        ctw_describe_experts(c, i, &experts);
    }
}

static const struct ctw_renamed in_memory[] = {{"linear_attn.out_norm", "linear_attn.norm"},
                                               {NULL, NULL}};

const struct ctw_family ctw_family_lara_mini = {.model_type = "lara_mini",
                                                .architecture = "LaraMiniForCausalLM",
                                                .in_memory = in_memory,
                                                .describe = describe};
