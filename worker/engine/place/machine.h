/*
 * The machine that a plan is made for: this one, or one that a user describes (`inspect
 * --device-memory`), which need not have a GPU. What is not described is asked of this machine, or
 * assumed.
 */
#ifndef CTW_WORKER_MACHINE_H
#define CTW_WORKER_MACHINE_H

#include <stdint.h>

/* Members are 0 where nothing is described. */
struct ctw_machine {
    int n_devices;           /* GPUs that need not be here; 0: what computes is opened as usual */
    uint64_t device_memory;  /* bytes of each */
    uint64_t host_memory;    /* that processes could have */
    double flops;            /* floating-point operations a second, of a device */
    double disk, host, peer; /* bytes a second: of the files' disk; from host memory to a device;
                                between two devices */
};

/* limits.c: what requests and results that wait may take of `have` free bytes of host memory. */
uint64_t ctw_queue_share(uint64_t have);
/* limits.c: what is left for weights and passes of `have` free bytes of host memory, behind the
 * program itself and requests. */
uint64_t ctw_host_left(uint64_t have);

/* What is described, or else ctw_plan_available(). */
uint64_t ctw_machine_memory(const struct ctw_machine *m);

#endif
