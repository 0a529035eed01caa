#include "worker/model/names/stored.h"

#include "worker/model/recipe/kinds.h"

enum { NVFP4_GROUP = 16, MX_GROUP = 32 }; /* columns that share a scale */

const struct ctw_part_names *ctw_stored_next(const struct ctw_quant_config *qc,
                                             const struct ctw_part_names *last)
{
    const struct ctw_part_names *names = ctw_part_names_next(last);
    while (names != NULL && (names == qc->names || names->needs_config))
        names = ctw_part_names_next(names);
    return qc->mixes ? names : NULL;
}

/* The side of `blocks` blocks along n rows or columns: a power of two, of which the last block may
 * have a part; 0: there is no such side, or equal parts of another size are as likely. */
static int64_t side_of(int64_t n, int64_t blocks)
{
    int64_t side = 1;
    if (blocks == 1)
        return n;
    while (side < n && (n + side - 1) / side != blocks)
        side *= 2;
    bool equal = blocks > 1 && n % blocks == 0;
    return side < n && !(equal && n / blocks != side) ? side : 0;
}

/* One scale, one for each row, or one for each block. */
static bool show_scales(const struct ctw_weight *w, struct ctw_quant_args *args)
{
    const struct ctw_part *scale = &w->part[CTW_PART_SCALE];
    bool apart = scale->n_dims == 4 && scale->shape[1] == 1 && scale->shape[3] == 1;
    int64_t down = scale->n_dims > 0 ? scale->shape[0] : 1;
    int64_t right = apart ? scale->shape[2] : scale->n_dims == 2 ? scale->shape[1] : 1;
    if (down == 1 && right == 1) {
        args->strategy = CTW_STRATEGY_TENSOR;
        return true;
    }
    if (scale->n_dims == 1 || (scale->n_dims == 2 && right == 1 && down == w->n)) {
        args->strategy = CTW_STRATEGY_CHANNEL;
        return down == w->n;
    }
    args->strategy = CTW_STRATEGY_BLOCK;
    args->block_rows = side_of(w->n, down);
    args->block_cols = side_of(w->k, right);
    return (apart || scale->n_dims == 2) && args->block_rows > 0 && args->block_cols > 0;
}

/* GPTQ and AWQ: the parts show bits and groups; the rest follows the configuration of other
 * modules. */
static bool show_packed(const struct ctw_weight *w, struct ctw_quant_args *args)
{
    const struct ctw_part *values = &w->part[CTW_PART_VALUES], *scale = &w->part[CTW_PART_SCALE];
    int64_t words = values->n_dims == 2 ? values->shape[0] : 0;
    int64_t groups = scale->n_dims == 2 ? scale->shape[0] : 0;
    args->num_bits = w->format->id == CTW_FORMAT_gptq ? (int)(words * 32 / w->k) : 4;
    args->strategy = groups == 1 ? CTW_STRATEGY_CHANNEL : CTW_STRATEGY_GROUP;
    args->group_size = groups > 1 ? w->k / groups : 0;
    return groups > 0 && w->k % groups == 0;
}

/* MLX's affine mode. */
static bool show_mlx(const struct ctw_weight *w, struct ctw_quant_args *args)
{
    const struct ctw_part *values = &w->part[CTW_PART_VALUES], *scale = &w->part[CTW_PART_SCALE];
    int64_t words = values->n_dims == 2 ? values->shape[1] : 0;
    int64_t groups = scale->n_dims == 2 ? scale->shape[1] : 0;
    args->is_float = false;
    args->num_bits = (int)(words * 32 / w->k);
    args->group_size = groups > 0 ? w->k / groups : 0;
    return words * 32 % w->k == 0 && groups > 0 && w->k % groups == 0;
}

/* Writes the arguments that the parts show to *args, which holds the arguments of other modules. */
static bool show(const struct ctw_weight *w, struct ctw_quant_args *args)
{
    const struct ctw_part *values = &w->part[CTW_PART_VALUES], *scale = &w->part[CTW_PART_SCALE];
    const struct ctw_quant_args others = *args;
    *args = (struct ctw_quant_args){.present = true,
                                    .num_bits = 8,
                                    .is_float = true,
                                    .symmetric = true,
                                    .strategy = CTW_STRATEGY_GROUP};
    switch (w->format->id) {
    case CTW_FORMAT_gptq:
    case CTW_FORMAT_awq:
        args->is_float = false;
        args->symmetric = others.symmetric;
        args->zero_less_one = others.zero_less_one;
        return show_packed(w, args) && others.present;
    case CTW_FORMAT_mlx_affine:
        return show_mlx(w, args);
    case CTW_FORMAT_mxfp8:
    case CTW_FORMAT_mxfp6:
    case CTW_FORMAT_mxfp4:
        args->num_bits = w->format->id == CTW_FORMAT_mxfp8   ? 8
                         : w->format->id == CTW_FORMAT_mxfp6 ? 6
                                                             : 4;
        args->group_size = MX_GROUP;
        return true;
    case CTW_FORMAT_float_quantized:
        return show_scales(w, args);
    case CTW_FORMAT_int_quantized:
    case CTW_FORMAT_nvfp4:
    case CTW_FORMAT_nvfp4_mlx:
    case CTW_FORMAT_nvfp4_modelopt:
    case CTW_FORMAT_modelopt_awq:
        break;
    default: /* pack-quantized, whose words do not show how many bits a code has */
        return false;
    }
    if (values->dtype == CTW_I8) {
        args->is_float = false;
        args->symmetric = w->part[CTW_PART_ZERO_POINT].n_dims < 0;
        return show_scales(w, args);
    }
    args->num_bits = 4;
    args->is_float = scale->dtype == CTW_F8_E4M3;
    if (args->is_float) {
        bool global = w->part[CTW_PART_GLOBAL_SCALE].n_dims >= 0;
        args->strategy = global ? CTW_STRATEGY_TENSOR_GROUP : CTW_STRATEGY_GROUP;
        args->group_size = NVFP4_GROUP;
    }
    return true;
}

/* Does the configuration describe another kind of values, or other groups than MX's and NVFP4's?
 * (The format's check refuses scales whose shape contradicts the configuration.) */
static bool differs(const struct ctw_quant_args *args, const struct ctw_quant_args *shown)
{
    bool fixed = (shown->is_float || args->by_shape) && shown->group_size > 0;
    return !args->present || args->num_bits != shown->num_bits ||
           args->is_float != shown->is_float ||
           (fixed && args->group_size != shown->group_size &&
            args->block_cols != shown->group_size);
}

static void count(struct ctw_lacking *matrices, const struct ctw_matrix *m)
{
    if (matrices->n++ == 0)
        matrices->first = m->name;
}

enum ctw_status ctw_stored_args(struct ctw_finder *finder, struct ctw_matrix *m,
                                const struct ctw_want *want, struct ctw_quant_args *args,
                                bool *otherwise, struct ctw_err *err)
{
    const struct ctw_quant_config *qc = &finder->config->quant;
    struct ctw_weight *w = &m->weight;
    char scale[96];
    *otherwise = false;
    if ((!qc->mixes && !args->by_shape && !args->by_shape_alone) ||
        ctw_format_find(&w->format, w->names, w->part, NULL) != CTW_OK)
        return CTW_OK;
    if (ctw_weight_is_dense(w)) {
        /* A target for every module does not mean embeddings, heads and routers. */
        bool meant = !ctw_want_is_in(want, ctw_kind_at(want->of)->not_meant);
        if (args->present && meant && qc->mixes)
            count(&finder->plain, m);
        return CTW_OK;
    }
    struct ctw_quant_args shown = {0};
    if (qc->n_groups > 0)
        shown = qc->groups[qc->n_groups - 1].args; /* of all modules that no other group names */
    bool clear = show(w, &shown);
    if (args->by_shape_alone && args->present && clear) {
        *args = shown;
        return CTW_OK;
    }
    if (!args->by_shape_alone && !differs(args, &shown))
        return CTW_OK;
    if (!clear)
        return ctw_fail(err, CTW_EUNSUP,
                        "its tensors are %s, which quantization_config does not say of it, and %s "
                        "%s does not show which values share a scale; name the module in "
                        "quantization_config with its format and group_size",
                        w->format->name, ctw_part_name(w->names, w->part, CTW_PART_SCALE),
                        ctw_part_text(&w->part[CTW_PART_SCALE], scale, sizeof(scale)));
    *args = shown;
    *otherwise = true;
    count(&finder->otherwise, m);
    return CTW_OK;
}
