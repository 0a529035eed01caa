#include "worker/engine/place/placing.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"
#include "worker/engine/place/cuts.h"
#include "worker/weights/shards.h"

/* ---- what was asked for ------------------------------------------------------------------- */

static bool is_named(const struct ctw_placing_request *r, const char *name)
{
    return r->place != NULL && strcmp(r->place, name) == 0;
}

static bool is_auto(const struct ctw_placing_request *r)
{
    return r->place == NULL || is_named(r, "auto");
}

static enum ctw_status too_large(const struct ctw_placing_request *r, uint64_t weights,
                                 struct ctw_err *err)
{
    char need[32], have[32];
    return ctw_fail(err, CTW_ENOMEM,
                    "--placement %s: the weights need %s, but --weights-limit is %s: raise it, or "
                    "use --placement streamed",
                    r->place, ctw_format_bytes(need, sizeof(need), (double)weights),
                    ctw_format_bytes(have, sizeof(have), (double)r->weights_limit));
}

/* Through a limit that was given; without one, as little memory as streaming needs. */
static enum ctw_status stream_as_told(struct ctw_placing *p, const struct ctw_placing_request *r,
                                      struct ctw_err *err)
{
    p->place = CTW_STREAMED;
    return r->weights_limit > 0 ? ctw_placement_make(&p->layers, r->model, r->weights_limit, err)
                                : ctw_placement_make_least(&p->layers, r->model, err);
}

static enum ctw_status stream_within(struct ctw_placing *p, const struct ctw_placing_request *r,
                                     uint64_t limit, struct ctw_err *err)
{
    p->place = CTW_STREAMED;
    return ctw_placement_make(&p->layers, r->model, limit, err);
}

/* The least memory of each device, and what its part takes of that. */
static enum ctw_status shard_least(struct ctw_placing *p, const struct ctw_placing_request *r,
                                   bool is_cut, uint64_t *part, struct ctw_err *err)
{
    struct ctw_cuts cuts;
    enum ctw_status st = ctw_cuts_find(&cuts, r->model, r->be, r->dtype, err);
    if (st == CTW_OK)
        st = ctw_placement_make_parted(&p->layers, r->model, r->n_devices, is_cut ? &cuts : NULL,
                                       err);
    if (st == CTW_OK)
        st = ctw_shards_bytes(r->model, &p->layers, r->n_devices, part, err);
    if (st != CTW_OK)
        ctw_placement_free(&p->layers);
    ctw_cuts_free(&cuts);
    return st;
}

/* As many layers whole on each device as the limit allows; 0: as few as possible. If host memory
 * holds some, none is cut: parts that come from there several times in a pass would cost more than
 * they save. */
static enum ctw_status shard_within(struct ctw_placing *p, const struct ctw_placing_request *r,
                                    uint64_t limit, struct ctw_err *err)
{
    char need[32], have[32];
    uint64_t part;
    p->place = CTW_SHARDED;
    p->n_shards = r->n_devices;
    enum ctw_status st = shard_least(p, r, true, &part, err);
    uint64_t enough = p->layers.resident + p->layers.ring + part;
    if (st == CTW_OK && limit > 0 && limit < enough && r->host_limit > 0) {
        ctw_placement_free(&p->layers);
        st = shard_least(p, r, false, &part, err);
    }
    if (st != CTW_OK)
        return st;
    uint64_t memory = p->layers.resident + p->layers.ring;
    uint64_t most = memory + ctw_shards_bound(&p->layers, r->n_devices);
    if (limit > most && limit >= enough)
        ctw_placement_keep_more(&p->layers, r->n_devices, (size_t)(limit - most));
    else if (limit > memory && limit < enough && r->host_limit > 0)
        p->layers.device_room = (size_t)(limit - memory);
    else if (limit > 0 && limit < enough) {
        ctw_placement_free(&p->layers);
        st = ctw_fail(
            err, CTW_ENOMEM,
            "--placement sharded: the weights need %s on each of %d devices, but the limit "
            "is %s: raise --weights-limit, or use more devices, --host-memory-limit or "
            "--placement streamed",
            ctw_format_bytes(need, sizeof(need), (double)enough), r->n_devices,
            ctw_format_bytes(have, sizeof(have), (double)limit));
    }
    return st;
}

/* What a limit for the weights leaves, by default, is less by a reserve: see
 * ctw_engine_set_default_limit(). */
static uint64_t with_reserve(uint64_t bytes)
{
    return bytes / 9 * 10;
}

/* As much as leaves room for passes at full rate; else as little as possible. If neither leaves
 * room for any pass, the weights are resident, and opening says what is missing. */
static enum ctw_status stream_if_possible(struct ctw_placing *p,
                                          const struct ctw_placing_request *r, uint64_t have)
{
    uint64_t work = r->limit_is_default ? with_reserve(r->work) : r->memory_limit;
    uint64_t least = r->limit_is_default ? with_reserve(r->least_work) : r->memory_limit;
    p->place = CTW_STREAMED;
    if (work < have && ctw_placement_make(&p->layers, r->model, have - work, NULL) == CTW_OK)
        return CTW_OK;
    if (ctw_placement_make_least(&p->layers, r->model, NULL) == CTW_OK &&
        p->layers.resident + p->layers.ring + least <= have)
        return CTW_OK;
    ctw_placement_free(&p->layers);
    return least < have ? ctw_placement_make(&p->layers, r->model, have - least, NULL) : CTW_ENOMEM;
}

static enum ctw_status copy_all(struct ctw_placing *p, const struct ctw_placing_request *r,
                                struct ctw_err *err)
{
    p->place = CTW_RESIDENT;
    return ctw_placement_make(&p->layers, r->model, UINT64_MAX, err);
}

/* ---- on the CPU --------------------------------------------------------------------------- */

static enum ctw_status map_as_told(struct ctw_placing *p, const struct ctw_placing_request *r,
                                   struct ctw_err *err)
{
    const char *file = ctw_container_hides_writes(r->model->container);
    p->place = CTW_MAPPED;
    if (file == NULL)
        return CTW_OK;
    return ctw_fail(err, CTW_EINVAL,
                    "--placement mapped: %s lies in a file system that does not show writes (in "
                    "memory, of a network, or not known), so its bytes could change under their "
                    "identity: use resident or streamed, which compute from a copy",
                    file);
}

/* Mapped, unless writes to the files could go unseen. */
static enum ctw_status hold_all(struct ctw_placing *p, const struct ctw_placing_request *r,
                                struct ctw_err *err)
{
    p->place = CTW_MAPPED;
    p->unmapped = ctw_container_hides_writes(r->model->container);
    return p->unmapped != NULL ? copy_all(p, r, err) : CTW_OK;
}

/* Through half of the memory if that leaves room for passes at full rate, else through what passes
 * leave. If both are too little, the files are held as if they fitted: the kernel takes mapped
 * pages back, so only speed is lost. */
static enum ctw_status stream_on_host(struct ctw_placing *p, const struct ctw_placing_request *r,
                                      struct ctw_err *err)
{
    uint64_t half = r->have / 2, left = ctw_host_left(r->have);
    if (half + with_reserve(r->work) <= left && stream_within(p, r, half, NULL) == CTW_OK)
        return CTW_OK;
    if (stream_if_possible(p, r, left) == CTW_OK)
        return CTW_OK;
    p->layers = (struct ctw_placement){0};
    return hold_all(p, r, err);
}

/* Files are mapped if memory can hold them beside passes: the page cache then does. Else half of
 * the memory is for weights; a quarter is for the rest, by default. */
static enum ctw_status choose_on_host(struct ctw_placing *p, const struct ctw_placing_request *r,
                                      struct ctw_err *err)
{
    uint64_t available = p->have, work = with_reserve(r->least_work);
    bool fits = r->weights_limit == 0 || p->weights <= r->weights_limit;
    if (is_named(r, "sharded"))
        return ctw_fail(err, CTW_EINVAL,
                        "--placement sharded: the CPU is one device: use streamed");
    if (r->host_limit > 0)
        return ctw_fail(
            err, CTW_EINVAL,
            "--host-memory-limit is for weights that GPUs do not hold: the CPU computes "
            "from host memory: use --weights-limit");
    if (is_named(r, "streamed"))
        return stream_as_told(p, r, err);
    if (!is_auto(r) && !fits)
        return too_large(r, p->weights, err);
    if (is_named(r, "resident"))
        return copy_all(p, r, err);
    if (is_named(r, "mapped"))
        return map_as_told(p, r, err);
    if (r->weights_limit > 0)
        return fits ? hold_all(p, r, err) : stream_within(p, r, r->weights_limit, err);
    if (!r->is_limited)
        return p->weights + work > available ? stream_on_host(p, r, err) : hold_all(p, r, err);
    work = r->limit_is_default ? work : r->memory_limit;
    if (p->weights + work > available && stream_if_possible(p, r, available) == CTW_OK)
        return CTW_OK;
    return hold_all(p, r, err); /* without room for passes, opening says what is missing */
}

/* ---- on a GPU ----------------------------------------------------------------------------- */

static enum ctw_status choose_on_device(struct ctw_placing *p, const struct ctw_placing_request *r,
                                        struct ctw_err *err)
{
    uint64_t have = p->have, least = r->others_have < have ? r->others_have : have;
    uint64_t left = p->weights < have ? (have - p->weights) / 10 * 9 : 0;
    enum ctw_status st = ctw_backend_sync(r->be, err); /* a failed device reports nothing free */
    if (st != CTW_OK)
        return st;
    if (is_named(r, "mapped"))
        return ctw_fail(err, CTW_EINVAL,
                        "--placement mapped: a GPU does not compute from mapped files: use "
                        "resident or streamed");
    if (is_named(r, "streamed"))
        return stream_as_told(p, r, err);
    if (is_named(r, "sharded") && r->n_devices < 2)
        return ctw_fail(err, CTW_EINVAL,
                        "--placement sharded: needs several GPUs: give --devices all, or use "
                        "streamed");
    if (is_named(r, "sharded"))
        return shard_within(p, r, r->weights_limit, err);
    bool limited = r->weights_limit > 0 && p->weights > r->weights_limit;
    if (limited && !is_auto(r))
        return too_large(r, p->weights, err);
    if (limited && r->n_devices > 1 && shard_within(p, r, r->weights_limit, NULL) == CTW_OK)
        return CTW_OK;
    if (limited)
        return stream_within(p, r, r->weights_limit, err);
    bool fits = p->weights <= have && (!r->limit_is_default || r->least_work <= left);
    if (fits || !is_auto(r))
        return copy_all(p, r, err);
    uint64_t work = r->limit_is_default ? with_reserve(r->work) : r->memory_limit;
    if (r->n_devices > 1 && work < least && shard_within(p, r, least - work, NULL) == CTW_OK)
        return CTW_OK; /* the same on each device */
    return stream_if_possible(p, r, have) == CTW_OK ? CTW_OK : copy_all(p, r, err);
}

/* ---- the choice --------------------------------------------------------------------------- */

/* Passes may be larger than they usually are, so that computing takes a tenth longer than reading:
 * all layers, as the first pass does, and by each device alone, as if it were not with the others.
 */
static void hide(struct ctw_placing *p, const struct ctw_placing_request *r)
{
    const double margin = 1.1;
    double coming_s = p->streamed > 0 ? ctw_rates_seconds(&p->rates.read, p->weights)
                                      : ctw_rates_seconds(&p->rates.host, p->hosted);
    if (coming_s > 0)
        p->hide_tokens =
            (int64_t)fmin(CTW_PLAN_PASS_MOST, margin * coming_s * p->rates.compute.value /
                                                  ctw_rates_token_flops(r->model));
}

/* Where what does not stay comes from, in every pass. */
static enum ctw_status find_homes(struct ctw_placing *p, const struct ctw_placing_request *r,
                                  struct ctw_err *err)
{
    uint64_t bytes[CTW_N_HOMES];
    if (p->place == CTW_STREAMED)
        p->layers.device_room = 0;
    p->layers.host_room = (size_t)r->host_limit;
    unsigned char *home = ctw_calloc((size_t)p->layers.n_units + 1, sizeof(*home));
    if (home == NULL)
        return ctw_fail(err, CTW_ENOMEM, "layers: out of memory");
    ctw_homes_choose(&p->layers, p->place == CTW_SHARDED ? p->n_shards : 1, home, bytes);
    ctw_free(home);
    p->gathered = bytes[CTW_HOME_DEVICES];
    p->hosted = bytes[CTW_HOME_HOST];
    p->streamed = bytes[CTW_HOME_FILES];
    char hosted[32], have[32];
    if (p->hosted > ctw_machine_memory(r->machine))
        return ctw_fail(
            err, CTW_ENOMEM,
            "--host-memory-limit: %s would be locked, but %s are available: lower it",
            ctw_format_bytes(hosted, sizeof(hosted), (double)p->hosted),
            ctw_format_bytes(have, sizeof(have), (double)ctw_machine_memory(r->machine)));
    return CTW_OK;
}

/* Layers that stay whole, and what comes several times in a pass. */
static void count_units(struct ctw_placing *p)
{
    const struct ctw_placement *l = &p->layers;
    for (int i = 0; i < l->n_layers; i++) {
        bool whole = true;
        for (int u = l->first[i]; u < l->first[i + 1]; u++) {
            whole = whole && l->unit[u].stays;
            if (i == l->n_layers - 1 && l->unit[u].kind == CTW_UNIT_ROWS && !l->unit[u].stays)
                p->repeated += l->unit[u].bytes;
        }
        p->n_whole += whole;
    }
}

bool ctw_placing_is_shared(const struct ctw_placing *p)
{
    return p->place == CTW_SHARDED || p->hosted > 0 || p->n_sharing > 1;
}

/* Will devices copy from each other what one has read from the host or the files? Devices that
 * share nothing else must all have memory for the same choice. */
static int n_sharing(const struct ctw_placing *p, const struct ctw_placing_request *r)
{
    bool is_same = p->place == CTW_SHARDED || p->hosted > 0 ||
                   (p->place == CTW_STREAMED && r->others_have >= p->memory + r->least_work);
    bool reads = p->hosted + p->streamed > 0;
    return reads && is_same && ctw_rates_peers_are_faster(r) ? r->n_devices : 1;
}

enum ctw_status ctw_placing_choose(struct ctw_placing *out, const struct ctw_placing_request *r,
                                   struct ctw_err *err)
{
    struct ctw_placement all;
    *out = (struct ctw_placing){0};
    enum ctw_status st = ctw_placement_make(&all, r->model, UINT64_MAX, err);
    if (st != CTW_OK)
        return st;
    out->weights = all.weights;
    ctw_placement_free(&all);
    bool on_host = ctw_backend_traits(r->be)->host_memory;
    out->have = r->have;
    out->is_limited = r->is_limited;
    st = on_host ? choose_on_host(out, r, err) : choose_on_device(out, r, err);
    if (st != CTW_OK)
        return st;
    out->memory = out->layers.n_units > 0 ? out->layers.resident + out->layers.ring : out->weights;
    out->ring = out->layers.ring;
    out->one_at_a_time = out->ring > 0 && !out->layers.ahead;
    count_units(out);
    if (out->place != CTW_SHARDED)
        out->n_shards = 0; /* sharding was tried */
    st = find_homes(out, r, err);
    if (st == CTW_OK && out->place == CTW_SHARDED) {
        uint64_t part;
        st = ctw_shards_bytes(r->model, &out->layers, out->n_shards, &part, err);
        out->memory += part;
    }
    if (st != CTW_OK)
        return st;
    out->n_sharing = n_sharing(out, r);
    ctw_rates_find(&out->rates, r, out);
    hide(out, r);
    return CTW_OK;
}

enum ctw_status ctw_placing_copy(struct ctw_placing *out, const struct ctw_placing *p,
                                 struct ctw_err *err)
{
    *out = *p;
    return ctw_placement_copy(&out->layers, &p->layers, err);
}

enum ctw_status ctw_placing_open(struct ctw_placing *p, const struct ctw_model *model,
                                 struct ctw_backend *be, struct ctw_shards *shards,
                                 struct ctw_provider **out, struct ctw_err *err)
{
    if (p->place == CTW_MAPPED)
        return ctw_provider_open_mapped(out, model, err);
    return ctw_provider_open_streamed(out, model, be, &p->layers, shards, err);
}

const char *ctw_place_name(enum ctw_place place)
{
    static const char *const names[] = {"mapped", "resident", "streamed", "sharded"};
    return names[place];
}

void ctw_placing_free(struct ctw_placing *p)
{
    ctw_placement_free(&p->layers);
}
