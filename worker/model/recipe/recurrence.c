/* A gated linear recurrence: its builder, and its facts. */
#include <assert.h>

#include "worker/model/families/family.h"
#include "worker/model/recipe/kinds.h"
#include "worker/model/recipe/recurrence.h"

#define LRU "temporal_block.rg_lru."

/* One matrix and bias of each head, in one tensor each. */
static void describe_gate(struct ctw_config *c, int64_t i, int matrix, int bias, const char *name,
                          const char *bias_name)
{
    const struct ctw_recurrence *x = &c->model->layers[i + 1].branch[CTW_MIXER].recurrence;
    ctw_describe_want(c,
                      (struct ctw_want){.kind = CTW_WANT_MATRIX,
                                        .layer = (int)i + 1,
                                        .role = ctw_matrix_at(CTW_MIXER, matrix),
                                        .class_name = "",
                                        .n = x->n_head * x->head,
                                        .k = x->head,
                                        .transposed = true,
                                        .heads = x->n_head},
                      name);
    ctw_describe_want(c,
                      (struct ctw_want){.kind = CTW_WANT_VECTOR,
                                        .layer = (int)i + 1,
                                        .role = ctw_vector_at(CTW_MIXER, bias),
                                        .n = x->n_head,
                                        .k = x->head},
                      bias_name);
}

static void describe_gates(struct ctw_config *c, int64_t i, const struct ctw_recurrence *x)
{
    static const int matrix[] = {CTW_M_LRU_INPUT, CTW_M_LRU_DECAY};
    static const int bias[] = {CTW_V_LRU_INPUT_BIAS, CTW_V_LRU_DECAY_BIAS};
    describe_gate(c, i, matrix[0], bias[0], LRU "input_gate_weight", LRU "input_gate_bias");
    describe_gate(c, i, matrix[1], bias[1], LRU "recurrent_gate_weight", LRU "recurrent_gate_bias");
    for (int h = 0; h < x->n_head; h++)
        for (int j = 0; j < 2; j++)
            ctw_describe_shard(c, i, ctw_product_at(CTW_MIXER, CTW_P_LRU_GATES + h),
                               (struct ctw_rows){ctw_matrix_at(CTW_MIXER, matrix[j]), h * x->head,
                                                 x->head, ctw_vector_at(CTW_MIXER, bias[j]), 1});
}

static void linear(struct ctw_config *c, int64_t i, int product, int matrix, int bias,
                   const char *module, int64_t n, int64_t k)
{
    ctw_describe_linear(c, i, CTW_MIXER,
                        &(struct ctw_linear_rules){product, matrix, bias, module, n, k});
}

void ctw_describe_recurrence(struct ctw_config *c, int64_t i, const struct ctw_recurrence *x)
{
    const int64_t dim = x->n_head * x->head, hidden = c->model->hidden;
    if (c->status != CTW_OK)
        return;
    assert(x->n_head <= CTW_MAX_LRU_HEADS);
    ctw_describe_kind(c, i, CTW_MIXER, CTW_KIND_recurrence)->recurrence = *x;
    linear(c, i, CTW_P_LRU_IN, CTW_M_LRU_Y, CTW_V_LRU_Y_BIAS, "temporal_block.linear_y", dim,
           hidden);
    linear(c, i, CTW_P_LRU_IN, CTW_M_LRU_X, CTW_V_LRU_X_BIAS, "temporal_block.linear_x", dim,
           hidden);
    ctw_describe_want(c,
                      (struct ctw_want){.kind = CTW_WANT_VECTOR,
                                        .layer = (int)i + 1,
                                        .role = ctw_vector_at(CTW_MIXER, CTW_V_LRU_CONV),
                                        .n = dim,
                                        .k = x->taps},
                      "temporal_block.conv_1d.weight");
    ctw_describe_vector(c, i, ctw_vector_at(CTW_MIXER, CTW_V_LRU_CONV_BIAS),
                        "temporal_block.conv_1d.bias", dim);
    describe_gates(c, i, x);
    ctw_describe_vector(c, i, ctw_vector_at(CTW_MIXER, CTW_V_LRU_PARAM), LRU "recurrent_param",
                        dim);
    linear(c, i, CTW_P_LRU_OUT, CTW_M_LRU_OUT, CTW_V_LRU_OUT_BIAS, "temporal_block.linear_out",
           hidden, dim);
}

const struct ctw_kind_row ctw_kind_recurrence = {
    .name = "gated linear recurrence", .not_meant = 1u << CTW_M_LRU_INPUT | 1u << CTW_M_LRU_DECAY};
