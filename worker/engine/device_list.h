/* Which devices: "all", "0,1,5", "0-3". */
#ifndef CTW_WORKER_DEVICE_LIST_H
#define CTW_WORKER_DEVICE_LIST_H

#include "base/status.h"
#include "worker/engine/engine.h"

struct ctw_device_list {
    bool all; /* however many there are; `number` is then empty */
    int number[CTW_MAX_DEVICES];
    int n;
};

/* CTW_EINVAL: the text is none, names a device twice, or too many. */
enum ctw_status ctw_device_list_parse(struct ctw_device_list *out, const char *text,
                                      struct ctw_err *err) CTW_MUST_CHECK;

#endif
