#include "worker/engine/devices.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

static const char *or_auto(const char *name)
{
    return name == NULL ? "auto" : name;
}

enum ctw_status ctw_devices_borrow(struct ctw_devices *all, struct ctw_device **out,
                                   const char *backend, const struct ctw_backend_options *opt,
                                   struct ctw_err *err)
{
    char options[sizeof((*out)->options)];
    struct ctw_device *d = all->first;
    snprintf(options, sizeof(options), "%s, device %d, %s, %s, %d threads", or_auto(backend),
             opt->device, or_auto(opt->variant), or_auto(opt->cuda_variant), opt->n_threads);
    while (d != NULL && strcmp(d->options, options) != 0)
        d = d->next;
    if (d == NULL) {
        d = ctw_calloc(1, sizeof(*d));
        if (d == NULL)
            return ctw_fail(err, CTW_ENOMEM, "out of memory");
        enum ctw_status st = ctw_backend_open(&d->be, backend, opt, err);
        if (st != CTW_OK) {
            ctw_free(d);
            return st;
        }
        memcpy(d->options, options, sizeof(options));
        d->next = all->first;
        all->first = d;
    }
    d->n_engines++;
    *out = d;
    return CTW_OK;
}

void ctw_devices_return(struct ctw_devices *all, struct ctw_device *d)
{
    struct ctw_device **at = &all->first;
    if (d == NULL || --d->n_engines > 0)
        return;
    while (*at != d)
        at = &(*at)->next;
    *at = d->next;
    ctw_backend_close(d->be);
    ctw_free(d);
}
