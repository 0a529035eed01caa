/* What clients ask of the queue. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "worker/clock.h"
#include "worker/queue.h"

static enum ctw_status find(struct ctw_queue *q, const struct ctw_contact *contact,
                            struct ctw_slice id, struct ctw_job **out, struct ctw_err *err)
{
    *out = NULL;
    if (id.n != CTW_IPC_JOB_ID_BYTES)
        return ctw_fail(err, CTW_EINVAL, "job: the id has %zu bytes, expected %d", id.n,
                        CTW_IPC_JOB_ID_BYTES);
    for (struct ctw_job *j = q->jobs; j != NULL; j = j->next) {
        if (j->removed || memcmp(j->id, id.data, id.n) != 0)
            continue;
        ctw_queue_touch(j, contact);
        *out = j;
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

/* ---- submit ---- */

/* A submit on its way: what is known of its job, without the lock. */
struct arrival {
    const struct ctw_submit *submit;
    const struct ctw_contact *contact;
    uint64_t digest;
    bool is_new; /* part 0 of a job that is not there */
    struct ctw_job_head head;
    int64_t n_items; /* of the job so far */
    struct ctw_job_part *part;
    struct ctw_job *job; /* new, not yet in the queue */
    uint64_t opened;     /* its model */
    char identity[65];   /* its model's, "" when not known */
    int *retry_ms;
};

static void fill_reply(const struct ctw_job *j, bool repeated, struct ctw_submit_reply *reply)
{
    *reply = (struct ctw_submit_reply){.state = state_of(j),
                                       .parts = (uint64_t)j->n_parts,
                                       .items = (uint64_t)j->n_items,
                                       .repeated = repeated};
}

static enum ctw_status check_place(const struct ctw_job *j, const struct arrival *a, bool *repeated,
                                   struct ctw_err *err)
{
    uint64_t part = a->submit->part;
    *repeated = part < (uint64_t)j->n_parts;
    if (*repeated && j->parts[part]->digest != a->digest)
        return ctw_fail(err, CTW_EINVAL,
                        "part %" PRIu64 " is there already with other content: a job's parts "
                        "cannot be changed; choose another job id",
                        part);
    if (*repeated)
        return CTW_OK;
    if (j->state != CTW_JOB_OPEN)
        return ctw_fail(err, CTW_EINVAL, "part %" PRIu64 ": the job is %s and takes no more parts",
                        part, ctw_job_state_name(j->state));
    if (part > (uint64_t)j->n_parts)
        return ctw_fail(err, CTW_EINVAL, "part %" PRIu64 " came before part %" PRId64, part,
                        j->n_parts);
    return CTW_OK;
}

static enum ctw_status usable_model(struct ctw_queue *q, const char *name, int *retry_ms,
                                    const struct ctw_model_slot **out, struct ctw_err *err)
{
    const struct ctw_model_slot *m = ctw_queue_model(q, name);
    *out = m;
    if (m == NULL || m->state == CTW_MODEL_CLOSING)
        return ctw_fail(err, CTW_ENOTFOUND, "no model is named \"%s\"; info lists them", name);
    if (m->state == CTW_MODEL_FAILED)
        return ctw_fail(err, CTW_EINVAL, "model %s has failed: %s", m->name, m->error.msg);
    if (m->state == CTW_MODEL_LOADING) {
        *retry_ms = 500;
        return ctw_fail(err, CTW_EBUSY, "model %s is still loading", m->name);
    }
    return CTW_OK;
}

static size_t open_bytes(const struct ctw_queue *q)
{
    size_t bytes = 0;
    for (const struct ctw_job *j = q->jobs; j != NULL; j = j->next)
        bytes += j->state == CTW_JOB_OPEN && !j->removed ? j->bytes : 0;
    return bytes;
}

/* For a new job. */
static enum ctw_status check_room(const struct ctw_queue *q, int *retry_ms, struct ctw_err *err)
{
    if (ctw_queue_admits(q, err) != CTW_OK)
        return err->status;
    *retry_ms = 1000;
    if (q->n_jobs >= CTW_IPC_JOBS)
        return ctw_fail(err, CTW_EBUSY,
                        "%d jobs are here, which is the bound: release finished ones, or wait",
                        CTW_IPC_JOBS);
    /* The rest is for what is still to come of these: else none of them might ever be sealed. */
    size_t bytes = open_bytes(q);
    if (bytes >= q->max_bytes - q->max_bytes / 4)
        return ctw_fail(err, CTW_EBUSY,
                        "jobs that are not sealed yet fill %zu of the queue's %zu bytes: seal or "
                        "release them, or wait",
                        bytes, q->max_bytes);
    *retry_ms = 0;
    return CTW_OK;
}

/* First look, with the lock: is it a repeat, and under which head is the part to be read? */
static enum ctw_status meet(struct ctw_queue *q, struct arrival *a, bool *repeated,
                            struct ctw_submit_reply *reply, struct ctw_err *err)
{
    const struct ctw_submit *s = a->submit;
    bool has_head = s->has >> CTW_SUBMIT_HEAD & 1;
    struct ctw_job *j;
    enum ctw_status st = find(q, a->contact, s->job, &j, err);
    if (st == CTW_EINVAL)
        return st;
    if (has_head != (s->part == 0))
        return ctw_fail(err, CTW_EINVAL, "submit: part 0 has a head, and no other part has one");
    if (j != NULL) {
        st = check_place(j, a, repeated, err);
        a->head = j->head;
        a->n_items = j->n_items;
        if (st == CTW_OK && *repeated)
            fill_reply(j, true, reply);
        return st;
    }
    if (s->part != 0)
        return st; /* not found */
    a->is_new = true;
    st = check_room(q, a->retry_ms, err);
    if (st != CTW_OK)
        return st;
    char name[CTW_MODEL_NAME_MAX];
    const struct ctw_model_slot *m;
    if (!ctw_slice_copy(s->head.model, name, sizeof(name)))
        return ctw_fail(err, CTW_ENOTFOUND, "submit.head: the model's name is too long");
    st = usable_model(q, name, a->retry_ms, &m, err);
    if (st != CTW_OK)
        return st;
    struct ctw_model_limits limits = {.name = m->name,
                                      .max_length = m->info.max_length,
                                      .fit_length = m->info.fit_length,
                                      .memory_limit = m->info.memory_limit,
                                      .vocab = m->info.vocab,
                                      .pair_cost = ctw_model_pair_cost(m->info.model)};
    st = ctw_job_read_head(&a->head, &s->head, &limits, err);
    if (st != CTW_OK)
        return st;
    a->opened = m->opened;
    snprintf(a->identity, sizeof(a->identity), "%s", ctw_engine_identity(m->engine));
    a->job = ctw_job_create(s->job.data, &a->head, m->info.numerics);
    return a->job != NULL ? CTW_OK : ctw_fail(err, CTW_ENOMEM, "submit: out of memory");
}

static void append_job(struct ctw_queue *q, struct arrival *a)
{
    struct ctw_job **at = &q->jobs;
    while (*at != NULL)
        at = &(*at)->next;
    *at = a->job;
    ctw_queue_touch(a->job, a->contact);
    a->job = NULL;
    q->n_jobs++;
    q->bytes += (*at)->bytes;
}

/* Is the model still the one under whose limits the part of a new job was read? */
static enum ctw_status check_model(struct ctw_queue *q, const struct arrival *a,
                                   struct ctw_err *err)
{
    const struct ctw_model_slot *m;
    enum ctw_status st = usable_model(q, a->head.model, a->retry_ms, &m, err);
    if (st == CTW_OK && m->opened == a->opened)
        return CTW_OK;
    if (st == CTW_OK && strcmp(m->info.numerics, a->job->numerics) == 0 && a->identity[0] != '\0' &&
        strcmp(ctw_engine_identity(m->engine), a->identity) == 0)
        return CTW_OK;
    *a->retry_ms = 500;
    return ctw_fail(err, CTW_EBUSY, "model %s was unloaded or loaded anew meanwhile: ask again",
                    a->head.model);
}

/* Second look, with the lock: things may have changed while the part was read. */
static enum ctw_status admit(struct ctw_queue *q, struct arrival *a, struct ctw_submit_reply *reply,
                             struct ctw_err *err)
{
    struct ctw_job *j;
    bool repeated = false;
    enum ctw_status st = find(q, a->contact, a->submit->job, &j, err);
    if (st != CTW_OK && !a->is_new)
        return st;
    st = j != NULL ? check_place(j, a, &repeated, err) : check_room(q, a->retry_ms, err);
    if (st != CTW_OK || repeated) {
        if (st == CTW_OK)
            fill_reply(j, true, reply);
        return st;
    }
    st = j == NULL ? check_model(q, a, err) : CTW_OK;
    if (st != CTW_OK)
        return st;
    size_t job_bytes = (j != NULL ? j->bytes : sizeof(*j)) + a->part->bytes;
    if (job_bytes > q->max_bytes)
        return ctw_fail(err, CTW_EINVAL,
                        "the job with its results would take %zu bytes, a worker's queue has %zu: "
                        "split it",
                        job_bytes, q->max_bytes);
    if (q->bytes + a->part->bytes > q->max_bytes) {
        *a->retry_ms = 1000;
        return ctw_fail(err, CTW_EBUSY,
                        "the queue holds %zu of %zu bytes: release finished jobs, or wait",
                        q->bytes, q->max_bytes);
    }
    struct ctw_job *to = j != NULL ? j : a->job;
    st = ctw_job_add_part(to, a->part, err);
    if (st != CTW_OK)
        return st;
    size_t bytes = a->part->bytes;
    a->part = NULL;
    if (j != NULL)
        q->bytes += bytes;
    else
        append_job(q, a); /* counts the part too */
    fill_reply(to, false, reply);
    return CTW_OK;
}

enum ctw_status ctw_queue_submit(struct ctw_queue *q, const struct ctw_contact *contact,
                                 const struct ctw_submit *submit, struct ctw_submit_reply *reply,
                                 int64_t *bad_item, int *retry_ms, struct ctw_err *err)
{
    struct arrival a = {.submit = submit, .contact = contact, .retry_ms = retry_ms};
    bool repeated = false;
    *bad_item = -1;
    *retry_ms = 0;
    a.digest = ctw_job_part_digest(submit);
    pthread_mutex_lock(&q->lock);
    enum ctw_status st = meet(q, &a, &repeated, reply, err);
    pthread_mutex_unlock(&q->lock);
    if (st != CTW_OK || repeated)
        goto done;
    st = ctw_job_part_create(&a.part, &submit->items, &a.head, a.n_items, bad_item, err);
    if (st != CTW_OK)
        goto done;
    a.part->digest = a.digest;
    pthread_mutex_lock(&q->lock);
    st = admit(q, &a, reply, err);
    pthread_mutex_unlock(&q->lock);
done:
    ctw_job_part_destroy(a.part);
    ctw_job_destroy(a.job);
    return st;
}

/* ---- seal ---- */

static enum ctw_status seal_job(struct ctw_queue *q, struct ctw_job *j, uint64_t parts,
                                struct ctw_err *err)
{
    if (parts != (uint64_t)j->n_parts)
        return ctw_fail(err, CTW_EINVAL, "seal: the job has %" PRId64 " parts here, not %" PRIu64,
                        j->n_parts, parts);
    if (j->state != CTW_JOB_OPEN)
        return CTW_OK; /* repeated */
    j->state = CTW_JOB_QUEUED;
    j->sealed_ms = ctw_now_ms();
    if (j->n_items == 0)
        ctw_queue_end(q, j, CTW_JOB_DONE, NULL);
    pthread_cond_signal(&q->work);
    return CTW_OK;
}

enum ctw_status ctw_queue_seal(struct ctw_queue *q, const struct ctw_contact *contact,
                               const struct ctw_seal *seal, struct ctw_seal_reply *reply,
                               struct ctw_err *err)
{
    struct ctw_job *j;
    pthread_mutex_lock(&q->lock);
    enum ctw_status st = find(q, contact, seal->job, &j, err);
    if (st == CTW_OK)
        st = seal_job(q, j, seal->parts, err);
    if (st == CTW_OK)
        *reply = (struct ctw_seal_reply){.state = state_of(j), .items = (uint64_t)j->n_items};
    pthread_mutex_unlock(&q->lock);
    return st;
}

/* ---- poll ---- */

/*
 * Is there nothing to tell yet? Then *wait says what the poll waits for, unless there is no room
 * for it; again_ms is when the client may ask again.
 */
static bool put_off(const struct ctw_queue *q, struct ctw_job *j, const struct ctw_poll *poll,
                    struct ctw_wait *wait, int64_t now_ms, uint64_t *again_ms)
{
    bool counts = poll->has >> CTW_POLL_SEEN & 1;
    bool news = ctw_job_is_final(j) || atomic_load(&q->stop) ||
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
    enum ctw_status st = find(q, contact, poll->job, &j, err);
    if (st == CTW_OK && !put_off(q, j, poll, wait, contact->now_ms, again_ms))
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
    enum ctw_status st = find(q, contact, fetch->job, &j, err);
    if (st == CTW_OK) {
        j->pins++;
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
    ctw_queue_unpin(q, j);
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
    enum ctw_status st = find(q, contact, id, &j, err);
    if (st == CTW_OK) {
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
    enum ctw_status st = find(q, contact, id, &j, err);
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
