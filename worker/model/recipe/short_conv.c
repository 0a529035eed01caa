/* A short convolution: its builder, and its facts. */
#include "worker/model/families/family.h"
#include "worker/model/recipe/kinds.h"

void ctw_describe_short_conv(struct ctw_config *c, int64_t i, int taps, bool bias)
{
    int64_t dim = c->model->hidden;
    ctw_describe_kind(c, i, CTW_MIXER, CTW_KIND_short_conv)->short_conv =
        (struct ctw_short_conv){.dim = dim, .taps = taps};
    ctw_describe_linear(c, i, CTW_MIXER,
                        &(struct ctw_linear_rules){CTW_P_CONV_IN, CTW_M_CONV_IN,
                                                   bias ? CTW_V_CONV_IN_BIAS : 0, "conv.in_proj",
                                                   3 * dim, dim});
    ctw_describe_want(c,
                      (struct ctw_want){.kind = CTW_WANT_VECTOR,
                                        .layer = (int)i + 1,
                                        .role = ctw_vector_at(CTW_MIXER, CTW_V_CONV),
                                        .n = dim,
                                        .k = taps},
                      "conv.conv.weight");
    if (bias)
        ctw_describe_vector(c, i, ctw_vector_at(CTW_MIXER, CTW_V_CONV_BIAS), "conv.conv.bias", dim);
    ctw_describe_linear(c, i, CTW_MIXER,
                        &(struct ctw_linear_rules){CTW_P_CONV_OUT, CTW_M_CONV_OUT,
                                                   bias ? CTW_V_CONV_OUT_BIAS : 0, "conv.out_proj",
                                                   dim, dim});
}

const struct ctw_kind_row ctw_kind_short_conv = {.name = "short convolution"};
