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

/* The number that follows `name` on a line of the file; 0 if no line has the name. */
static uint64_t number_of(const char *path, const char *name)
{
    unsigned long long n = 0;
    char line[128];
    size_t length = strlen(name);
    FILE *f = fopen(path, "re");
    if (f == NULL)
        return 0;
    while (fgets(line, sizeof(line), f) != NULL)
        if (strncmp(line, name, length) == 0 && sscanf(line + length, " %llu", &n) == 1)
            break;
    fclose(f);
    return n;
}

static uint64_t machine_available(void)
{
    return number_of("/proc/meminfo", "MemAvailable:") * 1024;
}

/* What a version of control groups calls its things. */
struct version {
    const char *root, *most, *used;
    const char *cache; /* in memory.stat: pages of files that nobody used lately */
    bool old;          /* version 1, whose memory groups have a line of their own */
};

/* The process's group, from its line "0::/group", or "9:memory:/group" of version 1. */
static bool find_group(const struct version *v, char *group, size_t cap)
{
    char line[PATH_MAX];
    bool found = false;
    FILE *f = fopen("/proc/self/cgroup", "re");
    if (f == NULL)
        return false;
    while (!found && fgets(line, sizeof(line), f) != NULL) {
        const char *of = strchr(line, ':'), *path = of != NULL ? strchr(of + 1, ':') : NULL;
        if (path == NULL)
            continue;
        found = v->old ? strncmp(of, ":memory:", 8) == 0 : strncmp(line, "0::", 3) == 0;
        if (found)
            snprintf(group, cap, "%.*s", (int)strcspn(path + 1, "\n"), path + 1);
    }
    fclose(f);
    return found;
}

/* The memory left in this process's control groups. The limit of a container or batch job may be
 * set at any level above the process's own group. UINT64_MAX: no limit. */
static uint64_t cgroup_available(const struct version *v)
{
    char group[PATH_MAX], path[PATH_MAX + 64];
    uint64_t least = UINT64_MAX;
    if (!find_group(v, group, sizeof(group)))
        return least;
    for (;;) {
        snprintf(path, sizeof(path), "%s%s/%s", v->root, group, v->most);
        uint64_t most = number_in(path, UINT64_MAX);
        if (most != UINT64_MAX) {
            snprintf(path, sizeof(path), "%s%s/%s", v->root, group, v->used);
            uint64_t used = number_in(path, 0);
            snprintf(path, sizeof(path), "%s%s/memory.stat", v->root, group);
            uint64_t cache = number_of(path, v->cache);
            used -= cache < used ? cache : used;
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
    static const struct version versions[] = {
        {"/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file", false},
        {"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
         "total_inactive_file", true}};
    uint64_t have = machine_available();
    for (size_t i = 0; i < CTW_COUNT(versions); i++) {
        uint64_t group = cgroup_available(&versions[i]);
        have = group < have ? group : have;
    }
    return have;
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
