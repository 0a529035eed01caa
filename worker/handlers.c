#include "worker/handlers.h"

#include "worker/clock.h"

static ctw_handler_fn *const handlers[CTW_N_OPS] = {
    [CTW_OP_INFO] = ctw_handle_info,     [CTW_OP_HEALTH] = ctw_handle_health,
    [CTW_OP_SUBMIT] = ctw_handle_submit, [CTW_OP_SEAL] = ctw_handle_seal,
    [CTW_OP_POLL] = ctw_handle_poll,     [CTW_OP_FETCH] = ctw_handle_fetch,
    [CTW_OP_CANCEL] = ctw_handle_cancel, [CTW_OP_RELEASE] = ctw_handle_release,
    [CTW_OP_LOAD] = ctw_handle_load,     [CTW_OP_UNLOAD] = ctw_handle_unload,
    [CTW_OP_DRAIN] = ctw_handle_drain,   [CTW_OP_SHUTDOWN] = ctw_handle_shutdown,
};

void ctw_handle(void *arg, const struct ctw_peer *peer, const struct ctw_request *request,
                struct ctw_wait *wait, struct ctw_reply *reply)
{
    struct ctw_handler_call call = {
        .service = arg,
        .peer = peer,
        .contact = {.pipe = peer->pipe, .now_ms = ctw_now_ms()},
        .request = request,
        .wait = wait,
        .reply = reply,
        .bad_item = -1,
    };
    struct ctw_err err;
    atomic_fetch_add(&call.service->n_requests, 1);
    enum ctw_status st = handlers[request->op](&call, &err);
    reply->ok = st == CTW_OK;
    if (st == CTW_OK)
        return;
    ctw_reply_fail(reply, &err);
    if (call.retry_ms > 0) {
        reply->error.has |= 1u << CTW_ERROR_RETRY_MS;
        reply->error.retry_ms = (uint64_t)call.retry_ms;
    }
    if (call.bad_item >= 0) {
        reply->error.has |= 1u << CTW_ERROR_ITEM;
        reply->error.item = (uint64_t)call.bad_item;
    }
}

void ctw_handle_peer_gone(void *arg, uint32_t pipe)
{
    struct ctw_service *service = arg;
    ctw_queue_peer_gone(service->queue, pipe, ctw_now_ms());
}
