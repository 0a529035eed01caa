/*
 * A dense MLP: down(act(gate(n)) * up(n)), or down(act(up(n))).
 *
 * With a cutoff, f->wide holds gate and up [chunk, 2 inner], in whose first half the inner
 * activations come. With an adapter, f->wide holds gate and up [chunk, 2 inner], in whose first
 * half the inner activations come; behind them the adapter's output, likewise, and what it reads
 * [chunk, rank].
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

/* act(gate) * up of both [n_tok, 2 inner], in place of gate. */
static enum ctw_status join_halves(const struct ctw_step *s, const struct ctw_dense *d, char *both,
                                   struct ctw_err *err)
{
    const struct ctw_op_act act = {.act = d->act,
                                   .dtype = s->f->dtype,
                                   .n_tok = s->chunk->n_tok,
                                   .dim = d->inner,
                                   .x = both,
                                   .ldx = 2 * d->inner,
                                   .up = both + (size_t)d->inner * ctw_dtype_bytes(s->f->dtype),
                                   .ldup = 2 * d->inner,
                                   .y = both,
                                   .ldy = 2 * d->inner};
    return ctw_act(s->f->be, &act, err);
}

/* Gate and up, and what is left of the gate above its cutoff. */
static enum ctw_status cut(const struct ctw_step *s, const struct ctw_dense *d, const void *x,
                           struct ctw_err *err)
{
    const int64_t n = 2 * d->inner;
    const struct ctw_op_norm cutoff = {.kind = CTW_NORM_CUTOFF,
                                       .dtype = s->f->dtype,
                                       .n_tok = s->chunk->n_tok,
                                       .dim = d->inner,
                                       .x = s->f->wide,
                                       .ldx = n,
                                       .x_dtype = s->f->dtype,
                                       .eps = d->cutoff,
                                       .y = s->f->wide,
                                       .ldy = n};
    enum ctw_status st =
        ctw_step_product(s, CTW_P_GATE_UP, x, s->f->model->hidden, s->f->wide, n, err);
    if (st == CTW_OK)
        st = ctw_norm(s->f->be, &cutoff, err);
    return st == CTW_OK ? join_halves(s, d, s->f->wide, err) : st;
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
    return st == CTW_OK ? join_halves(s, d, both, err) : st;
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
    const bool adapts = d->adapter_rank > 0, cuts = d->cutoff != 0;
    const void *x = s->f->norm;
    enum ctw_status st = adapts ? adapted(s, d, x, err)
                         : cuts ? cut(s, d, x, err)
                                : ctw_dense_inner(s, d, x, err);
    const int64_t ld = adapts || cuts ? 2 * d->inner : d->inner;
    return st == CTW_OK ? ctw_step_join(s, CTW_P_DOWN, s->f->wide, ld, err) : st;
}

static void widen(struct ctw_widths *w, const struct ctw_layer *l, int branch, int64_t longest)
{
    const struct ctw_dense *d = &l->branch[branch].dense;
    (void)longest;
    w->wide = ctw_max64(w->wide, d->adapter_rank > 0 ? 4 * d->inner + d->adapter_rank
                                 : d->cutoff != 0    ? 2 * d->inner
                                                     : d->inner);
    w->inner_k = ctw_max64(w->inner_k, ctw_max64(d->inner, d->adapter_rank));
}

static enum ctw_epilogue epilogue(const struct ctw_layer *l, int branch, int product)
{
    const struct ctw_dense *d = &l->branch[branch].dense;
    if (product == CTW_P_GATE_UP)
        return d->gated && d->adapter_rank == 0 && d->cutoff == 0 ? CTW_EPI_GATE : CTW_EPI_STORE;
    if (product != CTW_P_DOWN)
        return CTW_EPI_STORE;
    return ctw_branch_is_direct(l, branch) ? CTW_EPI_ADD : CTW_EPI_STORE;
}

const struct ctw_kind_ops ctw_ops_dense = {.widen = widen, .epilogue = epilogue, .run = run};
