/* Numbers among a RoPE's parameters, wherever a file has them. */
#include <inttypes.h>
#include <math.h>

#include "worker/model/rope/rope_internal.h"

/* A number at the top level, or in a list there the layer's entry. */
static enum ctw_status read_top(double *out, const struct ctw_rope_place *at, const char *key,
                                struct ctw_err *err)
{
    const struct ctw_json_node *node = ctw_json_get(at->root, key);
    if (!at->lists || node == NULL || ctw_json_type(node) != CTW_JSON_ARRAY)
        return ctw_json_read_double(at->root, key, CTW_JSON_OPTIONAL, out, err);
    const struct ctw_json_node *entry = ctw_json_first(node);
    for (int64_t i = 0; i < at->layer && entry != NULL; i++)
        entry = ctw_json_next(entry);
    return entry != NULL ? ctw_json_as_double(entry, out, err)
                         : ctw_json_fail(node, err, CTW_EFORMAT, "has no entry for layer %" PRId64,
                                         at->layer);
}

enum ctw_status ctw_rope_read_either(double *out, const struct ctw_rope_place *at, const char *key,
                                     const char *top_key, struct ctw_err *err)
{
    double top = NAN, inner = NAN;
    enum ctw_status st = read_top(&top, at, top_key, err);
    if (st == CTW_OK && at->object != NULL)
        st = ctw_json_read_double(at->object, key, CTW_JSON_OPTIONAL, &inner, err);
    if (st != CTW_OK)
        return st;
    if (!isnan(top) && !isnan(inner) && top != inner && !at->own)
        return ctw_json_fail(ctw_json_get(at->root, top_key), err, CTW_EFORMAT,
                             "found %g, and %g in the RoPE parameters; transformers' versions "
                             "differ in which they use: remove one",
                             top, inner);
    *out = !isnan(inner) ? inner : !isnan(top) ? top : *out;
    return CTW_OK;
}

enum ctw_status ctw_rope_positive(const struct ctw_json_node *node, const char *key, double value,
                                  double above, struct ctw_err *err)
{
    if (value > above && value < 1e12)
        return CTW_OK;
    return ctw_json_fail(node, err, CTW_EFORMAT, "%s: found %g, expected a number above %g", key,
                         value, above);
}
