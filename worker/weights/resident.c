/*
 * The resident provider: all layers' tensors in one contiguous range of device memory, each layer's
 * in file order. A loader fills the range. A layer can be acquired as soon as all of its uploads
 * have begun, since the backend orders computations after them.
 */
#include <assert.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/units.h"
#include "worker/checkpoint/identity.h"
#include "worker/weights/loader.h"
#include "worker/weights/provider_ops.h"

enum { ALIGN = 256 }; /* of each tensor, in bytes */

struct layer_place {
    size_t at; /* offset of the layer's first tensor in memory */
    bool joined;
    struct ctw_layer_data data;
};

struct resident {
    struct ctw_provider base;
    const struct ctw_model *model;
    struct ctw_backend *be;
    struct ctw_loader *loader;
    void *memory; /* device */
    size_t bytes;
    bool fenced;
    uint64_t fence;             /* of the last release; covers all earlier releases */
    struct layer_place *layers; /* [n_layers] */
};

/* ---- placement ---------------------------------------------------------------------------- */

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
    return (at + ALIGN - 1) / ALIGN * ALIGN;
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

/* Places a tensor, and those that continue it. */
static enum ctw_status place(struct resident *p, int layer, const struct ctw_tensor *t,
                             struct ctw_err *err)
{
    const struct ctw_tensor *const *more = continuation(&p->model->layers[layer], t);
    enum ctw_status st = ctw_loader_add(p->loader, layer, t, p->bytes, err);
    p->bytes += t->bytes;
    for (; st == CTW_OK && more != NULL && *more != NULL; more++) {
        st = ctw_loader_add(p->loader, layer, *more, p->bytes, err);
        p->bytes += (*more)->bytes;
    }
    p->bytes = align_up(p->bytes);
    return st;
}

static enum ctw_status place_layers(struct resident *p, struct ctw_err *err)
{
    const struct ctw_tensor *tensors[CTW_MAX_LAYER_TENSORS];
    enum ctw_status st = CTW_OK;
    for (int layer = 0; st == CTW_OK && layer < p->model->n_layers; layer++) {
        int n = layer_tensors(p->model, layer, tensors);
        p->layers[layer].at = p->bytes;
        for (int i = 0; st == CTW_OK && i < n; i++)
            st = place(p, layer, tensors[i], err);
    }
    return st;
}

/* weight_shape tensors are not loaded, since no decoder reads them, but belong to the identity. */
static enum ctw_status add_shapes(const struct ctw_model *m, struct ctw_err *err)
{
    enum ctw_status st = CTW_OK;
    for (int layer = 0; layer < m->n_layers; layer++)
        for (int i = 0; st == CTW_OK && i < CTW_N_MATRICES; i++) {
            const struct ctw_tensor *t = m->layers[layer].matrix[i].part[CTW_PART_SHAPE];
            int64_t numbers[2]; /* opening checked that it holds two */
            if (t == NULL)
                continue;
            assert(t->bytes <= sizeof(numbers));
            st = ctw_container_read(m->container, t->file, t->offset, numbers, t->bytes, err);
            if (st == CTW_OK)
                ctw_identity_add(m->identity, ctw_identity_first_block(m->identity, t), numbers,
                                 t->bytes);
        }
    return st;
}

/* Do the weights fit in the device's free memory? */
static enum ctw_status check_room(const struct resident *p, struct ctw_err *err)
{
    char need[32], free_text[32];
    uint64_t have = ctw_backend_memory_free(p->be);
    enum ctw_status st = ctw_backend_sync(p->be, err); /* a failed device reports nothing free */
    if (st == CTW_OK && p->bytes > have)
        st = ctw_fail(err, CTW_ENOMEM,
                      "the weights need %s, but only %s of the GPU's memory is free: use another "
                      "GPU or --backend cpu",
                      ctw_format_bytes(need, sizeof(need), (double)p->bytes),
                      ctw_format_bytes(free_text, sizeof(free_text), (double)have));
    return st;
}

/* Fills in the addresses of a layer's tensors, at the offsets from place_layers(). */
static void fill_data(struct resident *p, int layer)
{
    const struct ctw_tensor *tensors[CTW_MAX_LAYER_TENSORS];
    const struct ctw_layer *l = &p->model->layers[layer];
    struct layer_place *place = &p->layers[layer];
    size_t at = place->at;
    int n = layer_tensors(p->model, layer, tensors);
    for (int i = 0; i < n; i++) {
        const void *address = (char *)p->memory + at;
        size_t bytes = tensors[i]->bytes;
        for (int m = 0; m < CTW_N_MATRICES; m++)
            for (int part = 0; part < CTW_N_PARTS; part++)
                if (l->matrix[m].part[part] == tensors[i])
                    place->data.matrix[m].part[part] = address;
        for (int v = 0; v < CTW_N_VECTORS; v++)
            if (l->vector[v] == tensors[i]) {
                place->data.vector[v] = address;
                bytes = ctw_vector_bytes(l, v);
            }
        at = align_up(at + bytes);
    }
}

/* Fills in the parts of a tied head, which belong to a matrix of another layer. */
static void fill_tied(struct resident *p)
{
    int head = p->model->n_layers - 1;
    for (int part = 0; part < CTW_N_PARTS; part++)
        for (int i = 0; i < p->model->n_layers; i++)
            for (int m = 0; m < CTW_N_MATRICES; m++)
                if (m != CTW_M_HEAD && p->model->layers[i].matrix[m].part[part] ==
                                           p->model->layers[head].matrix[CTW_M_HEAD].part[part])
                    p->layers[head].data.matrix[CTW_M_HEAD].part[part] =
                        p->layers[i].data.matrix[m].part[part];
}

/* ---- the provider ------------------------------------------------------------------------- */

static enum ctw_status resident_acquire(struct ctw_provider *base, int layer,
                                        const struct ctw_layer_data **out, struct ctw_err *err)
{
    struct resident *p = (struct resident *)base;
    struct layer_place *l = &p->layers[layer];
    enum ctw_status st = ctw_loader_wait(p->loader, layer, err);
    if (st == CTW_OK && !l->joined)
        st = ctw_upload_join(p->be, err);
    if (st != CTW_OK)
        return st;
    l->joined = true;
    *out = &l->data;
    return CTW_OK;
}

/* If recording a fence fails, the device has failed and reads nothing more. */
static void resident_release(struct ctw_provider *base, int layer)
{
    struct resident *p = (struct resident *)base;
    struct ctw_err err;
    (void)layer;
    if (ctw_fence_record(p->be, &p->fence, &err) == CTW_OK)
        p->fenced = true;
}

static bool resident_needs_files(struct ctw_provider *base)
{
    return !ctw_loader_all_begun(((struct resident *)base)->loader);
}

static void resident_close(struct ctw_provider *base)
{
    struct resident *p = (struct resident *)base;
    struct ctw_err err;
    ctw_loader_close(p->loader);
    if (p->fenced && ctw_fence_wait(p->be, p->fence, &err) != CTW_OK)
        ctw_debug("freeing layers on a device that has failed: %s", err.msg);
    ctw_device_free(p->be, p->memory);
    ctw_free(p->layers);
    ctw_free(p);
}

static enum ctw_status open_all(struct resident *p, struct ctw_err *err)
{
    int n_layers = p->model->n_layers;
    p->layers = ctw_calloc((size_t)n_layers, sizeof(*p->layers));
    if (p->layers == NULL)
        return ctw_fail(err, CTW_ENOMEM, "layers: out of memory");
    enum ctw_status st = ctw_loader_open(&p->loader, p->model, p->be, err);
    if (st == CTW_OK)
        st = place_layers(p, err);
    if (st == CTW_OK)
        st = ctw_loader_start(p->loader, err);
    if (st == CTW_OK)
        st = add_shapes(p->model, err);
    if (st == CTW_OK)
        st = check_room(p, err);
    if (st == CTW_OK)
        st = ctw_device_alloc(p->be, &p->memory, p->bytes, err);
    if (st == CTW_OK)
        ctw_loader_set_memory(p->loader, p->memory);
    for (int i = 0; st == CTW_OK && i < n_layers; i++)
        fill_data(p, i);
    if (st == CTW_OK && p->model->tied)
        fill_tied(p);
    return st;
}

enum ctw_status ctw_provider_open_resident(struct ctw_provider **out, const struct ctw_model *model,
                                           struct ctw_backend *be, struct ctw_err *err)
{
    static const struct ctw_provider_ops ops = {resident_acquire, resident_release,
                                                resident_needs_files, resident_close};
    struct resident *p = ctw_calloc(1, sizeof(*p));
    if (p == NULL)
        return ctw_fail(err, CTW_ENOMEM, "layers: out of memory");
    p->base.ops = &ops;
    p->model = model;
    p->be = be;
    enum ctw_status st = open_all(p, err);
    if (st != CTW_OK) {
        resident_close(&p->base);
        return st;
    }
    *out = &p->base;
    return CTW_OK;
}
