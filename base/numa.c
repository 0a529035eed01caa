#include "base/numa.h"

#include <ctype.h>
#include <limits.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Reads the first line of the file root/name; false if that fails. */
static bool read_line(const char *root, const char *name, char line[4096])
{
    char path[2 * PATH_MAX];
    snprintf(path, sizeof(path), "%s%s", root, name);
    FILE *f = fopen(path, "re");
    bool ok = f != NULL && fgets(line, 4096, f) != NULL;
    if (f != NULL)
        fclose(f);
    return ok;
}

/* Reads numbers such as "0-3,8,10-11". False: the file does not exist, or has another form. */
static bool read_list(const char *root, const char *name, cpu_set_t *out)
{
    char line[4096], *at = line;
    CPU_ZERO(out);
    if (!read_line(root, name, line))
        return false;
    while (isdigit((unsigned char)*at)) {
        long first = strtol(at, &at, 10), last = first;
        if (*at == '-')
            last = strtol(at + 1, &at, 10);
        for (long i = first; i <= last && i < CPU_SETSIZE; i++)
            CPU_SET((size_t)i, out);
        at += *at == ',';
    }
    return *at == '\n' || *at == '\0';
}

static int nodes(const char *root, cpu_set_t *out)
{
    return read_list(root, "/sys/devices/system/node/has_cpu", out) ? CPU_COUNT(out) : 0;
}

int ctw_numa_nodes(const char *root)
{
    cpu_set_t set;
    int n = nodes(root, &set);
    return n > 0 ? n : 1;
}

int ctw_numa_node(const char *root, int k)
{
    cpu_set_t set;
    int n = nodes(root, &set), node = -1;
    for (int left = n > 0 ? k % n : -1; left >= 0; left--)
        do
            node++;
        while (!CPU_ISSET((size_t)node, &set));
    return node;
}

int ctw_numa_of_pci(const char *root, const char *pci)
{
    unsigned domain, bus, device, function;
    char name[128], line[4096];
    int node;
    if (sscanf(pci, "%x:%x:%x.%x", &domain, &bus, &device, &function) != 4)
        return -1;
    snprintf(name, sizeof(name), "/sys/bus/pci/devices/%04x:%02x:%02x.%x/numa_node", domain, bus,
             device, function);
    return read_line(root, name, line) && sscanf(line, "%d", &node) == 1 && node >= 0 ? node : -1;
}

void ctw_numa_run_on(const char *root, int node)
{
    cpu_set_t mine, its, both;
    char name[128];
    int n = ctw_numa_nodes(root);
    snprintf(name, sizeof(name), "/sys/devices/system/node/node%d/cpulist", node);
    /* the process may use the CPUs of its first thread */
    if (node < 0 || n < 2 || sched_getaffinity(getpid(), sizeof(mine), &mine) != 0 ||
        !read_list(root, name, &its))
        return;
    CPU_AND(&both, &mine, &its);
    if (CPU_COUNT(&both) > 0 && 2 * n * CPU_COUNT(&both) >= CPU_COUNT(&mine))
        (void)sched_setaffinity(0, sizeof(both), &both);
}
