/* MLX's modes mxfp4, mxfp8 and nvfp4, whose tensors say less than those of other methods. */
#include "kernels/formats/e2m1.h"
#include "kernels/formats/e8m0.h"
#include "kernels/formats/format.h"

void ctw_parts_as_mlx(struct ctw_part part[CTW_N_PARTS])
{
    struct ctw_part *values = &part[CTW_PART_VALUES], *scale = &part[CTW_PART_SCALE];
    if (values->n_dims != 2 || values->dtype != CTW_U32 || scale->n_dims != 2 ||
        scale->dtype != CTW_U8 || scale->shape[1] < 1)
        return;
    const int64_t bytes = 4 * values->shape[1], groups = scale->shape[1];
    values->dtype = CTW_U8;
    values->shape[1] = bytes;
    if (bytes == groups * CTW_MX_GROUP)
        values->dtype = CTW_F8_E4M3;
    else if (bytes == groups * CTW_NVFP4_GROUP / 2)
        scale->dtype = CTW_F8_E4M3;
}
