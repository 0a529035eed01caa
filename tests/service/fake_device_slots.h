/* What the fake GPU decodes ahead (ctw_prepare()): a copy of each shard's bytes, so that nothing
 * reads the bytes themselves afterwards. Dense weights are read where they are, as on a GPU. */
#ifndef CTW_TESTS_FAKE_DEVICE_SLOTS_H
#define CTW_TESTS_FAKE_DEVICE_SLOTS_H

#include "kernels/backend.h"

struct slot {
    int n_shards; /* 0: none */
    enum ctw_epilogue epilogue;
    struct {
        const struct ctw_weight *weight;
        const void *values;
        int64_t row0, n;
        struct ctw_weight_data copy; /* not of a dense weight */
    } shard[CTW_MAX_SHARDS];
    uint64_t digest; /* of all bytes of dense shards, which must not change */
};

/* The slot is empty, at first {0}. If filling fails, it stays so. */
enum ctw_status slot_fill(struct slot *slot, const struct ctw_op_linear *op,
                          struct ctw_err *err) CTW_MUST_CHECK;
void slot_empty(struct slot *slot);
/* Was the slot filled with op's shards? */
bool slot_has(const struct slot *slot, const struct ctw_op_linear *op);
/* op of such a slot, with its copies in `shards`. Ends the process if dense bytes have changed. */
struct ctw_op_linear slot_product(const struct slot *slot, const struct ctw_op_linear *op,
                                  struct ctw_shard shards[CTW_MAX_SHARDS]);

#endif
