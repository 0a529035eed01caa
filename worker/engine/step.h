/*
 * The vocabulary of a layer's operations: one layer on one chunk. mixers/ and mlps/ are written
 * with it.
 */
#ifndef CTW_WORKER_STEP_H
#define CTW_WORKER_STEP_H

#include "worker/engine/forward.h"

struct ctw_step {
    struct ctw_forward *f;
    const struct ctw_layer *layer;
    const struct ctw_layer_data *data;
    const struct ctw_chunk *chunk;
    int16_t before, here; /* marks for rows of the residual that are not finite, see ctw_op_norm */
};

/* The shards of one of the layer's products; returns their number. */
int ctw_step_shards(const struct ctw_step *s, enum ctw_slot slot,
                    struct ctw_shard shards[CTW_MAX_SHARDS]);

/* One shard: rows of a matrix, whose bias begins at element bias0 of its vector. */
void ctw_step_shard(const struct ctw_step *s, struct ctw_shard *out, const struct ctw_rows *rows,
                    const struct ctw_matrix *matrix, const struct ctw_weight_data *data,
                    int64_t bias0);

static inline bool ctw_step_has(const struct ctw_step *s, enum ctw_slot slot)
{
    return s->layer->product[slot].n_shards > 0;
}

/* The chunk's rows of the residual stream, [n_tok, hidden] of CTW_RESIDUAL. */
void *ctw_step_residual(const struct ctw_step *s);

/* A norm of the chunk's rows as the layer describes it; x, y, their dtypes and sizes are not set.
 * CTW_NORM_NONE if the layer has none at this place. */
struct ctw_op_norm ctw_step_norm(const struct ctw_step *s, enum ctw_norm_place place);

/* y [n_tok, hidden], or f->norm, = the norm of the residual, of the activations' dtype. */
enum ctw_status ctw_step_read_to(const struct ctw_step *s, enum ctw_norm_place place, int16_t stamp,
                                 void *y, struct ctw_err *err) CTW_MUST_CHECK;
enum ctw_status ctw_step_read(const struct ctw_step *s, enum ctw_norm_place place, int16_t stamp,
                              struct ctw_err *err) CTW_MUST_CHECK;

/* y += factor * norm(x), both [n_tok, hidden]; y fp32. */
enum ctw_status ctw_step_add_norm(const struct ctw_step *s, enum ctw_norm_place place,
                                  const void *x, enum ctw_dtype x_dtype, void *y, float factor,
                                  struct ctw_err *err) CTW_MUST_CHECK;
/* The norm of y [n_tok, hidden] fp32, in place. */
enum ctw_status ctw_step_norm_sum(const struct ctw_step *s, enum ctw_norm_place place, void *y,
                                  struct ctw_err *err) CTW_MUST_CHECK;

/* The residual's own norm, if the layer has one at this place. */
enum ctw_status ctw_step_norm_residual(const struct ctw_step *s, enum ctw_norm_place place,
                                       struct ctw_err *err) CTW_MUST_CHECK;

/* residual *= factor */
enum ctw_status ctw_step_scale_residual(const struct ctw_step *s, float factor,
                                        struct ctw_err *err) CTW_MUST_CHECK;

/* The norm of y [n_tok, dim] of the activations' dtype, in place, if the layer has one there. */
enum ctw_status ctw_step_norm_in_place(const struct ctw_step *s, enum ctw_norm_place place, void *y,
                                       int64_t dim, struct ctw_err *err) CTW_MUST_CHECK;

/* y [n_tok, ldy] = the product of x [n_tok, ldx] */
enum ctw_status ctw_step_product(const struct ctw_step *s, enum ctw_slot slot, const void *x,
                                 int64_t ldx, void *y, int64_t ldy,
                                 struct ctw_err *err) CTW_MUST_CHECK;

/* y += the product of x, or factor[t] times it if ctw_step_epilogue() scatters; y [n_tok, hidden]
 * of CTW_RESIDUAL */
enum ctw_status ctw_step_add_product(const struct ctw_step *s, enum ctw_slot slot, const void *x,
                                     int64_t ldx, void *y, const float *factor,
                                     struct ctw_err *err) CTW_MUST_CHECK;

/* The epilogue of a decoder layer's product, for ctw_prepare(). */
enum ctw_epilogue ctw_step_epilogue(const struct ctw_step *s, enum ctw_slot slot);

/* How a branch of the layer joins the residual. */
struct ctw_join {
    enum ctw_slot slot; /* its last product */
    enum ctw_norm_place out;
    enum ctw_norm_place sum; /* CTW_N_NORMS: none */
    float factor;
};

/* residual += factor * norm(product of x [n_tok, ldx]), and the residual's own norm. If the branch
 * has a norm or a factor, f->norm is overwritten. */
enum ctw_status ctw_step_join(const struct ctw_step *s, const struct ctw_join *join, const void *x,
                              int64_t ldx, struct ctw_err *err) CTW_MUST_CHECK;

/*
 * The layers' own inputs (layer_input.c). ctw_layer_inputs() computes, in layer 0, what they take
 * from the embedding; ctw_layer_input() applies one at a decoder layer's end.
 */
enum ctw_status ctw_layer_inputs(const struct ctw_step *s, struct ctw_err *err) CTW_MUST_CHECK;
enum ctw_status ctw_layer_input(const struct ctw_step *s, struct ctw_err *err) CTW_MUST_CHECK;
/* The chunk's rows in f->inputs, from decoder layer `decoder`'s columns on. */
void *ctw_layer_inputs_at(const struct ctw_step *s, int64_t decoder);

/* The mixer and the MLP of a decoder layer (mixers/, mlps/). */
enum ctw_status ctw_mixer_attention(const struct ctw_step *s, struct ctw_err *err) CTW_MUST_CHECK;
enum ctw_status ctw_mixer_latent(const struct ctw_step *s, struct ctw_err *err) CTW_MUST_CHECK;
enum ctw_status ctw_mlp_dense(const struct ctw_step *s, struct ctw_err *err) CTW_MUST_CHECK;
/* f->wide = the inner activations, [n_tok, inner], of x [n_tok, hidden] */
enum ctw_status ctw_mlp_inner(const struct ctw_step *s, const void *x,
                              struct ctw_err *err) CTW_MUST_CHECK;

/*
 * A mixture's parts, in this order: for each chunk, its tokens' choice (and the shared expert); for
 * the whole pass of n_tok tokens, the experts (s->chunk is not read); for each chunk, what joins
 * them with the residual.
 */
enum ctw_status ctw_mlp_choose(const struct ctw_step *s, struct ctw_err *err) CTW_MUST_CHECK;
enum ctw_status ctw_mlp_experts(const struct ctw_step *s, int64_t n_tok, ctw_rows_done *done,
                                void *arg, struct ctw_err *err) CTW_MUST_CHECK;
enum ctw_status ctw_mlp_join_experts(const struct ctw_step *s, struct ctw_err *err) CTW_MUST_CHECK;

#endif
