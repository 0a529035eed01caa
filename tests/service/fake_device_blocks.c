#include "fake_device_operands.h"
#include "kernels/blocks.h"

void fake_check_blocks(struct gpu *gpu, const struct ctw_op_blocks *op)
{
    int64_t q = (int64_t)op->n_head * op->head, scores = op->n_head * op->ld_scores, n_q, n_kv;
    fake_count_rows(op->seqs, op->n_seqs, &n_q, &n_kv);
    gpu_check(gpu, op->q, area(n_q, q, q, op->dtype), "blocks: q");
    gpu_check(gpu, op->k, area(n_kv, op->head, op->head, op->dtype), "blocks: k");
    gpu_check(gpu, op->scores, area(n_q, scores, scores, CTW_F32), "blocks: scores");
    gpu_check(gpu, op->seen, (size_t)(n_q * op->ld_seen) * sizeof(*op->seen), "blocks: seen");
}
