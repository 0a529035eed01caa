#include "kernels/gpu_visible.h"

#include <stdlib.h>

static const char VARIABLE[] = "CUDA_VISIBLE_DEVICES";

enum ctw_status ctw_gpu_none(struct ctw_err *err)
{
    const char *visible = getenv(VARIABLE);
    if (visible == NULL)
        return ctw_fail(err, CTW_EUNSUP, "no GPU: the driver reports none (check %s)", VARIABLE);
    return ctw_fail(err, CTW_EUNSUP,
                    "no GPU: %s is \"%s\", and with it the driver reports none: unset it, or name "
                    "GPUs as `nvidia-smi -L` lists them",
                    VARIABLE, visible);
}

enum ctw_status ctw_gpu_missing(int device, int n, bool mig, struct ctw_err *err)
{
    const char *visible = getenv(VARIABLE);
    if (mig)
        return ctw_fail(err, CTW_EINVAL,
                        "device %d: this program sees one MIG instance, device 0, as CUDA shows no "
                        "program more: start a worker for each instance, with %s=MIG-..",
                        device, VARIABLE);
    if (visible == NULL)
        return ctw_fail(err, CTW_EINVAL, "device %d: this machine has %d GPU%s, numbered from 0",
                        device, n, n == 1 ? "" : "s");
    return ctw_fail(err, CTW_EINVAL,
                    "device %d: this program sees %d GPU%s, numbered from 0, because %s is \"%s\": "
                    "name one of these, or change the variable",
                    device, n, n == 1 ? "" : "s", VARIABLE, visible);
}
