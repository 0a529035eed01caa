/* A layer's own input: its builder (family.h), and its facts. */
#include "worker/model/families/family.h"
#include "worker/model/recipe/kinds.h"

void ctw_describe_own_input(struct ctw_config *c, int64_t i, enum ctw_activation act,
                            const struct ctw_norm_form *norm)
{
    int64_t hidden = c->model->hidden, input = c->model->input_dim;
    ctw_describe_kind(c, i, CTW_OWN_INPUT, CTW_KIND_own_input)->own_input.act = act;
    ctw_describe_linear(c, i, CTW_OWN_INPUT,
                        &(struct ctw_linear_rules){CTW_P_INPUT_GATE, CTW_M_INPUT_GATE, 0,
                                                   "per_layer_input_gate", input, hidden});
    ctw_describe_linear(c, i, CTW_OWN_INPUT,
                        &(struct ctw_linear_rules){CTW_P_INPUT_PROJ, CTW_M_INPUT_PROJ, 0,
                                                   "per_layer_projection", hidden, input});
    ctw_describe_norm(c, i, ctw_norm_at(CTW_OWN_INPUT, CTW_AT_OUT), norm,
                      "post_per_layer_input_norm", 0);
}

const struct ctw_kind_row ctw_kind_own_input = {.name = "own input"};
