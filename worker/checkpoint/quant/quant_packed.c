/* GPTQ and AWQ. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "worker/checkpoint/quant/quant_args.h"
#include "worker/checkpoint/quant/quant_native.h"

enum { MAX_RULES = 1024 };

/* ---- an object with bits, group_size and sym, for all modules or for some ---- */

enum ctw_status ctw_quant_read_packed(struct ctw_quant_args *args,
                                      const struct ctw_json_node *object, bool awq,
                                      struct ctw_err *err)
{
    int64_t bits = args->num_bits;
    int64_t group = args->strategy == CTW_STRATEGY_GROUP ? args->group_size : -1;
    const char *bits_key = ctw_json_has(object, "w_bit") ? "w_bit" : "bits";
    const char *group_key = ctw_json_has(object, "q_group_size") ? "q_group_size" : "group_size";
    const char *sym_key = awq ? "zero_point" : "sym";
    bool flag = args->symmetric != awq; /* zero_point says the opposite of sym */
    enum ctw_status st = ctw_json_read_int(object, bits_key, CTW_JSON_OPTIONAL, 1, 64, &bits, err);
    if (st == CTW_OK)
        st = ctw_json_read_int(object, group_key, CTW_JSON_OPTIONAL, -1, CTW_MAX_DIM, &group, err);
    if (st == CTW_OK)
        st = ctw_json_read_bool(object, sym_key, CTW_JSON_OPTIONAL, &flag, err);
    if (st != CTW_OK)
        return st;
    if (group == 0)
        return ctw_json_fail(ctw_json_get(object, group_key), err, CTW_EFORMAT,
                             "found 0, expected -1 (a scale per output) or a size above 0");
    bool known = awq ? bits == 4 : bits == 2 || bits == 3 || bits == 4 || bits == 8;
    if (!known && bits < 16)
        return ctw_json_fail(ctw_json_get(object, bits_key), err, CTW_EUNSUP,
                             "%s of %lld bits is not supported; supported: %s",
                             awq ? "AWQ" : "GPTQ", (long long)bits, awq ? "4" : "2, 3, 4, 8");
    args->present = bits < 16;
    args->num_bits = (int)bits;
    args->symmetric = flag != awq;
    args->strategy = group > 0 ? CTW_STRATEGY_GROUP : CTW_STRATEGY_CHANNEL;
    args->group_size = group > 0 ? group : 0;
    return CTW_OK;
}

enum ctw_status ctw_quant_add_rule(struct ctw_quant_config *out, const struct ctw_json_node *member,
                                   const char *text, const struct ctw_quant_args *args,
                                   struct ctw_err *err)
{
    struct ctw_pattern rule = {.text = text};
    struct ctw_err why;
    if (out->n_groups >= MAX_RULES)
        return ctw_json_fail(member, err, CTW_EUNSUP, "more than %d regular expressions",
                             MAX_RULES);
    enum ctw_status st = ctw_regex_compile(&rule.regex, text, &why);
    if (st != CTW_OK)
        return ctw_json_fail(member, err, st, "%s", why.msg);
    st = ctw_quant_add_group(out, ctw_json_key(member), &rule, args, "", err);
    if (st != CTW_OK)
        ctw_regex_close(rule.regex);
    return st;
}

/* ---- GPTQ ---- */

/* {"+:REGEX": {"bits": 8}, "-:REGEX": {}}: the first that matches; minus: not quantised. */
static enum ctw_status read_dynamic(struct ctw_quant_config *out, const struct ctw_json_node *q,
                                    const struct ctw_quant_args *args, struct ctw_err *err)
{
    const struct ctw_json_node *dynamic = NULL;
    enum ctw_status st =
        ctw_json_read_node(q, "dynamic", CTW_JSON_OPTIONAL, CTW_JSON_OBJECT, &dynamic, err);
    if (st != CTW_OK || dynamic == NULL)
        return st;
    const struct ctw_json_node *m = ctw_json_first(dynamic);
    for (; m != NULL && st == CTW_OK; m = ctw_json_next(m)) {
        const char *key = ctw_json_key(m);
        struct ctw_quant_args own = *args;
        bool minus = strncmp(key, "-:", 2) == 0;
        if (minus)
            own.present = false;
        else if (!ctw_json_is_null(m))
            st = ctw_json_expect(m, CTW_JSON_OBJECT, err);
        if (st == CTW_OK && !minus && !ctw_json_is_null(m))
            st = ctw_quant_read_packed(&own, m, false, err);
        if (st == CTW_OK)
            st = ctw_quant_add_rule(out, m, minus || strncmp(key, "+:", 2) == 0 ? key + 2 : key,
                                    &own, err);
    }
    return st;
}

/* Version 1 stores zero points less 1. */
static enum ctw_status read_version(struct ctw_quant_args *args, const struct ctw_json_node *q,
                                    struct ctw_err *err)
{
    static const char *const formats[] = {"gptq", "gptq_v2", NULL};
    static const char *const words[] = {"int32", "torch.int32", NULL};
    const char *format, *word;
    bool marlin = false;
    const char *key = ctw_json_has(q, "checkpoint_format") ? "checkpoint_format" : "format";
    enum ctw_status st = ctw_quant_expect_word(q, key, formats, &format, err);
    if (st == CTW_OK)
        st = ctw_quant_expect_word(q, "pack_dtype", words, &word, err);
    if (st == CTW_OK)
        st = ctw_json_read_bool(q, "is_marlin_format", CTW_JSON_OPTIONAL, &marlin, err);
    if (st == CTW_OK && marlin)
        return ctw_json_fail(ctw_json_get(q, "is_marlin_format"), err, CTW_EUNSUP,
                             "GPTQ repacked for Marlin is not supported; give the GPTQ checkpoint "
                             "that it was made from");
    args->zero_less_one = format == NULL || strcmp(format, "gptq") == 0;
    return st;
}

/* GPTQModel rotates the weights, and its kernels the inputs of mlp.down_proj at run time. */
static enum ctw_status check_rotation(const struct ctw_json_node *q, struct ctw_err *err)
{
    const char *kind = NULL;
    enum ctw_status st = ctw_json_read_string(q, "rotation", CTW_JSON_OPTIONAL, &kind, err);
    if (st != CTW_OK || kind == NULL || kind[0] == '\0')
        return st;
    return ctw_json_fail(ctw_json_get(q, "rotation"), err, CTW_EUNSUP,
                         "\"%s\" requests that inputs are rotated at run time: not supported; "
                         "quantise the model again without GPTQModel's rotation",
                         kind);
}

enum ctw_status ctw_quant_read_gptq(struct ctw_quant_config *out, const struct ctw_json_node *q,
                                    struct ctw_err *err)
{
    struct ctw_quant_args args = {
        .num_bits = 4, .symmetric = true, .strategy = CTW_STRATEGY_GROUP, .group_size = 128};
    enum ctw_status st = ctw_quant_read_packed(&args, q, false, err);
    if (st == CTW_OK)
        st = read_version(&args, q, err);
    if (st == CTW_OK)
        st = check_rotation(q, err);
    if (st == CTW_OK)
        st = ctw_quant_read_list(out, q, "modules_to_not_convert", "ignored_layers", err);
    if (st == CTW_OK)
        st = read_dynamic(out, q, &args, err);
    return st == CTW_OK ? ctw_quant_add_group(out, "gptq", NULL, &args, "", err) : st;
}

/* ---- AWQ ---- */

/* Quark's export in this method's name: AutoAWQ's bytes only if asymmetric and reordered. */
static enum ctw_status check_order(const struct ctw_quant_args *args, const struct ctw_json_node *q,
                                   struct ctw_err *err)
{
    static const char *const orders[] = {"reorder", NULL};
    const char *order;
    enum ctw_status st = ctw_quant_expect_word(q, "pack_method", orders, &order, err);
    if (st == CTW_OK && order != NULL && args->symmetric)
        return ctw_json_fail(ctw_json_get(q, "pack_method"), err, CTW_EUNSUP,
                             "Quark's signed codes are not AWQ's; export the model from Quark with "
                             "custom_mode \"quark\"");
    return st;
}

enum ctw_status ctw_quant_read_awq(struct ctw_quant_config *out, const struct ctw_json_node *q,
                                   struct ctw_err *err)
{
    static const char *const versions[] = {"gemm", NULL};
    struct ctw_quant_args args = {.num_bits = 4, .strategy = CTW_STRATEGY_GROUP, .group_size = 128};
    const char *version;
    const char *key = ctw_json_has(q, "version")             ? "version"
                      : ctw_json_has(q, "checkpoint_format") ? "checkpoint_format"
                                                             : "format";
    enum ctw_status st = ctw_quant_read_packed(&args, q, true, err);
    if (st == CTW_OK)
        st = ctw_quant_expect_word(q, key, versions, &version, err);
    if (st == CTW_OK)
        st = check_order(&args, q, err);
    if (st == CTW_OK)
        st = ctw_quant_read_list(out, q, "modules_to_not_convert", "ignored_layers", err);
    return st == CTW_OK ? ctw_quant_add_group(out, "awq", NULL, &args, "", err) : st;
}
