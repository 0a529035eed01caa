/* Softmax attention with grouped heads. */
#ifndef CTW_WORKER_RECIPE_ATTENTION_H
#define CTW_WORKER_RECIPE_ATTENTION_H

#include "worker/model/recipe/parts.h"

enum {
    CTW_M_Q,
    CTW_M_K,
    CTW_M_V,
    CTW_M_O,
    CTW_M_QKV,        /* q, k and v in one matrix */
    CTW_M_HEADS_GATE, /* of attention's output */
    CTW_M_ADAPT_Q_IN, /* adapters of q, k and v: to their rank, */
    CTW_M_ADAPT_K_IN,
    CTW_M_ADAPT_V_IN,
    CTW_M_ADAPT_Q, /* and from there */
    CTW_M_ADAPT_K,
    CTW_M_ADAPT_V,
    CTW_M_BLOCK_Q,                /* which blocks of keys a query sees: the queries and */
    CTW_M_BLOCK_K,                /* the key of the choice */
    CTW_M_RELATIVE,               /* the queries' states of a learned bias */
    CTW_M_POOL_QK = CTW_M_BLOCK_Q /* the queries and the key of the choice in one matrix */
};
enum {
    CTW_P_QKV, /* behind q, k and v with blocks: the queries and the key of the choice; with a
                  learned bias: the queries' states */
    CTW_P_O,
    CTW_P_HEADS_GATE,
    CTW_P_ADAPT_IN, /* of q, k and v */
    CTW_P_ADAPT_Q,
    CTW_P_ADAPT_K,
    CTW_P_ADAPT_V
};
enum {
    CTW_AT_Q = CTW_AT_OWN, /* heads */
    CTW_AT_K,
    CTW_AT_V,
    CTW_AT_HEADS_OUT, /* attention's output, before o */
    CTW_AT_BLOCK_Q,   /* heads of the choice of blocks */
    CTW_AT_BLOCK_K
};
enum {
    CTW_V_Q_BIAS = CTW_V_OWN,
    CTW_V_K_BIAS,
    CTW_V_V_BIAS,
    CTW_V_O_BIAS,
    CTW_V_QKV_BIAS,
    CTW_V_SINKS,    /* [n_head] */
    CTW_V_RELATIVE, /* [rank, extent]: of a learned bias */
    CTW_V_K_CONV,   /* [n, taps]: of keys and values */
    CTW_V_V_CONV
};

enum ctw_head_norms {
    CTW_HEADS_ALIKE, /* each head by itself, all with one row of weights */
    CTW_HEADS_OWN,   /* each head by itself, with its own weights */
    CTW_HEADS_WIDE   /* all heads of a token together */
};

/* Block-sparse attention (struct ctw_op_blocks): the queries of a key head see the blocks of keys
 * that its head of the choice chooses, which has the RoPE of the layer's heads. */
struct ctw_block_choice {
    int64_t block;         /* keys; 0: all keys are seen */
    int64_t chosen, local; /* blocks */
    int head;              /* elements of a head */
};

/*
 * Attention over chosen pools of keys: a query sees the best `chosen` keys, in whole pools, and
 * those behind the last whole pool (struct ctw_op_index). A pool's key of the choice is the norm of
 * the mean of its tokens', turned as the pool's first. The heads of the choice have the RoPE of the
 * layer's heads, and one key.
 */
struct ctw_pool_choice {
    int64_t chosen;   /* keys, a multiple of `pool`; 0: all keys are seen */
    int pool;         /* tokens */
    int n_head, head; /* queries of the choice; elements of a head */
    bool apart;       /* queries and key are two matrices, as in GGUF files */
};

/* A learned bias of scores by distance (struct ctw_relative). */
struct ctw_relative_bias {
    int rank; /* 0: none */
    int64_t extent;
    bool factors; /* the bias is multiplied as queries are by q_factors */
};

/* o(heads_out_norm(gate * attention(q, k, v))); with adapters, q, k and v of n are each the product
 * plus adapt(adapt_in(n)). */
struct ctw_attention {
    int n_head, n_kv, head;  /* heads, key-value heads, elements of a head */
    int head_v;              /* elements of a value head */
    int64_t window;          /* keys visible to a query, its own included; 0: all */
    int64_t chunk;           /* a query sees its own chunk of so many positions; 0: all */
    float v_factor;          /* of values; 0: 1 */
    enum ctw_gate_kind gate; /* of attention's output, by the product CTW_P_HEADS_GATE of what the
                                branch reads, or */
    bool gate_in_q;          /* by the columns of the product behind each query head, as many */
    int rope;                /* index into the model's rope[]; -1: none */
    bool q_factors;          /* queries are multiplied by the model's q_factor of their position */
    float scale;             /* of q k^T */
    float softcap;           /* 0: none */
    float limit;             /* q, k and v are clamped to -limit..limit; 0: they are not */
    bool limits_normed;      /* after the norms of q and k, not before */
    struct ctw_qkv_columns columns; /* of the product */
    enum ctw_head_norms head_norms;
    bool norms_after_rope;
    struct ctw_block_choice choice;
    struct ctw_pool_choice pools;
    struct ctw_relative_bias relative;
    int conv_taps; /* keys and values are those of the product plus their convolutions; 0: not */
    int64_t adapter_rank; /* of q's, of k's and of v's adapter; 0: there are none */
    struct ctw_head_inputs inputs;
    int keeps_kv; /* the model's kept keys and values: this layer writes them; -1: it does not */
    int uses_kv;  /* likewise: this layer has none of its own and reads them; -1: it has its own */
};

#endif
