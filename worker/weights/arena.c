#include "worker/weights/arena.h"

#include <assert.h>
#include <stdlib.h>

#include "worker/checkpoint/identity.h"

static int by_file_and_offset(const void *a, const void *b)
{
    const struct ctw_tensor *x = *(const struct ctw_tensor *const *)a;
    const struct ctw_tensor *y = *(const struct ctw_tensor *const *)b;
    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* The layer's tensors that decoders read, in file order, without those that continue vectors. A
 * tied head has none: they are the embedding's. */
static int layer_tensors(const struct ctw_model *m, int layer,
                         const struct ctw_tensor *out[CTW_MAX_LAYER_TENSORS])
{
    const struct ctw_layer *l = &m->layers[layer];
    int n = 0;
    for (int i = 0; i < CTW_N_MATRICES; i++)
        for (int part = 0; part < CTW_N_PARTS; part++)
            if (l->matrix[i].part[part] != NULL && part != CTW_PART_SHAPE &&
                !(i == CTW_M_HEAD && m->tied))
                out[n++] = l->matrix[i].part[part];
    for (int i = 0; i < CTW_N_VECTORS; i++)
        if (l->vector[i] != NULL)
            out[n++] = l->vector[i];
    qsort(out, (size_t)n, sizeof(out[0]), by_file_and_offset);
    return n;
}

static size_t align_up(size_t at)
{
    return (at + CTW_ARENA_ALIGN - 1) / CTW_ARENA_ALIGN * CTW_ARENA_ALIGN;
}

/* The tensors that continue t in memory, up to NULL; NULL: none. */
static const struct ctw_tensor *const *continuation(const struct ctw_layer *l,
                                                    const struct ctw_tensor *t)
{
    for (int i = 0; i < CTW_N_VECTORS; i++)
        if (l->vector[i] == t)
            return l->more[i];
    return NULL;
}

enum ctw_status ctw_arena_walk(const struct ctw_model *m, int layer, ctw_arena_visit *visit,
                               void *arg, struct ctw_err *err)
{
    const struct ctw_tensor *tensors[CTW_MAX_LAYER_TENSORS];
    int n = layer_tensors(m, layer, tensors);
    size_t at = 0;
    enum ctw_status st = CTW_OK;
    for (int i = 0; st == CTW_OK && i < n; i++) {
        const struct ctw_tensor *const *more = continuation(&m->layers[layer], tensors[i]);
        st = visit(arg, tensors[i], at, err);
        at += tensors[i]->bytes;
        for (; st == CTW_OK && more != NULL && *more != NULL; more++) {
            st = visit(arg, *more, at, err);
            at += (*more)->bytes;
        }
        at = align_up(at);
    }
    return st;
}

static enum ctw_status see_end(void *arg, const struct ctw_tensor *t, size_t at,
                               struct ctw_err *err)
{
    (void)err;
    *(size_t *)arg = at + t->bytes;
    return CTW_OK;
}

size_t ctw_arena_bytes(const struct ctw_model *m, int layer)
{
    size_t end = 0;
    enum ctw_status st = ctw_arena_walk(m, layer, see_end, &end, NULL);
    assert(st == CTW_OK);
    (void)st;
    return align_up(end);
}

void ctw_arena_point(const struct ctw_model *m, int layer, const void *block,
                     struct ctw_layer_data *data)
{
    const struct ctw_tensor *tensors[CTW_MAX_LAYER_TENSORS];
    const struct ctw_layer *l = &m->layers[layer];
    size_t at = 0;
    int n = layer_tensors(m, layer, tensors);
    for (int i = 0; i < n; i++) {
        const void *address = (const char *)block + at;
        size_t bytes = tensors[i]->bytes;
        for (int j = 0; j < CTW_N_MATRICES; j++)
            for (int part = 0; part < CTW_N_PARTS; part++)
                if (l->matrix[j].part[part] == tensors[i])
                    data->matrix[j].part[part] = address;
        for (int v = 0; v < CTW_N_VECTORS; v++)
            if (l->vector[v] == tensors[i]) {
                data->vector[v] = address;
                bytes = ctw_vector_bytes(l, v);
            }
        at = align_up(at + bytes);
    }
}

void ctw_arena_tie(const struct ctw_model *m, struct ctw_layer_data *layers)
{
    int head = m->n_layers - 1;
    if (!m->tied)
        return;
    for (int part = 0; part < CTW_N_PARTS; part++)
        for (int i = 0; i < m->n_layers; i++)
            for (int j = 0; j < CTW_N_MATRICES; j++)
                if (j != CTW_M_HEAD && m->layers[i].matrix[j].part[part] ==
                                           m->layers[head].matrix[CTW_M_HEAD].part[part])
                    layers[head].matrix[CTW_M_HEAD].part[part] = layers[i].matrix[j].part[part];
}

/* A tensor of one or two numbers. */
static enum ctw_status add_numbers(const struct ctw_model *m, const struct ctw_tensor *t,
                                   struct ctw_err *err)
{
    int64_t numbers[2];
    if (t == NULL)
        return CTW_OK;
    assert(t->bytes <= sizeof(numbers)); /* opening checked that */
    enum ctw_status st =
        ctw_container_read(m->container, t->file, t->offset, numbers, t->bytes, err);
    if (st == CTW_OK)
        ctw_identity_add(m->identity, ctw_identity_first_block(m->identity, t), numbers, t->bytes);
    return st;
}

enum ctw_status ctw_arena_add_numbers(const struct ctw_model *m, struct ctw_err *err)
{
    enum ctw_status st = CTW_OK;
    for (int layer = 0; layer < m->n_layers; layer++) {
        const struct ctw_layer *l = &m->layers[layer];
        for (int i = 0; st == CTW_OK && i < CTW_N_MATRICES; i++) {
            st = add_numbers(m, l->matrix[i].part[CTW_PART_SHAPE], err);
            for (size_t j = 0; st == CTW_OK && j < CTW_COUNT(l->matrix[i].input_part); j++)
                st = add_numbers(m, l->matrix[i].input_part[j], err);
        }
        for (size_t j = 0; st == CTW_OK && j < CTW_COUNT(l->kv_part); j++)
            st = add_numbers(m, l->kv_part[j], err);
    }
    return st;
}
