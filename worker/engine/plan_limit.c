/* The memory that is available, and the default memory limit. */
#include "base/host.h"
#include "worker/engine/machine.h"
#include "worker/engine/plan.h"

static const uint64_t LIMIT_FLOOR = 512ull << 20;

uint64_t ctw_plan_available(void)
{
    return ctw_host_memory("").free;
}

uint64_t ctw_machine_memory(const struct ctw_machine *m)
{
    return m->host_memory > 0 ? m->host_memory : ctw_plan_available();
}

uint64_t ctw_plan_default_limit(const struct ctw_machine *m)
{
    uint64_t quarter = ctw_machine_memory(m) / 4;
    return quarter > LIMIT_FLOOR ? quarter : LIMIT_FLOOR;
}
