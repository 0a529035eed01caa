#include "worker/model/names/scales.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "worker/model/names/names.h"
#include "worker/model/recipe/kinds.h"

enum { MAX_NAME = 512 };

/* A quantised matrix, or an attention module with a quantised projection or K/V cache: the first
 * `bytes` of a matrix's name. */
struct ctw_scale_owner {
    const char *name;
    size_t bytes;
    struct ctw_facts facts; /* of its layer */
    bool quantised;
};

static bool is_of_attention(const struct ctw_layer *l, int matrix)
{
    if (matrix >= CTW_N_MATRICES)
        return false;
    const struct ctw_branch *b = &l->branch[matrix / CTW_BRANCH_MATRICES];
    return (ctw_kind_of(b)->in_attention >> matrix % CTW_BRANCH_MATRICES & 1) != 0;
}

static int by_name(const void *a, const void *b)
{
    const struct ctw_scale_owner *x = a, *y = b;
    int order = memcmp(x->name, y->name, x->bytes < y->bytes ? x->bytes : y->bytes);
    return order != 0 ? order : (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static void add_owners(struct ctw_scale_owners *owners, const struct ctw_layer *l, int i,
                       bool quantises_kv)
{
    const struct ctw_matrix *x = ctw_layer_matrix_of(l, i);
    const char *parent_end = x->name != NULL ? strrchr(x->name, '.') : NULL;
    bool quantised = x->name != NULL && !ctw_weight_is_dense(&x->weight);
    const struct ctw_facts facts = ctw_layer_facts(l);
    if (x->name != NULL)
        owners->list[owners->n++] =
            (struct ctw_scale_owner){x->name, strlen(x->name), facts, quantised};
    if (parent_end != NULL && is_of_attention(l, i) && (quantised || quantises_kv))
        owners->list[owners->n++] =
            (struct ctw_scale_owner){x->name, (size_t)(parent_end - x->name), facts, true};
}

static enum ctw_status make_owners(struct ctw_scale_owners *owners, const struct ctw_model *m,
                                   bool quantises_kv, struct ctw_err *err)
{
    int64_t n = 0;
    for (int l = 0; l < m->n_layers; l++)
        n += CTW_N_MATRICES + ctw_layer_n_matrices(&m->layers[l]);
    owners->list = ctw_calloc((size_t)n, sizeof(*owners->list));
    if (owners->list == NULL)
        return ctw_fail(err, CTW_ENOMEM, "out of memory for the names of the matrices");
    for (int l = 0; l < m->n_layers; l++)
        for (int i = 0; i < ctw_layer_n_matrices(&m->layers[l]); i++)
            add_owners(owners, &m->layers[l], i, quantises_kv);
    qsort(owners->list, (size_t)owners->n, sizeof(*owners->list), by_name);
    owners->made = true;
    return CTW_OK;
}

/* "kv_scale", "prob_output_scale", "_amax", ..., but not scales of weights, nor factors of columns.
 */
static bool is_scale(const char *component)
{
    static const char *const ends[] = {"scale", "scale_inv", "scaling_factor", "zero_point",
                                       "amax"};
    size_t n = strlen(component);
    bool scale = false;
    for (size_t i = 0; i < CTW_COUNT(ends); i++) {
        size_t m = strlen(ends[i]);
        scale |= n >= m && strcmp(component + n - m, ends[i]) == 0;
    }
    return scale && strncmp(component, "weight", 6) != 0 && strstr(component, "pre_quant") == NULL;
}

/* The owner of this name; NULL: none. */
static const struct ctw_scale_owner *find_owner(const struct ctw_scale_owners *owners,
                                                const char *module)
{
    const struct ctw_scale_owner wanted = {.name = module, .bytes = strlen(module)};
    return bsearch(&wanted, owners->list, (size_t)owners->n, sizeof(wanted), by_name);
}

enum ctw_status ctw_scale_belongs(struct ctw_scale_owners *owners, const struct ctw_model *m,
                                  bool quantises_kv, const struct ctw_tensor *t, bool *out,
                                  struct ctw_err *err)
{
    char module[MAX_NAME];
    const char *last = strrchr(t->name, '.');
    *out = false;
    if (last == NULL || !is_scale(last + 1) || (size_t)(last - t->name) >= sizeof(module))
        return CTW_OK;
    enum ctw_status st = owners->made ? CTW_OK : make_owners(owners, m, quantises_kv, err);
    if (st != CTW_OK)
        return st;
    (void)snprintf(module, sizeof(module), "%s", t->name);
    ctw_name_parent(module);
    const struct ctw_scale_owner *owner = find_owner(owners, module);
    if (owner == NULL) { /* of a part of the module, such as an attention kernel or a quantiser */
        ctw_name_parent(module);
        owner = find_owner(owners, module);
    }
    size_t n = t->bytes / ctw_dtype_bytes(t->dtype);
    *out = owner != NULL && owner->quantised &&
           (n == 1 || n == (size_t)owner->facts.n_head || n == (size_t)owner->facts.n_kv);
    return CTW_OK;
}

void ctw_scale_owners_close(struct ctw_scale_owners *owners)
{
    ctw_free(owners->list);
    *owners = (struct ctw_scale_owners){0};
}
