/* A short convolution (LFM 2): out(c * conv(b * u)), where b | c | u = in(n). */
#ifndef CTW_WORKER_RECIPE_SHORT_CONV_H
#define CTW_WORKER_RECIPE_SHORT_CONV_H

#include "worker/model/recipe/parts.h"

enum { CTW_M_CONV_IN, CTW_M_CONV_OUT };
enum { CTW_P_CONV_IN, CTW_P_CONV_OUT };
enum {
    CTW_V_CONV = CTW_V_OWN, /* [dim, taps] */
    CTW_V_CONV_BIAS,        /* [dim] */
    CTW_V_CONV_IN_BIAS,
    CTW_V_CONV_OUT_BIAS
};

struct ctw_short_conv {
    int64_t dim;
    int taps; /* positions that a token sees, its own included */
};

struct ctw_config;

/* Describes the mixer of decoder layer i, with LFM 2's names. */
void ctw_describe_short_conv(struct ctw_config *c, int64_t i, int taps, bool bias);

#endif
