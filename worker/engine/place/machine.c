/* The memory that is available. */
#include "worker/engine/place/machine.h"
#include "base/host.h"
#include "worker/engine/pass/plan.h"

uint64_t ctw_plan_available(void)
{
    return ctw_host_memory("").free;
}

uint64_t ctw_machine_memory(const struct ctw_machine *m)
{
    return m->host_memory > 0 ? m->host_memory : ctw_plan_available();
}
