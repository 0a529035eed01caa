/*
 * MLX: config.json's "quantization", which mlx-lm also writes as "quantization_config": arguments
 * of all modules, and for some modules arguments of their own, or false.
 */
#include <string.h>

#include "worker/checkpoint/quant/quant_args.h"
#include "worker/checkpoint/quant/quant_native.h"

bool ctw_quant_is_mlx(const struct ctw_json_node *q)
{
    return ctw_json_has(q, "bits") && ctw_json_has(q, "group_size") &&
           !ctw_json_has(q, "quant_method") && !ctw_json_has(q, "sym");
}

/* The defaults of mlx.nn.quantize(). */
static const struct mode {
    const char *name;
    int64_t bits, group_size;
    bool is_float;
} modes[] = {
    {"affine", 4, 64, false},
    {"mxfp4", 4, 32, true},
    {"mxfp8", 8, 32, true},
    {"nvfp4", 4, 16, true},
};

static enum ctw_status read_mode(const struct ctw_json_node *object, const struct mode **out,
                                 struct ctw_err *err)
{
    static const char *const names[] = {"affine", "mxfp4", "mxfp8", "nvfp4", NULL};
    const char *word;
    enum ctw_status st = ctw_quant_expect_word(object, "mode", names, &word, err);
    *out = &modes[0];
    for (size_t i = 0; st == CTW_OK && word != NULL && i < CTW_COUNT(modes); i++)
        if (strcmp(word, modes[i].name) == 0)
            *out = &modes[i];
    return st;
}

/* The arguments that an object states, for all modules or for one. */
static enum ctw_status read_args(struct ctw_quant_args *args, const struct ctw_json_node *object,
                                 struct ctw_err *err)
{
    const struct mode *mode;
    enum ctw_status st = read_mode(object, &mode, err);
    if (st != CTW_OK)
        return st;
    int64_t bits = mode->bits, group_size = mode->group_size;
    st = ctw_json_read_int(object, "bits", CTW_JSON_OPTIONAL, 1, 8, &bits, err);
    if (st == CTW_OK)
        st = ctw_json_read_int(object, "group_size", CTW_JSON_OPTIONAL, 1, CTW_MAX_DIM, &group_size,
                               err);
    *args = (struct ctw_quant_args){.present = true,
                                    .num_bits = (int)bits,
                                    .is_float = mode->is_float,
                                    .symmetric = true,
                                    .strategy = CTW_STRATEGY_GROUP,
                                    .group_size = group_size};
    if (st == CTW_OK && mode->is_float && (bits != mode->bits || group_size != mode->group_size))
        return ctw_json_fail(object, err, CTW_EFORMAT,
                             "mode \"%s\" has %lld bits and group_size %lld; found %lld and %lld",
                             mode->name, (long long)mode->bits, (long long)mode->group_size,
                             (long long)bits, (long long)group_size);
    return st;
}

/* A member whose key is a module: its own arguments, true, or false. */
static enum ctw_status read_module(struct ctw_quant_config *out, const struct ctw_json_node *member,
                                   const struct ctw_quant_args *others, struct ctw_err *err)
{
    const struct ctw_pattern module = {.text = ctw_json_key(member)};
    struct ctw_quant_args args = *others;
    bool quantised = true;
    args.by_shape = false;
    enum ctw_status st = ctw_json_type(member) == CTW_JSON_OBJECT
                             ? read_args(&args, member, err)
                             : ctw_json_as_bool(member, &quantised, err);
    if (st == CTW_OK && !quantised)
        return ctw_patterns_add(&out->ignore, &module, err);
    return st == CTW_OK ? ctw_quant_add_group(out, "mlx", &module, &args, "", err) : st;
}

bool ctw_quant_mlx_is_module(const struct ctw_json_node *member)
{
    enum ctw_json_type type = ctw_json_type(member);
    return type == CTW_JSON_OBJECT || type == CTW_JSON_BOOL;
}

/* mlx-lm finds the arguments of a module without its own in the shapes of its tensors, and so do
 * we: the number of columns makes them unambiguous. */
enum ctw_status ctw_quant_read_mlx(struct ctw_quant_config *out, const struct ctw_json_node *q,
                                   struct ctw_err *err)
{
    struct ctw_quant_args args;
    enum ctw_status st = read_args(&args, q, err);
    args.by_shape = true;
    const struct ctw_json_node *m = ctw_json_first(q);
    for (; m != NULL && st == CTW_OK; m = ctw_json_next(m))
        if (ctw_quant_mlx_is_module(m))
            st = read_module(out, m, &args, err);
    return st == CTW_OK ? ctw_quant_add_group(out, "mlx", NULL, &args, "", err) : st;
}
