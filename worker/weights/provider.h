/*
 * A layer provider makes the tensors of a layer available while the layer is in use. The pass
 * acquires a layer, calls operations with its pointers, and releases it. After the release no
 * pointer to a tensor is valid.
 *
 * While a layer is acquired, its parts are acquired one by one: the matrices of a decoder layer,
 * until they are prepared; rows of the embedding or of the head. So a layer can take less memory
 * than it has bytes. Most layers have one part, which is the whole layer and stays until the
 * layer's release.
 *
 * Operations may still read the bytes of a layer after its release, because a backend may be
 * asynchronous. So the release records a fence (kernels/backend.h), and the provider waits for the
 * fence before it reuses or frees the bytes.
 *
 * Mapped provider: pointers into the mapped files, for backends that read host memory. Such a
 * backend has finished reading when its call returns, so no fence is needed.
 * Streamed provider, for every backend: as many layers stay in memory as a limit allows, and the
 * other layers are read ahead of their use in every pass. Several threads read while the first pass
 * already computes. This provider also gathers layers whose bytes are spread over several devices.
 * Exchanged provider: the layers of one provider, with one matrix from another.
 */
#ifndef CTW_WORKER_PROVIDER_H
#define CTW_WORKER_PROVIDER_H

#include <stdatomic.h>

#include "worker/model/model.h"
#include "worker/weights/placement.h"

/* Addresses that the backend can read (for the CPU: host memory). NULL: the layer has no such
 * tensor. */
struct ctw_layer_data {
    struct ctw_weight_data matrix[CTW_N_MATRICES];
    struct ctw_weight_data *expert; /* [n_experts][CTW_N_EXPERT_MATRICES]; NULL: no experts */
    const void *vector[CTW_N_VECTORS];
    /* The rows of an embedding or head that the matrix's address leads to. n_rows 0: all rows. */
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
/* Starts reading, and allocates the memory of the placement. Takes over the contents of *place,
 * also after a failure. `shards` (shards.h; NULL: none): layers that do not stay are gathered from
 * the shards. The shards and the backend must outlive the provider. CTW_ENOMEM: the message states
 * the memory that is needed. ctw_provider_acquire() returns errors of reading. */
enum ctw_status ctw_provider_open_streamed(struct ctw_provider **out, const struct ctw_model *model,
                                           struct ctw_backend *be, struct ctw_placement *place,
                                           struct ctw_shards *shards,
                                           struct ctw_err *err) CTW_MUST_CHECK;
/* The same, with a placement in which all layers stay. */
enum ctw_status ctw_provider_open_resident(struct ctw_provider **out, const struct ctw_model *model,
                                           struct ctw_backend *be,
                                           struct ctw_err *err) CTW_MUST_CHECK;
/*
 * The layers of `most`, with one matrix at a time from `other`. ctw_provider_exchange() chooses the
 * matrix while no layer is acquired; layer -1: none. `role`: a matrix of the layer; of the head if
 * is_head; or CTW_N_MATRICES + a ctw_expert_role, for that matrix of all experts. Both models must
 * have the matrix, and at most n_experts experts in the layer. `most` and `other` must outlive the
 * provider, and can still be used directly.
 */
enum ctw_status ctw_provider_open_exchanged(struct ctw_provider **out, struct ctw_provider *most,
                                            struct ctw_provider *other, int n_experts,
                                            struct ctw_err *err) CTW_MUST_CHECK;
void ctw_provider_exchange(struct ctw_provider *p, int layer, int role, bool is_head,
                           int n_experts);
/* Of an exchanged provider: did the last acquire fail in `other`? */
bool ctw_provider_failed_in_other(const struct ctw_provider *p);
/* Will the provider read the files again? If so, they must not change. */
bool ctw_provider_needs_files(struct ctw_provider *p);
/* From now on *waiting is true while a thread waits in ctw_provider_acquire(). */
void ctw_provider_watch(struct ctw_provider *p, atomic_bool *waiting);
void ctw_provider_close(struct ctw_provider *p); /* NULL is fine */

/* Waits until the layer is available. *out is valid until the release of the same layer. The thread
 * that uses the backend calls acquire and release. */
enum ctw_status ctw_provider_acquire(struct ctw_provider *p, int layer,
                                     const struct ctw_layer_data **out,
                                     struct ctw_err *err) CTW_MUST_CHECK;
/* Called after the last operation on the layer's bytes, also if an operation failed. */
void ctw_provider_release(struct ctw_provider *p, int layer);

/* The number of the layer's parts, which are used in their order. A decoder layer has one part. */
int ctw_provider_parts(struct ctw_provider *p, int layer);
/*
 * Waits until a part of the acquired layer is available, and completes the data that acquiring the
 * layer returned. Operations may read the part until its release. After the release, an operation
 * may still name the matrices of a decoder layer if they have been prepared and the backend decodes
 * ahead.
 */
enum ctw_status ctw_provider_acquire_part(struct ctw_provider *p, int layer, int part,
                                          struct ctw_err *err) CTW_MUST_CHECK;
void ctw_provider_release_part(struct ctw_provider *p, int layer, int part);
/* Announces that the parts of the last layer will be acquired n >= 1 times in every pass, from
 * first to last. Initially n is 1. If the announcement is wrong, only the bytes that were read
 * ahead are lost. */
void ctw_provider_repeat(struct ctw_provider *p, int64_t n);

#endif
