#include "worker/weights/neighbours.h"

#include <pthread.h>

#include "base/log.h"
#include "base/mem.h"

/*
 * Why no wait in this file can be part of a circle:
 *
 * 1. Uploads and copies of a device end without the help of any thread. An upload or copy begins
 *    only when its source is complete: bytes in host memory, or bytes in a neighbour's ring whose
 *    upload has ended. So no copy waits for a copy of another device, and ctw_upload_wait() ends.
 * 2. A thread holds a pin (n_beginning) while it waits for the neighbour's upload and begins a
 *    copy. A thread that has announced a slice (is_coming) waits for earlier uploads of its own
 *    device, and for a file. Neither thread waits for anything else.
 * 3. A thread that wants an announced slice, and a thread that withdraws a unit, wait for the
 *    threads of rule 2 and for copies. Meanwhile they hold nothing that another thread waits for.
 *
 * If a device fails, all of these waits end with an error, and the device copies no more.
 */

/* A slice that lies in a device's ring, or is about to. */
struct offer {
    bool is_coming; /* a thread is reading it */
    const void *at; /* NULL: the slice is not in the ring */
    uint64_t ticket;
};

/* The copies that one neighbour makes from one unit in a device's ring. */
struct pin {
    int n_beginning; /* threads that are about to begin a copy */
    bool any;        /* a copy has begun; `ticket` belongs to the last copy */
    uint64_t ticket; /* a ticket of the neighbour */
};

struct device {
    struct ctw_backend *be;
    struct offer *offer; /* [n_slices] */
    struct pin *pin;     /* [n_units][n] */
    /* Indexed by another device: copies from that device are faster than from the host, and no copy
     * has failed. */
    bool reaches[CTW_NEIGHBOURS_MAX];
};

struct ctw_neighbours {
    const struct ctw_slices *slices;
    int n;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct device device[CTW_NEIGHBOURS_MAX]; /* under lock, except `be` */
};

int ctw_neighbours_find(const struct ctw_neighbours *nb, const struct ctw_backend *be)
{
    for (int i = 0; i < nb->n; i++)
        if (nb->device[i].be == be)
            return i;
    return -1;
}

/* Device i reads the slices whose number is i modulo n. */
int64_t ctw_neighbours_order(const struct ctw_neighbours *nb, int self, int unit, int64_t k)
{
    int64_t first = nb->slices->first[unit], end = nb->slices->first[unit + 1];
    for (int i = 0; i < nb->n; i++) {
        int64_t owner = (self + i) % nb->n;
        int64_t at = first + (owner + nb->n - first % nb->n) % nb->n;
        int64_t count = at < end ? (end - at + nb->n - 1) / nb->n : 0;
        if (k < count)
            return at + k * nb->n;
        k -= count;
    }
    return end; /* there is no k-th */
}

void ctw_neighbours_offer(struct ctw_neighbours *nb, int self, int64_t slice, const void *at,
                          uint64_t ticket)
{
    pthread_mutex_lock(&nb->lock);
    nb->device[self].offer[slice] = (struct offer){.at = at, .ticket = ticket};
    pthread_cond_broadcast(&nb->changed);
    pthread_mutex_unlock(&nb->lock);
}

/* Finds a neighbour that has the slice, or else a neighbour that is reading the slice. -1: there is
 * neither. Under lock. */
static int find_offer(const struct ctw_neighbours *nb, int self, int64_t slice)
{
    int coming = -1;
    for (int i = 0; i < nb->n; i++) {
        int d = (int)((slice + i) % nb->n);
        const struct offer *offer = &nb->device[d].offer[slice];
        if (!nb->device[self].reaches[d])
            continue;
        if (offer->at != NULL)
            return d;
        coming = offer->is_coming ? d : coming;
    }
    return coming;
}

/* Waits for a neighbour to have the slice, and returns that neighbour. -1: no neighbour has or
 * reads the slice, so this device must read it. Under lock. */
static int wait_for_offer(struct ctw_neighbours *nb, int self, int64_t slice)
{
    int d = find_offer(nb, self, slice);
    while (d >= 0 && nb->device[d].offer[slice].at == NULL) {
        pthread_cond_wait(&nb->changed, &nb->lock);
        d = find_offer(nb, self, slice);
    }
    if (d < 0)
        nb->device[self].offer[slice].is_coming = true;
    return d;
}

/* Begins a copy from device d. Not under lock. */
static enum ctw_status begin_copy(struct ctw_neighbours *nb, int self, int d,
                                  const struct offer *offer, void *to, size_t bytes,
                                  uint64_t *ticket)
{
    struct ctw_err err;
    enum ctw_status st = ctw_upload_wait(nb->device[d].be, offer->ticket, &err);
    if (st == CTW_OK)
        st = ctw_peer_begin(nb->device[self].be, to, nb->device[d].be, offer->at, bytes, ticket,
                            &err);
    if (st != CTW_OK)
        ctw_debug("no more copies from a neighbour's ring: %s", err.msg);
    return st;
}

bool ctw_neighbours_copy(struct ctw_neighbours *nb, int self, int unit, int64_t slice, void *to,
                         size_t bytes, uint64_t *ticket)
{
    enum ctw_status st = CTW_EDEVICE;
    int d;
    pthread_mutex_lock(&nb->lock);
    while (st != CTW_OK && (d = wait_for_offer(nb, self, slice)) >= 0) {
        const struct offer offer = nb->device[d].offer[slice];
        struct pin *pin = &nb->device[d].pin[(int64_t)unit * nb->n + self];
        pin->n_beginning++;
        pthread_mutex_unlock(&nb->lock);
        st = begin_copy(nb, self, d, &offer, to, bytes, ticket);
        pthread_mutex_lock(&nb->lock);
        pin->n_beginning--;
        pthread_cond_broadcast(&nb->changed);
        if (st == CTW_OK) {
            pin->ticket = pin->any && pin->ticket > *ticket ? pin->ticket : *ticket;
            pin->any = true;
        } else { /* one of the two devices has failed */
            nb->device[self].reaches[d] = false;
        }
    }
    pthread_mutex_unlock(&nb->lock);
    return st == CTW_OK;
}

/* Waits until the copies that neighbour d made under this pin have ended. Under lock. */
static void wait_for(struct ctw_neighbours *nb, int d, struct pin *pin)
{
    struct ctw_err err;
    while (pin->n_beginning > 0)
        pthread_cond_wait(&nb->changed, &nb->lock);
    if (!pin->any)
        return;
    uint64_t ticket = pin->ticket;
    pthread_mutex_unlock(&nb->lock);
    if (ctw_upload_wait(nb->device[d].be, ticket, &err) != CTW_OK)
        ctw_debug("a neighbour that has failed copies no more: %s", err.msg);
    pthread_mutex_lock(&nb->lock);
    pin->any = pin->any && pin->ticket != ticket; /* another thread may wait for the same ticket */
}

void ctw_neighbours_withdraw(struct ctw_neighbours *nb, int self, int unit)
{
    struct device *device = &nb->device[self];
    pthread_mutex_lock(&nb->lock);
    for (int64_t i = nb->slices->first[unit]; i < nb->slices->first[unit + 1]; i++)
        device->offer[i].at = NULL;
    for (int d = 0; d < nb->n; d++)
        wait_for(nb, d, &device->pin[(int64_t)unit * nb->n + d]);
    pthread_mutex_unlock(&nb->lock);
}

enum ctw_status ctw_neighbours_open(struct ctw_neighbours **out, const struct ctw_slices *slices,
                                    int n_units, struct ctw_backend *const *be, int n,
                                    struct ctw_err *err)
{
    struct ctw_neighbours *nb = ctw_calloc(1, sizeof(*nb));
    bool all = nb != NULL;
    if (nb == NULL)
        return ctw_fail(err, CTW_ENOMEM, "loading: out of memory");
    nb->slices = slices;
    nb->n = n;
    pthread_mutex_init(&nb->lock, NULL);
    pthread_cond_init(&nb->changed, NULL);
    for (int i = 0; i < n; i++) {
        struct device *d = &nb->device[i];
        d->be = be[i];
        d->offer = ctw_calloc((size_t)slices->n_slices + 1, sizeof(*d->offer));
        d->pin = ctw_calloc((size_t)n_units * (size_t)n, sizeof(*d->pin));
        all = all && d->offer != NULL && d->pin != NULL;
        for (int k = 0; k < n; k++)
            d->reaches[k] = k != i && ctw_peer_link(be[i], be[k]) == CTW_LINK_FASTER;
    }
    if (!all) {
        ctw_neighbours_close(nb);
        return ctw_fail(err, CTW_ENOMEM, "loading: out of memory");
    }
    *out = nb;
    return CTW_OK;
}

void ctw_neighbours_close(struct ctw_neighbours *nb)
{
    if (nb == NULL)
        return;
    for (int i = 0; i < nb->n; i++) {
        ctw_free(nb->device[i].offer);
        ctw_free(nb->device[i].pin);
    }
    pthread_cond_destroy(&nb->changed);
    pthread_mutex_destroy(&nb->lock);
    ctw_free(nb);
}
