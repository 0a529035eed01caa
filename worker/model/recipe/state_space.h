/*
 * A selective state space: out(norm(ssm(silu(conv(x)), z))) with z | x .. = in(n).
 * Mamba 2: in gives z | x | B | C | dt, the convolution is over x | B | C, and the norm, of groups
 * of y * silu(z), may be missing, or come before the gate. Mamba 1 (`selects`): in gives x | z, the
 * convolution is over x, and dt | B | C = select(x), each with a norm, and dt goes through a
 * product of its own.
 */
#ifndef CTW_WORKER_RECIPE_STATE_SPACE_H
#define CTW_WORKER_RECIPE_STATE_SPACE_H

#include "worker/model/recipe/parts.h"

enum { CTW_M_SSM_IN, CTW_M_SSM_SELECT, CTW_M_SSM_DT, CTW_M_SSM_OUT };
enum { CTW_P_SSM_IN, CTW_P_SSM_SELECT, CTW_P_SSM_DT, CTW_P_SSM_OUT };
enum {
    CTW_AT_SSM = CTW_AT_OWN, /* y */
    CTW_AT_SSM_DT,
    CTW_AT_SSM_B,
    CTW_AT_SSM_C
};
enum {
    CTW_V_SSM_CONV = CTW_V_OWN, /* [channels of the convolution, taps] */
    CTW_V_SSM_CONV_BIAS,
    CTW_V_SSM_IN_BIAS,
    CTW_V_SSM_OUT_BIAS,
    CTW_V_SSM_A_LOG, /* [n_head], or [n_head, n_state] if it selects */
    CTW_V_SSM_DT_BIAS,
    CTW_V_SSM_D
};

/* Stretches of in's columns, in order. */
enum ctw_ssm_part { CTW_SSM_Z, CTW_SSM_X, CTW_SSM_B, CTW_SSM_C, CTW_SSM_DT, CTW_N_SSM_PARTS };

struct ctw_state_space {
    bool selects;
    int64_t n_head, head; /* if it selects: channels, and 1 */
    int64_t n_groups, n_state;
    int taps;
    int64_t dt_rank;               /* if it selects: inputs of dt's product */
    int64_t norm_groups;           /* of y's norm */
    bool norm_first;               /* y's norm comes before the gate */
    float dt_min, dt_max;          /* of the step, after the softplus */
    float factor[CTW_N_SSM_PARTS]; /* of in's columns, if it does not select */
};

/* Columns of x and z, and of y. */
static inline int64_t ctw_ssm_inner(const struct ctw_state_space *x)
{
    return x->n_head * x->head;
}

/* Columns of B and C together. */
static inline int64_t ctw_ssm_selection(const struct ctw_state_space *x)
{
    return 2 * x->n_groups * x->n_state;
}

/* Channels of the convolution. */
static inline int64_t ctw_ssm_channels(const struct ctw_state_space *x)
{
    return ctw_ssm_inner(x) + (x->selects ? 0 : ctw_ssm_selection(x));
}

/* Columns of the product `in`. */
static inline int64_t ctw_ssm_columns(const struct ctw_state_space *x)
{
    return ctw_ssm_inner(x) + (x->selects ? ctw_ssm_inner(x) : ctw_ssm_channels(x) + x->n_head);
}

struct ctw_config;
struct ctw_norm_form;

/* How a family has it. */
struct ctw_state_space_rules {
    int branch;                /* of the layer: CTW_MIXER, or another */
    const char *module;        /* "mixer": its names are mixer.in_proj, mixer.conv1d, .. */
    struct ctw_state_space is; /* a factor of 0: 1 */
    bool bias, out_bias, conv_bias;
    const struct ctw_norm_form *norm;  /* y's, "mixer.norm"; NULL: none */
    const struct ctw_norm_form *parts; /* of dt, B and C; NULL: none. With weights, as Jamba names
                                          them: "mixer.dt_layernorm" */
};

void ctw_describe_state_space(struct ctw_config *c, int64_t i,
                              const struct ctw_state_space_rules *r);

#endif
