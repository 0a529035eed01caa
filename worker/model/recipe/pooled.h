/*
 * Attention over pooled keys and a window (DeepSeek V4): keys of blocks of tokens beside those of
 * the last tokens (kernels/pool.h). Queries are products of a latent. There is one key head, whose
 * keys are the values, and the last `turning` elements of heads are rotated, those of attention's
 * output back. Groups of output heads have products of their own, side by side, whose outputs
 * together have another one.
 */
#ifndef CTW_WORKER_RECIPE_POOLED_H
#define CTW_WORKER_RECIPE_POOLED_H

#include "worker/model/recipe/latent.h"

enum {
    CTW_M_POOLED_Q_A, /* to the queries' latent, from it to the queries */
    CTW_M_POOLED_Q_B,
    CTW_M_POOLED_KV,
    CTW_M_POOLED_X, /* of blocks' tokens, and the gates of their sums */
    CTW_M_POOLED_GATE,
    CTW_M_POOLED_O_A, /* of the groups' heads, one group's rows behind another's */
    CTW_M_POOLED_O_B,
    CTW_M_POOLED_INDEX_Q, /* the indexer, as latent attention's; its keys are pooled, too */
    CTW_M_POOLED_INDEX_X,
    CTW_M_POOLED_INDEX_GATE,
    CTW_M_POOLED_INDEX_WEIGHTS
};
enum { CTW_MAX_O_GROUPS = 16 };
enum {
    CTW_P_POOLED_LATENT, /* the queries' latent, and the weights of the indexer's heads */
    CTW_P_POOLED_KV,
    CTW_P_POOLED_X, /* x | gate */
    CTW_P_POOLED_INDEX_X,
    CTW_P_POOLED_Q_B,
    CTW_P_POOLED_INDEX_Q,
    CTW_P_POOLED_O_B,
    CTW_P_POOLED_O_A, /* + a group */
    CTW_P_AFTER_POOLED = CTW_P_POOLED_O_A + CTW_MAX_O_GROUPS
};
_Static_assert((int)CTW_P_AFTER_POOLED <= (int)CTW_BRANCH_PRODUCTS, "a branch's products");
enum {
    CTW_AT_POOLED_Q_A = CTW_AT_OWN,
    CTW_AT_POOLED_Q, /* each query head */
    CTW_AT_POOLED_KV,
    CTW_AT_POOLED_X, /* a block's key */
    CTW_AT_POOLED_INDEX_X
};
enum {
    CTW_V_POOLED_SINKS = CTW_V_OWN, /* [n_head] */
    CTW_V_POOLED_BIAS,              /* [block, columns of x]: of the gates, by the token's place */
    CTW_V_POOLED_INDEX_BIAS
};

struct ctw_pooled {
    int n_head, head, turning;
    int64_t q_rank;
    int64_t window; /* tokens that a query sees, its own included */
    int64_t block;  /* tokens of a block; 0: a query sees the window alone */
    bool overlaps;  /* a block's key is also made of the tokens of the block before */
    int rope;       /* index into the model's rope[] */
    float scale;    /* of q k^T */
    int o_groups;
    int64_t o_rank;           /* of each group */
    struct ctw_indexer index; /* of blocks; chosen 0: none. Its heads turn as the others */
};

/* Columns of x, and as many gates, of keys of `dim` elements. */
static inline int64_t ctw_pooled_columns(const struct ctw_pooled *x, int64_t dim)
{
    return (x->overlaps ? 2 : 1) * dim;
}

struct ctw_config;
struct ctw_norm_form;

/* Layer i's, with DeepSeek V4's names; `norm` is the form of all its norms. */
void ctw_describe_pooled(struct ctw_config *c, int64_t i, const struct ctw_pooled *x,
                         const struct ctw_norm_form *norm);

#endif
