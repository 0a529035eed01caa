/*
 * Lightning attention: linear attention in which each head forgets at a fixed rate. With
 * q | k | v of each head = act(qkv(n)), and for each head h a state S of [head, head] numbers,
 * which begins with zeros, each token does
 *     S[i, j] = exp(-rate[h]) S[i, j] + v[i] k[j];   o[i] = sum over j of S[i, j] q[j]
 * and the branch's output is out(sigmoid(gate(n)) * norm(o)), with one norm over all heads.
 */
#ifndef CTW_WORKER_RECIPE_LIGHTNING_H
#define CTW_WORKER_RECIPE_LIGHTNING_H

#include "worker/model/recipe/parts.h"

enum { CTW_M_LIGHTNING_QKV, CTW_M_LIGHTNING_GATE, CTW_M_LIGHTNING_OUT };
enum { CTW_P_LIGHTNING_QKV, CTW_P_LIGHTNING_GATE, CTW_P_LIGHTNING_OUT };
enum { CTW_AT_LIGHTNING = CTW_AT_OWN /* o */ };

struct ctw_lightning {
    int64_t n_head, head; /* head: elements of a query, a key and a value */
    int64_t rate0;        /* of the model's rates, that of the first head */
    enum ctw_activation act;
};

static inline int64_t ctw_lightning_inner(const struct ctw_lightning *x)
{
    return x->n_head * x->head;
}

struct ctw_config;
struct ctw_norm_form;

/* How a family has it, with MiniMax's names. */
struct ctw_lightning_rules {
    int64_t n_head, head;
    enum ctw_activation act;
    const struct ctw_norm_form *norm;
    double rate; /* that of head h is 2^(-8 (h + 1) / n_head) times this */
};

void ctw_describe_lightning(struct ctw_config *c, int64_t i, const struct ctw_lightning_rules *r);

#endif
