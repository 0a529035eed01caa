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
        snprintf(full, sizeof(full), "%s.%" PRId64 ".%s", c->layers,
                 c->named_as > 0 ? c->named_as - 1 : w.layer - 1, name);
    else
        snprintf(full, sizeof(full), "%s", name);
    if (w.kind == CTW_WANT_MATRIX || w.kind == CTW_WANT_TIED)
        w.of = c->model->layers[w.layer].branch[w.role / CTW_BRANCH_MATRICES].kind;
    w.name = ctw_strdup(full);
    if (w.name == NULL)
        goto full;
    c->wants[c->n_wants++] = w;
    return;
full:
    c->status = ctw_fail(&c->err, CTW_ENOMEM, "out of memory for the list of tensors");
}

void ctw_describe_named_as(struct ctw_config *c, int64_t i)
{
    c->named_as = i + 1;
}

void ctw_describe_matrix(struct ctw_config *c, int64_t i, int matrix, const char *module, int64_t n,
                         int64_t k)
{
    bool decoder = i >= 0 && i < c->model->n_decoders;
    ctw_describe_want(c,
                      (struct ctw_want){.kind = CTW_WANT_MATRIX,
                                        .layer = (int)i + 1,
                                        .role = matrix,
                                        .class_name = decoder && c->conv1d ? "Conv1D" : "Linear",
                                        .transposed = decoder && c->conv1d,
                                        .n = n,
                                        .k = k},
                      module);
}

void ctw_describe_bias(struct ctw_config *c, int64_t i, int vector, const char *module, int64_t n)
{
    char name[MAX_NAME];
    snprintf(name, sizeof(name), "%s.bias", module);
    ctw_describe_vector(c, i, vector, name, n);
}

void ctw_describe_shard(struct ctw_config *c, int64_t i, int product, struct ctw_rows rows)
{
    if (c->status != CTW_OK)
        return;
    struct ctw_product *p = &c->model->layers[i + 1].product[product];
    assert(p->n_shards < CTW_MAX_SHARDS);
    p->shard[p->n_shards++] = rows;
}

void ctw_describe_linear(struct ctw_config *c, int64_t i, int branch,
                         const struct ctw_linear_rules *r)
{
    int matrix = ctw_matrix_at(branch, r->matrix);
    int bias = r->bias > 0 ? ctw_vector_at(branch, r->bias) : -1;
    ctw_describe_shard(c, i, ctw_product_at(branch, r->product),
                       (struct ctw_rows){matrix, 0, r->n, bias, 1});
    ctw_describe_matrix(c, i, matrix, r->module, r->n, r->k);
    if (bias >= 0)
        ctw_describe_bias(c, i, bias, r->module, r->n);
}

void ctw_describe_vector(struct ctw_config *c, int64_t i, int vector, const char *name, int64_t n)
{
    ctw_describe_want(
        c, (struct ctw_want){.kind = CTW_WANT_VECTOR, .layer = (int)i + 1, .role = vector, .n = n},
        name);
}

void ctw_describe_out_conv(struct ctw_config *c, int64_t i, int branch, const char *name, int taps)
{
    ctw_describe_branch(c, i, branch)->conv_taps = taps;
    ctw_describe_want(c,
                      (struct ctw_want){.kind = CTW_WANT_VECTOR,
                                        .layer = (int)i + 1,
                                        .role = ctw_vector_at(branch, CTW_V_OUT_CONV),
                                        .n = c->model->hidden,
                                        .k = taps},
                      name);
}

void ctw_describe_table(struct ctw_config *c, int role, const char *module, int64_t n, int64_t k)
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
        bool decodes = i > 0 && i <= m->n_decoders;
        for (int b = 0; b < CTW_MAX_BRANCHES; b++)
            m->layers[i].branch[b] = (struct ctw_branch){
                .kind = decodes ? CTW_KIND_none : CTW_KIND_ends, .factor = 1, .scalar = 1};
    }
}

void ctw_describe_model(struct ctw_config *c, const struct ctw_sizes *s,
                        const struct ctw_model_rules *rules)
{
    struct ctw_model *m = c->model;
    const char *head = ctw_name_or(rules->head, "lm_head");
    const char *norm = ctw_name_or(rules->final_norm, "model.norm");
    m->tied = ctw_key_tied(c, rules->tied);
    m->hidden = s->hidden;
    m->embed_dim = rules->embed_dim != 0 ? rules->embed_dim : s->hidden;
    m->vocab = rules->head_rows != 0 ? rules->head_rows : s->vocab;
    m->max_length = m->own_length = s->max_length;
    m->embed_scale = rules->embed_scale != 0 ? (float)rules->embed_scale : 1.0f;
    m->head_scale = rules->head_scale != 0 ? (float)rules->head_scale : 1.0f;
    m->head_softcap = (float)rules->head_softcap;
    m->unit_head = rules->unit_head;
    m->wide_head = rules->wide_head;
    c->layers = ctw_name_or(rules->layers, "model.layers");
    c->conv1d = rules->conv1d && !c->in_turn;
    c->n_head = s->n_head;
    c->n_kv = s->n_kv;
    if (c->status == CTW_OK)
        open_layers(c, s->n_layers);
    ctw_describe_table(c, CTW_M_EMBED, ctw_name_or(rules->embed, "model.embed_tokens"), s->vocab,
                       m->embed_dim);
    if (norm[0] != '\0')
        ctw_describe_norm(c, s->n_layers, CTW_AT_HEAD, &rules->norm, norm, 0);
    ctw_describe_want(c,
                      (struct ctw_want){.kind = m->tied ? CTW_WANT_TIED : CTW_WANT_MATRIX,
                                        .layer = (int)s->n_layers + 1,
                                        .role = CTW_M_HEAD,
                                        .class_name = "Linear",
                                        .n = m->vocab,
                                        .k = m->embed_dim},
                      head);
    if (rules->head_bias)
        ctw_describe_bias(c, s->n_layers, CTW_V_HEAD_BIAS, head, m->vocab);
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
    c->model->n_alibi = n_head;
    c->model->own_length = 0;
}

/* ---- layers ---- */

struct ctw_branch *ctw_describe_branch(struct ctw_config *c, int64_t i, int branch)
{
    return c->status == CTW_OK ? &c->model->layers[i + 1].branch[branch] : &c->nothing;
}

struct ctw_branch *ctw_describe_kind(struct ctw_config *c, int64_t i, int branch,
                                     enum ctw_kind kind)
{
    struct ctw_branch *b = ctw_describe_branch(c, i, branch);
    b->kind = kind;
    if (c->status == CTW_OK && c->model->layers[i + 1].n_branches <= branch)
        c->model->layers[i + 1].n_branches = branch + 1;
    return b;
}

void ctw_describe_nameless_norm(struct ctw_config *c, int64_t i, int place,
                                const struct ctw_norm_form *form)
{
    if (c->status == CTW_OK)
        c->model->layers[i + 1].norm[place] = (struct ctw_norm_rule){.present = true,
                                                                     .kind = form->kind,
                                                                     .eps = (float)form->eps,
                                                                     .offset = (float)form->offset};
}

void ctw_describe_norm(struct ctw_config *c, int64_t i, int place, const struct ctw_norm_form *form,
                       const char *module, int64_t n)
{
    char name[MAX_NAME];
    n = n != 0 ? n : c->model->hidden;
    ctw_describe_nameless_norm(c, i, place, form);
    if (form->weightless)
        return;
    snprintf(name, sizeof(name), "%s.weight", module);
    ctw_describe_vector(c, i, ctw_norm_weight(place), name, n);
    if (form->bias)
        ctw_describe_bias(c, i, ctw_norm_bias(place), module, n);
}

void ctw_describe_norms(struct ctw_config *c, int64_t i, const struct ctw_norm_form *form)
{
    ctw_describe_norm(c, i, CTW_AT_MIXER, form, "input_layernorm", 0);
    ctw_describe_norm(c, i, CTW_AT_MLP, form, "post_attention_layernorm", 0);
}
