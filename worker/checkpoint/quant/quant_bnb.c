/* bitsandbytes: NF4, FP4 and LLM.int8(). The tensors state almost everything. */
#include <stdio.h>

#include "worker/checkpoint/quant/quant_args.h"
#include "worker/checkpoint/quant/quant_native.h"

/* Under its own name, or as transformers' class keeps it. */
static enum ctw_status read_flag(const struct ctw_json_node *q, const char *name, bool *out,
                                 struct ctw_err *err)
{
    char hidden[32];
    (void)snprintf(hidden, sizeof(hidden), "_%s", name);
    *out = false;
    return ctw_json_read_bool(q, ctw_json_has(q, name) ? name : hidden, CTW_JSON_OPTIONAL, out,
                              err);
}

enum ctw_status ctw_quant_read_bnb(struct ctw_quant_config *out, const struct ctw_json_node *q,
                                   struct ctw_err *err)
{
    static const char *const types[] = {"nf4", "fp4", NULL};
    bool four = false, eight = false;
    const char *type;
    enum ctw_status st = read_flag(q, "load_in_4bit", &four, err);
    if (st == CTW_OK)
        st = read_flag(q, "load_in_8bit", &eight, err);
    if (st == CTW_OK)
        st = ctw_quant_expect_word(q, "bnb_4bit_quant_type", types, &type, err);
    if (st == CTW_OK)
        st = ctw_quant_read_list(out, q, "llm_int8_skip_modules", "modules_to_not_convert", err);
    if (st == CTW_OK && four == eight)
        return ctw_json_fail(q, err, CTW_EFORMAT,
                             "expected one of load_in_4bit and load_in_8bit to be true");
    const struct ctw_quant_args args = {.present = true,
                                        .num_bits = four ? 4 : 8,
                                        .is_float = four,
                                        .symmetric = true,
                                        .strategy = CTW_STRATEGY_GROUP,
                                        .dtype = CTW_BF16};
    return st == CTW_OK ? ctw_quant_add_group(out, "bitsandbytes", NULL, &args, "", err) : st;
}

/* ---- a matrix's state ---- */

static enum ctw_status check_shape(const struct ctw_json_node *state, int64_t n, int64_t k,
                                   struct ctw_err *err)
{
    const struct ctw_json_node *shape;
    int64_t sides[2] = {0};
    enum ctw_status st =
        ctw_json_read_node(state, "shape", CTW_JSON_REQUIRED, CTW_JSON_ARRAY, &shape, err);
    const struct ctw_json_node *side = st == CTW_OK ? ctw_json_first(shape) : NULL;
    for (int i = 0; i < 2 && st == CTW_OK && side != NULL; i++, side = ctw_json_next(side))
        st = ctw_json_as_int(side, 1, CTW_MAX_DIM, &sides[i], err);
    if (st == CTW_OK && (ctw_json_count(shape) != 2 || sides[0] != n || sides[1] != k))
        return ctw_json_fail(shape, err, CTW_EFORMAT,
                             "found (%lld, %lld), expected (%lld, %lld) according to config.json",
                             (long long)sides[0], (long long)sides[1], (long long)n, (long long)k);
    return st;
}

static enum ctw_status read_state(struct ctw_quant_args *args, const struct ctw_json_node *state,
                                  struct ctw_err *err)
{
    static const char *const types[] = {"nf4", "fp4", NULL};
    static const char *const dtypes[] = {"bfloat16", "float16", "float32", NULL};
    static const char *const nested_dtypes[] = {"float32", NULL};
    const char *type, *dtype, *nested;
    int64_t nested_block = 256;
    double offset = 0;
    enum ctw_status st = ctw_quant_expect_word(state, "quant_type", types, &type, err);
    if (st == CTW_OK)
        st = ctw_quant_expect_word(state, "dtype", dtypes, &dtype, err);
    if (st == CTW_OK)
        st = ctw_quant_expect_word(state, "nested_dtype", nested_dtypes, &nested, err);
    if (st == CTW_OK)
        st = ctw_json_read_int(state, "blocksize", CTW_JSON_REQUIRED, 1, CTW_MAX_DIM,
                               &args->group_size, err);
    if (st == CTW_OK)
        st = ctw_json_read_int(state, "nested_blocksize", CTW_JSON_OPTIONAL, 256, 256,
                               &nested_block, err);
    if (st == CTW_OK && ctw_json_has(state, "nested_offset"))
        st = ctw_json_as_double(ctw_json_get(state, "nested_offset"), &offset, err);
    if (st != CTW_OK)
        return st;
    if (type == NULL || dtype == NULL)
        return ctw_json_fail(state, err, CTW_EFORMAT, "expected quant_type and dtype");
    args->fp4 = type == types[1];
    args->dtype = dtype == dtypes[0] ? CTW_BF16 : dtype == dtypes[1] ? CTW_F16 : CTW_F32;
    args->scale_offset = (float)offset;
    return CTW_OK;
}

enum ctw_status ctw_quant_read_bnb_state(struct ctw_quant_args *args, const char *text,
                                         size_t bytes, int64_t n, int64_t k, struct ctw_err *err)
{
    struct ctw_json *doc = NULL;
    enum ctw_status st = ctw_json_parse(&doc, "quant_state", text, bytes, 1 << 16, err);
    if (st == CTW_OK)
        st = ctw_json_expect(ctw_json_root(doc), CTW_JSON_OBJECT, err);
    if (st == CTW_OK)
        st = check_shape(ctw_json_root(doc), n, k, err);
    if (st == CTW_OK)
        st = read_state(args, ctw_json_root(doc), err);
    ctw_json_close(doc);
    return st;
}
