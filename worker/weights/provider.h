/*
 * A layer provider makes a layer's tensors available while the layer is in use. The pass acquires a
 * layer, calls operations with its pointers, and releases it; after the release no pointer to a
 * tensor is valid.
 *
 * While a layer is acquired, its parts are acquired one by one: a decoder layer's matrices, until
 * they are prepared; rows of the embedding or of the head. So the memory that they take can be less
 * than a layer has. Of most layers the only part is all of it, and stays until the layer's release.
 *
 * Operations may still read a layer's bytes after its release, since a backend may be asynchronous.
 * So release records a fence (kernels/backend.h), and a provider waits for the fence before it
 * reuses or frees the bytes.
 *
 * Mapped provider: pointers into the mapped files, for backends that read host memory. Such a
 * backend has finished reading when a call returns, so no fence is needed. Streamed provider, for
 * every backend: as many layers stay in its memory as a limit allows, and the others are read ahead
 * of their use in every pass. Several threads read while the first pass already computes. It also
 * gathers layers whose bytes are spread over several devices. Exchanged provider: another's layers,
 * with one matrix from a third.
 */
#ifndef CTW_WORKER_PROVIDER_H
#define CTW_WORKER_PROVIDER_H

#include <stdatomic.h>

#include "worker/model/model.h"
#include "worker/weights/placement.h"

/* Pointers that the backend can read (for the CPU: host memory). NULL: the layer has none. */
struct ctw_layer_data {
    struct ctw_weight_data matrix[CTW_N_MATRICES];
    struct ctw_weight_data *expert; /* [n_experts][CTW_N_EXPERT_MATRICES]; NULL: no experts */
    const void *vector[CTW_N_VECTORS];
    /* Of an embedding or head in parts: the rows to which its pointer leads. n_rows 0: to all. */
    int64_t row0, n_rows;
};

/* The data of ctw_layer_matrix(layer, i). */
static inline struct ctw_weight_data *ctw_data_matrix(struct ctw_layer_data *data, int i)
{
    return i < CTW_N_MATRICES ? &data->matrix[i] : &data->expert[i - CTW_N_MATRICES];
}

static inline const struct ctw_weight_data *ctw_data_matrix_of(const struct ctw_layer_data *data,
                                                               int i)
{
    return i < CTW_N_MATRICES ? &data->matrix[i] : &data->expert[i - CTW_N_MATRICES];
}

/* [n_layers], without addresses. NULL: out of memory. ctw_layers_free(): NULL is fine. */
struct ctw_layer_data *ctw_layers_alloc(const struct ctw_model *m);
void ctw_layers_free(const struct ctw_model *m, struct ctw_layer_data *layers);

struct ctw_provider;
struct ctw_shards; /* worker/weights/shards.h */

/* The model must outlive the provider. */
enum ctw_status ctw_provider_open_mapped(struct ctw_provider **out, const struct ctw_model *model,
                                         struct ctw_err *err) CTW_MUST_CHECK;
/* Starts reading, and allocates the placement's memory. Takes over what *place holds, even if it
 * fails. CTW_ENOMEM: the message says how much memory is needed. `shards` (shards.h; NULL: none):
 * layers that do not stay are gathered from them; they and the backend must outlive the provider.
 * ctw_provider_acquire() returns read errors. */
enum ctw_status ctw_provider_open_streamed(struct ctw_provider **out, const struct ctw_model *model,
                                           struct ctw_backend *be, struct ctw_placement *place,
                                           struct ctw_shards *shards,
                                           struct ctw_err *err) CTW_MUST_CHECK;
/* Of a placement in which all layers stay. */
enum ctw_status ctw_provider_open_resident(struct ctw_provider **out, const struct ctw_model *model,
                                           struct ctw_backend *be,
                                           struct ctw_err *err) CTW_MUST_CHECK;
/*
 * All of `most`, except for one matrix at a time, which is `other`'s: ctw_provider_exchange() says
 * which, while no layer is acquired; layer -1: none. `role` is the layer's matrix; is_head: that of
 * the head; CTW_N_MATRICES + a ctw_expert_role: this
 * matrix of all experts. Both models have a matrix there, and layers of at most n_experts. `most`
 * and `other` must outlive it, and stay usable by themselves.
 */
enum ctw_status ctw_provider_open_exchanged(struct ctw_provider **out, struct ctw_provider *most,
                                            struct ctw_provider *other, int n_experts,
                                            struct ctw_err *err) CTW_MUST_CHECK;
void ctw_provider_exchange(struct ctw_provider *p, int layer, int role, bool is_head,
                           int n_experts);
/* Of an exchanged provider: did the last acquire fail, and in `other`? */
bool ctw_provider_failed_in_other(const struct ctw_provider *p);
/* Will the provider read the files again? If so, they must not change. */
bool ctw_provider_needs_files(struct ctw_provider *p);
/* *waiting is true from now on while a thread waits in ctw_provider_acquire(). */
void ctw_provider_watch(struct ctw_provider *p, atomic_bool *waiting);
void ctw_provider_close(struct ctw_provider *p); /* NULL is fine */

/* Waits until the layer is available. *out is valid until the release of the same layer. The thread
 * that uses the backend calls acquire and release. */
enum ctw_status ctw_provider_acquire(struct ctw_provider *p, int layer,
                                     const struct ctw_layer_data **out,
                                     struct ctw_err *err) CTW_MUST_CHECK;
/* Called after the last operation on the layer's bytes, also if an operation failed. */
void ctw_provider_release(struct ctw_provider *p, int layer);

/* The number of the layer's parts, which are used in their order; a decoder layer has one. */
int ctw_provider_parts(struct ctw_provider *p, int layer);
/*
 * Waits until a part of the acquired layer is available; completes the data that acquiring it
 * returned. Until the part's release operations may read it; afterwards they may name a decoder
 * layer's matrices if these have been prepared and the backend decodes ahead.
 */
enum ctw_status ctw_provider_acquire_part(struct ctw_provider *p, int layer, int part,
                                          struct ctw_err *err) CTW_MUST_CHECK;
void ctw_provider_release_part(struct ctw_provider *p, int layer, int part);
/* The last layer's parts will be acquired n >= 1 times in every pass, from first to last; at
 * first 1. If that proves wrong, only what was read ahead is lost. */
void ctw_provider_repeat(struct ctw_provider *p, int64_t n);

#endif
