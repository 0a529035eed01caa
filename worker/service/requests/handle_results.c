/* Requests about jobs in the queue: poll, fetch, cancel, release. */
#include <inttypes.h>

#include "base/log.h"
#include "worker/service/requests/handlers.h"

static struct ctw_span state_of(const struct ctw_job *j)
{
    return ctw_span_of(ctw_job_state_name(j->state));
}

/* ---- poll ---- */

/*
 * True: there is no news yet, and *wait is set to the key and time that the poll waits for. False:
 * reply now, either with news or because no further poll may wait; *again_ms is the time to the
 * client's next poll.
 */
static bool put_off(const struct ctw_queue *q, struct ctw_job *j, const struct ctw_poll *poll,
                    struct ctw_wait *wait, int64_t now_ms, bool own, uint64_t *again_ms)
{
    bool counts = poll->has.seen;
    bool news = ctw_job_is_final(j) || atomic_load(&q->life.stop) ||
                (counts && (uint64_t)j->results.n_done > poll->seen);
    int64_t until_ms = wait->since_ms + (int64_t)poll->wait_ms;
    *again_ms = !news && poll->wait_ms == 0 ? CTW_IPC_POLL_MS : 0;
    if (news || now_ms >= until_ms)
        return false;
    if (!wait->allowed) {
        *again_ms = CTW_IPC_WAIT_MS;
        return false;
    }
    wait->until_ms = until_ms;
    wait->key = ctw_job_key(j->id);
    if (own)
        ctw_job_wait_until(j, until_ms);
    return true;
}

static enum ctw_status fill_poll(struct ctw_handler_call *c, const struct ctw_job *j,
                                 struct ctw_err *err)
{
    struct ctw_poll_reply *r = &c->reply->body.poll;
    r->state = state_of(j);
    r->items_done = (uint64_t)j->results.n_done;
    r->items = (uint64_t)j->input.n_items;
    ctw_queue_progress(c->service->queue, j, &r->progress);
    if (j->error.err.status == CTW_OK)
        return CTW_OK;
    r->has.error = true;
    r->error.code = ctw_span_of(ctw_status_name(j->error.err.status));
    if (j->error.item >= 0)
        r->error.has.item = true;
    if (j->error.layer >= 0)
        r->error.has.layer = true;
    r->error.item = (uint64_t)j->error.item;
    r->error.layer = (uint64_t)j->error.layer;
    return ctw_copy_message(c, j->error.err.msg, &r->error.message)
               ? CTW_OK
               : ctw_fail(err, CTW_ENOMEM, "poll: out of memory");
}

enum ctw_status ctw_handle_poll(struct ctw_handler_call *c, struct ctw_err *err)
{
    struct ctw_queue *q = c->service->queue;
    const struct ctw_poll *poll = &c->request->body.poll;
    uint64_t *again_ms = &c->reply->body.poll.again_ms;
    struct ctw_job *j;
    if (poll->wait_ms > CTW_IPC_WAIT_MS)
        return ctw_fail(err, CTW_EINVAL, "poll: wait_ms %" PRIu64 " is not in 0..%d", poll->wait_ms,
                        CTW_IPC_WAIT_MS);
    pthread_mutex_lock(&q->lock);
    enum ctw_status st = ctw_jobs_find(&q->jobs, &c->contact, poll->job, &poll->owner, &j, err);
    if (st == CTW_OK &&
        !put_off(q, j, poll, c->wait, c->contact.now_ms, ctw_job_is_of(j, &c->contact), again_ms))
        st = fill_poll(c, j, err);
    pthread_mutex_unlock(&q->lock);
    return st;
}

/* ---- fetch, cancel, release ---- */

/* The job is pinned, and its names never change. */
static enum ctw_status name_matrices(const struct ctw_job *j, struct ctw_reply *reply,
                                     struct ctw_err *err)
{
    struct ctw_fetch_reply *r = &reply->body.fetch;
    size_t n = (size_t)j->head.n_matrices;
    struct ctw_span *names = ctw_reply_alloc(reply, n * sizeof(*names));
    if (names == NULL)
        return ctw_fail(err, CTW_ENOMEM, "fetch: out of memory");
    r->has.matrices = true;
    r->matrices = (struct ctw_list){names, n};
    for (size_t i = 0; i < n; i++)
        if (!ctw_reply_copy(reply, j->results.matrix_names[i], &names[i]))
            return ctw_fail(err, CTW_ENOMEM, "fetch: out of memory");
    return CTW_OK;
}

static enum ctw_status copy_results(const struct ctw_job *j, const struct ctw_fetch *fetch,
                                    int64_t n_done, struct ctw_reply *reply, struct ctw_err *err)
{
    struct ctw_fetch_reply *r = &reply->body.fetch;
    bool bounded = fetch->has.max_bytes;
    int64_t max_bytes = CTW_IPC_FETCH_BYTES;
    int64_t n;
    if (bounded && fetch->max_bytes < (uint64_t)max_bytes)
        max_bytes = (int64_t)fetch->max_bytes;
    if (fetch->first > (uint64_t)n_done)
        return ctw_fail(err, CTW_EINVAL,
                        "fetch: first is %" PRIu64 ", but only %" PRId64 " items are final",
                        fetch->first, n_done);
    enum ctw_status st =
        ctw_job_columns(j, (int64_t)fetch->first, n_done, max_bytes, reply, &n, err);
    r->first = fetch->first;
    r->n = (uint64_t)n;
    if (st == CTW_OK && !ctw_reply_copy(reply, j->results.numerics, &r->numerics))
        st = ctw_fail(err, CTW_ENOMEM, "fetch: out of memory");
    if (st == CTW_OK && j->results.ref_numerics != NULL) {
        r->has.reference = true;
        if (!ctw_reply_copy(reply, j->results.ref_numerics, &r->ref_numerics))
            st = ctw_fail(err, CTW_ENOMEM, "fetch: out of memory");
    }
    if (j->head.n_layers > 0) {
        r->has.layers = true;
        r->layers = (uint64_t)j->head.n_layers;
    }
    return st == CTW_OK && j->head.n_matrices > 0 ? name_matrices(j, reply, err) : st;
}

enum ctw_status ctw_handle_fetch(struct ctw_handler_call *c, struct ctw_err *err)
{
    struct ctw_queue *q = c->service->queue;
    const struct ctw_fetch *fetch = &c->request->body.fetch;
    struct ctw_reply *reply = c->reply;
    struct ctw_job *j;
    int64_t n_done = 0;
    pthread_mutex_lock(&q->lock);
    enum ctw_status st = ctw_jobs_find(&q->jobs, &c->contact, fetch->job, &fetch->owner, &j, err);
    if (st == CTW_OK) {
        ctw_jobs_pin(j);
        n_done = j->results.n_done;
        reply->body.fetch.state = state_of(j);
        if (!ctw_reply_copy(reply, j->results.identity, &reply->body.fetch.identity) ||
            !ctw_reply_copy(reply, j->results.ref_identity, &reply->body.fetch.ref_identity))
            st = ctw_fail(err, CTW_ENOMEM, "fetch: out of memory");
    }
    pthread_mutex_unlock(&q->lock);
    if (j == NULL)
        return st;
    if (st == CTW_OK)
        st = copy_results(j, fetch, n_done, reply, err);
    pthread_mutex_lock(&q->lock);
    ctw_jobs_unpin(&q->jobs, j);
    pthread_mutex_unlock(&q->lock);
    return st;
}

enum ctw_status ctw_handle_cancel(struct ctw_handler_call *c, struct ctw_err *err)
{
    struct ctw_queue *q = c->service->queue;
    const struct ctw_job_request *request = &c->request->body.job;
    char caller[CTW_CALLER_MAX], owner[CTW_OWNER_MAX];
    bool foreign = false;
    struct ctw_job *j;
    pthread_mutex_lock(&q->lock);
    enum ctw_status st =
        ctw_jobs_find(&q->jobs, &c->contact, request->job, &request->owner, &j, err);
    if (st == CTW_OK) {
        foreign = !ctw_job_is_of(j, &c->contact);
        memcpy(owner, j->contact.owner, sizeof(owner));
        ctw_queue_cancel_job(q, j,
                             foreign ? "an administrator cancelled it" : "the client cancelled it");
        c->reply->body.state.state = state_of(j);
    }
    pthread_mutex_unlock(&q->lock);
    if (foreign)
        ctw_info("%s cancelled a job of %s%s", ctw_caller_name(c, caller),
                 owner[0] == '\0' ? "this user" : "token ", owner);
    return st;
}

enum ctw_status ctw_handle_release(struct ctw_handler_call *c, struct ctw_err *err)
{
    struct ctw_queue *q = c->service->queue;
    const struct ctw_job_request *request = &c->request->body.job;
    struct ctw_job *j;
    c->reply->body.state.state = ctw_span_of("released");
    pthread_mutex_lock(&q->lock);
    enum ctw_status st =
        ctw_jobs_find(&q->jobs, &c->contact, request->job, &request->owner, &j, err);
    if (st == CTW_ENOTFOUND)
        st = CTW_OK;
    else if (st == CTW_OK && !ctw_job_is_final(j))
        st = ctw_fail(err, CTW_EINVAL, "release: the job is %s: cancel it first",
                      ctw_job_state_name(j->state));
    else if (st == CTW_OK)
        ctw_queue_remove(q, j);
    pthread_mutex_unlock(&q->lock);
    return st;
}
