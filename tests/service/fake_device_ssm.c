#include "fake_device_operands.h"
#include "kernels/ssm.h"

void fake_check_ssm(struct gpu *gpu, const struct ctw_op_ssm *op)
{
    int64_t inner = op->n_head * op->head, selection = op->n_groups * op->n_state;
    size_t carry = ctw_ssm_bytes(op);
    gpu_check(gpu, op->x, area(op->n_tok, op->ldx, inner, op->dtype), "ssm: x");
    gpu_check(gpu, op->b, area(op->n_tok, op->ldbc, selection, op->dtype), "ssm: b");
    gpu_check(gpu, op->c, area(op->n_tok, op->ldbc, selection, op->dtype), "ssm: c");
    gpu_check(gpu, op->dt, area(op->n_tok, op->lddt, op->n_head, op->dtype), "ssm: dt");
    if (op->z != NULL)
        gpu_check(gpu, op->z, area(op->n_tok, op->ldz, inner, op->dtype), "ssm: z");
    gpu_check(gpu, op->y, area(op->n_tok, op->ldy, inner, op->dtype), "ssm: y");
    fake_check_states(gpu, &op->states, op->parts, op->n_parts, carry);
}
