/*
 * A gated delta rule. f->wide holds, one behind another, the product of q, k, v and z, the
 * convolution's output q | k | v, b and a [chunk, 2 n_value, or by channel n_value + n_value *
 * key], and the rule's output [chunk, n_value * value]: where columns of z follow all of q, k and
 * v, in the columns of the product that the convolution has read. Columns of which a and z are
 * products are where the convolution's output comes later. The carries are states: the
 * convolution's last inputs, and what the rule leaves.
 */
#include "kernels/conv.h"
#include "kernels/delta.h"
#include "worker/engine/pass/step.h"

enum { CARRY_CONV, CARRY_DELTA };

struct places {
    void *in, *qkv, *ba, *out;
    int64_t in_columns, out_columns; /* of a row */
};

static void *behind(const struct ctw_step *s, void *from, int64_t columns)
{
    int64_t elements = ctw_wide_up(s->f->plan.chunk_tokens * columns);
    return (char *)from + (size_t)elements * ctw_dtype_bytes(s->f->dtype);
}

static struct places places_of(const struct ctw_step *s)
{
    const struct ctw_delta_rule *d = &s->branch->delta_rule;
    struct places p = {.in = s->f->wide, .in_columns = ctw_delta_qkv(d) + ctw_delta_values(d)};
    p.qkv = behind(s, p.in, p.in_columns);
    p.ba = behind(s, p.qkv, ctw_delta_qkv(d));
    p.out = d->by_head ? behind(s, p.ba, ctw_delta_ba(d)) : p.in;
    p.out_columns = d->by_head ? ctw_delta_values(d) : p.in_columns;
    return p;
}

static const void *element(const struct ctw_step *s, const void *p, int64_t i)
{
    return (const char *)p + (size_t)i * ctw_dtype_bytes(s->f->dtype);
}

/* The convolution of channels first .. first + dim - 1 of q | k | v, in runs of `run` columns of
 * the product, from column `at` on. */
static enum ctw_status conv(const struct ctw_step *s, const struct places *p,
                            const struct ctw_round *r, int64_t first, int64_t dim, int64_t at,
                            int64_t run, struct ctw_err *err)
{
    const struct ctw_delta_rule *d = &s->branch->delta_rule;
    const struct ctw_tensor *weight = ctw_step_vector(s, CTW_V_DELTA_CONV);
    struct ctw_states states = ctw_step_states(s, CARRY_CONV);
    states.data = (float *)states.data + first * (d->taps - 1);
    const struct ctw_op_conv op = {
        .form = CTW_CONV_SILU,
        .dtype = s->f->dtype,
        .n_tok = s->chunk->n_tok,
        .dim = dim,
        .taps = d->taps,
        .x = element(s, p->in, at),
        .ldx = p->in_columns,
        .run = run,
        .step = p->in_columns / d->n_key,
        .weight = (const char *)ctw_step_vector_data(s, CTW_V_DELTA_CONV) +
                  (size_t)(first * d->taps) * ctw_dtype_bytes(weight->dtype),
        .weight_dtype = weight->dtype,
        .parts = r->parts,
        .n_parts = r->n_parts,
        .states = states,
        .y = (char *)p->qkv + (size_t)first * ctw_dtype_bytes(s->f->dtype),
        .ldy = ctw_delta_qkv(d)};
    return ctw_conv(s->f->be, &op, err);
}

static enum ctw_status convolve(const struct ctw_step *s, const struct places *p,
                                const struct ctw_round *r, struct ctw_err *err)
{
    const struct ctw_delta_rule *d = &s->branch->delta_rule;
    int64_t keys = ctw_delta_keys(d), values = ctw_delta_values(d);
    if (!d->by_head)
        return conv(s, p, r, 0, ctw_delta_qkv(d), 0, 0, err);
    enum ctw_status st = conv(s, p, r, 0, keys, 0, d->key, err);
    if (st == CTW_OK)
        st = conv(s, p, r, keys, keys, d->key, d->key, err);
    return st == CTW_OK
               ? conv(s, p, r, 2 * keys, values, 2 * (int64_t)d->key, values / d->n_key, err)
               : st;
}

static enum ctw_status rule(const struct ctw_step *s, const struct places *p,
                            const struct ctw_round *r, struct ctw_err *err)
{
    const struct ctw_delta_rule *d = &s->branch->delta_rule;
    const int ratio = d->n_value / d->n_key;
    const struct ctw_op_delta op = {.dtype = s->f->dtype,
                                    .n_tok = s->chunk->n_tok,
                                    .n_key = d->n_key,
                                    .n_value = d->n_value,
                                    .key = d->key,
                                    .value = d->value,
                                    .x = p->qkv,
                                    .ldx = ctw_delta_qkv(d),
                                    .b = p->ba,
                                    .a = element(s, p->ba, d->ba_by_head ? ratio : d->n_value),
                                    .ldba = ctw_delta_ba(d),
                                    .ba_step = d->ba_by_head ? 2 * ratio : ratio,
                                    .by_channel = d->by_channel,
                                    .twice = d->twice,
                                    .least_log = d->least_log,
                                    .a_log = ctw_step_vector_data(s, CTW_V_DELTA_A_LOG),
                                    .as_rates = ctw_step_vector(s, CTW_V_DELTA_A_LOG)->as_rates,
                                    .tiled = ctw_step_vector(s, CTW_V_DELTA_A_LOG)->tiled,
                                    .dt_bias = ctw_step_vector_data(s, CTW_V_DELTA_DT_BIAS),
                                    .a_log_dtype = ctw_step_vector(s, CTW_V_DELTA_A_LOG)->dtype,
                                    .dt_bias_dtype = ctw_step_vector(s, CTW_V_DELTA_DT_BIAS)->dtype,
                                    .parts = r->parts,
                                    .n_parts = r->n_parts,
                                    .states = ctw_step_states(s, CARRY_DELTA),
                                    .y = p->out,
                                    .ldy = p->out_columns};
    return ctw_delta(s->f->be, &op, err);
}

/* The rule's output: norms of its heads, times the activation of z. */
static enum ctw_status finish(const struct ctw_step *s, const struct places *p, struct ctw_err *err)
{
    const struct ctw_delta_rule *d = &s->branch->delta_rule;
    const int groups = d->by_head ? d->n_key : 1; /* of z's columns */
    const int64_t values = ctw_delta_values(d), z = values / groups;
    struct ctw_op_norm norm = ctw_step_norm(s, CTW_AT_DELTA_HEADS);
    norm.dim = d->value;
    norm.n_groups = d->n_value;
    norm.x = norm.y = p->out;
    norm.ldx = norm.ldy = p->out_columns;
    norm.x_dtype = norm.dtype = s->f->dtype;
    /* A row of this operation is a token's group. */
    const struct ctw_op_act gate = {.act = d->gate,
                                    .dtype = s->f->dtype,
                                    .n_tok = s->chunk->n_tok * groups,
                                    .dim = z,
                                    .x = element(s, p->in, p->in_columns / groups - z),
                                    .ldx = p->in_columns / groups,
                                    .up = p->out,
                                    .ldup = p->out_columns / groups,
                                    .y = p->out,
                                    .ldy = p->out_columns / groups};
    return ctw_norm_act(s->f->be, &norm, &gate, err);
}

/* A product of n, or of other columns, into columns of p->in or p->ba. */
static enum ctw_status project(const struct ctw_step *s, int product, const void *x, int64_t ldx,
                               void *rows, int64_t column, int64_t ld, struct ctw_err *err)
{
    if (!ctw_step_has(s, product))
        return CTW_OK;
    x = x != NULL ? x : s->f->norm;
    char *y = (char *)rows + (size_t)column * ctw_dtype_bytes(s->f->dtype);
    return ctw_step_product(s, product, x, ldx != 0 ? ldx : s->f->model->hidden, y, ld, err);
}

static enum ctw_status project_all(const struct ctw_step *s, const struct places *p,
                                   struct ctw_err *err)
{
    const struct ctw_delta_rule *d = &s->branch->delta_rule;
    const int64_t rank = d->rank, low = d->z_is_whole ? rank : 2 * rank, ba = ctw_delta_ba(d);
    const void *a = rank > 0 ? p->qkv : NULL, *z = element(s, p->qkv, rank);
    enum ctw_status st = project(s, CTW_P_DELTA_IN, NULL, 0, p->in, 0, p->in_columns, err);
    if (st == CTW_OK)
        st = project(s, CTW_P_DELTA_BA, NULL, 0, p->ba, 0, ba, err);
    if (st == CTW_OK)
        st = project(s, CTW_P_DELTA_LOW, NULL, 0, p->qkv, 0, low, err);
    if (st == CTW_OK)
        st = project(s, CTW_P_DELTA_A, a, low, p->ba, d->n_value, ba, err);
    return st == CTW_OK
               ? project(s, CTW_P_DELTA_Z, z, low, p->in, ctw_delta_qkv(d), p->in_columns, err)
               : st;
}

static enum ctw_status run(const struct ctw_step *s, struct ctw_err *err)
{
    const struct places p = places_of(s);
    enum ctw_status st = project_all(s, &p, err);
    for (int64_t i = 0; st == CTW_OK && i < s->chunk->n_rounds; i++) {
        st = convolve(s, &p, &s->chunk->rounds[i], err);
        if (st == CTW_OK)
            st = rule(s, &p, &s->chunk->rounds[i], err);
    }
    if (st == CTW_OK)
        st = finish(s, &p, err);
    return st == CTW_OK ? ctw_step_join(s, CTW_P_DELTA_OUT, p.out, p.out_columns, err) : st;
}

static void widen(struct ctw_widths *w, const struct ctw_layer *l, int branch, int64_t longest)
{
    const struct ctw_delta_rule *d = &l->branch[branch].delta_rule;
    (void)longest;
    const int64_t out = d->by_head ? ctw_delta_values(d) : 0;
    w->wide = ctw_max64(w->wide, 2 * ctw_delta_qkv(d) + ctw_delta_values(d) + out + ctw_delta_ba(d));
    w->inner_k = ctw_max64(w->inner_k, ctw_max64(ctw_delta_values(d), d->rank));
    w->state = ctw_max64(w->state, ctw_delta_padded(d->key, d->value));
}

static void carry(const struct ctw_model *m, const struct ctw_branch *b, int64_t longest,
                  enum ctw_dtype dtype, struct ctw_carry_rule rules[CTW_BRANCH_CARRIES])
{
    const struct ctw_delta_rule *d = &b->delta_rule;
    (void)m;
    (void)longest;
    rules[CARRY_CONV].bytes = (size_t)(ctw_delta_qkv(d) * (d->taps - 1)) * sizeof(float);
    rules[CARRY_CONV].life = CTW_STATE;
    rules[CARRY_DELTA].bytes = ctw_delta_bytes(d->n_key, d->n_value, d->key, d->value, dtype);
    rules[CARRY_DELTA].life = CTW_STATE;
}

/* The convolution, and three multiply-adds for each element of a head's state; the keys before do
 * not count. */
static double key_flops(const struct ctw_branch *b, int64_t n_keys)
{
    const struct ctw_delta_rule *d = &b->delta_rule;
    (void)n_keys;
    return 2.0 * d->taps * (double)ctw_delta_qkv(d) +
           6.0 * d->n_value * (double)d->key * (double)d->value;
}

const struct ctw_kind_ops ctw_ops_delta_rule = {
    .widen = widen, .carry = carry, .joins = CTW_P_DELTA_OUT, .key_flops = key_flops, .run = run};
