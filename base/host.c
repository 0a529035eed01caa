#include "base/host.h"

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/status.h"

/* ---- files -------------------------------------------------------------------------------- */

static FILE *open_at(const char *root, const char *folder, const char *name)
{
    char path[3 * PATH_MAX];
    snprintf(path, sizeof(path), "%s%s%s%s", root, folder, name[0] == '\0' ? "" : "/", name);
    return fopen(path, "re");
}

/* Reads the first n numbers of a file. False: the file has fewer ("max", for example), or does not
 * exist. */
static bool numbers_in(const char *root, const char *folder, const char *name, int n,
                       long long out[2])
{
    FILE *f = open_at(root, folder, name);
    if (f == NULL)
        return false;
    int got = fscanf(f, n == 1 ? "%lld" : "%lld %lld", &out[0], &out[1]);
    fclose(f);
    return got == n;
}

/* The number that follows `key` on a line of the file; 0 if no line has the key. */
static uint64_t number_of(const char *root, const char *folder, const char *name, const char *key)
{
    unsigned long long n = 0;
    char line[128];
    size_t length = strlen(key);
    FILE *f = open_at(root, folder, name);
    if (f == NULL)
        return 0;
    while (fgets(line, sizeof(line), f) != NULL)
        if (strncmp(line, key, length) == 0 && sscanf(line + length, " %llu", &n) == 1)
            break;
    fclose(f);
    return n;
}

/* ---- control groups ----------------------------------------------------------------------- */

/* The names that a version of control groups uses. */
struct version {
    const char *mount; /* of the memory controller's groups */
    const char
        *controller; /* version 1: name of the controller in /proc/self/cgroup; NULL: version 2 */
    const char *most, *used;
    const char *cache[2]; /* keys of memory.stat: pages of files, which the kernel takes back */
};

static const struct version memory_versions[] = {
    {"/sys/fs/cgroup", NULL, "memory.max", "memory.current", {"inactive_file", "active_file"}},
    {"/sys/fs/cgroup/memory",
     "memory",
     "memory.limit_in_bytes",
     "memory.usage_in_bytes",
     {"total_inactive_file", "total_active_file"}}};

/* Is the name in a list of names between commas? */
static bool lists(const char *names, size_t n, const char *name)
{
    size_t length = strlen(name);
    for (const char *end = names + n; names < end; names++) {
        size_t one = strcspn(names, ",");
        one = names + one > end ? (size_t)(end - names) : one;
        if (one == length && strncmp(names, name, length) == 0)
            return true;
        names += one;
    }
    return false;
}

/* Finds the folder of the process's group below `mount`, from a line "0::/group" or
 * "4:cpu,cpuacct:/group". */
static bool find_group(const char *root, const char *mount, const char *controller,
                       char group[2 * PATH_MAX])
{
    char line[PATH_MAX];
    bool found = false;
    FILE *f = open_at(root, "/proc/self/cgroup", "");
    if (f == NULL)
        return false;
    while (!found && fgets(line, sizeof(line), f) != NULL) {
        const char *of = strchr(line, ':'), *path = of != NULL ? strchr(of + 1, ':') : NULL;
        if (path == NULL)
            continue;
        found = controller != NULL ? lists(of + 1, (size_t)(path - of - 1), controller)
                                   : strncmp(line, "0::", 3) == 0;
        if (found)
            snprintf(group, 2 * PATH_MAX, "%s%.*s", mount, (int)strcspn(path + 1, "\n"), path + 1);
    }
    fclose(f);
    return found;
}

/* Cuts the last part of the group's path. False: the path was the mount. */
static bool go_up(char *group, const char *mount)
{
    char *slash = strrchr(group, '/');
    if (slash == NULL || (size_t)(slash - group) < strlen(mount))
        return false;
    *slash = '\0';
    return true;
}

/* ---- memory ------------------------------------------------------------------------------- */

static uint64_t less(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static void limit_memory(const char *root, const struct version *v, struct ctw_host_memory *m)
{
    char group[2 * PATH_MAX];
    if (!find_group(root, v->mount, v->controller, group))
        return;
    do {
        long long most[2], used[2] = {0};
        if (!numbers_in(root, group, v->most, 1, most) || most[0] < 0)
            continue;
        (void)numbers_in(root, group, v->used, 1, used);
        uint64_t busy = (uint64_t)used[0];
        for (size_t i = 0; i < CTW_COUNT(v->cache); i++)
            busy -= less(busy, number_of(root, group, "memory.stat", v->cache[i]));
        m->total = less(m->total, (uint64_t)most[0]);
        m->free = less(m->free, (uint64_t)most[0] - less((uint64_t)most[0], busy));
    } while (go_up(group, v->mount));
}

struct ctw_host_memory ctw_host_memory(const char *root)
{
    struct ctw_host_memory m = {
        .total = number_of(root, "/proc/meminfo", "", "MemTotal:") * 1024,
        .free = number_of(root, "/proc/meminfo", "", "MemAvailable:") * 1024,
    };
    for (size_t i = 0; i < CTW_COUNT(memory_versions); i++)
        limit_memory(root, &memory_versions[i], &m);
    return m;
}

uint64_t ctw_host_resident(const char *root)
{
    long long pages[2]; /* pages of the address space, and pages in memory */
    bool known = numbers_in(root, "/proc/self/statm", "", 2, pages);
    return known ? (uint64_t)pages[1] * (uint64_t)sysconf(_SC_PAGESIZE) : 0;
}

/* ---- CPUs --------------------------------------------------------------------------------- */

/* quota: microseconds of CPU time per `period` microseconds. */
static int limit_cpus(int n, long long quota, long long period)
{
    if (quota <= 0 || period <= 0) /* there is no quota */
        return n;
    long long limit = (quota + period - 1) / period;
    return limit < n ? (int)limit : n;
}

int ctw_host_cpus(const char *root, int n)
{
    static const char new_mount[] = "/sys/fs/cgroup", old_mount[] = "/sys/fs/cgroup/cpu";
    char group[2 * PATH_MAX];
    if (find_group(root, new_mount, NULL, group)) {
        do {
            long long max[2]; /* of "150000 100000", or "max 100000" */
            if (numbers_in(root, group, "cpu.max", 2, max))
                n = limit_cpus(n, max[0], max[1]);
        } while (go_up(group, new_mount));
    }
    if (find_group(root, old_mount, "cpu", group)) {
        do {
            long long quota[2], period[2];
            if (numbers_in(root, group, "cpu.cfs_quota_us", 1, quota) &&
                numbers_in(root, group, "cpu.cfs_period_us", 1, period))
                n = limit_cpus(n, quota[0], period[0]);
        } while (go_up(group, old_mount));
    }
    return n < 1 ? 1 : n;
}
