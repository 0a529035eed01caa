#include "worker/service/requests/handlers.h"

#include "base/clock.h"
#include "base/log.h"

/* The tokens that an operation needs, over tcp. */
enum access { FOR_ADMINS, FOR_ALL };

static const struct {
    ctw_handler_fn *answer;
    enum access access;
} handlers[CTW_N_OPS] = {
    [CTW_OP_INFO] = {ctw_handle_info, FOR_ALL},
    [CTW_OP_HEALTH] = {ctw_handle_health, FOR_ALL},
    [CTW_OP_SUBMIT] = {ctw_handle_submit, FOR_ALL},
    [CTW_OP_SEAL] = {ctw_handle_seal, FOR_ALL},
    [CTW_OP_POLL] = {ctw_handle_poll, FOR_ALL},
    [CTW_OP_FETCH] = {ctw_handle_fetch, FOR_ALL},
    [CTW_OP_CANCEL] = {ctw_handle_cancel, FOR_ALL},
    [CTW_OP_RELEASE] = {ctw_handle_release, FOR_ALL},
    [CTW_OP_LOAD] = {ctw_handle_load, FOR_ADMINS},
    [CTW_OP_UNLOAD] = {ctw_handle_unload, FOR_ADMINS},
    [CTW_OP_DRAIN] = {ctw_handle_drain, FOR_ADMINS},
    [CTW_OP_SHUTDOWN] = {ctw_handle_shutdown, FOR_ADMINS},
};

/* ---- who asks ---- */

bool ctw_handle_admits(void *arg, struct ctw_peer *peer, const struct ctw_request *request)
{
    enum { QUIET_MS = 1000 };
    struct ctw_service *service = arg;
    peer->who = ctw_auth_find(service->auth, request->token);
    if (peer->who != NULL) {
        const struct ctw_auth_entry *e = peer->who;
        peer->token = e->name;
        peer->admin = e->admin;
        return true;
    }
    int64_t now = ctw_now_ms();
    long long last = atomic_load(&service->refused_ms);
    if ((last == 0 || now - last >= QUIET_MS) &&
        atomic_compare_exchange_strong(&service->refused_ms, &last, now))
        ctw_warn("refused: a request of %s with %s token", peer->address,
                 request->token.n == 0 ? "no" : "a wrong");
    return false;
}

/* Fills in the contact's owner and role. */
static enum ctw_status identify_caller(struct ctw_handler_call *c, struct ctw_err *err)
{
    const struct ctw_auth_entry *e = c->peer->who; /* NULL: no token is needed */
    c->contact.owner = e != NULL ? e->name : NULL;
    c->contact.admin = e == NULL || e->admin;
    if (!c->contact.admin && handlers[c->request->op].access == FOR_ADMINS)
        return ctw_fail(err, CTW_EREFUSED, "refused: this needs a token of role admin");
    return CTW_OK;
}

/* ---- answering ---- */

void ctw_handle(void *arg, const struct ctw_peer *peer, const struct ctw_request *request,
                struct ctw_wait *wait, struct ctw_reply *reply)
{
    struct ctw_handler_call call = {
        .service = arg,
        .peer = peer,
        .contact = {.pipe = peer->pipe, .now_ms = ctw_now_ms(), .address = peer->address},
        .request = request,
        .wait = wait,
        .reply = reply,
        .bad_item = -1,
    };
    struct ctw_err err;
    atomic_fetch_add(&call.service->n_requests, 1);
    enum ctw_status st = identify_caller(&call, &err);
    if (st == CTW_OK)
        st = handlers[request->op].answer(&call, &err);
    reply->ok = st == CTW_OK;
    if (st == CTW_OK)
        return;
    if (!peer->local) {
        pthread_mutex_lock(&call.service->queue->lock);
        ctw_hide_paths(call.service, err.msg, sizeof(err.msg));
        pthread_mutex_unlock(&call.service->queue->lock);
    }
    ctw_reply_fail(reply, &err);
    if (call.retry_ms > 0) {
        reply->error.has.retry_ms = true;
        reply->error.retry_ms = (uint64_t)call.retry_ms;
    }
    if (call.bad_item >= 0) {
        reply->error.has.item = true;
        reply->error.item = (uint64_t)call.bad_item;
    }
}

void ctw_handle_peer_gone(void *arg, uint32_t pipe)
{
    struct ctw_service *service = arg;
    ctw_queue_peer_gone(service->queue, pipe, ctw_now_ms());
}
