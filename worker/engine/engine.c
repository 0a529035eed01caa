#include <assert.h>
#include <string.h>

#include "base/mem.h"
#include "worker/engine/engine_state.h"
#include "worker/engine/open/activity.h"
#include "worker/engine/score/deal.h"
#include "worker/weights/shards.h"

static void close_buffers(struct ctw_engine *e)
{
    if (e->forward != NULL) {
        e->device->n_holders--;
        ctw_activity_buffers(e, &e->forward->plan, false);
    }
    ctw_forward_close(e->forward);
    e->forward = NULL;
    if (e->device->n_holders == 0)
        ctw_backend_trim(e->be);
}

void ctw_engine_trim_here(struct ctw_engine *e)
{
    if (e->device != NULL)
        close_buffers(e);
    e->share = 0;
}

void ctw_engine_trim(struct ctw_engine *e)
{
    for (int i = 0; i < e->n_peers; i++)
        ctw_engine_trim_here(e->peer[i]);
    ctw_engine_trim_here(e);
}

static void close_weights(struct ctw_engine *e)
{
    ctw_activity_closing(e);
    ctw_placing_free(&e->placing);
    ctw_provider_close(e->provider);
    e->provider = NULL;
}

void ctw_engine_close(struct ctw_engine *e)
{
    if (e == NULL)
        return;
    ctw_shards_stop(e->shards);
    close_weights(e); /* first: freeing waits for uploads in flight */
    for (int i = 0; i < e->n_peers; i++)
        close_weights(e->peer[i]);
    ctw_shards_close(e->shards); /* no device copies from them any more */
    for (int i = 0; i < e->n_peers; i++)
        ctw_engine_close(e->peer[i]);
    ctw_engine_trim_here(e);
    ctw_devices_return(e->devices, e->device);
    if (!e->is_peer) {
        ctw_model_close(e->model);
        pthread_mutex_destroy(e->files);
        ctw_free(e->files);
    }
    ctw_free(e);
}

void ctw_engine_get_info(const struct ctw_engine *e, struct ctw_engine_info *out)
{
    const struct ctw_cost cost = ctw_plan_cost(e->model);
    *out = (struct ctw_engine_info){
        .dtype = e->dtype,
        .max_length = e->max_length,
        .pair_cost = cost.pair / (cost.token + cost.target),
        .fit_length = e->fit_length,
        .vocab = e->model->vocab,
        .chunk_tokens = e->plan.chunk_tokens,
        .pass_tokens = e->plan.pass_tokens,
        .n_devices = e->n_peers + 1,
        .call_tokens = ctw_deal_tokens(e),
        .memory_planned = e->plan.total,
        .memory_limit = e->memory_limit,
        .place = ctw_place_name(e->placing.place),
        .weights_bytes = e->placing.weights,
        .weights_memory = e->placing.memory,
        .weights_streamed = e->placing.streamed,
        .weights_gathered = e->placing.gathered,
        .weights_hosted = e->placing.hosted,
        .place_note = e->placing.note,
        .numerics = e->numerics,
        .model = e->model,
    };
    ctw_backend_get_info(e->be, &out->backend);
}

const char *ctw_engine_identity(const struct ctw_engine *e)
{
    return ctw_identity_text(e->model->identity);
}

const char *ctw_engine_outline(const struct ctw_engine *e)
{
    return ctw_identity_outline(e->model->identity);
}

enum ctw_status ctw_engine_wait_identity(struct ctw_engine *e, struct ctw_err *err)
{
    const struct ctw_layer_data *data;
    enum ctw_status st = CTW_OK;
    for (int l = 0; st == CTW_OK && l < e->model->n_layers; l++) {
        st = ctw_provider_acquire(e->provider, l, &data, err);
        if (st != CTW_OK)
            return st;
        for (int i = 0; st == CTW_OK && i < ctw_provider_parts(e->provider, l); i++) {
            st = ctw_provider_acquire_part(e->provider, l, i, err);
            if (st == CTW_OK)
                ctw_provider_release_part(e->provider, l, i);
        }
        ctw_provider_release(e->provider, l);
    }
    assert(st != CTW_OK || ctw_engine_identity(e)[0] != '\0');
    return st;
}

void ctw_engine_describe(const struct ctw_engine *e, char *buf, size_t cap)
{
    ctw_backend_describe(e->be, buf, cap);
}

/* ---- buffers ------------------------------------------------------------------------------ */

/* Buffers that were too small once are likely to be slightly too small again. Plans for twice the
 * need, unless that makes passes or chunks smaller. */
static void plan_ahead(const struct ctw_engine *e, const struct ctw_need *need,
                       struct ctw_plan *plan)
{
    struct ctw_plan roomy;
    struct ctw_need twice = *need;
    twice.longest = need->longest < e->max_length / 2 ? 2 * need->longest : e->max_length;
    twice.total = 2 * need->total;
    twice.trunk = 2 * need->trunk < twice.longest ? 2 * need->trunk : twice.longest;
    if (ctw_engine_make_plan(e, &twice, &roomy, NULL) == CTW_OK &&
        roomy.chunk_tokens >= plan->chunk_tokens && roomy.pass_tokens >= plan->pass_tokens &&
        roomy.trunk_tokens >= plan->trunk_tokens)
        *plan = roomy;
}

static enum ctw_status open_buffers(struct ctw_engine *e, const struct ctw_plan *plan,
                                    struct ctw_err *err)
{
    enum ctw_status st =
        ctw_forward_open(&e->forward, e->model, e->be, e->dtype, plan, e->n_threads, err);
    if (st != CTW_OK)
        return st;
    e->device->n_holders++;
    ctw_activity_buffers(e, &e->forward->plan, true);
    return CTW_OK;
}

enum ctw_status ctw_engine_measure_limit(struct ctw_engine *e, struct ctw_err *err)
{
    if (e->limit_is_default && !ctw_backend_traits(e->be)->host_memory)
        return ctw_engine_set_default_limit(e, err);
    return CTW_OK;
}

/* Does what is planned for suffice? */
static bool suffices(const struct ctw_plan *have, const struct ctw_plan *plan, int64_t longest)
{
    return have->chunk_tokens >= plan->chunk_tokens && have->pass_tokens >= plan->pass_tokens &&
           have->longest >= longest && have->states >= plan->states &&
           have->trunk_tokens >= plan->trunk_tokens &&
           (have->carry_rows >= plan->carry_rows || have->carry_rows >= have->pass_tokens);
}

enum ctw_status ctw_engine_prepare(struct ctw_engine *e, const struct ctw_need *need,
                                   struct ctw_err *err)
{
    struct ctw_plan plan;
    enum ctw_status st = CTW_OK;
    /* Meanwhile other engines may have allocated or freed memory on this GPU. */
    if (e->forward == NULL)
        st = ctw_engine_measure_limit(e, err);
    if (st == CTW_OK)
        st = ctw_engine_make_plan(e, need, &plan, err);
    if (st != CTW_OK)
        return st;
    if (e->forward != NULL) {
        if (suffices(&e->forward->plan, &plan, need->longest))
            return CTW_OK;
        close_buffers(e);
        struct ctw_plan roomy = plan;
        plan_ahead(e, need, &roomy);
        if (open_buffers(e, &roomy, NULL) == CTW_OK)
            return CTW_OK;
        close_buffers(e); /* fall back to exactly what is needed */
    }
    st = open_buffers(e, &plan, err);
    if (st != CTW_OK)
        close_buffers(e); /* so that reserved memory does not count twice in the next plan */
    return st;
}
