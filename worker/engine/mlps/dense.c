/* A dense MLP: down(act(gate(n)) * up(n)), or down(act(up(n))). */
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
    enum ctw_status st =
        ctw_step_product(s, CTW_P_GATE_UP, x, s->f->model->hidden, s->f->wide, d->inner, err);
    return st == CTW_OK ? ctw_act(s->f->be, &op, err) : st;
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
    enum ctw_status st = ctw_dense_inner(s, d, s->f->norm, err);
    return st == CTW_OK ? ctw_step_join(s, CTW_P_DOWN, s->f->wide, d->inner, err) : st;
}

static void widen(struct ctw_widths *w, const struct ctw_layer *l, int branch, int64_t longest)
{
    int64_t inner = l->branch[branch].dense.inner;
    (void)longest;
    w->wide = ctw_max64(w->wide, inner);
    w->inner_k = ctw_max64(w->inner_k, inner);
}

static enum ctw_epilogue epilogue(const struct ctw_layer *l, int branch, int product)
{
    if (product == CTW_P_GATE_UP)
        return l->branch[branch].dense.gated ? CTW_EPI_GATE : CTW_EPI_STORE;
    return ctw_branch_is_direct(l, branch) ? CTW_EPI_ADD : CTW_EPI_STORE;
}

const struct ctw_kind_ops ctw_ops_dense = {.widen = widen, .epilogue = epilogue, .run = run};
