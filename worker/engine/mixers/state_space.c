/*
 * A selective state space. f->wide holds the product [chunk, columns]; behind it the convolution's
 * output, in whose place y comes, [chunk, channels]; and behind that, if the layer selects, dt | B
 * | C before dt's own product, whose output takes the place of the product's x. The carries are two
 * states: the convolution's last inputs, and the recurrence's state, in fp32.
 */
#include "kernels/conv.h"
#include "kernels/ssm.h"
#include "worker/engine/pass/step.h"

enum { CARRY_CONV, CARRY_STATE };

/* Where the parts of a chunk's activations are. */
struct parts {
    char *in, *u, *selected;
    int64_t ld_in, ld_u, ld_selected;
};

static char *at(const struct ctw_step *s, char *rows, int64_t column)
{
    return rows + (size_t)column * ctw_dtype_bytes(s->f->dtype);
}

static struct parts parts_of(const struct ctw_step *s)
{
    const struct ctw_state_space *x = &s->branch->state_space;
    const int64_t chunk = s->f->plan.chunk_tokens;
    struct parts p = {.ld_in = ctw_ssm_columns(x),
                      .ld_u = ctw_ssm_channels(x),
                      .ld_selected = x->dt_rank + ctw_ssm_selection(x)};
    int64_t u = ctw_wide_up(chunk * p.ld_in);
    p.in = s->f->wide;
    p.u = at(s, p.in, u);
    p.selected = at(s, p.in, ctw_wide_up(u + chunk * p.ld_u));
    return p;
}

static int64_t part_width(const struct ctw_state_space *x, enum ctw_ssm_part part)
{
    if (part == CTW_SSM_DT)
        return x->n_head;
    return part == CTW_SSM_Z || part == CTW_SSM_X ? ctw_ssm_inner(x) : x->n_groups * x->n_state;
}

/* The product's columns times their factors, in place. */
static enum ctw_status scale(const struct ctw_step *s, const struct parts *p, struct ctw_err *err)
{
    const struct ctw_state_space *x = &s->branch->state_space;
    enum ctw_status st = CTW_OK;
    int64_t column = 0;
    for (int i = 0; i < CTW_N_SSM_PARTS && st == CTW_OK && !x->selects; i++) {
        int64_t width = part_width(x, (enum ctw_ssm_part)i);
        if (x->factor[i] != 1)
            st = ctw_norm(s->f->be,
                          &(struct ctw_op_norm){.kind = CTW_NORM_NONE,
                                                .dtype = s->f->dtype,
                                                .n_tok = s->chunk->n_tok,
                                                .dim = width,
                                                .x = at(s, p->in, column),
                                                .ldx = p->ld_in,
                                                .x_dtype = s->f->dtype,
                                                .factor = x->factor[i],
                                                .y = at(s, p->in, column),
                                                .ldy = p->ld_in},
                          err);
        column += width;
    }
    return st;
}

static enum ctw_status convolve(const struct ctw_step *s, const struct parts *p,
                                const struct ctw_round *r, struct ctw_err *err)
{
    const struct ctw_state_space *x = &s->branch->state_space;
    const struct ctw_tensor *bias = ctw_step_vector(s, CTW_V_SSM_CONV_BIAS);
    return ctw_conv(s->f->be,
                    &(struct ctw_op_conv){.form = CTW_CONV_SILU,
                                          .dtype = s->f->dtype,
                                          .n_tok = s->chunk->n_tok,
                                          .dim = p->ld_u,
                                          .taps = x->taps,
                                          .x = at(s, p->in, x->selects ? 0 : ctw_ssm_inner(x)),
                                          .ldx = p->ld_in,
                                          .weight = ctw_step_vector_data(s, CTW_V_SSM_CONV),
                                          .weight_dtype = ctw_step_vector(s, CTW_V_SSM_CONV)->dtype,
                                          .bias = ctw_step_vector_data(s, CTW_V_SSM_CONV_BIAS),
                                          .bias_dtype = bias != NULL ? bias->dtype : CTW_F32,
                                          .parts = r->parts,
                                          .n_parts = r->n_parts,
                                          .states = ctw_step_states(s, CARRY_CONV),
                                          .y = p->u,
                                          .ldy = p->ld_u},
                    err);
}

/* The norm of n_groups groups of `dim` columns, in place, if the layer has one there. */
static enum ctw_status norm(const struct ctw_step *s, int place, int64_t n_groups, int64_t dim,
                            void *y, int64_t ld, struct ctw_err *err)
{
    struct ctw_op_norm op = ctw_step_norm(s, place);
    if (!ctw_step_rule(s, place)->present)
        return CTW_OK;
    op.n_groups = n_groups;
    op.own_weights = n_groups > 1;
    op.dim = dim;
    op.x = op.y = y;
    op.ldx = op.ldy = ld;
    op.x_dtype = op.dtype = s->f->dtype;
    return ctw_norm(s->f->be, &op, err);
}

/* dt, B and C from x. */
static enum ctw_status select_parts(const struct ctw_step *s, const struct parts *p,
                                    struct ctw_err *err)
{
    const struct ctw_state_space *x = &s->branch->state_space;
    const int64_t ld = p->ld_selected, b = x->dt_rank, n = x->n_state;
    enum ctw_status st = ctw_step_product(s, CTW_P_SSM_SELECT, p->u, p->ld_u, p->selected, ld, err);
    if (st == CTW_OK)
        st = norm(s, CTW_AT_SSM_DT, 1, b, p->selected, ld, err);
    if (st == CTW_OK)
        st = norm(s, CTW_AT_SSM_B, 1, n, at(s, p->selected, b), ld, err);
    if (st == CTW_OK)
        st = norm(s, CTW_AT_SSM_C, 1, n, at(s, p->selected, b + n), ld, err);
    return st == CTW_OK ? ctw_step_product(s, CTW_P_SSM_DT, p->selected, ld, p->in, p->ld_in, err)
                        : st;
}

static struct ctw_ssm_vector vector(const struct ctw_step *s, int role)
{
    return (struct ctw_ssm_vector){ctw_step_vector_data(s, role), ctw_step_vector(s, role)->dtype};
}

static struct ctw_op_ssm shape_of(const struct ctw_state_space *x, enum ctw_dtype dtype)
{
    return (struct ctw_op_ssm){.dtype = dtype,
                               .n_head = x->n_head,
                               .head = x->head,
                               .n_groups = x->n_groups,
                               .n_state = x->n_state,
                               .own_decays = x->selects};
}

static enum ctw_status recur(const struct ctw_step *s, const struct parts *p,
                             const struct ctw_round *r, struct ctw_err *err)
{
    const struct ctw_state_space *x = &s->branch->state_space;
    const int64_t inner = ctw_ssm_inner(x), bc = x->n_groups * x->n_state;
    char *b = x->selects ? at(s, p->selected, x->dt_rank) : at(s, p->u, inner);
    struct ctw_op_ssm op = shape_of(x, s->f->dtype);
    op.n_tok = s->chunk->n_tok;
    op.x = p->u;
    op.ldx = p->ld_u;
    op.b = b;
    op.c = at(s, b, bc);
    op.ldbc = x->selects ? p->ld_selected : p->ld_u;
    op.dt = at(s, p->in, x->selects ? 0 : inner + p->ld_u);
    op.lddt = p->ld_in;
    op.z = x->norm_first ? NULL : at(s, p->in, x->selects ? inner : 0);
    op.ldz = p->ld_in;
    op.a_log = vector(s, CTW_V_SSM_A_LOG);
    op.as_rates = ctw_step_vector(s, CTW_V_SSM_A_LOG)->as_rates;
    op.dt_bias = vector(s, CTW_V_SSM_DT_BIAS);
    op.d = vector(s, CTW_V_SSM_D);
    op.dt_min = x->dt_min;
    op.dt_max = x->dt_max;
    op.parts = r->parts;
    op.n_parts = r->n_parts;
    op.states = ctw_step_states(s, CARRY_STATE);
    op.y = p->u;
    op.ldy = p->ld_u;
    return ctw_ssm(s->f->be, &op, err);
}

/* z = silu(z) * y, for a norm that came before the gate. */
static enum ctw_status gate(const struct ctw_step *s, const struct parts *p, struct ctw_err *err)
{
    return ctw_act(s->f->be,
                   &(struct ctw_op_act){.act = CTW_ACT_SILU,
                                        .dtype = s->f->dtype,
                                        .n_tok = s->chunk->n_tok,
                                        .dim = ctw_ssm_inner(&s->branch->state_space),
                                        .x = p->in,
                                        .ldx = p->ld_in,
                                        .up = p->u,
                                        .ldup = p->ld_u,
                                        .y = p->in,
                                        .ldy = p->ld_in},
                   err);
}

static enum ctw_status run(const struct ctw_step *s, struct ctw_err *err)
{
    struct ctw_forward *f = s->f;
    const struct ctw_state_space *x = &s->branch->state_space;
    const struct parts p = parts_of(s);
    enum ctw_status st =
        ctw_step_product(s, CTW_P_SSM_IN, f->norm, f->model->hidden, p.in, p.ld_in, err);
    if (st == CTW_OK)
        st = scale(s, &p, err);
    for (int64_t i = 0; st == CTW_OK && i < s->chunk->n_rounds; i++)
        st = convolve(s, &p, &s->chunk->rounds[i], err);
    if (st == CTW_OK && x->selects)
        st = select_parts(s, &p, err);
    for (int64_t i = 0; st == CTW_OK && i < s->chunk->n_rounds; i++)
        st = recur(s, &p, &s->chunk->rounds[i], err);
    if (st == CTW_OK)
        st = norm(s, CTW_AT_SSM, x->norm_groups, ctw_ssm_inner(x) / x->norm_groups, p.u, p.ld_u,
                  err);
    if (st == CTW_OK && x->norm_first)
        st = gate(s, &p, err);
    if (st != CTW_OK)
        return st;
    return x->norm_first ? ctw_step_join(s, CTW_P_SSM_OUT, p.in, p.ld_in, err)
                         : ctw_step_join(s, CTW_P_SSM_OUT, p.u, p.ld_u, err);
}

/* ---- memory and time ---------------------------------------------------------------------- */

static void widen(struct ctw_widths *w, const struct ctw_layer *l, int branch, int64_t longest)
{
    const struct ctw_state_space *x = &l->branch[branch].state_space;
    int64_t selected = x->selects ? x->dt_rank + ctw_ssm_selection(x) : 0;
    (void)longest;
    w->wide = ctw_max64(w->wide, ctw_ssm_columns(x) + ctw_ssm_channels(x) + selected);
    w->inner_k = ctw_max64(w->inner_k, ctw_max64(ctw_ssm_inner(x), x->dt_rank));
}

static void carry(const struct ctw_model *m, const struct ctw_branch *b, int64_t longest,
                  enum ctw_dtype dtype, struct ctw_carry_rule rules[CTW_BRANCH_CARRIES])
{
    const struct ctw_state_space *x = &b->state_space;
    const struct ctw_op_ssm shape = shape_of(x, dtype);
    (void)m;
    (void)longest;
    rules[CARRY_CONV].bytes = (size_t)(ctw_ssm_channels(x) * (x->taps - 1)) * sizeof(float);
    rules[CARRY_STATE].bytes = ctw_ssm_bytes(&shape);
    rules[CARRY_CONV].life = rules[CARRY_STATE].life = CTW_STATE;
}

/* Of the recurrence, whatever a token sees. */
static double key_flops(const struct ctw_branch *b, int64_t n_keys)
{
    const struct ctw_state_space *x = &b->state_space;
    (void)n_keys;
    return 6.0 * (double)ctw_ssm_inner(x) * (double)x->n_state;
}

const struct ctw_kind_ops ctw_ops_state_space = {
    .widen = widen, .carry = carry, .joins = CTW_P_SSM_OUT, .key_flops = key_flops, .run = run};
