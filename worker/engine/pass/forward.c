#include "worker/engine/pass/forward.h"

#include <assert.h>
#include <math.h>

#include "base/mem.h"
#include "base/threads.h"
#include "kernels/math.h"
#include "worker/engine/pass/step.h"
#include "worker/model/rope/rope.h"

/* ---- buffers ------------------------------------------------------------------------------ */

/* Computes and uploads a RoPE table in slices: the positions 0 .. longest-1, and again with the
 * frequencies of long sequences if there are some. */
static enum ctw_status make_cos_sin(struct ctw_forward *f, int rope, struct ctw_err *err)
{
    enum { SLICE = 4096 };
    const struct ctw_rope *r = &f->model->rope[rope];
    size_t row_bytes = (size_t)r->rot_dim * sizeof(float);
    int64_t n_rows = ctw_plan_rope_rows(f->model, f->plan.longest);
    float *slice = ctw_calloc(SLICE, row_bytes);
    if (slice == NULL)
        return ctw_fail(err, CTW_ENOMEM, "out of memory for a RoPE table");
    enum ctw_status st =
        ctw_device_alloc(f->be, (void **)&f->cos_sin[rope], (size_t)n_rows * row_bytes, err);
    for (int64_t row0 = 0; st == CTW_OK && row0 < n_rows; row0 += SLICE) {
        int64_t n = n_rows - row0 < SLICE ? n_rows - row0 : SLICE;
        for (int64_t i = 0; i < n; i++) {
            int64_t past = row0 + i >= f->plan.longest ? f->plan.longest : 0;
            bool is_long = past > 0 && r->long_inv_freq != NULL;
            ctw_rope_row(is_long ? r->long_inv_freq : r->inv_freq, r->rot_dim,
                         is_long ? r->long_scale : r->scale, row0 + i - past,
                         slice + i * r->rot_dim);
        }
        st = ctw_device_upload(f->be, (char *)f->cos_sin[rope] + (size_t)row0 * row_bytes, slice,
                               (size_t)n * row_bytes, err);
    }
    ctw_free(slice);
    return st;
}

/* Uploads n floats, which are host memory of this thread. */
static enum ctw_status make_floats(struct ctw_forward *f, float **out, const float *values,
                                   int64_t n, struct ctw_err *err)
{
    size_t bytes = (size_t)n * sizeof(float);
    enum ctw_status st = ctw_device_alloc(f->be, (void **)out, bytes, err);
    return st == CTW_OK ? ctw_device_upload(f->be, *out, values, bytes, err) : st;
}

/* The factor of queries at each position. */
static enum ctw_status make_q_factor(struct ctw_forward *f, struct ctw_err *err)
{
    const struct ctw_model *m = f->model;
    float *factor = ctw_calloc((size_t)f->plan.longest, sizeof(*factor));
    if (factor == NULL)
        return ctw_fail(err, CTW_ENOMEM, "out of memory for the factors of queries");
    for (int64_t p = 0; p < f->plan.longest; p++) {
        const double lengths = ((double)p + m->q_factor_first) / m->q_factor_length;
        const double of = m->q_factor_smooth ? fmax(1, lengths) : 1 + floor(lengths);
        factor[p] = (float)(1 + m->q_factor_beta * ctw_ln(of));
    }
    enum ctw_status st = make_floats(f, &f->q_factor, factor, f->plan.longest, err);
    ctw_free(factor);
    return st;
}

static enum ctw_status make_rotations(struct ctw_forward *f, struct ctw_err *err)
{
    size_t n = (size_t)f->model->n_rotations;
    enum ctw_status st = CTW_OK;
    f->rotations = ctw_calloc(n, sizeof(*f->rotations));
    if (f->rotations == NULL)
        return ctw_fail(err, CTW_ENOMEM, "out of memory for rotations");
    for (size_t i = 0; st == CTW_OK && i < n; i++) {
        const struct ctw_rotation *r = &f->model->rotations[i];
        float *signs = NULL, *matrix = NULL;
        if (r->signs != NULL)
            st = make_floats(f, &signs, r->signs, r->size, err);
        if (st == CTW_OK && r->matrix != NULL)
            st = make_floats(f, &matrix, r->matrix, r->size * r->size, err);
        f->rotations[i] = *r;
        f->rotations[i].signs = signs;
        f->rotations[i].matrix = matrix;
    }
    return st;
}

/* Tables that the model's positions need, and rotations. */
static enum ctw_status make_tables(struct ctw_forward *f, struct ctw_err *err)
{
    const struct ctw_model *m = f->model;
    enum ctw_status st = CTW_OK;
    for (int i = 0; st == CTW_OK && i < m->n_ropes; i++)
        st = make_cos_sin(f, i, err);
    if (st == CTW_OK && m->q_factor_beta != 0)
        st = make_q_factor(f, err);
    if (st == CTW_OK && m->alibi != NULL)
        st = make_floats(f, &f->alibi, m->alibi, m->n_alibi, err);
    if (st == CTW_OK && m->rates != NULL)
        st = make_floats(f, &f->rates, m->rates, m->n_rates, err);
    if (st == CTW_OK && m->n_rotations > 0)
        st = make_rotations(f, err);
    return st;
}

/* What the host knows of the trunk. */
static enum ctw_status make_trunk(struct ctw_forward *f, struct ctw_err *err)
{
    const struct ctw_plan *plan = &f->plan;
    f->trunk_places = ctw_calloc(ctw_trunk_n_places(f->model), sizeof(*f->trunk_places));
    f->trunk_tokens = ctw_calloc((size_t)plan->trunk_tokens, sizeof(*f->trunk_tokens));
    if (f->trunk_places == NULL || f->trunk_tokens == NULL)
        return ctw_fail(err, CTW_ENOMEM, "out of memory");
    (void)ctw_trunk_size(f->model, f->dtype, plan->longest, plan->trunk_tokens, f->trunk_places);
    return CTW_OK;
}

enum ctw_status ctw_forward_open(struct ctw_forward **out, const struct ctw_model *model,
                                 struct ctw_backend *be, enum ctw_dtype dtype,
                                 const struct ctw_plan *plan, int n_threads, struct ctw_err *err)
{
    struct ctw_forward *f = ctw_calloc(1, sizeof(*f));
    if (f == NULL)
        return ctw_fail(err, CTW_ENOMEM, "out of memory");
    *f = (struct ctw_forward){.model = model, .be = be, .dtype = dtype, .plan = *plan};
    size_t pass = (size_t)plan->pass_tokens;
    const struct {
        void **at;
        size_t bytes;
    } buffers[] = {
        {&f->x, plan->residual},
        {&f->norm, plan->activations - plan->wide},
        {&f->inputs, plan->inputs},
        {&f->wide, plan->wide},
        {&f->mixed, plan->mixed},
        {&f->sum, plan->sum},
        {(void **)&f->logits, plan->logits},
        {(void **)&f->factor, plan->factor},
        {(void **)&f->identity, plan->identity},
        {(void **)&f->ids, plan->choices},
        {(void **)&f->weights, plan->choices},
        {(void **)&f->expert_rows, plan->choices},
        {(void **)&f->expert_weights, plan->choices},
        {(void **)&f->device_start, plan->starts},
        {&f->trunk, plan->trunk},
        {(void **)&f->tokens, pass * sizeof(*f->tokens)},
        {(void **)&f->positions, pass * sizeof(*f->positions)},
        {(void **)&f->bad, pass * sizeof(*f->bad)},
        {(void **)&f->rows, pass * sizeof(*f->rows)},
        {(void **)&f->targets, pass * sizeof(*f->targets)},
        {(void **)&f->first_target, (pass + 1) * sizeof(*f->first_target)},
        {(void **)&f->results, pass * sizeof(*f->results)},
    };
    const struct ctw_reserve reserve = ctw_plan_reserve(model, dtype, plan);
    enum ctw_status st = ctw_backend_reserve(be, &reserve, err);
    for (size_t i = 0; st == CTW_OK && i < CTW_COUNT(buffers); i++)
        if (buffers[i].bytes > 0)
            st = ctw_device_alloc(be, buffers[i].at, buffers[i].bytes, err);
    f->start = plan->starts > 0 ? ctw_calloc(plan->starts, 1) : NULL;
    f->gathered = plan->gathered > 0 ? ctw_calloc(plan->gathered, 1) : NULL;
    if (st == CTW_OK &&
        ((plan->starts > 0 && f->start == NULL) || (plan->gathered > 0 && f->gathered == NULL)))
        st = ctw_fail(err, CTW_ENOMEM, "out of memory");
    if (st == CTW_OK && plan->gathered > 0)
        st = ctw_threads_open(&f->readers, n_threads, err);
    if (st == CTW_OK && plan->trunk > 0)
        st = make_trunk(f, err);
    for (int i = 0; st == CTW_OK && i < CTW_N_CARRIES; i++)
        if (plan->carry[i] > 0)
            st = ctw_device_alloc(be, &f->carry[i], plan->carry[i], err);
    if (st == CTW_OK)
        st = make_tables(f, err);
    if (st != CTW_OK) {
        ctw_forward_close(f);
        return st;
    }
    *out = f;
    return CTW_OK;
}

void ctw_forward_close(struct ctw_forward *f)
{
    if (f == NULL)
        return;
    void *buffers[] = {
        f->x,           f->norm,           f->inputs,       f->wide,         f->tokens,
        f->bad,         f->rows,           f->targets,      f->first_target, f->results,
        f->positions,   f->q_factor,       f->alibi,        f->rates,        f->mixed,
        f->sum,         f->logits,         f->factor,       f->ids,          f->weights,
        f->expert_rows, f->expert_weights, f->device_start, f->trunk,        f->identity};
    for (size_t i = 0; i < CTW_COUNT(buffers); i++)
        ctw_device_free(f->be, buffers[i]);
    for (int i = 0; i < CTW_MAX_ROPES; i++)
        ctw_device_free(f->be, f->cos_sin[i]);
    for (int i = 0; i < CTW_N_CARRIES; i++)
        ctw_device_free(f->be, f->carry[i]);
    for (int i = 0; f->rotations != NULL && i < f->model->n_rotations; i++) {
        ctw_device_free(f->be, (void *)(uintptr_t)f->rotations[i].signs);
        ctw_device_free(f->be, (void *)(uintptr_t)f->rotations[i].matrix);
    }
    ctw_free(f->rotations);
    ctw_free(f->start);
    ctw_free(f->gathered);
    ctw_threads_close(f->readers);
    ctw_free(f->trunk_places);
    ctw_free(f->trunk_tokens);
    ctw_free(f);
}

/* ---- the embedding ------------------------------------------------------------------------ */

static enum ctw_status embed(const struct ctw_step *s, int role, struct ctw_op_embed op,
                             struct ctw_err *err)
{
    const struct ctw_weight *weight = &s->layer->matrix[role].weight;
    struct ctw_shard table = ctw_shard_of(weight, &s->data->matrix[role]);
    struct ctw_weight part;
    if (role == CTW_M_POSITIONS) {
        table.row0 = s->f->model->position0;
        table.n = weight->n - table.row0;
    } else if (role == CTW_M_EMBED && s->data->n_rows > 0) {
        part = ctw_weight_rows(weight, s->data->n_rows);
        table = ctw_shard_of(&part, table.data);
        op.in_part = true;
        op.id0 = (int32_t)s->data->row0;
    }
    op.table = &table;
    op.n_tok = s->chunk->n_tok;
    op.tokens = (role == CTW_M_POSITIONS ? s->f->positions : s->f->tokens) + s->chunk->tok0;
    return ctw_embed(s->f->be, &op, err);
}

static void *embedding_of(const struct ctw_step *s)
{
    return ctw_residual_of(s->layer)->embedding(s);
}

/* The residual from learned positions and an embedding of another width. A family with such an
 * embedding has learned positions. */
static enum ctw_status embed_projected(const struct ctw_step *s, struct ctw_err *err)
{
    const struct ctw_model *m = s->f->model;
    const struct ctw_residual_rows x = {.at = embedding_of(s), .ld = m->hidden};
    assert(s->layer->matrix[CTW_M_POSITIONS].name != NULL);
    enum ctw_status st =
        embed(s, CTW_M_POSITIONS,
              (struct ctw_op_embed){.dtype = CTW_RESIDUAL, .scale = 1, .y = x.at}, err);
    if (st == CTW_OK)
        st = embed(
            s, CTW_M_EMBED,
            (struct ctw_op_embed){.dtype = s->f->dtype, .scale = m->embed_scale, .y = s->f->norm},
            err);
    return st == CTW_OK
               ? ctw_step_add_product(s, CTW_P_WIDTH, s->f->norm, m->embed_dim, x, NULL, err)
               : st;
}

static enum ctw_status embed_tokens(const struct ctw_step *s, struct ctw_err *err)
{
    return embed(s, CTW_M_EMBED,
                 (struct ctw_op_embed){.dtype = CTW_RESIDUAL,
                                       .scale = s->f->model->embed_scale,
                                       .y = embedding_of(s)},
                 err);
}

/* Learned positions are added to the residual, if there are some. */
static enum ctw_status embed_positions(const struct ctw_step *s, struct ctw_err *err)
{
    if (s->layer->matrix[CTW_M_POSITIONS].name == NULL)
        return CTW_OK;
    return embed(
        s, CTW_M_POSITIONS,
        (struct ctw_op_embed){.dtype = CTW_RESIDUAL, .scale = 1, .add = true, .y = embedding_of(s)},
        err);
}

enum ctw_status ctw_forward_embed(struct ctw_forward *f, const struct ctw_layer_data *data,
                                  int64_t tok0, int64_t n_tok, struct ctw_err *err)
{
    const struct ctw_chunk chunk = {.tok0 = tok0, .n_tok = n_tok};
    const struct ctw_layer *layer = &f->model->layers[0];
    const struct ctw_step s = {
        .f = f, .layer = layer, .branch = &layer->branch[0], .data = data, .chunk = &chunk};
    bool projected = ctw_step_has(&s, CTW_P_WIDTH);
    enum ctw_status st = projected ? embed_projected(&s, err) : embed_tokens(&s, err);
    if (st != CTW_OK ||
        (data->n_rows > 0 && data->row0 + data->n_rows < s.layer->matrix[CTW_M_EMBED].weight.n))
        return st;
    if (!projected)
        st = embed_positions(&s, err);
    if (st == CTW_OK)
        st = ctw_residual_of(s.layer)->begin(&s, err);
    if (st == CTW_OK && f->model->input_dim > 0) {
        st = ctw_layer_inputs(&s, err);
        if (st == CTW_OK)
            st = embed(&s, CTW_M_INPUT_EMBED,
                       (struct ctw_op_embed){.dtype = f->dtype,
                                             .scale = f->model->input_embed_scale,
                                             .add = true,
                                             .y = ctw_layer_inputs_at(&s, 0)},
                       err);
    }
    return st;
}

/* ---- decoder layers ----------------------------------------------------------------------- */

/* If a layer's first norm finds numbers that are not finite, the previous layer produced them, or
 * the embedding (reported as layer 0). Decoder layers count from 0 in messages. */
static struct ctw_step step_of(struct ctw_forward *f, int layer, const struct ctw_layer_data *data,
                               const struct ctw_chunk *chunk, int branch)
{
    const struct ctw_layer *l = &f->model->layers[layer];
    int at = 0;
    while (at < CTW_MAX_BRANCHES - 1 && l->branch[ctw_branch_at(l, at)].kind == CTW_KIND_none)
        at++;
    const int first = ctw_branch_at(l, at);
    return (struct ctw_step){.f = f,
                             .layer = l,
                             .data = data,
                             .chunk = chunk,
                             .index = branch,
                             .branch = &l->branch[branch],
                             .stamp = (int16_t)(branch != first ? layer - 1
                                                : layer >= 2    ? layer - 2
                                                                : 0)};
}

enum ctw_status ctw_forward_prepare(struct ctw_forward *f, int layer,
                                    const struct ctw_layer_data *data, struct ctw_err *err)
{
    for (int slot = 0; slot < CTW_LAYER_SLOTS; slot++) {
        const struct ctw_step s = step_of(f, layer, data, NULL, slot / CTW_BRANCH_PRODUCTS);
        struct ctw_shard shards[CTW_MAX_SHARDS];
        const struct ctw_op_linear op = {
            .shards = shards,
            .n_shards = ctw_step_shards(&s, slot % CTW_BRANCH_PRODUCTS, shards),
            .slot = (enum ctw_slot)slot,
            .dtype = f->dtype,
            .epilogue = ctw_product_epilogue(s.layer, slot),
            .residual_dtype = CTW_RESIDUAL};
        enum ctw_status st = ctw_prepare(f->be, &op, err);
        if (st != CTW_OK)
            return st;
    }
    return CTW_OK;
}

int ctw_forward_stop(const struct ctw_forward *f, int layer, int from)
{
    const struct ctw_layer *l = &f->model->layers[layer];
    while (from < l->n_branches && ctw_ops_of(&l->branch[ctw_branch_at(l, from)])->run_pass == NULL)
        from++;
    return from;
}

enum ctw_status ctw_forward_branches(struct ctw_forward *f, int layer,
                                     const struct ctw_layer_data *data,
                                     const struct ctw_chunk *chunk, int from, struct ctw_err *err)
{
    const struct ctw_layer *l = &f->model->layers[layer];
    int stop = ctw_forward_stop(f, layer, from), n = l->n_branches;
    enum ctw_status st = CTW_OK;
    if (from > 0) {
        const struct ctw_step s = step_of(f, layer, data, chunk, ctw_branch_at(l, from - 1));
        st = ctw_trunk_read(&s, err);
        if (st == CTW_OK)
            st = ctw_ops_of(s.branch)->end(&s, err);
        if (st == CTW_OK)
            st = ctw_trunk_leave(&s, err);
    }
    for (int i = from; st == CTW_OK && i <= stop && i < n; i++) {
        const struct ctw_step s = step_of(f, layer, data, chunk, ctw_branch_at(l, i));
        const struct ctw_kind_ops *ops = ctw_ops_of(s.branch);
        if (ops->run == NULL)
            continue;
        const bool carries = ops->run_pass == NULL; /* otherwise its end does */
        st = carries ? ctw_trunk_read(&s, err) : CTW_OK;
        if (st == CTW_OK && !ops->reads && !s.branch->beside)
            st = ctw_step_read(&s, CTW_AT_IN, err);
        if (st == CTW_OK)
            st = ops->run(&s, err);
        if (st == CTW_OK && carries)
            st = ctw_trunk_leave(&s, err);
    }
    return st;
}

enum ctw_status ctw_forward_whole(struct ctw_forward *f, int layer,
                                  const struct ctw_layer_data *data, int branch, int64_t n_tok,
                                  ctw_rows_done *done, void *arg, struct ctw_err *err)
{
    const int at = ctw_branch_at(&f->model->layers[layer], branch);
    const struct ctw_step s = step_of(f, layer, data, NULL, at);
    return ctw_ops_of(s.branch)->run_pass(&s, n_tok, done, arg, err);
}

/* ---- the head ----------------------------------------------------------------------------- */

enum ctw_status ctw_forward_read(struct ctw_forward *f, const struct ctw_layer_data *data,
                                 int64_t row0, int64_t n_rows, struct ctw_err *err)
{
    const struct ctw_layer *l = &f->model->layers[f->model->n_layers - 1];
    const struct ctw_chunk chunk = {.n_tok = n_rows};
    const struct ctw_step s = {.f = f,
                               .layer = l,
                               .branch = &l->branch[0],
                               .data = data,
                               .chunk = &chunk,
                               .stamp = (int16_t)(f->model->n_decoders - 1)};
    bool projected = ctw_step_has(&s, CTW_P_WIDTH);
    enum ctw_status st =
        ctw_residual_of(l)->finish(&s, f->rows + row0, projected ? f->wide : f->norm, err);
    if (st != CTW_OK || !projected)
        return st;
    return ctw_step_product(&s, CTW_P_WIDTH, f->wide, f->model->hidden, f->norm,
                            f->model->embed_dim, err);
}

/* The head's input: f->norm, or its copy in f->wide, if the head is wider than the activations. */
static enum ctw_status widen_head_input(struct ctw_forward *f, int64_t n_rows, const void **x,
                                        struct ctw_err *err)
{
    const enum ctw_dtype dtype = ctw_plan_head_dtype(f->model, f->dtype);
    const struct ctw_op_norm copy = {.kind = CTW_NORM_NONE,
                                     .dtype = dtype,
                                     .n_tok = n_rows,
                                     .dim = f->model->embed_dim,
                                     .x = f->norm,
                                     .x_dtype = f->dtype,
                                     .y = f->wide};
    *x = dtype == f->dtype ? f->norm : f->wide;
    return dtype == f->dtype ? CTW_OK : ctw_norm(f->be, &copy, err);
}

enum ctw_status ctw_forward_head(struct ctw_forward *f, const struct ctw_layer_data *data,
                                 int64_t row0, int64_t n_rows, bool several, int64_t n_vocab,
                                 const struct ctw_kept_logits *keep, struct ctw_err *err)
{
    const struct ctw_layer *l = &f->model->layers[f->model->n_layers - 1];
    struct ctw_weight weight = l->matrix[CTW_M_HEAD].weight;
    if (data->n_rows > 0)
        weight = ctw_weight_rows(&weight, data->n_rows);
    struct ctw_shard head = ctw_shard_of(&weight, &data->matrix[CTW_M_HEAD]);
    if (data->n_rows > 0 && data->row0 >= n_vocab)
        return CTW_OK;
    if (l->matrix[CTW_M_HEAD].input.codes != CTW_CODES_NONE)
        head.input = &l->matrix[CTW_M_HEAD].input;
    if (l->matrix[CTW_M_HEAD].output.codes != CTW_CODES_NONE)
        head.output = &l->matrix[CTW_M_HEAD].output;
    head.rotate_in = ctw_forward_rotation(f, l->matrix[CTW_M_HEAD].rotate_in);
    if (l->vector[CTW_V_HEAD_BIAS] != NULL) {
        head.bias_dtype = l->vector[CTW_V_HEAD_BIAS]->dtype;
        head.bias = (const char *)data->vector[CTW_V_HEAD_BIAS] +
                    (size_t)data->row0 * ctw_dtype_bytes(head.bias_dtype);
    }
    struct ctw_op_head op = {
        .weight = &head,
        .dtype = ctw_plan_head_dtype(f->model, f->dtype),
        .scale = f->model->head_scale,
        .softcap = f->model->head_softcap,
        .unit_rows = f->model->unit_head,
        .n_vocab = n_vocab,
        .n_rows = n_rows,
        .id0 = data->row0,
        .first_target = several ? f->first_target + row0 : NULL,
        .targets = several ? f->targets : f->targets + row0,
        .out = several ? f->results : f->results + row0,
    };
    if (keep != NULL) {
        op.logits = keep->logits;
        op.ld_logits = keep->ld;
        op.norms = keep->norms;
    }
    enum ctw_status st = widen_head_input(f, n_rows, &op.x, err);
    return st == CTW_OK ? ctw_head(f->be, &op, err) : st;
}
