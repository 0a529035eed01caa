#include "kernels/formats/check.h"

#include <stdarg.h>
#include <stdio.h>

enum ctw_status ctw_part_fail(const struct ctw_weight *w, enum ctw_part_kind kind,
                              struct ctw_err *err, const char *expected, ...)
{
    char found[96], want[256];
    va_list args;
    va_start(args, expected);
    vsnprintf(want, sizeof(want), expected, args);
    va_end(args);
    return ctw_fail(err, CTW_EFORMAT, "%s: found %s, expected %s",
                    ctw_part_name(w->names, w->part, kind),
                    ctw_part_text(&w->part[kind], found, sizeof(found)), want);
}

enum ctw_status ctw_parts_only(const struct ctw_weight *w, unsigned allowed, struct ctw_err *err)
{
    char found[96];
    for (int i = 0; i < CTW_N_PARTS; i++)
        if (ctw_part_present(&w->part[i]) && (allowed >> i & 1u) == 0)
            return ctw_fail(err, CTW_EFORMAT,
                            "%s: found %s, which a %s weight does not have; the checkpoint "
                            "contradicts itself",
                            ctw_part_name(w->names, w->part, i),
                            ctw_part_text(&w->part[i], found, sizeof(found)), w->format->name);
    return CTW_OK;
}

enum ctw_status ctw_check_targeted(const struct ctw_weight *w, const struct ctw_quant_args *args,
                                   struct ctw_err *err)
{
    if (args->present)
        return CTW_OK;
    return ctw_fail(err, CTW_EFORMAT,
                    "its tensors are %s, but quantization_config has no config group for it (by "
                    "targets and ignore), so it should be dense",
                    w->format->name);
}

bool ctw_owns_words(const struct ctw_part part[CTW_N_PARTS])
{
    return ctw_part_present(&part[CTW_PART_VALUES]) && part[CTW_PART_VALUES].dtype == CTW_I32 &&
           ctw_part_present(&part[CTW_PART_SCALE]);
}

void ctw_fill_dense(struct ctw_weight *w, int64_t row_elems)
{
    w->dtype = w->part[CTW_PART_VALUES].dtype;
    w->bits = (int)(8 * ctw_dtype_bytes(w->dtype));
    w->symmetric = true;
    w->group_rows = 1;
    w->group_size = w->k;
    w->n_groups = 0;
    w->scale_stride = 0;
    w->row_bytes = (size_t)row_elems * ctw_dtype_bytes(w->dtype);
    w->indexed = w->zero_packed = w->whole_codes = w->zero_less_one = false;
}
