/*
 * The vocabulary of a layer's operations: one layer on one chunk. mixers/ and mlps/ are written
 * with it.
 */
#ifndef CTW_WORKER_STEP_H
#define CTW_WORKER_STEP_H

#include "kernels/conv.h"
#include "worker/engine/pass/forward.h"

/* Products, places and vectors below belong to the step's branch. */
struct ctw_step {
    struct ctw_forward *f;
    const struct ctw_layer *layer;
    const struct ctw_layer_data *data;
    const struct ctw_chunk *chunk;
    int index;                       /* of the branch in its layer */
    const struct ctw_branch *branch; /* this one */
    int16_t stamp; /* marks rows of the residual that are not finite, see ctw_op_norm */
};

/* The shards of a product; returns their number. */
int ctw_step_shards(const struct ctw_step *s, int product, struct ctw_shard shards[CTW_MAX_SHARDS]);

/* One shard: rows of a matrix, whose bias begins at element bias0 of its vector. */
void ctw_step_shard(const struct ctw_step *s, struct ctw_shard *out, const struct ctw_rows *rows,
                    const struct ctw_matrix *matrix, const struct ctw_weight_data *data,
                    int64_t bias0);

static inline const struct ctw_product *ctw_step_product_of(const struct ctw_step *s, int product)
{
    return &s->layer->product[ctw_product_at(s->index, product)];
}

static inline bool ctw_step_has(const struct ctw_step *s, int product)
{
    return ctw_step_product_of(s, product)->n_shards > 0;
}

static inline enum ctw_slot ctw_step_slot(const struct ctw_step *s, int product)
{
    return (enum ctw_slot)ctw_product_at(s->index, product);
}

static inline const struct ctw_norm_rule *ctw_step_rule(const struct ctw_step *s, int place)
{
    return &s->layer->norm[ctw_norm_at(s->index, place)];
}

/* Columns of what a product reads. */
static inline int64_t ctw_step_inputs(const struct ctw_step *s, int product)
{
    return s->layer->matrix[ctw_step_product_of(s, product)->shard[0].matrix].weight.k;
}

/* A vector, and its address; NULL if the branch has no such vector. */
static inline const struct ctw_tensor *ctw_step_vector(const struct ctw_step *s, int role)
{
    return s->layer->vector[ctw_vector_at(s->index, role)];
}

static inline const void *ctw_step_vector_data(const struct ctw_step *s, int role)
{
    return s->data->vector[ctw_vector_at(s->index, role)];
}

/* One of the branch's carries in rows: its array, and in it the chunk's own rows. */
struct ctw_carried {
    void *all, *here;
    enum ctw_carry_life life;
};
struct ctw_carried ctw_step_carry(const struct ctw_step *s, int i);

/* One of the branch's carries in states. */
struct ctw_states ctw_step_states(const struct ctw_step *s, int i);
/* Before and after the branch's run on a chunk (trunk.c): what the chunk says of the trunk is
 * copied into the branch's carries, or from them. */
enum ctw_status ctw_trunk_read(const struct ctw_step *s, struct ctw_err *err) CTW_MUST_CHECK;
enum ctw_status ctw_trunk_leave(const struct ctw_step *s, struct ctw_err *err) CTW_MUST_CHECK;

/* A norm of the chunk's rows as the layer describes it; x, y, their dtypes and sizes are not set.
 * CTW_NORM_NONE if the layer has none at this place. */
struct ctw_op_norm ctw_step_norm(const struct ctw_step *s, int place);

/* y [rows, dim] of the activations' dtype = the norm of fp32 rows of the residual, ldx apart: the
 * chunk's, which begin at x, or with `tokens` (device) those rows of the pass, which begins at x.
 * Marks rows that are not finite. */
enum ctw_status ctw_step_norm_residual(const struct ctw_step *s, int place, const int64_t *tokens,
                                       const float *x, int64_t dim, int64_t ldx, void *y,
                                       struct ctw_err *err) CTW_MUST_CHECK;

/* y [n_tok, hidden], or f->norm, = the norm of what the branch reads of the residual, of the
 * activations' dtype. */
enum ctw_status ctw_step_read_to(const struct ctw_step *s, int place, void *y,
                                 struct ctw_err *err) CTW_MUST_CHECK;
enum ctw_status ctw_step_read(const struct ctw_step *s, int place,
                              struct ctw_err *err) CTW_MUST_CHECK;

/* y += factor * norm(x), both [n_tok, hidden]; y fp32. */
enum ctw_status ctw_step_add_norm(const struct ctw_step *s, int place, const void *x,
                                  enum ctw_dtype x_dtype, void *y, float factor,
                                  struct ctw_err *err) CTW_MUST_CHECK;
/* The norm of y [n_tok, hidden] fp32, in place. */
enum ctw_status ctw_step_norm_sum(const struct ctw_step *s, int place, void *y,
                                  struct ctw_err *err) CTW_MUST_CHECK;

/* The norm of y [n_tok, dim] of the activations' dtype, in place, if the layer has one there. */
enum ctw_status ctw_step_norm_in_place(const struct ctw_step *s, int place, void *y, int64_t dim,
                                       struct ctw_err *err) CTW_MUST_CHECK;

/* A convolution of the chunk, whose parts are not set. */
enum ctw_status ctw_step_conv(const struct ctw_step *s, struct ctw_op_conv *op,
                              struct ctw_err *err) CTW_MUST_CHECK;

/* y [n_tok, ldy] = the product of x [n_tok, ldx] */
enum ctw_status ctw_step_product(const struct ctw_step *s, int product, const void *x, int64_t ldx,
                                 void *y, int64_t ldy, struct ctw_err *err) CTW_MUST_CHECK;

/* act->y = the activation of the product of x */
enum ctw_status ctw_step_product_act(const struct ctw_step *s, int product, const void *x,
                                     int64_t ldx, const struct ctw_op_act *act,
                                     struct ctw_err *err) CTW_MUST_CHECK;

/* y [n_tok, ldy] += the product of x, of the activations' dtype; other: room for the product,
 * [n_tok, its columns] */
enum ctw_status ctw_step_product_onto(const struct ctw_step *s, int product, const void *x,
                                      int64_t ldx, void *other, void *y, int64_t ldy,
                                      struct ctw_err *err) CTW_MUST_CHECK;

/* y += the product of x, or factor[t] times it if `product` scatters; y [n_tok, hidden]
 * of CTW_RESIDUAL */
enum ctw_status ctw_step_add_product(const struct ctw_step *s, int product, const void *x,
                                     int64_t ldx, struct ctw_residual_rows y, const float *factor,
                                     struct ctw_err *err) CTW_MUST_CHECK;

/*
 * Ends the branch: the product of x [n_tok, ldx] joins the residual. Unless the product adds to the
 * residual itself (ctw_branch_is_direct()), f->norm is overwritten. If the next branch is beside
 * this branch, f->norm then holds the next branch's input.
 */
enum ctw_status ctw_step_join(const struct ctw_step *s, int product, const void *x, int64_t ldx,
                              struct ctw_err *err) CTW_MUST_CHECK;

/* Ends the branch with its output x [n_tok, hidden], which is not in f->wide, or which no
 * convolution follows. */
enum ctw_status ctw_step_join_output(const struct ctw_step *s, const void *x, enum ctw_dtype dtype,
                                     struct ctw_err *err) CTW_MUST_CHECK;

/* Computes the layers' own inputs from the embedding, in layer 0 (mlps/own_input.c). */
enum ctw_status ctw_layer_inputs(const struct ctw_step *s, struct ctw_err *err) CTW_MUST_CHECK;
/* The chunk's rows in f->inputs, from decoder layer `decoder`'s columns on. */
void *ctw_layer_inputs_at(const struct ctw_step *s, int64_t decoder);

/* f->wide = the inner activations of a dense MLP, or of a shared expert, [n_tok, inner], of x
 * [n_tok, hidden] (mlps/dense.c) */
enum ctw_status ctw_dense_inner(const struct ctw_step *s, const struct ctw_dense *d, const void *x,
                                struct ctw_err *err) CTW_MUST_CHECK;

#endif
