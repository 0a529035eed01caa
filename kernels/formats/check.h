/* Shared by the formats' checks. */
#ifndef CTW_KERNELS_FORMATS_CHECK_H
#define CTW_KERNELS_FORMATS_CHECK_H

#include "kernels/formats/format.h"

static inline bool ctw_part_present(const struct ctw_part *part)
{
    return part->n_dims >= 0;
}

static inline bool ctw_part_is_float(const struct ctw_part *part)
{
    return ctw_part_present(part) &&
           (part->dtype == CTW_BF16 || part->dtype == CTW_F16 || part->dtype == CTW_F32);
}

/* Is the part's shape [n] (k < 0) or [n, k]? */
static inline bool ctw_part_has_shape(const struct ctw_part *part, int64_t n, int64_t k)
{
    if (k < 0)
        return part->n_dims == 1 && part->shape[0] == n;
    return part->n_dims == 2 && part->shape[0] == n && part->shape[1] == k;
}

/* Is it one element: [1] or []? */
static inline bool ctw_part_is_scalar(const struct ctw_part *part)
{
    return part->n_dims == 0 || (part->n_dims == 1 && part->shape[0] == 1);
}

/*
 * CTW_EFORMAT "weight_scale: found BF16 [3, 4], expected ...". `expected` is printf-formatted.
 */
enum ctw_status ctw_part_fail(const struct ctw_weight *w, enum ctw_part_kind kind,
                              struct ctw_err *err, const char *expected, ...) CTW_PRINTF(4, 5);

/* CTW_EFORMAT if a part is present that the format does not use; allowed: bits 1 << kind. */
enum ctw_status ctw_parts_only(const struct ctw_weight *w, unsigned allowed, struct ctw_err *err);

#endif
