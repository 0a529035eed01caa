/* A gated delta rule: its builders, and its facts. */
#include <stdio.h>

#include "worker/model/families/family.h"
#include "worker/model/recipe/kinds.h"

static void linear(struct ctw_config *c, int64_t i, int product, int matrix, const char *module,
                   int64_t n, int64_t k)
{
    ctw_describe_linear(c, i, CTW_MIXER,
                        &(struct ctw_linear_rules){product, matrix, 0, module, n, k});
}

/* The next n of one matrix's rows as a product. */
static void rows_of_one(struct ctw_config *c, int64_t i, int product, int64_t row0, int64_t n)
{
    const int matrix = ctw_matrix_at(CTW_MIXER, CTW_M_DELTA_IN);
    ctw_describe_shard(c, i, ctw_product_at(CTW_MIXER, product),
                       (struct ctw_rows){matrix, row0, n, -1, 1});
}

static void describe_inputs(struct ctw_config *c, int64_t i, const struct ctw_delta_rule *d)
{
    int64_t hidden = c->model->hidden, qkv = ctw_delta_qkv(d), values = ctw_delta_values(d);
    if (d->in_one) {
        rows_of_one(c, i, CTW_P_DELTA_IN, 0, qkv + values);
        rows_of_one(c, i, CTW_P_DELTA_BA, qkv + values, 2 * d->n_value);
        ctw_describe_matrix(c, i, ctw_matrix_at(CTW_MIXER, CTW_M_DELTA_IN), "linear_attn.in_proj",
                            qkv + values + 2 * d->n_value, hidden);
        return;
    }
    if (d->by_head) {
        linear(c, i, CTW_P_DELTA_IN, CTW_M_DELTA_QKVZ, "linear_attn.in_proj_qkvz", qkv + values,
               hidden);
    } else {
        linear(c, i, CTW_P_DELTA_IN, CTW_M_DELTA_QKV, "linear_attn.in_proj_qkv", qkv, hidden);
        linear(c, i, CTW_P_DELTA_IN, CTW_M_DELTA_Z, "linear_attn.in_proj_z", values, hidden);
    }
    if (d->ba_by_head) {
        linear(c, i, CTW_P_DELTA_BA, CTW_M_DELTA_BA, "linear_attn.in_proj_ba", 2 * d->n_value,
               hidden);
    } else {
        linear(c, i, CTW_P_DELTA_BA, CTW_M_DELTA_B, "linear_attn.in_proj_b", d->n_value, hidden);
        linear(c, i, CTW_P_DELTA_BA, CTW_M_DELTA_A, "linear_attn.in_proj_a", d->n_value, hidden);
    }
}

void ctw_describe_delta_rule(struct ctw_config *c, int64_t i, const struct ctw_delta_rule *d,
                             const struct ctw_norm_form *norm)
{
    ctw_describe_kind(c, i, CTW_MIXER, CTW_KIND_delta_rule)->delta_rule = *d;
    describe_inputs(c, i, d);
    ctw_describe_want(c,
                      (struct ctw_want){.kind = CTW_WANT_VECTOR,
                                        .layer = (int)i + 1,
                                        .role = ctw_vector_at(CTW_MIXER, CTW_V_DELTA_CONV),
                                        .n = ctw_delta_qkv(d),
                                        .k = d->taps},
                      "linear_attn.conv1d.weight");
    ctw_describe_vector(c, i, ctw_vector_at(CTW_MIXER, CTW_V_DELTA_A_LOG), "linear_attn.A_log",
                        d->n_value);
    ctw_describe_vector(c, i, ctw_vector_at(CTW_MIXER, CTW_V_DELTA_DT_BIAS), "linear_attn.dt_bias",
                        d->n_value);
    ctw_describe_norm(c, i, CTW_AT_DELTA_HEADS, norm,
                      d->in_one ? "linear_attn.out_norm" : "linear_attn.norm", d->value);
    linear(c, i, CTW_P_DELTA_OUT, CTW_M_DELTA_OUT, "linear_attn.out_proj", c->model->hidden,
           ctw_delta_values(d));
}

/* ---- with q, k and v apart ---- */

enum { MAX_NAME = 128 };

struct at {
    struct ctw_config *c;
    int64_t i;
    const struct ctw_delta_names *names;
};

/* A Linear module "MODULE.LETTER" and what follows, as in "_proj". */
static void apart(const struct at *at, int product, int matrix, const char *letter,
                  const char *follows, int64_t n, int64_t k)
{
    char full[2 * MAX_NAME];
    (void)snprintf(full, sizeof(full), "%s.%s%s", at->names->module, letter, follows);
    linear(at->c, at->i, product, matrix, full, n, k);
}

/* A vector [n], or with k above 0 [n, 1, k]. */
static void vector(const struct at *at, int role, const char *name, int64_t n, int64_t k)
{
    char full[2 * MAX_NAME];
    (void)snprintf(full, sizeof(full), "%s.%s", at->names->module, name);
    ctw_describe_want(at->c,
                      (struct ctw_want){.kind = CTW_WANT_VECTOR,
                                        .layer = (int)at->i + 1,
                                        .role = ctw_vector_at(CTW_MIXER, role),
                                        .n = n,
                                        .k = k},
                      full);
}

static void describe_gates(const struct at *at, const struct ctw_delta_rule *d, int64_t hidden)
{
    const char *a = at->names->a;
    const int64_t values = ctw_delta_values(d), decays = ctw_delta_ba(d) - d->n_value;
    const int a_product = d->by_channel ? CTW_P_DELTA_A : CTW_P_DELTA_BA;
    apart(at, CTW_P_DELTA_BA, CTW_M_DELTA_B, "b", "_proj", d->n_value, hidden);
    if (d->rank == 0) {
        apart(at, a_product, CTW_M_DELTA_A, a, "_proj", decays, hidden);
        return;
    }
    apart(at, CTW_P_DELTA_LOW, CTW_M_DELTA_A_LOW, a, "_a_proj", d->rank, hidden);
    if (!d->z_is_whole)
        apart(at, CTW_P_DELTA_LOW, CTW_M_DELTA_Z_LOW, "g", "_a_proj", d->rank, hidden);
    apart(at, a_product, CTW_M_DELTA_A, a, "_b_proj", decays, d->rank);
    if (!d->z_is_whole)
        apart(at, CTW_P_DELTA_Z, CTW_M_DELTA_Z, "g", "_b_proj", values, d->rank);
}

void ctw_describe_delta_apart(struct ctw_config *c, int64_t i, const struct ctw_delta_rule *d,
                              const struct ctw_norm_form *norm, const struct ctw_delta_names *names)
{
    static const char *const letters[] = {"q", "k", "v"};
    const struct at at = {c, i, names};
    const int64_t hidden = c->model->hidden, values = ctw_delta_values(d);
    const int64_t n[] = {ctw_delta_keys(d), ctw_delta_keys(d), values};
    char name[MAX_NAME];
    ctw_describe_kind(c, i, CTW_MIXER, CTW_KIND_delta_rule)->delta_rule = *d;
    for (int j = 0; j < 3; j++)
        apart(&at, CTW_P_DELTA_IN, CTW_M_DELTA_Q + j, letters[j], "_proj", n[j], hidden);
    if (d->rank == 0 || d->z_is_whole)
        apart(&at, CTW_P_DELTA_IN, CTW_M_DELTA_Z, "g", "_proj", values, hidden);
    describe_gates(&at, d, hidden);
    for (int j = 0; j < 3; j++) {
        (void)snprintf(name, sizeof(name), "%s_conv1d.weight", letters[j]);
        vector(&at, CTW_V_DELTA_CONV, name, n[j], d->taps);
    }
    vector(&at, CTW_V_DELTA_A_LOG, "A_log", d->n_value, 0);
    vector(&at, CTW_V_DELTA_DT_BIAS, "dt_bias", ctw_delta_ba(d) - d->n_value, 0);
    (void)snprintf(name, sizeof(name), "%s.o_norm", names->module);
    ctw_describe_norm(c, i, CTW_AT_DELTA_HEADS, norm, name, d->value);
    apart(&at, CTW_P_DELTA_OUT, CTW_M_DELTA_OUT, names->out, "", hidden, values);
}

const struct ctw_kind_row ctw_kind_delta_rule = {.name = "gated delta rule"};
