/*
 * Lightning attention: linear attention in which each head forgets at a fixed rate. For each head h
 * a state S of [head, head] numbers, which begins with zeros, and each token does
 *     S[i, j] = exp(-rate[h]) S[i, j] + v[i] k[j];   o[i] = scale * sum over j of S[i, j] q[j]
 * and the branch's output is out(sigmoid(gate(n)) * norm(o)), with one norm over all heads, or over
 * each of norm_groups groups of them. q, k and v are qkv(n): of each head q | k | v, after act
 * (by_head: MiniMax), or q of all heads, then k, then v, where q and k are turned, after a norm of
 * each head if there is one (Ling).
 */
#ifndef CTW_WORKER_RECIPE_LIGHTNING_H
#define CTW_WORKER_RECIPE_LIGHTNING_H

#include "worker/model/recipe/parts.h"

enum { CTW_M_LIGHTNING_QKV, CTW_M_LIGHTNING_GATE, CTW_M_LIGHTNING_OUT };
enum { CTW_P_LIGHTNING_QKV, CTW_P_LIGHTNING_GATE, CTW_P_LIGHTNING_OUT };
enum {
    CTW_AT_LIGHTNING = CTW_AT_OWN, /* o */
    CTW_AT_LIGHTNING_Q,            /* heads */
    CTW_AT_LIGHTNING_K
};
enum { CTW_V_LIGHTNING_QKV_BIAS = CTW_V_OWN, CTW_V_LIGHTNING_OUT_BIAS };

struct ctw_lightning {
    int64_t n_head, head; /* head: elements of a query, a key and a value */
    int64_t rate0;        /* of the model's rates, that of the first head, divided by scale */
    float scale;
    int64_t norm_groups;
    bool by_head;
    enum ctw_activation act; /* by_head */
    int rope;                /* otherwise: an index into the model's rope[] */
};

static inline int64_t ctw_lightning_inner(const struct ctw_lightning *x)
{
    return x->n_head * x->head;
}

struct ctw_config;
struct ctw_norm_form;

struct ctw_lightning_names {
    const char *qkv, *gate, *norm, *out;
    const char *q_norm, *k_norm; /* not by_head */
};

/* How a family has it. */
struct ctw_lightning_rules {
    struct ctw_lightning is; /* without rate0; norm_groups and scale of 0: 1 */
    const struct ctw_lightning_names *names;
    const struct ctw_norm_form *norm;    /* of o */
    const struct ctw_norm_form *qk_norm; /* of heads; NULL: none. Not by_head */
    bool qkv_bias, out_bias;
    double rate; /* that of head h is 2^(-8 (h + 1) / n_head) times this */
};

void ctw_describe_lightning(struct ctw_config *c, int64_t i, const struct ctw_lightning_rules *r);

#endif
