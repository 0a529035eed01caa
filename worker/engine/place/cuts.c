#include "worker/engine/place/cuts.h"

#include "base/mem.h"
#include "worker/engine/pass/plan.h"

/* Does ctw_prepare() decode all of a product's weights? Dense weights stay where they are, and only
 * shards that are one product are prepared. */
static bool is_decoded(const struct ctw_model *m, const struct ctw_layer *l,
                       const struct ctw_product *p)
{
    struct ctw_shard shards[CTW_MAX_SHARDS];
    const struct ctw_op_linear op = {.shards = shards,
                                     .n_shards = ctw_plan_shards(m, p, l->matrix, shards)};
    for (int i = 0; i < op.n_shards; i++)
        if (ctw_weight_is_dense(shards[i].weight))
            return false;
    return !ctw_inputs_split(&op);
}

/* After ctw_forward_prepare(), does no operation read a matrix of this decoder layer? Experts are
 * prepared one after another while the layer computes. */
static bool is_prepared(const struct ctw_model *m, const struct ctw_layer *l)
{
    bool read[CTW_N_MATRICES] = {false};
    if (l->n_experts > 0)
        return false;
    for (int i = 0; i < CTW_LAYER_SLOTS; i++) {
        const struct ctw_product *p = &l->product[i];
        if (!is_decoded(m, l, p))
            return false;
        for (int j = 0; j < p->n_shards; j++)
            read[p->shard[j].matrix] = true;
    }
    for (int i = 0; i < CTW_N_MATRICES; i++)
        if (l->matrix[i].name != NULL && !read[i])
            return false;
    return true;
}

enum ctw_status ctw_cuts_find(struct ctw_cuts *out, const struct ctw_model *m,
                              const struct ctw_backend *be, enum ctw_dtype dtype,
                              struct ctw_err *err)
{
    const struct ctw_layer *head = &m->layers[m->n_layers - 1];
    bool plain = m->head_softcap == 0 && head->vector[CTW_V_HEAD_BIAS] == NULL &&
                 head->matrix[CTW_M_HEAD].output.codes == CTW_CODES_NONE;
    /* A product of all of a chunk's embeddings needs all of them. */
    bool projected = m->layers[0].product[CTW_P_WIDTH].n_shards > 0;
    bool *prepared = ctw_calloc((size_t)m->n_layers, sizeof(*prepared));
    const enum ctw_dtype head_dtype = ctw_plan_head_dtype(m, dtype);
    *out =
        (struct ctw_cuts){.embed_rows = projected ? 0 : 1,
                          .head_rows = ctw_backend_head_rows(be, head_dtype, m->embed_dim, plain),
                          .prepared = prepared};
    if (prepared == NULL)
        return ctw_fail(err, CTW_ENOMEM, "layers: out of memory");
    for (int i = 1; ctw_backend_traits(be)->decodes_ahead && i <= m->n_decoders; i++)
        prepared[i] = is_prepared(m, &m->layers[i]);
    return CTW_OK;
}

void ctw_cuts_free(struct ctw_cuts *cuts)
{
    ctw_free((void *)cuts->prepared);
    *cuts = (struct ctw_cuts){0};
}
