/* ModelOpt. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/closest.h"
#include "worker/checkpoint/quant/quant_args.h"
#include "worker/checkpoint/quant/quant_native.h"

enum { MAX_LAYERS = 1 << 20 };

static const struct algo {
    const char *name;
    int num_bits;
    enum ctw_strategy strategy;
    int64_t group_size; /* of a block: its sides */
    const char *activations;
    bool is_int;
} algos[] = {
    {"FP8", 8, CTW_STRATEGY_TENSOR, 0, "float8 tensor static", false},
    {"FP8_PER_CHANNEL_PER_TOKEN", 8, CTW_STRATEGY_CHANNEL, 0, "float8 token dynamic", false},
    {"FP8_PB_WO", 8, CTW_STRATEGY_BLOCK, 128, "", false},
    {"MXFP8", 8, CTW_STRATEGY_GROUP, 32, "float8 group 32 dynamic", false},
    {"NVFP4", 4, CTW_STRATEGY_TENSOR_GROUP, 16, "float4 tensor_group 16 local", false},
    {"W4A16_NVFP4", 4, CTW_STRATEGY_TENSOR_GROUP, 16, "", false},
    {"W4A8_NVFP4_FP8", 4, CTW_STRATEGY_TENSOR_GROUP, 16, "float8 tensor static", false},
    {"MXFP4", 4, CTW_STRATEGY_GROUP, 32, "float4 group 32 dynamic", false},
    {"W4A8_MXFP4_FP8", 4, CTW_STRATEGY_GROUP, 32, "float8 tensor dynamic", false},
    {"W4A16_AWQ", 4, CTW_STRATEGY_GROUP, 0, "", true},
    {"W4A8_AWQ", 4, CTW_STRATEGY_GROUP, 0, "float8 tensor static", true},
    {"NVFP4_AWQ", 4, CTW_STRATEGY_TENSOR_GROUP, 16, "float4 tensor_group 16 local", false},
    {"W8A16", 8, CTW_STRATEGY_CHANNEL, 0, "", true},
    {"W8A8_SQ_PER_CHANNEL", 8, CTW_STRATEGY_CHANNEL, 0, "int8 tensor static", true},
};

static enum ctw_status refuse_algo(const struct ctw_json_node *node, const char *name,
                                   struct ctw_err *err)
{
    char all[320] = "", meant[64] = "";
    const char *names[CTW_COUNT(algos)];
    int at = 0;
    for (size_t i = 0; i < CTW_COUNT(algos) && at < (int)sizeof(all); i++) {
        names[i] = algos[i].name;
        at += snprintf(all + at, sizeof(all) - (size_t)at, "%s, ", algos[i].name);
    }
    const char *nearest = ctw_closest(name, names, (int)CTW_COUNT(names));
    if (nearest != NULL)
        (void)snprintf(meant, sizeof(meant), "did you mean %s? Otherwise ", nearest);
    return ctw_json_fail(node, err, CTW_EUNSUP,
                         "format \"ModelOpt %.40s\" is not supported; expected one of "
                         "%sMIXED_PRECISION; %squantise the original model with one of these, or "
                         "with llm-compressor",
                         name, all, meant);
}

/* The algorithm of an object with quant_algo and perhaps group_size; *out NULL: null. */
static enum ctw_status read_algo(const struct ctw_json_node *object, const struct algo **out,
                                 struct ctw_err *err)
{
    const char *name = NULL;
    int64_t group = 0;
    *out = NULL;
    enum ctw_status st = ctw_json_read_string(object, "quant_algo", CTW_JSON_OPTIONAL, &name, err);
    if (st == CTW_OK)
        st =
            ctw_json_read_int(object, "group_size", CTW_JSON_OPTIONAL, 0, CTW_MAX_DIM, &group, err);
    if (st != CTW_OK || name == NULL)
        return st;
    for (size_t i = 0; i < CTW_COUNT(algos) && *out == NULL; i++)
        if (strcasecmp(name, algos[i].name) == 0)
            *out = &algos[i];
    if (*out == NULL)
        return refuse_algo(ctw_json_get(object, "quant_algo"), name, err);
    /* Scales of NVFP4 may cover 32 columns: the stored tensors decide. */
    bool nvfp4 = (*out)->strategy == CTW_STRATEGY_TENSOR_GROUP && group == 32;
    if (group != 0 && (*out)->group_size != 0 && group != (*out)->group_size && !nvfp4)
        return ctw_json_fail(ctw_json_get(object, "group_size"), err, CTW_EUNSUP,
                             "%s in groups of %lld is not supported; expected %lld", (*out)->name,
                             (long long)group, (long long)(*out)->group_size);
    return CTW_OK;
}

/* The group of the algorithm, with one more target. */
static enum ctw_status add_target(struct ctw_quant_config *out, const struct algo *algo,
                                  const struct ctw_pattern *target, struct ctw_err *err)
{
    bool block = algo->strategy == CTW_STRATEGY_BLOCK;
    for (int64_t i = 0; i < out->n_groups; i++)
        if (out->groups[i].name == algo->name)
            return ctw_patterns_add(&out->groups[i].targets, target, err);
    const struct ctw_quant_args args = {.present = true,
                                        .num_bits = algo->num_bits,
                                        .is_float = !algo->is_int,
                                        .symmetric = true,
                                        .strategy = algo->strategy,
                                        .group_size = block ? 0 : algo->group_size,
                                        .block_rows = block ? algo->group_size : 0,
                                        .block_cols = block ? algo->group_size : 0};
    return ctw_quant_add_group(out, algo->name, target, &args, algo->activations, err);
}

/* MIXED_PRECISION: an algorithm for each module. */
enum ctw_status ctw_quant_read_modelopt_layers(struct ctw_quant_config *out,
                                               const struct ctw_json_node *q, struct ctw_err *err)
{
    const struct ctw_json_node *layers = NULL;
    enum ctw_status st =
        ctw_json_read_node(q, "quantized_layers", CTW_JSON_REQUIRED, CTW_JSON_OBJECT, &layers, err);
    if (st == CTW_OK && ctw_json_count(layers) > MAX_LAYERS)
        return ctw_json_fail(layers, err, CTW_EUNSUP, "more than %d members", MAX_LAYERS);
    const struct ctw_json_node *m = st == CTW_OK ? ctw_json_first(layers) : NULL;
    for (; m != NULL && st == CTW_OK; m = ctw_json_next(m)) {
        const struct ctw_pattern target = {.text = ctw_json_key(m), .part = true};
        const struct algo *algo = NULL;
        st = ctw_json_expect(m, CTW_JSON_OBJECT, err);
        if (st == CTW_OK)
            st = read_algo(m, &algo, err);
        if (st == CTW_OK && algo != NULL)
            st = add_target(out, algo, &target, err);
    }
    return st;
}

/* A scheme as an object, or the name of an algorithm. */
static enum ctw_status read_cache(struct ctw_quant_config *out, const struct ctw_json_node *q,
                                  struct ctw_err *err)
{
    const struct ctw_json_node *node = ctw_json_get(q, "kv_cache_quant_algo");
    if (node == NULL || ctw_json_is_null(node))
        node = ctw_json_get(q, "kv_cache_scheme");
    if (node == NULL || ctw_json_is_null(node))
        return CTW_OK;
    if (ctw_json_type(node) == CTW_JSON_OBJECT)
        return ctw_quant_read_kv(out, node, err);
    const char *name = NULL;
    enum ctw_status st = ctw_json_as_string(node, &name, err);
    if (st == CTW_OK)
        snprintf(out->kv_cache, sizeof(out->kv_cache), "%.40s", name);
    return st;
}

enum ctw_status ctw_quant_read_modelopt(struct ctw_quant_config *out, const struct ctw_json_node *q,
                                        struct ctw_err *err)
{
    const struct ctw_json_node *node = ctw_json_get(q, "quant_algo");
    const char *name = node != NULL ? ctw_json_string(node) : NULL;
    const struct algo *algo = NULL;
    enum ctw_status st = read_cache(out, q, err);
    if (st == CTW_OK)
        st = ctw_quant_read_list(out, q, "exclude_modules", "ignore", err);
    if (st != CTW_OK)
        return st;
    if (name != NULL && strcasecmp(name, "MIXED_PRECISION") == 0)
        return ctw_quant_read_modelopt_layers(out, q, err);
    st = read_algo(q, &algo, err);
    if (st != CTW_OK || algo == NULL) /* null: only the K/V cache is quantised */
        return st;
    const struct ctw_pattern all = {.text = "Module"};
    return add_target(out, algo, &all, err);
}
