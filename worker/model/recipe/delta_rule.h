/*
 * A gated delta rule (Qwen 3.5, Qwen 3 Next): out(norm(delta(q, k, v)) * act(z)), where q | k | v =
 * silu(conv(in(n))), and z, b and a are further products of n. a is a number for each value head,
 * or for each channel of a key head (Kimi Linear); then a, and z, may be products of products of
 * few columns.
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
    CTW_M_DELTA_IN,   /* the rows of q, k, v, z, b and a */
    CTW_M_DELTA_OUT,
    CTW_M_DELTA_Q, /* in files that have q, k and v apart */
    CTW_M_DELTA_K,
    CTW_M_DELTA_V,
    CTW_M_DELTA_A_LOW, /* of few rows, */
    CTW_M_DELTA_Z_LOW  /* which A and Z then read */
};
enum {
    CTW_P_DELTA_IN,  /* q, k, v; and z, unless it is a product of few columns */
    CTW_P_DELTA_OUT, /* here, beside attention's, because layers share the memory of slots */
    CTW_P_DELTA_BA,  /* b; and a, unless by_channel */
    CTW_P_DELTA_LOW, /* with `rank`: a's, then z's, unless z_is_whole */
    CTW_P_DELTA_A,   /* by_channel */
    CTW_P_DELTA_Z    /* with `rank`, unless z_is_whole */
};
enum { CTW_AT_DELTA_HEADS = CTW_AT_OWN /* heads of the rule's output */ };
enum {
    CTW_V_DELTA_CONV = CTW_V_OWN, /* [q, k and v, taps] */
    CTW_V_DELTA_A_LOG,            /* [n_value] */
    CTW_V_DELTA_DT_BIAS           /* [n_value], or by_channel [n_value * key] */
};

struct ctw_delta_rule {
    int n_key, n_value, key, value; /* heads; elements of a head */
    int taps;                       /* of the convolution */
    bool by_head;                   /* columns of q, k, v and z are in the order of key heads */
    bool ba_by_head;                /* the same of b and a */
    bool in_one;                    /* q, k, v, z, b and a are rows of one matrix */
    enum ctw_activation gate;       /* of z */
    bool by_channel, twice;         /* as in struct ctw_op_delta */
    float least_log;
    int rank;        /* columns that a and z are products of; 0: of n. With by_channel */
    bool z_is_whole; /* z is a product of n even so */
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

/* Columns of b and a together. */
static inline int64_t ctw_delta_ba(const struct ctw_delta_rule *d)
{
    return d->n_value * (1 + (d->by_channel ? (int64_t)d->key : 1));
}

static inline int64_t ctw_delta_qkv(const struct ctw_delta_rule *d)
{
    return 2 * ctw_delta_keys(d) + ctw_delta_values(d);
}

struct ctw_config;
struct ctw_norm_form;

/* Describes the mixer of decoder layer i, with Qwen 3.5's names, or, by_head, Qwen 3 Next's, or,
 * in_one, Lara's. */
void ctw_describe_delta_rule(struct ctw_config *c, int64_t i, const struct ctw_delta_rule *d,
                             const struct ctw_norm_form *norm);

/* Names of files that have q, k and v apart: "MODULE.q_proj", "MODULE.q_conv1d.weight". */
struct ctw_delta_names {
    const char *module;
    const char *a;   /* "f": MODULE.f_proj, or, with `rank`, f_a_proj and then f_b_proj; z is "g" */
    const char *out; /* "o_proj" */
};
void ctw_describe_delta_apart(struct ctw_config *c, int64_t i, const struct ctw_delta_rule *d,
                              const struct ctw_norm_form *norm,
                              const struct ctw_delta_names *names);

#endif
