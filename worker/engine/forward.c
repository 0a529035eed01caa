#include "worker/engine/forward.h"

#include "base/mem.h"
#include "worker/model/rope.h"

/* ---- buffers ------------------------------------------------------------------------------ */

/* Computes and uploads a RoPE table in slices. */
static enum ctw_status make_cos_sin(struct ctw_forward *f, int rope, struct ctw_err *err)
{
    enum { SLICE = 4096 };
    const struct ctw_rope *r = &f->model->rope[rope];
    size_t row_bytes = (size_t)r->rot_dim * sizeof(float);
    float *slice = ctw_calloc(SLICE, row_bytes);
    if (slice == NULL)
        return ctw_fail(err, CTW_ENOMEM, "out of memory for a RoPE table");
    enum ctw_status st = ctw_device_alloc(f->be, (void **)&f->cos_sin[rope],
                                          (size_t)f->plan.longest * row_bytes, err);
    for (int64_t pos0 = 0; st == CTW_OK && pos0 < f->plan.longest; pos0 += SLICE) {
        int64_t n = f->plan.longest - pos0 < SLICE ? f->plan.longest - pos0 : SLICE;
        for (int64_t p = 0; p < n; p++)
            ctw_rope_row(r->inv_freq, r->rot_dim, r->scale, pos0 + p, slice + p * r->rot_dim);
        st = ctw_device_upload(f->be, (char *)f->cos_sin[rope] + (size_t)pos0 * row_bytes, slice,
                               (size_t)n * row_bytes, err);
    }
    ctw_free(slice);
    return st;
}

enum ctw_status ctw_forward_open(struct ctw_forward **out, const struct ctw_model *model,
                                 struct ctw_backend *be, enum ctw_dtype dtype,
                                 const struct ctw_plan *plan, struct ctw_err *err)
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
        {&f->wide, plan->wide},
        {&f->k, plan->kv / 2},
        {&f->v, plan->kv / 2},
        {(void **)&f->tokens, pass * sizeof(*f->tokens)},
        {(void **)&f->positions, pass * sizeof(*f->positions)},
        {(void **)&f->bad, pass * sizeof(*f->bad)},
        {(void **)&f->rows, pass * sizeof(*f->rows)},
        {(void **)&f->targets, pass * sizeof(*f->targets)},
        {(void **)&f->results, pass * sizeof(*f->results)},
    };
    const struct ctw_reserve reserve = ctw_plan_reserve(model, dtype, plan);
    enum ctw_status st = ctw_backend_reserve(be, &reserve, err);
    for (size_t i = 0; st == CTW_OK && i < CTW_COUNT(buffers); i++)
        st = ctw_device_alloc(be, buffers[i].at, buffers[i].bytes, err);
    for (int i = 0; st == CTW_OK && i < model->n_ropes; i++)
        st = make_cos_sin(f, i, err);
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
    void *buffers[] = {f->x,         f->norm, f->wide, f->k,       f->v,      f->tokens,
                       f->positions, f->bad,  f->rows, f->targets, f->results};
    for (size_t i = 0; i < CTW_COUNT(buffers); i++)
        ctw_device_free(f->be, buffers[i]);
    for (int i = 0; i < CTW_MAX_ROPES; i++)
        ctw_device_free(f->be, f->cos_sin[i]);
    ctw_free(f);
}

/* ---- operations --------------------------------------------------------------------------- */

/* The shards of one of the layer's products. */
static int shards_of(const struct ctw_layer *layer, const struct ctw_layer_data *data,
                     enum ctw_slot slot, struct ctw_shard shards[CTW_MAX_SHARDS])
{
    const struct ctw_product *p = &layer->product[slot];
    for (int i = 0; i < p->n_shards; i++) {
        const struct ctw_rows *rows = &p->shard[i];
        shards[i] = (struct ctw_shard){.weight = &layer->matrix[rows->matrix].weight,
                                       .data = &data->matrix[rows->matrix],
                                       .row0 = rows->row0,
                                       .n = rows->n};
        if (rows->bias >= 0) {
            shards[i].bias = data->vector[rows->bias];
            shards[i].bias_dtype = layer->vector[rows->bias]->dtype;
        }
    }
    return p->n_shards;
}

/* Row `tok` of the residual stream. */
static void *residual_at(const struct ctw_forward *f, int64_t tok)
{
    return (char *)f->x + (size_t)tok * (size_t)f->model->hidden * ctw_dtype_bytes(CTW_RESIDUAL);
}

static enum ctw_status norm_residual(struct ctw_forward *f, int layer,
                                     const struct ctw_layer_data *data, enum ctw_vector_role weight,
                                     const struct ctw_chunk *chunk, int16_t stamp,
                                     struct ctw_err *err)
{
    return ctw_norm(f->be,
                    &(struct ctw_op_norm){
                        .dtype = f->dtype,
                        .n_tok = chunk->n_tok,
                        .dim = f->model->hidden,
                        .x = residual_at(f, chunk->tok0),
                        .x_dtype = CTW_RESIDUAL,
                        .weight = data->vector[weight],
                        .weight_dtype = f->model->layers[layer].vector[weight]->dtype,
                        .weight_offset = f->model->norm_offset,
                        .eps = f->model->norm_eps,
                        .y = f->norm,
                        .bad = f->bad + chunk->tok0,
                        .stamp = stamp,
                    },
                    err);
}

/* x += w y + bias, for the last matrix of attention and of the MLP */
static enum ctw_status add_to_residual(struct ctw_forward *f, const struct ctw_layer *l,
                                       const struct ctw_layer_data *data, enum ctw_slot slot,
                                       const void *y, int64_t ldy, const struct ctw_chunk *chunk,
                                       struct ctw_err *err)
{
    struct ctw_shard shards[CTW_MAX_SHARDS];
    int n_shards = shards_of(l, data, slot, shards);
    return ctw_linear(f->be,
                      &(struct ctw_op_linear){
                          .shards = shards,
                          .n_shards = n_shards,
                          .slot = slot,
                          .dtype = f->dtype,
                          .epilogue = CTW_EPI_ADD,
                          .residual_dtype = CTW_RESIDUAL,
                          .n_tok = chunk->n_tok,
                          .x = y,
                          .ldx = ldy,
                          .y = residual_at(f, chunk->tok0),
                          .ldy = f->model->hidden,
                      },
                      err);
}

/* The chunk's queries, [n_tok, n_head * head], after its q, k and v. */
static void *queries_at(const struct ctw_forward *f, const struct ctw_layer *l)
{
    return (char *)f->wide +
           (size_t)ctw_plan_queries_at(l, f->plan.chunk_tokens) * ctw_dtype_bytes(f->dtype);
}

static enum ctw_status project_qkv(struct ctw_forward *f, const struct ctw_layer *l,
                                   const struct ctw_layer_data *data, const struct ctw_chunk *chunk,
                                   struct ctw_err *err)
{
    struct ctw_shard shards[CTW_MAX_SHARDS];
    int n_shards = shards_of(l, data, CTW_SLOT_QKV, shards);
    const struct ctw_op_linear product = {
        .shards = shards,
        .n_shards = n_shards,
        .slot = CTW_SLOT_QKV,
        .dtype = f->dtype,
        .epilogue = CTW_EPI_STORE,
        .n_tok = chunk->n_tok,
        .x = f->norm,
        .ldx = f->model->hidden,
        .y = f->wide,
        .ldy = (int64_t)(l->n_head + 2 * l->n_kv) * l->head,
    };
    size_t kv_row_bytes = (size_t)l->n_kv * (size_t)l->head * ctw_dtype_bytes(f->dtype);
    const struct ctw_tensor *norm = l->vector[CTW_V_Q_NORM];
    const struct ctw_rope *rope = l->rope < 0 ? NULL : &f->model->rope[l->rope];
    const struct ctw_op_qkv split = {
        .dtype = f->dtype,
        .n_tok = chunk->n_tok,
        .n_head = l->n_head,
        .n_kv = l->n_kv,
        .head = l->head,
        .qkv = f->wide,
        .q_norm = data->vector[CTW_V_Q_NORM],
        .k_norm = data->vector[CTW_V_K_NORM],
        .norm_dtype = norm == NULL ? f->dtype : norm->dtype,
        .norm_eps = f->model->norm_eps,
        .pairing = rope == NULL ? CTW_ROPE_HALVES : rope->pairing,
        .rot_dim = rope == NULL ? 0 : rope->rot_dim,
        .positions = f->positions + chunk->tok0,
        .cos_sin = rope == NULL ? NULL : f->cos_sin[l->rope],
        .q = queries_at(f, l),
        .k = (char *)f->k + (size_t)chunk->kv_row * kv_row_bytes,
        .v = (char *)f->v + (size_t)chunk->kv_row * kv_row_bytes,
    };
    return ctw_linear_qkv(f->be, &product, &split, err);
}

static enum ctw_status attend(struct ctw_forward *f, const struct ctw_layer *l,
                              const struct ctw_layer_data *data, const struct ctw_chunk *chunk,
                              struct ctw_err *err)
{
    enum ctw_status st = project_qkv(f, l, data, chunk, err);
    if (st != CTW_OK)
        return st;
    st = ctw_attention(f->be,
                       &(struct ctw_op_attention){
                           .dtype = f->dtype,
                           .n_head = l->n_head,
                           .n_kv = l->n_kv,
                           .head = l->head,
                           .scale = l->attn_scale,
                           .window = l->window,
                           .softcap = l->attn_softcap,
                           .q = queries_at(f, l),
                           .k = f->k,
                           .v = f->v,
                           .out = f->wide,
                           .seqs = chunk->seqs,
                           .n_seqs = chunk->n_seqs,
                       },
                       err);
    if (st != CTW_OK)
        return st;
    return add_to_residual(f, l, data, CTW_SLOT_O, f->wide, (int64_t)l->n_head * l->head, chunk,
                           err);
}

static enum ctw_status gated_mlp(struct ctw_forward *f, const struct ctw_layer *l,
                                 const struct ctw_layer_data *data, const struct ctw_chunk *chunk,
                                 struct ctw_err *err)
{
    struct ctw_shard shards[CTW_MAX_SHARDS];
    int n_shards = shards_of(l, data, CTW_SLOT_GATE_UP, shards);
    enum ctw_status st = ctw_linear(f->be,
                                    &(struct ctw_op_linear){
                                        .shards = shards,
                                        .n_shards = n_shards,
                                        .slot = CTW_SLOT_GATE_UP,
                                        .dtype = f->dtype,
                                        .epilogue = CTW_EPI_GATE,
                                        .act = f->model->act,
                                        .n_tok = chunk->n_tok,
                                        .x = f->norm,
                                        .ldx = f->model->hidden,
                                        .y = f->wide,
                                        .ldy = l->inner,
                                    },
                                    err);
    if (st != CTW_OK)
        return st;
    return add_to_residual(f, l, data, CTW_SLOT_DOWN, f->wide, l->inner, chunk, err);
}

enum ctw_status ctw_forward_prepare(struct ctw_forward *f, int layer,
                                    const struct ctw_layer_data *data, struct ctw_err *err)
{
    static const enum ctw_epilogue epilogues[CTW_N_SLOTS] = {[CTW_SLOT_QKV] = CTW_EPI_STORE,
                                                             [CTW_SLOT_O] = CTW_EPI_ADD,
                                                             [CTW_SLOT_GATE_UP] = CTW_EPI_GATE,
                                                             [CTW_SLOT_DOWN] = CTW_EPI_ADD};
    for (int s = 0; s < CTW_N_SLOTS; s++) {
        struct ctw_shard shards[CTW_MAX_SHARDS];
        int n_shards = shards_of(&f->model->layers[layer], data, (enum ctw_slot)s, shards);
        const struct ctw_op_linear op = {.shards = shards,
                                         .n_shards = n_shards,
                                         .slot = (enum ctw_slot)s,
                                         .dtype = f->dtype,
                                         .epilogue = epilogues[s],
                                         .residual_dtype = CTW_RESIDUAL};
        enum ctw_status st = ctw_prepare(f->be, &op, err);
        if (st != CTW_OK)
            return st;
    }
    return CTW_OK;
}

enum ctw_status ctw_forward_embed(struct ctw_forward *f, const struct ctw_layer_data *data,
                                  int64_t tok0, int64_t n_tok, struct ctw_err *err)
{
    const struct ctw_shard table =
        ctw_shard_of(&f->model->layers[0].matrix[CTW_M_EMBED].weight, &data->matrix[CTW_M_EMBED]);
    return ctw_embed(f->be,
                     &(struct ctw_op_embed){
                         .table = &table,
                         .dtype = CTW_RESIDUAL,
                         .scale = f->model->embed_scale,
                         .n_tok = n_tok,
                         .tokens = f->tokens + tok0,
                         .y = residual_at(f, tok0),
                     },
                     err);
}

/* In messages, decoder layers count from 0. */
enum ctw_status ctw_forward_mixer(struct ctw_forward *f, int layer,
                                  const struct ctw_layer_data *data, const struct ctw_chunk *chunk,
                                  struct ctw_err *err)
{
    /* If this layer's first norm finds numbers that are not finite, the layer before produced them
     * (or the embedding, reported as layer 0). */
    int16_t before = (int16_t)(layer >= 2 ? layer - 2 : 0);
    enum ctw_status st = norm_residual(f, layer, data, CTW_V_ATTN_NORM, chunk, before, err);
    return st == CTW_OK ? attend(f, &f->model->layers[layer], data, chunk, err) : st;
}

enum ctw_status ctw_forward_mlp(struct ctw_forward *f, int layer, const struct ctw_layer_data *data,
                                const struct ctw_chunk *chunk, struct ctw_err *err)
{
    int16_t here = (int16_t)(layer - 1);
    enum ctw_status st = norm_residual(f, layer, data, CTW_V_MLP_NORM, chunk, here, err);
    return st == CTW_OK ? gated_mlp(f, &f->model->layers[layer], data, chunk, err) : st;
}

enum ctw_status ctw_forward_head(struct ctw_forward *f, const struct ctw_layer_data *data,
                                 int64_t row0, int64_t n_rows, struct ctw_err *err)
{
    const struct ctw_layer *l = &f->model->layers[f->model->n_layers - 1];
    enum ctw_status st = ctw_norm(f->be,
                                  &(struct ctw_op_norm){
                                      .dtype = f->dtype,
                                      .n_tok = n_rows,
                                      .dim = f->model->hidden,
                                      .x = f->x,
                                      .x_dtype = CTW_RESIDUAL,
                                      .rows = f->rows + row0,
                                      .weight = data->vector[CTW_V_FINAL_NORM],
                                      .weight_dtype = l->vector[CTW_V_FINAL_NORM]->dtype,
                                      .weight_offset = f->model->norm_offset,
                                      .eps = f->model->norm_eps,
                                      .y = f->norm,
                                      .bad = f->bad,
                                      .stamp = (int16_t)(f->model->n_decoders - 1),
                                  },
                                  err);
    if (st != CTW_OK)
        return st;
    const struct ctw_shard head =
        ctw_shard_of(&l->matrix[CTW_M_HEAD].weight, &data->matrix[CTW_M_HEAD]);
    return ctw_head(f->be,
                    &(struct ctw_op_head){
                        .weight = &head,
                        .dtype = f->dtype,
                        .scale = f->model->head_scale,
                        .softcap = f->model->head_softcap,
                        .n_vocab = f->model->vocab,
                        .n_rows = n_rows,
                        .x = f->norm,
                        .targets = f->targets + row0,
                        .out = f->results + row0,
                    },
                    err);
}
