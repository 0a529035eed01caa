/* The memory that is available, and the default memory limit. */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "worker/engine/machine.h"
#include "worker/engine/plan.h"

static const uint64_t LIMIT_FLOOR = 512ull << 20;

/* The number at the start of a file, or `none`. */
static uint64_t number_in(const char *path, uint64_t none)
{
    unsigned long long n;
    FILE *f = fopen(path, "re");
    if (f == NULL)
        return none;
    bool read = fscanf(f, "%llu", &n) == 1; /* not "max" */
    fclose(f);
    return read ? n : none;
}

static uint64_t machine_available(void)
{
    unsigned long long kib = 0;
    FILE *f = fopen("/proc/meminfo", "re");
    if (f == NULL)
        return 0;
    char line[128];
    while (fgets(line, sizeof(line), f) != NULL)
        if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1)
            break;
    fclose(f);
    return (uint64_t)kib * 1024;
}

/* The memory left in this process's control groups (version 2). The limit of a container or batch
 * job may be set at any level above the process's own group. UINT64_MAX: no limit. */
static uint64_t cgroup_available(void)
{
    static const char ROOT[] = "/sys/fs/cgroup";
    char group[PATH_MAX], path[PATH_MAX + 64];
    uint64_t least = UINT64_MAX;
    FILE *f = fopen("/proc/self/cgroup", "re");
    if (f == NULL)
        return least;
    group[0] = '\0';
    char line[PATH_MAX];
    while (fgets(line, sizeof(line), f) != NULL)
        if (strncmp(line, "0::/", 4) == 0)
            snprintf(group, sizeof(group), "%.*s", (int)strcspn(line + 3, "\n"), line + 3);
    fclose(f);
    for (;;) {
        snprintf(path, sizeof(path), "%s%s/memory.max", ROOT, group);
        uint64_t most = number_in(path, UINT64_MAX);
        if (most != UINT64_MAX) {
            snprintf(path, sizeof(path), "%s%s/memory.current", ROOT, group);
            uint64_t used = number_in(path, 0);
            uint64_t left = most > used ? most - used : 0;
            least = left < least ? left : least;
        }
        char *slash = strrchr(group, '/');
        if (slash == NULL)
            return least;
        *slash = '\0';
    }
}

uint64_t ctw_plan_available(void)
{
    uint64_t have = machine_available(), group = cgroup_available();
    return group < have ? group : have;
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
