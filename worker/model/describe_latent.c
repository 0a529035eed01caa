/* The builder of latent attention (family.h). */
#include <math.h>

#include "worker/model/families/family.h"

/* The indexer's modules: a product of the queries' latent, and two of what the mixer reads. */
static void describe_indexer(struct ctw_config *c, int64_t i, const struct ctw_latent_attention *a)
{
    static const struct ctw_norm_form norm = {.kind = CTW_NORM_LAYER, .eps = 1e-6, .bias = true};
    const struct ctw_indexer *x = &a->index;
    int64_t hidden = c->model->hidden;
    ctw_describe_linear(c, i, CTW_SLOT_QKV, CTW_M_INDEX_K, -1, "self_attn.indexer.wk", x->head,
                        hidden);
    ctw_describe_linear(c, i, CTW_SLOT_QKV, CTW_M_INDEX_WEIGHTS, -1,
                        "self_attn.indexer.weights_proj", x->n_head, hidden);
    ctw_describe_linear(c, i, CTW_SLOT_INDEX_Q, CTW_M_INDEX_Q, -1, "self_attn.indexer.wq_b",
                        (int64_t)x->n_head * x->head, a->q_rank);
    ctw_describe_norm(c, i, CTW_AT_INDEX_K, &norm, "self_attn.indexer.k_norm", x->head);
}

void ctw_describe_latent_attention(struct ctw_config *c, int64_t i,
                                   const struct ctw_latent_attention *a)
{
    struct ctw_layer *l = ctw_describe_layer(c, i);
    int64_t hidden = c->model->hidden, head = a->nope + a->rope, q = a->n_head * head;
    l->n_head = l->n_kv = (int)a->n_head;
    l->head = (int)head;
    l->head_v = (int)a->head_v;
    l->turning = (int)a->rope;
    l->q_rank = a->q_rank;
    l->kv_rank = a->kv_rank;
    l->rope = a->rope_index;
    l->index = a->index;
    if (a->index.shared)
        l->index = (struct ctw_indexer){.chosen = a->index.chosen, .shared = true};
    l->attn_scale = (float)(a->scale != 0 ? a->scale : 1 / sqrt((double)head));
    if (a->q_rank != 0) {
        ctw_describe_linear(c, i, CTW_SLOT_QKV, CTW_M_Q_A, a->bias ? CTW_V_Q_BIAS : -1,
                            "self_attn.q_a_proj", a->q_rank, hidden);
        ctw_describe_norm(c, i, CTW_AT_Q_A, &a->norm, "self_attn.q_a_layernorm", a->q_rank);
        ctw_describe_linear(c, i, CTW_SLOT_Q_B, CTW_M_Q_B, -1, "self_attn.q_b_proj", q, a->q_rank);
    } else {
        ctw_describe_linear(c, i, CTW_SLOT_Q_B, CTW_M_Q, -1, "self_attn.q_proj", q, hidden);
    }
    ctw_describe_linear(c, i, CTW_SLOT_QKV, CTW_M_KV_A, a->bias ? CTW_V_K_BIAS : -1,
                        "self_attn.kv_a_proj_with_mqa", a->kv_rank + a->rope, hidden);
    if (a->index.chosen > 0 && !a->index.shared)
        describe_indexer(c, i, a);
    ctw_describe_norm(c, i, CTW_AT_KV_A, &a->norm, "self_attn.kv_a_layernorm", a->kv_rank);
    ctw_describe_linear(c, i, CTW_SLOT_KV_B, CTW_M_KV_B, -1, "self_attn.kv_b_proj",
                        a->n_head * (a->nope + a->head_v), a->kv_rank);
    ctw_describe_linear(c, i, CTW_SLOT_O, CTW_M_O, a->bias ? CTW_V_O_BIAS : -1, "self_attn.o_proj",
                        hidden, a->n_head * a->head_v);
}
