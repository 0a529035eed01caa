#include "worker/model/places.h"

#include <assert.h>
#include <stdlib.h>

#include "base/mem.h"

static int by_file_and_offset(const void *a, const void *b)
{
    const struct ctw_tensor *x = ((const struct ctw_tensor_place *)a)->tensor;
    const struct ctw_tensor *y = ((const struct ctw_tensor_place *)b)->tensor;
    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* May operations read the layer's matrix `i` at any time? See struct ctw_layer. */
static bool is_held(const struct ctw_model *m, int layer, int i)
{
    return (layer == 0 || layer == m->n_layers - 1) && !ctw_is_vocabulary(m, layer, i);
}

/* The tensors that decoders read, without those that continue vectors. `out` NULL: only counts. */
static int64_t list(const struct ctw_model *m, const struct ctw_layer *l,
                    struct ctw_tensor_place *out)
{
    int layer = (int)(l - m->layers);
    int64_t n = 0;
    for (int i = 0; i < ctw_layer_n_matrices(l); i++) {
        const struct ctw_matrix *matrix = ctw_layer_matrix_of(l, i);
        for (int part = 0; part < CTW_N_PARTS; part++) {
            if (matrix->part[part] == NULL || !ctw_part_is_decoded(part) || matrix->at > 0 ||
                ctw_is_tied_head(m, layer, i))
                continue;
            if (out != NULL)
                out[n] = (struct ctw_tensor_place){.tensor = matrix->part[part],
                                                   .held = is_held(m, layer, i)};
            n++;
        }
    }
    for (int i = 0; i < CTW_N_VECTORS; i++) {
        if (l->vector[i] == NULL)
            continue;
        if (out != NULL)
            out[n] =
                (struct ctw_tensor_place){.tensor = l->vector[i], .more = l->more[i], .held = true};
        n++;
    }
    return n;
}

static size_t align_up(size_t at)
{
    return (at + CTW_ARENA_ALIGN - 1) / CTW_ARENA_ALIGN * CTW_ARENA_ALIGN;
}

/* Places the tensors that are held, or the others, from `at` on; returns their end. */
static size_t place(struct ctw_layer *l, bool held, size_t at)
{
    for (int64_t i = 0; i < l->n_places; i++) {
        struct ctw_tensor_place *p = &l->places[i];
        if (p->held != held)
            continue;
        p->at = at;
        at += p->tensor->bytes;
        for (const struct ctw_tensor **t = p->more; t != NULL && *t != NULL; t++)
            at += (*t)->bytes;
        at = align_up(at);
    }
    return at;
}

static enum ctw_status make(const struct ctw_model *m, struct ctw_layer *l, struct ctw_err *err)
{
    int64_t n = list(m, l, NULL);
    l->places = ctw_calloc((size_t)n, sizeof(*l->places));
    if (l->places == NULL && n > 0)
        return ctw_fail(err, CTW_ENOMEM, "out of memory for the list of tensors");
    (void)list(m, l, l->places);
    qsort(l->places, (size_t)n, sizeof(*l->places), by_file_and_offset);
    l->n_places = n;
    l->held_bytes = place(l, true, 0);
    l->arena_bytes = place(l, false, l->held_bytes);
    return CTW_OK;
}

enum ctw_status ctw_places_make(struct ctw_model *m, struct ctw_err *err)
{
    enum ctw_status st = CTW_OK;
    for (int i = 0; st == CTW_OK && i < m->n_layers; i++)
        st = make(m, &m->layers[i], err);
    return st;
}

size_t ctw_tensor_place_of(const struct ctw_layer *l, const struct ctw_tensor *t)
{
    const struct ctw_tensor_place key = {.tensor = t};
    const struct ctw_tensor_place *p =
        bsearch(&key, l->places, (size_t)l->n_places, sizeof(key), by_file_and_offset);
    assert(p != NULL && p->tensor == t);
    return p->at;
}
