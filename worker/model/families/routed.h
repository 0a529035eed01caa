/*
 * The mixture of DeepSeek-V3's descendants: sigmoid scores, a bias that corrects the choice only,
 * groups of experts, and a shared expert of one or more experts' width.
 */
#ifndef CTW_WORKER_ROUTED_H
#define CTW_WORKER_ROUTED_H

#include "worker/model/families/family.h"

/* transformers' defaults; CTW_NULL_REFUSED: there is none, the file must have the key. */
struct routed_absent {
    int64_t n, chosen, inner;
    int64_t n_shared;
    bool normalised;
    double scale;                     /* 0: 1 */
    const char *n_key, *n_shared_key; /* further names of the keys, which win; NULL: none */
};

struct routed {
    struct ctw_experts experts;
    struct ctw_mlp shared;
};

static inline int64_t routed_key(struct ctw_config *c, const char *name, int64_t absent,
                                 int64_t least, int64_t most)
{
    if (absent == CTW_NULL_REFUSED && !ctw_key_is_given(c, name))
        ctw_key_fail(c, name, CTW_EFORMAT, "expected a number");
    return ctw_key_int(c, name, absent, CTW_NULL_REFUSED, least, most);
}

/* Reads the router's and the experts' keys; n_shared_experts is the caller's. */
static inline struct routed routed_keys(struct ctw_config *c, const struct routed_absent *absent,
                                        enum ctw_activation act)
{
    static const char correction[] = "mlp.gate.e_score_correction_bias";
    const char *n_key = ctw_key_either(c, "n_routed_experts", "num_local_experts");
    if (absent->n_key != NULL)
        n_key = ctw_key_either(c, n_key, absent->n_key);
    int64_t n = routed_key(c, n_key, absent->n, 1, CTW_MAX_EXPERTS);
    int64_t chosen = routed_key(c, "num_experts_per_tok", absent->chosen, 1, CTW_MAX_CHOSEN);
    int64_t inner =
        ctw_key_int(c, "moe_intermediate_size", absent->inner, CTW_NULL_REFUSED, 1, 1 << 24);
    int64_t n_groups = ctw_key_int(c, "n_group", 1, 1, 1, CTW_MAX_EXPERTS);
    int64_t kept = ctw_key_int(c, "topk_group", 1, 1, 1, CTW_MAX_EXPERTS);
    bool normalised = ctw_key_bool(c, "norm_topk_prob", absent->normalised);
    double scale = ctw_key_number(c, "routed_scaling_factor",
                                  absent->scale != 0 ? absent->scale : 1, 1, 1e-6, 1e6);
    return (struct routed){
        .experts = {.n = n,
                    .chosen = chosen,
                    .inner = inner,
                    .act = act,
                    .router = {.correction = correction,
                               .score = CTW_SCORE_SIGMOID,
                               .n_groups = n_groups,
                               .kept_groups = kept,
                               .group_best = 2,
                               .normalised = normalised,
                               .sum_add = 1e-20,
                               .scale = scale}},
        .shared = {.act = act,
                   .gate = "mlp.shared_experts.gate_proj",
                   .up = "mlp.shared_experts.up_proj",
                   .down = "mlp.shared_experts.down_proj"},
    };
}

/* Reads n_shared_experts. */
static inline void routed_key_shared(struct ctw_config *c, const struct routed_absent *absent,
                                     struct routed *r)
{
    const char *key = "n_shared_experts";
    if (absent->n_shared_key != NULL)
        key = ctw_key_either(c, key, absent->n_shared_key);
    int64_t n = routed_key(c, key, absent->n_shared, 0, 1024);
    r->shared.inner = n * r->experts.inner;
}

static inline void routed_describe(struct ctw_config *c, int64_t i, const struct routed *r)
{
    struct ctw_experts experts = r->experts;
    experts.shared = r->shared.inner > 0 ? &r->shared : NULL;
    ctw_describe_experts(c, i, &experts);
}

#endif
