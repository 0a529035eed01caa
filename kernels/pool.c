#include "kernels/pool.h"

#include "kernels/backend_internal.h"

/* Have the runs all tokens up to the sequences' last queries? */
static bool have_tokens(const struct ctw_attn_seq *seqs, int64_t n_seqs)
{
    for (const struct ctw_attn_seq *s = seqs; s < seqs + n_seqs; s++) {
        int64_t n = 0;
        for (int r = 0; r < s->n_runs; r++) {
            if (s->runs[r].n_tok < 0 || s->runs[r].row < 0)
                return false;
            n += s->runs[r].n_tok;
        }
        if (s->q_row < 0 || s->n_q < 0 || s->pos0 < 0 || n < s->pos0 + s->n_q)
            return false;
    }
    return true;
}

enum ctw_status ctw_pool(struct ctw_backend *be, const struct ctw_op_pool *op, struct ctw_err *err)
{
    int64_t columns = (op->overlaps ? 2 : 1) * (int64_t)op->dim;
    REQUIRE("pool", ctw_is_float(op->dtype));
    REQUIRE("pool", op->gate == NULL || ctw_is_float(op->bias_dtype));
    REQUIRE("pool", op->norm == NULL || ctw_is_float(op->norm_dtype));
    REQUIRE("pool", op->block >= 1 && op->block <= CTW_MAX_POOL);
    REQUIRE("pool", op->dim >= 1 && op->dim <= CTW_MAX_HEAD && op->ldx >= columns);
    REQUIRE("pool", op->turning >= 0 && op->turning % 2 == 0 && op->turning <= op->dim);
    REQUIRE("pool", op->ldy >= op->dim && (op->turning == 0 || op->cos_sin != NULL));
    REQUIRE("pool", have_tokens(op->seqs, op->n_seqs));
    return op->n_seqs == 0 ? CTW_OK : be->ops->pool(be, op, err);
}

enum ctw_status ctw_pool_attention(struct ctw_backend *be, const struct ctw_op_pool_attention *op,
                                   struct ctw_err *err)
{
    REQUIRE("pool_attention", ctw_is_float(op->dtype) && op->n_head >= 1);
    REQUIRE("pool_attention", op->head >= 1 && op->head <= CTW_MAX_HEAD && op->scale > 0);
    REQUIRE("pool_attention", op->window >= 1 && op->block >= 1 && op->ld_pooled >= op->head);
    REQUIRE("pool_attention", op->sinks == NULL || ctw_is_float(op->sinks_dtype));
    REQUIRE("pool_attention", have_tokens(op->seqs, op->n_seqs));
    for (int64_t i = 0; op->seen != NULL && i < op->n_seqs; i++) {
        const int64_t n = (op->seqs[i].pos0 + op->seqs[i].n_q) / op->block;
        REQUIRE("pool_attention", n <= op->seen_from || n <= 32 * op->ld_seen);
    }
    return op->n_seqs == 0 ? CTW_OK : be->ops->pool_attention(be, op, err);
}
