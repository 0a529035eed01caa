#include "worker/inspect_device.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/mem.h"
#include "base/sha256.h"
#include "worker/dtype_name.h"
#include "worker/layers.h"

enum { BLOCK_BYTES = 64 << 20 };

struct hashing {
    const struct ctw_model *model;
    struct ctw_backend *be;
    size_t bytes; /* of the two */
    void *device, *host;
};

static enum ctw_status hash_matrix(struct hashing *h, const struct ctw_matrix *m,
                                   const struct ctw_weight_data *data, char hex[65],
                                   struct ctw_err *err)
{
    size_t row_bytes = (size_t)m->weight.k * ctw_dtype_bytes(h->model->dtype);
    int64_t block = (int64_t)(h->bytes / row_bytes);
    if (block > 8) /* as packed zero points lie: decoders take each block as they take the whole */
        block -= block % 8;
    const struct ctw_shard shard = {.weight = &m->weight, .data = data};
    struct ctw_sha256 sha;
    ctw_sha256_init(&sha);
    for (int64_t row = 0; row < m->weight.n; row += block) {
        int64_t n = m->weight.n - row < block ? m->weight.n - row : block;
        const struct ctw_op_decode op = {.shard = &shard,
                                         .row0 = row,
                                         .n_rows = n,
                                         .dtype = h->model->dtype,
                                         .dst = h->device};
        enum ctw_status st = ctw_decode(h->be, &op, err);
        if (st == CTW_OK)
            st = ctw_device_download(h->be, h->host, h->device, (size_t)n * row_bytes, err);
        if (st != CTW_OK)
            return st;
        ctw_sha256_update(&sha, h->host, (size_t)n * row_bytes);
    }
    ctw_sha256_final_hex(&sha, hex);
    return CTW_OK;
}

static enum ctw_status hash_layer(struct hashing *h, struct ctw_provider *provider, int layer,
                                  struct ctw_err *err)
{
    const struct ctw_layer_data *data;
    enum ctw_status st = ctw_provider_acquire(provider, layer, &data, err);
    if (st != CTW_OK)
        return st;
    for (int i = 0; st == CTW_OK && i < CTW_N_MATRICES; i++) {
        const struct ctw_matrix *m = &h->model->layers[layer].matrix[i];
        char hex[65];
        if (m->name == NULL || i == CTW_M_EMBED)
            continue;
        st = hash_matrix(h, m, &data->matrix[i], hex, err);
        if (st == CTW_OK)
            printf("%s.weight  %" PRId64 "  %" PRId64 "  %s  %s\n", m->name, m->weight.n,
                   m->weight.k, ctw_dtype_long_name(h->model->dtype), hex);
    }
    ctw_provider_release(provider, layer);
    return st;
}

/* Room for a block of rows, and for at least one of the longest. */
static enum ctw_status open_blocks(struct hashing *h, struct ctw_err *err)
{
    h->bytes = BLOCK_BYTES;
    for (int l = 0; l < h->model->n_layers; l++)
        for (int i = 0; i < CTW_N_MATRICES; i++) {
            size_t row = (size_t)h->model->layers[l].matrix[i].weight.k * sizeof(float);
            h->bytes = row > h->bytes ? row : h->bytes;
        }
    h->host = ctw_alloc_aligned(h->bytes);
    if (h->host == NULL)
        return ctw_fail(err, CTW_ENOMEM, "out of memory for decoded weights");
    return ctw_device_alloc(h->be, &h->device, h->bytes, err);
}

enum ctw_status ctw_inspect_device_hashes(const struct ctw_model *model,
                                          const struct ctw_engine_options *opt, struct ctw_err *err)
{
    struct hashing h = {.model = model};
    struct ctw_provider *provider = NULL;
    const struct ctw_backend_options be_opt = {
        .cuda_variant = opt->cuda_variant, .n_threads = opt->n_threads, .device = opt->device};
    enum ctw_status st = ctw_backend_open(&h.be, opt->backend, &be_opt, err);
    if (st == CTW_OK && ctw_backend_traits(h.be)->host_memory)
        st = ctw_fail(err, CTW_EUNSUP, "this backend decodes host memory");
    if (st == CTW_OK)
        st = ctw_provider_open_resident(&provider, model, h.be, err);
    if (st == CTW_OK)
        st = open_blocks(&h, err);
    for (int layer = 0; st == CTW_OK && layer < model->n_layers; layer++)
        st = hash_layer(&h, provider, layer, err);
    if (h.be != NULL)
        ctw_device_free(h.be, h.device);
    ctw_free_aligned(h.host);
    ctw_provider_close(provider);
    ctw_backend_close(h.be);
    return st;
}
