/*
 * The parts of the kinds of branches (list.h): matrices, products, norms and vectors. A layer has
 * arrays of them in which every branch has a stretch: the branch's role r is at
 * ctw_matrix_at(branch, r), and likewise for the others. The roles below belong to every kind;
 * roles from CTW_.._OWN on belong to the branch's kind, in recipe/KIND.h.
 */
#ifndef CTW_WORKER_RECIPE_PARTS_H
#define CTW_WORKER_RECIPE_PARTS_H

#include "kernels/backend.h"
#include "worker/checkpoint/container/container.h"

enum {
    CTW_MAX_BRANCHES = 4,
    CTW_BRANCH_MATRICES = 18,
    CTW_BRANCH_PRODUCTS = CTW_LAYER_SLOTS / CTW_MAX_BRANCHES,
    CTW_BRANCH_NORMS = 9,
    CTW_BRANCH_VECTORS = 48,
    CTW_N_MATRICES = CTW_MAX_BRANCHES * CTW_BRANCH_MATRICES,
    CTW_N_NORMS = CTW_MAX_BRANCHES * CTW_BRANCH_NORMS,
    CTW_N_VECTORS = CTW_MAX_BRANCHES * CTW_BRANCH_VECTORS
};

/* The branches of most layers. An MLP is branch CTW_MLP even in a layer without a mixer; branch
 * CTW_MIXER then has no kind. */
enum { CTW_MIXER, CTW_MLP, CTW_OWN_INPUT, CTW_NGRAM = CTW_OWN_INPUT };

/* Where a branch normalises. */
enum {
    CTW_AT_IN,  /* the residual, for the branch */
    CTW_AT_OUT, /* the branch's output, before it is added to the residual */
    CTW_AT_SUM, /* the residual itself, afterwards */
    CTW_AT_OWN,
    /* of layers with the usual branches */
    CTW_AT_MIXER = CTW_MIXER * CTW_BRANCH_NORMS + CTW_AT_IN,
    CTW_AT_MIXER_OUT = CTW_MIXER * CTW_BRANCH_NORMS + CTW_AT_OUT,
    CTW_AT_MIXER_SUM = CTW_MIXER * CTW_BRANCH_NORMS + CTW_AT_SUM,
    CTW_AT_MLP = CTW_MLP * CTW_BRANCH_NORMS + CTW_AT_IN,
    CTW_AT_MLP_OUT = CTW_MLP * CTW_BRANCH_NORMS + CTW_AT_OUT,
    CTW_AT_MLP_SUM = CTW_MLP * CTW_BRANCH_NORMS + CTW_AT_SUM,
    /* the embedding's and the head's, of whose layers the only branch is the first */
    CTW_AT_EMBED = CTW_AT_SUM,
    CTW_AT_HEAD = CTW_AT_IN,
    CTW_AT_INPUTS = CTW_AT_OWN /* each decoder layer's projected input */
};

/* A branch's vectors. */
enum {
    CTW_V_WEIGHT,                                 /* + a place: the norm's weight */
    CTW_V_BIAS = CTW_V_WEIGHT + CTW_BRANCH_NORMS, /* + a place: the norm's bias */
    CTW_V_SCALAR = CTW_V_BIAS + CTW_BRANCH_NORMS, /* [1]: see struct ctw_branch */
    CTW_V_FACTOR,                                 /* [1]: times the branch's factor */
    CTW_V_OUT_CONV,     /* [hidden, taps]: of the branch's output, see struct ctw_branch */
    CTW_V_BLEND,        /* [hidden]: weights of what the branch reads of sums of blocks: these */
    CTW_V_BLEND_FACTOR, /* [1, hidden]: times these, if there are any */
    CTW_V_MIX_FN,       /* of several residual streams (residual.h); also of the head's layer */
    CTW_V_MIX_BASE,
    CTW_V_MIX_SCALE,
    CTW_V_OWN,
    CTW_V_HEAD_BIAS = CTW_V_OWN /* of the head's layer */
};

/*
 * The matrices and products of residual streams that are mixed by gates (residual.h), also of the
 * head's layer: the last ones of every branch. Kinds of branches that have as many products
 * (pooled.h) have other residual streams.
 */
enum { CTW_M_MIX_DOWN = CTW_BRANCH_MATRICES - 3, CTW_M_MIX_INJECT, CTW_M_MIX_UP };
enum { CTW_P_MIX_DOWN = CTW_BRANCH_PRODUCTS - 2 /* down, and inject */, CTW_P_MIX_UP };

/* Matrices of the embedding's and the head's layers. */
enum {
    CTW_M_EMBED,
    CTW_M_POSITIONS,   /* learned positions */
    CTW_M_EMBED_PROJ,  /* from the embedding's width to the model's; in the last layer: back */
    CTW_M_INPUT_EMBED, /* embeddings of all layers' own inputs, side by side */
    CTW_M_INPUTS_PROJ, /* from the embedding to all layers' own inputs */
    CTW_M_ALTUP,       /* and on: from the embedding to streams, in the last layer: from these */
    CTW_M_HEAD = CTW_M_EMBED
};
/* Products of these layers. */
enum { CTW_P_WIDTH, CTW_P_INPUTS, CTW_P_ALTUP /* in the last layer: and on */ };

static inline int ctw_matrix_at(int branch, int role)
{
    return branch * CTW_BRANCH_MATRICES + role;
}

static inline int ctw_product_at(int branch, int product)
{
    return branch * CTW_BRANCH_PRODUCTS + product;
}

static inline int ctw_norm_at(int branch, int place)
{
    return branch * CTW_BRANCH_NORMS + place;
}

static inline int ctw_vector_at(int branch, int role)
{
    return branch * CTW_BRANCH_VECTORS + role;
}

/* The vectors of a norm of the layer. */
static inline int ctw_norm_weight(int place)
{
    return ctw_vector_at(place / CTW_BRANCH_NORMS, CTW_V_WEIGHT + place % CTW_BRANCH_NORMS);
}

static inline int ctw_norm_bias(int place)
{
    return ctw_vector_at(place / CTW_BRANCH_NORMS, CTW_V_BIAS + place % CTW_BRANCH_NORMS);
}

/* The matrices of one expert. */
enum ctw_expert_role {
    CTW_X_GATE,
    CTW_X_UP,
    CTW_X_DOWN,
    CTW_X_GATE_UP, /* gate and up in one matrix */
    CTW_N_EXPERT_MATRICES
};

struct ctw_matrix {
    char *name; /* "model.layers.0.self_attn.q_proj"; NULL: the layer has none */
    struct ctw_weight weight;
    const struct ctw_tensor *part[CTW_N_PARTS]; /* NULL: absent */
    struct ctw_quantise input;  /* the quantisation of the matrix's input; codes NONE: not
                                   quantised */
    struct ctw_quantise output; /* likewise of its output, bias included */
    /* The tensors that `input` and `output` were read from, or NULL. */
    const struct ctw_tensor *input_part[2], *output_part;
    int rotate_in, rotate_out; /* rotations of the matrix's input, before quantisation, and of
                                  its output: 1 + an index of the model's rotations; 0: none */
    /* The tensors are stacks of n_stacked matrices, and this is matrix number `at`: `weight`
     * describes its part. 0: the tensors hold this matrix alone. */
    int64_t n_stacked, at;
    bool flat; /* the stack's values have two dimensions: one matrix's rows after another's */
};

/* Rows of one of a layer's matrices, or of an expert's, as a shard of a product. */
struct ctw_rows {
    int matrix; /* of the layer, or a ctw_expert_role */
    int64_t row0, n;
    int bias;     /* the layer's vector, of all rows of the matrix; -1: none */
    int64_t step; /* from row to row, in matrix and bias; 0: 1 */
};

/* A product of a layer: its shards, in the order of the output's columns. All of worker/ reads a
 * layer's products from here. */
struct ctw_product {
    int n_shards; /* 0: the layer has no such product */
    struct ctw_rows shard[CTW_MAX_SHARDS];
};

struct ctw_norm_rule {
    bool present;
    enum ctw_norm_kind kind;
    float eps, offset; /* offset: added to the weight */
};

/* Queries, keys and values that a file may quantise, after RoPE. */
enum ctw_heads { CTW_HEADS_K, CTW_HEADS_V, CTW_HEADS_Q, CTW_N_HEADS };

struct ctw_heads_input {
    struct ctw_quantise how;          /* codes NONE: these heads are not quantised */
    float *scale, *zero;              /* [heads]: in place of how's; NULL: not */
    const struct ctw_tensor *part[2]; /* the tensors that these were read from, or NULL */
};

/* What a file does to heads after RoPE. */
struct ctw_head_inputs {
    struct ctw_heads_input of[CTW_N_HEADS];
    int rotate_q, rotate_k; /* 1 + an index of the model's rotations; 0: not rotated */
};

#endif
