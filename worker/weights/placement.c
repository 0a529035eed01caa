#include "worker/weights/placement.h"

#include <string.h>

#include "base/mem.h"
#include "base/text.h"
#include "worker/weights/arena.h"

static size_t max_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Units that a ring has room for at a time. */
enum ring {
    ONE = 1,
    TWO = 2,
    DECODERS = 3 /* two decoder layers, or one decoder layer and the early released matrices of
                    another; rows; or one embedding or head that is a whole unit */
};

static bool is_edge(const struct ctw_placement *p, int unit)
{
    int layer = p->unit[unit].layer;
    return layer == 0 || layer == p->n_layers - 1;
}

/* The size of a ring for the largest units that do not stay. If more units stay, the ring is still
 * large enough. */
static size_t ring_of(const struct ctw_placement *p, enum ring n)
{
    size_t largest = 0, second = 0, alone = 0, early = 0;
    for (int i = 0; i < p->n_units; i++) {
        size_t bytes = p->unit[i].stays ? 0 : p->unit[i].bytes;
        alone = max_size(alone, bytes);
        if (p->unit[i].kind == CTW_UNIT_MATRICES)
            early = max_size(early, bytes);
        if (n == DECODERS && (is_edge(p, i) || p->unit[i].kind == CTW_UNIT_MATRICES))
            continue;
        second = max_size(second, bytes < largest ? bytes : largest);
        largest = max_size(largest, bytes);
    }
    second = n == DECODERS && largest > 0 ? max_size(second, early) : second;
    return max_size(alone, largest + (n == ONE ? 0 : second));
}

static void add_up(struct ctw_placement *p, enum ring n_ring)
{
    p->resident = 0;
    for (int i = 0; i < p->n_units; i++)
        p->resident += p->unit[i].stays ? p->unit[i].bytes : 0;
    p->streamed = p->weights - p->resident;
    p->ring = ring_of(p, n_ring);
    p->one_at_a_time = p->ring < ring_of(p, TWO);
    p->ahead = p->ring >= ring_of(p, DECODERS);
}

/* Keeps the units without which nothing can be streamed: a tied embedding, because the head reads
 * it too, and layers without bytes. */
static void keep_least(struct ctw_placement *p, const struct ctw_model *m)
{
    for (int i = 0; i < p->n_units; i++)
        p->unit[i].stays = p->unit[i].bytes == 0 || p->unit[i].kind == CTW_UNIT_HELD;
    if (m->tied)
        p->unit[0].stays = true;
}

/* Keeps the largest whole layer that does not stay yet. False: all of them stay. */
static bool keep_largest(struct ctw_placement *p)
{
    int largest = -1;
    for (int i = 0; i < p->n_units; i++)
        if (!p->unit[i].stays && p->unit[i].kind == CTW_UNIT_LAYER &&
            (largest < 0 || p->unit[i].bytes > p->unit[largest].bytes))
            largest = i;
    if (largest < 0)
        return false;
    p->unit[largest].stays = true;
    return true;
}

/*
 * Chooses how many of the largest layers stay. An embedding and a head are often much larger than
 * the layers between them: if both stay, the ring can be small. Memory that the ring does not take
 * can hold layers, so the smallest ring is best. False: no ring fits beside the units that must
 * stay.
 */
static bool choose_ring(struct ctw_placement *p, const struct ctw_model *m, uint64_t limit,
                        enum ring n_ring, size_t *ring)
{
    int n = 0, best = -1;
    *ring = SIZE_MAX;
    keep_least(p, m);
    for (;; n++) {
        add_up(p, n_ring);
        if (p->resident + p->ring <= limit && p->ring < *ring) {
            best = n;
            *ring = p->ring;
        }
        if (p->resident > limit || !keep_largest(p))
            break;
    }
    keep_least(p, m);
    for (int i = 0; i < best; i++)
        (void)keep_largest(p);
    return best >= 0;
}

/* The least memory with which layers can be streamed through a ring of kind n_ring. */
static size_t least_limit(struct ctw_placement *p, const struct ctw_model *m, enum ring n_ring)
{
    size_t least = SIZE_MAX;
    keep_least(p, m);
    do {
        add_up(p, n_ring);
        least = p->resident + p->ring < least ? p->resident + p->ring : least;
    } while (keep_largest(p));
    return least;
}

/* Is this unit a part of the head? Rows of the head stay together or not at all, because rows that
 * do not stay come several times in a pass. */
static bool is_rows_of_head(const struct ctw_placement *p, int unit)
{
    return p->unit[unit].kind == CTW_UNIT_ROWS && p->unit[unit].layer > 0;
}

/* Keeps more units, evenly spaced over the depth, in the memory that `limit` leaves beside the
 * ring. */
static void spread(struct ctw_placement *p, uint64_t limit, size_t ring)
{
    size_t taken = ring, left = 0, seen = 0, kept = 0;
    for (int i = 0; i < p->n_units; i++) {
        taken += p->unit[i].stays ? p->unit[i].bytes : 0;
        left += p->unit[i].stays || is_rows_of_head(p, i) ? 0 : p->unit[i].bytes;
    }
    size_t room = (size_t)(limit - taken);
    for (int i = 0; i < p->n_units; i++) {
        if (p->unit[i].stays || is_rows_of_head(p, i))
            continue;
        seen += p->unit[i].bytes;
        /* The share of bytes that stays is the same for the layers seen so far as for all
         * layers. */
        double due = (double)seen / (double)left * (double)room;
        if ((double)(kept + p->unit[i].bytes) > due)
            continue;
        p->unit[i].stays = true;
        kept += p->unit[i].bytes;
    }
}

/* Keeps every further layer that still fits. */
static void fill(struct ctw_placement *p, uint64_t limit, enum ring n_ring)
{
    for (int i = 0; i < p->n_units; i++) {
        if (p->unit[i].stays)
            continue;
        p->unit[i].stays = true;
        add_up(p, n_ring);
        p->unit[i].stays = p->resident + p->ring <= limit;
    }
    add_up(p, n_ring);
}

static enum ctw_status open_table(struct ctw_placement *p, const struct ctw_model *m,
                                  const struct ctw_cuts *cuts, struct ctw_err *err)
{
    *p = (struct ctw_placement){.n_layers = m->n_layers, .device_room = SIZE_MAX};
    enum ctw_status st = ctw_units_make(m, cuts, &p->unit, &p->n_units, &p->first, err);
    for (int i = 0; st == CTW_OK && i < p->n_units; i++)
        p->weights += p->unit[i].bytes;
    if (st != CTW_OK)
        ctw_placement_free(p);
    return st;
}

enum ctw_status ctw_placement_make(struct ctw_placement *out, const struct ctw_model *m,
                                   uint64_t limit, struct ctw_err *err)
{
    char need[32], have[32], all[32];
    size_t ring, least;
    enum ctw_status st = open_table(out, m, NULL, err);
    if (st != CTW_OK)
        return st;
    if (out->weights <= limit) {
        while (keep_largest(out))
            ;
        add_up(out, TWO);
        return CTW_OK;
    }
    enum ring n_ring = choose_ring(out, m, limit, TWO, &ring) ? TWO : ONE;
    if (n_ring == TWO || choose_ring(out, m, limit, ONE, &ring)) {
        spread(out, limit, ring);
        fill(out, limit, n_ring);
        return CTW_OK;
    }
    least = least_limit(out, m, ONE);
    st = ctw_fail(err, CTW_ENOMEM,
                  "the weights (%s) cannot be streamed through %s: the largest layers need %s: "
                  "raise --weights-limit",
                  ctw_format_bytes(all, sizeof(all), (double)out->weights),
                  ctw_format_bytes(have, sizeof(have), (double)limit),
                  ctw_format_bytes(need, sizeof(need), (double)least));
    ctw_placement_free(out);
    return st;
}

enum ctw_status ctw_placement_make_least(struct ctw_placement *out, const struct ctw_model *m,
                                         struct ctw_err *err)
{
    enum ctw_status st = open_table(out, m, NULL, err);
    if (st != CTW_OK)
        return st;
    size_t least = least_limit(out, m, TWO);
    ctw_placement_free(out);
    return ctw_placement_make(out, m, least, err);
}

enum ctw_status ctw_placement_make_parted(struct ctw_placement *out, const struct ctw_model *m,
                                          int n_devices, const struct ctw_cuts *cuts,
                                          struct ctw_err *err)
{
    size_t least = SIZE_MAX;
    int n = 0, best = 0;
    enum ctw_status st = open_table(out, m, cuts, err);
    if (st != CTW_OK)
        return st;
    keep_least(out, m);
    do {
        add_up(out, DECODERS);
        size_t memory = out->resident + out->ring + out->streamed / (size_t)n_devices;
        if (memory < least) {
            least = memory;
            best = n;
        }
        n++;
    } while (keep_largest(out));
    keep_least(out, m);
    for (int i = 0; i < best; i++)
        (void)keep_largest(out);
    add_up(out, DECODERS);
    return CTW_OK;
}

void ctw_placement_keep_more(struct ctw_placement *p, int n_devices, size_t spare)
{
    size_t rows = 0, head = 0, ring = p->ring;
    int last = p->first[p->n_layers - 1];
    for (int i = 0; i < p->n_units; i++)
        rows = max_size(rows, p->unit[i].kind == CTW_UNIT_ROWS ? p->unit[i].bytes : 0);
    if (2 * rows > ring && 2 * rows - ring <= spare) {
        spare -= 2 * rows - ring;
        ring = 2 * rows;
    }
    /* A unit that stays takes its bytes, and saves 1/n of them in the device's part of the other
     * units. */
    size_t room = spare / (size_t)(n_devices - 1) * (size_t)n_devices;
    size_t limit = p->resident + ring + room;
    for (int i = last; i < p->n_units; i++)
        head += p->unit[i].stays ? 0 : p->unit[i].bytes;
    for (int i = last; i < p->n_units && head <= room; i++)
        p->unit[i].stays = true;
    spread(p, limit, ring);
    add_up(p, DECODERS);
    p->ring = p->streamed > 0 ? ring : 0;
}

enum ctw_status ctw_placement_copy(struct ctw_placement *out, const struct ctw_placement *p,
                                   struct ctw_err *err)
{
    size_t n = (size_t)p->n_units, n_first = (size_t)p->n_layers + 1;
    *out = *p;
    out->unit = ctw_calloc(n, sizeof(*out->unit));
    out->first = ctw_calloc(n_first, sizeof(*out->first));
    if (out->unit == NULL || out->first == NULL) {
        ctw_placement_free(out);
        return ctw_fail(err, CTW_ENOMEM, "layers: out of memory");
    }
    memcpy(out->unit, p->unit, n * sizeof(*out->unit));
    memcpy(out->first, p->first, n_first * sizeof(*out->first));
    return CTW_OK;
}

void ctw_placement_free(struct ctw_placement *p)
{
    ctw_free(p->unit);
    ctw_free(p->first);
    *p = (struct ctw_placement){0};
}

/* ---- homes --------------------------------------------------------------------------------- */

/* Gives units that are in the files the home `to`, evenly spaced, as far as `room` goes. Returns
 * their bytes. */
static uint64_t settle_units(const struct ctw_placement *p, unsigned char *home, enum ctw_home to,
                             uint64_t room)
{
    uint64_t all = 0, seen = 0, kept = 0;
    for (int i = 0; i < p->n_units; i++)
        all += home[i] == CTW_HOME_FILES ? p->unit[i].bytes : 0;
    for (int i = 0; i < p->n_units; i++) {
        if (home[i] != CTW_HOME_FILES)
            continue;
        seen += p->unit[i].bytes;
        double due = room < all ? (double)seen / (double)all * (double)room : (double)seen;
        if ((double)(kept + p->unit[i].bytes) > due + 0.5)
            continue;
        home[i] = (unsigned char)to;
        kept += p->unit[i].bytes;
    }
    return kept;
}

/* The bytes that a device can hold in `room`: slices, their alignment and their uneven distribution
 * take more memory than an exact part. */
static uint64_t part_of(uint64_t room)
{
    uint64_t more = room / 2048 + CTW_DEVICE_SLICE;
    return room > more ? room - more : 0;
}

/* The bytes of slices that fit in `room` of locked memory: a slice may not fit at the end of a
 * block. */
static uint64_t host_part_of(uint64_t room)
{
    return room <= CTW_HOST_BLOCK ? room : room - room / (CTW_HOST_BLOCK / CTW_DEVICE_SLICE);
}

void ctw_homes_choose(const struct ctw_placement *p, int n, unsigned char *home,
                      uint64_t bytes[CTW_N_HOMES])
{
    uint64_t room = p->device_room == SIZE_MAX ? UINT64_MAX : (uint64_t)n * part_of(p->device_room);
    for (int i = 0; i < p->n_units; i++)
        home[i] = p->unit[i].stays ? CTW_HOME_WHOLE : CTW_HOME_FILES;
    bytes[CTW_HOME_WHOLE] = p->resident;
    bytes[CTW_HOME_DEVICES] = settle_units(p, home, CTW_HOME_DEVICES, room);
    bytes[CTW_HOME_HOST] = settle_units(p, home, CTW_HOME_HOST, host_part_of(p->host_room));
    bytes[CTW_HOME_FILES] = p->streamed - bytes[CTW_HOME_DEVICES] - bytes[CTW_HOME_HOST];
}
