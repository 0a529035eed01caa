/* How much of its device's memory an engine may use. */
#include "base/host.h"
#include "worker/engine/engine_state.h"

static const uint64_t USUAL_OF_HOST = 512ull << 20;

static uint64_t less(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

uint64_t ctw_queue_share(uint64_t have)
{
    return have / 8;
}

uint64_t ctw_host_left(uint64_t have)
{
    const uint64_t program = 24ull << 20;
    return have - less(have, ctw_queue_share(have) + program);
}

static bool on_host(const struct ctw_engine *e)
{
    return ctw_backend_traits(e->be)->host_memory;
}

static uint64_t device_total(const struct ctw_engine *e)
{
    struct ctw_backend_info info;
    ctw_backend_get_info(e->be, &info);
    if (!on_host(e))
        return info.memory_total;
    return e->machine->host_memory > 0 ? e->machine->host_memory : ctw_host_memory("").total;
}

void ctw_engine_limit_device(struct ctw_engine *e, const struct ctw_amount *limit)
{
    e->device_limit =
        limit->share > 0 ? (uint64_t)(limit->share * (double)device_total(e)) : limit->bytes;
}

uint64_t ctw_engine_room(const struct ctw_engine *e)
{
    const struct ctw_activity *a = &e->device->activity;
    uint64_t used = a->weights + a->buffers + a->scratch;
    uint64_t have = on_host(e) ? ctw_machine_memory(e->machine) : ctw_backend_memory_free(e->be);
    if (e->device_limit == 0)
        return have;
    return less(have, e->device_limit - less(e->device_limit, used));
}

static uint64_t default_of_host(const struct ctw_engine *e)
{
    uint64_t quarter = ctw_machine_memory(e->machine) / 4;
    uint64_t usual = quarter > USUAL_OF_HOST ? quarter : USUAL_OF_HOST;
    uint64_t room = ctw_engine_room(e);
    room -= less(room, e->placing.memory);
    return e->device_limit > 0 ? less(usual, room / 10 * 9) : usual;
}

void ctw_engine_limit_host(struct ctw_engine *e)
{
    /* The kernel takes mapped pages back when memory is short. */
    uint64_t kept = e->placing.place == CTW_MAPPED ? 0 : e->placing.memory;
    uint64_t left = ctw_host_left(ctw_machine_memory(e->machine));
    left -= less(left, kept);
    if (e->limit_is_default)
        e->memory_limit = default_of_host(e);
    e->limit_is_free = left < e->memory_limit;
    e->memory_limit = less(left, e->memory_limit);
}

enum ctw_status ctw_engine_set_default_limit(struct ctw_engine *e, struct ctw_err *err)
{
    uint64_t room = ctw_engine_room(e);
    if (e->provider == NULL) /* the weights are not there yet */
        room -= less(room, e->placing.memory);
    e->memory_limit = room / 10 * 9;
    return ctw_backend_sync(e->be, err); /* a failed GPU reports nothing free: return its error */
}
