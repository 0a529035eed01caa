/*
 * The resident provider: all layers' tensors in one contiguous range of device memory, each layer's
 * in file order. A loader fills the range. A layer can be acquired as soon as all of its uploads
 * have begun, since the backend orders computations after them.
 */
#include "base/log.h"
#include "base/mem.h"
#include "base/text.h"
#include "worker/weights/arena.h"
#include "worker/weights/loader.h"
#include "worker/weights/provider_ops.h"

struct layer_place {
    size_t at; /* offset of the layer's arena in memory */
    bool joined;
};

struct resident {
    struct ctw_provider base;
    const struct ctw_model *model;
    struct ctw_backend *be;
    struct ctw_loader *loader;
    void *memory; /* device */
    size_t bytes;
    bool fenced;
    uint64_t fence;              /* of the last release; covers all earlier releases */
    struct layer_place *layers;  /* [n_layers] */
    struct ctw_layer_data *data; /* [n_layers] */
};

/* ---- placement ---------------------------------------------------------------------------- */

/* The layer that is being placed. */
struct placing {
    struct resident *p;
    int layer;
};

static enum ctw_status place(void *arg, const struct ctw_tensor *t, size_t at, struct ctw_err *err)
{
    const struct placing *to = arg;
    return ctw_loader_add(to->p->loader, to->layer, t, to->p->layers[to->layer].at + at, err);
}

static enum ctw_status place_layers(struct resident *p, struct ctw_err *err)
{
    enum ctw_status st = CTW_OK;
    for (int layer = 0; st == CTW_OK && layer < p->model->n_layers; layer++) {
        struct placing to = {p, layer};
        p->layers[layer].at = p->bytes;
        st = ctw_arena_walk(p->model, layer, place, &to, err);
        p->bytes += ctw_arena_bytes(p->model, layer);
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

/* ---- the provider ------------------------------------------------------------------------- */

static enum ctw_status resident_acquire(struct ctw_provider *base, int layer,
                                        const struct ctw_layer_data **out, struct ctw_err *err)
{
    struct resident *p = (struct resident *)base;
    struct layer_place *l = &p->layers[layer];
    enum ctw_status st = CTW_OK;
    if (p->model->tied && layer == p->model->n_layers - 1) /* it reads the embedding, too */
        st = ctw_loader_wait(p->loader, 0, err);
    if (st == CTW_OK)
        st = ctw_loader_wait(p->loader, layer, err);
    if (st == CTW_OK && !l->joined)
        st = ctw_upload_join(p->be, err);
    if (st != CTW_OK)
        return st;
    l->joined = true;
    *out = &p->data[layer];
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
    ctw_layers_free(p->model, p->data);
    ctw_free(p);
}

static enum ctw_status open_all(struct resident *p, struct ctw_err *err)
{
    int n_layers = p->model->n_layers;
    p->layers = ctw_calloc((size_t)n_layers, sizeof(*p->layers));
    p->data = ctw_layers_alloc(p->model);
    if (p->layers == NULL || p->data == NULL)
        return ctw_fail(err, CTW_ENOMEM, "layers: out of memory");
    enum ctw_status st = ctw_loader_open(&p->loader, p->model, p->be, err);
    if (st == CTW_OK)
        st = place_layers(p, err);
    if (st == CTW_OK)
        st = ctw_loader_start(p->loader, err);
    if (st == CTW_OK)
        st = ctw_arena_add_numbers(p->model, err);
    if (st == CTW_OK)
        st = check_room(p, err);
    if (st == CTW_OK)
        st = ctw_device_alloc(p->be, &p->memory, p->bytes, err);
    if (st == CTW_OK)
        ctw_loader_set_memory(p->loader, p->memory);
    for (int i = 0; st == CTW_OK && i < n_layers; i++)
        ctw_arena_point(p->model, i, 0, ctw_arena_bytes(p->model, i),
                        (char *)p->memory + p->layers[i].at, &p->data[i]);
    ctw_arena_tie(p->model, p->data);
    return st;
}

enum ctw_status ctw_provider_open_resident(struct ctw_provider **out, const struct ctw_model *model,
                                           struct ctw_backend *be, struct ctw_err *err)
{
    static const struct ctw_provider_ops ops = {.acquire = resident_acquire,
                                                .release = resident_release,
                                                .needs_files = resident_needs_files,
                                                .close = resident_close};
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
