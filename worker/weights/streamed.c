/*
 * The streamed provider: some or all layers stay in the backend's memory. The other layers are read
 * in every pass, a layer or two ahead of their use, into a ring of bytes (stream.h), or are
 * gathered there from the memory of several devices (shards.h). A layer can be acquired as soon as
 * all of its uploads have begun, because the backend orders computations after them.
 *
 * On the CPU, layers are read and not mapped, too: then their memory belongs to this process and is
 * bounded, each byte is digested on its way, and a file that becomes shorter is an error of a read
 * instead of a signal. The copy costs less than a tenth of the time that a disk takes.
 */
#include "base/log.h"
#include "base/mem.h"
#include "base/text.h"
#include "worker/weights/provider_ops.h"
#include "worker/weights/stream.h"

struct streamed {
    struct ctw_provider base;
    const struct ctw_model *model;
    struct ctw_backend *be;
    struct ctw_placement place;
    struct ctw_shards *shards; /* NULL: none */
    struct ctw_stream *stream;
    void *memory; /* device */
    bool *joined; /* [n_units]: the unit stays, and operations are ordered after its upload */
    struct ctw_layer_data *data; /* [n_layers] */
};

/* Waits for a unit, and fills in the addresses of its tensors. */
static enum ctw_status use(struct streamed *p, int unit, struct ctw_err *err)
{
    const struct ctw_unit *u = &p->place.unit[unit];
    struct ctw_layer_data *data = &p->data[u->layer];
    const void *block;
    enum ctw_status st = ctw_stream_acquire(p->stream, unit, &block, err);
    if (st == CTW_OK && p->joined[unit] && u->kind != CTW_UNIT_ROWS)
        return CTW_OK; /* the addresses are filled in already */
    if (st == CTW_OK && !p->joined[unit])
        st = ctw_upload_join(p->be, err);
    if (st != CTW_OK)
        return st;
    p->joined[unit] = u->stays;
    if (u->kind == CTW_UNIT_ROWS) {
        data->matrix[u->layer == 0 ? CTW_M_EMBED : CTW_M_HEAD].part[CTW_PART_VALUES] = block;
        data->row0 = u->row0;
        data->n_rows = u->n_rows;
    } else {
        ctw_arena_point(p->model, u->layer, u->at, u->bytes, block, data);
    }
    return CTW_OK;
}

/* Releases a unit. If no fence can be recorded, the device has failed and reads nothing more. */
static void end_use(struct streamed *p, int unit)
{
    struct ctw_err err;
    uint64_t fence;
    if (p->place.unit[unit].stays)
        return;
    bool recorded = ctw_fence_record(p->be, &fence, &err) == CTW_OK;
    ctw_stream_release(p->stream, unit, recorded ? &fence : NULL);
}

/* The unit that a layer's acquire waits for; -1: the layer has parts only. */
static int unit_of_layer(const struct streamed *p, int layer)
{
    int first = p->place.first[layer];
    return p->place.unit[first].kind <= CTW_UNIT_HELD ? first : -1;
}

/* The unit of a layer's part; -1: the part is the whole layer. */
static int unit_of_part(const struct streamed *p, int layer, int part)
{
    int unit = p->place.first[layer] + (unit_of_layer(p, layer) >= 0) + part;
    return unit < p->place.first[layer + 1] ? unit : -1;
}

static enum ctw_status streamed_acquire(struct ctw_provider *base, int layer,
                                        const struct ctw_layer_data **out, struct ctw_err *err)
{
    struct streamed *p = (struct streamed *)base;
    bool reads_embedding = p->model->tied && layer == p->model->n_layers - 1;
    int unit = unit_of_layer(p, layer);
    enum ctw_status st = CTW_OK;
    if (reads_embedding && !p->joined[0]) /* the pass begins with its head */
        st = use(p, 0, err);
    if (st == CTW_OK && unit >= 0)
        st = use(p, unit, err);
    *out = &p->data[layer];
    return st;
}

static void streamed_release(struct ctw_provider *base, int layer)
{
    struct streamed *p = (struct streamed *)base;
    int unit = unit_of_layer(p, layer);
    if (unit >= 0)
        end_use(p, unit);
}

static int streamed_parts(struct ctw_provider *base, int layer)
{
    const struct streamed *p = (struct streamed *)base;
    int n = p->place.first[layer + 1] - p->place.first[layer] - (unit_of_layer(p, layer) >= 0);
    return n > 0 ? n : 1;
}

static enum ctw_status streamed_acquire_part(struct ctw_provider *base, int layer, int part,
                                             struct ctw_err *err)
{
    struct streamed *p = (struct streamed *)base;
    int unit = unit_of_part(p, layer, part);
    return unit >= 0 ? use(p, unit, err) : CTW_OK;
}

static void streamed_release_part(struct ctw_provider *base, int layer, int part)
{
    struct streamed *p = (struct streamed *)base;
    int unit = unit_of_part(p, layer, part);
    if (unit >= 0)
        end_use(p, unit);
}

static void streamed_repeat(struct ctw_provider *base, int64_t n)
{
    ctw_stream_repeat(((struct streamed *)base)->stream, n);
}

static bool streamed_needs_files(struct ctw_provider *base)
{
    const struct streamed *p = (const struct streamed *)base;
    return ctw_has_tables(p->model) || ctw_stream_needs_files(p->stream);
}

static void streamed_close(struct ctw_provider *base)
{
    struct streamed *p = (struct streamed *)base;
    struct ctw_err err;
    uint64_t fence;
    ctw_stream_close(p->stream);
    if (p->memory != NULL && (ctw_fence_record(p->be, &fence, &err) != CTW_OK ||
                              ctw_fence_wait(p->be, fence, &err) != CTW_OK))
        ctw_debug("freeing layers on a device that has failed: %s", err.msg);
    ctw_device_free(p->be, p->memory);
    ctw_placement_free(&p->place);
    ctw_free(p->joined);
    ctw_layers_free(p->model, p->data);
    ctw_free(p);
}

/* Checks that weights that all stay fit in the device's free memory. */
static enum ctw_status check_room(const struct streamed *p, struct ctw_err *err)
{
    char need[32], free_text[32];
    uint64_t have = ctw_backend_memory_free(p->be);
    enum ctw_status st = ctw_backend_sync(p->be, err); /* a failed device reports no free memory */
    if (st == CTW_OK && p->place.streamed == 0 && p->place.resident > have)
        st = ctw_fail(err, CTW_ENOMEM,
                      "the weights need %s, but only %s of the GPU's memory is free: use another "
                      "GPU or --backend cpu",
                      ctw_format_bytes(need, sizeof(need), (double)p->place.resident),
                      ctw_format_bytes(free_text, sizeof(free_text), (double)have));
    return st;
}

/* Opens the stream, then allocates memory, so that the files are read meanwhile. */
static enum ctw_status open_all(struct streamed *p, struct ctw_err *err)
{
    p->joined = ctw_calloc((size_t)p->place.n_units, sizeof(*p->joined));
    p->data = ctw_layers_alloc(p->model);
    if (p->joined == NULL || p->data == NULL)
        return ctw_fail(err, CTW_ENOMEM, "layers: out of memory");
    enum ctw_status st = ctw_stream_open(&p->stream, p->model, p->be, &p->place, p->shards, err);
    if (st == CTW_OK)
        st = ctw_arena_add_numbers(p->model, err);
    if (st == CTW_OK)
        st = check_room(p, err);
    if (st == CTW_OK)
        st = ctw_device_alloc(p->be, &p->memory, p->place.resident + p->place.ring, err);
    if (st == CTW_OK)
        ctw_stream_set_memory(p->stream, p->memory);
    if (st == CTW_OK && p->model->tied) { /* the embedding stays, and comes first in memory */
        ctw_arena_point(p->model, 0, 0, p->place.unit[0].bytes, p->memory, &p->data[0]);
        ctw_arena_tie(p->model, p->data);
    }
    return st;
}

enum ctw_status ctw_provider_open_streamed(struct ctw_provider **out, const struct ctw_model *model,
                                           struct ctw_backend *be, struct ctw_placement *place,
                                           struct ctw_shards *shards, struct ctw_err *err)
{
    static const struct ctw_provider_ops ops = {
        streamed_acquire, streamed_release,      streamed_needs_files,  streamed_close,
        streamed_parts,   streamed_acquire_part, streamed_release_part, streamed_repeat};
    struct streamed *p = ctw_calloc(1, sizeof(*p));
    if (p == NULL) {
        ctw_placement_free(place);
        return ctw_fail(err, CTW_ENOMEM, "layers: out of memory");
    }
    p->base.ops = &ops;
    p->model = model;
    p->be = be;
    p->place = *place;
    p->shards = shards;
    *place = (struct ctw_placement){0};
    enum ctw_status st = open_all(p, err);
    if (st != CTW_OK) {
        streamed_close(&p->base);
        return st;
    }
    *out = &p->base;
    return CTW_OK;
}

enum ctw_status ctw_provider_open_resident(struct ctw_provider **out, const struct ctw_model *model,
                                           struct ctw_backend *be, struct ctw_err *err)
{
    struct ctw_placement all;
    enum ctw_status st = ctw_placement_make(&all, model, UINT64_MAX, err);
    return st == CTW_OK ? ctw_provider_open_streamed(out, model, be, &all, NULL, err) : st;
}
