/*
 * Which units stay in memory, and how much of it the others take in turn. Units that stay are read
 * once; the others are read in every pass, a unit or two ahead, into a ring of bytes.
 */
#ifndef CTW_WORKER_PLACEMENT_H
#define CTW_WORKER_PLACEMENT_H

#include "worker/checkpoint/identity.h"
#include "worker/weights/units.h"

struct ctw_placement {
    int n_units;           /* 0: there is no placement */
    struct ctw_unit *unit; /* [n_units], in the order of a pass */
    int *first;            /* [n_layers + 1]: each layer's first unit */
    int n_layers;
    size_t weights;        /* of all units together */
    size_t resident, ring; /* memory: of the units that stay, and of the ring; 0: all stay */
    size_t streamed;       /* read in every pass: weights - resident */
    /* What does not stay: enum ctw_home. */
    size_t device_room; /* of each device, for its part */
    size_t host_room;   /* of host memory, for what is on no device */
    bool one_at_a_time; /* the ring holds a unit, but not always the next one as well */
    bool ahead;         /* it does, of decoder layers */
};

/*
 * Keeps as many layers as fit `limit` bytes beside a ring that holds two layers in a row, spread
 * over the depth of the model, so that reading never pauses for long. If two do not fit, the ring
 * holds one. A tied embedding stays. CTW_ENOMEM: not even that fits; the message says how much
 * does.
 */
enum ctw_status ctw_placement_make(struct ctw_placement *out, const struct ctw_model *m,
                                   uint64_t limit, struct ctw_err *err) CTW_MUST_CHECK;
/* The least limit with which a layer is read while the one before it computes; as little stays as
 * that allows. */
enum ctw_status ctw_placement_make_least(struct ctw_placement *out, const struct ctw_model *m,
                                         struct ctw_err *err) CTW_MUST_CHECK;
/*
 * The least memory of each of n devices which hold the units that do not stay together, 1/n each.
 * The ring then holds two decoder layers, or one if its matrices are released before it computes;
 * or the embedding or the head alone, in parts if they can be cut: gathering these is short, as it
 * takes no disk, and a ring of both would cost more than all else of a model with a large
 * vocabulary. `cuts` NULL: no layer is cut.
 */
enum ctw_status ctw_placement_make_parted(struct ctw_placement *out, const struct ctw_model *m,
                                          int n_devices, const struct ctw_cuts *cuts,
                                          struct ctw_err *err) CTW_MUST_CHECK;
/* Spends so many bytes more of each of n devices: on a ring for two parts of rows, of which one
 * comes while the other computes; then on units that stay, first the head's rows, which come
 * several times in a pass. */
void ctw_placement_keep_more(struct ctw_placement *p, int n_devices, size_t spare);
enum ctw_status ctw_placement_copy(struct ctw_placement *out, const struct ctw_placement *p,
                                   struct ctw_err *err) CTW_MUST_CHECK;
void ctw_placement_free(struct ctw_placement *p); /* {0} is fine */

/* ---- where units are that do not stay whole on each device ---------------------------------- */

enum {
    CTW_DEVICE_SLICE = 2 * CTW_BLOCK_BYTES, /* of a device's units, and of shards */
    CTW_HOST_BLOCK = 32 << 20 /* of locked host memory: smaller ones take more than their bytes */
};

/* Where a unit's bytes are. */
enum ctw_home { CTW_HOME_FILES, CTW_HOME_HOST, CTW_HOME_DEVICES, CTW_HOME_WHOLE, CTW_N_HOMES };

/* Spreads the units evenly over what the placement has room for: home [n_units], and the bytes of
 * each kind of home. */
void ctw_homes_choose(const struct ctw_placement *place, int n, unsigned char *home,
                      uint64_t bytes[CTW_N_HOMES]);

#endif
