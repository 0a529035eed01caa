/* compressed-tensors' preset schemes. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "worker/checkpoint/quant_config.h"

struct preset {
    const char *name;
    int num_bits; /* 0: not quantised */
    bool is_float, symmetric;
    enum ctw_strategy strategy;
    int64_t group_size;
    const char *activations;
};

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
    {"UNQUANTIZED", 0, false, true, CTW_STRATEGY_TENSOR, 0, ""},
    INT_GROUP("W2A4", 2, "int4 token dynamic"),
    INT_GROUP("W2A8", 2, "int8 token dynamic"),
    INT_GROUP("W2A16", 2, ""),
    INT_GROUP("W3A4", 3, "int4 token dynamic"),
    INT_GROUP("W3A8", 3, "int8 token dynamic"),
    INT_GROUP("W3A16", 3, ""),
    INT_GROUP("W4A4", 4, "int4 token dynamic"),
    INT_GROUP("W4A8", 4, "int8 token dynamic"),
    INT_GROUP("W4A16", 4, ""),
    INT_GROUP("W5A8", 5, "int8 token dynamic"),
    INT_GROUP("W5A16", 5, ""),
    INT_GROUP("W6A8", 6, "int8 token dynamic"),
    INT_GROUP("W6A16", 6, ""),
    INT_GROUP("W7A8", 7, "int8 token dynamic"),
    INT_GROUP("W7A16", 7, ""),
    INT_GROUP("W8A16", 8, ""),
    INT_GROUP("W4AFP8", 4, "float8 token dynamic"),
    {"W4A16_ASYM", 4, false, false, CTW_STRATEGY_GROUP, 128, ""},
    {"W8A8", 8, false, true, CTW_STRATEGY_CHANNEL, 0, "int8 token dynamic"},
    {"INT8", 8, false, true, CTW_STRATEGY_CHANNEL, 0, "int8 token dynamic"},
    {"FP8", 8, true, true, CTW_STRATEGY_TENSOR, 0, "float8 tensor static"},
    {"FP8_DYNAMIC", 8, true, true, CTW_STRATEGY_CHANNEL, 0, "float8 token dynamic"},
    {"FP8_BLOCK", 8, true, true, CTW_STRATEGY_BLOCK, 0, "float8 group 128 dynamic"},
    NVFP4("NVFP4A16", ""),
    NVFP4("NVFP4", "float4 tensor_group 16 local"),
    MX("MXFP4A16", 4, ""),
    MX("MXFP4", 4, "float4 group 32 dynamic"),
    MX("MXFP4XFP8", 4, "float8 group 128 dynamic"),
    MX("MXFP6A16", 6, ""),
    MX("MXFP6A8", 6, "float8 group 32 dynamic"),
    MX("MXFP8A16", 8, ""),
    MX("MXFP8", 8, "float8 group 32 dynamic"),
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
        snprintf(group->activations, sizeof(group->activations), "%s", p->activations);
        return true;
    }
    return false;
}
