/*
 * Several residual streams, mixed around each branch (hyper-connections): [tokens, n hidden] of
 * CTW_RESIDUAL. Kept are [tokens, n + n n], what a branch's read() leaves for its join(). f->wide
 * holds, meanwhile, the streams collapsed to one, [chunk, hidden] fp32, or the embedding.
 */
#include "worker/engine/residual/several.h"

static const struct ctw_streams *streams_of(const struct ctw_model *m)
{
    return &m->layers[0].residual.streams;
}

static int64_t width(const struct ctw_model *m)
{
    return streams_of(m)->n * m->hidden;
}

static int64_t kept(const struct ctw_model *m)
{
    return ctw_stream_mix(streams_of(m)->n);
}

static void widen(struct ctw_widths *w, const struct ctw_model *m)
{
    enum { MOST = 2 }; /* elements of the activations' dtype in an fp32 number */
    w->norm = ctw_max64(w->norm, m->hidden);
    w->wide = ctw_max64(w->wide, MOST * m->hidden);
}

/* A branch's product with fn, and its sums over the streams. */
static double flops(const struct ctw_model *m, const struct ctw_layer *l)
{
    const double n = streams_of(m)->n;
    return 2.0 * l->n_branches * (double)m->hidden * (n * n * (2 + n) + n * (2 + n));
}

static float *streams_at(const struct ctw_step *s)
{
    return ctw_several_at(s, streams_of(s->f->model)->n);
}

static float *mix_at(const struct ctw_step *s)
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

static struct ctw_stream_weights weights(const struct ctw_step *s, int role)
{
    const struct ctw_tensor *t = ctw_step_vector(s, role); /* NULL: the head's layer has none */
    return (struct ctw_stream_weights){ctw_step_vector_data(s, role),
                                       t != NULL ? t->dtype : CTW_F32};
}

/* y = the norm at `place` of the streams x collapsed. */
static enum ctw_status collapse(const struct ctw_step *s, int place, const float *x,
                                const int64_t *rows, float *mix, int16_t *bad, void *y,
                                struct ctw_err *err)
{
    const struct ctw_model *m = s->f->model;
    const struct ctw_op_collapse op = {.n_tok = s->chunk->n_tok,
                                       .dim = m->hidden,
                                       .n = streams_of(m)->n,
                                       .x = x,
                                       .rows = rows,
                                       .fn = weights(s, CTW_V_MIX_FN),
                                       .base = weights(s, CTW_V_MIX_BASE),
                                       .scale = weights(s, CTW_V_MIX_SCALE),
                                       .norm_eps = streams_of(m)->norm_eps,
                                       .eps = streams_of(m)->eps,
                                       .post_factor = streams_of(m)->post_factor,
                                       .post_eps = streams_of(m)->post_eps,
                                       .n_sinkhorn = streams_of(m)->n_sinkhorn,
                                       .mix = mix,
                                       .y = s->f->wide,
                                       .bad = bad,
                                       .stamp = s->stamp};
    enum ctw_status st = ctw_collapse(s->f->be, &op, err);
    struct ctw_op_norm norm = ctw_step_norm(s, place);
    norm.dim = m->hidden;
    norm.x = s->f->wide;
    norm.x_dtype = CTW_F32;
    norm.y = y;
    norm.dtype = s->f->dtype;
    return st == CTW_OK ? ctw_norm(s->f->be, &norm, err) : st;
}

static enum ctw_status read_norm(const struct ctw_step *s, int place, void *y, struct ctw_err *err)
{
    return collapse(s, place, streams_at(s), NULL, mix_at(s), s->f->bad + s->chunk->tok0, y, err);
}

static enum ctw_status finish(const struct ctw_step *s, const int64_t *tokens, void *y,
                              struct ctw_err *err)
{
    return collapse(s, CTW_AT_IN, s->f->x, tokens, NULL, s->f->bad, y, err);
}

static enum ctw_status join(const struct ctw_step *s, const void *x, enum ctw_dtype x_dtype,
                            struct ctw_err *err)
{
    const struct ctw_op_expand op = {
        .mix = mix_at(s), .out = x, .dtype = x_dtype, .factor = s->branch->factor};
    return ctw_several_join(s, streams_of(s->f->model)->n, op, err);
}

const struct ctw_residual_ops ctw_residual_streams = {.width = width,
                                                      .kept = kept,
                                                      .widen = widen,
                                                      .flops = flops,
                                                      .embedding = embedding,
                                                      .begin = begin,
                                                      .read = read_norm,
                                                      .join = join,
                                                      .finish = finish};
