/*
 * Layer providers: where a layer's tensors are while it is in use. The pass acquires a layer, calls
 * operations with its pointers, and releases it; nobody keeps a pointer to a tensor beyond that.
 *
 * Operations may still read a layer's bytes when it is released, since a backend runs behind its calls.
 * So release records a fence (kernels/backend.h), and a provider waits for it before it reuses the
 * bytes, or gives them back.
 *
 * Mapped: pointers into the files, for backends that read host memory, and have then read it when a
 * call returns: that needs no fence. Resident: the checkpoint's own bytes in the device's memory, read
 * by several threads while the first pass already computes. Streamed and gathered ones come behind
 * the same three calls.
 */
#ifndef CTW_WORKER_LAYERS_H
#define CTW_WORKER_LAYERS_H

#include "worker/model/model.h"

/* Pointers as the backend wants them (for the CPU: host memory). NULL: the layer has none. */
struct ctw_layer_data {
    struct ctw_weight_data matrix[CTW_N_MATRICES];
    const void *vector[CTW_N_VECTORS];
};

struct ctw_provider;

/* The model must outlive the provider. */
enum ctw_status ctw_provider_open_mapped(struct ctw_provider **out, const struct ctw_model *model,
                                         struct ctw_err *err) CTW_MUST_CHECK;
/*
 * Allocates device memory for all layers and starts reading them, in order, in the background.
 * CTW_ENOMEM says how much is needed. The backend must outlive it. Errors of reading come out of
 * ctw_provider_acquire().
 */
enum ctw_status ctw_provider_open_resident(struct ctw_provider **out, const struct ctw_model *model,
                                           struct ctw_backend *be,
                                           struct ctw_err *err) CTW_MUST_CHECK;
/* Will the files be read again, so that they must not change? */
bool ctw_provider_needs_files(struct ctw_provider *p);
void ctw_provider_close(struct ctw_provider *p); /* NULL is fine */

/* Valid until the release of the same layer. Waits until it is there. Called, as release is, by the
 * thread that uses the backend. */
enum ctw_status ctw_provider_acquire(struct ctw_provider *p, int layer,
                                     const struct ctw_layer_data **out,
                                     struct ctw_err *err) CTW_MUST_CHECK;
/* After the last call that names the layer's bytes, also where one has failed. */
void ctw_provider_release(struct ctw_provider *p, int layer);

#endif
