/*
 * Where units are that do not stay whole on each device: spread over the devices, in host memory,
 * or only in the files.
 */
#ifndef CTW_WORKER_HOMES_H
#define CTW_WORKER_HOMES_H

#include "worker/checkpoint/identity.h"
#include "worker/weights/placement.h"

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
