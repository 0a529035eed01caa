/* compressed-tensors' preset schemes. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "worker/checkpoint/quant/quant_config.h"

struct preset {
    const char *name;
    int num_bits; /* 0: not quantised */
    bool is_float, symmetric;
    enum ctw_strategy strategy;
    int64_t group_size;
    const struct ctw_quant_activations *input; /* NULL: not quantised */
};

#define TOKEN(bits, floats)                                                                        \
    {                                                                                              \
        true, floats, true, bits, "token", 0, CTW_QUANT_DYNAMIC, ""                                \
    }
#define GROUP(bits, size, scale)                                                                   \
    {                                                                                              \
        true, true, true, bits, "group", size, CTW_QUANT_DYNAMIC, scale                            \
    }
static const struct ctw_quant_activations int4 = TOKEN(4, false), int8 = TOKEN(8, false),
                                          fp8 = TOKEN(8, true), fp8_block = GROUP(8, 128, ""),
                                          mxfp4 = GROUP(4, 32, "uint8"),
                                          mxfp8 = GROUP(8, 32, "uint8");
static const struct ctw_quant_activations fp8_static = {
    true, true, true, 8, "tensor", 0, CTW_QUANT_STATIC, ""};
static const struct ctw_quant_activations nvfp4 = {
    true, true, true, 4, "tensor_group", 16, CTW_QUANT_LOCAL, "float8_e4m3fn"};

#define INT_GROUP(name, bits, activations)                                                         \
    {                                                                                              \
        name, bits, false, true, CTW_STRATEGY_GROUP, 128, activations                              \
    }
#define MX(name, bits, activations)                                                                \
    {                                                                                              \
        name, bits, true, true, CTW_STRATEGY_GROUP, 32, activations                                \
    }
#define NVFP4(name, activations)                                                                   \
    {                                                                                              \
        name, 4, true, true, CTW_STRATEGY_TENSOR_GROUP, 16, activations                            \
    }

static const struct preset presets[] = {
    {"UNQUANTIZED", 0, false, true, CTW_STRATEGY_TENSOR, 0, NULL},
    INT_GROUP("W2A4", 2, &int4),
    INT_GROUP("W2A8", 2, &int8),
    INT_GROUP("W2A16", 2, NULL),
    INT_GROUP("W3A4", 3, &int4),
    INT_GROUP("W3A8", 3, &int8),
    INT_GROUP("W3A16", 3, NULL),
    INT_GROUP("W4A4", 4, &int4),
    INT_GROUP("W4A8", 4, &int8),
    INT_GROUP("W4A16", 4, NULL),
    INT_GROUP("W5A8", 5, &int8),
    INT_GROUP("W5A16", 5, NULL),
    INT_GROUP("W6A8", 6, &int8),
    INT_GROUP("W6A16", 6, NULL),
    INT_GROUP("W7A8", 7, &int8),
    INT_GROUP("W7A16", 7, NULL),
    INT_GROUP("W8A16", 8, NULL),
    INT_GROUP("W4AFP8", 4, &fp8),
    {"W4A16_ASYM", 4, false, false, CTW_STRATEGY_GROUP, 128, NULL},
    {"W8A8", 8, false, true, CTW_STRATEGY_CHANNEL, 0, &int8},
    {"INT8", 8, false, true, CTW_STRATEGY_CHANNEL, 0, &int8},
    {"FP8", 8, true, true, CTW_STRATEGY_TENSOR, 0, &fp8_static},
    {"FP8_DYNAMIC", 8, true, true, CTW_STRATEGY_CHANNEL, 0, &fp8},
    {"FP8_BLOCK", 8, true, true, CTW_STRATEGY_BLOCK, 0, &fp8_block},
    NVFP4("NVFP4A16", NULL),
    NVFP4("NVFP4", &nvfp4),
    MX("MXFP4A16", 4, NULL),
    MX("MXFP4", 4, &mxfp4),
    MX("MXFP4XFP8", 4, &fp8_block),
    MX("MXFP6A16", 6, NULL),
    MX("MXFP6A8", 6, &mxfp8),
    MX("MXFP8A16", 8, NULL),
    MX("MXFP8", 8, &mxfp8),
};

bool ctw_quant_preset(const char *name, struct ctw_quant_group *group)
{
    for (size_t i = 0; i < CTW_COUNT(presets); i++) {
        const struct preset *p = &presets[i];
        if (strcasecmp(name, p->name) != 0)
            continue;
        group->quantised = p->num_bits != 0;
        group->args = (struct ctw_quant_args){.present = p->num_bits != 0,
                                              .num_bits = p->num_bits,
                                              .is_float = p->is_float,
                                              .symmetric = p->symmetric,
                                              .strategy = p->strategy,
                                              .group_size = p->group_size};
        if (p->strategy == CTW_STRATEGY_BLOCK)
            group->args.block_rows = group->args.block_cols = 128;
        if (p->input != NULL)
            group->input = *p->input;
        ctw_quant_activations_text(&group->input, group->activations, sizeof(group->activations));
        return true;
    }
    return false;
}
