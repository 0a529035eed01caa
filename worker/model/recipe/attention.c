/* Softmax attention: its builder (family.h), and its facts. */
#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "worker/model/families/family.h"
#include "worker/model/recipe/kinds.h"

enum { MAX_NAME = 512 };

/* Rows of q: of its heads, and of their gates. */
static int64_t rows_of_q(const struct ctw_attention_rules *a)
{
    return a->n_head * a->head * (a->gate_in_q ? 2 : 1);
}

/* The blocks' queries, then their keys, then their values. */
static void add_blocks(struct ctw_config *c, int64_t i, const struct ctw_attention_rules *a,
                       int bias)
{
    int64_t n = a->n_head * a->head / a->blocks;
    for (int part = 0; part < 3; part++)
        for (int b = 0; b < a->blocks; b++)
            ctw_describe_shard(
                c, i, CTW_P_QKV,
                (struct ctw_rows){CTW_M_QKV, (3 * b + (3 - part) % 3) * n, n, bias, 1});
}

/* All ranks' queries, then all keys, then all values. */
static void add_ranks(struct ctw_config *c, int64_t i, const struct ctw_attention_rules *a,
                      const int64_t rows[3], int bias)
{
    int64_t first = 0, all = rows[0] + rows[1] + rows[2];
    for (int part = 0; part < 3; first += rows[part++] / a->blocks)
        for (int rank = 0; rank < a->blocks; rank++)
            ctw_describe_shard(c, i, CTW_P_QKV,
                               (struct ctw_rows){CTW_M_QKV, rank * all / a->blocks + first,
                                                 rows[part] / a->blocks, bias, 1});
}

static int64_t head_v_of(const struct ctw_attention_rules *a)
{
    return a->head_v != 0 ? a->head_v : a->head;
}

/* Columns that q, k and v read. */
static int64_t input_of(const struct ctw_config *c, const struct ctw_attention_rules *a)
{
    return a->input != 0 ? a->input : c->model->hidden;
}

static void describe_adapters(struct ctw_config *c, int64_t i, const struct ctw_attention_rules *a)
{
    const int64_t r = a->adapter_rank, kv = a->n_kv * a->head;
    const int64_t n[] = {a->n_head * a->head, kv, kv};
    char name[MAX_NAME];
    for (int j = 0; j < 3; j++) {
        snprintf(name, sizeof(name), "%s.0", a->adapters[j]);
        ctw_describe_linear(c, i, CTW_MIXER,
                            &(struct ctw_linear_rules){CTW_P_ADAPT_IN, CTW_M_ADAPT_Q_IN + j, 0,
                                                       name, r, input_of(c, a)});
        snprintf(name, sizeof(name), "%s.1", a->adapters[j]);
        ctw_describe_linear(
            c, i, CTW_MIXER,
            &(struct ctw_linear_rules){CTW_P_ADAPT_Q + j, CTW_M_ADAPT_Q + j, 0, name, n[j], r});
    }
}

static void describe_qkv(struct ctw_config *c, int64_t i, const struct ctw_attention_rules *a)
{
    int64_t hidden = input_of(c, a), q = a->n_head * a->head, kv = a->n_kv * a->head;
    int64_t values = a->n_kv * head_v_of(a);
    const char *qkv = ctw_name_or(a->qkv, "self_attn.qkv_proj");
    if (a->order == CTW_QKV_SPLIT) {
        ctw_describe_linear(c, i, CTW_MIXER,
                            &(struct ctw_linear_rules){
                                CTW_P_QKV, CTW_M_Q, a->qkv_bias ? CTW_V_Q_BIAS : 0,
                                ctw_name_or(a->q, "self_attn.q_proj"), rows_of_q(a), hidden});
        if (a->uses != 0)
            return;
        ctw_describe_linear(
            c, i, CTW_MIXER,
            &(struct ctw_linear_rules){CTW_P_QKV, CTW_M_K, a->qkv_bias ? CTW_V_K_BIAS : 0,
                                       ctw_name_or(a->k, "self_attn.k_proj"), kv, hidden});
        if (!a->values_are_keys)
            ctw_describe_linear(
                c, i, CTW_MIXER,
                &(struct ctw_linear_rules){CTW_P_QKV, CTW_M_V, a->qkv_bias ? CTW_V_V_BIAS : 0,
                                           ctw_name_or(a->v, "self_attn.v_proj"), values, hidden});
        return;
    }
    int bias = a->qkv_bias ? CTW_V_QKV_BIAS : -1;
    ctw_describe_matrix(c, i, ctw_matrix_at(CTW_MIXER, CTW_M_QKV), qkv, q + kv + values, hidden);
    if (a->order == CTW_QKV_IN_RANKS && c->status == CTW_OK)
        c->wants[c->n_wants - 1].sections = a->blocks; /* each rank quantised its own rows */
    if (bias >= 0)
        ctw_describe_bias(c, i, bias, qkv, q + kv + values);
    if (a->order == CTW_QKV_IN_BLOCKS)
        add_blocks(c, i, a, bias);
    if (a->order == CTW_QKV_BY_HEAD)
        ctw_describe_shard(c, i, CTW_P_QKV, (struct ctw_rows){CTW_M_QKV, 0, q + 2 * kv, bias, 1});
    if (a->order == CTW_QKV_IN_RANKS)
        add_ranks(c, i, a, (const int64_t[]){q, kv, values}, bias);
    if (a->order != CTW_QKV_IN_ORDER)
        return;
    ctw_describe_shard(c, i, CTW_P_QKV, (struct ctw_rows){CTW_M_QKV, 0, q, bias, 1});
    ctw_describe_shard(c, i, CTW_P_QKV, (struct ctw_rows){CTW_M_QKV, q, kv, bias, 1});
    ctw_describe_shard(c, i, CTW_P_QKV, (struct ctw_rows){CTW_M_QKV, q + kv, values, bias, 1});
}

/* The choice of blocks: its products are columns behind q, k and v. */
static void describe_blocks(struct ctw_config *c, int64_t i, const struct ctw_attention_rules *a)
{
    const struct ctw_block_choice *b = &a->choice;
    assert(a->order == CTW_QKV_SPLIT && a->norms != NULL && a->norms->heads == CTW_HEADS_ALIKE &&
           a->rope >= 0 && a->uses == 0 && a->keeps == 0 && !a->gate_in_q && a->window == 0);
    ctw_describe_linear(c, i, CTW_MIXER,
                        &(struct ctw_linear_rules){CTW_P_QKV, CTW_M_BLOCK_Q, 0,
                                                   "self_attn.index_q_proj", a->n_kv * b->head,
                                                   c->model->hidden});
    ctw_describe_linear(c, i, CTW_MIXER,
                        &(struct ctw_linear_rules){CTW_P_QKV, CTW_M_BLOCK_K, 0,
                                                   "self_attn.index_k_proj", b->head,
                                                   c->model->hidden});
    ctw_describe_norm(c, i, CTW_AT_BLOCK_Q, &a->norms->form, "self_attn.index_q_norm", b->head);
    ctw_describe_norm(c, i, CTW_AT_BLOCK_K, &a->norms->form, "self_attn.index_k_norm", b->head);
}

/* The choice of pools: a product whose columns are behind q, k and v. */
static void describe_pools(struct ctw_config *c, int64_t i, const struct ctw_attention_rules *a)
{
    const struct ctw_pool_choice *p = &a->pools;
    assert(a->order == CTW_QKV_SPLIT && a->norms != NULL && a->norms->heads == CTW_HEADS_ALIKE &&
           a->rope >= 0 && a->uses == 0 && a->keeps == 0 && a->window == 0);
    const int64_t rows = p->n_head * (int64_t)p->head, hidden = c->model->hidden;
    const struct ctw_linear_rules
        both = {CTW_P_QKV,      CTW_M_POOL_QK, 0, "self_attn.indexer.index_qk_proj",
                rows + p->head, hidden},
        q = {CTW_P_QKV, CTW_M_BLOCK_Q, 0, "self_attn.indexer.q_proj", rows, hidden},
        k = {CTW_P_QKV, CTW_M_BLOCK_K, 0, "self_attn.indexer.k_proj", p->head, hidden};
    ctw_describe_linear(c, i, CTW_MIXER, p->apart ? &q : &both);
    if (p->apart)
        ctw_describe_linear(c, i, CTW_MIXER, &k);
    ctw_describe_norm(c, i, CTW_AT_BLOCK_Q, &a->norms->form, "self_attn.indexer.q_layernorm",
                      p->head);
    ctw_describe_norm(c, i, CTW_AT_BLOCK_K, &a->norms->form, "self_attn.indexer.k_layernorm",
                      p->head);
}

/* A learned bias: its states are columns behind q, k and v. */
static void describe_relative(struct ctw_config *c, int64_t i, const struct ctw_attention_rules *a,
                              struct ctw_relative_bias *bias)
{
    assert(a->order == CTW_QKV_SPLIT && !a->gate_in_q && a->choice.block == 0 && a->chunk == 0 &&
           a->softcap == 0 && head_v_of(a) == a->head);
    *bias = (struct ctw_relative_bias){
        .rank = (int)a->relative_rank, .extent = a->relative_extent, .factors = a->q_factors};
    ctw_describe_linear(c, i, CTW_MIXER,
                        &(struct ctw_linear_rules){CTW_P_QKV, CTW_M_RELATIVE, 0, a->relative,
                                                   a->n_head * a->relative_rank, input_of(c, a)});
    ctw_describe_want(c,
                      (struct ctw_want){.kind = CTW_WANT_VECTOR,
                                        .layer = (int)i + 1,
                                        .role = CTW_V_RELATIVE,
                                        .n = a->relative_rank,
                                        .k = a->relative_extent},
                      a->relative_proj);
}

/* Convolutions of keys and values. */
static void describe_convs(struct ctw_config *c, int64_t i, const struct ctw_attention_rules *a)
{
    const char *const names[] = {a->k_conv, a->v_conv};
    assert(a->order == CTW_QKV_SPLIT && a->rope < 0 && a->uses == 0 && !a->values_are_keys &&
           a->limit == 0 && a->choice.block == 0 && head_v_of(a) == a->head);
    for (int j = 0; j < 2; j++)
        ctw_describe_want(c,
                          (struct ctw_want){.kind = CTW_WANT_VECTOR,
                                            .layer = (int)i + 1,
                                            .role = CTW_V_K_CONV + j,
                                            .n = a->n_kv * a->head,
                                            .k = a->conv_taps},
                          names[j]);
}

/* Where the product's columns have the heads. */
static struct ctw_qkv_columns columns_of(const struct ctw_attention_rules *a)
{
    int64_t r = a->n_head / a->n_kv, q = a->n_head * a->head, kv = a->n_kv * a->head;
    if (a->order == CTW_QKV_BY_HEAD)
        return (struct ctw_qkv_columns){.ld = q + 2 * kv,
                                        .k = r * a->head,
                                        .v = (r + 1) * a->head,
                                        .q_step = (r + 2) * a->head,
                                        .kv_step = (r + 2) * a->head};
    bool has_k = a->uses == 0, has_v = has_k && !a->values_are_keys;
    int64_t values = a->n_kv * head_v_of(a);
    int64_t q_head = rows_of_q(a) / a->n_head;
    q = rows_of_q(a);
    int64_t more = a->choice.block > 0 ? (a->n_kv + 1) * a->choice.head : 0;
    more += a->pools.chosen > 0 ? (a->pools.n_head + 1) * (int64_t)a->pools.head : 0;
    if (a->relative != NULL)
        more = a->n_head * a->relative_rank;
    return (struct ctw_qkv_columns){.ld = q + (has_k ? kv : 0) + (has_v ? values : 0) + more,
                                    .k = q,
                                    .v = has_v ? q + kv : q,
                                    .q_step = r * q_head,
                                    .kv_step = a->head,
                                    .q_head = a->gate_in_q ? q_head : 0};
}

/* A norm of n_head heads of q or k. */
static void describe_head_norm(struct ctw_config *c, int64_t i, int place,
                               const struct ctw_qk_norms *norms, const char *module, int64_t n_head,
                               int64_t head)
{
    char name[MAX_NAME];
    if (norms->heads != CTW_HEADS_OWN) {
        ctw_describe_norm(c, i, place, &norms->form, module,
                          norms->heads == CTW_HEADS_WIDE ? n_head * head : head);
        return;
    }
    ctw_describe_nameless_norm(c, i, place, &norms->form);
    for (int64_t h = 0; norms->apart && h < n_head; h++) {
        snprintf(name, sizeof(name), "%s.%" PRId64 ".weight", module, h);
        ctw_describe_vector(c, i, ctw_norm_weight(place), name, head);
    }
    if (norms->apart)
        return;
    snprintf(name, sizeof(name), "%s.weight", module);
    ctw_describe_want(c,
                      (struct ctw_want){.kind = CTW_WANT_VECTOR,
                                        .layer = (int)i + 1,
                                        .role = ctw_norm_weight(place),
                                        .n = n_head,
                                        .k = head},
                      name);
}

static void describe_qk_norms(struct ctw_config *c, int64_t i, const struct ctw_attention_rules *a)
{
    const struct ctw_qk_norms *norms = a->norms;
    describe_head_norm(c, i, CTW_AT_Q, norms, ctw_name_or(norms->q, "self_attn.q_norm"), a->n_head,
                       a->head);
    if (a->uses == 0)
        describe_head_norm(c, i, CTW_AT_K, norms, ctw_name_or(norms->k, "self_attn.k_norm"),
                           a->n_kv, a->head);
}

/* Kept keys and values must be what layer i would have had itself. */
static void check_used(struct ctw_config *c, int64_t i, const struct ctw_attention_rules *a)
{
    for (int64_t j = 0; j < i && c->status == CTW_OK; j++) {
        const struct ctw_branch *b = &c->model->layers[j + 1].branch[CTW_MIXER];
        const struct ctw_attention *l = &b->attention;
        if (b->kind == CTW_KIND_attention && l->keeps_kv == a->uses - 1 &&
            (l->n_kv != a->n_kv || l->head != a->head))
            c->status =
                ctw_json_fail(c->text, &c->err, CTW_EFORMAT,
                              "layer %" PRId64 " has %" PRId64 " key-value heads of %" PRId64
                              " elements, but uses those of layer %" PRId64 ", which has %d of %d",
                              i, a->n_kv, a->head, j, l->n_kv, l->head);
    }
}

/* A factor for each head of attention's output, or for each value. */
static void describe_heads_gate(struct ctw_config *c, int64_t i,
                                const struct ctw_attention_rules *a)
{
    int64_t n = a->n_head * (a->gate_values ? head_v_of(a) : 1);
    ctw_describe_linear(c, i, CTW_MIXER,
                        &(struct ctw_linear_rules){CTW_P_HEADS_GATE, CTW_M_HEADS_GATE, 0,
                                                   ctw_name_or(a->g, "self_attn.g_proj"), n,
                                                   c->model->hidden});
}

/* With the model's heads where the rules give none, and the files' order of rows. */
static struct ctw_attention_rules with_heads(const struct ctw_config *c,
                                             const struct ctw_attention_rules *rules)
{
    struct ctw_attention_rules full = *rules;
    full.n_head = rules->n_head != 0 ? rules->n_head : c->n_head;
    full.n_kv = rules->n_kv != 0 ? rules->n_kv : c->n_kv;
    if (full.order == CTW_QKV_BY_HEAD && c->in_turn)
        full.order = CTW_QKV_IN_ORDER;
    return full;
}

void ctw_describe_attention(struct ctw_config *c, int64_t i,
                            const struct ctw_attention_rules *rules)
{
    const struct ctw_attention_rules full = with_heads(c, rules), *a = &full;
    struct ctw_attention *l = &ctw_describe_kind(c, i, CTW_MIXER, CTW_KIND_attention)->attention;
    if (c->status != CTW_OK)
        return;
    assert(head_v_of(a) == a->head ||
           (a->order != CTW_QKV_BY_HEAD && a->order != CTW_QKV_IN_BLOCKS && a->v_norm == NULL &&
            a->uses == 0 && a->keeps == 0 && !a->values_are_keys));
    assert(!a->gate_in_q || (a->order == CTW_QKV_SPLIT && head_v_of(a) == a->head));
    l->n_head = (int)a->n_head;
    l->n_kv = (int)a->n_kv;
    l->head = (int)a->head;
    l->head_v = (int)head_v_of(a);
    l->window = a->window;
    l->chunk = a->chunk;
    l->v_factor = (float)a->v_factor;
    l->rope = a->rope;
    l->scale = (float)(a->scale != 0 ? a->scale : 1 / sqrt((double)a->head));
    l->softcap = (float)a->softcap;
    l->limit = (float)a->limit;
    l->limits_normed = a->limit_normed;
    l->columns = columns_of(a);
    l->q_factors = a->q_factors;
    l->gate = a->gate;
    l->gate_in_q = a->gate_in_q;
    l->uses_kv = a->uses - 1;
    l->keeps_kv = a->keeps - 1;
    if (a->keeps > c->model->n_kept)
        c->model->n_kept = a->keeps;
    if (a->uses != 0)
        check_used(c, i, a);
    l->choice = a->choice;
    l->pools = a->pools;
    describe_qkv(c, i, a);
    if (a->choice.block > 0)
        describe_blocks(c, i, a);
    if (a->pools.chosen > 0)
        describe_pools(c, i, a);
    if (a->relative != NULL)
        describe_relative(c, i, a, &l->relative);
    l->conv_taps = a->conv_taps;
    if (a->conv_taps > 0)
        describe_convs(c, i, a);
    ctw_describe_linear(c, i, CTW_MIXER,
                        &(struct ctw_linear_rules){CTW_P_O, CTW_M_O, a->o_bias ? CTW_V_O_BIAS : 0,
                                                   ctw_name_or(a->o, "self_attn.o_proj"),
                                                   c->model->hidden, a->n_head * head_v_of(a)});
    if (a->adapters[0] != NULL) {
        assert(a->order == CTW_QKV_SPLIT && !a->gate_in_q && a->uses == 0 && !a->values_are_keys);
        l->adapter_rank = a->adapter_rank;
        describe_adapters(c, i, a);
    }
    if (a->sinks != NULL)
        ctw_describe_vector(c, i, CTW_V_SINKS, a->sinks, a->n_head);
    if (a->gate != CTW_GATE_NONE && !a->gate_in_q)
        describe_heads_gate(c, i, a);
    if (a->v_norm != NULL && a->uses == 0)
        ctw_describe_nameless_norm(c, i, CTW_AT_V, a->v_norm);
    if (a->norms == NULL)
        return;
    assert(a->order != CTW_QKV_BY_HEAD || a->norms->heads == CTW_HEADS_ALIKE);
    l->head_norms = a->norms->heads;
    l->norms_after_rope = a->norms->after_rope;
    describe_qk_norms(c, i, a);
}

_Static_assert((int)CTW_V_V_CONV < CTW_BRANCH_VECTORS && (int)CTW_AT_BLOCK_K < CTW_BRANCH_NORMS &&
                   (int)CTW_M_RELATIVE < (int)CTW_M_MIX_DOWN,
               "attention's roles");

/* ---- facts -------------------------------------------------------------------------------- */

static struct ctw_facts facts(const struct ctw_branch *b)
{
    const struct ctw_attention *a = &b->attention;
    return (struct ctw_facts){
        .n_head = a->n_head, .n_kv = a->n_kv, .head = a->head, .window = a->window};
}

static struct ctw_head_inputs *inputs(struct ctw_branch *b)
{
    return &b->attention.inputs;
}

static struct ctw_heads_shape heads(const struct ctw_branch *b, enum ctw_heads which)
{
    const struct ctw_attention *a = &b->attention;
    if (which == CTW_HEADS_Q)
        return (struct ctw_heads_shape){.n = a->n_head, .width = a->head};
    return (struct ctw_heads_shape){.n = a->uses_kv < 0 ? a->n_kv : 0,
                                    .width = which == CTW_HEADS_V ? a->head_v : a->head};
}

static bool quantises_heads(const struct ctw_branch *b)
{
    return b->attention.v_factor == 0 || b->attention.v_factor == 1;
}

/* Where values are keys, the norms of queries and keys must be part of the split
 * (mixers/attention.c). */
static enum ctw_status check(const struct ctw_layer *l, int branch, struct ctw_err *err)
{
    const struct ctw_qkv_columns *c = &l->branch[branch].attention.columns;
    const struct ctw_tensor *q = l->vector[ctw_norm_weight(ctw_norm_at(branch, CTW_AT_Q))];
    const struct ctw_tensor *k = l->vector[ctw_norm_weight(ctw_norm_at(branch, CTW_AT_K))];
    if (c->k == c->v && q != NULL && k != NULL && q->dtype != k->dtype)
        return ctw_fail(err, CTW_EUNSUP,
                        "%s is %s and %s is %s: where values are keys, different dtypes are "
                        "not supported",
                        q->name, ctw_dtype_name(q->dtype), k->name, ctw_dtype_name(k->dtype));
    return CTW_OK;
}

const struct ctw_kind_row ctw_kind_attention = {
    .name = "attention",
    .facts = facts,
    .in_attention = 1u << CTW_M_Q | 1u << CTW_M_K | 1u << CTW_M_V | 1u << CTW_M_O | 1u << CTW_M_QKV,
    .module = 1u << CTW_M_Q | 1u << CTW_M_QKV,
    .inputs = inputs,
    .heads = heads,
    .quantises_heads = quantises_heads,
    .rotates_heads = true,
    .check = check};
