/*
 * A dense MLP: down(act(gate(n)) * up(n)), or down(act(up(n))).
 *
 * With an adapter, f->wide holds gate and up [chunk, 2 inner], in whose first half the inner
 * activations come; behind them the adapter's output, likewise, and what it reads [chunk, rank].
 */
#include <string.h>

#include "worker/engine/pass/step.h"

static enum ctw_status gated(const struct ctw_step *s, const struct ctw_dense *d, const void *x,
                             struct ctw_err *err)
{
    struct ctw_shard shards[CTW_MAX_SHARDS];
    return ctw_linear(s->f->be,
                      &(struct ctw_op_linear){
                          .shards = shards,
                          .n_shards = ctw_step_shards(s, CTW_P_GATE_UP, shards),
                          .slot = ctw_step_slot(s, CTW_P_GATE_UP),
                          .dtype = s->f->dtype,
                          .epilogue = CTW_EPI_GATE,
                          .act = d->act,
                          .glu = d->glu,
                          .n_tok = s->chunk->n_tok,
                          .x = x,
                          .ldx = s->f->model->hidden,
                          .y = s->f->wide,
                          .ldy = d->inner,
                      },
                      err);
}

static enum ctw_status plain(const struct ctw_step *s, const struct ctw_dense *d, const void *x,
                             struct ctw_err *err)
{
    struct ctw_op_act op = {.act = d->act,
                            .dtype = s->f->dtype,
                            .n_tok = s->chunk->n_tok,
                            .dim = d->inner,
                            .x = s->f->wide,
                            .ldx = d->inner,
                            .y = s->f->wide,
                            .ldy = d->inner};
    memcpy(op.param, d->act_param, sizeof(op.param));
    return ctw_step_product_act(s, CTW_P_GATE_UP, x, s->f->model->hidden, &op, err);
}

/* Gate and up, the adapter's output added, and the activation in place. */
static enum ctw_status adapted(const struct ctw_step *s, const struct ctw_dense *d, const void *x,
                               struct ctw_err *err)
{
    struct ctw_forward *f = s->f;
    const int64_t n = 2 * d->inner, hidden = f->model->hidden;
    const size_t es = ctw_dtype_bytes(f->dtype);
    char *both = f->wide, *other = both + (size_t)ctw_wide_up(f->plan.chunk_tokens * n) * es;
    char *low = other + (size_t)ctw_wide_up(f->plan.chunk_tokens * n) * es;
    enum ctw_status st = ctw_step_product(s, CTW_P_GATE_UP, x, hidden, both, n, err);
    if (st == CTW_OK)
        st = ctw_step_product(s, CTW_P_ADAPT_UP_IN, x, hidden, low, d->adapter_rank, err);
    if (st == CTW_OK)
        st = ctw_step_product_onto(s, CTW_P_ADAPT_UP, low, d->adapter_rank, other, both, n, err);
    const struct ctw_op_act act = {.act = d->act,
                                   .dtype = f->dtype,
                                   .n_tok = s->chunk->n_tok,
                                   .dim = d->inner,
                                   .x = both,
                                   .ldx = n,
                                   .up = both + (size_t)d->inner * es,
                                   .ldup = n,
                                   .y = both,
                                   .ldy = n};
    return st == CTW_OK ? ctw_act(f->be, &act, err) : st;
}

enum ctw_status ctw_dense_inner(const struct ctw_step *s, const struct ctw_dense *d, const void *x,
                                struct ctw_err *err)
{
    enum ctw_status st = d->gated ? gated(s, d, x, err) : plain(s, d, x, err);
    return st == CTW_OK ? ctw_step_norm_in_place(s, CTW_AT_INNER, s->f->wide, d->inner, err) : st;
}

static enum ctw_status run(const struct ctw_step *s, struct ctw_err *err)
{
    const struct ctw_dense *d = &s->branch->dense;
    const bool adapts = d->adapter_rank > 0;
    enum ctw_status st =
        adapts ? adapted(s, d, s->f->norm, err) : ctw_dense_inner(s, d, s->f->norm, err);
    return st == CTW_OK
               ? ctw_step_join(s, CTW_P_DOWN, s->f->wide, adapts ? 2 * d->inner : d->inner, err)
               : st;
}

static void widen(struct ctw_widths *w, const struct ctw_layer *l, int branch, int64_t longest)
{
    const struct ctw_dense *d = &l->branch[branch].dense;
    (void)longest;
    w->wide = ctw_max64(w->wide, d->adapter_rank > 0 ? 4 * d->inner + d->adapter_rank : d->inner);
    w->inner_k = ctw_max64(w->inner_k, ctw_max64(d->inner, d->adapter_rank));
}

static enum ctw_epilogue epilogue(const struct ctw_layer *l, int branch, int product)
{
    const struct ctw_dense *d = &l->branch[branch].dense;
    if (product == CTW_P_GATE_UP)
        return d->gated && d->adapter_rank == 0 ? CTW_EPI_GATE : CTW_EPI_STORE;
    if (product != CTW_P_DOWN)
        return CTW_EPI_STORE;
    return ctw_branch_is_direct(l, branch) ? CTW_EPI_ADD : CTW_EPI_STORE;
}

const struct ctw_kind_ops ctw_ops_dense = {.widen = widen, .epilogue = epilogue, .run = run};
