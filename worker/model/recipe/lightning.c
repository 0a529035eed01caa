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

static void linear(struct ctw_config *c, int64_t i, int product, int matrix, const char *module,
                   int64_t n, int64_t k)
{
    ctw_describe_linear(c, i, CTW_MIXER,
                        &(struct ctw_linear_rules){product, matrix, 0, module, n, k});
}

void ctw_describe_lightning(struct ctw_config *c, int64_t i, const struct ctw_lightning_rules *r)
{
    const int64_t inner = r->n_head * r->head;
    if (c->status != CTW_OK)
        return;
    float *rate = rates_of(c, i, r->n_head);
    for (int64_t h = 0; rate != NULL && h < r->n_head; h++)
        rate[h] = (float)(-r->rate * ctw_exp(-8 * (double)(h + 1) / (double)r->n_head * M_LN2));
    ctw_describe_kind(c, i, CTW_MIXER, CTW_KIND_lightning)->lightning = (struct ctw_lightning){
        .n_head = r->n_head, .head = r->head, .rate0 = i * r->n_head, .act = r->act};
    linear(c, i, CTW_P_LIGHTNING_QKV, CTW_M_LIGHTNING_QKV, "self_attn.qkv_proj", 3 * inner,
           c->model->hidden);
    linear(c, i, CTW_P_LIGHTNING_GATE, CTW_M_LIGHTNING_GATE, "self_attn.output_gate", inner,
           c->model->hidden);
    ctw_describe_norm(c, i, ctw_norm_at(CTW_MIXER, CTW_AT_LIGHTNING), r->norm, "self_attn.norm",
                      inner);
    linear(c, i, CTW_P_LIGHTNING_OUT, CTW_M_LIGHTNING_OUT, "self_attn.out_proj", c->model->hidden,
           inner);
}

static struct ctw_facts facts(const struct ctw_branch *b)
{
    const struct ctw_lightning *x = &b->lightning;
    return (struct ctw_facts){.n_head = x->n_head, .n_kv = x->n_head, .head = x->head};
}

const struct ctw_kind_row ctw_kind_lightning = {.name = "lightning attention", .facts = facts};
