#include "fake_device_operands.h"
#include "kernels/pool.h"

void fake_check_pool(struct gpu *gpu, const struct ctw_op_pool *op)
{
    int64_t columns = (op->overlaps ? 2 : 1) * (int64_t)op->dim, n_q, n_tok;
    fake_count_rows(op->seqs, op->n_seqs, &n_q, &n_tok);
    gpu_check(gpu, op->x, area(n_tok, op->ldx, columns, op->dtype), "pool: x");
    if (op->gate != NULL)
        gpu_check(gpu, op->gate, area(n_tok, op->ldx, columns, op->dtype), "pool: gate");
    gpu_check(gpu, op->y, area(n_tok, op->ldy, op->dim, op->dtype), "pool: y");
    if (op->gate != NULL)
        gpu_read(gpu, op->bias, area(1, 0, op->block * columns, op->bias_dtype), "pool: bias");
    if (op->norm != NULL)
        gpu_read(gpu, op->norm, area(1, 0, op->dim, op->norm_dtype), "pool: norm");
}

void fake_check_pool_attention(struct gpu *gpu, const struct ctw_op_pool_attention *op)
{
    int64_t width = (int64_t)op->n_head * op->head, n_q, n_tok;
    fake_count_rows(op->seqs, op->n_seqs, &n_q, &n_tok);
    gpu_check(gpu, op->q, area(n_q, width, width, op->dtype), "pool_attention: q");
    gpu_check(gpu, op->out, area(n_q, width, width, op->dtype), "pool_attention: out");
    gpu_check(gpu, op->k, area(n_tok, op->head, op->head, op->dtype), "pool_attention: k");
    gpu_check(gpu, op->pooled, area(n_tok, op->ld_pooled, op->head, op->dtype),
              "pool_attention: pooled");
    gpu_check_any(gpu, op->seen, (size_t)(n_q * op->ld_seen) * sizeof(*op->seen),
                  "pool_attention: seen");
    if (op->sinks != NULL)
        gpu_read(gpu, op->sinks, area(1, 0, op->n_head, op->sinks_dtype), "pool_attention: sinks");
}
