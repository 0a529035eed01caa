#include "worker/layers.h"

#include <sys/mman.h>
#include <unistd.h>

#include "base/mem.h"

struct ctw_provider {
    const struct ctw_model *model;
    struct ctw_layer_data *layers; /* [n_layers]: a table of pointers, not of weights */
};

static void fill_layer(const struct ctw_model *model, const struct ctw_layer *layer,
                       struct ctw_layer_data *data)
{
    for (int m = 0; m < CTW_N_MATRICES; m++) {
        for (int p = 0; p < CTW_N_PARTS; p++) {
            const struct ctw_tensor *t = layer->matrix[m].part[p];
            data->matrix[m].part[p] = t == NULL ? NULL : ctw_container_data(model->container, t);
        }
    }
    for (int v = 0; v < CTW_N_VECTORS; v++) {
        const struct ctw_tensor *t = layer->vector[v];
        data->vector[v] = t == NULL ? NULL : ctw_container_data(model->container, t);
    }
}

enum ctw_status ctw_provider_open_mapped(struct ctw_provider **out, const struct ctw_model *model,
                                         struct ctw_err *err)
{
    struct ctw_provider *p = ctw_calloc(1, sizeof(*p));
    if (p == NULL)
        return ctw_fail(err, CTW_ENOMEM, "layers: out of memory");
    p->model = model;
    p->layers = ctw_calloc((size_t)model->n_layers, sizeof(*p->layers));
    if (p->layers == NULL) {
        ctw_provider_close(p);
        return ctw_fail(err, CTW_ENOMEM, "layers: out of memory");
    }
    for (int i = 0; i < model->n_layers; i++)
        fill_layer(model, &model->layers[i], &p->layers[i]);
    *out = p;
    return CTW_OK;
}

void ctw_provider_close(struct ctw_provider *p)
{
    if (p == NULL)
        return;
    ctw_free(p->layers);
    ctw_free(p);
}

/* Asks the kernel to read a tensor's pages soon. Only a hint: its failure means nothing. */
static void read_ahead(const struct ctw_model *model, const struct ctw_tensor *t)
{
    if (t == NULL || t->bytes == 0)
        return;
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t at = (uintptr_t)ctw_container_data(model->container, t);
    uintptr_t start = at & ~(page - 1);
    (void)madvise((void *)start, t->bytes + (at - start), MADV_WILLNEED);
}

enum ctw_status ctw_provider_acquire(struct ctw_provider *p, int layer,
                                     const struct ctw_layer_data **out, struct ctw_err *err)
{
    (void)err; /* mapped layers are always there; other providers can fail */
    if (layer + 1 < p->model->n_layers) {
        const struct ctw_layer *next = &p->model->layers[layer + 1];
        for (int m = 0; m < CTW_N_MATRICES; m++)
            for (int part = 0; part < CTW_N_PARTS; part++)
                read_ahead(p->model, next->matrix[m].part[part]);
    }
    *out = &p->layers[layer];
    return CTW_OK;
}

void ctw_provider_release(struct ctw_provider *p, int layer)
{
    (void)p;
    (void)layer;
}
