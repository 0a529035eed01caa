/*
 * A mixture of experts, each an MLP of the same form, beside a shared expert, if there is one:
 *     shared_out(f * shared(n)) + experts_out(sum of weight * expert(e)),
 *         e = experts_norm(x), or n;  weights = route(router(router_norm(x), or of e))
 * where n is what the branch reads, and f is 1 or sigmoid(shared_gate(n)). With a latent width, e =
 * latent_in(n), and latent_out(latent_norm(the sum)) takes the place of the sum.
 */
#ifndef CTW_WORKER_RECIPE_MIXTURE_H
#define CTW_WORKER_RECIPE_MIXTURE_H

#include "worker/model/recipe/dense.h"

enum {
    CTW_M_ROUTER = CTW_M_AFTER_DENSE,
    CTW_M_SHARED_GATE, /* [1, hidden]: the shared expert's factor, before the sigmoid */
    CTW_M_LATENT_IN,   /* from what the branch reads to what the experts read */
    CTW_M_LATENT_OUT   /* from the experts' sum back */
};
enum { CTW_P_ROUTER = CTW_P_AFTER_DENSE, CTW_P_SHARED_GATE, CTW_P_LATENT_IN, CTW_P_LATENT_OUT };
enum {
    CTW_AT_ROUTER = CTW_AT_AFTER_DENSE, /* the residual, for the router; without: the router reads
                                           the experts' */
    CTW_AT_EXPERTS,     /* the residual, for the experts; without: they read the branch's */
    CTW_AT_SHARED_OUT,  /* the shared expert's output */
    CTW_AT_EXPERTS_OUT, /* the experts' sum; CTW_AT_OUT: that of experts and shared expert */
    CTW_AT_LATENT       /* the experts' sum, before latent_out */
};
enum {
    CTW_V_ROUTER_BIAS = CTW_V_AFTER_DENSE,
    CTW_V_CORRECTION,       /* [n_experts]: of the router's choice */
    CTW_V_EXPERT_SCALE,     /* [n_experts]: factors of the experts' weights */
    CTW_V_EXPERT_GATE_BIAS, /* [n_experts, rows], like the next three */
    CTW_V_EXPERT_UP_BIAS,
    CTW_V_EXPERT_DOWN_BIAS,
    CTW_V_EXPERT_GATE_UP_BIAS,
    CTW_V_LATENT_IN_BIAS,
    CTW_V_LATENT_OUT_BIAS,
    CTW_V_TOKEN_EXPERTS, /* [vocabulary, chosen] of integers: each token's experts */
    CTW_V_AFTER_MIXTURE
};
_Static_assert((int)CTW_V_AFTER_MIXTURE <= (int)CTW_BRANCH_VECTORS, "a branch's vectors");

/* The products' shards name matrices by ctw_expert_role. With on_input, an expert's weight
 * multiplies its input, not its output. */
struct ctw_mixture {
    struct ctw_route_rule route;
    bool on_input;
    int64_t width; /* of what the experts read, and of their sum: hidden, or the latent width */
    bool latent;
    int64_t inner; /* rows of an expert's up */
    bool gated;
    enum ctw_activation act; /* without parameters */
    struct ctw_glu glu;
    struct ctw_product up, down; /* up: gate and up, or up alone */
    bool has_shared;
    struct ctw_dense shared;
};

#endif
