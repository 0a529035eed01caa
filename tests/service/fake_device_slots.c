#include "fake_device_slots.h"

#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "fake_device_gpu.h"

static uint64_t digest_of(const struct ctw_op_linear *op)
{
    uint64_t digest = 0;
    for (int i = 0; i < op->n_shards; i++)
        for (int p = 0; p < CTW_N_PARTS && ctw_weight_is_dense(op->shards[i].weight); p++)
            if (op->shards[i].data->part[p] != NULL)
                digest = ctw_hash(digest, op->shards[i].data->part[p],
                                  op->shards[i].weight->part[p].bytes);
    return digest;
}

static enum ctw_status copy_parts(const struct ctw_shard *s, struct ctw_weight_data *to,
                                  struct ctw_err *err)
{
    for (int p = 0; p < CTW_N_PARTS; p++) {
        if (s->data->part[p] == NULL)
            continue;
        void *copy = ctw_calloc(s->weight->part[p].bytes, 1);
        if (copy == NULL)
            return ctw_fail(err, CTW_ENOMEM, "fake: no memory for a decoded weight");
        memcpy(copy, s->data->part[p], s->weight->part[p].bytes);
        to->part[p] = copy;
    }
    return CTW_OK;
}

enum ctw_status slot_fill(struct slot *slot, const struct ctw_op_linear *op, struct ctw_err *err)
{
    enum ctw_status st = CTW_OK;
    slot->epilogue = op->epilogue;
    slot->digest = digest_of(op);
    slot->n_shards = op->n_shards;
    for (int i = 0; st == CTW_OK && i < op->n_shards; i++) {
        const struct ctw_shard *s = &op->shards[i];
        slot->shard[i].weight = s->weight;
        slot->shard[i].values = s->data->part[CTW_PART_VALUES];
        slot->shard[i].row0 = s->row0;
        slot->shard[i].n = s->n;
        if (!ctw_weight_is_dense(s->weight))
            st = copy_parts(s, &slot->shard[i].copy, err);
    }
    if (st != CTW_OK)
        slot_empty(slot);
    return st;
}

void slot_empty(struct slot *slot)
{
    for (int i = 0; i < slot->n_shards; i++)
        for (int p = 0; p < CTW_N_PARTS; p++)
            ctw_free((void *)slot->shard[i].copy.part[p]);
    *slot = (struct slot){0};
}

bool slot_has(const struct slot *slot, const struct ctw_op_linear *op)
{
    bool gated = slot->epilogue == CTW_EPI_GATE;
    bool same = slot->n_shards == op->n_shards && gated == (op->epilogue == CTW_EPI_GATE);
    for (int i = 0; same && i < op->n_shards; i++)
        same = slot->shard[i].weight == op->shards[i].weight &&
               slot->shard[i].values == op->shards[i].data->part[CTW_PART_VALUES] &&
               slot->shard[i].row0 == op->shards[i].row0 && slot->shard[i].n == op->shards[i].n;
    return same;
}

struct ctw_op_linear slot_product(const struct slot *slot, const struct ctw_op_linear *op,
                                  struct ctw_shard shards[CTW_MAX_SHARDS])
{
    struct ctw_op_linear own = *op;
    if (slot->digest != digest_of(op))
        gpu_die("linear: the bytes of a prepared weight have changed");
    for (int i = 0; i < op->n_shards; i++) {
        shards[i] = op->shards[i];
        if (!ctw_weight_is_dense(shards[i].weight))
            shards[i].data = &slot->shard[i].copy;
    }
    own.shards = shards;
    return own;
}
