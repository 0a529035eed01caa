/* A list of devices: "all", "0,1,5", "0-3", "GPU-6b0c,GPU-1f". */
#ifndef CTW_WORKER_DEVICE_LIST_H
#define CTW_WORKER_DEVICE_LIST_H

#include "base/status.h"
#include "worker/engine/engine.h"

struct ctw_device_list {
    bool all; /* however many there are; `number` is then empty */
    int number[CTW_MAX_DEVICES];
    int n;
};

/* CTW_EINVAL: the text is no list, or names a device twice, too many devices, or a UUID that no GPU
 * of the backend has. */
enum ctw_status ctw_device_list_parse(struct ctw_device_list *out, const char *text,
                                      const char *backend, struct ctw_err *err) CTW_MUST_CHECK;

#endif
