/*
 * The devices that a process has opened. A device is opened once and lent to the engines of all
 * models on it: they share its context, its scratch memory and, on the CPU, its threads. The device
 * is closed when the last engine returns it. One thread at a time uses the devices of a table and
 * the engines on them. Other threads may read the devices' activity (activity.h) if the table has a
 * lock.
 */
#ifndef CTW_WORKER_DEVICES_H
#define CTW_WORKER_DEVICES_H

#include <pthread.h>
#include <stdatomic.h>

#include "kernels/backend.h"
#include "worker/engine/place/machine.h"

struct ctw_identity; /* worker/checkpoint/identity.h */

enum ctw_doing { CTW_IDLE, CTW_OPENING, CTW_COMPUTING, CTW_FAILED };

/* What a device does; activity.c alone changes it, with the table's lock held. */
struct ctw_activity {
    int number; /* as in --devices */
    enum ctw_doing doing;
    atomic_bool waiting;                /* for a layer's weights; without the lock */
    char model[128];                    /* that it works on, or was opened for last */
    char message[256];                  /* CTW_FAILED: why */
    const struct ctw_identity *reading; /* of the model opened last; NULL: it is closed */
    uint64_t weights, buffers, scratch; /* bytes allocated */
    uint64_t passes_planned;            /* bytes, of the model that it works on */
    uint64_t memory_free;               /* bytes, when it was last asked */
    double asked_s, began_s;            /* for that; the pass */
    int layer, n_layers;                /* of the pass that runs: done, without the embedding */
    int64_t n_tok;                      /* in passes that ended */
    double tokens_per_s;                /* of the last of them */
};

struct ctw_device {
    struct ctw_backend *be;
    int n_engines;     /* that have borrowed it */
    int n_holders;     /* of them, engines whose plans use its scratch memory */
    char options[160]; /* that it was opened with */
    struct ctw_activity activity;
    struct ctw_device *next;
};

struct ctw_devices {
    struct ctw_device *first; /* NULL: none is open */
    pthread_mutex_t *lock;    /* for the list and the activities; NULL: one thread uses all */
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
