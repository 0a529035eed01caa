/* Checks every operation but products (products.c) against the contract in backend.h, and calls the
 * table. A failed check is a bug in the caller, never in a checkpoint or a client. */
#include "kernels/backend_internal.h"

/* ---- checks ------------------------------------------------------------------------------- */

bool ctw_quantise_ok(const struct ctw_quantise *q, int64_t dim)
{
    bool ints = q->codes == CTW_CODES_INT, is_static = q->scale_kind == CTW_SCALE_STATIC;
    bool by_range = is_static || q->scale_kind == CTW_SCALE_DYNAMIC;
    return q->codes != CTW_CODES_NONE && (!ints || (q->bits >= 2 && q->bits <= 8)) &&
           (q->scale_kind != CTW_SCALE_E8M0 || !ints) && (!q->asymmetric || (ints && by_range)) &&
           q->group >= 0 && (q->group == 0 || (!is_static && dim % q->group == 0)) &&
           (!is_static || q->scale > 0) && (q->scale_kind != CTW_SCALE_E4M3 || q->global > 0);
}

bool ctw_shard_ok(const struct ctw_shard *s)
{
    return s != NULL && s->weight != NULL && s->data != NULL && s->weight->format != NULL &&
           s->weight->n >= 1 && s->weight->k >= 1 && ctw_is_float(s->weight->dtype) &&
           s->row0 >= 0 && s->step >= 0 && s->n >= 1 &&
           (s->n - 1) * ctw_shard_step(s) < s->weight->n - s->row0 &&
           (s->bias == NULL || ctw_is_float(s->bias_dtype)) &&
           (s->input == NULL || ctw_quantise_ok(s->input, s->weight->k)) &&
           (s->rotate_in == NULL || ctw_rotation_ok(s->rotate_in, s->weight->k)) &&
           (s->rotate_out == NULL || ctw_rotation_ok(s->rotate_out, s->n)) &&
           (s->output == NULL || (ctw_quantise_ok(s->output, s->n) && s->rotate_out == NULL));
}

/* Q, k and v side by side, if no columns are given. */
static struct ctw_op_qkv with_columns(const struct ctw_op_qkv *op)
{
    struct ctw_op_qkv full = *op;
    if (op->columns.ld == 0 && op->n_kv >= 1) {
        int64_t q = (int64_t)op->n_head * op->head, kv = (int64_t)op->n_kv * op->head;
        full.columns = (struct ctw_qkv_columns){
            .ld = q + 2 * kv, .k = q, .v = q + kv, .q_step = q / op->n_kv, .kv_step = op->head};
    }
    if (full.columns.q_head == 0)
        full.columns.q_head = op->head;
    return full;
}

static enum ctw_status check_columns(const struct ctw_op_qkv *op, struct ctw_err *err)
{
    REQUIRE("qkv", ctw_is_float(op->dtype));
    REQUIRE("qkv", op->n_tok >= 0);
    REQUIRE("qkv", op->n_head >= 1 && op->n_kv >= 1 && op->head >= 1);
    REQUIRE("qkv", op->n_head % op->n_kv == 0 && (op->k != NULL || op->v == NULL));
    if (op->head > CTW_MAX_HEAD)
        return ctw_fail(err, CTW_EUNSUP, "attention heads of %d elements; the maximum is %d",
                        op->head, CTW_MAX_HEAD);
    REQUIRE("qkv", op->rot_dim >= 0 && op->rot_dim % 2 == 0 && op->rot_dim <= op->head);
    REQUIRE("qkv", op->rot_dim == 0 || (op->positions != NULL && op->cos_sin != NULL));
    REQUIRE("qkv", op->q_factor == NULL || op->positions != NULL);
    REQUIRE("qkv", (op->q_norm == NULL && op->k_norm == NULL) || ctw_is_float(op->norm_dtype));
    const struct ctw_qkv_columns *c = &op->columns;
    int64_t last = (op->n_kv - 1) * c->kv_step + op->head, r = op->n_head / op->n_kv;
    REQUIRE("qkv", c->q >= 0 && c->k >= 0 && c->v >= 0 && c->q_step >= 0 && c->kv_step >= 0);
    REQUIRE("qkv", op->k == NULL || c->k + last <= c->ld);
    REQUIRE("qkv", op->v == NULL || c->v + last <= c->ld);
    REQUIRE("qkv", c->q_head >= op->head &&
                       c->q + (op->n_kv - 1) * c->q_step + (r - 1) * c->q_head + op->head <= c->ld);
    return CTW_OK;
}

enum ctw_status ctw_check_qkv(const struct ctw_op_qkv *op, struct ctw_op_qkv *full,
                              struct ctw_err *err)
{
    *full = with_columns(op);
    return check_columns(full, err);
}

static enum ctw_status check_attention(const struct ctw_op_attention *op, struct ctw_err *err)
{
    REQUIRE("attention", ctw_is_float(op->dtype));
    REQUIRE("attention", op->n_head >= 1 && op->n_kv >= 1 && op->n_head % op->n_kv == 0);
    REQUIRE("attention", op->head >= 1 && op->head_v >= 1 && op->n_seqs >= 0);
    REQUIRE("attention", op->window >= 0 && op->chunk >= 0 && (op->window == 0 || op->chunk == 0));
    REQUIRE("attention", op->sinks == NULL || ctw_is_float(op->sinks_dtype));
    REQUIRE("attention", op->alibi == NULL || op->softcap == 0);
    REQUIRE("attention", op->seen == NULL || (op->softcap == 0 && op->alibi == NULL));
    REQUIRE("attention", op->seen == NULL || (op->scale > 0 && op->chunk == 0));
    REQUIRE("attention", op->seen == NULL || op->seen_head >= 0);
    if (op->relative.rank != 0) {
        const struct ctw_relative *r = &op->relative;
        REQUIRE("attention", r->rank >= 1 && r->rank <= CTW_MAX_RELATIVE && r->extent >= 1);
        REQUIRE("attention", r->states != NULL && r->ld >= (int64_t)r->rank * op->n_head);
        REQUIRE("attention", r->proj != NULL && ctw_is_float(r->proj_dtype));
        REQUIRE("attention", op->chunk == 0 && op->softcap == 0 && op->alibi == NULL);
        REQUIRE("attention", op->seen == NULL && op->head_v == op->head && op->scale > 0);
        REQUIRE("attention", op->v_factor == 1);
    }
    if (op->head > CTW_MAX_HEAD || op->head_v > CTW_MAX_HEAD)
        return ctw_fail(err, CTW_EUNSUP, "attention heads of %d elements; the maximum is %d",
                        op->head > op->head_v ? op->head : op->head_v, CTW_MAX_HEAD);
    for (int64_t i = 0; i < op->n_seqs; i++) {
        const struct ctw_attn_seq *s = &op->seqs[i];
        REQUIRE("attention", s->n_q >= 0 && s->pos0 >= 0 && s->n_runs >= 0);
        int64_t n_keys = 0;
        for (int r = 0; r < s->n_runs; r++) {
            REQUIRE("attention", s->runs[r].n_tok >= 0 && s->runs[r].row >= 0);
            n_keys += s->runs[r].n_tok;
        }
        REQUIRE("attention", n_keys >= s->pos0 + s->n_q);
    }
    return CTW_OK;
}

/* ---- operations --------------------------------------------------------------------------- */

enum ctw_status ctw_decode(struct ctw_backend *be, const struct ctw_op_decode *op,
                           struct ctw_err *err)
{
    REQUIRE("decode", ctw_is_float(op->dtype));
    REQUIRE("decode", ctw_shard_ok(op->shard));
    REQUIRE("decode", op->row0 >= 0 && op->n_rows >= 0);
    REQUIRE("decode", op->row0 + op->n_rows <= op->shard->n);
    return be->ops->decode(be, op, err);
}

enum ctw_status ctw_embed(struct ctw_backend *be, const struct ctw_op_embed *op,
                          struct ctw_err *err)
{
    REQUIRE("embed", ctw_is_float(op->dtype));
    REQUIRE("embed", ctw_shard_ok(op->table) && op->table->bias == NULL);
    REQUIRE("embed", op->in_part ? op->id0 >= 0 && !op->add &&
                                       op->table->weight->format->id == CTW_FORMAT_dense
                                 : op->id0 == 0);
    REQUIRE("embed", op->n_tok >= 0);
    return be->ops->embed(be, op, err);
}

/* *full: op with its defaults. */
static enum ctw_status check_norm(const struct ctw_op_norm *op, struct ctw_op_norm *out,
                                  struct ctw_err *err)
{
    struct ctw_op_norm full = *op;
    full.n_groups = op->n_groups == 0 ? 1 : op->n_groups;
    full.ldx = op->ldx == 0 ? full.n_groups * op->dim : op->ldx;
    full.ldy = op->ldy == 0 ? full.n_groups * op->dim : op->ldy;
    full.factor = op->factor == 0 ? 1 : op->factor;
    REQUIRE("norm", ctw_is_float(op->dtype) && ctw_is_float(op->x_dtype));
    REQUIRE("norm", op->weight == NULL || ctw_is_float(op->weight_dtype));
    REQUIRE("norm", op->bias == NULL || ctw_is_float(op->bias_dtype));
    REQUIRE("norm", op->y != op->x || (op->dtype == op->x_dtype && op->rows == NULL));
    REQUIRE("norm", op->y != op->x || (full.ldx == full.ldy && !op->add));
    REQUIRE("norm", op->n_tok >= 0 && op->dim >= 1 && full.n_groups >= 1);
    REQUIRE("norm", full.ldx >= full.n_groups * op->dim && full.ldy >= full.n_groups * op->dim);
    REQUIRE("norm", op->bad == NULL || full.n_groups == 1);
    *out = full;
    return CTW_OK;
}

enum ctw_status ctw_norm(struct ctw_backend *be, const struct ctw_op_norm *op, struct ctw_err *err)
{
    struct ctw_op_norm full;
    enum ctw_status st = check_norm(op, &full, err);
    return st == CTW_OK ? be->ops->norm(be, &full, err) : st;
}

static enum ctw_status check_act(const struct ctw_op_act *op, struct ctw_err *err)
{
    REQUIRE("act", ctw_is_float(op->dtype) && op->n_tok >= 0 && op->dim >= 1);
    REQUIRE("act", op->ldx >= op->dim && op->ldy >= op->dim);
    REQUIRE("act", op->up == NULL || op->ldup >= op->dim);
    REQUIRE("act", op->y != op->x || op->ldx == op->ldy);
    return CTW_OK;
}

enum ctw_status ctw_act(struct ctw_backend *be, const struct ctw_op_act *op, struct ctw_err *err)
{
    enum ctw_status st = check_act(op, err);
    return st == CTW_OK ? be->ops->act(be, op, err) : st;
}

enum ctw_status ctw_norm_act(struct ctw_backend *be, const struct ctw_op_norm *norm,
                             const struct ctw_op_act *act, struct ctw_err *err)
{
    bool done = false;
    struct ctw_op_norm full;
    enum ctw_status st = check_norm(norm, &full, err);
    if (st == CTW_OK)
        st = check_act(act, err);
    if (st != CTW_OK)
        return st;
    REQUIRE("norm_act", act->up == norm->y && act->dtype == norm->dtype);
    REQUIRE("norm_act", act->n_tok * act->dim == full.n_tok * full.n_groups * full.dim);
    REQUIRE("norm_act", full.n_tok == 0 || act->n_tok % full.n_tok == 0);
    REQUIRE("norm_act", full.n_tok == 0 || act->n_tok / full.n_tok * act->ldup == full.ldy);
    if (be->ops->norm_act != NULL)
        st = be->ops->norm_act(be, &full, act, &done, err);
    if (st == CTW_OK && !done)
        st = be->ops->norm(be, &full, err);
    return st == CTW_OK && !done ? be->ops->act(be, act, err) : st;
}

enum ctw_status ctw_quantise(struct ctw_backend *be, const struct ctw_op_quantise *op,
                             struct ctw_err *err)
{
    REQUIRE("quantise", ctw_is_float(op->dtype) && op->n_tok >= 0 && op->dim >= 1);
    REQUIRE("quantise", ctw_quantise_ok(op->how, op->dim));
    REQUIRE("quantise", op->ldx >= op->dim && op->ldy >= op->dim);
    REQUIRE("quantise", op->y != op->x || (op->ldx == op->ldy && op->rows == NULL));
    return be->ops->quantise(be, op, err);
}

enum ctw_status ctw_rotate(struct ctw_backend *be, const struct ctw_op_rotate *op,
                           struct ctw_err *err)
{
    REQUIRE("rotate", ctw_is_float(op->dtype) && op->n_tok >= 0 && op->dim >= 1);
    REQUIRE("rotate", ctw_rotation_ok(op->how, op->dim));
    REQUIRE("rotate", op->ldx >= op->dim && op->ldy >= op->dim && op->y != op->x);
    return be->ops->rotate(be, op, err);
}

enum ctw_status ctw_qkv(struct ctw_backend *be, const struct ctw_op_qkv *op, struct ctw_err *err)
{
    struct ctw_op_qkv full;
    enum ctw_status st = ctw_check_qkv(op, &full, err);
    return st != CTW_OK ? st : be->ops->qkv(be, &full, err);
}

enum ctw_status ctw_latent(struct ctw_backend *be, const struct ctw_op_latent *op,
                           struct ctw_err *err)
{
    REQUIRE("latent", ctw_is_float(op->dtype) && op->n_tok >= 0 && op->n_head >= 1);
    REQUIRE("latent", op->own >= 1 && op->turning >= 0 && op->head_v >= 1);
    REQUIRE("latent", op->own + op->turning <= CTW_MAX_HEAD && op->head_v <= CTW_MAX_HEAD);
    REQUIRE("latent", op->ld_turned >= op->turning);
    REQUIRE("latent", op->cos_sin == NULL || (op->turning % 2 == 0 && op->positions != NULL));
    REQUIRE("latent", op->q_factor == NULL || op->positions != NULL);
    return op->n_tok == 0 ? CTW_OK : be->ops->latent(be, op, err);
}

enum ctw_status ctw_gate(struct ctw_backend *be, const struct ctw_op_gate *op, struct ctw_err *err)
{
    REQUIRE("gate", op->kind == CTW_GATE_SIGMOID || op->kind == CTW_GATE_SOFTPLUS);
    REQUIRE("gate",
            ctw_is_float(op->dtype) && op->n_tok >= 0 && op->n_groups >= 1 && op->size >= 1);
    REQUIRE("gate", op->run >= 0 && op->step >= 0 && op->ldy >= op->n_groups * op->size);
    REQUIRE("gate", op->ldx > ctw_gate_column(op, op->n_groups - 1));
    return op->n_tok == 0 ? CTW_OK : be->ops->gate(be, op, err);
}

enum ctw_status ctw_index(struct ctw_backend *be, const struct ctw_op_index *op,
                          struct ctw_err *err)
{
    REQUIRE("index",
            ctw_is_float(op->dtype) && op->n_head >= 1 && op->head >= 1 && op->chosen >= 1);
    REQUIRE("index",
            op->head <= CTW_MAX_HEAD && (op->weights == NULL || op->ld_weights >= op->n_head));
    struct ctw_op_index full = *op;
    full.ld_k = op->ld_k == 0 ? op->head : op->ld_k;
    full.block = op->block == 0 ? 1 : op->block;
    REQUIRE("index", full.ld_k >= op->head && full.block >= 1);
    full.by_token = op->by_token && full.block > 1;
    const int64_t per_bit = full.by_token ? 1 : full.block;
    for (int64_t i = 0; i < op->n_seqs; i++)
        REQUIRE("index", (op->seqs[i].pos0 + op->seqs[i].n_q) / per_bit <= op->ld_seen * 32);
    return op->n_seqs == 0 ? CTW_OK : be->ops->index(be, &full, err);
}

enum ctw_status ctw_attention(struct ctw_backend *be, const struct ctw_op_attention *op,
                              struct ctw_err *err)
{
    struct ctw_op_attention full = *op;
    full.head_v = op->head_v == 0 ? op->head : op->head_v;
    full.v_factor = op->v_factor == 0 ? 1 : op->v_factor;
    enum ctw_status st = check_attention(&full, err);
    return st != CTW_OK ? st : be->ops->attention(be, &full, err);
}

static enum ctw_status check_logits(const struct ctw_logits *l, struct ctw_err *err)
{
    REQUIRE("divergence", l->n_vocab >= 1 && l->n_vocab <= INT32_MAX);
    REQUIRE("divergence", l->ld >= l->n_vocab && l->ld % CTW_LOGITS_ALIGN == 0);
    REQUIRE("divergence", l->logits != NULL && l->norms != NULL);
    return CTW_OK;
}

enum ctw_status ctw_divergence(struct ctw_backend *be, const struct ctw_op_divergence *op,
                               struct ctw_err *err)
{
    enum ctw_status st = check_logits(&op->model, err);
    if (st == CTW_OK)
        st = check_logits(&op->reference, err);
    if (st != CTW_OK)
        return st;
    REQUIRE("divergence", op->n_rows >= 0);
    return op->n_rows == 0 ? CTW_OK : be->ops->divergence(be, op, err);
}

enum ctw_status ctw_difference(struct ctw_backend *be, const struct ctw_op_difference *op,
                               struct ctw_err *err)
{
    REQUIRE("difference", op->n_seqs >= 0 && op->n_rows >= op->n_seqs && op->dim >= 1);
    REQUIRE("difference", op->dim <= INT32_MAX);
    return op->n_seqs == 0 ? CTW_OK : be->ops->difference(be, op, err);
}

static enum ctw_status check_route(const struct ctw_route_rule *r, struct ctw_err *err)
{
    REQUIRE("route", r->chosen >= 1 && r->chosen <= CTW_MAX_CHOSEN);
    REQUIRE("route", r->chosen <= r->n_experts && r->n_experts <= CTW_MAX_EXPERTS);
    REQUIRE("route", r->n_groups >= 0 && r->score <= CTW_SCORE_SPARSEMIXER);
    REQUIRE("route", !r->corrects_logits || r->n_groups == 0);
    if (r->n_groups > 0) {
        REQUIRE("route", r->n_experts % r->n_groups == 0);
        REQUIRE("route", r->kept_groups >= 1 && r->kept_groups <= r->n_groups);
        REQUIRE("route", r->group_best == 1 || r->group_best == 2);
        REQUIRE("route", r->group_best <= r->n_experts / r->n_groups);
        REQUIRE("route", r->chosen <= r->kept_groups * (r->n_experts / r->n_groups));
    }
    REQUIRE("route", r->always >= 0 && r->always < r->chosen);
    REQUIRE("route", r->always == 0 || (r->n_groups == 0 && r->score == CTW_SCORE_SIGMOID));
    REQUIRE("route", r->score != CTW_SCORE_SPARSEMIXER || (r->chosen == 2 && r->n_groups == 0));
    REQUIRE("route", r->n_identity >= 0 && r->n_identity <= r->n_experts);
    return CTW_OK;
}

enum ctw_status ctw_route(struct ctw_backend *be, const struct ctw_op_route *op,
                          struct ctw_err *err)
{
    struct ctw_op_route full = *op;
    enum ctw_status st = check_route(&op->rule, err);
    if (st != CTW_OK)
        return st;
    full.rule.factor = op->rule.factor == 0 ? 1 : op->rule.factor;
    full.rule.scale = op->rule.scale == 0 ? 1 : op->rule.scale;
    REQUIRE("route", op->n_tok >= 0 && op->logits != NULL);
    REQUIRE("route", op->ids != NULL && op->weights != NULL);
    REQUIRE("route", op->correction == NULL || (ctw_is_float(op->correction_dtype) &&
                                                op->rule.score != CTW_SCORE_SOFTMAX_CHOSEN &&
                                                op->rule.score != CTW_SCORE_SPARSEMIXER));
    REQUIRE("route", op->expert_scale == NULL || ctw_is_float(op->expert_scale_dtype));
    if (op->table != NULL) {
        bool own = op->rule.score == CTW_SCORE_SIGMOID || op->rule.score == CTW_SCORE_SQRT_SOFTPLUS;
        REQUIRE("route", op->table_dtype == CTW_I32 || op->table_dtype == CTW_I64);
        REQUIRE("route", own && op->tokens != NULL && op->correction == NULL &&
                             op->rule.n_groups == 0 && op->rule.always == 0);
    }
    return be->ops->route(be, &full, err);
}

enum ctw_status ctw_group(struct ctw_backend *be, const struct ctw_op_group *op,
                          struct ctw_err *err)
{
    REQUIRE("group", op->n_experts >= 1 && op->n_experts <= CTW_MAX_EXPERTS);
    REQUIRE("group", op->chosen >= 1 && op->chosen <= op->n_experts);
    REQUIRE("group", op->n_tok >= 0 && op->n_tok <= INT32_MAX / op->chosen);
    return be->ops->group(be, op, err);
}
