/*
 * Features of n-grams for all residual streams. The host gathers a chunk's rows of the table, which
 * stays in the files. f->wide holds these rows as stored [chunk, columns] (up to fp32), the rows in
 * the activations' dtype, the product key | value [chunk, (n + 1) hidden] and later the
 * convolution's input [chunk, n hidden], and the gated values, likewise, and later the
 * convolution's output. The carry is a state: the last inputs of the convolution.
 */
#include "kernels/conv.h"
#include "kernels/ngram_gate.h"
#include "worker/engine/pass/before.h"
#include "worker/engine/pass/step.h"

enum { ELEMENTS_OF_FLOAT = 2 }; /* of the activations' dtype, at most */

struct places {
    char *raw, *e, *kv, *y;
    int64_t columns, width; /* of e; of y */
};

static const struct ctw_ngram *ngram_of(const struct ctw_step *s)
{
    return &s->branch->ngram;
}

static char *behind(const struct ctw_step *s, char *from, int64_t columns)
{
    const int64_t elements = ctw_wide_up(s->f->plan.chunk_tokens * columns);
    return from + (size_t)elements * ctw_dtype_bytes(s->f->dtype);
}

static struct places places_of(const struct ctw_step *s)
{
    const int64_t hidden = s->f->model->hidden;
    struct places p = {.raw = s->f->wide,
                       .columns = ctw_ngram_columns(ngram_of(s)),
                       .width = ctw_residual_width(s->f->model)};
    p.e = behind(s, p.raw, ELEMENTS_OF_FLOAT * p.columns);
    p.kv = behind(s, p.e, p.columns);
    p.y = behind(s, p.kv, p.width + hidden);
    return p;
}

/* The chunk's rows of the table. */
static enum ctw_status gather(const struct ctw_step *s, const struct places *p, struct ctw_err *err)
{
    struct ctw_forward *f = s->f;
    const struct ctw_table *table = &s->layer->table;
    const enum ctw_dtype dtype = table->part[0]->dtype;
    const int64_t n_tok = s->chunk->n_tok;
    const int32_t *before = f->before + s->chunk->tok0 * (f->model->ngram_before + 1);
    const size_t bytes = (size_t)(n_tok * p->columns) * ctw_dtype_bytes(dtype);
    const struct ctw_op_norm convert = {.kind = CTW_NORM_NONE,
                                        .dtype = f->dtype,
                                        .n_tok = n_tok,
                                        .dim = p->columns,
                                        .x = p->raw,
                                        .x_dtype = dtype,
                                        .y = p->e};
    enum ctw_status st =
        ctw_gather_rows(f->model, table, ngram_of(s), before, n_tok, f->readers, f->gathered, err);
    if (st == CTW_OK)
        st = ctw_device_upload(f->be, p->raw, f->gathered, bytes, err);
    return st == CTW_OK ? ctw_norm(f->be, &convert, err) : st;
}

static struct ctw_stream_weights weights_of(const struct ctw_step *s, int place)
{
    return (struct ctw_stream_weights){ctw_step_vector_data(s, CTW_V_WEIGHT + place),
                                       ctw_step_vector(s, CTW_V_WEIGHT + place)->dtype};
}

static enum ctw_status gate(const struct ctw_step *s, const struct places *p, struct ctw_err *err)
{
    struct ctw_forward *f = s->f;
    const int64_t hidden = f->model->hidden, ld = p->width + hidden;
    const struct ctw_norm_rule *norm = ctw_step_rule(s, CTW_AT_NGRAM_KEY);
    const struct ctw_op_ngram_gate op = {.dtype = f->dtype,
                                         .n_tok = s->chunk->n_tok,
                                         .dim = hidden,
                                         .n = (int)(p->width / hidden),
                                         .x = ctw_residual_of(s->layer)->streams(s),
                                         .key = p->kv,
                                         .value =
                                             p->kv + (size_t)p->width * ctw_dtype_bytes(f->dtype),
                                         .ld = ld,
                                         .key_norm = weights_of(s, CTW_AT_NGRAM_KEY),
                                         .x_norm = weights_of(s, CTW_AT_NGRAM_X),
                                         .offset = norm->offset,
                                         .eps = norm->eps,
                                         .y = p->y,
                                         .bad = f->bad + s->chunk->tok0,
                                         .stamp = s->stamp};
    enum ctw_status st = ctw_step_product(s, CTW_P_NGRAM_KV, p->e, p->columns, p->kv, ld, err);
    return st == CTW_OK ? ctw_ngram_gate(f->be, &op, err) : st;
}

/* streams += x [n_tok, width] */
static enum ctw_status add(const struct ctw_step *s, const void *x, int64_t width,
                           struct ctw_err *err)
{
    const struct ctw_op_norm op = {.kind = CTW_NORM_NONE,
                                   .dtype = CTW_RESIDUAL,
                                   .n_tok = s->chunk->n_tok,
                                   .dim = width,
                                   .x = x,
                                   .x_dtype = s->f->dtype,
                                   .add = true,
                                   .y = ctw_residual_of(s->layer)->streams(s)};
    return ctw_norm(s->f->be, &op, err);
}

static enum ctw_status conv(const struct ctw_step *s, const struct places *p,
                            const struct ctw_round *r, struct ctw_err *err)
{
    const struct ctw_op_conv op = {.form = CTW_CONV_SILU,
                                   .dtype = s->f->dtype,
                                   .n_tok = s->chunk->n_tok,
                                   .dim = p->width,
                                   .taps = ngram_of(s)->taps,
                                   .dilation = ngram_of(s)->longest,
                                   .x = p->kv,
                                   .ldx = p->width,
                                   .weight = ctw_step_vector_data(s, CTW_V_NGRAM_CONV),
                                   .weight_dtype = ctw_step_vector(s, CTW_V_NGRAM_CONV)->dtype,
                                   .parts = r->parts,
                                   .n_parts = r->n_parts,
                                   .states = ctw_step_states(s, 0),
                                   .y = p->y,
                                   .ldy = p->width};
    return ctw_conv(s->f->be, &op, err);
}

static enum ctw_status run(const struct ctw_step *s, struct ctw_err *err)
{
    const struct places p = places_of(s);
    struct ctw_op_norm norm = ctw_step_norm(s, CTW_AT_NGRAM_CONV);
    norm.dim = s->f->model->hidden;
    norm.n_groups = p.width / norm.dim;
    norm.own_weights = true;
    norm.x = p.y;
    norm.y = p.kv;
    norm.x_dtype = norm.dtype = s->f->dtype;
    enum ctw_status st = gather(s, &p, err);
    if (st == CTW_OK)
        st = gate(s, &p, err);
    if (st == CTW_OK)
        st = ctw_norm(s->f->be, &norm, err);
    if (st == CTW_OK)
        st = add(s, p.y, p.width, err);
    for (int64_t i = 0; st == CTW_OK && i < s->chunk->n_rounds; i++)
        st = conv(s, &p, &s->chunk->rounds[i], err);
    return st == CTW_OK ? add(s, p.y, p.width, err) : st;
}

/* Rows of the convolution's state have the streams' width: that of its weight. */
static int64_t width_of(const struct ctw_layer *l, int branch)
{
    const struct ctw_product *kv = &l->product[ctw_product_at(branch, CTW_P_NGRAM_KV)];
    return kv->shard[0].n;
}

static void widen(struct ctw_widths *w, const struct ctw_layer *l, int branch, int64_t longest)
{
    const int64_t columns = ctw_ngram_columns(&l->branch[branch].ngram);
    const struct ctw_product *kv = &l->product[ctw_product_at(branch, CTW_P_NGRAM_KV)];
    (void)longest;
    w->wide = ctw_max64(w->wide, (ELEMENTS_OF_FLOAT + 1) * columns + ctw_plan_columns(kv) +
                                     width_of(l, branch));
    w->inner_k = ctw_max64(w->inner_k, columns);
}

static void carry(const struct ctw_model *m, const struct ctw_branch *b, int64_t longest,
                  enum ctw_dtype dtype, struct ctw_carry_rule rules[CTW_BRANCH_CARRIES])
{
    const int64_t behind = (int64_t)(b->ngram.taps - 1) * b->ngram.longest;
    (void)longest;
    (void)dtype;
    rules[0].bytes = (size_t)(behind * ctw_residual_width(m)) * sizeof(float);
    rules[0].life = CTW_STATE;
}

const struct ctw_kind_ops ctw_ops_ngram = {
    .widen = widen, .carry = carry, .joins = -1, .run = run, .reads = true};
