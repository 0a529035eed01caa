#include "worker/engine/open/devices.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/numa.h"

static void lock(const struct ctw_devices *all)
{
    if (all->lock != NULL)
        pthread_mutex_lock(all->lock);
}

static void unlock(const struct ctw_devices *all)
{
    if (all->lock != NULL)
        pthread_mutex_unlock(all->lock);
}

static const char *or_auto(const char *name)
{
    return name == NULL ? "auto" : name;
}

/* A GPU by the names that nvidia-smi has for it. */
static void announce(const struct ctw_backend *be, int number)
{
    struct ctw_backend_info info;
    ctw_backend_get_info(be, &info);
    if (info.uuid[0] != '\0')
        ctw_info("device %d: %s, %s, %s", number, info.device, info.pci, info.uuid);
}

/* Takes over the backend. */
static enum ctw_status lend_new(struct ctw_devices *all, struct ctw_device **out,
                                struct ctw_backend *be, const char *options, struct ctw_err *err)
{
    struct ctw_device *d = ctw_calloc(1, sizeof(*d));
    if (d == NULL) {
        ctw_backend_close(be);
        return ctw_fail(err, CTW_ENOMEM, "out of memory");
    }
    d->be = be;
    snprintf(d->options, sizeof(d->options), "%s", options);
    d->n_engines = 1;
    lock(all);
    d->next = all->first;
    all->first = d;
    unlock(all);
    *out = d;
    return CTW_OK;
}

/* On a machine with several nodes: the node whose memory and processors are near the device. */
static void tell_node(const struct ctw_backend *be, int number)
{
    struct ctw_backend_info info;
    int n = ctw_numa_nodes("");
    ctw_backend_get_info(be, &info);
    int node = ctw_numa_of_pci("", info.pci);
    if (n > 1 && node >= 0)
        ctw_info("device %d (%s) is at node %d of %d: weights for it are read there", number,
                 info.device, node, n);
}

enum ctw_status ctw_devices_borrow(struct ctw_devices *all, struct ctw_device **out,
                                   const char *backend, const struct ctw_backend_options *opt,
                                   struct ctw_err *err)
{
    char options[sizeof((*out)->options)];
    struct ctw_device *d = all->first;
    struct ctw_backend *be;
    snprintf(options, sizeof(options), "%s, device %d, %s, %s, %d threads", or_auto(backend),
             opt->device, or_auto(opt->variant), or_auto(opt->cuda_variant), opt->n_threads);
    while (d != NULL && strcmp(d->options, options) != 0)
        d = d->next;
    if (d == NULL) {
        enum ctw_status st = ctw_backend_open(&be, backend, opt, err);
        if (st != CTW_OK)
            return st;
        announce(be, opt->device);
        tell_node(be, opt->device);
        return lend_new(all, out, be, options, err);
    }
    d->n_engines++;
    *out = d;
    return CTW_OK;
}

/* No two engines share it, as each is a GPU of its own. */
enum ctw_status ctw_devices_plan(struct ctw_devices *all, struct ctw_device **out,
                                 const struct ctw_machine *machine, struct ctw_err *err)
{
    struct ctw_backend *be;
    enum ctw_status st = ctw_backend_open_planned(&be, machine->device_memory, err);
    return st == CTW_OK ? lend_new(all, out, be, "planned", err) : st;
}

void ctw_devices_return(struct ctw_devices *all, struct ctw_device *d)
{
    struct ctw_device **at = &all->first;
    if (d == NULL || --d->n_engines > 0)
        return;
    lock(all);
    while (*at != d)
        at = &(*at)->next;
    *at = d->next;
    unlock(all);
    ctw_backend_close(d->be);
    ctw_free(d);
}
