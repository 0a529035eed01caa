/*
 * A gated linear recurrence (Griffin): out(act(y(n)) * lru(conv(x(n)))), where lru is RG-LRU
 * (kernels/lru.h). The gates of a head of channels are two products of the head's own part of
 * conv's output.
 */
#ifndef CTW_WORKER_RECIPE_RECURRENCE_H
#define CTW_WORKER_RECIPE_RECURRENCE_H

#include "worker/model/recipe/parts.h"

enum { CTW_M_LRU_Y, CTW_M_LRU_X, CTW_M_LRU_INPUT, CTW_M_LRU_DECAY, CTW_M_LRU_OUT };
/* The last one and on: a product of each head, input's rows and decay's. */
enum { CTW_P_LRU_IN /* y | x */, CTW_P_LRU_OUT, CTW_P_LRU_GATES };
enum { CTW_MAX_LRU_HEADS = CTW_P_MIX_DOWN - CTW_P_LRU_GATES };
enum {
    CTW_V_LRU_Y_BIAS = CTW_V_OWN,
    CTW_V_LRU_X_BIAS,
    CTW_V_LRU_OUT_BIAS,
    CTW_V_LRU_INPUT_BIAS, /* [n_head, head] */
    CTW_V_LRU_DECAY_BIAS, /* likewise */
    CTW_V_LRU_CONV,       /* [n_head * head, taps] */
    CTW_V_LRU_CONV_BIAS,
    CTW_V_LRU_PARAM /* [n_head * head]: decay of the operation */
};

struct ctw_recurrence {
    int64_t n_head, head; /* of channels */
    int taps;
    enum ctw_activation act;
};

struct ctw_config;

/* Describes the mixer of decoder layer i, with RecurrentGemma's names. n_head: up to
 * CTW_MAX_LRU_HEADS. */
void ctw_describe_recurrence(struct ctw_config *c, int64_t i, const struct ctw_recurrence *x);

#endif
