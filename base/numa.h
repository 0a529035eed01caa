/*
 * Machines with several nodes of processors and memory (NUMA): the node of a PCI device, and
 * threads that run at a node, so that memory which they allocate lies there, too. On a machine with
 * one node, or without information about its nodes, these functions do nothing. `root` is as in
 * base/host.h.
 */
#ifndef CTW_BASE_NUMA_H
#define CTW_BASE_NUMA_H

/* The number of nodes with processors; 1 if it is unknown. */
int ctw_numa_nodes(const char *root);
/* The node of a device, "0000:18:00.0" with a domain of any length; -1: none, or unknown. */
int ctw_numa_of_pci(const char *root, const char *pci);
/* The k-th node with processors, modulo their number. */
int ctw_numa_node(const char *root, int k);
/* Lets the calling thread run on the node's processors from now on, as far as the process may use
 * them; but not if they are less than half of the node's fair share of all. Node -1: does
 * nothing. */
void ctw_numa_run_on(const char *root, int node);

#endif
