#include "worker/weights/arena.h"

#include "base/mem.h"
#include "worker/checkpoint/identity.h"
#include "worker/model/places.h"
#include "worker/model/recipe/kinds.h"

static enum ctw_status walk(const struct ctw_layer *l, bool held, ctw_arena_visit *visit, void *arg,
                            struct ctw_err *err)
{
    enum ctw_status st = CTW_OK;
    for (int64_t i = 0; st == CTW_OK && i < l->n_places; i++) {
        const struct ctw_tensor *const *more = l->places[i].more;
        size_t at = l->places[i].at;
        if (l->places[i].held != held)
            continue;
        st = visit(arg, l->places[i].tensor, at, err);
        at += l->places[i].tensor->bytes;
        for (; st == CTW_OK && more != NULL && *more != NULL; more++) {
            st = visit(arg, *more, at, err);
            at += (*more)->bytes;
        }
    }
    return st;
}

enum ctw_status ctw_arena_walk(const struct ctw_model *m, int layer, ctw_arena_visit *visit,
                               void *arg, struct ctw_err *err)
{
    enum ctw_status st = walk(&m->layers[layer], true, visit, arg, err);
    return st == CTW_OK ? walk(&m->layers[layer], false, visit, arg, err) : st;
}

void ctw_arena_point(const struct ctw_model *m, int layer, size_t at, size_t n, const void *block,
                     struct ctw_layer_data *data)
{
    const struct ctw_layer *l = &m->layers[layer];
    for (int i = 0; i < ctw_layer_n_matrices(l); i++) {
        const struct ctw_matrix *matrix = ctw_layer_matrix_of(l, i);
        for (int part = 0; part < CTW_N_PARTS; part++) {
            if (matrix->part[part] == NULL || !ctw_part_is_decoded(part) ||
                ctw_is_tied_head(m, layer, i))
                continue;
            size_t place = ctw_tensor_place_of(l, matrix->part[part]);
            if (place >= at && place - at < n)
                ctw_data_matrix(data, i)->part[part] =
                    (const char *)block + (place - at) + ctw_part_offset(matrix, part);
        }
    }
    for (int v = 0; v < CTW_N_VECTORS; v++) {
        size_t place = l->vector[v] != NULL ? ctw_tensor_place_of(l, l->vector[v]) : at + n;
        if (place >= at && place - at < n)
            data->vector[v] = (const char *)block + (place - at);
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
                if (!ctw_is_tied_head(m, i, j) && m->layers[i].matrix[j].part[part] ==
                                                      m->layers[head].matrix[CTW_M_HEAD].part[part])
                    layers[head].matrix[CTW_M_HEAD].part[part] = layers[i].matrix[j].part[part];
}

/* Adds a tensor of a few numbers: at most one number per head. */
static enum ctw_status add_numbers(const struct ctw_model *m, const struct ctw_tensor *t,
                                   struct ctw_err *err)
{
    if (t == NULL)
        return CTW_OK;
    void *numbers = ctw_calloc(t->bytes, 1);
    if (numbers == NULL)
        return ctw_fail(err, CTW_ENOMEM, "out of memory for %s", t->name);
    enum ctw_status st =
        ctw_container_read(m->container, t->file, t->offset, numbers, t->bytes, err);
    if (st == CTW_OK)
        ctw_identity_add(m->identity, ctw_identity_first_block(m->identity, t), numbers, t->bytes);
    ctw_free(numbers);
    return st;
}

/* Adds a table block by block. */
static enum ctw_status add_table(const struct ctw_model *m, const struct ctw_table *table,
                                 struct ctw_err *err)
{
    char *buffer = ctw_calloc(CTW_BLOCK_BYTES, 1);
    enum ctw_status st = buffer != NULL ? CTW_OK : ctw_fail(err, CTW_ENOMEM, "out of memory");
    for (int i = 0; i < table->n; i++) {
        const struct ctw_tensor *t = table->part[i];
        int64_t block = ctw_identity_first_block(m->identity, t);
        for (size_t at = 0; st == CTW_OK && at < t->bytes; at += CTW_BLOCK_BYTES) {
            const size_t left = t->bytes - at,
                         bytes = left < CTW_BLOCK_BYTES ? left : CTW_BLOCK_BYTES;
            st = ctw_container_read(m->container, t->file, t->offset + at, buffer, bytes, err);
            if (st == CTW_OK)
                ctw_identity_add(m->identity, block++, buffer, bytes);
        }
    }
    ctw_free(buffer);
    return st;
}

enum ctw_status ctw_arena_add_numbers(const struct ctw_model *m, struct ctw_err *err)
{
    enum ctw_status st = CTW_OK;
    for (int layer = 0; layer < m->n_layers; layer++) {
        const struct ctw_layer *l = &m->layers[layer];
        for (int i = 0; st == CTW_OK && i < ctw_layer_n_matrices(l); i++) {
            const struct ctw_matrix *matrix = ctw_layer_matrix_of(l, i);
            for (int part = CTW_PART_SHAPE; st == CTW_OK && part < CTW_N_PARTS; part++)
                st = add_numbers(m, matrix->part[part], err);
            for (size_t j = 0; st == CTW_OK && j < CTW_COUNT(matrix->input_part); j++)
                st = add_numbers(m, matrix->input_part[j], err);
            if (st == CTW_OK)
                st = add_numbers(m, matrix->output_part, err);
        }
        if (st == CTW_OK && l->table.n > 0)
            st = add_table(m, &l->table, err);
        for (int b = 0; b < l->n_branches; b++) {
            const struct ctw_head_inputs *inputs =
                ctw_branch_inputs((struct ctw_branch *)&l->branch[b]);
            for (int j = 0; st == CTW_OK && inputs != NULL && j < 2 * CTW_N_HEADS; j++)
                st = add_numbers(m, inputs->of[j / 2].part[j % 2], err);
        }
    }
    return st;
}
