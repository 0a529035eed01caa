/*
 * Machines with several nodes of processors and memory (NUMA): which node a PCI device is at, and
 * threads that run there, so that what they allocate lies there, too. On a machine with one node,
 * or where nothing is known, nothing happens. `root` is as in base/host.h.
 */
#ifndef CTW_BASE_NUMA_H
#define CTW_BASE_NUMA_H

/* Nodes with processors; 1 if nothing is known. */
int ctw_numa_nodes(const char *root);
/* The node of a device, "0000:18:00.0" with a domain of any length; -1: none, or not known. */
int ctw_numa_of_pci(const char *root, const char *pci);
/* The k-th node with processors, counted round and round. */
int ctw_numa_node(const char *root, int k);
/* From now on, the calling thread runs on the node's processors that the process may use. Not if
 * these are few: less than half of the node's fair share of all. Node -1: it stays. */
void ctw_numa_run_on(const char *root, int node);

#endif
