/*
 * Products whose shards rotate or quantise their input or their output. products.c calls this file
 * after its checks. It calls the table and the checked operations of backend.c, and none
 * of products.c: no checked operation calls itself again.
 */
#include "kernels/backend_internal.h"

static bool same_input(const struct ctw_shard *a, const struct ctw_shard *b)
{
    if (a->rotate_in != b->rotate_in)
        return false;
    if (a->input == NULL || b->input == NULL)
        return a->input == b->input;
    return ctw_quantise_equal(a->input, b->input);
}

static bool has_input(const struct ctw_shard *s)
{
    return s->input != NULL || s->rotate_in != NULL;
}

static bool has_output(const struct ctw_shard *s)
{
    return s->output != NULL || s->rotate_out != NULL;
}

bool ctw_inputs_split(const struct ctw_op_linear *op)
{
    for (int i = 0; i < op->n_shards; i++)
        if (has_output(&op->shards[i]) || !same_input(&op->shards[i], &op->shards[0]))
            return true;
    return false;
}

/* The layout of a product's own memory, in elements of each row: its input; its output before it is
 * changed; and up, beside its gate, or the changed output that is added. */
struct room {
    int64_t input, product, other;
};

static struct room room_of(const struct ctw_op_linear *op)
{
    bool gate = op->epilogue == CTW_EPI_GATE, in = false, out = false;
    int64_t n = 0;
    for (int i = 0; i < op->n_shards; i++) {
        in |= has_input(&op->shards[i]);
        out |= has_output(&op->shards[i]);
        n = gate ? op->shards[i].n : n + op->shards[i].n;
    }
    struct room r = {.input = in ? op->shards[0].weight->k : 0, .product = out ? n : 0};
    r.other = (gate && ctw_inputs_split(op)) || (out && op->epilogue == CTW_EPI_ADD) ? n : 0;
    return r;
}

int64_t ctw_input_elems(const struct ctw_op_linear *op)
{
    struct room r = room_of(op);
    return r.input + r.product + r.other;
}

/* ---- products ----------------------------------------------------------------------------- */

/* A part of the backend's memory for op's own: `before` elements of each row lie ahead of it. */
static void *own(struct ctw_backend *be, const struct ctw_op_linear *op, int64_t before)
{
    return (char *)be->inputs + (size_t)(op->n_tok * before) * ctw_dtype_bytes(op->dtype);
}

/* *x is rows of k elements, rotated and quantised as the shard says, in the backend's memory. */
static enum ctw_status make_input(struct ctw_backend *be, const struct ctw_shard *shard,
                                  enum ctw_dtype dtype, int64_t n_tok, const void **x, int64_t *ldx,
                                  const int32_t *rows, struct ctw_err *err)
{
    int64_t k = shard->weight->k;
    enum ctw_status st = CTW_OK;
    if (shard->rotate_in != NULL) {
        st = ctw_rotate(be,
                        &(struct ctw_op_rotate){.how = shard->rotate_in,
                                                .dtype = dtype,
                                                .n_tok = n_tok,
                                                .dim = k,
                                                .x = *x,
                                                .ldx = *ldx,
                                                .rows = rows,
                                                .y = be->inputs,
                                                .ldy = k},
                        err);
        *x = be->inputs;
        *ldx = k;
        rows = NULL;
    }
    if (st == CTW_OK && shard->input != NULL)
        st = ctw_quantise(be,
                          &(struct ctw_op_quantise){.how = shard->input,
                                                    .dtype = dtype,
                                                    .n_tok = n_tok,
                                                    .dim = k,
                                                    .x = *x,
                                                    .ldx = *ldx,
                                                    .rows = rows,
                                                    .y = be->inputs,
                                                    .ldy = k},
                          err);
    *x = be->inputs;
    *ldx = k;
    return st;
}

/* op reads its own input, and its shards, copied to `shards`, are plain. */
static enum ctw_status own_input(struct ctw_backend *be, struct ctw_op_linear *op,
                                 struct ctw_shard shards[CTW_MAX_SHARDS], struct ctw_err *err)
{
    const struct ctw_shard *first = &op->shards[0];
    for (int i = 0; i < op->n_shards; i++) {
        shards[i] = op->shards[i];
        shards[i].input = NULL;
        shards[i].rotate_in = shards[i].rotate_out = NULL;
        shards[i].output = NULL;
    }
    op->shards = shards;
    if (!has_input(first))
        return CTW_OK;
    if (op->x_weight != NULL)
        return ctw_fail(err, CTW_EUNSUP,
                        "rotated or quantised activations of experts whose weights multiply their "
                        "inputs are not supported");
    enum ctw_status st =
        make_input(be, first, op->dtype, op->n_tok, &op->x, &op->ldx, op->x_rows, err);
    op->x_rows = NULL;
    return st;
}

/* to [n_tok, n] = x [n_tok, n], rotated or quantised as the shard says */
static enum ctw_status make_output(struct ctw_backend *be, const struct ctw_op_linear *op,
                                   const struct ctw_shard *shard, const void *x, int64_t n,
                                   void *to, int64_t ld, struct ctw_err *err)
{
    if (shard->output != NULL)
        return ctw_quantise(be,
                            &(struct ctw_op_quantise){.how = shard->output,
                                                      .dtype = op->dtype,
                                                      .n_tok = op->n_tok,
                                                      .dim = n,
                                                      .x = x,
                                                      .ldx = n,
                                                      .y = to,
                                                      .ldy = ld},
                            err);
    return ctw_rotate(be,
                      &(struct ctw_op_rotate){.how = shard->rotate_out,
                                              .dtype = op->dtype,
                                              .n_tok = op->n_tok,
                                              .dim = n,
                                              .x = x,
                                              .ldx = n,
                                              .y = to,
                                              .ldy = ld},
                      err);
}

/* y = that; or y + that, by way of `other` */
static enum ctw_status put_output(struct ctw_backend *be, const struct ctw_op_linear *op,
                                  const struct ctw_shard *shard, const void *x, void *other,
                                  int64_t n, void *y, struct ctw_err *err)
{
    if (op->epilogue != CTW_EPI_ADD)
        return make_output(be, op, shard, x, n, y, op->ldy, err);
    enum ctw_status st = make_output(be, op, shard, x, n, other, n, err);
    return st == CTW_OK ? ctw_norm(be,
                                   &(struct ctw_op_norm){.kind = CTW_NORM_NONE,
                                                         .dtype = op->residual_dtype,
                                                         .x_dtype = op->dtype,
                                                         .n_tok = op->n_tok,
                                                         .dim = n,
                                                         .x = other,
                                                         .add = true,
                                                         .y = y,
                                                         .ldy = op->ldy},
                                   err)
                        : st;
}

/* Some shards as one product, to columns from y on. */
static enum ctw_status run_one(struct ctw_backend *be, const struct ctw_op_linear *op, void *y,
                               int64_t columns, const struct room *room, struct ctw_err *err)
{
    struct ctw_shard shards[CTW_MAX_SHARDS];
    const bool changes = has_output(&op->shards[0]);
    struct ctw_op_linear plain = *op;
    plain.y = y;
    if (changes) {
        plain.epilogue = CTW_EPI_STORE;
        plain.y = own(be, op, room->input);
        plain.ldy = columns;
    }
    enum ctw_status st = own_input(be, &plain, shards, err);
    if (st == CTW_OK)
        st = be->ops->linear(be, &plain, err);
    if (st != CTW_OK || !changes)
        return st;
    return put_output(be, op, &op->shards[0], plain.y, own(be, op, room->input + room->product),
                      columns, y, err);
}

/* Neighbouring shards with equal inputs are one product; a changed output is one by itself. */
static enum ctw_status run_by_run(struct ctw_backend *be, const struct ctw_op_linear *op,
                                  const struct room *room, struct ctw_err *err)
{
    size_t es = ctw_dtype_bytes(ctw_linear_y_dtype(op));
    char *y = op->y;
    enum ctw_status st = CTW_OK;
    for (int i = 0; i < op->n_shards && st == CTW_OK;) {
        struct ctw_op_linear part = *op;
        int64_t columns = 0;
        part.shards = &op->shards[i];
        part.n_shards = 0;
        do {
            columns += op->shards[i++].n;
            part.n_shards++;
        } while (i < op->n_shards && !has_output(part.shards) && !has_output(&op->shards[i]) &&
                 same_input(part.shards, &op->shards[i]));
        st = run_one(be, &part, y, columns, room, err);
        y += (size_t)columns * es;
    }
    return st;
}

/* The gate into y, up beside it, then both together. */
static enum ctw_status gate_by_gate(struct ctw_backend *be, const struct ctw_op_linear *op,
                                    const struct room *room, struct ctw_err *err)
{
    int64_t n = op->shards[0].n;
    if (op->glu.kind != CTW_GLU_PLAIN)
        return ctw_fail(err, CTW_EUNSUP,
                        "a gate and an up that are clamped, and whose inputs or outputs are "
                        "rotated or quantised one by one, are not supported; --activations=none "
                        "quantises none");
    void *up_at = own(be, op, room->input + room->product);
    struct ctw_op_linear gate = *op, up = *op;
    gate.epilogue = up.epilogue = CTW_EPI_STORE;
    gate.n_shards = up.n_shards = 1;
    up.shards = &op->shards[1];
    up.y = up_at;
    up.ldy = n;
    enum ctw_status st = run_by_run(be, &gate, room, err);
    if (st == CTW_OK)
        st = run_by_run(be, &up, room, err);
    return st != CTW_OK ? st
                        : ctw_act(be,
                                  &(struct ctw_op_act){.act = op->act,
                                                       .dtype = op->dtype,
                                                       .n_tok = op->n_tok,
                                                       .dim = n,
                                                       .x = op->y,
                                                       .ldx = op->ldy,
                                                       .up = up_at,
                                                       .ldup = n,
                                                       .y = op->y,
                                                       .ldy = op->ldy},
                                  err);
}

static enum ctw_status run_rows(struct ctw_backend *be, const struct ctw_op_linear *op,
                                struct ctw_err *err)
{
    const struct room room = room_of(op);
    return op->epilogue == CTW_EPI_GATE && ctw_inputs_split(op) ? gate_by_gate(be, op, &room, err)
                                                                : run_by_run(be, op, &room, err);
}

/* Rows t0 .. t0+n-1 of op. */
static struct ctw_op_linear rows_of(const struct ctw_op_linear *op, int64_t t0, int64_t n)
{
    struct ctw_op_linear part = *op;
    part.n_tok = n;
    if (op->x_rows != NULL)
        part.x_rows += t0;
    else
        part.x = (const char *)op->x + (size_t)(t0 * op->ldx) * ctw_dtype_bytes(op->dtype);
    if (op->x_weight != NULL)
        part.x_weight += t0;
    if (op->y_rows != NULL)
        part.y_rows += t0;
    else
        part.y = (char *)op->y + (size_t)(t0 * op->ldy) * ctw_dtype_bytes(ctw_linear_y_dtype(op));
    if (op->y_weight != NULL)
        part.y_weight += t0;
    return part;
}

/* A part of an expert may have more rows than there is memory for: they come in pieces then, of
 * whole tiles. */
enum ctw_status ctw_inputs_linear(struct ctw_backend *be, const struct ctw_op_linear *op,
                                  struct ctw_err *err)
{
    enum { TILE = 256 };
    size_t row = (size_t)ctw_input_elems(op) * ctw_dtype_bytes(op->dtype);
    int64_t most = (int64_t)(be->inputs_bytes / row);
    enum ctw_status st = CTW_OK;
    if (most > TILE)
        most -= most % TILE;
    if (most == 0 || op->n_tok <= most) {
        st = ctw_inputs_reserve(be, (size_t)op->n_tok * row, err);
        return st == CTW_OK ? run_rows(be, op, err) : st;
    }
    for (int64_t t = 0; st == CTW_OK && t < op->n_tok; t += most) {
        struct ctw_op_linear part = rows_of(op, t, op->n_tok - t < most ? op->n_tok - t : most);
        st = run_rows(be, &part, err);
    }
    return st;
}

enum ctw_status ctw_inputs_make(struct ctw_backend *be, struct ctw_op_linear *op,
                                struct ctw_shard shards[CTW_MAX_SHARDS], struct ctw_err *err)
{
    size_t row = (size_t)ctw_input_elems(op) * ctw_dtype_bytes(op->dtype);
    enum ctw_status st = ctw_inputs_reserve(be, (size_t)op->n_tok * row, err);
    return st == CTW_OK ? own_input(be, op, shards, err) : st;
}

/* Of a head in parts, the first makes the input for all: no operation comes between them. */
enum ctw_status ctw_inputs_make_head(struct ctw_backend *be, struct ctw_op_head *op,
                                     struct ctw_shard *shard, struct ctw_err *err)
{
    const struct ctw_shard *weight = op->weight;
    int64_t k = weight->weight->k, ldx = k;
    enum ctw_status st =
        ctw_inputs_reserve(be, (size_t)(op->n_rows * k) * ctw_dtype_bytes(op->dtype), err);
    if (st == CTW_OK && op->id0 == 0)
        st = make_input(be, weight, op->dtype, op->n_rows, &op->x, &ldx, NULL, err);
    *shard = *weight;
    shard->input = NULL;
    shard->rotate_in = NULL;
    op->x = be->inputs;
    op->weight = shard; /* its output is the head's own to change */
    return st;
}
