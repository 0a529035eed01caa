#include "fake_device_operands.h"
#include "kernels/lru.h"

void fake_check_lru(struct gpu *gpu, const struct ctw_op_lru *op)
{
    const int64_t dim = op->n_head * op->head;
    gpu_check(gpu, op->x, area(op->n_tok, op->ldx, dim, op->dtype), "lru: x");
    gpu_check(gpu, op->gates, area(op->n_tok, op->ldg, 2 * dim, op->dtype), "lru: gates");
    gpu_check(gpu, op->y, area(op->n_tok, op->ldy, dim, op->dtype), "lru: y");
    gpu_read(gpu, op->decay, area(1, 0, dim, op->decay_dtype), "lru: decay");
    fake_check_states(gpu, &op->states, op->parts, op->n_parts, (size_t)dim * sizeof(float));
}
