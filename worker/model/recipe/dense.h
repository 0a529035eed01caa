/* A dense MLP: down(inner_norm(act(cut(gate(n))) * up(n))); without a gate, act(up(n)). */
#ifndef CTW_WORKER_RECIPE_DENSE_H
#define CTW_WORKER_RECIPE_DENSE_H

#include "worker/model/recipe/parts.h"

/* The roles of a dense MLP; those of a mixture's shared expert are equal. */
enum {
    CTW_M_GATE,
    CTW_M_UP,
    CTW_M_DOWN,
    CTW_M_GATE_UP, /* gate and up in one matrix */
    CTW_M_AFTER_DENSE
};
enum { CTW_P_GATE_UP /* or up alone */, CTW_P_DOWN, CTW_P_AFTER_DENSE };
/* The adapter of gate and up, to its rank and from there; a mixture has none. */
enum { CTW_M_ADAPT_UP_IN = CTW_M_AFTER_DENSE, CTW_M_ADAPT_UP };
enum { CTW_P_ADAPT_UP_IN = CTW_P_AFTER_DENSE, CTW_P_ADAPT_UP };
enum { CTW_AT_INNER = CTW_AT_OWN /* the inner activations, before down */, CTW_AT_AFTER_DENSE };
enum {
    CTW_V_GATE_BIAS = CTW_V_OWN,
    CTW_V_UP_BIAS,
    CTW_V_DOWN_BIAS,
    CTW_V_ACT, /* 4 of [1]: alpha_p, alpha_n, beta and eps of xIELU */
    CTW_V_AFTER_DENSE = CTW_V_ACT + 4
};

struct ctw_dense {
    int64_t inner; /* rows of up */
    bool gated;
    enum ctw_activation act;
    float act_param[CTW_ACT_PARAMS];
    struct ctw_glu glu;
    float cutoff;         /* of gate (CTW_NORM_CUTOFF), in standard deviations; 0: none */
    int64_t adapter_rank; /* 0: gate and up have no adapter */
};

struct ctw_config;
struct ctw_mlp;

/* The builder's part that a mixture has too, for its shared expert: matrices and products of the
 * layer's MLP. */
struct ctw_dense ctw_describe_dense(struct ctw_config *c, int64_t i, const struct ctw_mlp *mlp);
/* The facts, likewise (kinds.h). */
void ctw_dense_take_numbers(struct ctw_dense *d, const double *values);
const char *ctw_dense_rotated_output(const struct ctw_dense *d, int product);

#endif
