/*
 * A gated delta rule (Qwen 3.5, Qwen 3 Next): out(norm(delta(q, k, v)) * act(z)), where q | k | v =
 * silu(conv(in(n))), and z, b and a are further products of n.
 */
#ifndef CTW_WORKER_RECIPE_DELTA_RULE_H
#define CTW_WORKER_RECIPE_DELTA_RULE_H

#include "worker/model/recipe/parts.h"

enum {
    CTW_M_DELTA_QKV,
    CTW_M_DELTA_Z,
    CTW_M_DELTA_B,
    CTW_M_DELTA_A,
    CTW_M_DELTA_QKVZ, /* q, k, v and z in one matrix: for each key head, its rows of each */
    CTW_M_DELTA_BA,   /* likewise */
    CTW_M_DELTA_OUT
};
enum { CTW_P_DELTA_IN, CTW_P_DELTA_BA, CTW_P_DELTA_OUT };
enum { CTW_AT_DELTA_HEADS = CTW_AT_OWN /* heads of the rule's output */ };
enum {
    CTW_V_DELTA_CONV = CTW_V_OWN, /* [q, k and v, taps] */
    CTW_V_DELTA_A_LOG,            /* [n_value] */
    CTW_V_DELTA_DT_BIAS           /* [n_value] */
};

struct ctw_delta_rule {
    int n_key, n_value, key, value; /* heads; elements of a head */
    int taps;                       /* of the convolution */
    bool by_head;                   /* products' columns are in the order of key heads */
    enum ctw_activation gate;       /* of z */
};

/* Elements of a token's q, k or both, and v. */
static inline int64_t ctw_delta_keys(const struct ctw_delta_rule *d)
{
    return (int64_t)d->n_key * d->key;
}

static inline int64_t ctw_delta_values(const struct ctw_delta_rule *d)
{
    return (int64_t)d->n_value * d->value;
}

static inline int64_t ctw_delta_qkv(const struct ctw_delta_rule *d)
{
    return 2 * ctw_delta_keys(d) + ctw_delta_values(d);
}

struct ctw_config;
struct ctw_norm_form;

/* Describes the mixer of decoder layer i, with Qwen 3.5's names, or, by_head, Qwen 3 Next's. */
void ctw_describe_delta_rule(struct ctw_config *c, int64_t i, const struct ctw_delta_rule *d,
                             const struct ctw_norm_form *norm);

#endif
