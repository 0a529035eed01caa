#include "fake_device_operands.h"
#include "kernels/ngram_gate.h"

void fake_check_ngram_gate(struct gpu *gpu, const struct ctw_op_ngram_gate *op)
{
    const int64_t width = op->n * op->dim;
    gpu_check(gpu, op->x, area(op->n_tok, width, width, CTW_F32), "ngram_gate: x");
    gpu_check(gpu, op->key, area(op->n_tok, op->ld, width, op->dtype), "ngram_gate: key");
    gpu_check(gpu, op->value, area(op->n_tok, op->ld, op->dim, op->dtype), "ngram_gate: value");
    gpu_check(gpu, op->y, area(op->n_tok, width, width, op->dtype), "ngram_gate: y");
    gpu_check_any(gpu, op->bad, (size_t)op->n_tok * sizeof(*op->bad), "ngram_gate: bad");
    gpu_read(gpu, op->key_norm.at, area(1, 0, width, op->key_norm.dtype), "ngram_gate: key_norm");
    gpu_read(gpu, op->x_norm.at, area(1, 0, width, op->x_norm.dtype), "ngram_gate: x_norm");
}
