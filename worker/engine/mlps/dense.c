/* A dense MLP: down(act(gate(n)) * up(n)), or down(act(up(n))). */
#include <string.h>

#include "worker/engine/step.h"

static enum ctw_status gated(const struct ctw_step *s, const void *x, struct ctw_err *err)
{
    struct ctw_shard shards[CTW_MAX_SHARDS];
    return ctw_linear(s->f->be,
                      &(struct ctw_op_linear){
                          .shards = shards,
                          .n_shards = ctw_step_shards(s, CTW_SLOT_GATE_UP, shards),
                          .slot = CTW_SLOT_GATE_UP,
                          .dtype = s->f->dtype,
                          .epilogue = CTW_EPI_GATE,
                          .act = s->layer->act,
                          .glu = s->layer->glu,
                          .n_tok = s->chunk->n_tok,
                          .x = x,
                          .ldx = s->f->model->hidden,
                          .y = s->f->wide,
                          .ldy = s->layer->inner,
                      },
                      err);
}

static enum ctw_status plain(const struct ctw_step *s, const void *x, struct ctw_err *err)
{
    const struct ctw_layer *l = s->layer;
    struct ctw_op_act op = {.act = l->act,
                            .dtype = s->f->dtype,
                            .n_tok = s->chunk->n_tok,
                            .dim = l->inner,
                            .x = s->f->wide,
                            .ldx = l->inner,
                            .y = s->f->wide,
                            .ldy = l->inner};
    memcpy(op.param, l->act_param, sizeof(op.param));
    enum ctw_status st =
        ctw_step_product(s, CTW_SLOT_GATE_UP, x, s->f->model->hidden, s->f->wide, l->inner, err);
    return st == CTW_OK ? ctw_act(s->f->be, &op, err) : st;
}

enum ctw_status ctw_mlp_inner(const struct ctw_step *s, const void *x, struct ctw_err *err)
{
    enum ctw_status st = s->layer->gated ? gated(s, x, err) : plain(s, x, err);
    if (st != CTW_OK)
        return st;
    return ctw_step_norm_in_place(s, CTW_AT_INNER, s->f->wide, s->layer->inner, err);
}

enum ctw_status ctw_mlp_dense(const struct ctw_step *s, struct ctw_err *err)
{
    const struct ctw_layer *l = s->layer;
    const struct ctw_join join = {CTW_SLOT_DOWN, CTW_AT_MLP_OUT, CTW_AT_MLP_SUM, l->mlp_factor};
    enum ctw_status st = CTW_OK;
    if (!l->parallel)
        st = ctw_step_read(s, CTW_AT_MLP, l->n_head > 0 ? s->here : s->before, err);
    if (st == CTW_OK)
        st = ctw_mlp_inner(s, s->f->norm, err);
    return st == CTW_OK ? ctw_step_join(s, &join, s->f->wide, l->inner, err) : st;
}
