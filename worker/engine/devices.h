/*
 * The devices that a process has opened. A device is opened once and lent to the engines of all
 * models on it: they share its context, its scratch memory and, on the CPU, its threads. When the
 * last engine returns it, it is closed. One thread at a time uses the devices of a table and the
 * engines on them.
 */
#ifndef CTW_WORKER_DEVICES_H
#define CTW_WORKER_DEVICES_H

#include "kernels/backend.h"
#include "worker/engine/machine.h"

struct ctw_device {
    struct ctw_backend *be;
    int n_engines;     /* that have borrowed it */
    int n_holders;     /* of them, engines whose plans use its scratch memory */
    char options[160]; /* that it was opened with */
    struct ctw_device *next;
};

struct ctw_devices {
    struct ctw_device *first; /* NULL: none is open */
};

/* Opens a device, or lends the one that is open with these options. The arguments and errors are
 * those of ctw_backend_open(). */
enum ctw_status ctw_devices_borrow(struct ctw_devices *all, struct ctw_device **out,
                                   const char *backend, const struct ctw_backend_options *opt,
                                   struct ctw_err *err) CTW_MUST_CHECK;
/* The same for a device that is only planned for: ctw_backend_open_planned(). */
enum ctw_status ctw_devices_plan(struct ctw_devices *all, struct ctw_device **out,
                                 const struct ctw_machine *machine,
                                 struct ctw_err *err) CTW_MUST_CHECK;
void ctw_devices_return(struct ctw_devices *all, struct ctw_device *d); /* NULL is fine */

#endif
