#include "worker/weights/stream_slices.h"

#include <assert.h>

#include "base/mem.h"
#include "worker/checkpoint/identity.h"

struct cutting {
    struct ctw_slices *s;
    const struct ctw_model *model;
    const struct ctw_unit *unit;
    int64_t first; /* the first slice of the unit */
    size_t most;
};

/* Makes space for one more element of `size` bytes in an array. */
static enum ctw_status grow(void **array, int64_t n, int64_t *cap, size_t size, struct ctw_err *err)
{
    if (n < *cap)
        return CTW_OK;
    int64_t more = *cap == 0 ? 256 : 2 * *cap;
    void *grown = ctw_realloc(*array, (size_t)more, size);
    if (grown == NULL)
        return ctw_fail(err, CTW_ENOMEM, "loading: out of memory");
    *array = grown;
    *cap = more;
    return CTW_OK;
}

static enum ctw_status add_piece(const struct cutting *c, const struct ctw_piece *piece,
                                 struct ctw_err *err)
{
    struct ctw_slices *s = c->s;
    bool first = s->n_slices == c->first;
    struct ctw_slice *last = first ? NULL : &s->slices[s->n_slices - 1];
    enum ctw_status st =
        grow((void **)&s->pieces, s->n_pieces, &s->cap_pieces, sizeof(*s->pieces), err);
    if (st == CTW_OK && (last == NULL || piece->at + piece->bytes - last->at > c->most)) {
        st = grow((void **)&s->slices, s->n_slices, &s->cap_slices, sizeof(*s->slices), err);
        if (st == CTW_OK)
            s->slices[s->n_slices++] = (struct ctw_slice){.first = s->n_pieces, .at = piece->at};
    }
    if (st != CTW_OK)
        return st;
    last = &s->slices[s->n_slices - 1];
    last->n++;
    last->bytes = piece->at + piece->bytes - last->at;
    s->pieces[s->n_pieces++] = *piece;
    return CTW_OK;
}

/* Adds the unit's range of a tensor. */
static enum ctw_status cut(void *arg, const struct ctw_tensor *t, size_t at, struct ctw_err *err)
{
    const struct cutting *c = arg;
    size_t unit_end = c->unit->at + c->unit->bytes;
    size_t first = at < c->unit->at ? c->unit->at - at : 0;
    if (at >= unit_end || first >= t->bytes)
        return CTW_OK;
    size_t end = at + t->bytes < unit_end ? t->bytes : unit_end - at;
    int64_t block = ctw_identity_first_block(c->model->identity, t);
    enum ctw_status st = CTW_OK;
    assert(first % CTW_BLOCK_BYTES == 0 && (end == t->bytes || end % CTW_BLOCK_BYTES == 0));
    for (size_t from = first; st == CTW_OK && from < end; from += CTW_BLOCK_BYTES) {
        const struct ctw_piece piece = {.t = t,
                                        .from = from,
                                        .bytes = end - from < CTW_BLOCK_BYTES ? end - from
                                                                              : CTW_BLOCK_BYTES,
                                        .at = at + from - c->unit->at,
                                        .block = block + (int64_t)(from / CTW_BLOCK_BYTES)};
        st = add_piece(c, &piece, err);
    }
    return st;
}

enum ctw_status ctw_slices_make(struct ctw_slices *out, const struct ctw_model *m,
                                const struct ctw_placement *place, size_t most, struct ctw_err *err)
{
    enum ctw_status st = CTW_OK;
    *out = (struct ctw_slices){0};
    out->first = ctw_calloc((size_t)place->n_units + 1, sizeof(*out->first));
    if (out->first == NULL)
        return ctw_fail(err, CTW_ENOMEM, "loading: out of memory");
    for (int i = 0; st == CTW_OK && i < place->n_units; i++) {
        struct cutting c = {
            .s = out, .model = m, .unit = &place->unit[i], .first = out->n_slices, .most = most};
        out->first[i] = out->n_slices;
        st = ctw_arena_walk(m, place->unit[i].layer, cut, &c, err);
    }
    out->first[place->n_units] = out->n_slices;
    return st;
}

void ctw_slices_free(struct ctw_slices *s)
{
    ctw_free(s->pieces);
    ctw_free(s->slices);
    ctw_free(s->first);
    *s = (struct ctw_slices){0};
}

enum ctw_status ctw_slices_read(const struct ctw_slices *s, const struct ctw_model *m,
                                const struct ctw_slice *slice, void *to, struct ctw_err *err)
{
    enum ctw_status st = CTW_OK;
    for (int64_t i = slice->first; st == CTW_OK && i < slice->first + slice->n; i++) {
        const struct ctw_piece *p = &s->pieces[i];
        char *dst = (char *)to + (p->at - slice->at);
        st = ctw_container_read(m->container, p->t->file, p->t->offset + p->from, dst, p->bytes,
                                err);
        if (st == CTW_OK) /* while the bytes are in this thread's cache */
            st = ctw_identity_check(m->identity, m->container, p->block, dst, p->bytes, err);
    }
    return st;
}
