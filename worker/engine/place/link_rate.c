#include "worker/engine/place/link_rate.h"

#include "base/clock.h"
#include "worker/engine/engine.h"

enum { BYTES = 32 << 20, ROUNDS = 4 };

/* What the copies are between. */
struct link {
    struct ctw_backend *const *devices;
    int n;
    bool from_host;
    void *from[CTW_MAX_DEVICES], *to[CTW_MAX_DEVICES];
};

static enum ctw_status alloc(struct link *l)
{
    enum ctw_status st = CTW_OK;
    for (int i = 0; st == CTW_OK && i < l->n; i++) {
        struct ctw_backend *be = l->devices[i];
        st = l->from_host ? ctw_stage_alloc(be, &l->from[i], BYTES, NULL)
                          : ctw_device_alloc(be, &l->from[i], BYTES, NULL);
        if (st == CTW_OK)
            st = ctw_device_alloc(be, &l->to[i], BYTES, NULL);
        if (st == CTW_OK && !l->from_host)
            st = ctw_device_zero(be, l->from[i], BYTES, NULL);
        if (st == CTW_OK)
            st = ctw_backend_sync(be, NULL);
    }
    return st;
}

static void release(struct link *l)
{
    for (int i = 0; i < l->n; i++) {
        if (l->from_host)
            ctw_stage_free(l->devices[i], l->from[i]);
        else
            ctw_device_free(l->devices[i], l->from[i]);
        ctw_device_free(l->devices[i], l->to[i]);
    }
}

/* Every device copies `rounds` times, all at once. */
static enum ctw_status copy(const struct link *l, int rounds)
{
    uint64_t ticket[CTW_MAX_DEVICES] = {0};
    enum ctw_status st = CTW_OK;
    int n_begun = 0;
    for (int r = 0; st == CTW_OK && r < rounds; r++)
        for (int i = 0; st == CTW_OK && i < l->n; i++) {
            int other = (i + 1) % l->n;
            st = l->from_host ? ctw_upload_begin(l->devices[i], l->to[i], l->from[i], BYTES,
                                                 &ticket[i], NULL)
                              : ctw_peer_begin(l->devices[i], l->to[i], l->devices[other],
                                               l->from[other], BYTES, &ticket[i], NULL);
            if (st == CTW_OK && r == 0)
                n_begun++;
        }
    for (int i = 0; i < n_begun; i++) { /* also after a failure: memory is freed next */
        enum ctw_status waited = ctw_upload_wait(l->devices[i], ticket[i], NULL);
        st = st == CTW_OK ? waited : st;
    }
    return st;
}

/* The first copy makes the paths. */
static double measure(struct link *l)
{
    double took_s = 0;
    enum ctw_status st = alloc(l);
    if (st == CTW_OK)
        st = copy(l, 1);
    if (st == CTW_OK) {
        double from_s = ctw_now_s();
        st = copy(l, ROUNDS);
        took_s = ctw_now_s() - from_s;
    }
    release(l);
    return st == CTW_OK && took_s > 0 ? (double)BYTES * ROUNDS / took_s : 0;
}

double ctw_peer_rate(struct ctw_backend *const *devices, int n, bool *direct)
{
    struct link l = {.devices = devices, .n = n};
    *direct = true;
    for (int i = 0; i < n; i++)
        *direct &= ctw_peer_link(devices[i], devices[(i + 1) % n]) != CTW_LINK_HOST;
    return measure(&l);
}

double ctw_host_rate(struct ctw_backend *const *devices, int n)
{
    struct link l = {.devices = devices, .n = n, .from_host = true};
    return measure(&l);
}
