/* HQQ. The tensors state bits, groups and axis; the configuration, what of it can be saved. */
#include "worker/checkpoint/quant/quant_args.h"
#include "worker/checkpoint/quant/quant_native.h"

/* Arguments of all modules, or of a module's tag. */
static enum ctw_status check_arguments(const struct ctw_json_node *object, struct ctw_err *err)
{
    static const char *const nested[] = {"scale_quant_params", "zero_quant_params"};
    const struct ctw_json_node *weight = NULL;
    bool as_float = false;
    for (size_t i = 0; i < CTW_COUNT(nested); i++) {
        const struct ctw_json_node *m = ctw_json_get(object, nested[i]);
        if (m != NULL && !ctw_json_is_null(m))
            return ctw_json_fail(m, err, CTW_EUNSUP,
                                 "quantised scales and zero points are not supported; quantise the "
                                 "original model with quant_scale and quant_zero false");
    }
    enum ctw_status st = ctw_json_read_node(object, "weight_quant_params", CTW_JSON_REQUIRED,
                                            CTW_JSON_OBJECT, &weight, err);
    if (st == CTW_OK)
        st = ctw_json_read_bool(weight, "view_as_float", CTW_JSON_OPTIONAL, &as_float, err);
    if (st == CTW_OK && as_float)
        return ctw_json_fail(ctw_json_get(weight, "view_as_float"), err, CTW_EUNSUP,
                             "codes that are stored as floats are not supported; quantise the "
                             "original model with view_as_float false");
    return st;
}

enum ctw_status ctw_quant_read_hqq(struct ctw_quant_config *out, const struct ctw_json_node *q,
                                   struct ctw_err *err)
{
    const struct ctw_json_node *object = NULL;
    const struct ctw_quant_args args = {.present = true, .strategy = CTW_STRATEGY_GROUP};
    enum ctw_status st =
        ctw_json_read_node(q, "quant_config", CTW_JSON_REQUIRED, CTW_JSON_OBJECT, &object, err);
    if (st == CTW_OK && ctw_json_has(object, "weight_quant_params"))
        st = check_arguments(object, err);
    else
        for (const struct ctw_json_node *m = st == CTW_OK ? ctw_json_first(object) : NULL;
             m != NULL && st == CTW_OK; m = ctw_json_next(m)) {
            st = ctw_json_expect(m, CTW_JSON_OBJECT, err);
            if (st == CTW_OK)
                st = check_arguments(m, err);
        }
    if (st == CTW_OK)
        st = ctw_quant_read_list(out, q, "skip_modules", "modules_to_not_convert", err);
    return st == CTW_OK ? ctw_quant_add_group(out, "hqq", NULL, &args, "", err) : st;
}
