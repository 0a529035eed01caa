/*
 * Several residual streams with alternating updates (Gemma 3n): [tokens, n hidden] of CTW_RESIDUAL.
 * Kept are [tokens, hidden], what the layer's branches make of the active stream, which then
 * corrects all of them. f->wide holds, for a moment, Laurel's product of few columns and its output
 * [chunk, hidden]; at the beginning, the projections [chunk, (n - 1) hidden]; at the end, the
 * streams [chunk, n hidden] fp32, a projection's input and output [chunk, hidden], and the streams'
 * mean, likewise, in fp32.
 */
#include <math.h>

#include "kernels/altup.h"
#include "worker/engine/residual/several.h"

enum { ELEMENTS_OF_FLOAT = 2 }; /* of the activations' dtype, at most */

static const float LEAST_MAGNITUDE = 1e-5f; /* of a projection, squared */

static const struct ctw_alternating *altup_of(const struct ctw_model *m)
{
    return &m->layers[0].residual.alternating;
}

static int64_t width(const struct ctw_model *m)
{
    return altup_of(m)->n * m->hidden;
}

static int64_t kept(const struct ctw_model *m)
{
    return m->hidden;
}

static void widen(struct ctw_widths *w, const struct ctw_model *m)
{
    w->norm = ctw_max64(w->norm, m->hidden);
    w->wide = ctw_max64(w->wide, altup_of(m)->low + m->hidden);
    w->wide = ctw_max64(w->wide, ELEMENTS_OF_FLOAT * (width(m) + m->hidden) + 2 * m->hidden);
}

static double flops(const struct ctw_model *m, const struct ctw_layer *l)
{
    (void)l;
    return 4.0 * (altup_of(m)->n + 4) * (double)width(m);
}

static float *streams_at(const struct ctw_step *s)
{
    return ctw_several_at(s, altup_of(s->f->model)->n);
}

/* What the branches make. */
static float *made_at(const struct ctw_step *s)
{
    const struct ctw_model *m = s->f->model;
    return ctw_several_kept(s, altup_of(m)->n, kept(m));
}

static float *active_at(const struct ctw_step *s)
{
    const struct ctw_model *m = s->f->model;
    return streams_at(s) + altup_of(m)->active * m->hidden;
}

/* y [n_tok, hidden] = factor * x, or y + that; op has the dtypes, and the leading dimensions that
 * are not hidden. */
static enum ctw_status put(const struct ctw_step *s, struct ctw_op_norm op, const void *x, void *y,
                           struct ctw_err *err)
{
    op.n_tok = s->chunk->n_tok;
    op.dim = s->f->model->hidden;
    op.x = x;
    op.y = y;
    return ctw_norm(s->f->be, &op, err);
}

static enum ctw_status level(const struct ctw_step *s, float *x, struct ctw_err *err)
{
    const struct ctw_model *m = s->f->model;
    const struct ctw_op_altup op = {.form = CTW_ALTUP_LEVEL,
                                    .n_tok = s->chunk->n_tok,
                                    .dim = m->hidden,
                                    .n = altup_of(m)->n,
                                    .x = x,
                                    .eps = LEAST_MAGNITUDE};
    return ctw_altup(s->f->be, &op, err);
}

static char *behind(const struct ctw_step *s, void *from, int64_t columns, size_t element)
{
    return (char *)from + (size_t)ctw_wide_up(s->f->plan.chunk_tokens * columns) * element;
}

/* ---- the beginning ------------------------------------------------------------------------ */

static void *embedding(const struct ctw_step *s)
{
    return made_at(s);
}

static enum ctw_status begin(const struct ctw_step *s, struct ctw_err *err)
{
    struct ctw_forward *f = s->f;
    const int64_t hidden = f->model->hidden, all = width(f->model), n = altup_of(f->model)->n;
    const struct ctw_op_norm narrow = {
        .kind = CTW_NORM_NONE, .x_dtype = CTW_RESIDUAL, .dtype = f->dtype};
    const struct ctw_op_norm first = {
        .kind = CTW_NORM_NONE, .x_dtype = CTW_RESIDUAL, .dtype = CTW_RESIDUAL, .ldy = all};
    const struct ctw_op_norm other = {.kind = CTW_NORM_NONE,
                                      .x_dtype = f->dtype,
                                      .dtype = CTW_RESIDUAL,
                                      .ldx = (n - 1) * hidden,
                                      .ldy = all};
    enum ctw_status st = put(s, first, made_at(s), streams_at(s), err);
    if (st != CTW_OK || n == 1)
        return st;
    st = put(s, narrow, made_at(s), f->norm, err);
    if (st == CTW_OK)
        st = ctw_step_product(s, CTW_P_ALTUP, f->norm, hidden, f->wide, (n - 1) * hidden, err);
    for (int64_t i = 1; st == CTW_OK && i < n; i++)
        st = put(s, other, (char *)f->wide + (size_t)((i - 1) * hidden) * ctw_dtype_bytes(f->dtype),
                 streams_at(s) + i * hidden, err);
    return st == CTW_OK ? level(s, streams_at(s), err) : st;
}

/* ---- a layer ------------------------------------------------------------------------------ */

static struct ctw_stream_weights weights(const struct ctw_step *s, int branch, int role)
{
    const int at = ctw_vector_at(branch, role);
    return (struct ctw_stream_weights){s->data->vector[at], s->layer->vector[at]->dtype};
}

/* Predicts all streams, or corrects them by what was made. */
static enum ctw_status update(const struct ctw_step *s, enum ctw_altup_form form,
                              struct ctw_err *err)
{
    const struct ctw_alternating *a = altup_of(s->f->model);
    const struct ctw_op_altup op = {.form = form,
                                    .n_tok = s->chunk->n_tok,
                                    .dim = s->f->model->hidden,
                                    .n = a->n,
                                    .active = a->active,
                                    .x = streams_at(s),
                                    .r = form == CTW_ALTUP_CORRECT ? made_at(s) : NULL,
                                    .norm = weights(s, CTW_MIXER, CTW_V_MIX_BASE),
                                    .router = weights(s, CTW_MIXER, CTW_V_MIX_FN),
                                    .coefs = weights(s, s->index, CTW_V_MIX_SCALE),
                                    .eps = a->eps};
    return ctw_altup(s->f->be, &op, err);
}

/* The active stream, what the mixer reads, and Laurel's part, all by sqrt(1/2). */
static enum ctw_status make(const struct ctw_step *s, const void *y, struct ctw_err *err)
{
    struct ctw_forward *f = s->f;
    const int64_t hidden = f->model->hidden, low = altup_of(f->model)->low;
    char *right = behind(s, f->wide, low, ctw_dtype_bytes(f->dtype));
    struct ctw_op_norm op = {.kind = CTW_NORM_NONE,
                             .x_dtype = f->dtype,
                             .dtype = CTW_RESIDUAL,
                             .factor = (float)M_SQRT1_2};
    enum ctw_status st = put(s, op, y, made_at(s), err);
    op.add = true;
    op.x_dtype = CTW_RESIDUAL;
    op.ldx = width(f->model);
    if (st == CTW_OK)
        st = put(s, op, active_at(s), made_at(s), err);
    if (st == CTW_OK)
        st = ctw_step_product(s, CTW_P_MIX_DOWN, y, hidden, f->wide, low, err);
    if (st == CTW_OK)
        st = ctw_step_product(s, CTW_P_MIX_UP, f->wide, low, right, hidden, err);
    return st == CTW_OK ? ctw_step_add_norm(s, CTW_AT_LAUREL, right, f->dtype, made_at(s),
                                            (float)M_SQRT1_2, err)
                        : st;
}

/* The active stream as it is, or times factors. */
static enum ctw_status take_active(const struct ctw_step *s, void *y, struct ctw_err *err)
{
    struct ctw_op_norm op = {.kind = CTW_NORM_NONE,
                             .x_dtype = CTW_RESIDUAL,
                             .dtype = s->f->dtype,
                             .ldx = width(s->f->model),
                             .bad = s->f->bad + s->chunk->tok0,
                             .stamp = s->stamp};
    if (s->layer != s->f->model->layers && altup_of(s->f->model)->scales) {
        const struct ctw_stream_weights factors = weights(s, s->index, CTW_V_MIX_BASE);
        op.weight = factors.at;
        op.weight_dtype = factors.dtype;
    }
    return put(s, op, active_at(s), y, err);
}

/* The embedding's layer reads the first stream, for the layers' own inputs. */
static enum ctw_status read_norm(const struct ctw_step *s, int place, void *y, struct ctw_err *err)
{
    const struct ctw_model *m = s->f->model;
    enum ctw_status st;
    if (s->layer == m->layers)
        return ctw_step_norm_residual(s, place, NULL, streams_at(s), m->hidden, width(m), y, err);
    if (s->index == CTW_MLP)
        return ctw_step_norm_residual(s, place, NULL, made_at(s), m->hidden, m->hidden, y, err);
    if (s->index == CTW_MIXER) {
        st = update(s, CTW_ALTUP_PREDICT, err);
        if (st == CTW_OK)
            st = ctw_step_norm_residual(s, place, NULL, active_at(s), m->hidden, width(m), y, err);
        return st == CTW_OK ? make(s, y, err) : st;
    }
    st = update(s, CTW_ALTUP_CORRECT, err);
    return st == CTW_OK ? take_active(s, y, err) : st;
}

static enum ctw_status join(const struct ctw_step *s, const void *x, enum ctw_dtype x_dtype,
                            struct ctw_err *err)
{
    const struct ctw_model *m = s->f->model;
    if (s->index != CTW_OWN_INPUT)
        return ctw_step_add_norm(s, CTW_AT_OUT, x, x_dtype, made_at(s),
                                 s->index == CTW_MIXER ? (float)M_SQRT1_2 : 1, err);
    struct ctw_op_norm op = ctw_step_norm(s, CTW_AT_OUT);
    enum ctw_status st = CTW_OK;
    op.x_dtype = x_dtype;
    op.dtype = CTW_RESIDUAL;
    op.ldy = width(m);
    op.add = true;
    for (int64_t i = 1; st == CTW_OK && i < altup_of(m)->n; i++)
        st = put(s, op, x, streams_at(s) + i * m->hidden, err);
    return st;
}

/* ---- the end ------------------------------------------------------------------------------ */

/* x [n_tok, n hidden] = the tokens' streams, all but the first after their projections. */
static enum ctw_status unembed(const struct ctw_step *s, const int64_t *tokens, float *x,
                               struct ctw_err *err)
{
    struct ctw_forward *f = s->f;
    const int64_t hidden = f->model->hidden, all = width(f->model);
    const size_t es = ctw_dtype_bytes(f->dtype);
    char *in = behind(s, x, all, sizeof(*x)), *out = behind(s, in, hidden, es);
    const struct ctw_op_norm widen_out = {
        .kind = CTW_NORM_NONE, .x_dtype = f->dtype, .dtype = CTW_F32, .ldy = all};
    enum ctw_status st = CTW_OK;
    for (int64_t i = 0; st == CTW_OK && i < altup_of(f->model)->n; i++) {
        const struct ctw_op_norm take = {.kind = CTW_NORM_NONE,
                                         .x_dtype = CTW_RESIDUAL,
                                         .dtype = i == 0 ? CTW_F32 : f->dtype,
                                         .rows = tokens,
                                         .ldx = all,
                                         .ldy = i == 0 ? all : hidden,
                                         .bad = f->bad,
                                         .stamp = s->stamp};
        st = put(s, take, (float *)f->x + i * hidden, i == 0 ? (void *)x : in, err);
        if (st != CTW_OK || i == 0)
            continue;
        st = ctw_step_product(s, CTW_P_ALTUP + (int)i - 1, in, hidden, out, hidden, err);
        if (st == CTW_OK)
            st = put(s, widen_out, out, x + i * hidden, err);
    }
    return st;
}

static enum ctw_status finish(const struct ctw_step *s, const int64_t *tokens, void *y,
                              struct ctw_err *err)
{
    const struct ctw_model *m = s->f->model;
    const size_t es = ctw_dtype_bytes(s->f->dtype);
    float *x = s->f->wide;
    char *low =
        behind(s, behind(s, behind(s, x, width(m), sizeof(*x)), m->hidden, es), m->hidden, es);
    float *mean = (float *)(void *)low;
    const struct ctw_op_collapse op = {
        .n_tok = s->chunk->n_tok, .dim = m->hidden, .n = altup_of(m)->n, .x = x, .y = mean};
    enum ctw_status st = unembed(s, tokens, x, err);
    if (st == CTW_OK)
        st = level(s, x, err);
    if (st == CTW_OK)
        st = ctw_collapse(s->f->be, &op, err);
    struct ctw_op_norm norm = ctw_step_norm(s, CTW_AT_IN);
    norm.x_dtype = CTW_F32;
    norm.dtype = s->f->dtype;
    return st == CTW_OK ? put(s, norm, mean, y, err) : st;
}

const struct ctw_residual_ops ctw_residual_alternating = {.width = width,
                                                          .kept = kept,
                                                          .widen = widen,
                                                          .flops = flops,
                                                          .embedding = embedding,
                                                          .begin = begin,
                                                          .read = read_norm,
                                                          .join = join,
                                                          .finish = finish};
