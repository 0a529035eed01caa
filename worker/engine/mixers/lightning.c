/*
 * Lightning attention, as a state space (kernels/ssm.h): a head's values are the x of a group of
 * its own, keys are b, queries are c, and every step is the scale of the output, as dt_min and
 * dt_max make it. f->wide holds the product, and behind it q, k and v, each [chunk, n_head * head].
 * The recurrence's output takes the place of v, and the gate that of the product. The carry is the
 * recurrence's state.
 */
#include "kernels/ssm.h"
#include "worker/engine/pass/step.h"

struct places {
    char *in, *q, *k, *v;
};

static struct places places_of(const struct ctw_step *s)
{
    const int64_t chunk = s->f->plan.chunk_tokens,
                  inner = ctw_lightning_inner(&s->branch->lightning);
    const size_t es = ctw_dtype_bytes(s->f->dtype);
    const size_t all = (size_t)ctw_wide_up(3 * chunk * inner) * es;
    const size_t one = (size_t)ctw_wide_up(chunk * inner) * es;
    char *in = s->f->wide;
    return (struct places){.in = in, .q = in + all, .k = in + all + one, .v = in + all + 2 * one};
}

/* y [n_tok, n_head * head] = the activation of part 0, 1 or 2 (q, k or v) of each head's columns.
 * A row of this operation is a token's head. */
static enum ctw_status activate(const struct ctw_step *s, const char *in, int part, char *y,
                                struct ctw_err *err)
{
    const struct ctw_lightning *x = &s->branch->lightning;
    return ctw_act(
        s->f->be,
        &(struct ctw_op_act){.act = x->act,
                             .dtype = s->f->dtype,
                             .n_tok = s->chunk->n_tok * x->n_head,
                             .dim = x->head,
                             .x = in + (size_t)(part * x->head) * ctw_dtype_bytes(s->f->dtype),
                             .ldx = 3 * x->head,
                             .y = y,
                             .ldy = x->head},
        err);
}

/* q, k and v from the product's columns: those of q, then of k, then of v. */
static enum ctw_status turn(const struct ctw_step *s, const struct places *p, struct ctw_err *err)
{
    const struct ctw_forward *f = s->f;
    const struct ctw_lightning *x = &s->branch->lightning;
    const struct ctw_rope *rope = &f->model->rope[x->rope];
    const struct ctw_tensor *weight = ctw_step_vector(s, CTW_V_WEIGHT + CTW_AT_LIGHTNING_Q);
    struct ctw_op_qkv op = {.dtype = f->dtype,
                            .n_tok = s->chunk->n_tok,
                            .n_head = (int)x->n_head,
                            .n_kv = (int)x->n_head,
                            .head = (int)x->head,
                            .qkv = p->in,
                            .pairing = rope->pairing,
                            .rot_dim = rope->rot_dim,
                            .positions = f->positions + s->chunk->tok0,
                            .cos_sin = f->cos_sin[x->rope],
                            .q = p->q,
                            .k = p->k,
                            .v = p->v};
    if (weight != NULL) {
        op.q_norm = ctw_step_vector_data(s, CTW_V_WEIGHT + CTW_AT_LIGHTNING_Q);
        op.k_norm = ctw_step_vector_data(s, CTW_V_WEIGHT + CTW_AT_LIGHTNING_K);
        op.norm_dtype = weight->dtype;
        op.norm_eps = ctw_step_rule(s, CTW_AT_LIGHTNING_Q)->eps;
    }
    return ctw_qkv(f->be, &op, err);
}

static enum ctw_status split(const struct ctw_step *s, const struct places *p, struct ctw_err *err)
{
    char *const parts[] = {p->q, p->k, p->v};
    enum ctw_status st = CTW_OK;
    if (!s->branch->lightning.by_head)
        return turn(s, p, err);
    for (int i = 0; st == CTW_OK && i < 3; i++)
        st = activate(s, p->in, i, parts[i], err);
    return st;
}

static struct ctw_op_ssm shape_of(const struct ctw_lightning *x, enum ctw_dtype dtype)
{
    return (struct ctw_op_ssm){.dtype = dtype,
                               .n_head = x->n_head,
                               .head = x->head,
                               .n_groups = x->n_head,
                               .n_state = x->head};
}

static enum ctw_status recur(const struct ctw_step *s, const struct places *p,
                             const struct ctw_round *r, struct ctw_err *err)
{
    const struct ctw_lightning *x = &s->branch->lightning;
    const int64_t inner = ctw_lightning_inner(x);
    struct ctw_op_ssm op = shape_of(x, s->f->dtype);
    op.n_tok = s->chunk->n_tok;
    op.x = op.y = p->v;
    op.b = p->k;
    op.c = p->q;
    op.dt = p->q; /* its values do not count */
    op.ldx = op.ldbc = op.lddt = op.ldy = inner;
    op.dt_min = op.dt_max = x->scale;
    op.a_log = (struct ctw_ssm_vector){s->f->rates + x->rate0, CTW_F32};
    op.as_rates = true;
    op.parts = r->parts;
    op.n_parts = r->n_parts;
    op.states = ctw_step_states(s, 0);
    return ctw_ssm(s->f->be, &op, err);
}

/* v = norm(v) * sigmoid(gate) */
static enum ctw_status gate(const struct ctw_step *s, const struct places *p, struct ctw_err *err)
{
    const int64_t inner = ctw_lightning_inner(&s->branch->lightning);
    const int64_t n_groups = s->branch->lightning.norm_groups;
    struct ctw_op_norm norm = ctw_step_norm(s, CTW_AT_LIGHTNING);
    norm.n_groups = n_groups;
    norm.own_weights = n_groups > 1;
    norm.dim = inner / n_groups;
    norm.x = norm.y = p->v;
    norm.x_dtype = norm.dtype = s->f->dtype;
    const struct ctw_op_act act = {.act = CTW_ACT_SIGMOID,
                                   .dtype = s->f->dtype,
                                   .n_tok = s->chunk->n_tok,
                                   .dim = inner,
                                   .x = p->in,
                                   .ldx = inner,
                                   .up = p->v,
                                   .ldup = inner,
                                   .y = p->v,
                                   .ldy = inner};
    enum ctw_status st = ctw_step_product(s, CTW_P_LIGHTNING_GATE, s->f->norm, s->f->model->hidden,
                                          p->in, inner, err);
    return st == CTW_OK ? ctw_norm_act(s->f->be, &norm, &act, err) : st;
}

static enum ctw_status run(const struct ctw_step *s, struct ctw_err *err)
{
    const struct places p = places_of(s);
    const int64_t inner = ctw_lightning_inner(&s->branch->lightning);
    enum ctw_status st = ctw_step_product(s, CTW_P_LIGHTNING_QKV, s->f->norm, s->f->model->hidden,
                                          p.in, 3 * inner, err);
    if (st == CTW_OK)
        st = split(s, &p, err);
    for (int64_t i = 0; st == CTW_OK && i < s->chunk->n_rounds; i++)
        st = recur(s, &p, &s->chunk->rounds[i], err);
    if (st == CTW_OK)
        st = gate(s, &p, err);
    return st == CTW_OK ? ctw_step_join(s, CTW_P_LIGHTNING_OUT, p.v, inner, err) : st;
}

/* ---- memory and time ---------------------------------------------------------------------- */

static void widen(struct ctw_widths *w, const struct ctw_layer *l, int branch, int64_t longest)
{
    const int64_t inner = ctw_lightning_inner(&l->branch[branch].lightning);
    (void)longest;
    w->wide = ctw_max64(w->wide, 6 * inner);
    w->inner_k = ctw_max64(w->inner_k, inner);
}

static void carry(const struct ctw_model *m, const struct ctw_branch *b, int64_t longest,
                  enum ctw_dtype dtype, struct ctw_carry_rule rules[CTW_BRANCH_CARRIES])
{
    const struct ctw_op_ssm shape = shape_of(&b->lightning, dtype);
    (void)m;
    (void)longest;
    rules[0].bytes = ctw_ssm_bytes(&shape);
    rules[0].life = CTW_STATE;
}

/* Of the recurrence, whatever a token sees. */
static double key_flops(const struct ctw_branch *b, int64_t n_keys)
{
    const struct ctw_lightning *x = &b->lightning;
    (void)n_keys;
    return 6.0 * (double)ctw_lightning_inner(x) * (double)x->head;
}

const struct ctw_kind_ops ctw_ops_lightning = {.widen = widen,
                                               .carry = carry,
                                               .joins = CTW_P_LIGHTNING_OUT,
                                               .key_flops = key_flops,
                                               .run = run};
