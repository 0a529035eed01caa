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

/* Is it one exponent a scale (kernels/formats/e8m0.h)? */
static inline bool ctw_part_is_e8m0(const struct ctw_part *part)
{
    return ctw_part_present(part) && (part->dtype == CTW_U8 || part->dtype == CTW_F8_E8M0);
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

/* An owns(): VALUES of packed words, and scales. The declared method says which format they have.
 */
bool ctw_owns_words(const struct ctw_part part[CTW_N_PARTS]);

/* Fills the fields of a weight without scales; row_elems: between the starts of two rows. */
void ctw_fill_dense(struct ctw_weight *w, int64_t row_elems);

/* CTW_EFORMAT if no group of the configuration applies to the weight. */
enum ctw_status ctw_check_targeted(const struct ctw_weight *w, const struct ctw_quant_args *args,
                                   struct ctw_err *err);

/*
 * check_scale.c: scales that are floats (or exponents, with FP8 values), zero points and indices.
 * Each function checks a part and fills the fields that the part determines.
 */

/* SCALE against args' strategy: dtype, group_rows, group_size, n_groups, scale_stride. */
enum ctw_status ctw_check_scale(struct ctw_weight *w, const struct ctw_quant_args *args,
                                struct ctw_err *err);
/* ZERO_POINT, after the scales: none, or one I8 for each scale. Sets
 * w->symmetric: has the weight no zero points? */
enum ctw_status ctw_check_zero_point(struct ctw_weight *w, struct ctw_err *err);
/* GROUP_INDEX, after the scales: indexed. */
enum ctw_status ctw_check_group_index(struct ctw_weight *w, const struct ctw_quant_args *args,
                                      struct ctw_err *err);
/* Does a group of the configuration with scales of floats apply to the weight? */
enum ctw_status ctw_check_scaled_args(const struct ctw_weight *w, const struct ctw_quant_args *args,
                                      struct ctw_err *err);
/* What the formats of kernels/formats/bytes.h share, with bits and symmetric set: all of the parts
 * and fields. */
enum ctw_status ctw_check_bytes(struct ctw_weight *w, const struct ctw_quant_args *args,
                                struct ctw_err *err);
/*
 * What GPTQ and AWQ share, with bits set: VALUES [rows, cols], one scale for each output and group
 * of inputs, and packed zero points; dtype, group_rows, group_size, n_groups, scale_stride and the
 * flags but indexed and zero_less_one.
 */
enum ctw_status ctw_check_transposed(struct ctw_weight *w, const struct ctw_quant_args *args,
                                     int64_t rows, int64_t cols, struct ctw_err *err);
/* The whole check() of nvfp4, and of ModelOpt's NVFP4 but for its dtype: `group` columns a scale.
 */
enum ctw_status ctw_check_nvfp4(struct ctw_weight *w, const struct ctw_quant_args *args,
                                int64_t group, struct ctw_err *err);
/* The whole check() of mxfp4, mxfp6 and mxfp8. */
enum ctw_status ctw_check_mx(struct ctw_weight *w, const struct ctw_quant_args *args, int bits,
                             struct ctw_err *err);
/* A check_data(): the indices themselves. */
enum ctw_status ctw_check_group_index_data(struct ctw_weight *w, const struct ctw_weight_data *data,
                                           struct ctw_err *err);

#endif
