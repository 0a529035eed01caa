/* Builders of a model's description, for a family's function. */
#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "kernels/math.h"
#include "worker/model/families/family.h"

enum { MAX_NAME = 512 };

static const char *or_default(const char *name, const char *absent)
{
    return name != NULL ? name : absent;
}

/* ---- tensors ---- */

void ctw_describe_want(struct ctw_config *c, struct ctw_want w, const char *name)
{
    char full[2 * MAX_NAME];
    if (c->status != CTW_OK)
        return;
    if (c->n_wants == c->wants_cap) {
        int64_t cap = c->wants_cap == 0 ? 256 : 2 * c->wants_cap;
        struct ctw_want *more = ctw_realloc(c->wants, (size_t)cap, sizeof(*more));
        if (more == NULL)
            goto full;
        c->wants = more;
        c->wants_cap = cap;
    }
    if (w.layer >= 1 && w.layer <= c->model->n_decoders)
        snprintf(full, sizeof(full), "%s.%d.%s", c->layers, w.layer - 1, name);
    else
        snprintf(full, sizeof(full), "%s", name);
    w.name = ctw_strdup(full);
    if (w.name == NULL)
        goto full;
    c->wants[c->n_wants++] = w;
    return;
full:
    c->status = ctw_fail(&c->err, CTW_ENOMEM, "out of memory for the list of tensors");
}

/* A Linear module of decoder layer i. */
static void want_matrix(struct ctw_config *c, int64_t i, enum ctw_matrix_role role,
                        const char *module, int64_t n, int64_t k)
{
    bool decoder = i >= 0 && i < c->model->n_decoders;
    ctw_describe_want(c,
                      (struct ctw_want){.kind = CTW_WANT_MATRIX,
                                        .layer = (int)i + 1,
                                        .role = role,
                                        .class_name = decoder && c->conv1d ? "Conv1D" : "Linear",
                                        .transposed = decoder && c->conv1d,
                                        .n = n,
                                        .k = k},
                      module);
}

/* The bias of a module, as a vector. */
static void want_bias(struct ctw_config *c, int64_t i, int role, const char *module, int64_t n)
{
    char name[MAX_NAME];
    snprintf(name, sizeof(name), "%s.bias", module);
    ctw_describe_vector(c, i, role, name, n);
}

/* Rows of such a module as the product's next shard. */
static void add_shard(struct ctw_config *c, int64_t i, enum ctw_slot slot, struct ctw_rows rows)
{
    if (c->status != CTW_OK)
        return;
    struct ctw_product *product = &c->model->layers[i + 1].product[slot];
    assert(product->n_shards < CTW_MAX_SHARDS);
    product->shard[product->n_shards++] = rows;
}

void ctw_describe_linear(struct ctw_config *c, int64_t i, enum ctw_slot slot,
                         enum ctw_matrix_role role, int bias, const char *module, int64_t n,
                         int64_t k)
{
    add_shard(c, i, slot, (struct ctw_rows){role, 0, n, bias, 1});
    want_matrix(c, i, role, module, n, k);
    if (bias >= 0)
        want_bias(c, i, bias, module, n);
}

void ctw_describe_vector(struct ctw_config *c, int64_t i, int role, const char *name, int64_t n)
{
    ctw_describe_want(
        c, (struct ctw_want){.kind = CTW_WANT_VECTOR, .layer = (int)i + 1, .role = role, .n = n},
        name);
}

void ctw_describe_table(struct ctw_config *c, enum ctw_matrix_role role, const char *module,
                        int64_t n, int64_t k)
{
    ctw_describe_want(
        c,
        (struct ctw_want){
            .kind = CTW_WANT_MATRIX, .role = role, .class_name = "Embedding", .n = n, .k = k},
        module);
}

void ctw_describe_unused(struct ctw_config *c, int64_t i, const char *module)
{
    ctw_describe_want(c, (struct ctw_want){.kind = CTW_WANT_UNUSED, .layer = (int)i + 1}, module);
}

void ctw_describe_drafts(struct ctw_config *c, int64_t n)
{
    c->first_draft = c->status == CTW_OK ? c->model->n_decoders : 0;
    c->n_drafts = n;
}

void ctw_describe_buffers(struct ctw_config *c, const char *const *endings)
{
    c->buffers = endings;
}

/* ---- the model ---- */

struct ctw_norm_form ctw_key_rms_norm(struct ctw_config *c, const char *eps_key, double absent)
{
    double eps = ctw_key_number(c, eps_key, absent, CTW_NULL_REFUSED, 0, 1);
    return (struct ctw_norm_form){.kind = CTW_NORM_RMS, .eps = eps};
}

struct ctw_norm_form ctw_key_layer_norm(struct ctw_config *c, const char *eps_key, double absent)
{
    double eps = ctw_key_number(c, eps_key, absent, CTW_NULL_REFUSED, 0, 1);
    return (struct ctw_norm_form){.kind = CTW_NORM_LAYER, .eps = eps, .bias = true};
}

/* Layers without anything that a recipe may have. */
static void open_layers(struct ctw_config *c, int64_t n_decoders)
{
    struct ctw_model *m = c->model;
    m->layers = ctw_calloc((size_t)n_decoders + 2, sizeof(*m->layers));
    if (m->layers == NULL) {
        c->status =
            ctw_fail(&c->err, CTW_ENOMEM, "out of memory for %" PRId64 " layers", n_decoders);
        return;
    }
    m->n_decoders = (int)n_decoders;
    m->n_layers = m->n_decoders + 2;
    for (int i = 0; i < m->n_layers; i++) {
        struct ctw_layer *l = &m->layers[i];
        l->mixer_factor = l->mlp_factor = l->scalar = 1;
        l->rope = l->keeps_kv = l->uses_kv = -1;
    }
}

void ctw_describe_model(struct ctw_config *c, const struct ctw_sizes *s,
                        const struct ctw_model_rules *rules)
{
    struct ctw_model *m = c->model;
    const char *head = or_default(rules->head, "lm_head");
    const char *norm = or_default(rules->final_norm, "model.norm");
    m->tied = ctw_key_tied(c, rules->tied);
    m->hidden = s->hidden;
    m->embed_dim = rules->embed_dim != 0 ? rules->embed_dim : s->hidden;
    m->vocab = s->vocab;
    m->max_length = m->own_length = s->max_length;
    m->embed_scale = rules->embed_scale != 0 ? (float)rules->embed_scale : 1.0f;
    m->head_scale = rules->head_scale != 0 ? (float)rules->head_scale : 1.0f;
    m->head_softcap = (float)rules->head_softcap;
    m->unit_head = rules->unit_head;
    c->layers = or_default(rules->layers, "model.layers");
    c->conv1d = rules->conv1d;
    if (c->status == CTW_OK)
        open_layers(c, s->n_layers);
    ctw_describe_table(c, CTW_M_EMBED, or_default(rules->embed, "model.embed_tokens"), s->vocab,
                       m->embed_dim);
    if (norm[0] != '\0')
        ctw_describe_norm(c, s->n_layers, CTW_AT_HEAD, &rules->norm, norm, 0);
    ctw_describe_want(c,
                      (struct ctw_want){.kind = m->tied ? CTW_WANT_TIED : CTW_WANT_MATRIX,
                                        .layer = (int)s->n_layers + 1,
                                        .role = CTW_M_HEAD,
                                        .class_name = "Linear",
                                        .n = s->vocab,
                                        .k = m->embed_dim},
                      head);
    if (rules->head_bias)
        want_bias(c, s->n_layers, CTW_V_HEAD_BIAS, head, s->vocab);
}

void ctw_describe_positions(struct ctw_config *c, const char *module, int64_t first)
{
    struct ctw_model *m = c->model;
    m->position0 = first;
    m->length_limit = m->max_length;
    m->limited_by = "table of learned positions";
    ctw_describe_table(c, CTW_M_POSITIONS, module, m->max_length + first, m->hidden);
}

void ctw_describe_alibi(struct ctw_config *c, int64_t n_head, double max_bias, double factor)
{
    int64_t n = 1; /* heads rounded up to a power of two */
    if (c->status != CTW_OK)
        return;
    float *slopes = ctw_calloc((size_t)n_head, sizeof(*slopes));
    if (slopes == NULL) {
        c->status = ctw_fail(&c->err, CTW_ENOMEM, "out of memory for a model");
        return;
    }
    while (n < n_head)
        n *= 2;
    for (int64_t i = 0; i < n_head; i++) {
        /* Without a power of two: the slopes of n / 2 heads, then every other one of n heads. */
        int64_t step = n == n_head ? i + 1 : i < n / 2 ? 2 * (i + 1) : 2 * (i - n / 2) + 1;
        slopes[i] = (float)(ctw_exp(-(double)step * max_bias / (double)n * M_LN2) * factor);
    }
    c->model->alibi = slopes;
    c->model->own_length = 0;
}

/* ---- layers ---- */

struct ctw_layer *ctw_describe_layer(struct ctw_config *c, int64_t i)
{
    return c->status == CTW_OK ? &c->model->layers[i + 1] : &c->nothing;
}

/* Without names: for heads. */
static void set_norm(struct ctw_config *c, int64_t i, enum ctw_norm_place place,
                     const struct ctw_norm_form *form)
{
    if (c->status == CTW_OK)
        c->model->layers[i + 1].norm[place] = (struct ctw_norm_rule){.present = true,
                                                                     .kind = form->kind,
                                                                     .eps = (float)form->eps,
                                                                     .offset = (float)form->offset};
}

void ctw_describe_norm(struct ctw_config *c, int64_t i, enum ctw_norm_place place,
                       const struct ctw_norm_form *form, const char *module, int64_t n)
{
    char name[MAX_NAME];
    n = n != 0 ? n : c->model->hidden;
    set_norm(c, i, place, form);
    if (form->weightless)
        return;
    snprintf(name, sizeof(name), "%s.weight", module);
    ctw_describe_vector(c, i, CTW_V_WEIGHT + (int)place, name, n);
    if (form->bias)
        want_bias(c, i, CTW_V_BIAS + (int)place, module, n);
}

void ctw_describe_norms(struct ctw_config *c, int64_t i, const struct ctw_norm_form *form)
{
    ctw_describe_norm(c, i, CTW_AT_MIXER, form, "input_layernorm", 0);
    ctw_describe_norm(c, i, CTW_AT_MLP, form, "post_attention_layernorm", 0);
}

/* The blocks' queries, then their keys, then their values. */
static void add_blocks(struct ctw_config *c, int64_t i, const struct ctw_attention *a, int bias)
{
    int64_t n = a->n_head * a->head / a->blocks;
    for (int part = 0; part < 3; part++)
        for (int b = 0; b < a->blocks; b++)
            add_shard(c, i, CTW_SLOT_QKV,
                      (struct ctw_rows){CTW_M_QKV, (3 * b + (3 - part) % 3) * n, n, bias, 1});
}

static int64_t head_v_of(const struct ctw_attention *a)
{
    return a->head_v != 0 ? a->head_v : a->head;
}

static void describe_qkv(struct ctw_config *c, int64_t i, const struct ctw_attention *a)
{
    int64_t hidden = c->model->hidden, q = a->n_head * a->head, kv = a->n_kv * a->head;
    int64_t values = a->n_kv * head_v_of(a);
    const char *qkv = or_default(a->qkv, "self_attn.qkv_proj");
    if (a->order == CTW_QKV_SPLIT) {
        ctw_describe_linear(c, i, CTW_SLOT_QKV, CTW_M_Q, a->qkv_bias ? CTW_V_Q_BIAS : -1,
                            or_default(a->q, "self_attn.q_proj"), q, hidden);
        if (a->uses != 0)
            return;
        ctw_describe_linear(c, i, CTW_SLOT_QKV, CTW_M_K, a->qkv_bias ? CTW_V_K_BIAS : -1,
                            or_default(a->k, "self_attn.k_proj"), kv, hidden);
        if (!a->values_are_keys)
            ctw_describe_linear(c, i, CTW_SLOT_QKV, CTW_M_V, a->qkv_bias ? CTW_V_V_BIAS : -1,
                                or_default(a->v, "self_attn.v_proj"), values, hidden);
        return;
    }
    int bias = a->qkv_bias ? CTW_V_QKV_BIAS : -1;
    want_matrix(c, i, CTW_M_QKV, qkv, q + 2 * kv, hidden);
    if (bias >= 0)
        want_bias(c, i, bias, qkv, q + 2 * kv);
    if (a->order == CTW_QKV_IN_BLOCKS)
        add_blocks(c, i, a, bias);
    if (a->order == CTW_QKV_BY_HEAD)
        add_shard(c, i, CTW_SLOT_QKV, (struct ctw_rows){CTW_M_QKV, 0, q + 2 * kv, bias, 1});
    if (a->order != CTW_QKV_IN_ORDER)
        return;
    add_shard(c, i, CTW_SLOT_QKV, (struct ctw_rows){CTW_M_QKV, 0, q, bias, 1});
    add_shard(c, i, CTW_SLOT_QKV, (struct ctw_rows){CTW_M_QKV, q, kv, bias, 1});
    add_shard(c, i, CTW_SLOT_QKV, (struct ctw_rows){CTW_M_QKV, q + kv, kv, bias, 1});
}

/* Where the product's columns have the heads. */
static struct ctw_qkv_columns columns_of(const struct ctw_attention *a)
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
    return (struct ctw_qkv_columns){.ld = q + (has_k ? kv : 0) + (has_v ? values : 0),
                                    .k = q,
                                    .v = has_v ? q + kv : q,
                                    .q_step = r * a->head,
                                    .kv_step = a->head};
}

/* A norm of n_head heads of q or k. */
static void describe_head_norm(struct ctw_config *c, int64_t i, enum ctw_norm_place place,
                               const struct ctw_qk_norms *norms, const char *module, int64_t n_head,
                               int64_t head)
{
    char name[MAX_NAME];
    if (norms->heads != CTW_HEADS_OWN) {
        ctw_describe_norm(c, i, place, &norms->form, module,
                          norms->heads == CTW_HEADS_WIDE ? n_head * head : head);
        return;
    }
    set_norm(c, i, place, &norms->form);
    for (int64_t h = 0; norms->apart && h < n_head; h++) {
        snprintf(name, sizeof(name), "%s.%" PRId64 ".weight", module, h);
        ctw_describe_vector(c, i, CTW_V_WEIGHT + (int)place, name, head);
    }
    if (norms->apart)
        return;
    snprintf(name, sizeof(name), "%s.weight", module);
    ctw_describe_want(c,
                      (struct ctw_want){.kind = CTW_WANT_VECTOR,
                                        .layer = (int)i + 1,
                                        .role = CTW_V_WEIGHT + (int)place,
                                        .n = n_head,
                                        .k = head},
                      name);
}

static void describe_qk_norms(struct ctw_config *c, int64_t i, const struct ctw_attention *a)
{
    const struct ctw_qk_norms *norms = a->norms;
    describe_head_norm(c, i, CTW_AT_Q, norms, or_default(norms->q, "self_attn.q_norm"), a->n_head,
                       a->head);
    if (a->uses == 0)
        describe_head_norm(c, i, CTW_AT_K, norms, or_default(norms->k, "self_attn.k_norm"), a->n_kv,
                           a->head);
}

/* Kept keys and values must be what layer i would have had itself. */
static void check_used(struct ctw_config *c, int64_t i, const struct ctw_attention *a)
{
    for (int64_t j = 0; j < i && c->status == CTW_OK; j++) {
        const struct ctw_layer *l = &c->model->layers[j + 1];
        if (l->keeps_kv == a->uses - 1 && (l->n_kv != a->n_kv || l->head != a->head))
            c->status =
                ctw_json_fail(c->text, &c->err, CTW_EFORMAT,
                              "layer %" PRId64 " has %" PRId64 " key-value heads of %" PRId64
                              " elements, but uses those of layer %" PRId64 ", which has %d of %d",
                              i, a->n_kv, a->head, j, l->n_kv, l->head);
    }
}

/* A factor for each head of attention's output, or for each value. */
static void describe_heads_gate(struct ctw_config *c, int64_t i, const struct ctw_attention *a)
{
    int64_t n = a->n_head * (a->gate_values ? head_v_of(a) : 1);
    ctw_describe_layer(c, i)->gate = a->gate;
    ctw_describe_linear(c, i, CTW_SLOT_HEADS_GATE, CTW_M_HEADS_GATE, -1,
                        or_default(a->g, "self_attn.g_proj"), n, c->model->hidden);
}

void ctw_describe_attention(struct ctw_config *c, int64_t i, const struct ctw_attention *a)
{
    struct ctw_layer *l = ctw_describe_layer(c, i);
    if (c->status != CTW_OK)
        return;
    assert(head_v_of(a) == a->head || (a->order == CTW_QKV_SPLIT && a->v_norm == NULL &&
                                       a->uses == 0 && a->keeps == 0 && !a->values_are_keys));
    l->n_head = (int)a->n_head;
    l->n_kv = (int)a->n_kv;
    l->head = (int)a->head;
    l->head_v = (int)head_v_of(a);
    l->window = a->window;
    l->attn_chunk = a->chunk;
    l->v_factor = (float)a->v_factor;
    l->rope = a->rope;
    l->attn_scale = (float)(a->scale != 0 ? a->scale : 1 / sqrt((double)a->head));
    l->attn_softcap = (float)a->softcap;
    l->qkv_limit = (float)a->limit;
    l->limits_normed = a->limit_normed;
    l->columns = columns_of(a);
    l->uses_kv = a->uses - 1;
    l->keeps_kv = a->keeps - 1;
    if (a->keeps > c->model->n_kept)
        c->model->n_kept = a->keeps;
    if (a->uses != 0)
        check_used(c, i, a);
    describe_qkv(c, i, a);
    ctw_describe_linear(c, i, CTW_SLOT_O, CTW_M_O, a->o_bias ? CTW_V_O_BIAS : -1,
                        or_default(a->o, "self_attn.o_proj"), c->model->hidden,
                        a->n_head * head_v_of(a));
    if (a->sinks != NULL)
        ctw_describe_vector(c, i, CTW_V_SINKS, a->sinks, a->n_head);
    if (a->gate != CTW_GATE_NONE)
        describe_heads_gate(c, i, a);
    if (a->v_norm != NULL && a->uses == 0)
        set_norm(c, i, CTW_AT_V, a->v_norm);
    if (a->norms == NULL)
        return;
    l->head_norms = a->norms->heads;
    l->norms_after_rope = a->norms->after_rope;
    describe_qk_norms(c, i, a);
}

void ctw_describe_mlp(struct ctw_config *c, int64_t i, const struct ctw_mlp *mlp)
{
    struct ctw_layer *l = ctw_describe_layer(c, i);
    int64_t hidden = c->model->hidden, inner = mlp->inner;
    bool bias = mlp->bias;
    l->inner = inner;
    l->act = mlp->act;
    l->gated = !mlp->plain;
    l->glu = mlp->glu;
    if (mlp->fused) {
        want_matrix(c, i, CTW_M_GATE_UP, or_default(mlp->gate_up, "mlp.gate_up_proj"), 2 * inner,
                    hidden);
        int64_t gate = mlp->up_first ? inner : 0, up = inner - gate;
        add_shard(c, i, CTW_SLOT_GATE_UP, (struct ctw_rows){CTW_M_GATE_UP, gate, inner, -1, 1});
        add_shard(c, i, CTW_SLOT_GATE_UP, (struct ctw_rows){CTW_M_GATE_UP, up, inner, -1, 1});
    } else {
        if (!mlp->plain)
            ctw_describe_linear(c, i, CTW_SLOT_GATE_UP, CTW_M_GATE, bias ? CTW_V_GATE_BIAS : -1,
                                or_default(mlp->gate, "mlp.gate_proj"), inner, hidden);
        ctw_describe_linear(c, i, CTW_SLOT_GATE_UP, CTW_M_UP, bias ? CTW_V_UP_BIAS : -1,
                            or_default(mlp->up, "mlp.up_proj"), inner, hidden);
    }
    ctw_describe_linear(c, i, CTW_SLOT_DOWN, CTW_M_DOWN, bias ? CTW_V_DOWN_BIAS : -1,
                        or_default(mlp->down, "mlp.down_proj"), hidden, inner);
}
