/* The operations of mixtures of experts beside their products: which experts a row goes to, and
 * which rows an expert has. Part of operations.h. */
#ifndef CTW_KERNELS_ROUTING_H
#define CTW_KERNELS_ROUTING_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/dtype.h"

/* From the logits l of all experts: their scores s. */
enum ctw_score {
    CTW_SCORE_SOFTMAX,        /* softmax over all experts */
    CTW_SCORE_SOFTMAX_CHOSEN, /* softmax over the chosen ones; the choice is by the logits */
    CTW_SCORE_SIGMOID,
    CTW_SCORE_SQRT_SOFTPLUS, /* sqrt(ln(1 + e^l)) */
    CTW_SCORE_SPARSEMIXER    /* of two chosen experts: see ctw_route_rule */
};

/*
 * How a router chooses.
 *     l = factor * logits, or cap(factor * logits) with a softcap
 *     choice = s + correction, or l with neither correction nor groups, as s increases with l
 *     with `corrects_logits`, without groups: choice = l + correction
 * With groups (of n_experts / n_groups neighbours), only the experts of the `kept_groups` groups
 * with the largest sums of their `group_best` (1 or 2) largest choices can be chosen. The `chosen`
 * experts with the largest choices are chosen, largest first; the lower expert (group) on a tie.
 * With `always`, the last `always` experts are chosen after the others, which are chosen from the
 * rest; correction has no numbers for them.
 *     weight = s of the chosen
 *     with `normalised`: weight = weight / max(sum over the chosen + sum_add, sum_least)
 *     weight = weight * scale * expert_scale[expert]
 *
 * With a table of tokens, a row's token chooses in place of the router: ids = table[token].
 *
 * CTW_SCORE_SPARSEMIXER: the first expert is the one with the largest logit m; its weight is its
 * softmax among the experts with (m - l) / max(|l|, m) <= 2 jitter. The second is the same among
 * the others. No groups, correction or normalisation.
 */
struct ctw_route_rule {
    enum ctw_score score;
    int n_experts, chosen;     /* chosen: 1..CTW_MAX_CHOSEN */
    int always;                /* of these; without groups and a table */
    int n_groups, kept_groups; /* n_groups 0: none */
    int group_best;
    bool corrects_logits;
    bool normalised;
    float sum_add, sum_least;
    float factor, softcap; /* factor 0: 1; softcap 0: none, else softcap * tanh(l / softcap) */
    float scale;           /* 0: 1 */
    float jitter;
    int n_identity; /* the last experts, which give what they read: see ctw_op_route */
};

enum { CTW_MAX_CHOSEN = 64, CTW_MAX_EXPERTS = 4096 };

/*
 * Chooses experts for each row. Results are fp32, from scores in fp32 or better. A row with a logit
 * that is NaN or +infinity, or with none that is finite, has the experts 0 .. chosen-1 and weights
 * of NaN.
 */
struct ctw_op_route {
    struct ctw_route_rule rule;
    int64_t n_tok;
    const float *logits;    /* device [n_tok, n_experts] */
    const void *correction; /* device [n_experts - always] of its dtype, or NULL */
    const void *expert_scale;
    enum ctw_dtype correction_dtype, expert_scale_dtype;
    /* device [.., chosen] of I32 or I64, numbers below n_experts, or NULL; for scores that each
     * expert has by itself, without groups or correction. May be unaligned. */
    const void *table;
    enum ctw_dtype table_dtype;
    const int32_t *tokens; /* device [n_tok], rows of the table; with a table */
    int32_t *ids;          /* device [n_tok, chosen] */
    float *weights;        /* device [n_tok, chosen] */
    float *identity;       /* device [n_tok]: the sum of the weights of the chosen experts that are
                              among the last n_identity, in the order of the choice; NULL: unwanted */
};

/* Number i of a table of I32 or I64, none of which is negative or needs more than 31 bits. */
CTW_HD int32_t ctw_route_entry(const void *table, enum ctw_dtype dtype, int64_t i)
{
    const uint8_t *p = (const uint8_t *)table + (dtype == CTW_I64 ? 8 : 4) * i;
    return (int32_t)((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 |
                     (uint32_t)p[3] << 24);
}

/*
 * Sorts the choices of all rows by expert, and within an expert by row: start[e] .. start[e + 1] -
 * 1 are expert e's, each a row and its weight.
 */
struct ctw_op_group {
    int n_experts, chosen;
    int64_t n_tok;        /* n_tok * chosen < 2^31 */
    const int32_t *ids;   /* device [n_tok, chosen], as of ctw_route(): none twice in a row */
    const float *weights; /* device [n_tok, chosen] */
    int32_t *rows;        /* device [n_tok * chosen] */
    float *row_weights;   /* device [n_tok * chosen] */
    int32_t *start;       /* device [n_experts + 1] */
};

#endif
