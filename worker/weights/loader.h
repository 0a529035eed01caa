/*
 * Reads the layers' tensors from files into one stretch of a device's memory: several threads, in
 * the order in which the tensors were added, through stages (host memory that copies fast).
 */
#ifndef CTW_WORKER_LOADER_H
#define CTW_WORKER_LOADER_H

#include "kernels/backend.h"
#include "worker/model/model.h"

struct ctw_loader;

/* The model and the backend must outlive it. */
enum ctw_status ctw_loader_open(struct ctw_loader **out, const struct ctw_model *model,
                                struct ctw_backend *be, struct ctw_err *err) CTW_MUST_CHECK;
/* Stops reading and waits for what has begun. NULL is fine. */
void ctw_loader_close(struct ctw_loader *l);

/* The tensor goes to `at` in the device's memory, and into the identity as it is read. One layer
 * after another, by rising `at`; before ctw_loader_start(). */
enum ctw_status ctw_loader_add(struct ctw_loader *l, int layer, const struct ctw_tensor *t,
                               size_t at, struct ctw_err *err) CTW_MUST_CHECK;
/* Starts reading. What has been read is uploaded once ctw_loader_set_memory() has told where to. */
enum ctw_status ctw_loader_start(struct ctw_loader *l, struct ctw_err *err) CTW_MUST_CHECK;
void ctw_loader_set_memory(struct ctw_loader *l, void *device);

/* Until all of a layer's uploads have begun; what is computed after ctw_upload_join() sees them.
 * Fails as reading or uploading did. */
enum ctw_status ctw_loader_wait(struct ctw_loader *l, int layer,
                                struct ctw_err *err) CTW_MUST_CHECK;
/* Have all uploads begun? Then the files are not read again. */
bool ctw_loader_all_begun(struct ctw_loader *l);

#endif
