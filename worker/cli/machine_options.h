/* The options of `inspect` that describe a machine to plan for, which need not be this one. */
#ifndef CTW_WORKER_MACHINE_OPTIONS_H
#define CTW_WORKER_MACHINE_OPTIONS_H

#include "worker/cli/options.h"
#include "worker/engine/place/machine.h"

enum { CTW_N_MACHINE_OPTIONS = 6 };

/* Values that the parser fills in; start from {0}. */
struct ctw_machine_values {
    uint64_t device_memory, host_memory, disk, host, peer;
    int64_t gflops;
};

/* Fills rows[CTW_N_MACHINE_OPTIONS]; parsing them fills *values. */
void ctw_machine_option_rows(struct ctw_option *rows, struct ctw_machine_values *values);

/* The machine, of which --devices `devices` (or NULL) is the number of GPUs if their memory is
 * given. CTW_EINVAL: it is no number. */
enum ctw_status ctw_machine_from(struct ctw_machine *out, const struct ctw_machine_values *values,
                                 const char *devices, struct ctw_err *err) CTW_MUST_CHECK;

#endif
