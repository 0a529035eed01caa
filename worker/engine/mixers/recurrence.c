/*
 * A gated linear recurrence. f->wide holds the product y | x [chunk, 2 dim]; behind it the
 * convolution's output, in whose place that of the recurrence comes, [chunk, dim]; and behind that
 * the gates, [chunk, 2 dim]. The carries are two states: the convolution's last inputs, and the
 * recurrence's state, both fp32.
 */
#include "kernels/lru.h"
#include "worker/engine/pass/step.h"

enum { CARRY_CONV, CARRY_STATE };

struct parts {
    int64_t dim;
    char *y, *x, *u, *gates;
};

static char *at(const struct ctw_step *s, char *rows, int64_t column)
{
    return rows + (size_t)column * ctw_dtype_bytes(s->f->dtype);
}

static int64_t dim_of(const struct ctw_branch *b)
{
    return b->recurrence.n_head * b->recurrence.head;
}

static struct parts parts_of(const struct ctw_step *s)
{
    const int64_t dim = dim_of(s->branch), chunk = s->f->plan.chunk_tokens;
    const int64_t u = ctw_wide_up(chunk * 2 * dim), gates = ctw_wide_up(u + chunk * dim);
    char *wide = s->f->wide;
    return (struct parts){dim, wide, at(s, wide, dim), at(s, wide, u), at(s, wide, gates)};
}

static enum ctw_status convolve(const struct ctw_step *s, const struct parts *p,
                                struct ctw_err *err)
{
    struct ctw_op_conv op = {.form = CTW_CONV_PLAIN,
                             .dtype = s->f->dtype,
                             .n_tok = s->chunk->n_tok,
                             .dim = p->dim,
                             .taps = s->branch->recurrence.taps,
                             .x = p->x,
                             .ldx = 2 * p->dim,
                             .weight = ctw_step_vector_data(s, CTW_V_LRU_CONV),
                             .weight_dtype = ctw_step_vector(s, CTW_V_LRU_CONV)->dtype,
                             .bias = ctw_step_vector_data(s, CTW_V_LRU_CONV_BIAS),
                             .bias_dtype = ctw_step_vector(s, CTW_V_LRU_CONV_BIAS)->dtype,
                             .states = ctw_step_states(s, CARRY_CONV),
                             .y = p->u,
                             .ldy = p->dim};
    return ctw_step_conv(s, &op, err);
}

static enum ctw_status make_gates(const struct ctw_step *s, const struct parts *p,
                                  struct ctw_err *err)
{
    const int64_t head = s->branch->recurrence.head;
    enum ctw_status st = CTW_OK;
    for (int h = 0; h < s->branch->recurrence.n_head && st == CTW_OK; h++)
        st = ctw_step_product(s, CTW_P_LRU_GATES + h, at(s, p->u, h * head), p->dim,
                              at(s, p->gates, 2 * h * head), 2 * p->dim, err);
    return st;
}

static enum ctw_status recur(const struct ctw_step *s, const struct parts *p,
                             const struct ctw_round *r, struct ctw_err *err)
{
    return ctw_lru(s->f->be,
                   &(struct ctw_op_lru){.dtype = s->f->dtype,
                                        .n_tok = s->chunk->n_tok,
                                        .n_head = s->branch->recurrence.n_head,
                                        .head = s->branch->recurrence.head,
                                        .x = p->u,
                                        .ldx = p->dim,
                                        .gates = p->gates,
                                        .ldg = 2 * p->dim,
                                        .decay = ctw_step_vector_data(s, CTW_V_LRU_PARAM),
                                        .decay_dtype = ctw_step_vector(s, CTW_V_LRU_PARAM)->dtype,
                                        .parts = r->parts,
                                        .n_parts = r->n_parts,
                                        .states = ctw_step_states(s, CARRY_STATE),
                                        .y = p->u,
                                        .ldy = p->dim},
                   err);
}

/* y = act(y) * u */
static enum ctw_status gate(const struct ctw_step *s, const struct parts *p, struct ctw_err *err)
{
    return ctw_act(s->f->be,
                   &(struct ctw_op_act){.act = s->branch->recurrence.act,
                                        .dtype = s->f->dtype,
                                        .n_tok = s->chunk->n_tok,
                                        .dim = p->dim,
                                        .x = p->y,
                                        .ldx = 2 * p->dim,
                                        .up = p->u,
                                        .ldup = p->dim,
                                        .y = p->y,
                                        .ldy = 2 * p->dim},
                   err);
}

static enum ctw_status run(const struct ctw_step *s, struct ctw_err *err)
{
    const struct parts p = parts_of(s);
    enum ctw_status st =
        ctw_step_product(s, CTW_P_LRU_IN, s->f->norm, s->f->model->hidden, p.y, 2 * p.dim, err);
    if (st == CTW_OK)
        st = convolve(s, &p, err);
    if (st == CTW_OK)
        st = make_gates(s, &p, err);
    for (int64_t i = 0; st == CTW_OK && i < s->chunk->n_rounds; i++)
        st = recur(s, &p, &s->chunk->rounds[i], err);
    if (st == CTW_OK)
        st = gate(s, &p, err);
    return st == CTW_OK ? ctw_step_join(s, CTW_P_LRU_OUT, p.y, 2 * p.dim, err) : st;
}

/* ---- memory and time ---------------------------------------------------------------------- */

static void widen(struct ctw_widths *w, const struct ctw_layer *l, int branch, int64_t longest)
{
    (void)longest;
    w->wide = ctw_max64(w->wide, 5 * dim_of(&l->branch[branch]));
    w->inner_k = ctw_max64(w->inner_k, dim_of(&l->branch[branch]));
}

static void carry(const struct ctw_model *m, const struct ctw_branch *b, int64_t longest,
                  enum ctw_dtype dtype, struct ctw_carry_rule rules[CTW_BRANCH_CARRIES])
{
    (void)m;
    (void)longest;
    (void)dtype;
    rules[CARRY_CONV].bytes = (size_t)(dim_of(b) * (b->recurrence.taps - 1)) * sizeof(float);
    rules[CARRY_STATE].bytes = (size_t)dim_of(b) * sizeof(float);
    rules[CARRY_CONV].life = rules[CARRY_STATE].life = CTW_STATE;
}

const struct ctw_kind_ops ctw_ops_recurrence = {
    .widen = widen, .carry = carry, .joins = CTW_P_LRU_OUT, .run = run};
