#include "worker/weights/stream_slices.h"

#include "base/mem.h"
#include "worker/checkpoint/identity.h"

struct cutting {
    struct ctw_slices *s;
    const struct ctw_model *model;
    int layer;
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
    bool first = s->n_slices == s->first[c->layer];
    struct ctw_slice_of_layer *last = first ? NULL : &s->slices[s->n_slices - 1];
    enum ctw_status st =
        grow((void **)&s->pieces, s->n_pieces, &s->cap_pieces, sizeof(*s->pieces), err);
    if (st == CTW_OK && (last == NULL || piece->at + piece->bytes - last->at > c->most)) {
        st = grow((void **)&s->slices, s->n_slices, &s->cap_slices, sizeof(*s->slices), err);
        if (st == CTW_OK)
            s->slices[s->n_slices++] =
                (struct ctw_slice_of_layer){.first = s->n_pieces, .at = piece->at};
    }
    if (st != CTW_OK)
        return st;
    last = &s->slices[s->n_slices - 1];
    last->n++;
    last->bytes = piece->at + piece->bytes - last->at;
    s->pieces[s->n_pieces++] = *piece;
    return CTW_OK;
}

static enum ctw_status cut(void *arg, const struct ctw_tensor *t, size_t at, struct ctw_err *err)
{
    const struct cutting *c = arg;
    int64_t block = ctw_identity_first_block(c->model->identity, t);
    enum ctw_status st = CTW_OK;
    for (size_t from = 0; st == CTW_OK && from < t->bytes; from += CTW_BLOCK_BYTES, block++) {
        size_t bytes = t->bytes - from < CTW_BLOCK_BYTES ? t->bytes - from : CTW_BLOCK_BYTES;
        const struct ctw_piece piece = {
            .t = t, .from = from, .bytes = bytes, .at = at + from, .block = block};
        st = add_piece(c, &piece, err);
    }
    return st;
}

enum ctw_status ctw_slices_make(struct ctw_slices *out, const struct ctw_model *m, size_t most,
                                struct ctw_err *err)
{
    struct cutting c = {.s = out, .model = m, .most = most};
    enum ctw_status st = CTW_OK;
    *out = (struct ctw_slices){0};
    out->first = ctw_calloc((size_t)m->n_layers + 1, sizeof(*out->first));
    if (out->first == NULL)
        return ctw_fail(err, CTW_ENOMEM, "loading: out of memory");
    for (; st == CTW_OK && c.layer < m->n_layers; c.layer++) {
        out->first[c.layer] = out->n_slices;
        st = ctw_arena_walk(m, c.layer, cut, &c, err);
    }
    out->first[m->n_layers] = out->n_slices;
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
                                const struct ctw_slice_of_layer *slice, void *to,
                                struct ctw_err *err)
{
    enum ctw_status st = CTW_OK;
    for (int64_t i = slice->first; st == CTW_OK && i < slice->first + slice->n; i++) {
        const struct ctw_piece *p = &s->pieces[i];
        char *dst = (char *)to + (p->at - slice->at);
        st = ctw_container_read(m->container, p->t->file, p->t->offset + p->from, dst, p->bytes,
                                err);
        if (st == CTW_OK) /* while they are in this thread's cache */
            st = ctw_identity_check(m->identity, m->container, p->block, dst, p->bytes, err);
    }
    return st;
}
