/* What clients ask of the queue about jobs that are there. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "worker/service/queue.h"

static bool is_owner(const struct ctw_job *j, const struct ctw_contact *contact)
{
    return strcmp(j->owner, contact->owner != NULL ? contact->owner : "") == 0;
}

enum ctw_status ctw_queue_find(struct ctw_queue *q, const struct ctw_contact *contact,
                               struct ctw_slice id, bool others, struct ctw_job **out,
                               struct ctw_err *err)
{
    *out = NULL;
    if (id.n != CTW_IPC_JOB_ID_BYTES)
        return ctw_fail(err, CTW_EINVAL, "job: the id has %zu bytes, expected %d", id.n,
                        CTW_IPC_JOB_ID_BYTES);
    for (struct ctw_job *j = q->jobs.first; j != NULL; j = j->next) {
        if (j->removed || memcmp(j->id, id.data, id.n) != 0)
            continue;
        if (is_owner(j, contact)) {
            ctw_queue_touch(j, contact);
            *out = j;
            return CTW_OK;
        }
        if (others && contact->admin)
            *out = j;
    }
    if (*out != NULL) {
        if (contact->foreign != NULL) {
            contact->foreign->is = true;
            memcpy(contact->foreign->owner, (*out)->owner, sizeof((*out)->owner));
        }
        return CTW_OK;
    }
    return ctw_fail(err, CTW_ENOTFOUND,
                    "no such job: it was never submitted to this worker, was released, or its time "
                    "without contact was over");
}

static struct ctw_slice state_of(const struct ctw_job *j)
{
    return ctw_slice_of(ctw_job_state_name(j->state));
}

/* ---- poll ---- */

/*
 * Is there nothing to tell yet? Then *wait says what the poll waits for, unless there is no room
 * for it; again_ms is when the client may ask again.
 */
static bool put_off(const struct ctw_queue *q, struct ctw_job *j, const struct ctw_poll *poll,
                    struct ctw_wait *wait, int64_t now_ms, bool own, uint64_t *again_ms)
{
    bool counts = poll->has >> CTW_POLL_SEEN & 1;
    bool news = ctw_job_is_final(j) || atomic_load(&q->life.stop) ||
                (counts && (uint64_t)j->n_done > poll->seen);
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
        j->contact_ms = until_ms; /* the client is there until then */
    return true;
}

static enum ctw_status fill_poll(const struct ctw_queue *q, const struct ctw_job *j,
                                 struct ctw_reply *reply, struct ctw_err *err)
{
    struct ctw_poll_reply *r = &reply->body.poll;
    r->state = state_of(j);
    r->items_done = (uint64_t)j->n_done;
    r->items = (uint64_t)j->n_items;
    ctw_queue_progress(q, j, &r->progress);
    if (j->error.status == CTW_OK)
        return CTW_OK;
    r->has |= 1u << CTW_POLL_REPLY_ERROR;
    r->error.code = ctw_slice_of(ctw_status_name(j->error.status));
    if (j->error_item >= 0)
        r->error.has |= 1u << CTW_ERROR_ITEM;
    if (j->error_layer >= 0)
        r->error.has |= 1u << CTW_ERROR_LAYER;
    r->error.item = (uint64_t)j->error_item;
    r->error.layer = (uint64_t)j->error_layer;
    return ctw_reply_copy(reply, j->error.msg, &r->error.message)
               ? CTW_OK
               : ctw_fail(err, CTW_ENOMEM, "poll: out of memory");
}

enum ctw_status ctw_queue_poll(struct ctw_queue *q, const struct ctw_contact *contact,
                               const struct ctw_poll *poll, struct ctw_wait *wait,
                               struct ctw_reply *reply, struct ctw_err *err)
{
    struct ctw_job *j;
    uint64_t *again_ms = &reply->body.poll.again_ms;
    if (poll->wait_ms > CTW_IPC_WAIT_MS)
        return ctw_fail(err, CTW_EINVAL, "poll: wait_ms %" PRIu64 " is not in 0..%d", poll->wait_ms,
                        CTW_IPC_WAIT_MS);
    pthread_mutex_lock(&q->lock);
    enum ctw_status st = ctw_queue_find(q, contact, poll->job, true, &j, err);
    if (st == CTW_OK && !put_off(q, j, poll, wait, contact->now_ms, is_owner(j, contact), again_ms))
        st = fill_poll(q, j, reply, err);
    pthread_mutex_unlock(&q->lock);
    return st;
}

/* ---- fetch, cancel, release ---- */

static enum ctw_status copy_results(const struct ctw_job *j, const struct ctw_fetch *fetch,
                                    int64_t n_done, struct ctw_reply *reply, struct ctw_err *err)
{
    struct ctw_fetch_reply *r = &reply->body.fetch;
    bool bounded = fetch->has >> CTW_FETCH_MAX_BYTES & 1;
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
    if (st == CTW_OK && !ctw_reply_copy(reply, j->numerics, &r->numerics))
        st = ctw_fail(err, CTW_ENOMEM, "fetch: out of memory");
    return st;
}

enum ctw_status ctw_queue_fetch(struct ctw_queue *q, const struct ctw_contact *contact,
                                const struct ctw_fetch *fetch, struct ctw_reply *reply,
                                struct ctw_err *err)
{
    struct ctw_job *j;
    int64_t n_done = 0;
    pthread_mutex_lock(&q->lock);
    enum ctw_status st = ctw_queue_find(q, contact, fetch->job, true, &j, err);
    if (st == CTW_OK) {
        ctw_jobs_pin(j);
        n_done = j->n_done;
        reply->body.fetch.state = state_of(j);
        if (!ctw_reply_copy(reply, j->identity, &reply->body.fetch.identity))
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

enum ctw_status ctw_queue_cancel(struct ctw_queue *q, const struct ctw_contact *contact,
                                 struct ctw_slice id, struct ctw_slice *state, struct ctw_err *err)
{
    struct ctw_job *j;
    struct ctw_err why;
    (void)ctw_fail(&why, CTW_ECANCELED, "the client cancelled it");
    pthread_mutex_lock(&q->lock);
    enum ctw_status st = ctw_queue_find(q, contact, id, true, &j, err);
    if (st == CTW_OK) {
        if (!is_owner(j, contact))
            (void)ctw_fail(&why, CTW_ECANCELED, "an administrator cancelled it");
        ctw_queue_end(q, j, CTW_JOB_CANCELED, &why);
        *state = state_of(j);
    }
    pthread_mutex_unlock(&q->lock);
    return st;
}

enum ctw_status ctw_queue_release(struct ctw_queue *q, const struct ctw_contact *contact,
                                  struct ctw_slice id, struct ctw_slice *state, struct ctw_err *err)
{
    struct ctw_job *j;
    *state = ctw_slice_of("released");
    pthread_mutex_lock(&q->lock);
    enum ctw_status st = ctw_queue_find(q, contact, id, true, &j, err);
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
