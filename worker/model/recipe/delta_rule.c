/* A gated delta rule: its builder, and its facts. */
#include "worker/model/families/family.h"
#include "worker/model/recipe/kinds.h"

static void linear(struct ctw_config *c, int64_t i, int product, int matrix, const char *module,
                   int64_t n, int64_t k)
{
    ctw_describe_linear(c, i, CTW_MIXER,
                        &(struct ctw_linear_rules){product, matrix, 0, module, n, k});
}

void ctw_describe_delta_rule(struct ctw_config *c, int64_t i, const struct ctw_delta_rule *d,
                             const struct ctw_norm_form *norm)
{
    int64_t hidden = c->model->hidden, qkv = ctw_delta_qkv(d), values = ctw_delta_values(d);
    ctw_describe_kind(c, i, CTW_MIXER, CTW_KIND_delta_rule)->delta_rule = *d;
    if (d->by_head) {
        linear(c, i, CTW_P_DELTA_IN, CTW_M_DELTA_QKVZ, "linear_attn.in_proj_qkvz", qkv + values,
               hidden);
        linear(c, i, CTW_P_DELTA_BA, CTW_M_DELTA_BA, "linear_attn.in_proj_ba", 2 * d->n_value,
               hidden);
    } else {
        linear(c, i, CTW_P_DELTA_IN, CTW_M_DELTA_QKV, "linear_attn.in_proj_qkv", qkv, hidden);
        linear(c, i, CTW_P_DELTA_IN, CTW_M_DELTA_Z, "linear_attn.in_proj_z", values, hidden);
        linear(c, i, CTW_P_DELTA_BA, CTW_M_DELTA_B, "linear_attn.in_proj_b", d->n_value, hidden);
        linear(c, i, CTW_P_DELTA_BA, CTW_M_DELTA_A, "linear_attn.in_proj_a", d->n_value, hidden);
    }
    ctw_describe_want(c,
                      (struct ctw_want){.kind = CTW_WANT_VECTOR,
                                        .layer = (int)i + 1,
                                        .role = ctw_vector_at(CTW_MIXER, CTW_V_DELTA_CONV),
                                        .n = qkv,
                                        .k = d->taps},
                      "linear_attn.conv1d.weight");
    ctw_describe_vector(c, i, ctw_vector_at(CTW_MIXER, CTW_V_DELTA_A_LOG), "linear_attn.A_log",
                        d->n_value);
    ctw_describe_vector(c, i, ctw_vector_at(CTW_MIXER, CTW_V_DELTA_DT_BIAS), "linear_attn.dt_bias",
                        d->n_value);
    ctw_describe_norm(c, i, CTW_AT_DELTA_HEADS, norm, "linear_attn.norm", d->value);
    linear(c, i, CTW_P_DELTA_OUT, CTW_M_DELTA_OUT, "linear_attn.out_proj", hidden, values);
}

const struct ctw_kind_row ctw_kind_delta_rule = {.name = "gated delta rule"};
