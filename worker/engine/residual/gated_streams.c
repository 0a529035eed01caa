/*
 * Several residual streams, mixed around each branch by gates of each number: [tokens, n hidden] of
 * CTW_RESIDUAL. Kept are [tokens, n], the weights with which a branch's output is joined. f->wide
 * holds, meanwhile, the normalised streams [chunk, n hidden], the gates, likewise, the products of
 * few columns [chunk, rank + n], in rows of whole vectors, as products on a GPU read and write
 * them, and the mean [chunk, hidden] fp32.
 */
#include "worker/engine/residual/several.h"

enum {
    ELEMENTS_OF_FLOAT = 2, /* of the activations' dtype, at most */
    VECTOR = 8
};

static const struct ctw_gated_streams *streams_of(const struct ctw_model *m)
{
    return &m->layers[0].residual.gated_streams;
}

static int64_t width(const struct ctw_model *m)
{
    return streams_of(m)->n * m->hidden;
}

static int64_t kept(const struct ctw_model *m)
{
    return streams_of(m)->n;
}

static int64_t whole_vectors(int64_t columns)
{
    return (columns + VECTOR - 1) / VECTOR * VECTOR;
}

static void widen(struct ctw_widths *w, const struct ctw_model *m)
{
    const struct ctw_gated_streams *s = streams_of(m);
    w->norm = ctw_max64(w->norm, m->hidden);
    w->wide = ctw_max64(w->wide, 2 * width(m) + whole_vectors(s->rank + s->n) +
                                     ELEMENTS_OF_FLOAT * m->hidden);
}

/* Norms, gates and sums; the products count by themselves. */
static double flops(const struct ctw_model *m, const struct ctw_layer *l)
{
    return 10.0 * l->n_branches * (double)width(m);
}

static float *streams_at(const struct ctw_step *s)
{
    return ctw_several_at(s, streams_of(s->f->model)->n);
}

static float *weights_at(const struct ctw_step *s)
{
    const struct ctw_model *m = s->f->model;
    return ctw_several_kept(s, streams_of(m)->n, kept(m));
}

static void *embedding(const struct ctw_step *s)
{
    return streams_at(s);
}

static enum ctw_status begin(const struct ctw_step *s, struct ctw_err *err)
{
    return ctw_several_begin(s, streams_of(s->f->model)->n, err);
}

struct places {
    char *f, *gates, *low;
    float *mean;
    int64_t columns, ld; /* of low */
};

static char *behind(const struct ctw_step *s, void *from, int64_t columns)
{
    const int64_t elements = ctw_wide_up(s->f->plan.chunk_tokens * columns);
    return (char *)from + (size_t)elements * ctw_dtype_bytes(s->f->dtype);
}

static struct places places_of(const struct ctw_step *s)
{
    const int64_t n = width(s->f->model);
    struct places p = {.f = s->f->wide,
                       .columns = ctw_plan_columns(ctw_step_product_of(s, CTW_P_MIX_DOWN))};
    p.ld = whole_vectors(p.columns);
    p.gates = behind(s, p.f, n);
    p.low = behind(s, p.gates, n);
    p.mean = (float *)(void *)behind(s, p.low, p.ld);
    return p;
}

/* Each stream's norm, of rows rows[t] of x, or t. */
static enum ctw_status normalise(const struct ctw_step *s, int place, const float *x,
                                 const int64_t *rows, int16_t *bad, char *y, struct ctw_err *err)
{
    const struct ctw_model *m = s->f->model;
    struct ctw_op_norm op = ctw_step_norm(s, place);
    const char *weight = op.weight;
    enum ctw_status st = CTW_OK;
    op.dim = m->hidden;
    op.rows = rows;
    op.ldx = op.ldy = width(m);
    op.x_dtype = CTW_RESIDUAL;
    op.dtype = s->f->dtype;
    op.bad = bad;
    op.stamp = s->stamp;
    for (int i = 0; st == CTW_OK && i < streams_of(m)->n; i++) {
        const size_t first = (size_t)(i * m->hidden);
        op.x = x + first;
        op.y = y + first * ctw_dtype_bytes(op.dtype);
        op.weight = weight + first * ctw_dtype_bytes(op.weight_dtype);
        st = ctw_norm(s->f->be, &op, err);
    }
    return st;
}

/* The products of few columns, divided by n, and of them the gates. */
static enum ctw_status make_gates(const struct ctw_step *s, const struct places *p,
                                  struct ctw_err *err)
{
    const struct ctw_gated_streams *r = streams_of(s->f->model);
    const int64_t all = width(s->f->model);
    const struct ctw_op_norm share = {.kind = CTW_NORM_NONE,
                                      .dtype = s->f->dtype,
                                      .n_tok = s->chunk->n_tok,
                                      .dim = p->columns,
                                      .x = p->low,
                                      .ldx = p->ld,
                                      .x_dtype = s->f->dtype,
                                      .factor = 1 / (float)r->n,
                                      .y = p->low,
                                      .ldy = p->ld};
    const struct ctw_op_act act = {.act = CTW_ACT_SILU,
                                   .dtype = s->f->dtype,
                                   .n_tok = s->chunk->n_tok,
                                   .dim = r->rank,
                                   .x = p->low,
                                   .ldx = p->ld,
                                   .y = p->low,
                                   .ldy = p->ld};
    enum ctw_status st = ctw_step_product(s, CTW_P_MIX_DOWN, p->f, all, p->low, p->ld, err);
    if (st == CTW_OK)
        st = ctw_norm(s->f->be, &share, err);
    if (st == CTW_OK)
        st = ctw_act(s->f->be, &act, err);
    return st == CTW_OK ? ctw_step_product(s, CTW_P_MIX_UP, p->low, p->ld, p->gates, all, err) : st;
}

/* The sigmoids of the columns behind `rank`; join() doubles them. */
static enum ctw_status keep_weights(const struct ctw_step *s, const struct places *p,
                                    struct ctw_err *err)
{
    const struct ctw_gated_streams *r = streams_of(s->f->model);
    const struct ctw_op_norm copy = {.kind = CTW_NORM_NONE,
                                     .dtype = CTW_F32,
                                     .n_tok = s->chunk->n_tok,
                                     .dim = r->n,
                                     .x = p->low + (size_t)r->rank * ctw_dtype_bytes(s->f->dtype),
                                     .ldx = p->ld,
                                     .x_dtype = s->f->dtype,
                                     .y = weights_at(s)};
    const struct ctw_op_act act = {.act = CTW_ACT_SIGMOID,
                                   .dtype = CTW_F32,
                                   .n_tok = s->chunk->n_tok,
                                   .dim = r->n,
                                   .x = weights_at(s),
                                   .ldx = r->n,
                                   .y = weights_at(s),
                                   .ldy = r->n};
    enum ctw_status st = ctw_norm(s->f->be, &copy, err);
    return st == CTW_OK ? ctw_act(s->f->be, &act, err) : st;
}

/* y = the mean over the streams of gate * f, in fp32 until its end. */
static enum ctw_status take_mean(const struct ctw_step *s, const struct places *p, void *y,
                                 struct ctw_err *err)
{
    const struct ctw_model *m = s->f->model;
    const int n = streams_of(m)->n;
    const int64_t all = width(m);
    const struct ctw_op_gate gate = {.kind = CTW_GATE_SIGMOID,
                                     .dtype = s->f->dtype,
                                     .n_tok = s->chunk->n_tok,
                                     .n_groups = all,
                                     .size = 1,
                                     .x = p->gates,
                                     .ldx = all,
                                     .y = p->f,
                                     .ldy = all};
    struct ctw_op_norm sum = {.kind = CTW_NORM_NONE,
                              .dtype = CTW_F32,
                              .n_tok = s->chunk->n_tok,
                              .dim = m->hidden,
                              .ldx = all,
                              .x_dtype = s->f->dtype,
                              .factor = 1 / (float)n,
                              .y = p->mean};
    const struct ctw_op_norm round = {.kind = CTW_NORM_NONE,
                                      .dtype = s->f->dtype,
                                      .n_tok = s->chunk->n_tok,
                                      .dim = m->hidden,
                                      .x = p->mean,
                                      .x_dtype = CTW_F32,
                                      .y = y};
    enum ctw_status st = ctw_gate(s->f->be, &gate, err);
    for (int i = 0; st == CTW_OK && i < n; i++) {
        sum.add = i > 0;
        sum.x = p->f + (size_t)(i * m->hidden) * ctw_dtype_bytes(s->f->dtype);
        st = ctw_norm(s->f->be, &sum, err);
    }
    return st == CTW_OK ? ctw_norm(s->f->be, &round, err) : st;
}

static enum ctw_status collapse(const struct ctw_step *s, int place, const float *x,
                                const int64_t *rows, int16_t *bad, void *y, struct ctw_err *err)
{
    const struct places p = places_of(s);
    enum ctw_status st = normalise(s, place, x, rows, bad, p.f, err);
    if (st == CTW_OK)
        st = make_gates(s, &p, err);
    if (st == CTW_OK && p.columns > streams_of(s->f->model)->rank)
        st = keep_weights(s, &p, err);
    return st == CTW_OK ? take_mean(s, &p, y, err) : st;
}

static enum ctw_status read_norm(const struct ctw_step *s, int place, void *y, struct ctw_err *err)
{
    return collapse(s, place, streams_at(s), NULL, s->f->bad + s->chunk->tok0, y, err);
}

static enum ctw_status finish(const struct ctw_step *s, const int64_t *tokens, void *y,
                              struct ctw_err *err)
{
    return collapse(s, CTW_AT_IN, s->f->x, tokens, s->f->bad, y, err);
}

static enum ctw_status join(const struct ctw_step *s, const void *x, enum ctw_dtype x_dtype,
                            struct ctw_err *err)
{
    const struct ctw_op_expand op = {.mix = weights_at(s),
                                     .apart = true,
                                     .out = x,
                                     .dtype = x_dtype,
                                     .factor = 2 * s->branch->factor};
    return ctw_several_join(s, streams_of(s->f->model)->n, op, err);
}

const struct ctw_residual_ops ctw_residual_gated_streams = {.width = width,
                                                            .kept = kept,
                                                            .widen = widen,
                                                            .flops = flops,
                                                            .embedding = embedding,
                                                            .begin = begin,
                                                            .read = read_norm,
                                                            .join = join,
                                                            .streams = streams_at,
                                                            .finish = finish};
