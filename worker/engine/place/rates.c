#include "worker/engine/place/rates.h"

#include <math.h>

#include "worker/engine/place/compute_rate.h"
#include "worker/engine/place/link_rate.h"
#include "worker/engine/place/placing.h"
#include "worker/engine/place/read_rate.h"

/* Bytes per second if nothing was measured or described: an NVMe disk, PCIe 4.0 with 16 lanes, and
 * the slowest NVLink (if the link between devices is known to be faster than the host's). */
static const double ASSUMED_DISK = 3e9, ASSUMED_HOST = 25e9, ASSUMED_PEER = 20e9,
                    ASSUMED_NVLINK = 50e9;

enum { USUAL_WINDOW = 2048 };

/* Smaller models are not measured: a measurement would take longer than a pass. */
static const uint64_t SMALL = 64 << 20;

double ctw_rates_token_flops(const struct ctw_model *m)
{
    return fmax(1, ctw_plan_layer_flops(m) + ctw_plan_head_flops(m) +
                       ctw_plan_attention_flops(m, USUAL_WINDOW / 2));
}

static struct ctw_rate rate_of(double described, double assumed)
{
    return described > 0 ? (struct ctw_rate){described, "described"}
                         : (struct ctw_rate){assumed, "assumed"};
}

/* On a CPU, also of a small model if it is streamed. */
static struct ctw_rate compute_rate(const struct ctw_placing_request *r, uint64_t weights,
                                    uint64_t streamed)
{
    struct ctw_backend_info info;
    bool is_host = ctw_backend_traits(r->be)->host_memory;
    ctw_backend_get_info(r->be, &info);
    if (r->machine->flops > 0)
        return (struct ctw_rate){r->machine->flops, "described"};
    if (is_host && weights < SMALL && streamed == 0)
        return (struct ctw_rate){0};
    return (struct ctw_rate){ctw_compute_rate(r->be, r->dtype), is_host ? "measured" : "assumed"};
}

/* On a described machine, weights come from host memory if the bytes that every pass reads fit
 * there, otherwise from the disk, which devices share. */
static void described_reading(struct ctw_rates *out, const struct ctw_placing_request *r,
                              const struct ctw_placing *p)
{
    const struct ctw_machine *m = r->machine;
    bool is_host = ctw_backend_traits(r->be)->host_memory;
    if (!is_host && p->streamed + p->hosted <= ctw_machine_memory(m)) {
        out->read = rate_of(m->host, ASSUMED_HOST);
        out->read_from = "host memory";
        return;
    }
    out->read = rate_of(m->disk, ASSUMED_DISK);
    out->read.value /= r->n_readers;
    out->read_from = "the disk";
}

double ctw_rates_seconds(const struct ctw_rate *rate, uint64_t bytes)
{
    return rate->value > 0 ? (double)bytes / rate->value : 0;
}

bool ctw_rates_peers_are_faster(const struct ctw_placing_request *r)
{
    const struct ctw_machine *m = r->machine;
    bool faster = r->n_devices > 1;
    if (m->n_devices > 0)
        return faster && m->peer > rate_of(m->host, ASSUMED_HOST).value;
    for (int i = 1; faster && i < r->n_devices; i++)
        faster = ctw_peer_link(r->be, r->devices[i]) == CTW_LINK_FASTER;
    return faster;
}

/* Is it worth measuring the links of the machine's own devices? */
static bool has_links(const struct ctw_placing_request *r, uint64_t weights)
{
    return r->machine->n_devices == 0 && weights >= SMALL;
}

static struct ctw_rate gather_rate(const struct ctw_placing_request *r, uint64_t weights)
{
    bool direct = true;
    double rate = 0;
    if (r->machine->peer == 0 && has_links(r, weights))
        rate = ctw_peer_rate(r->devices, r->n_devices, &direct);
    if (rate == 0)
        return rate_of(r->machine->peer,
                       ctw_rates_peers_are_faster(r) ? ASSUMED_NVLINK : ASSUMED_PEER);
    return (struct ctw_rate){rate, direct ? "measured" : "measured, through the host"};
}

static struct ctw_rate host_rate(const struct ctw_placing_request *r, uint64_t weights)
{
    double rate = 0;
    if (r->machine->host == 0 && has_links(r, weights))
        rate = ctw_host_rate(r->devices, r->n_devices);
    return rate > 0 ? (struct ctw_rate){rate, "measured"} : rate_of(r->machine->host, ASSUMED_HOST);
}

void ctw_rates_find(struct ctw_rates *out, const struct ctw_placing_request *r,
                    const struct ctw_placing *p)
{
    const struct ctw_machine *m = r->machine;
    *out = (struct ctw_rates){.compute = compute_rate(r, p->weights, p->streamed),
                              .read_from = "the files"};
    if (p->gathered > 0 || p->n_sharing > 1)
        out->gather = gather_rate(r, p->weights);
    if (p->hosted > 0)
        out->host = host_rate(r, p->weights);
    if (p->streamed == 0)
        return;
    if (m->n_devices > 0 || m->host_memory > 0 || m->disk > 0 || m->host > 0 ||
        ctw_container_is_headers_alone(r->model->container))
        described_reading(out, r, p);
    else /* of all that read the same files */
        out->read =
            (struct ctw_rate){ctw_read_rate(r->model->container) / r->n_readers, "measured"};
}
