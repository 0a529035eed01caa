#include "worker/cli/machine_options.h"

#include <stdlib.h>
#include <string.h>

#include "worker/engine/engine.h"

void ctw_machine_option_rows(struct ctw_option *rows, struct ctw_machine_values *v)
{
    const struct ctw_option all[] = {
        ctw_opt_bytes("device-memory", &v->device_memory, "SIZE",
                      "plan for GPUs with this much memory each, whether the machine has them or "
                      "not; --devices is then their number (default: 1)"),
        ctw_opt_bytes(
            "host-memory", &v->host_memory, "SIZE",
            "plan for a machine with this much available memory (default: this machine's)"),
        ctw_opt_int("compute-rate", &v->gflops, 0, 100000000, "GFLOPS",
                    "rate of a device in 16-bit products (default: measured on a CPU, estimated "
                    "from a GPU's kind, 150000 for --device-memory)"),
        ctw_opt_bytes("disk-rate", &v->disk, "SIZE",
                      "bytes per second from the files' disk (default: measured, or 3GB for a "
                      "described machine)"),
        ctw_opt_bytes("host-rate", &v->host, "SIZE",
                      "bytes per second from host memory to a GPU (default: measured, or 25GB for "
                      "a described machine)"),
        ctw_opt_bytes("peer-rate", &v->peer, "SIZE",
                      "bytes per second from one GPU to another (default: measured, or 20GB for a "
                      "described machine)"),
    };
    _Static_assert(CTW_COUNT(all) == CTW_N_MACHINE_OPTIONS, "count the rows");
    memcpy(rows, all, sizeof(all));
}

enum ctw_status ctw_machine_from(struct ctw_machine *out, const struct ctw_machine_values *v,
                                 const char *devices, struct ctw_err *err)
{
    *out = (struct ctw_machine){.device_memory = v->device_memory,
                                .host_memory = v->host_memory,
                                .flops = 1e9 * (double)v->gflops,
                                .disk = (double)v->disk,
                                .host = (double)v->host,
                                .peer = (double)v->peer};
    if (v->device_memory == 0)
        return CTW_OK;
    char *end = NULL;
    long n = devices == NULL ? 1 : strtol(devices, &end, 10);
    if (n < 1 || n > CTW_MAX_DEVICES || (end != NULL && *end != '\0'))
        return ctw_fail(err, CTW_EINVAL,
                        "--devices %s: with --device-memory it is the number of GPUs, 1 to %d",
                        devices, CTW_MAX_DEVICES);
    out->n_devices = (int)n;
    return CTW_OK;
}
