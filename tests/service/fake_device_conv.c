#include "fake_device_operands.h"
#include "kernels/conv.h"

void fake_check_conv(struct gpu *gpu, const struct ctw_op_conv *op)
{
    size_t state = (size_t)(op->dim * ctw_conv_behind(op)) * sizeof(float);
    int64_t columns = ctw_conv_column(op, op->dim - 1) + 1 + ctw_conv_columns(op) - op->dim;
    gpu_check(gpu, op->x, area(op->n_tok, op->ldx, columns, op->dtype), "conv: x");
    gpu_check(gpu, op->y, area(op->n_tok, op->ldy, op->dim, op->dtype), "conv: y");
    fake_check_states(gpu, &op->states, op->parts, op->n_parts, state);
}
