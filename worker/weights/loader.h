/*
 * Reads the layers' tensors from files into one contiguous range of device memory, with several
 * threads, in the order in which the tensors were added, through stages (pinned host memory).
 */
#ifndef CTW_WORKER_LOADER_H
#define CTW_WORKER_LOADER_H

#include "kernels/backend.h"
#include "worker/model/model.h"

struct ctw_loader;

/* The model and the backend must outlive the loader. */
enum ctw_status ctw_loader_open(struct ctw_loader **out, const struct ctw_model *model,
                                struct ctw_backend *be, struct ctw_err *err) CTW_MUST_CHECK;
/* Stops reading and waits for operations in flight. NULL is fine. */
void ctw_loader_close(struct ctw_loader *l);

/* Adds a tensor, which goes to offset `at` in the device's memory; reading it also adds it to the
 * identity. Add one layer after another, by increasing `at`, before ctw_loader_start(). */
enum ctw_status ctw_loader_add(struct ctw_loader *l, int layer, const struct ctw_tensor *t,
                               size_t at, struct ctw_err *err) CTW_MUST_CHECK;
/* Starts reading. Uploads begin once ctw_loader_set_memory() has set their destination. */
enum ctw_status ctw_loader_start(struct ctw_loader *l, struct ctw_err *err) CTW_MUST_CHECK;
void ctw_loader_set_memory(struct ctw_loader *l, void *device);

/* Waits until all of a layer's uploads have begun; computations after ctw_upload_join() see their
 * data. If reading or uploading fails, returns that failure. */
enum ctw_status ctw_loader_wait(struct ctw_loader *l, int layer,
                                struct ctw_err *err) CTW_MUST_CHECK;
/* Have all uploads begun? If so, the files are not read again. */
bool ctw_loader_all_begun(struct ctw_loader *l);

#endif
