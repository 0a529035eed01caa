/* A selective state space: its builder, and its facts. */
#include <inttypes.h>
#include <stdio.h>

#include "worker/model/families/family.h"
#include "worker/model/recipe/kinds.h"
#include "worker/model/recipe/state_space.h"

enum { MAX_NAME = 128 };

/* What is described: decoder layer i's branch of these rules. */
struct at {
    struct ctw_config *c;
    int64_t i;
    const struct ctw_state_space_rules *r;
};

/* "MODULE.NAME", valid until the next call. */
static const char *name_of(const struct at *at, char out[MAX_NAME], const char *name)
{
    (void)snprintf(out, MAX_NAME, "%s.%s", at->r->module, name);
    return out;
}

static void linear(const struct at *at, int product, int matrix, int bias, const char *name,
                   int64_t n, int64_t k)
{
    char module[MAX_NAME];
    ctw_describe_linear(
        at->c, at->i, at->r->branch,
        &(struct ctw_linear_rules){product, matrix, bias, name_of(at, module, name), n, k});
}

/* A vector [n], or with k above 0 [n, k], or [n, 1, k]. */
static void vector(const struct at *at, int role, const char *name, int64_t n, int64_t k)
{
    char full[MAX_NAME];
    ctw_describe_want(at->c,
                      (struct ctw_want){.kind = CTW_WANT_VECTOR,
                                        .layer = (int)at->i + 1,
                                        .role = ctw_vector_at(at->r->branch, role),
                                        .n = n,
                                        .k = k},
                      name_of(at, full, name));
}

static void norm(const struct at *at, int place, const struct ctw_norm_form *form, const char *name,
                 int64_t n)
{
    char module[MAX_NAME];
    if (form != NULL)
        ctw_describe_norm(at->c, at->i, ctw_norm_at(at->r->branch, place), form,
                          name_of(at, module, name), n);
}

static void describe_selection(const struct at *at, const struct ctw_state_space *x)
{
    int64_t inner = ctw_ssm_inner(x);
    linear(at, CTW_P_SSM_SELECT, CTW_M_SSM_SELECT, 0, "x_proj", x->dt_rank + ctw_ssm_selection(x),
           inner);
    norm(at, CTW_AT_SSM_DT, at->r->parts, "dt_layernorm", x->dt_rank);
    norm(at, CTW_AT_SSM_B, at->r->parts, "b_layernorm", x->n_state);
    norm(at, CTW_AT_SSM_C, at->r->parts, "c_layernorm", x->n_state);
    linear(at, CTW_P_SSM_DT, CTW_M_SSM_DT, 0, "dt_proj", inner, x->dt_rank);
}

static bool is_sound(struct ctw_config *c, int64_t i, const struct ctw_state_space *x)
{
    if (c->status == CTW_OK &&
        (x->n_head % x->n_groups != 0 || ctw_ssm_inner(x) % x->norm_groups != 0))
        c->status = ctw_json_fail(c->text, &c->err, CTW_EFORMAT,
                                  "layer %" PRId64 ": the %" PRId64
                                  " heads of a Mamba layer, and their %" PRId64
                                  " elements, must divide into %" PRId64 " groups",
                                  i, x->n_head, ctw_ssm_inner(x), x->n_groups);
    return c->status == CTW_OK;
}

void ctw_describe_state_space(struct ctw_config *c, int64_t i,
                              const struct ctw_state_space_rules *r)
{
    const struct at at = {c, i, r};
    struct ctw_state_space *x =
        &ctw_describe_kind(c, i, r->branch, CTW_KIND_state_space)->state_space;
    *x = r->is;
    x->norm_groups = x->norm_groups != 0 ? x->norm_groups : 1;
    for (int p = 0; p < CTW_N_SSM_PARTS; p++)
        x->factor[p] = x->factor[p] != 0 ? x->factor[p] : 1;
    if (!is_sound(c, i, x))
        return;
    int64_t inner = ctw_ssm_inner(x);
    linear(&at, CTW_P_SSM_IN, CTW_M_SSM_IN, r->bias ? CTW_V_SSM_IN_BIAS : 0, "in_proj",
           ctw_ssm_columns(x), c->model->hidden);
    vector(&at, CTW_V_SSM_CONV, "conv1d.weight", ctw_ssm_channels(x), x->taps);
    if (r->conv_bias)
        vector(&at, CTW_V_SSM_CONV_BIAS, "conv1d.bias", ctw_ssm_channels(x), 0);
    if (x->selects)
        describe_selection(&at, x);
    vector(&at, CTW_V_SSM_A_LOG, "A_log", x->n_head, x->selects ? x->n_state : 0);
    vector(&at, CTW_V_SSM_DT_BIAS, x->selects ? "dt_proj.bias" : "dt_bias", x->n_head, 0);
    vector(&at, CTW_V_SSM_D, "D", x->n_head, 0);
    norm(&at, CTW_AT_SSM, r->norm, "norm", inner);
    linear(&at, CTW_P_SSM_OUT, CTW_M_SSM_OUT, r->out_bias ? CTW_V_SSM_OUT_BIAS : 0, "out_proj",
           c->model->hidden, inner);
}

const struct ctw_kind_row ctw_kind_state_space = {.name = "state space"};
