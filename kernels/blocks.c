#include "kernels/blocks.h"

#include "kernels/backend_internal.h"

enum ctw_status ctw_blocks(struct ctw_backend *be, const struct ctw_op_blocks *op,
                           struct ctw_err *err)
{
    bool ok = ctw_is_float(op->dtype) && op->n_head >= 1 && op->head >= 1 &&
              op->head <= CTW_MAX_HEAD && op->block >= 1 && op->chosen >= 1 && op->local >= 0 &&
              op->local <= op->chosen && op->seen_head >= 1 &&
              op->ld_seen >= op->n_head * op->seen_head;
    for (int64_t i = 0; ok && i < op->n_seqs; i++) {
        int64_t n_keys = op->seqs[i].pos0 + op->seqs[i].n_q;
        ok = n_keys <= op->seen_head * 32 && ctw_blocks_of(n_keys, op->block) <= op->ld_scores;
    }
    if (!ok)
        return ctw_fail(err, CTW_EINTERNAL, "blocks: an argument is out of range");
    return op->n_seqs == 0 ? CTW_OK : be->ops->blocks(be, op, err);
}
