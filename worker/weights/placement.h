/*
 * The units that stay in memory, and the memory through which the other units pass. Units that stay
 * are read once. The other units are read in every pass, a unit or two ahead, into a ring of bytes.
 */
#ifndef CTW_WORKER_PLACEMENT_H
#define CTW_WORKER_PLACEMENT_H

#include "worker/checkpoint/identity.h"
#include "worker/weights/units.h"

struct ctw_placement {
    int n_units;           /* 0: there is no placement */
    struct ctw_unit *unit; /* [n_units], in the order of a pass */
    int *first;            /* [n_layers + 1]: the first unit of each layer */
    int n_layers;
    size_t weights;        /* bytes of all units */
    size_t resident, ring; /* memory of the units that stay; of the ring, 0: all stay */
    size_t streamed;       /* bytes that are read in every pass: weights - resident */
    /* Room for units that do not stay, by enum ctw_home. */
    size_t device_room; /* of each device, for its part */
    size_t host_room;   /* of host memory, for units that are on no device */
    bool one_at_a_time; /* the ring holds one unit, but not always the next one as well */
    bool ahead;         /* the ring holds the next decoder layer as well */
};

/*
 * Keeps as many layers as fit in `limit` bytes beside a ring of two consecutive layers. The layers
 * that stay are spread over the depth of the model, so that reading never pauses for long. If two
 * layers do not fit, the ring holds one. A tied embedding stays. CTW_ENOMEM: not even one layer
 * fits; the message states the memory that does.
 */
enum ctw_status ctw_placement_make(struct ctw_placement *out, const struct ctw_model *m,
                                   uint64_t limit, struct ctw_err *err) CTW_MUST_CHECK;
/* Finds the least limit with which a layer can be read while the layer before it computes, and
 * keeps as few units as this limit allows. */
enum ctw_status ctw_placement_make_least(struct ctw_placement *out, const struct ctw_model *m,
                                         struct ctw_err *err) CTW_MUST_CHECK;
/*
 * Finds the least memory of each of n devices, if the devices hold the units that do not stay
 * together, 1/n each. The ring then holds two decoder layers, or one decoder layer if its matrices
 * are released before it computes; or the embedding or the head alone, in parts if they can be cut.
 * Gathering an embedding or head is short, because no disk is involved. A ring for both would take
 * more memory than everything else of a model with a large vocabulary. `cuts` NULL: no layer is
 * cut.
 */
enum ctw_status ctw_placement_make_parted(struct ctw_placement *out, const struct ctw_model *m,
                                          int n_devices, const struct ctw_cuts *cuts,
                                          struct ctw_err *err) CTW_MUST_CHECK;
/* Uses `spare` more bytes of each of n devices: first for a ring of two parts of rows, so that a
 * part can come while another computes; then for units that stay, beginning with the rows of the
 * head, which come several times in a pass. */
void ctw_placement_keep_more(struct ctw_placement *p, int n_devices, size_t spare);
enum ctw_status ctw_placement_copy(struct ctw_placement *out, const struct ctw_placement *p,
                                   struct ctw_err *err) CTW_MUST_CHECK;
void ctw_placement_free(struct ctw_placement *p); /* {0} is fine */

/* ---- where units are that do not stay whole on each device ---------------------------------- */

enum {
    CTW_DEVICE_SLICE = 2 * CTW_BLOCK_BYTES, /* slices of a device's units, and of shards */
    CTW_HOST_BLOCK = 32 << 20 /* of locked host memory, which takes more in smaller blocks */
};

/* The home of a unit's bytes. */
enum ctw_home { CTW_HOME_FILES, CTW_HOME_HOST, CTW_HOME_DEVICES, CTW_HOME_WHOLE, CTW_N_HOMES };

/* Spreads the units evenly over the room that the placement has: home[n_units], and the bytes in
 * each kind of home. */
void ctw_homes_choose(const struct ctw_placement *place, int n, unsigned char *home,
                      uint64_t bytes[CTW_N_HOMES]);

#endif
