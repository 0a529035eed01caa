/*
 * Flint: Qwen 3's attention with sinks, and RoPE in the layers with a window alone; dense first
 * layers, then mixtures with a sigmoid router and a shared expert. Defaults: FlintConfig.
 */
#include "worker/model/families/qwen.h"

/* The first two layers, every fourth from there, and the last one see everything. */
static const int64_t *key_windows(struct ctw_config *c, int64_t n)
{
    bool full[CTW_MAX_DECODERS];
    const int64_t window = ctw_key_int(c, "sliding_window", 513, CTW_NULL_REFUSED, 1, 1 << 30);
    for (int64_t i = 0; i < n; i++)
        full[i] = i < 2 || i % 4 == 1 || i == n - 1;
    return ctw_key_windows(c, n, window, &(struct ctw_window_rule){.full = full});
}

static struct ctw_experts key_experts(struct ctw_config *c, enum ctw_activation act,
                                      struct ctw_mlp *shared)
{
    struct ctw_experts x = qwen_experts(c, act, &(struct qwen_absent){256, 6, 512, true});
    x.router.score = CTW_SCORE_SIGMOID;
    qwen_shared_expert(c, &x, 1024, shared);
    return x;
}

static void describe(struct ctw_config *c)
{
    const struct ctw_sizes s = ctw_key_sizes(c, &(struct ctw_sizes){.vocab = 150144,
                                                                    .hidden = 2048,
                                                                    .inner = 6144,
                                                                    .n_layers = 49,
                                                                    .n_head = 32,
                                                                    .n_kv = 4,
                                                                    .max_length = 262144});
    const int64_t head = ctw_key_head_dim(c, &s, 128, CTW_NULL_REFUSED);
    const bool bias = ctw_key_bool(c, "attention_bias", false);
    const int64_t *windows = key_windows(c, s.n_layers);
    const struct ctw_norm_form norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-6);
    const struct ctw_qk_norms qk_norms = {.form = norm};
    const struct ctw_mlp dense = {.inner = s.inner,
                                  .act = ctw_key_activation(c, "hidden_act", CTW_ACT_SILU)};
    struct ctw_mlp shared;
    const struct ctw_experts experts = key_experts(c, dense.act, &shared);
    const bool listed = ctw_key_is_given(c, "mlp_only_layers");
    bool sparse[CTW_MAX_DECODERS];
    qwen_sparse_layers(c, s.n_layers, experts.n, sparse);
    for (int64_t i = 0; !listed && i < 2 && i < s.n_layers; i++)
        sparse[i] = false;
    ctw_describe_model(c, &s, &(struct ctw_model_rules){.norm = norm});
    const int rope = ctw_describe_rope(c, &(struct ctw_rope_rules){.head = head, .theta = 10000.0});
    for (int64_t i = 0; i < s.n_layers; i++) {
        ctw_describe_norms(c, i, &norm);
        ctw_describe_attention(c, i,
                               &(struct ctw_attention_rules){.head = head,
                                                             .rope = windows[i] > 0 ? rope : -1,
                                                             .window = windows[i],
                                                             .sinks = "self_attn.softmax_offset",
                                                             .qkv_bias = bias,
                                                             .o_bias = bias,
                                                             .norms = &qk_norms});
        if (sparse[i])
            ctw_describe_experts(c, i, &experts);
        else
            ctw_describe_mlp(c, i, &dense);
    }
}

static const struct ctw_renamed in_memory[] = {{"self_attn.softmax_offset", "self_attn.sinks"},
                                               {NULL, NULL}};

const struct ctw_family ctw_family_flint = {.model_type = "flint",
                                            .architecture = "FlintForCausalLM",
                                            .in_memory = in_memory,
                                            .describe = describe};
