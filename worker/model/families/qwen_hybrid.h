/* Shared by Qwen's families with delta rules in some layers and attention with gates in others:
 * their keys. */
#ifndef CTW_WORKER_QWEN_HYBRID_H
#define CTW_WORKER_QWEN_HYBRID_H

#include <string.h>

#include "kernels/conv.h"
#include "kernels/delta.h"
#include "worker/model/families/qwen.h"
#include "worker/model/recipe/delta_rule.h"

struct qwen_hybrid {
    struct ctw_sizes s;
    int64_t head;
    bool bias;
    const bool *linear; /* which layers have delta rules; NULL: all but every fourth */
    int64_t interval;
    struct ctw_norm_form norm, heads_norm; /* heads_norm: of the delta rule's output */
    struct ctw_delta_rule delta;
};

static inline int qwen_hybrid_count(struct ctw_config *c, const char *name, int64_t absent,
                                    int64_t most)
{
    return (int)ctw_key_int(c, name, absent, CTW_NULL_REFUSED, 1, most);
}

/* Qwen 3.8 has the key, which transformers' class does not read; "swish" is SiLU. */
static inline enum ctw_activation qwen_hybrid_gate(struct ctw_config *c)
{
    static const char name[] = "output_gate_type";
    if (!ctw_key_is_given(c, name))
        return CTW_ACT_SILU;
    const char *type = ctw_key_string(c, name, "silu");
    if (strcmp(type, "sigmoid") == 0)
        return CTW_ACT_SIGMOID;
    if (strcmp(type, "swish") != 0 && strcmp(type, "silu") != 0)
        ctw_key_fail(c, name, CTW_EUNSUP,
                     "\"%s\" is not supported; supported: swish, silu, sigmoid", type);
    return CTW_ACT_SILU;
}

/* How a family's makers store delta rules; n_key and n_value: heads without keys. */
struct qwen_delta_form {
    int n_key, n_value;
    bool in_one, by_head; /* as in struct ctw_delta_rule */
};

static inline struct ctw_delta_rule qwen_delta(struct ctw_config *c,
                                               const struct qwen_delta_form *form)
{
    /* GGUF files of Qwen 3 Next have q, k, v and z in Qwen 3.5's order, and tools that quantise in
     * memory find transformers' modules. */
    const bool apart = ctw_files_find(c, ".linear_attn.in_proj_qkv.") != NULL;
    struct ctw_delta_rule d = {.by_head = form->by_head && !apart,
                               .ba_by_head = form->by_head,
                               .in_one = form->in_one && !apart};
    d.n_key = qwen_hybrid_count(c, "linear_num_key_heads", form->n_key, 4096);
    d.n_value = qwen_hybrid_count(c, "linear_num_value_heads", form->n_value, 4096);
    d.key = qwen_hybrid_count(c, "linear_key_head_dim", 128, CTW_MAX_DELTA_HEAD);
    d.value = qwen_hybrid_count(c, "linear_value_head_dim", 128, CTW_MAX_DELTA_HEAD);
    d.taps = qwen_hybrid_count(c, "linear_conv_kernel_dim", 4, CTW_MAX_TAPS);
    if (d.n_value % d.n_key != 0)
        ctw_key_fail(c, "linear_num_value_heads", CTW_EFORMAT,
                     "found %d, expected a multiple of linear_num_key_heads = %d", d.n_value,
                     d.n_key);
    return d;
}

/* `full`: what layer_types calls the other layers. */
static inline struct qwen_hybrid qwen_hybrid_keys(struct ctw_config *c,
                                                  const struct ctw_sizes *absent, bool by_head,
                                                  const char *full)
{
    static const struct ctw_size_keys no_inner = {.inner = ""};
    static const struct ctw_size_keys all;
    struct qwen_hybrid k = {.s =
                                ctw_key_sizes_as(c, absent, absent->inner == 0 ? &no_inner : &all)};
    k.head = ctw_key_head_dim(c, &k.s, 256, CTW_NULL_REFUSED);
    k.bias = ctw_key_bool(c, "attention_bias", false);
    k.interval = ctw_key_int(c, "full_attention_interval", 4, CTW_NULL_REFUSED, 1, 1 << 20);
    k.linear = ctw_key_layers_called(c, "layer_types", k.s.n_layers, "linear_attention", full);
    k.norm = k.heads_norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-6);
    k.norm.offset = ctw_files_by_mlx(c) ? 0 : 1; /* mlx-lm adds the 1 to the weights */
    k.delta = qwen_delta(c, &(struct qwen_delta_form){16, 32, .by_head = by_head});
    k.delta.gate = qwen_hybrid_gate(c);
    if (ctw_key_activation(c, "hidden_act", CTW_ACT_SILU) != CTW_ACT_SILU)
        ctw_key_fail(c, "hidden_act", CTW_EUNSUP, "delta rules have silu alone");
    return k;
}

static inline struct ctw_experts qwen_hybrid_experts(struct ctw_config *c, struct ctw_mlp *shared,
                                                     int64_t n, int64_t chosen)
{
    *shared = (struct ctw_mlp){.inner = ctw_key_int(c, "shared_expert_intermediate_size", 512,
                                                    CTW_NULL_REFUSED, 1, CTW_MAX_DIM),
                               .act = CTW_ACT_SILU,
                               .gate = "mlp.shared_expert.gate_proj",
                               .up = "mlp.shared_expert.up_proj",
                               .down = "mlp.shared_expert.down_proj"};
    return (struct ctw_experts){
        .n = ctw_key_int(c, "num_experts", n, CTW_NULL_REFUSED, 0, CTW_MAX_EXPERTS),
        .chosen =
            ctw_key_int(c, "num_experts_per_tok", chosen, CTW_NULL_REFUSED, 1, CTW_MAX_CHOSEN),
        .inner = ctw_key_int(c, "moe_intermediate_size", 512, CTW_NULL_REFUSED, 1, CTW_MAX_DIM),
        .act = CTW_ACT_SILU,
        .router = {.score = CTW_SCORE_SOFTMAX, .normalised = true},
        .shared = shared,
        .shared_gate = "mlp.shared_expert_gate"};
}

#endif
