/* The operands of the operations, but those that have files of their own. */
#include "fake_device_operands.h"

#include <string.h>

void fake_read_bias(struct gpu *gpu, const struct ctw_shard *s, const char *what)
{
    if (s->bias != NULL)
        gpu_read(gpu, s->bias, area(1, 0, (s->n - 1) * ctw_shard_step(s) + 1, s->bias_dtype), what);
}

void fake_read_shard(struct gpu *gpu, const struct ctw_shard *s, const char *what)
{
    for (int i = 0; i < CTW_N_PARTS; i++)
        if (s->data->part[i] != NULL)
            gpu_read(gpu, s->data->part[i], s->weight->part[i].bytes, what);
    fake_read_bias(gpu, s, what);
}

/* The largest of n rows, and 1; without rows, n. */
static int64_t n_rows_of(struct gpu *gpu, const int32_t *rows, int64_t n)
{
    int64_t most = rows == NULL ? n : 0;
    if (rows != NULL)
        gpu_check(gpu, rows, (size_t)n * sizeof(*rows), "linear: rows");
    for (int64_t t = 0; rows != NULL && t < n; t++)
        most = rows[t] >= most ? rows[t] + 1 : most;
    return most;
}

/* x and y [.., n], gathered and scattered. */
void fake_check_product(struct gpu *gpu, const struct ctw_op_linear *op, int64_t n)
{
    enum ctw_dtype y_dtype = op->epilogue == CTW_EPI_ADD ? op->residual_dtype : op->dtype;
    if (op->epilogue == CTW_EPI_LOGITS || op->epilogue == CTW_EPI_SCATTER)
        y_dtype = CTW_F32;
    gpu_check(
        gpu, op->x,
        area(n_rows_of(gpu, op->x_rows, op->n_tok), op->ldx, op->shards[0].weight->k, op->dtype),
        "linear: x");
    gpu_check(gpu, op->y, area(n_rows_of(gpu, op->y_rows, op->n_tok), op->ldy, n, y_dtype),
              "linear: y");
    gpu_check_any(gpu, op->x_weight, (size_t)op->n_tok * sizeof(float), "linear: x_weight");
    gpu_check_any(gpu, op->y_weight, (size_t)op->n_tok * sizeof(float), "linear: y_weight");
}

void fake_check_decode(struct gpu *gpu, const struct ctw_op_decode *op)
{
    int64_t k = op->shard->weight->k;
    fake_read_shard(gpu, op->shard, "decode: the weight");
    gpu_check(gpu, op->dst, area(op->n_rows, k, k, op->dtype), "decode: dst");
}

void fake_check_embed(struct gpu *gpu, const struct ctw_op_embed *op)
{
    int64_t k = op->table->weight->k;
    fake_read_shard(gpu, op->table, "embed: the table");
    gpu_check(gpu, op->tokens, (size_t)op->n_tok * sizeof(*op->tokens), "embed: tokens");
    gpu_check(gpu, op->y, area(op->n_tok, k, k, op->dtype), "embed: y");
}

void fake_check_norm(struct gpu *gpu, const struct ctw_op_norm *op)
{
    int64_t n_x = op->rows == NULL ? op->n_tok : 0, width = op->n_groups * op->dim;
    int64_t n_weights = op->own_weights ? width : op->dim;
    if (op->weight != NULL)
        gpu_read(gpu, op->weight, area(1, 0, n_weights, op->weight_dtype), "norm: weight");
    if (op->bias != NULL)
        gpu_read(gpu, op->bias, area(1, 0, n_weights, op->bias_dtype), "norm: bias");
    gpu_check(gpu, op->y, area(op->n_tok, op->ldy, width, op->dtype), "norm: y");
    gpu_check_any(gpu, op->rows, (size_t)op->n_tok * sizeof(*op->rows), "norm: rows");
    for (int64_t t = 0; op->rows != NULL && t < op->n_tok; t++)
        n_x = op->rows[t] >= n_x ? op->rows[t] + 1 : n_x;
    gpu_check(gpu, op->x, area(n_x, op->ldx, width, op->x_dtype), "norm: x");
    gpu_check_any(gpu, op->bad, (size_t)n_x * sizeof(*op->bad), "norm: bad");
}

void fake_check_act(struct gpu *gpu, const struct ctw_op_act *op)
{
    gpu_check(gpu, op->x, area(op->n_tok, op->ldx, op->dim, op->dtype), "act: x");
    gpu_check(gpu, op->y, area(op->n_tok, op->ldy, op->dim, op->dtype), "act: y");
    gpu_check_any(gpu, op->up, area(op->n_tok, op->ldup, op->dim, op->dtype), "act: up");
}

void fake_check_qkv(struct gpu *gpu, const struct ctw_op_qkv *op)
{
    int64_t q = (int64_t)op->n_head * op->head, kv = (int64_t)op->n_kv * op->head;
    int32_t last = 0;
    gpu_check(gpu, op->qkv, area(op->n_tok, op->columns.ld, op->columns.ld, op->dtype), "qkv: qkv");
    gpu_check(gpu, op->q, area(op->n_tok, q, q, op->dtype), "qkv: q");
    if (op->k != NULL) {
        gpu_check(gpu, op->k, area(op->n_tok, kv, kv, op->dtype), "qkv: k");
        if (op->v != NULL)
            gpu_check(gpu, op->v, area(op->n_tok, kv, kv, op->dtype), "qkv: v");
    }
    if (op->q_norm != NULL)
        gpu_read(gpu, op->q_norm, area(1, 0, op->head, op->norm_dtype), "qkv: q_norm");
    if (op->k_norm != NULL)
        gpu_read(gpu, op->k_norm, area(1, 0, op->head, op->norm_dtype), "qkv: k_norm");
    if ((op->rot_dim > 0 || op->q_factor != NULL) && op->n_tok > 0) {
        gpu_check(gpu, op->positions, (size_t)op->n_tok * sizeof(*op->positions), "qkv: positions");
        for (int64_t t = 0; t < op->n_tok; t++)
            last = op->positions[t] > last ? op->positions[t] : last;
        if (op->rot_dim > 0)
            gpu_check(gpu, op->cos_sin, area(last + 1, op->rot_dim, op->rot_dim, CTW_F32),
                      "qkv: cos_sin");
        if (op->q_factor != NULL)
            gpu_check(gpu, op->q_factor, area(1, 0, last + 1, CTW_F32), "qkv: q_factor");
    }
}

void fake_count_rows(const struct ctw_attn_seq *seqs, int64_t n_seqs, int64_t *n_q, int64_t *n_kv)
{
    *n_q = *n_kv = 0;
    for (const struct ctw_attn_seq *s = seqs; s < seqs + n_seqs; s++) {
        *n_q = s->q_row + s->n_q > *n_q ? s->q_row + s->n_q : *n_q;
        for (const struct ctw_kv_run *r = s->runs; r < s->runs + s->n_runs; r++)
            *n_kv = r->row + r->n_tok > *n_kv ? r->row + r->n_tok : *n_kv;
    }
}

void fake_check_attention(struct gpu *gpu, const struct ctw_op_attention *op)
{
    int64_t q = (int64_t)op->n_head * op->head, kv = (int64_t)op->n_kv * op->head;
    int64_t values = (int64_t)op->n_kv * op->head_v, out = (int64_t)op->n_head * op->head_v;
    int64_t n_q, n_kv;
    fake_count_rows(op->seqs, op->n_seqs, &n_q, &n_kv);
    gpu_check(gpu, op->q, area(n_q, q, q, op->dtype), "attention: q");
    gpu_check(gpu, op->k, area(n_kv, kv, kv, op->dtype), "attention: k");
    gpu_check(gpu, op->v, area(n_kv, values, values, op->dtype), "attention: v");
    gpu_check(gpu, op->out, area(n_q, out, out, op->dtype), "attention: out");
    gpu_check_any(gpu, op->alibi, (size_t)op->n_head * sizeof(float), "attention: alibi");
    gpu_check_any(gpu, op->seen, (size_t)(n_q * op->ld_seen) * sizeof(*op->seen),
                  "attention: seen");
    if (op->relative.rank > 0) {
        const struct ctw_relative *r = &op->relative;
        gpu_check(gpu, r->states, area(n_q, r->ld, (int64_t)op->n_head * r->rank, op->dtype),
                  "attention: states");
        gpu_read(gpu, r->proj, area(r->rank, r->extent, r->extent, r->proj_dtype),
                 "attention: proj");
    }
    if (op->sinks != NULL)
        gpu_read(gpu, op->sinks, area(1, 0, op->n_head, op->sinks_dtype), "attention: sinks");
}

void fake_check_quantise(struct gpu *gpu, const struct ctw_op_quantise *op)
{
    gpu_check_any(gpu, op->rows, (size_t)op->n_tok * sizeof(*op->rows), "quantise: rows");
    gpu_check(gpu, op->y, area(op->n_tok, op->ldy, op->dim, op->dtype), "quantise: y");
}

void fake_check_rotate(struct gpu *gpu, const struct ctw_op_rotate *op)
{
    size_t size = (size_t)op->how->size;
    gpu_check_any(gpu, op->rows, (size_t)op->n_tok * sizeof(*op->rows), "rotate: rows");
    gpu_check_any(gpu, op->how->matrix, size * size * sizeof(float), "rotate: matrix");
    gpu_check_any(gpu, op->how->signs, size * sizeof(float), "rotate: signs");
    gpu_check(gpu, op->y, area(op->n_tok, op->ldy, op->dim, op->dtype), "rotate: y");
}

void fake_check_latent(struct gpu *gpu, const struct ctw_op_latent *op)
{
    int64_t q = (int64_t)op->n_head * (op->own + op->turning);
    int64_t kv = (int64_t)op->n_head * (op->own + op->head_v), v = (int64_t)op->n_head * op->head_v;
    gpu_check(gpu, op->q, area(op->n_tok, q, q, op->dtype), "latent: q");
    gpu_check(gpu, op->kv, area(op->n_tok, kv, kv, op->dtype), "latent: kv");
    gpu_check(gpu, op->k_turned, area(op->n_tok, op->ld_turned, op->turning, op->dtype),
              "latent: k_turned");
    gpu_check(gpu, op->k, area(op->n_tok, q, q, op->dtype), "latent: k");
    gpu_check(gpu, op->v, area(op->n_tok, v, v, op->dtype), "latent: v");
}

void fake_check_gate(struct gpu *gpu, const struct ctw_op_gate *op)
{
    gpu_check(gpu, op->x,
              area(op->n_tok, op->ldx, ctw_gate_column(op, op->n_groups - 1) + 1, op->dtype),
              "gate: x");
    gpu_check(gpu, op->y, area(op->n_tok, op->ldy, op->n_groups * op->size, op->dtype), "gate");
}

void fake_check_index(struct gpu *gpu, const struct ctw_op_index *op)
{
    int64_t q = (int64_t)op->n_head * op->head, n_q, n_kv;
    fake_count_rows(op->seqs, op->n_seqs, &n_q, &n_kv);
    gpu_check(gpu, op->q, area(n_q, q, q, op->dtype), "index: q");
    gpu_check(gpu, op->k, area(n_kv, op->ld_k, op->head, op->dtype), "index: k");
    if (op->weights != NULL)
        gpu_check(gpu, op->weights, area(n_q, op->ld_weights, op->n_head, op->dtype),
                  "index: weights");
    gpu_check(gpu, op->seen, (size_t)(n_q * op->ld_seen) * sizeof(*op->seen), "index: seen");
}

void fake_check_head(struct gpu *gpu, const struct ctw_op_head *op)
{
    int64_t k = op->weight->weight->k;
    fake_read_shard(gpu, op->weight, "head: the weight");
    gpu_check(gpu, op->x, area(op->n_rows, k, k, op->dtype), "head: x");
    size_t first = 0, end = (size_t)op->n_rows;
    if (op->first_target != NULL) {
        gpu_check(gpu, op->first_target, (end + 1) * sizeof(*op->first_target), "head: first target");
        first = (size_t)op->first_target[0];
        end = (size_t)op->first_target[op->n_rows];
    }
    gpu_check(gpu, op->targets + first, (end - first) * sizeof(*op->targets), "head: targets");
    gpu_check(gpu, op->out + first, (end - first) * sizeof(*op->out), "head: out");
    gpu_check_any(gpu, op->logits, (size_t)(op->n_rows * op->ld_logits) * sizeof(float),
                  "head: logits");
    gpu_check_any(gpu, op->norms, (size_t)op->n_rows * sizeof(*op->norms), "head: norms");
}

static void check_logits(struct gpu *gpu, const struct ctw_logits *l, int64_t n_rows)
{
    gpu_check(gpu, l->logits, (size_t)(n_rows * l->ld) * sizeof(float), "divergence: logits");
    gpu_check(gpu, l->norms, (size_t)n_rows * sizeof(*l->norms), "divergence: norms");
}

void fake_check_divergence(struct gpu *gpu, const struct ctw_op_divergence *op)
{
    check_logits(gpu, &op->model, op->n_rows);
    check_logits(gpu, &op->reference, op->n_rows);
    gpu_check(gpu, op->out, (size_t)op->n_rows * sizeof(*op->out), "divergence: out");
}

void fake_check_difference(struct gpu *gpu, const struct ctw_op_difference *op)
{
    size_t streams = (size_t)(op->n_rows * op->dim) * sizeof(float), n = (size_t)op->n_seqs;
    size_t blocks = n * (size_t)ctw_difference_blocks(op->dim);
    gpu_check(gpu, op->start, (n + 1) * sizeof(*op->start), "difference: start");
    gpu_check(gpu, op->x, streams, "difference: x");
    gpu_check(gpu, op->y, streams, "difference: y");
    gpu_check(gpu, op->rows, (size_t)op->n_rows * sizeof(*op->rows), "difference: rows");
    gpu_check(gpu, op->channels, blocks * sizeof(*op->channels), "difference: channels");
    gpu_check(gpu, op->out, n * sizeof(*op->out), "difference: out");
}

void fake_check_route(struct gpu *gpu, const struct ctw_op_route *op)
{
    size_t n_tok = (size_t)op->n_tok, n = (size_t)op->rule.n_experts;
    size_t n_chosen = n_tok * (size_t)op->rule.chosen;
    gpu_check(gpu, op->logits, n_tok * n * sizeof(float), "route: logits");
    gpu_check(gpu, op->ids, n_chosen * sizeof(*op->ids), "route: ids");
    gpu_check(gpu, op->weights, n_chosen * sizeof(*op->weights), "route: weights");
    if (op->identity != NULL)
        gpu_check(gpu, op->identity, n_tok * sizeof(*op->identity), "route: identity");
    if (op->correction != NULL)
        gpu_read(gpu, op->correction, area(1, 0, (int64_t)n - op->rule.always, op->correction_dtype),
                 "route: correction");
    if (op->table != NULL) {
        int64_t last = 0, chosen = op->rule.chosen;
        gpu_check(gpu, op->tokens, n_tok * sizeof(*op->tokens), "route: tokens");
        for (int64_t t = 0; t < op->n_tok; t++)
            last = op->tokens[t] > last ? op->tokens[t] : last;
        gpu_read(gpu, op->table, area(last + 1, chosen, chosen, op->table_dtype), "route: table");
    }
    if (op->expert_scale != NULL)
        gpu_read(gpu, op->expert_scale, area(1, 0, (int64_t)n, op->expert_scale_dtype),
                 "route: expert scale");
}

void fake_check_group(struct gpu *gpu, const struct ctw_op_group *op)
{
    size_t n = (size_t)op->n_tok * (size_t)op->chosen;
    gpu_check(gpu, op->ids, n * sizeof(*op->ids), "group: ids");
    gpu_check(gpu, op->weights, n * sizeof(*op->weights), "group: weights");
    gpu_check(gpu, op->rows, n * sizeof(*op->rows), "group: rows");
    gpu_check(gpu, op->row_weights, n * sizeof(*op->row_weights), "group: row weights");
    gpu_check(gpu, op->start, ((size_t)op->n_experts + 1) * sizeof(*op->start), "group: start");
}

void fake_check_states(struct gpu *gpu, const struct ctw_states *states,
                       const struct ctw_seq_part *parts, int64_t n_parts, size_t bytes)
{
    for (int64_t i = 0; i < n_parts; i++) {
        if (parts[i].before >= 0)
            gpu_check(gpu, ctw_state_at(states, parts[i].before), bytes, "a state before");
        for (int64_t j = 0; parts[i].after >= 0 && j < n_parts; j++)
            if (parts[j].before == parts[i].after || (j != i && parts[j].after == parts[i].after))
                gpu_die("a part has a state that another part leaves");
    }
    for (int64_t i = 0; i < n_parts; i++)
        if (parts[i].after >= 0 && bytes > 0) {
            gpu_check(gpu, ctw_state_at(states, parts[i].after), bytes, "a state after");
            memset(ctw_state_at(states, parts[i].after), 0xff, bytes);
        }
}
