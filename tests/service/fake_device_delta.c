#include "fake_device_operands.h"
#include "kernels/delta.h"

void fake_check_delta(struct gpu *gpu, const struct ctw_op_delta *op)
{
    int64_t values = (int64_t)op->n_value * op->value, keys = (int64_t)op->n_key * op->key;
    int64_t b = ctw_delta_column(op, op->n_value - 1) + 1;
    int64_t a = op->by_channel ? op->n_value * (int64_t)op->key : b;
    size_t state = ctw_delta_bytes(op->n_key, op->n_value, op->key, op->value, op->dtype);
    gpu_check(gpu, op->x, area(op->n_tok, op->ldx, 2 * keys + values, op->dtype), "delta: x");
    gpu_check(gpu, op->b, area(op->n_tok, op->ldba, b, op->dtype), "delta: b");
    gpu_check(gpu, op->a, area(op->n_tok, op->ldba, a, op->dtype), "delta: a");
    gpu_check(gpu, op->y, area(op->n_tok, op->ldy, values, op->dtype), "delta: y");
    fake_check_states(gpu, &op->states, op->parts, op->n_parts, state);
}
