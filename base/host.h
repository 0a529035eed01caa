/*
 * Memory and CPUs of the machine that this process may use. Containers, batch systems and others
 * limit them by control groups, version 1 or 2, at any level above the process's own group. `root`
 * is put before the paths of /proc and /sys: "", or a test's own folder.
 */
#ifndef CTW_BASE_HOST_H
#define CTW_BASE_HOST_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes. The page cache counts as free, as in MemAvailable. */
struct ctw_host_memory {
    uint64_t total, free;
};

struct ctw_host_memory ctw_host_memory(const char *root);
/* Bytes of this process in memory, mapped files included. */
uint64_t ctw_host_resident(const char *root);
/* The smaller of n and the CPUs that the control groups' quota is worth, rounded up. */
int ctw_host_cpus(const char *root, int n);

#ifdef __cplusplus
}
#endif

#endif
