/* A weight with random contents in a place. */
#ifndef CTW_TESTS_PLACED_WEIGHT_H
#define CTW_TESTS_PLACED_WEIGHT_H

#include "places.h"

struct placed_weight {
    struct ctw_weight_data data;
    struct ctw_shard shard;
    struct dev part[CTW_N_PARTS], bias;
};

/* aligned: all parts at multiples of 256, else some: files guarantee no alignment. */
static void weight_place(struct placed_weight *d, const struct test_weight *t,
                         struct ctw_backend *be, bool aligned)
{
    *d = (struct placed_weight){.shard = t->shard};
    d->shard.data = &d->data;
    for (int k = 0; k < CTW_N_PARTS; k++) {
        if (t->part[k].base == NULL)
            continue;
        size_t shift = aligned || rng_below(4) == 0 ? 0 : (size_t)rng_below(14);
        d->part[k] = dev_open(be, t->part[k].p, t->part[k].bytes, shift);
        d->data.part[k] = d->part[k].p;
    }
    if (t->bias.base != NULL)
        d->bias = dev_open(be, t->bias.p, t->bias.bytes, (size_t)rng_below(7));
    d->shard.bias = d->bias.p;
}

static void weight_unplace(struct placed_weight *d)
{
    for (int k = 0; k < CTW_N_PARTS; k++)
        dev_close(&d->part[k]);
    dev_close(&d->bias);
}

#endif
