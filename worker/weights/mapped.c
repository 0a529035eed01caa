/* The mapped provider, and the functions that all providers share. */
#include "worker/weights/provider_ops.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/mem.h"

struct mapped {
    struct ctw_provider base;
    const struct ctw_model *model;
    /* [n_layers]: addresses in the map; a vector of several tensors is a copy */
    struct ctw_layer_data *layers;
};

/* Copies a vector that is stored as several tensors. NULL: out of memory. */
static void *join_tensors(const struct ctw_model *model, const struct ctw_layer *layer, int v)
{
    const struct ctw_tensor *t = layer->vector[v], **more = layer->more[v];
    char *copy = ctw_calloc(ctw_vector_bytes(layer, v), 1), *to = copy;
    for (; copy != NULL && t != NULL; t = *more++) {
        memcpy(to, ctw_container_data(model->container, t), t->bytes);
        to += t->bytes;
    }
    return copy;
}

/* Fills in the addresses of a layer. False: out of memory. */
static bool fill_layer(const struct ctw_model *model, const struct ctw_layer *layer,
                       struct ctw_layer_data *data)
{
    bool ok = true;
    for (int m = 0; m < ctw_layer_n_matrices(layer); m++) {
        const struct ctw_matrix *matrix = ctw_layer_matrix_of(layer, m);
        for (int p = 0; p < CTW_N_PARTS; p++)
            if (matrix->part[p] != NULL)
                ctw_data_matrix(data, m)->part[p] =
                    (const char *)ctw_container_data(model->container, matrix->part[p]) +
                    ctw_part_offset(matrix, p);
    }
    for (int v = 0; v < CTW_N_VECTORS; v++) {
        const struct ctw_tensor *t = layer->vector[v];
        data->vector[v] = t == NULL                ? NULL
                          : layer->more[v] == NULL ? ctw_container_data(model->container, t)
                                                   : join_tensors(model, layer, v);
        ok &= t == NULL || data->vector[v] != NULL;
    }
    return ok;
}

/* Asks the kernel to read the pages of a tensor soon. Best effort: a failure does not matter. */
static void read_ahead(const struct ctw_model *model, const struct ctw_tensor *t)
{
    if (t->bytes == 0)
        return;
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t at = (uintptr_t)ctw_container_data(model->container, t);
    uintptr_t start = at & ~(page - 1);
    (void)madvise((void *)start, t->bytes + (at - start), MADV_WILLNEED);
}

static enum ctw_status mapped_acquire(struct ctw_provider *base, int layer,
                                      const struct ctw_layer_data **out, struct ctw_err *err)
{
    struct mapped *p = (struct mapped *)base;
    if (layer + 1 < p->model->n_layers) {
        const struct ctw_layer *next = &p->model->layers[layer + 1];
        for (int64_t i = 0; i < next->n_places; i++)
            read_ahead(p->model, next->places[i].tensor);
    }
    *out = &p->layers[layer];
    return ctw_container_check_maps(p->model->container, err);
}

/* Does nothing: a backend that reads host memory has finished reading when its call returns. */
static void mapped_release(struct ctw_provider *base, int layer)
{
    (void)base;
    (void)layer;
}

static bool mapped_needs_files(struct ctw_provider *base)
{
    (void)base;
    return true;
}

static void mapped_close(struct ctw_provider *base)
{
    struct mapped *p = (struct mapped *)base;
    for (int i = 0; p->layers != NULL && i < p->model->n_layers; i++)
        for (int v = 0; v < CTW_N_VECTORS; v++)
            if (p->model->layers[i].more[v] != NULL)
                ctw_free((void *)p->layers[i].vector[v]);
    ctw_layers_free(p->model, p->layers);
    ctw_free(p);
}

enum ctw_status ctw_provider_open_mapped(struct ctw_provider **out, const struct ctw_model *model,
                                         struct ctw_err *err)
{
    static const struct ctw_provider_ops ops = {.acquire = mapped_acquire,
                                                .release = mapped_release,
                                                .needs_files = mapped_needs_files,
                                                .close = mapped_close};
    struct mapped *p = ctw_calloc(1, sizeof(*p));
    if (p == NULL)
        return ctw_fail(err, CTW_ENOMEM, "layers: out of memory");
    p->base.ops = &ops;
    p->model = model;
    p->layers = ctw_layers_alloc(model);
    bool ok = p->layers != NULL;
    for (int i = 0; ok && i < model->n_layers; i++)
        ok = fill_layer(model, &model->layers[i], &p->layers[i]);
    if (!ok) {
        mapped_close(&p->base);
        return ctw_fail(err, CTW_ENOMEM, "layers: out of memory");
    }
    *out = &p->base;
    return CTW_OK;
}

/* ---- the addresses of all layers ----------------------------------------------------------- */

struct ctw_layer_data *ctw_layers_alloc(const struct ctw_model *m)
{
    struct ctw_layer_data *layers = ctw_calloc((size_t)m->n_layers, sizeof(*layers));
    for (int i = 0; layers != NULL && i < m->n_layers; i++) {
        size_t n = (size_t)(ctw_layer_n_matrices(&m->layers[i]) - CTW_N_MATRICES);
        if (n == 0)
            continue;
        layers[i].expert = ctw_calloc(n, sizeof(*layers[i].expert));
        if (layers[i].expert == NULL) {
            ctw_layers_free(m, layers);
            return NULL;
        }
    }
    return layers;
}

void ctw_layers_free(const struct ctw_model *m, struct ctw_layer_data *layers)
{
    for (int i = 0; layers != NULL && i < m->n_layers; i++)
        ctw_free(layers[i].expert);
    ctw_free(layers);
}

/* ---- the calls ---------------------------------------------------------------------------- */

enum ctw_status ctw_provider_acquire(struct ctw_provider *p, int layer,
                                     const struct ctw_layer_data **out, struct ctw_err *err)
{
    if (p->waiting != NULL)
        atomic_store(p->waiting, true);
    enum ctw_status st = p->ops->acquire(p, layer, out, err);
    if (p->waiting != NULL)
        atomic_store(p->waiting, false);
    return st;
}

void ctw_provider_watch(struct ctw_provider *p, atomic_bool *waiting)
{
    p->waiting = waiting;
}

void ctw_provider_release(struct ctw_provider *p, int layer)
{
    p->ops->release(p, layer);
}

int ctw_provider_parts(struct ctw_provider *p, int layer)
{
    return p->ops->parts != NULL ? p->ops->parts(p, layer) : 1;
}

enum ctw_status ctw_provider_acquire_part(struct ctw_provider *p, int layer, int part,
                                          struct ctw_err *err)
{
    if (p->ops->acquire_part == NULL)
        return CTW_OK;
    if (p->waiting != NULL)
        atomic_store(p->waiting, true);
    enum ctw_status st = p->ops->acquire_part(p, layer, part, err);
    if (p->waiting != NULL)
        atomic_store(p->waiting, false);
    return st;
}

void ctw_provider_release_part(struct ctw_provider *p, int layer, int part)
{
    if (p->ops->release_part != NULL)
        p->ops->release_part(p, layer, part);
}

void ctw_provider_repeat(struct ctw_provider *p, int64_t n)
{
    if (p->ops->repeat != NULL)
        p->ops->repeat(p, n);
}

bool ctw_provider_needs_files(struct ctw_provider *p)
{
    return p->ops->needs_files(p);
}

void ctw_provider_close(struct ctw_provider *p)
{
    if (p != NULL)
        p->ops->close(p);
}
