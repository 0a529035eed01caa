/*
 * Latent attention (MLA): keys and values are products of a latent. The last `turning` elements of
 * a head are rotated; those of a key are the same in all heads.
 */
#ifndef CTW_WORKER_RECIPE_LATENT_H
#define CTW_WORKER_RECIPE_LATENT_H

#include "worker/model/recipe/parts.h"

enum {
    CTW_M_LATENT_Q, /* queries, without a latent of theirs */
    CTW_M_Q_A,      /* to the queries' latent, */
    CTW_M_Q_B,      /* from it to the queries */
    CTW_M_KV_A,     /* to the keys' and values' latent, and the part of keys that turns */
    CTW_M_KV_B,     /* from the latent to the keys' own parts and the values */
    CTW_M_LATENT_O,
    CTW_M_INDEX_Q,       /* the indexer: from the queries' latent to its queries, */
    CTW_M_INDEX_K,       /* to its keys, */
    CTW_M_INDEX_WEIGHTS, /* to the weights of its heads */
    CTW_M_LATENT_GATE,   /* of attention's output */
    CTW_M_INDEX_POOL     /* to the gates of the sums that are the keys of pools */
};
/* CTW_P_LATENTS: all products of the branch's input, without queries that have no latent */
enum {
    CTW_P_LATENTS,
    CTW_P_LATENT_O,
    CTW_P_Q_B,
    CTW_P_KV_B,
    CTW_P_INDEX_Q,
    CTW_P_LATENT_GATE,
    CTW_P_INDEX_POOL
};
enum { CTW_AT_Q_A = CTW_AT_OWN, CTW_AT_KV_A, CTW_AT_INDEX_K };
enum {
    CTW_V_Q_A_BIAS = CTW_V_OWN,
    CTW_V_KV_A_BIAS,
    CTW_V_LATENT_O_BIAS,
    CTW_V_LATENT_SINKS, /* [n_head] */
    CTW_V_INDEX_POOL    /* [pool, head]: of the gates, by the token's place in its pool */
};

/*
 * Sparse attention: a query sees the best `chosen` keys alone (struct ctw_op_index). With `pool`,
 * it chooses among whole pools of so many tokens, whose keys are sums of their tokens' keys (struct
 * ctw_op_pool), and sees the tokens behind the last whole pool in any case.
 */
struct ctw_indexer {
    int64_t chosen;   /* 0: all keys; a multiple of `pool` */
    int pool;         /* tokens; 0: the query chooses among tokens */
    bool shared;      /* the layer uses the choice of the last layer that made a choice; the rest
                         is not set */
    int n_head, head; /* of the indexer's queries; it has one key per token */
    int rope;         /* index into the model's rope[], of the heads' first elements; -1: none */
    bool turns_last;  /* of the heads' last elements */
};

struct ctw_latent {
    int n_head, head, head_v; /* heads; elements of a query or key head, of a value head */
    int turning;
    int64_t q_rank; /* elements of the queries' latent; 0: none */
    int64_t kv_rank;
    float kv_factor;         /* of their latent, after its norm */
    int rope;                /* index into the model's rope[]; -1: none */
    bool q_factors;          /* queries are multiplied by the model's q_factor of their position */
    float scale;             /* of q k^T */
    enum ctw_gate_kind gate; /* of attention's output, by the product CTW_P_LATENT_GATE of what the
                                branch reads: */
    int64_t n_gates;         /* of each head, or of each value */
    struct ctw_indexer index;
    struct ctw_head_inputs inputs;
};

/* Does transformers' cache hold the layer's latents, and not keys and values made of them? Not with
 * sparse attention. */
static inline bool ctw_latent_is_cached(const struct ctw_latent *x)
{
    return x->index.chosen == 0;
}

#endif
