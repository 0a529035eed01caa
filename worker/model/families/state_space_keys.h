/* Keys that families with Mamba layers share. */
#ifndef CTW_WORKER_STATE_SPACE_KEYS_H
#define CTW_WORKER_STATE_SPACE_KEYS_H

#include <math.h>
#include <string.h>

#include "kernels/conv.h"
#include "kernels/ssm.h"
#include "worker/model/families/family.h"
#include "worker/model/recipe/state_space.h"

/* One bound of a step; transformers 5 writes infinity as {"__float__": "Infinity"}. */
static inline float ssm_bound(struct ctw_config *c, const struct ctw_json_node *node)
{
    const struct ctw_json_node *named = ctw_json_get(node, "__float__");
    const char *text = named != NULL ? ctw_json_string(named) : NULL;
    double value = 0;
    if (text != NULL && strcmp(text, "Infinity") == 0)
        return INFINITY;
    if (ctw_json_type(node) == CTW_JSON_NONFINITE && ctw_json_source(node, &(size_t){0})[0] == 'I')
        return INFINITY;
    c->status = ctw_json_as_double(node, &value, &c->err);
    if (c->status == CTW_OK && value < 0)
        c->status = ctw_json_fail(node, &c->err, CTW_EFORMAT, "expected 0 or more");
    return value > 3e38 ? INFINITY : (float)value;
}

/* time_step_limit: [least, most]. Absent: 0 and infinity. */
static inline void ssm_key_limit(struct ctw_config *c, struct ctw_state_space *x)
{
    x->dt_min = 0;
    x->dt_max = INFINITY;
    if (!ctw_key_is_given(c, "time_step_limit"))
        return;
    const struct ctw_json_node *node = ctw_key_list(c, "time_step_limit", 2);
    if (node != NULL)
        x->dt_min = ssm_bound(c, node);
    if (c->status == CTW_OK)
        x->dt_max = ssm_bound(c, ctw_json_next(node));
    if (c->status == CTW_OK && x->dt_max < x->dt_min)
        ctw_key_fail(c, "time_step_limit", CTW_EFORMAT, "expected the smaller number first");
}

/* A number of a Mamba layer, at least 1. */
static inline int64_t ssm_key(struct ctw_config *c, const char *name, int64_t absent, int64_t most)
{
    return ctw_key_int(c, name, absent, CTW_NULL_REFUSED, 1, most);
}

/* A key that is a number or "auto", which is also what it is if it is absent. */
static inline int64_t ssm_key_auto(struct ctw_config *c, const char *name, int64_t absent)
{
    const struct ctw_json_node *node = ctw_json_get(c->text, name);
    if (node != NULL && ctw_json_type(node) == CTW_JSON_STRING) {
        if (!ctw_key_is(c, name, "auto"))
            ctw_key_fail(c, name, CTW_EFORMAT, "expected a number, or \"auto\"");
        return absent;
    }
    return ctw_key_int(c, name, absent, CTW_NULL_REFUSED, 1, 1 << 20);
}

/* Mamba 2 as Bamba and Granite 4 have it. */
static inline void ssm_key_mamba2(struct ctw_config *c, int64_t hidden,
                                  struct ctw_state_space_rules *r)
{
    const double expand = ctw_key_number(c, "mamba_expand", 2, CTW_NULL_REFUSED, 1e-3, 1e3);
    const int64_t inner = (int64_t)(expand * (double)hidden);
    r->module = "mamba";
    r->is.n_head = ssm_key(c, "mamba_n_heads", 128, 1 << 16);
    r->is.head = ssm_key_auto(c, "mamba_d_head", inner / r->is.n_head);
    r->is.n_groups = ssm_key(c, "mamba_n_groups", 1, 1 << 16);
    r->is.n_state = ssm_key(c, "mamba_d_state", 256, CTW_MAX_STATE);
    r->is.taps = (int)ssm_key(c, "mamba_d_conv", 4, CTW_MAX_TAPS);
    r->conv_bias = ctw_key_bool(c, "mamba_conv_bias", true);
    r->bias = r->out_bias = ctw_key_bool(c, "mamba_proj_bias", false);
    ssm_key_limit(c, &r->is);
    if (c->status == CTW_OK && ctw_ssm_inner(&r->is) != inner)
        ctw_key_fail(c, "mamba_d_head", CTW_EFORMAT,
                     "expected mamba_expand * hidden_size / mamba_n_heads");
}

/* The activation of convolution and gate. */
static inline void ssm_key_activation(struct ctw_config *c, const char *name)
{
    if (ctw_key_activation(c, name, CTW_ACT_SILU) != CTW_ACT_SILU)
        ctw_key_fail(c, name, CTW_EUNSUP, "only silu is supported in Mamba layers");
}

#endif
