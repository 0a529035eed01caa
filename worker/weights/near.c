#include "worker/weights/near.h"

#include "base/numa.h"

void ctw_run_near(struct ctw_backend *be)
{
    struct ctw_backend_info info;
    ctw_backend_get_info(be, &info);
    ctw_numa_run_on("", ctw_numa_of_pci("", info.pci));
}
