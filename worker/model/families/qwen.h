/* The windows and mixtures of Qwen 2 and 3. */
#ifndef CTW_WORKER_QWEN_H
#define CTW_WORKER_QWEN_H

#include "worker/model/families/family.h"

/*
 * If use_sliding_window, the layers from max_window_layers (or absent_first) on have the window,
 * unless layer_types says otherwise. Else sliding_window may be anything, since the class ignores
 * it.
 */
static inline const int64_t *qwen_windows(struct ctw_config *c, int64_t n_layers,
                                          int64_t absent_first)
{
    bool on = ctw_key_bool(c, "use_sliding_window", false);
    int64_t window = ctw_key_int(c, "sliding_window", 4096, 0, -(1 << 30), 1 << 30);
    int64_t first = ctw_key_int(c, "max_window_layers", absent_first, CTW_NULL_REFUSED, 0, 1 << 20);
    if (on && window < 1 && ctw_key_is_given(c, "sliding_window"))
        ctw_key_fail(c, "sliding_window", CTW_EFORMAT, "found %lld, expected at least 1",
                     (long long)window);
    return ctw_key_windows(c, n_layers, on ? window : 0, &(struct ctw_window_rule){.first = first});
}

/* transformers' defaults for the experts. */
struct qwen_absent {
    int64_t n, chosen, inner;
    bool normalised;
};

/* The experts, without a shared one; their n 0: none. */
static inline struct ctw_experts qwen_experts(struct ctw_config *c, enum ctw_activation act,
                                              const struct qwen_absent *absent)
{
    const char *n_experts = ctw_key_either(c, "num_local_experts", "num_experts");
    return (struct ctw_experts){
        .n = ctw_key_int(c, n_experts, absent->n, CTW_NULL_REFUSED, 0, CTW_MAX_EXPERTS),
        .chosen = ctw_key_int(c, "num_experts_per_tok", absent->chosen, CTW_NULL_REFUSED, 1,
                              CTW_MAX_CHOSEN),
        .inner = ctw_key_int(c, "moe_intermediate_size", absent->inner, CTW_NULL_REFUSED, 1,
                             CTW_MAX_DIM),
        .act = act,
        .router = {.score = CTW_SCORE_SOFTMAX,
                   .normalised = ctw_key_bool(c, "norm_topk_prob", absent->normalised)}};
}

/* The expert that all tokens take, with Qwen's names; `absent`: transformers' default for its
 * width.
 */
static inline void qwen_shared_expert(struct ctw_config *c, struct ctw_experts *x, int64_t absent,
                                      struct ctw_mlp *shared)
{
    *shared = (struct ctw_mlp){.inner = ctw_key_int(c, "shared_expert_intermediate_size", absent,
                                                    CTW_NULL_REFUSED, 1, CTW_MAX_DIM),
                               .act = x->act,
                               .gate = "mlp.shared_expert.gate_proj",
                               .up = "mlp.shared_expert.up_proj",
                               .down = "mlp.shared_expert.down_proj"};
    x->shared = shared;
}

/* Which layers have the n_experts: every decoder_sparse_step-th that mlp_only_layers does not list.
 */
static inline void qwen_sparse_layers(struct ctw_config *c, int64_t n_layers, int64_t n_experts,
                                      bool sparse[CTW_MAX_DECODERS])
{
    const bool *dense = ctw_key_layer_set(c, "mlp_only_layers", n_layers);
    int64_t step = ctw_key_int(c, "decoder_sparse_step", 1, CTW_NULL_REFUSED, 1, 1 << 20);
    for (int64_t i = 0; i < n_layers; i++)
        sparse[i] = n_experts > 0 && (i + 1) % step == 0 && (dense == NULL || !dense[i]);
}

#endif
