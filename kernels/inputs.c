#include "kernels/inputs.h"

static bool same_input(const struct ctw_shard *a, const struct ctw_shard *b)
{
    if (a->input == NULL || b->input == NULL)
        return a->input == b->input;
    return ctw_quantise_equal(a->input, b->input);
}

bool ctw_inputs_differ(const struct ctw_op_linear *op)
{
    for (int i = 1; i < op->n_shards; i++)
        if (!same_input(&op->shards[i], &op->shards[0]))
            return true;
    return false;
}

int64_t ctw_input_elems(const struct ctw_op_linear *op)
{
    bool any = false;
    for (int i = 0; i < op->n_shards; i++)
        any |= op->shards[i].input != NULL;
    if (!any)
        return 0;
    /* The gate and up, computed one by one, lie behind the input. */
    bool split_gate = op->epilogue == CTW_EPI_GATE && ctw_inputs_differ(op);
    return op->shards[0].weight->k + (split_gate ? op->shards[1].n : 0);
}

bool ctw_quantise_ok(const struct ctw_quantise *q, int64_t dim)
{
    bool ints = q->codes == CTW_CODES_INT, is_static = q->scale_kind == CTW_SCALE_STATIC;
    bool by_range = is_static || q->scale_kind == CTW_SCALE_DYNAMIC;
    return q->codes != CTW_CODES_NONE && (!ints || (q->bits >= 2 && q->bits <= 8)) &&
           (q->scale_kind != CTW_SCALE_E8M0 || !ints) && (!q->asymmetric || (ints && by_range)) &&
           q->group >= 0 && (q->group == 0 || (!is_static && dim % q->group == 0)) &&
           (!is_static || q->scale > 0) && (q->scale_kind != CTW_SCALE_E4M3 || q->global > 0);
}

/* ---- memory ------------------------------------------------------------------------------- */

void ctw_inputs_free(struct ctw_backend *be)
{
    ctw_device_free(be, be->inputs);
    be->inputs = NULL;
    be->inputs_bytes = 0;
}

enum ctw_status ctw_inputs_reserve(struct ctw_backend *be, size_t bytes, struct ctw_err *err)
{
    if (bytes <= be->inputs_bytes)
        return CTW_OK;
    ctw_inputs_free(be);
    enum ctw_status st = ctw_device_alloc(be, &be->inputs, bytes, err);
    be->inputs_bytes = st == CTW_OK ? bytes : 0;
    return st;
}

/* ---- products ----------------------------------------------------------------------------- */

/* op reads its quantised input, and its shards, copied to `shards`, quantise nothing any more. */
static enum ctw_status quantise_input(struct ctw_backend *be, struct ctw_op_linear *op,
                                      struct ctw_shard shards[CTW_MAX_SHARDS], struct ctw_err *err)
{
    const struct ctw_quantise *how = op->shards[0].input;
    int64_t k = op->shards[0].weight->k;
    for (int i = 0; i < op->n_shards; i++) {
        shards[i] = op->shards[i];
        shards[i].input = NULL;
    }
    op->shards = shards;
    if (how == NULL)
        return CTW_OK;
    if (op->x_weight != NULL)
        return ctw_fail(err, CTW_EUNSUP,
                        "quantised activations of experts whose weights multiply their inputs are "
                        "not supported: score it with --activations=none");
    enum ctw_status st = ctw_quantise(be,
                                      &(struct ctw_op_quantise){.how = how,
                                                                .dtype = op->dtype,
                                                                .n_tok = op->n_tok,
                                                                .dim = k,
                                                                .x = op->x,
                                                                .ldx = op->ldx,
                                                                .rows = op->x_rows,
                                                                .y = be->inputs,
                                                                .ldy = k},
                                      err);
    op->x = be->inputs;
    op->ldx = k;
    op->x_rows = NULL;
    return st;
}

/* Neighbouring shards with equal inputs are one product. */
static enum ctw_status run_by_run(struct ctw_backend *be, const struct ctw_op_linear *op,
                                  struct ctw_err *err)
{
    struct ctw_shard shards[CTW_MAX_SHARDS];
    enum ctw_dtype y_dtype = ctw_linear_y_dtype(op);
    char *y = op->y;
    enum ctw_status st = CTW_OK;
    for (int i = 0; i < op->n_shards && st == CTW_OK;) {
        struct ctw_op_linear part = *op;
        int64_t columns = 0;
        part.shards = &op->shards[i];
        part.n_shards = 0;
        for (; i < op->n_shards && same_input(part.shards, &op->shards[i]); i++, part.n_shards++)
            columns += op->shards[i].n;
        part.y = y;
        y += (size_t)columns * ctw_dtype_bytes(y_dtype);
        st = quantise_input(be, &part, shards, err);
        if (st == CTW_OK)
            st = ctw_linear(be, &part, err);
    }
    return st;
}

/* The gate into y, up behind the quantised input, then both together. */
static enum ctw_status gate_by_gate(struct ctw_backend *be, const struct ctw_op_linear *op,
                                    struct ctw_err *err)
{
    int64_t k = op->shards[0].weight->k, n = op->shards[0].n;
    if (op->glu.kind != CTW_GLU_PLAIN)
        return ctw_fail(err, CTW_EUNSUP,
                        "a gate and an up that are clamped and quantise their inputs differently "
                        "are not supported: score it with --activations=none");
    char *up_at = (char *)be->inputs + (size_t)(op->n_tok * k) * ctw_dtype_bytes(op->dtype);
    struct ctw_op_linear gate = *op, up = *op;
    gate.epilogue = up.epilogue = CTW_EPI_STORE;
    gate.n_shards = up.n_shards = 1;
    up.shards = &op->shards[1];
    up.y = up_at;
    up.ldy = n;
    enum ctw_status st = run_by_run(be, &gate, err);
    if (st == CTW_OK)
        st = run_by_run(be, &up, err);
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

static enum ctw_status make_room(struct ctw_backend *be, const struct ctw_op_linear *op,
                                 struct ctw_err *err)
{
    size_t row = (size_t)ctw_input_elems(op) * ctw_dtype_bytes(op->dtype);
    return ctw_inputs_reserve(be, (size_t)op->n_tok * row, err);
}

enum ctw_status ctw_inputs_linear(struct ctw_backend *be, const struct ctw_op_linear *op,
                                  struct ctw_err *err)
{
    enum ctw_status st = make_room(be, op, err);
    if (st != CTW_OK)
        return st;
    if (op->epilogue == CTW_EPI_GATE && ctw_inputs_differ(op))
        return gate_by_gate(be, op, err);
    return run_by_run(be, op, err);
}

enum ctw_status ctw_inputs_linear_qkv(struct ctw_backend *be, const struct ctw_op_linear *op,
                                      const struct ctw_op_qkv *qkv, struct ctw_err *err)
{
    struct ctw_shard shards[CTW_MAX_SHARDS];
    struct ctw_op_linear whole = *op;
    enum ctw_status st = make_room(be, op, err);
    if (st == CTW_OK && ctw_inputs_differ(op)) {
        st = run_by_run(be, op, err);
        return st == CTW_OK ? ctw_qkv(be, qkv, err) : st;
    }
    if (st == CTW_OK)
        st = quantise_input(be, &whole, shards, err);
    return st == CTW_OK ? ctw_linear_qkv(be, &whole, qkv, err) : st;
}

enum ctw_status ctw_inputs_head(struct ctw_backend *be, const struct ctw_op_head *op,
                                struct ctw_err *err)
{
    struct ctw_op_head plain = *op;
    struct ctw_shard shard = *op->weight;
    int64_t k = shard.weight->k;
    struct ctw_op_quantise quantise = {.how = shard.input,
                                       .dtype = op->dtype,
                                       .n_tok = op->n_rows,
                                       .dim = k,
                                       .x = op->x,
                                       .ldx = k,
                                       .ldy = k};
    enum ctw_status st =
        ctw_inputs_reserve(be, (size_t)(op->n_rows * k) * ctw_dtype_bytes(op->dtype), err);
    quantise.y = be->inputs;
    if (st == CTW_OK)
        st = ctw_quantise(be, &quantise, err);
    shard.input = NULL;
    plain.weight = &shard;
    plain.x = be->inputs;
    return st == CTW_OK ? ctw_head(be, &plain, err) : st;
}
