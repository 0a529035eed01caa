#include <math.h>

#include "kernels/formats/check.h"
#include "kernels/formats/nvfp4/decode.h"

static bool owns(const struct ctw_part part[CTW_N_PARTS])
{
    return ctw_part_present(&part[CTW_PART_VALUES]) && part[CTW_PART_VALUES].dtype == CTW_U8 &&
           ctw_part_present(&part[CTW_PART_SCALE]) && part[CTW_PART_SCALE].dtype == CTW_F8_E4M3;
}

/* Both formats'. */
static enum ctw_status check_args(const struct ctw_weight *w, const struct ctw_quant_args *args,
                                  struct ctw_err *err)
{
    enum ctw_status st = ctw_check_targeted(w, args, err);
    if (st != CTW_OK)
        return st;
    if (!args->is_float || args->num_bits != 4 || !args->symmetric)
        return ctw_fail(err, CTW_EFORMAT,
                        "its tensors are %s, but quantization_config says %d-bit %s, %s; expected "
                        "4-bit float, symmetric",
                        w->format->name, args->num_bits, args->is_float ? "float" : "int",
                        args->symmetric ? "symmetric" : "asymmetric");
    if ((args->strategy != CTW_STRATEGY_TENSOR_GROUP && args->strategy != CTW_STRATEGY_GROUP) ||
        args->group_size != CTW_NVFP4_GROUP)
        return ctw_fail(err, CTW_EFORMAT,
                        "its tensors are %s, but quantization_config says group_size %lld; "
                        "expected strategy tensor_group (or group) and group_size %d",
                        w->format->name, (long long)args->group_size, CTW_NVFP4_GROUP);
    return CTW_OK;
}

enum ctw_status ctw_check_nvfp4(struct ctw_weight *w, const struct ctw_quant_args *args,
                                int64_t group, struct ctw_err *err)
{
    const unsigned allowed =
        1u << CTW_PART_VALUES | 1u << CTW_PART_SCALE | 1u << CTW_PART_GLOBAL_SCALE;
    enum ctw_status st = ctw_parts_only(w, allowed, err);
    if (st == CTW_OK)
        st = check_args(w, args, err);
    if (st != CTW_OK)
        return st;
    if (w->k % group != 0)
        return ctw_fail(err, CTW_EUNSUP,
                        "%lld columns are not a multiple of %lld, which nvfp4 needs",
                        (long long)w->k, (long long)group);
    if (!ctw_part_has_shape(&w->part[CTW_PART_VALUES], w->n, w->k / 2))
        return ctw_part_fail(w, CTW_PART_VALUES, err, "U8 [%lld, %lld] for a [%lld, %lld] matrix",
                             (long long)w->n, (long long)(w->k / 2), (long long)w->n,
                             (long long)w->k);
    w->n_groups = w->k / group;
    if (!ctw_part_has_shape(&w->part[CTW_PART_SCALE], w->n, w->n_groups))
        return ctw_part_fail(w, CTW_PART_SCALE, err, "F8_E4M3 [%lld, %lld]", (long long)w->n,
                             (long long)w->n_groups);
    const struct ctw_part *global = &w->part[CTW_PART_GLOBAL_SCALE];
    /* compressed-tensors' strategy group has none. */
    bool none = w->format == &ctw_format_nvfp4 && args->strategy == CTW_STRATEGY_GROUP &&
                !ctw_part_present(global);
    if (!none && (!ctw_part_is_float(global) || !ctw_part_is_scalar(global)))
        return ctw_part_fail(w, CTW_PART_GLOBAL_SCALE, err, "one F32 (or BF16, F16) value");
    w->dtype = CTW_BF16; /* regardless of the model's dtype, as in compressed-tensors */
    w->bits = 4;
    w->symmetric = true;
    w->group_rows = 1;
    w->group_size = group;
    w->scale_stride = w->n_groups;
    w->row_bytes = (size_t)w->k / 2;
    w->indexed = w->zero_packed = w->whole_codes = w->zero_less_one = false;
    return CTW_OK;
}

static enum ctw_status check(struct ctw_weight *w, const struct ctw_quant_args *args,
                             const int64_t *shape_part, struct ctw_err *err)
{
    (void)shape_part;
    return ctw_check_nvfp4(w, args, CTW_NVFP4_GROUP, err);
}

static enum ctw_status check_data(struct ctw_weight *w, const struct ctw_weight_data *data,
                                  struct ctw_err *err)
{
    const void *stored = data->part[CTW_PART_GLOBAL_SCALE];
    if (stored == NULL)
        return CTW_OK;
    float global = ctw_load_float(stored, w->part[CTW_PART_GLOBAL_SCALE].dtype, 0);
    if (!isfinite(global) || global == 0.0f)
        return ctw_fail(err, CTW_EFORMAT,
                        "weight_global_scale: found %g, expected a finite number other than 0 (it "
                        "divides the scales); the checkpoint is damaged",
                        (double)global);
    return CTW_OK;
}

const struct ctw_format ctw_format_nvfp4 = {
    .id = CTW_FORMAT_nvfp4,
    .name = "nvfp4-pack-quantized",
    .owns = owns,
    .check = check,
    .check_data = check_data,
    .decode = ctw_nvfp4_decode,
};
