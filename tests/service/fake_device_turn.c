#include "fake_device_operands.h"
#include "kernels/turn.h"

void fake_check_turn(struct gpu *gpu, const struct ctw_op_turn *op)
{
    int64_t width = (int64_t)op->n_head * op->head;
    int32_t last = 0;
    gpu_check(gpu, op->x, area(op->n_tok, op->ldx, width, op->dtype), "turn: x");
    gpu_check(gpu, op->positions, (size_t)op->n_tok * sizeof(*op->positions), "turn: positions");
    for (int64_t t = 0; t < op->n_tok; t++)
        last = op->positions[t] > last ? op->positions[t] : last;
    gpu_check(gpu, op->cos_sin, area(last + 1, op->turning, op->turning, CTW_F32), "turn: cos_sin");
}
