/*
 * A mixture of experts. In the chunk phase each token chooses its experts, and the experts' inputs
 * are left in f->mixed. In the pass phase one expert after another, by index, takes all its rows of
 * the pass. An expert's weights are decoded once a pass, and every row adds its experts' outputs in
 * the order of their indices, regardless of the other rows.
 *
 * The outputs are added to the residual itself, after the shared expert's; or, if something comes
 * between, to f->sum, and at last that to the residual. Experts with a latent width add to f->sum,
 * too, of which a product is added to the residual.
 */
#include <string.h>

#include "kernels/streams.h"
#include "worker/engine/mlps/expert_rows.h"
#include "worker/engine/pass/step.h"

/* ---- the chunk phase ---------------------------------------------------------------------- */

static const struct ctw_mixture *mixture_of(const struct ctw_step *s)
{
    return &s->branch->mixture;
}

/* Does a norm or a convolution come between the experts' sum and the residual, or is what the
 * experts read part of the sum, so that the sum needs its own array? */
static bool has_sum(const struct ctw_layer *l, int branch)
{
    return !ctw_branch_has_rows(l, branch) || l->branch[branch].conv_taps > 0 ||
           l->branch[branch].mixture.route.n_identity > 0 ||
           l->norm[ctw_norm_at(branch, CTW_AT_SHARED_OUT)].present ||
           l->norm[ctw_norm_at(branch, CTW_AT_EXPERTS_OUT)].present ||
           l->norm[ctw_norm_at(branch, CTW_AT_OUT)].present;
}

/* Is f->sum what the experts add to? */
static bool uses_sum(const struct ctw_step *s)
{
    return mixture_of(s)->latent || has_sum(s->layer, s->index);
}

static enum ctw_epilogue epilogue(const struct ctw_layer *l, int branch, int product)
{
    if (product == CTW_P_LATENT_IN)
        return CTW_EPI_STORE;
    if (product == CTW_P_LATENT_OUT)
        return CTW_EPI_ADD;
    if (product == CTW_P_GATE_UP)
        return l->branch[branch].mixture.shared.gated ? CTW_EPI_GATE : CTW_EPI_STORE;
    if (product != CTW_P_DOWN)
        return CTW_EPI_LOGITS;
    if (l->product[ctw_product_at(branch, CTW_P_SHARED_GATE)].n_shards > 0)
        return CTW_EPI_SCATTER;
    return !has_sum(l, branch) && ctw_branch_is_direct(l, branch) ? CTW_EPI_ADD : CTW_EPI_STORE;
}

static char *rows_at(const struct ctw_step *s, void *base, size_t row_bytes)
{
    return (char *)base + (size_t)s->chunk->tok0 * row_bytes;
}

/* The chunk's rows of what the experts read, [n_tok, width]. */
static void *mixed_of(const struct ctw_step *s)
{
    size_t width = (size_t)mixture_of(s)->width;
    return rows_at(s, s->f->mixed, width * ctw_dtype_bytes(s->f->dtype));
}

static struct ctw_residual_rows sum_of(const struct ctw_step *s)
{
    return (struct ctw_residual_rows){
        .at = rows_at(s, s->f->sum, (size_t)mixture_of(s)->width * sizeof(float)),
        .ld = mixture_of(s)->width};
}

static const struct ctw_residual_ops *residual_of(const struct ctw_step *s)
{
    return ctw_residual_of(s->layer);
}

/* y [n_tok, n] = a product of x, in fp32 */
static enum ctw_status logits(const struct ctw_step *s, int product, const void *x, float *y,
                              int64_t n, struct ctw_err *err)
{
    struct ctw_shard shards[CTW_MAX_SHARDS];
    return ctw_linear(s->f->be,
                      &(struct ctw_op_linear){.shards = shards,
                                              .n_shards = ctw_step_shards(s, product, shards),
                                              .slot = ctw_step_slot(s, product),
                                              .dtype = s->f->dtype,
                                              .epilogue = CTW_EPI_LOGITS,
                                              .n_tok = s->chunk->n_tok,
                                              .x = x,
                                              .ldx = s->f->model->hidden,
                                              .y = y,
                                              .ldy = n},
                      err);
}

static enum ctw_status route(const struct ctw_step *s, struct ctw_err *err)
{
    const struct ctw_tensor *correction = ctw_step_vector(s, CTW_V_CORRECTION);
    const struct ctw_tensor *scale = ctw_step_vector(s, CTW_V_EXPERT_SCALE);
    const struct ctw_tensor *table = ctw_step_vector(s, CTW_V_TOKEN_EXPERTS);
    int64_t first = s->chunk->tok0 * mixture_of(s)->route.chosen;
    struct ctw_op_route op = {.rule = mixture_of(s)->route,
                              .n_tok = s->chunk->n_tok,
                              .logits = s->f->logits,
                              .ids = s->f->ids + first,
                              .weights = s->f->weights + first};
    if (!has_sum(s->layer, s->index))
        op.rule.scale *= s->branch->factor;
    if (op.rule.n_identity > 0)
        op.identity = s->f->identity + s->chunk->tok0;
    if (correction != NULL) {
        op.correction = ctw_step_vector_data(s, CTW_V_CORRECTION);
        op.correction_dtype = correction->dtype;
    }
    if (scale != NULL) {
        op.expert_scale = ctw_step_vector_data(s, CTW_V_EXPERT_SCALE);
        op.expert_scale_dtype = scale->dtype;
    }
    if (table != NULL) {
        op.table = ctw_step_vector_data(s, CTW_V_TOKEN_EXPERTS);
        op.table_dtype = table->dtype;
        op.tokens = s->f->tokens + s->chunk->tok0;
    }
    return ctw_route(s->f->be, &op, err);
}

/* f->factor = sigmoid(shared_gate(x)) * factor */
static enum ctw_status shared_factor(const struct ctw_step *s, const void *x, float factor,
                                     struct ctw_err *err)
{
    float *y = s->f->factor;
    enum ctw_status st = logits(s, CTW_P_SHARED_GATE, x, y, 1, err);
    if (st == CTW_OK)
        st = ctw_act(s->f->be,
                     &(struct ctw_op_act){.act = CTW_ACT_SIGMOID,
                                          .dtype = CTW_F32,
                                          .n_tok = s->chunk->n_tok,
                                          .dim = 1,
                                          .x = y,
                                          .ldx = 1,
                                          .y = y,
                                          .ldy = 1},
                     err);
    if (st != CTW_OK || factor == 1)
        return st;
    return ctw_norm(s->f->be,
                    &(struct ctw_op_norm){.kind = CTW_NORM_NONE,
                                          .dtype = CTW_F32,
                                          .n_tok = s->chunk->n_tok,
                                          .dim = 1,
                                          .x = y,
                                          .x_dtype = CTW_F32,
                                          .factor = factor,
                                          .y = y},
                    err);
}

/* y += factor * the shared expert's output; y: the residual or the sum. */
static enum ctw_status add_shared(const struct ctw_step *s, struct ctw_residual_rows y,
                                  float factor, struct ctw_err *err)
{
    struct ctw_forward *f = s->f;
    const struct ctw_dense *d = &mixture_of(s)->shared;
    const void *x = mixture_of(s)->latent ? f->norm : mixed_of(s);
    enum ctw_status st = CTW_OK;
    if (ctw_step_rule(s, CTW_AT_EXPERTS)->present) {
        st = ctw_step_read(s, CTW_AT_IN, err);
        x = f->norm;
    }
    if (st == CTW_OK && ctw_step_has(s, CTW_P_SHARED_GATE))
        st = shared_factor(s, x, factor, err);
    if (st == CTW_OK)
        st = ctw_dense_inner(s, d, x, err);
    if (st != CTW_OK)
        return st;
    if (epilogue(s->layer, s->index, CTW_P_DOWN) != CTW_EPI_STORE)
        return ctw_step_add_product(s, CTW_P_DOWN, f->wide, d->inner, y, f->factor, err);
    st = ctw_step_product(s, CTW_P_DOWN, f->wide, d->inner, f->norm, f->model->hidden, err);
    return st == CTW_OK
               ? ctw_step_add_norm(s, CTW_AT_SHARED_OUT, f->norm, f->dtype, y.at, factor, err)
               : st;
}

/* x = what the experts read. Beside another branch, that is already in f->norm. */
static enum ctw_status read_input(const struct ctw_step *s, void *x, struct ctw_err *err)
{
    const struct ctw_forward *f = s->f;
    const bool own = ctw_step_rule(s, CTW_AT_EXPERTS)->present;
    if (!s->branch->beside)
        return ctw_step_read_to(s, own ? CTW_AT_EXPERTS : CTW_AT_IN, x, err);
    const size_t bytes = (size_t)(s->chunk->n_tok * f->model->hidden) * ctw_dtype_bytes(f->dtype);
    return x == f->norm ? CTW_OK : ctw_device_copy(f->be, x, f->norm, bytes, err);
}

static enum ctw_status choose(const struct ctw_step *s, struct ctw_err *err)
{
    struct ctw_forward *f = s->f;
    const struct ctw_mixture *m = mixture_of(s);
    void *x = m->latent ? f->norm : mixed_of(s);
    enum ctw_status st = read_input(s, x, err);
    if (st == CTW_OK && ctw_step_rule(s, CTW_AT_ROUTER)->present) {
        st = ctw_step_read(s, CTW_AT_ROUTER, err);
        x = f->norm;
    }
    if (st == CTW_OK)
        st = logits(s, CTW_P_ROUTER, x, f->logits, m->route.n_experts, err);
    if (st == CTW_OK)
        st = route(s, err);
    if (st == CTW_OK && m->latent)
        st = ctw_step_product(s, CTW_P_LATENT_IN, f->norm, f->model->hidden, mixed_of(s), m->width,
                              err);
    if (st != CTW_OK || !m->has_shared || has_sum(s->layer, s->index))
        return st;
    return add_shared(s, residual_of(s)->rows(s, s->chunk->tok0), s->branch->factor, err);
}

/* ---- the pass phase ----------------------------------------------------------------------- */

/* Writes the shards of an expert's product; returns their number. */
static int expert_shards(const struct ctw_step *s, const struct ctw_product *p, int64_t expert,
                         struct ctw_shard shards[CTW_MAX_SHARDS])
{
    for (int i = 0; i < p->n_shards; i++) {
        const struct ctw_rows *rows = &p->shard[i];
        int64_t at = expert * CTW_N_EXPERT_MATRICES + rows->matrix;
        const struct ctw_matrix *m = &s->layer->expert[at];
        ctw_step_shard(s, &shards[i], rows, m, &s->data->expert[at], expert * m->weight.n);
    }
    return p->n_shards;
}

/* The i-th expert that has rows, without rows. */
static struct ctw_op_linear up_of(const struct ctw_step *s, int64_t expert, int64_t i,
                                  struct ctw_shard shards[CTW_MAX_SHARDS])
{
    const struct ctw_mixture *x = mixture_of(s);
    return (struct ctw_op_linear){.shards = shards,
                                  .n_shards = expert_shards(s, &x->up, expert, shards),
                                  .slot = ctw_expert_slot(i, false),
                                  .dtype = s->f->dtype,
                                  .epilogue = x->gated ? CTW_EPI_GATE : CTW_EPI_STORE,
                                  .act = x->act,
                                  .glu = x->glu};
}

static struct ctw_op_linear down_of(const struct ctw_step *s, int64_t expert, int64_t i,
                                    struct ctw_shard shards[CTW_MAX_SHARDS])
{
    const struct ctw_mixture *x = mixture_of(s);
    return (struct ctw_op_linear){.shards = shards,
                                  .n_shards = expert_shards(s, &x->down, expert, shards),
                                  .slot = ctw_expert_slot(i, true),
                                  .dtype = s->f->dtype,
                                  .epilogue = CTW_EPI_SCATTER};
}

static enum ctw_status prepare(const struct ctw_step *s, int64_t expert, int64_t i,
                               struct ctw_err *err)
{
    struct ctw_shard shards[CTW_MAX_SHARDS];
    struct ctw_op_linear op = up_of(s, expert, i, shards);
    enum ctw_status st = ctw_prepare(s->f->be, &op, err);
    if (st != CTW_OK)
        return st;
    op = down_of(s, expert, i, shards);
    return ctw_prepare(s->f->be, &op, err);
}

/* Rows row0 .. row0 + n - 1 of the sorted choices, which are one expert's, the i-th that has rows.
 */
struct part {
    int64_t expert, i, row0, n;
    int64_t turn; /* counts parts */
};

/* The inner activations of a part: the two halves of f->wide in turn. */
static void *inner_of(const struct ctw_step *s, const struct part *part)
{
    size_t half = (size_t)(s->f->plan.expert_rows * mixture_of(s)->inner);
    return (char *)s->f->wide + (size_t)(part->turn % 2) * half * ctw_dtype_bytes(s->f->dtype);
}

static struct ctw_op_linear gather(const struct ctw_step *s, const struct part *part,
                                   struct ctw_shard shards[CTW_MAX_SHARDS])
{
    const struct ctw_mixture *x = mixture_of(s);
    struct ctw_op_linear op = up_of(s, part->expert, part->i, shards);
    op.n_tok = part->n;
    op.x = s->f->mixed;
    op.ldx = x->width;
    op.x_rows = s->f->expert_rows + part->row0;
    op.x_weight = x->on_input ? s->f->expert_weights + part->row0 : NULL;
    op.y = inner_of(s, part);
    op.ldy = x->inner;
    return op;
}

static struct ctw_op_linear scatter(const struct ctw_step *s, const struct part *part,
                                    struct ctw_shard shards[CTW_MAX_SHARDS])
{
    const struct ctw_mixture *x = mixture_of(s);
    const struct ctw_residual_rows y =
        uses_sum(s) ? (struct ctw_residual_rows){.at = s->f->sum, .ld = x->width}
                    : residual_of(s)->rows(s, 0);
    struct ctw_op_linear op = down_of(s, part->expert, part->i, shards);
    op.n_tok = part->n;
    op.x = inner_of(s, part);
    op.ldx = x->inner;
    op.y = y.at;
    op.ldy = y.ld;
    op.y_rows = s->f->expert_rows + part->row0;
    op.y_weight = x->on_input ? NULL : s->f->expert_weights + part->row0;
    return op;
}

/* Of experts without a gate. */
static struct ctw_op_act activation(const struct ctw_step *s, const struct part *part)
{
    const struct ctw_mixture *x = mixture_of(s);
    void *inner = inner_of(s, part);
    return (struct ctw_op_act){.act = x->act,
                               .dtype = s->f->dtype,
                               .n_tok = part->n,
                               .dim = x->inner,
                               .x = inner,
                               .ldx = x->inner,
                               .y = inner,
                               .ldy = x->inner};
}

/* Computes the inner activations of `part`, and adds the outputs of `before`. Either is skipped if
 * its n is 0. */
static enum ctw_status compute(const struct ctw_step *s, const struct part *part,
                               const struct part *before, struct ctw_err *err)
{
    struct ctw_shard up_shards[CTW_MAX_SHARDS], down_shards[CTW_MAX_SHARDS];
    struct ctw_op_linear up, down;
    const struct ctw_op_act act = activation(s, part);
    if (part->n > 0)
        up = gather(s, part, up_shards);
    if (before->n > 0)
        down = scatter(s, before, down_shards);
    return ctw_linear_pair(s->f->be, part->n > 0 ? &up : NULL, mixture_of(s)->gated ? NULL : &act,
                           before->n > 0 ? &down : NULL, err);
}

/* Sorts the choices of the pass by expert, and downloads each expert's first row to f->start. */
static enum ctw_status group(const struct ctw_step *s, int64_t n_tok, struct ctw_err *err)
{
    struct ctw_forward *f = s->f;
    const struct ctw_route_rule *r = &mixture_of(s)->route;
    enum ctw_status st = ctw_group(f->be,
                                   &(struct ctw_op_group){.n_experts = r->n_experts,
                                                          .chosen = r->chosen,
                                                          .n_tok = n_tok,
                                                          .ids = f->ids,
                                                          .weights = f->weights,
                                                          .rows = f->expert_rows,
                                                          .row_weights = f->expert_weights,
                                                          .start = f->device_start},
                                   err);
    if (st == CTW_OK && uses_sum(s))
        st = ctw_device_zero(f->be, f->sum,
                             (size_t)n_tok * (size_t)mixture_of(s)->width * sizeof(float), err);
    if (st == CTW_OK)
        st = ctw_device_download(f->be, f->start, f->device_start,
                                 ((size_t)r->n_experts + 1) * sizeof(*f->start), err);
    return st;
}

static enum ctw_status run_experts(const struct ctw_step *s, int64_t n_tok, ctw_rows_done *done,
                                   void *arg, struct ctw_err *err)
{
    const struct ctw_forward *f = s->f;
    const int n = mixture_of(s)->route.n_experts - mixture_of(s)->route.n_identity;
    struct part before = {0};
    int64_t n_ahead = 0, i = 0;
    enum ctw_status st = group(s, n_tok, err);
    if (st != CTW_OK)
        return st;
    int ahead = ctw_expert_with_rows(f->start, n, 0);
    for (int e = ahead; st == CTW_OK && e < n; e = ctw_expert_with_rows(f->start, n, e + 1), i++) {
        /* The slot of the previous expert is not read yet. */
        while (st == CTW_OK && ahead < n && n_ahead < i + CTW_EXPERTS_IN_FLIGHT - 1) {
            st = prepare(s, ahead, n_ahead++, err);
            ahead = ctw_expert_with_rows(f->start, n, ahead + 1);
        }
        for (int64_t row = f->start[e]; st == CTW_OK && row < f->start[e + 1];) {
            int64_t n_rows = ctw_expert_part(f->start[e + 1] - row, f->plan.expert_rows);
            struct part part = {e, i, row, n_rows, before.turn + 1};
            st = compute(s, &part, &before, err);
            if (st == CTW_OK && before.n > 0)
                st = done(arg, before.n, err);
            before = part;
            row += n_rows;
        }
    }
    if (st == CTW_OK && before.n > 0)
        st = compute(s, &(struct part){0}, &before, err);
    return st == CTW_OK && before.n > 0 ? done(arg, before.n, err) : st;
}

/* ---- the chunk, afterwards ---------------------------------------------------------------- */

/* residual += latent_out(norm(the experts' sum)) */
static enum ctw_status leave_latent(const struct ctw_step *s, struct ctw_err *err)
{
    struct ctw_forward *f = s->f;
    const int64_t width = mixture_of(s)->width;
    struct ctw_op_norm norm = ctw_step_norm(s, CTW_AT_LATENT);
    norm.dtype = f->dtype;
    norm.dim = width;
    norm.x = sum_of(s).at;
    norm.x_dtype = CTW_F32;
    norm.y = f->wide;
    enum ctw_status st = ctw_norm(f->be, &norm, err);
    return st == CTW_OK ? ctw_step_add_product(s, CTW_P_LATENT_OUT, f->wide, width,
                                               residual_of(s)->rows(s, s->chunk->tok0), NULL, err)
                        : st;
}

/* Identity experts: sum += the experts' input, times the sum of their weights. */
static enum ctw_status add_identity(const struct ctw_step *s, struct ctw_err *err)
{
    if (mixture_of(s)->route.n_identity == 0)
        return CTW_OK;
    const struct ctw_op_expand op = {.n_tok = s->chunk->n_tok,
                                     .dim = mixture_of(s)->width,
                                     .n = 1,
                                     .mix = s->f->identity + s->chunk->tok0,
                                     .apart = true,
                                     .out = mixed_of(s),
                                     .dtype = s->f->dtype,
                                     .x = sum_of(s).at};
    return ctw_expand(s->f->be, &op, err);
}

static enum ctw_status end(const struct ctw_step *s, struct ctw_err *err)
{
    enum ctw_status st = add_identity(s, err);
    if (st == CTW_OK && mixture_of(s)->latent)
        st = leave_latent(s, err);
    else if (st == CTW_OK && has_sum(s->layer, s->index)) {
        if (ctw_step_rule(s, CTW_AT_EXPERTS_OUT)->present)
            st = ctw_step_norm_sum(s, CTW_AT_EXPERTS_OUT, sum_of(s).at, err);
        if (st == CTW_OK && mixture_of(s)->has_shared)
            st = add_shared(s, sum_of(s), 1, err);
        return st == CTW_OK ? ctw_step_join_output(s, sum_of(s).at, CTW_F32, err) : st;
    }
    return st == CTW_OK ? residual_of(s)->joined(s, err) : st;
}

/* ---- memory and time ---------------------------------------------------------------------- */

static void widen(struct ctw_widths *w, const struct ctw_layer *l, int branch, int64_t longest)
{
    const struct ctw_mixture *m = &l->branch[branch].mixture;
    (void)longest;
    w->wide = ctw_max64(w->wide, ctw_max64(m->width, ctw_max64(m->shared.inner, 2 * m->inner)));
    w->inner_k = ctw_max64(w->inner_k, ctw_max64(m->shared.inner, m->inner));
    w->n_experts = ctw_max64(w->n_experts, m->route.n_experts);
    w->chosen = ctw_max64(w->chosen, m->route.chosen);
    w->expert_inner = ctw_max64(w->expert_inner, m->inner);
    w->sum |= m->latent || has_sum(l, branch);
    w->identity |= m->route.n_identity > 0;
}

static struct ctw_expert_products experts(const struct ctw_branch *b)
{
    const struct ctw_mixture *m = &b->mixture;
    return (struct ctw_expert_products){.up = &m->up,
                                        .down = &m->down,
                                        .gated = m->gated,
                                        .width = m->width,
                                        .inner = m->inner,
                                        .chosen = m->route.chosen};
}

const struct ctw_kind_ops ctw_ops_mixture = {.widen = widen,
                                             .epilogue = epilogue,
                                             .experts = experts,
                                             .run = choose,
                                             .reads = true,
                                             .run_pass = run_experts,
                                             .end = end};
