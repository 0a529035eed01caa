/*
 * The memory planner: how many tokens go through the model together, and how much memory that takes
 * beyond the weights. No decision of the planner can change a score.
 */
#ifndef CTW_WORKER_PLAN_H
#define CTW_WORKER_PLAN_H

#include "worker/engine/pass/carry.h"
#include "worker/engine/place/machine.h"
#include "worker/model/model.h"

/* Tokens of a pass, at most. */
enum { CTW_PLAN_PASS_MOST = 1 << 30 };

struct ctw_plan_request {
    const struct ctw_model *model;
    const struct ctw_backend *backend;
    enum ctw_dtype dtype;
    uint64_t memory_limit;             /* bytes */
    bool limit_is_free;                /* ... that were free, so that a message says so */
    int64_t longest;                   /* model-input tokens of the longest sequence */
    int64_t total;                     /* model-input tokens of all sequences together, shared
                                          ones once; or scored rows, if they are more */
    int64_t chunk_tokens, pass_tokens; /* 0: the planner decides */
    bool shares;         /* sequences share beginnings: plan for more of the carry if it fits */
    int64_t trunk;       /* tokens of the longest beginning that passes may share; 0: none */
    bool follows;        /* passes follow that `total` does not count */
    int64_t hide_tokens; /* tokens of a pass that hides the reading of streamed weights; 0:
                            weights are not streamed */
};

struct ctw_plan {
    int64_t chunk_tokens; /* tokens that go through a layer's operations together */
    int64_t pass_tokens;  /* tokens that go through the layers together */
    int64_t expert_rows;  /* rows of an expert's products */
    int64_t carry_rows;   /* rows of the carry for a layer, without the trunk's: see layout.h */
    int64_t states;       /* of each carry that is a state; 0: no carry is. With a trunk, there are
                             two more */
    int64_t longest;      /* positions of the RoPE tables */
    /* of a trunk (trie.h): at most, 0: no pass leaves a trunk; at least */
    int64_t trunk_tokens, trunk_from;
    /* bytes */
    size_t residual, activations, tables, scratch;
    size_t wide;                 /* part of activations */
    size_t inputs;               /* of a pass: the layers' own inputs */
    size_t carry[CTW_N_CARRIES]; /* by array: carry.h */
    size_t carried;              /* all of these together */
    size_t trunk;
    /* of mixtures of experts, see struct ctw_forward: choices: four arrays of so many bytes */
    size_t mixed, sum, logits, factor, identity, choices, starts;
    size_t gathered; /* host memory: a chunk's rows of a table */
    size_t total;
};

/* CTW_ENOMEM: even the smallest plan exceeds the limit; the message says how much memory it needs,
 * and how long a sequence may be to fit. */
enum ctw_status ctw_plan_make(struct ctw_plan *out, const struct ctw_plan_request *request,
                              struct ctw_err *err) CTW_MUST_CHECK;

/* The longest sequence, of at most request->longest tokens, that fits alone in a pass; 0: none. */
int64_t ctw_plan_longest(const struct ctw_plan_request *request);

/* Writes a product's shards without addresses; returns their number. */
int ctw_plan_shards(const struct ctw_model *model, const struct ctw_product *p,
                    const struct ctw_matrix *matrices, struct ctw_shard shards[CTW_MAX_SHARDS]);
/* The memory that the operations of this plan need from the backend. */
/* Of the head's weights and input, for activations of a dtype. */
static inline enum ctw_dtype ctw_plan_head_dtype(const struct ctw_model *model,
                                                 enum ctw_dtype dtype)
{
    return model->wide_head ? CTW_F32 : dtype;
}

struct ctw_reserve ctw_plan_reserve(const struct ctw_model *model, enum ctw_dtype dtype,
                                    const struct ctw_plan *plan);

/* The memory that is available now, on this machine and within the process's control groups. */
uint64_t ctw_plan_available(void);

/* The input count above which a sequence takes RoPE's frequencies for long ones; 0: no RoPE has
 * them. */
int64_t ctw_plan_long_from(const struct ctw_model *model);
/* Rows of the RoPE tables: those of short sequences, then those of long ones. */
int64_t ctw_plan_rope_rows(const struct ctw_model *model, int64_t longest);

/* Columns of a product. */
int64_t ctw_plan_columns(const struct ctw_product *p);

/* Floating-point operations per token: of all linear layers without the head, and of the head; of
 * one decoder layer's without its experts, and of one of its experts. Attention does not count, and
 * of the experts only the chosen ones do. */
double ctw_plan_layer_flops(const struct ctw_model *model);
double ctw_plan_token_flops(const struct ctw_model *model, const struct ctw_layer *l);
double ctw_plan_expert_flops(const struct ctw_layer *l);
double ctw_plan_head_flops(const struct ctw_model *model);
/* Of attention, for a query that sees so many keys. */
double ctw_plan_attention_flops(const struct ctw_model *model, int64_t n_keys);

/* The cost of a sequence in floating-point operations: per token, per pair of a query and a key
 * that the query sees (windows are ignored), and per target. */
struct ctw_cost {
    double token, pair, target;
};

struct ctw_cost ctw_plan_cost(const struct ctw_model *model);

static inline double ctw_cost_of(const struct ctw_cost *c, int64_t n_tok, int64_t n_targets)
{
    double n = (double)n_tok;
    return c->token * n + c->pair * n * (n + 1) / 2 + c->target * (double)n_targets;
}

#endif
