#include "worker/weights/units.h"

#include "base/mem.h"
#include "worker/checkpoint/identity.h"
#include "worker/weights/arena.h"

static bool is_prepared(const struct ctw_cuts *cuts, int layer)
{
    return cuts != NULL && cuts->prepared[layer];
}

/* The most memory that a decoder layer takes while the next layer comes. */
static size_t decoder_bytes(const struct ctw_model *m, const struct ctw_cuts *cuts)
{
    size_t most = 0;
    for (int i = 1; i <= m->n_decoders; i++) {
        size_t bytes = is_prepared(cuts, i) ? m->layers[i].arena_bytes - m->layers[i].held_bytes
                                            : 2 * m->layers[i].arena_bytes;
        most = bytes > most ? bytes : most;
    }
    return most;
}

/* The matrix of the embedding or head, if the arena has nothing else behind the held tensors and
 * the matrix is stored row by row. */
static const struct ctw_weight *rows_of(const struct ctw_model *m, int layer)
{
    const struct ctw_layer *l = &m->layers[layer];
    const struct ctw_matrix *matrix = &l->matrix[layer == 0 ? CTW_M_EMBED : CTW_M_HEAD];
    const struct ctw_weight *w = &matrix->weight;
    if (m->tied || matrix->name == NULL || w->format->id != CTW_FORMAT_dense)
        return NULL;
    size_t bytes = (size_t)w->n * w->row_bytes, behind = l->arena_bytes - l->held_bytes;
    return behind >= bytes && behind - bytes < CTW_ARENA_ALIGN ? w : NULL;
}

/* The rows of a part of about `bytes` bytes, in whole blocks of the identity. */
static int64_t part_rows(const struct ctw_weight *w, int64_t multiple, size_t bytes)
{
    int64_t step = multiple;
    while (step < w->n && (size_t)step * w->row_bytes % CTW_BLOCK_BYTES != 0)
        step += multiple;
    int64_t n = (int64_t)(bytes / w->row_bytes) / step;
    return step * (n > 1 ? n : 1);
}

/* Cuts a layer into units and returns their number. `out` NULL: only counts. */
static int cut(const struct ctw_model *m, const struct ctw_cuts *cuts, int layer,
               struct ctw_unit *out)
{
    const struct ctw_layer *l = &m->layers[layer];
    const struct ctw_unit all = {.layer = layer, .bytes = l->arena_bytes};
    struct ctw_unit rest = all;
    int64_t multiple = cuts == NULL               ? 0
                       : layer == 0               ? cuts->embed_rows
                       : layer == m->n_layers - 1 ? cuts->head_rows
                                                  : 0;
    const struct ctw_weight *w = multiple > 0 ? rows_of(m, layer) : NULL;
    int64_t rows = w != NULL ? part_rows(w, multiple, decoder_bytes(m, cuts) / 2) : 0;
    bool in_rows = w != NULL && rows < w->n;
    int n = 0;
    if (!in_rows && !is_prepared(cuts, layer)) {
        if (out != NULL)
            out[0] = all;
        return 1;
    }
    if (l->held_bytes > 0 && out != NULL)
        out[n] = (struct ctw_unit){
            .kind = CTW_UNIT_HELD, .layer = layer, .bytes = l->held_bytes, .stays = true};
    n += l->held_bytes > 0;
    rest.kind = CTW_UNIT_MATRICES;
    rest.at = l->held_bytes;
    rest.bytes -= l->held_bytes;
    while (in_rows && rest.row0 + rows < w->n) {
        struct ctw_unit part = rest;
        part.kind = CTW_UNIT_ROWS;
        part.bytes = (size_t)rows * w->row_bytes;
        part.n_rows = rows;
        if (out != NULL)
            out[n] = part;
        n++;
        rest.at += part.bytes;
        rest.bytes -= part.bytes;
        rest.row0 += rows;
    }
    if (in_rows) {
        rest.kind = CTW_UNIT_ROWS;
        rest.n_rows = w->n - rest.row0;
    }
    if (out != NULL)
        out[n] = rest;
    return n + 1;
}

enum ctw_status ctw_units_make(const struct ctw_model *m, const struct ctw_cuts *cuts,
                               struct ctw_unit **unit, int *n_units, int **first,
                               struct ctw_err *err)
{
    *n_units = 0;
    for (int i = 0; i < m->n_layers; i++)
        *n_units += cut(m, cuts, i, NULL);
    *unit = ctw_calloc((size_t)*n_units, sizeof(**unit));
    *first = ctw_calloc((size_t)m->n_layers + 1, sizeof(**first));
    if (*unit == NULL || *first == NULL)
        return ctw_fail(err, CTW_ENOMEM, "layers: out of memory");
    for (int i = 0; i < m->n_layers; i++)
        (*first)[i + 1] = (*first)[i] + cut(m, cuts, i, *unit + (*first)[i]);
    return CTW_OK;
}
