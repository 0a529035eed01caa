#include "fake_device_operands.h"
#include "kernels/blend.h"

void fake_check_blend(struct gpu *gpu, const struct ctw_op_blend *op)
{
    int64_t n = op->n_tok;
    if (op->rows != NULL)
        gpu_check(gpu, op->rows, (size_t)n * sizeof(*op->rows), "blend: rows");
    for (int64_t t = 0; op->rows != NULL && t < op->n_tok; t++)
        n = op->rows[t] + 1 > n ? op->rows[t] + 1 : n;
    gpu_check(gpu, op->x, area(n, op->ldx, op->n_parts * op->dim, CTW_F32), "blend: x");
    gpu_check(gpu, op->y, area(n, op->ldy, op->dim, CTW_F32), "blend: y");
    gpu_read(gpu, op->a, area(1, 0, op->dim, op->a_dtype), "blend: a");
    if (op->b != NULL)
        gpu_read(gpu, op->b, area(1, 0, op->dim, op->b_dtype), "blend: b");
}
