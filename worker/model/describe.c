/* Builders of a model's description, for a family's function. */
#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "worker/model/families/family.h"

enum { MAX_NAME = 512 };

/* ---- sizes ---- */

struct ctw_sizes ctw_key_sizes(struct ctw_config *c, const struct ctw_sizes *absent)
{
    enum { NO = CTW_NULL_REFUSED };
    struct ctw_sizes s = {
        .vocab = ctw_key_int(c, "vocab_size", absent->vocab, NO, 1, 1 << 24),
        .hidden = ctw_key_int(c, "hidden_size", absent->hidden, NO, 1, 1 << 18),
        .inner = ctw_key_int(c, "intermediate_size", absent->inner, NO, 1, 1 << 20),
        .n_layers = ctw_key_int(c, "num_hidden_layers", absent->n_layers, NO, 1, CTW_MAX_DECODERS),
        .n_head = ctw_key_int(c, "num_attention_heads", absent->n_head, NO, 1, 4096),
        .n_kv = ctw_key_int(c, "num_key_value_heads", absent->n_kv, 0, 1, 4096),
        .max_length = ctw_key_int(c, "max_position_embeddings", absent->max_length, NO, 1, 1 << 30),
    };
    if (s.n_kv == 0)
        s.n_kv = s.n_head;
    if (c->status == CTW_OK && s.n_head % s.n_kv != 0)
        c->status = ctw_fail(&c->err, CTW_EFORMAT,
                             "%s: num_attention_heads %" PRId64
                             " is not a multiple of num_key_value_heads %" PRId64,
                             c->file, s.n_head, s.n_kv);
    return s;
}

int64_t ctw_key_head_dim(struct ctw_config *c, const struct ctw_sizes *s, int64_t absent,
                         int64_t null)
{
    int64_t head = ctw_key_int(c, "head_dim", absent, null, 1, 1 << 18);
    bool given = head != 0;
    if (c->status == CTW_OK && !given && s->hidden % s->n_head != 0)
        c->status =
            ctw_fail(&c->err, CTW_EFORMAT,
                     "%s: hidden_size %" PRId64 " is not a multiple of num_attention_heads %" PRId64
                     ", and there is no head_dim",
                     c->file, s->hidden, s->n_head);
    if (!given)
        head = s->hidden / s->n_head;
    if (c->status == CTW_OK && (head % 2 != 0 || head > CTW_MAX_HEAD))
        c->status =
            ctw_fail(&c->err, CTW_EUNSUP,
                     "%s: head_dim%s: found %" PRId64 ", expected an even number, 2 to %d", c->file,
                     given ? "" : " (hidden_size / num_attention_heads)", head, CTW_MAX_HEAD);
    return head;
}

/* ---- tensors ---- */

/* Adds a tensor or matrix to the list. `name` is a format for `layer`'s number among the decoders.
 */
static void want(struct ctw_config *c, struct ctw_want w, const char *name)
{
    char full[MAX_NAME];
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
        snprintf(full, sizeof(full), "model.layers.%d.%s", w.layer - 1, name);
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
    want(c,
         (struct ctw_want){.kind = CTW_WANT_MATRIX,
                           .layer = (int)i + 1,
                           .role = role,
                           .class_name = "Linear",
                           .n = n,
                           .k = k},
         module);
}

/* Rows of such a module as the product's next shard. */
static void add_shard(struct ctw_config *c, int64_t i, enum ctw_slot slot, struct ctw_rows rows)
{
    struct ctw_product *product = &c->model->layers[i + 1].product[slot];
    assert(product->n_shards < CTW_MAX_SHARDS);
    product->shard[product->n_shards++] = rows;
}

/* A Linear module that is the product's next shard; bias -1: it has none. */
static void want_linear(struct ctw_config *c, int64_t i, enum ctw_slot slot,
                        enum ctw_matrix_role role, int bias, const char *module, int64_t n,
                        int64_t k)
{
    char name[MAX_NAME];
    add_shard(c, i, slot, (struct ctw_rows){role, 0, n, bias});
    want_matrix(c, i, role, module, n, k);
    snprintf(name, sizeof(name), "%s.bias", module);
    if (bias >= 0)
        want(c,
             (struct ctw_want){.kind = CTW_WANT_VECTOR, .layer = (int)i + 1, .role = bias, .n = n},
             name);
}

static void want_vector(struct ctw_config *c, int layer, enum ctw_vector_role role,
                        const char *name, int64_t n)
{
    want(c, (struct ctw_want){.kind = CTW_WANT_VECTOR, .layer = layer, .role = role, .n = n}, name);
}

/* ---- the model ---- */

void ctw_describe_model(struct ctw_config *c, const struct ctw_sizes *s,
                        const struct ctw_model_rules *rules)
{
    struct ctw_model *m = c->model;
    m->act = ctw_key_activation(c, "hidden_act", CTW_ACT_SILU);
    m->norm_eps = (float)ctw_key_number(c, "rms_norm_eps", rules->norm_eps, CTW_NULL_REFUSED, 0, 1);
    m->tied = ctw_key_bool(c, "tie_word_embeddings", false);
    m->hidden = s->hidden;
    m->vocab = s->vocab;
    m->max_length = s->max_length;
    m->norm_offset = 0.0f;
    m->embed_scale = 1.0f;
    m->head_scale = 1.0f;
    m->head_softcap = 0.0f;
    if (c->status != CTW_OK)
        return;
    m->layers = ctw_calloc((size_t)s->n_layers + 2, sizeof(*m->layers));
    if (m->layers == NULL) {
        c->status =
            ctw_fail(&c->err, CTW_ENOMEM, "out of memory for %" PRId64 " layers", s->n_layers);
        return;
    }
    m->n_decoders = (int)s->n_layers;
    m->n_layers = m->n_decoders + 2;
    int last = m->n_layers - 1;
    m->layers[0].rope = m->layers[last].rope = -1;
    want(c,
         (struct ctw_want){.kind = CTW_WANT_MATRIX,
                           .role = CTW_M_EMBED,
                           .class_name = "Embedding",
                           .n = s->vocab,
                           .k = s->hidden},
         "model.embed_tokens");
    want_vector(c, last, CTW_V_FINAL_NORM, "model.norm.weight", s->hidden);
    want(c,
         (struct ctw_want){.kind = m->tied ? CTW_WANT_TIED : CTW_WANT_MATRIX,
                           .layer = last,
                           .role = CTW_M_HEAD,
                           .class_name = "Linear",
                           .n = s->vocab,
                           .k = s->hidden},
         "lm_head");
}

/* ---- layers ---- */

void ctw_describe_norms(struct ctw_config *c, int64_t i)
{
    want_vector(c, (int)i + 1, CTW_V_ATTN_NORM, "input_layernorm.weight", c->model->hidden);
    want_vector(c, (int)i + 1, CTW_V_MLP_NORM, "post_attention_layernorm.weight", c->model->hidden);
}

void ctw_describe_attention(struct ctw_config *c, int64_t i, const struct ctw_attention *a)
{
    if (c->status != CTW_OK)
        return;
    struct ctw_layer *l = &c->model->layers[i + 1];
    int64_t hidden = c->model->hidden, q = a->n_head * a->head, kv = a->n_kv * a->head;
    l->n_head = (int)a->n_head;
    l->n_kv = (int)a->n_kv;
    l->head = (int)a->head;
    l->window = a->window;
    l->rope = a->rope;
    l->attn_scale = (float)(1 / sqrt((double)a->head));
    if (a->fused) {
        want_matrix(c, i, CTW_M_QKV, "self_attn.qkv_proj", q + 2 * kv, hidden);
        add_shard(c, i, CTW_SLOT_QKV, (struct ctw_rows){CTW_M_QKV, 0, q, -1});
        add_shard(c, i, CTW_SLOT_QKV, (struct ctw_rows){CTW_M_QKV, q, kv, -1});
        add_shard(c, i, CTW_SLOT_QKV, (struct ctw_rows){CTW_M_QKV, q + kv, kv, -1});
    } else {
        want_linear(c, i, CTW_SLOT_QKV, CTW_M_Q, a->qkv_bias ? CTW_V_Q_BIAS : -1,
                    "self_attn.q_proj", q, hidden);
        want_linear(c, i, CTW_SLOT_QKV, CTW_M_K, a->qkv_bias ? CTW_V_K_BIAS : -1,
                    "self_attn.k_proj", kv, hidden);
        want_linear(c, i, CTW_SLOT_QKV, CTW_M_V, a->qkv_bias ? CTW_V_V_BIAS : -1,
                    "self_attn.v_proj", kv, hidden);
    }
    want_linear(c, i, CTW_SLOT_O, CTW_M_O, a->o_bias ? CTW_V_O_BIAS : -1, "self_attn.o_proj",
                hidden, q);
    if (!a->head_norms)
        return;
    want_vector(c, (int)i + 1, CTW_V_Q_NORM, "self_attn.q_norm.weight", a->head);
    want_vector(c, (int)i + 1, CTW_V_K_NORM, "self_attn.k_norm.weight", a->head);
}

void ctw_describe_gated_mlp(struct ctw_config *c, int64_t i, const struct ctw_gated_mlp *mlp)
{
    int64_t hidden = c->model->hidden, inner = mlp->inner;
    bool bias = mlp->bias;
    if (c->status != CTW_OK)
        return;
    c->model->layers[i + 1].inner = inner;
    if (mlp->fused) {
        want_matrix(c, i, CTW_M_GATE_UP, "mlp.gate_up_proj", 2 * inner, hidden);
        add_shard(c, i, CTW_SLOT_GATE_UP, (struct ctw_rows){CTW_M_GATE_UP, 0, inner, -1});
        add_shard(c, i, CTW_SLOT_GATE_UP, (struct ctw_rows){CTW_M_GATE_UP, inner, inner, -1});
    } else {
        want_linear(c, i, CTW_SLOT_GATE_UP, CTW_M_GATE, bias ? CTW_V_GATE_BIAS : -1,
                    "mlp.gate_proj", inner, hidden);
        want_linear(c, i, CTW_SLOT_GATE_UP, CTW_M_UP, bias ? CTW_V_UP_BIAS : -1, "mlp.up_proj",
                    inner, hidden);
    }
    want_linear(c, i, CTW_SLOT_DOWN, CTW_M_DOWN, bias ? CTW_V_DOWN_BIAS : -1, "mlp.down_proj",
                hidden, inner);
}
