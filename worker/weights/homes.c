#include "worker/weights/homes.h"

/* Gives the units that are in the files another home, evenly, as far as there is room. */
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

/* What slices, their alignment and their uneven distribution may take beyond a part. */
static uint64_t part_of(uint64_t room)
{
    uint64_t more = room / 2048 + CTW_DEVICE_SLICE;
    return room > more ? room - more : 0;
}

/* Of a limit for locked memory, what slices can have: at the end of a block, one may not fit. */
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
