/*
 * Where an engine's weights are, which the user may force, and what that costs: mapped files,
 * resident, streamed in every pass, or spread over several devices. No choice can change a score.
 */
#ifndef CTW_WORKER_PLACING_H
#define CTW_WORKER_PLACING_H

#include "worker/engine/pass/plan.h"
#include "worker/engine/place/machine.h"
#include "worker/engine/place/rates.h"
#include "worker/weights/provider.h"

enum ctw_place { CTW_MAPPED, CTW_RESIDENT, CTW_STREAMED, CTW_SHARDED };

struct ctw_placing {
    enum ctw_place place;
    /* unless mapped; taken over by the provider */
    struct ctw_placement layers;
    uint64_t weights;     /* bytes of all layers */
    uint64_t memory;      /* that they take */
    uint64_t streamed;    /* read from the files in every pass */
    uint64_t hosted;      /* copied from host memory, which all devices share, in every pass */
    uint64_t gathered;    /* sharded: copied from the devices' memory in every pass, */
    uint64_t repeated;    /* of which this, the head's rows, for each of its chunks */
    const char *unmapped; /* on the CPU: a file because of which the files are not mapped, but
                             copied; NULL: none */
    int n_whole;          /* layers that stay */
    uint64_t ring;        /* part of `memory`: the others pass through it */
    bool one_at_a_time; /* the ring has no place for the next layer: it comes when one has computed
                         */
    int n_shards;       /* sharded: over so many devices; `memory` is of each */
    int n_sharing;      /* devices that copy from each other what one has read (neighbours.h) */
    uint64_t have;      /* the memory of a device, or of the machine, that there was, */
    bool is_limited;    /* or that the user allowed */
    struct ctw_rates rates;
    int64_t hide_tokens; /* of a pass, which computes for as long as its weights take to read */
    char note[1024];     /* what was chosen, and what it costs: lines, with ';' between them */
};

struct ctw_placing_request {
    const struct ctw_model *model;
    struct ctw_backend *be;
    enum ctw_dtype dtype;
    const struct ctw_machine *machine;
    uint64_t have;   /* bytes that the engine may use, of a device's memory or the machine's */
    bool is_limited; /* ... because the user says so: passes are part of it, on the CPU too */
    int n_devices;   /* that could share the weights */
    struct ctw_backend *const *devices; /* [n_devices], the first is be */
    uint64_t others_have;               /* the least that the engine may use of any of the others */
    int n_readers;          /* that read the same files at a time: all devices of the engine */
    const char *place;      /* NULL or "auto", "mapped", "resident", "streamed", "sharded" */
    uint64_t weights_limit; /* 0: none was given */
    uint64_t host_limit;    /* of host memory for what GPUs do not hold; 0: none */
    bool limit_is_default;  /* of the memory beyond the weights: it is what the weights leave */
    uint64_t memory_limit;
    /* Bytes beyond the weights that passes of the usual windows need, at full rate and at least. */
    uint64_t work, least_work;
};

/* CTW_EINVAL, CTW_ENOMEM: what was asked for is not possible. */
enum ctw_status ctw_placing_choose(struct ctw_placing *out, const struct ctw_placing_request *r,
                                   struct ctw_err *err) CTW_MUST_CHECK;
/* Do devices share what they copy in every pass (shards.h)? */
bool ctw_placing_is_shared(const struct ctw_placing *p);
/* The same choice for one more device that shares the weights. */
enum ctw_status ctw_placing_copy(struct ctw_placing *out, const struct ctw_placing *p,
                                 struct ctw_err *err) CTW_MUST_CHECK;
/* Opens the provider that was chosen. `shards`: if sharded. */
enum ctw_status ctw_placing_open(struct ctw_placing *p, const struct ctw_model *model,
                                 struct ctw_backend *be, struct ctw_shards *shards,
                                 struct ctw_provider **out, struct ctw_err *err) CTW_MUST_CHECK;
/* estimate.c: writes p->note, for passes of that plan on each of n devices. */
void ctw_placing_describe(struct ctw_placing *p, const struct ctw_model *model,
                          const struct ctw_plan *plan, int n_devices);
void ctw_placing_free(struct ctw_placing *p);

/* The place's name: "mapped", "resident", "streamed", "sharded". */
const char *ctw_place_name(enum ctw_place place);

#endif
