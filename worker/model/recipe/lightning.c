/* Lightning attention: its builder, and its facts. */
#include <math.h>

#include "base/mem.h"
#include "kernels/math.h"
#include "worker/model/families/family.h"
#include "worker/model/recipe/kinds.h"
#include "worker/model/recipe/lightning.h"

/* Layer i's part of the model's rates, which all layers with lightning attention share; NULL: no
 * memory. */
static float *rates_of(struct ctw_config *c, int64_t i, int64_t n_head)
{
    struct ctw_model *m = c->model;
    if (m->rates == NULL) {
        m->n_rates = m->n_decoders * n_head;
        m->rates = ctw_calloc((size_t)m->n_rates, sizeof(*m->rates));
    }
    if (m->rates == NULL)
        c->status = ctw_fail(&c->err, CTW_ENOMEM, "out of memory for a model");
    return m->rates == NULL ? NULL : m->rates + i * n_head;
}

static void linear(struct ctw_config *c, int64_t i, int product, int matrix, int bias,
                   const char *module, int64_t n, int64_t k)
{
    ctw_describe_linear(c, i, CTW_MIXER,
                        &(struct ctw_linear_rules){product, matrix, bias, module, n, k});
}

static void norm(struct ctw_config *c, int64_t i, int place, const struct ctw_norm_form *form,
                 const char *module, int64_t n)
{
    ctw_describe_norm(c, i, ctw_norm_at(CTW_MIXER, place), form, module, n);
}

void ctw_describe_lightning(struct ctw_config *c, int64_t i, const struct ctw_lightning_rules *r)
{
    const int64_t inner = ctw_lightning_inner(&r->is), hidden = c->model->hidden;
    const struct ctw_lightning_names *names = r->names;
    if (c->status != CTW_OK)
        return;
    struct ctw_lightning *x = &ctw_describe_kind(c, i, CTW_MIXER, CTW_KIND_lightning)->lightning;
    *x = r->is;
    x->rate0 = i * x->n_head;
    x->scale = x->scale != 0 ? x->scale : 1;
    x->norm_groups = x->norm_groups != 0 ? x->norm_groups : 1;
    float *rate = rates_of(c, i, x->n_head);
    for (int64_t h = 0; rate != NULL && h < x->n_head; h++)
        rate[h] = (float)(-r->rate / x->scale *
                          ctw_exp(-8 * (double)(h + 1) / (double)x->n_head * M_LN2));
    linear(c, i, CTW_P_LIGHTNING_QKV, CTW_M_LIGHTNING_QKV,
           r->qkv_bias ? CTW_V_LIGHTNING_QKV_BIAS : 0, names->qkv, 3 * inner, hidden);
    if (r->qk_norm != NULL) {
        norm(c, i, CTW_AT_LIGHTNING_Q, r->qk_norm, names->q_norm, x->head);
        norm(c, i, CTW_AT_LIGHTNING_K, r->qk_norm, names->k_norm, x->head);
    }
    linear(c, i, CTW_P_LIGHTNING_GATE, CTW_M_LIGHTNING_GATE, 0, names->gate, inner, hidden);
    norm(c, i, CTW_AT_LIGHTNING, r->norm, names->norm, inner);
    linear(c, i, CTW_P_LIGHTNING_OUT, CTW_M_LIGHTNING_OUT,
           r->out_bias ? CTW_V_LIGHTNING_OUT_BIAS : 0, names->out, hidden, inner);
}

static struct ctw_facts facts(const struct ctw_branch *b)
{
    const struct ctw_lightning *x = &b->lightning;
    return (struct ctw_facts){.n_head = x->n_head, .n_kv = x->n_head, .head = x->head};
}

/* One operation takes both norms' weights. */
static enum ctw_status check(const struct ctw_layer *l, int branch, struct ctw_err *err)
{
    const int q_at = ctw_vector_at(branch, CTW_V_WEIGHT + CTW_AT_LIGHTNING_Q);
    const int k_at = ctw_vector_at(branch, CTW_V_WEIGHT + CTW_AT_LIGHTNING_K);
    const struct ctw_tensor *q = l->vector[q_at], *k = l->vector[k_at];
    if (q != NULL && k != NULL && q->dtype != k->dtype)
        return ctw_fail(err, CTW_EUNSUP, "%s and %s have different dtypes: store both in one",
                        q->name, k->name);
    return CTW_OK;
}

const struct ctw_kind_row ctw_kind_lightning = {
    .name = "lightning attention", .facts = facts, .check = check};
