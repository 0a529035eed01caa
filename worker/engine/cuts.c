#include "worker/engine/cuts.h"

#include "base/mem.h"
#include "kernels/quantise.h"

static bool same_input(const struct ctw_matrix *a, const struct ctw_matrix *b)
{
    bool none = a->input.codes == CTW_CODES_NONE;
    if (a->rotate_in != b->rotate_in)
        return false;
    return none ? b->input.codes == CTW_CODES_NONE
                : b->input.codes != CTW_CODES_NONE && ctw_quantise_equal(&a->input, &b->input);
}

/* Does ctw_prepare() decode all of a product's weights? It leaves dense weights where they are, and
 * does not prepare shards with unequal inputs or rotated outputs (kernels/inputs.c). */
static bool is_decoded(const struct ctw_layer *l, const struct ctw_product *p)
{
    for (int i = 0; i < p->n_shards; i++) {
        const struct ctw_matrix *m = &l->matrix[p->shard[i].matrix];
        if (ctw_weight_is_dense(&m->weight) || m->rotate_out != 0 ||
            !same_input(m, &l->matrix[p->shard[0].matrix]))
            return false;
    }
    return true;
}

/* After ctw_forward_prepare(), does no operation read a matrix of this decoder layer? Experts are
 * prepared one after another while the layer computes. */
static bool is_prepared(const struct ctw_layer *l)
{
    bool read[CTW_N_MATRICES] = {false};
    if (l->mixture.route.n_experts > 0)
        return false;
    for (int slot = 0; slot < CTW_SLOT_EXPERTS; slot++) {
        const struct ctw_product *p = &l->product[slot];
        if (!is_decoded(l, p))
            return false;
        for (int i = 0; i < p->n_shards; i++)
            read[p->shard[i].matrix] = true;
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
    bool plain = m->head_softcap == 0 && head->vector[CTW_V_HEAD_BIAS] == NULL;
    /* A product of all of a chunk's embeddings needs all of them. */
    bool projected = m->layers[0].product[CTW_SLOT_WIDTH].n_shards > 0;
    bool *prepared = ctw_calloc((size_t)m->n_layers, sizeof(*prepared));
    *out = (struct ctw_cuts){.embed_rows = projected ? 0 : 1,
                             .head_rows = ctw_backend_head_rows(be, dtype, m->embed_dim, plain),
                             .prepared = prepared};
    if (prepared == NULL)
        return ctw_fail(err, CTW_ENOMEM, "layers: out of memory");
    for (int i = 1; ctw_backend_traits(be)->decodes_ahead && i <= m->n_decoders; i++)
        prepared[i] = is_prepared(&m->layers[i]);
    return CTW_OK;
}

void ctw_cuts_free(struct ctw_cuts *cuts)
{
    ctw_free((void *)cuts->prepared);
    *cuts = (struct ctw_cuts){0};
}
