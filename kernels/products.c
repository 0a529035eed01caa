/* Products and the head: checks them against the contract in backend.h, and calls the table, or,
 * for shards with inputs of their own, shard_inputs.c. */
#include "kernels/backend_internal.h"
#include "kernels/head_targets.h"

/* Checks shared by ctw_prepare() and ctw_linear(); *n_out: columns of y. */
static enum ctw_status check_shards(const struct ctw_op_linear *op, int64_t *n_out,
                                    struct ctw_err *err)
{
    REQUIRE("linear", ctw_is_float(op->dtype));
    REQUIRE("linear", op->n_shards >= 1 && op->n_shards <= CTW_MAX_SHARDS);
    REQUIRE("linear", op->slot >= 0 && op->slot < CTW_N_SLOTS);
    REQUIRE("linear", op->epilogue != CTW_EPI_GATE || op->act < CTW_ACT_XIELU);
    REQUIRE("linear", op->epilogue != CTW_EPI_GATE || op->glu.kind <= CTW_GLU_BOUNDED);
    int64_t n = 0;
    for (int i = 0; i < op->n_shards; i++) {
        REQUIRE("linear", ctw_shard_ok(&op->shards[i]));
        REQUIRE("linear", op->shards[i].weight->k == op->shards[0].weight->k);
        n += op->shards[i].n;
    }
    if (op->epilogue == CTW_EPI_GATE) {
        REQUIRE("linear", op->n_shards == 2);
        REQUIRE("linear", op->shards[0].n == op->shards[1].n);
        n /= 2;
    }
    *n_out = n;
    return CTW_OK;
}

static enum ctw_status check_linear(const struct ctw_op_linear *op, struct ctw_err *err)
{
    int64_t n;
    enum ctw_status st = check_shards(op, &n, err);
    if (st != CTW_OK)
        return st;
    REQUIRE("linear", op->epilogue != CTW_EPI_ADD || ctw_is_float(op->residual_dtype));
    REQUIRE("linear", op->n_tok >= 0);
    REQUIRE("linear", op->ldx >= op->shards[0].weight->k);
    REQUIRE("linear", op->ldy >= n);
    REQUIRE("linear", op->n_tok == 0 || (op->x != NULL && op->y != NULL));
    REQUIRE("linear",
            op->x_rows == NULL || op->epilogue == CTW_EPI_GATE || op->epilogue == CTW_EPI_STORE);
    REQUIRE("linear", op->x_weight == NULL || op->x_rows != NULL);
    for (int i = 0; i < op->n_shards; i++)
        REQUIRE("linear", (op->shards[i].rotate_out == NULL && op->shards[i].output == NULL) ||
                              (op->epilogue != CTW_EPI_LOGITS && op->epilogue != CTW_EPI_SCATTER));
    REQUIRE("linear",
            op->epilogue == CTW_EPI_SCATTER || (op->y_rows == NULL && op->y_weight == NULL));
    return CTW_OK;
}

/* Is the linear operation's y the array that the qkv operation splits? Each operation has been
 * checked on its own. */
static enum ctw_status check_linear_qkv(const struct ctw_op_linear *op,
                                        const struct ctw_op_qkv *qkv, struct ctw_err *err)
{
    int64_t n, columns = qkv->columns.ld;
    enum ctw_status st = check_shards(op, &n, err);
    if (st != CTW_OK)
        return st;
    REQUIRE("linear_qkv", op->epilogue == CTW_EPI_STORE);
    REQUIRE("linear_qkv", op->dtype == qkv->dtype && op->n_tok == qkv->n_tok);
    REQUIRE("linear_qkv", op->y == qkv->qkv && n == columns && op->ldy == columns);
    return CTW_OK;
}

enum ctw_status ctw_prepare(struct ctw_backend *be, const struct ctw_op_linear *op,
                            struct ctw_err *err)
{
    int64_t n;
    if (op->n_shards != 0) {
        enum ctw_status st = check_shards(op, &n, err);
        if (st != CTW_OK)
            return st;
    }
    const struct ctw_op_linear none = {.slot = op->slot};
    return be->ops->prepare(be, ctw_inputs_split(op) ? &none : op, err);
}

enum ctw_status ctw_linear(struct ctw_backend *be, const struct ctw_op_linear *op,
                           struct ctw_err *err)
{
    enum ctw_status st = check_linear(op, err);
    return st != CTW_OK              ? st
           : ctw_input_elems(op) > 0 ? ctw_inputs_linear(be, op, err)
                                     : be->ops->linear(be, op, err);
}

enum ctw_status ctw_linear_qkv(struct ctw_backend *be, const struct ctw_op_linear *op,
                               const struct ctw_op_qkv *qkv, struct ctw_err *err)
{
    bool done = false;
    struct ctw_op_linear plain = *op;
    struct ctw_shard shards[CTW_MAX_SHARDS];
    struct ctw_op_qkv full;
    enum ctw_status st = check_linear(op, err);
    if (st == CTW_OK)
        st = ctw_check_qkv(qkv, &full, err);
    if (st == CTW_OK)
        st = check_linear_qkv(op, &full, err);
    if (st != CTW_OK)
        return st;
    if (ctw_inputs_split(op)) {
        st = ctw_inputs_linear(be, op, err);
        return st == CTW_OK ? be->ops->qkv(be, &full, err) : st;
    }
    if (ctw_input_elems(op) > 0)
        st = ctw_inputs_make(be, &plain, shards, err);
    if (st == CTW_OK && be->ops->linear_qkv != NULL)
        st = be->ops->linear_qkv(be, &plain, &full, &done, err);
    if (st == CTW_OK && !done)
        st = be->ops->linear(be, &plain, err);
    if (st == CTW_OK && !done)
        st = be->ops->qkv(be, &full, err);
    return st;
}

/* Is the activation one of the linear operation's y, in its place? */
static enum ctw_status check_linear_act(const struct ctw_op_linear *op,
                                        const struct ctw_op_act *act, struct ctw_err *err)
{
    int64_t n;
    enum ctw_status st = check_shards(op, &n, err);
    if (st != CTW_OK)
        return st;
    REQUIRE("linear_act", op->epilogue == CTW_EPI_STORE && act->dtype == op->dtype);
    REQUIRE("linear_act", act->n_tok == op->n_tok && act->dim == n && act->up == NULL);
    REQUIRE("linear_act", act->x == op->y && act->y == op->y);
    REQUIRE("linear_act", act->ldx == op->ldy && act->ldy == op->ldy);
    return CTW_OK;
}

enum ctw_status ctw_linear_act(struct ctw_backend *be, const struct ctw_op_linear *op,
                               const struct ctw_op_act *act, struct ctw_err *err)
{
    bool done = false;
    enum ctw_status st = check_linear(op, err);
    if (st == CTW_OK)
        st = check_linear_act(op, act, err);
    if (st == CTW_OK && be->ops->linear_act != NULL && ctw_input_elems(op) == 0)
        st = be->ops->linear_act(be, op, act, &done, err);
    if (st == CTW_OK && !done)
        st = ctw_linear(be, op, err);
    return st == CTW_OK && !done ? ctw_act(be, act, err) : st;
}

/* The pair in one step, if the backend can. */
static enum ctw_status pair_at_once(struct ctw_backend *be, const struct ctw_op_linear *gathered,
                                    const struct ctw_op_act *act,
                                    const struct ctw_op_linear *scattered, bool *done,
                                    struct ctw_err *err)
{
    if (be->ops->linear_pair == NULL || ctw_input_elems(gathered) > 0 ||
        ctw_input_elems(scattered) > 0)
        return CTW_OK;
    REQUIRE("pair", gathered->x_rows != NULL && scattered->epilogue == CTW_EPI_SCATTER);
    REQUIRE("pair", gathered->dtype == scattered->dtype);
    enum ctw_status st = check_linear(gathered, err);
    if (st == CTW_OK)
        st = check_linear(scattered, err);
    if (st == CTW_OK && act != NULL)
        st = check_linear_act(gathered, act, err);
    return st == CTW_OK ? be->ops->linear_pair(be, gathered, act, scattered, done, err) : st;
}

enum ctw_status ctw_linear_pair(struct ctw_backend *be, const struct ctw_op_linear *gathered,
                                const struct ctw_op_act *act, const struct ctw_op_linear *scattered,
                                struct ctw_err *err)
{
    bool done = false;
    enum ctw_status st = CTW_OK;
    if (gathered != NULL && scattered != NULL)
        st = pair_at_once(be, gathered, act, scattered, &done, err);
    if (st == CTW_OK && !done && scattered != NULL)
        st = ctw_linear(be, scattered, err);
    if (st == CTW_OK && !done && gathered != NULL)
        st = act != NULL ? ctw_linear_act(be, gathered, act, err) : ctw_linear(be, gathered, err);
    return st;
}

enum ctw_status ctw_head(struct ctw_backend *be, const struct ctw_op_head *op, struct ctw_err *err)
{
    REQUIRE("head", ctw_is_float(op->dtype));
    REQUIRE("head", ctw_shard_ok(op->weight) && op->weight->n == op->weight->weight->n);
    REQUIRE("head", op->n_rows >= 0);
    REQUIRE("head", op->n_vocab >= 1 && op->n_vocab <= INT32_MAX);
    REQUIRE("head", op->id0 >= 0 && op->id0 < op->n_vocab);
    if (op->id0 > 0 || op->weight->n < op->n_vocab) {
        bool plain = ctw_head_is_plain(op);
        int64_t rows = be->ops->head_rows(be, op->dtype, op->weight->weight->k, plain);
        bool last = op->id0 + op->weight->n >= op->n_vocab;
        REQUIRE("head", op->id0 % rows == 0 && (last || op->weight->n % rows == 0));
    }
    REQUIRE("head", (op->logits == NULL) == (op->norms == NULL));
    REQUIRE("head", op->logits == NULL ||
                        (op->ld_logits >= op->n_vocab && op->ld_logits % CTW_LOGITS_ALIGN == 0));
    REQUIRE("head", op->weight->rotate_out == NULL);
    REQUIRE("head",
            op->weight->output == NULL || op->weight->output->scale_kind == CTW_SCALE_STATIC);
    struct ctw_op_head plain = *op;
    struct ctw_shard shard;
    enum ctw_status st = CTW_OK;
    if (op->weight->input != NULL || op->weight->rotate_in != NULL)
        st = ctw_inputs_make_head(be, &plain, &shard, err);
    return st == CTW_OK ? be->ops->head(be, &plain, err) : st;
}
