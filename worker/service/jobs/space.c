#include "worker/service/jobs/space.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"

enum {
    OPEN_JOBS = CTW_IPC_JOBS / 4,      /* not sealed yet, of one client */
    OWNER_JOBS = CTW_IPC_JOBS / 4 * 3, /* of one token, finished ones included */
    SILENT_MS = 60000,                 /* without contact: the client went away */
    GONE_MS = 5000                     /* the same, if its connection is lost, too */
};

static bool is_open(const struct ctw_job *j)
{
    return j->state == CTW_JOB_OPEN && !j->removed;
}

static size_t open_bytes(const struct ctw_queue *q)
{
    size_t bytes = 0;
    for (const struct ctw_job *j = q->jobs.first; j != NULL; j = j->next)
        bytes += is_open(j) ? j->input.bytes : 0;
    return bytes;
}

static bool has_token(const struct ctw_contact *contact)
{
    return contact->owner != NULL && contact->owner[0] != '\0';
}

/* Open jobs of this connection, or of this token over any connection. */
static int n_open_jobs(const struct ctw_queue *q, const struct ctw_contact *contact)
{
    int n = 0;
    for (const struct ctw_job *j = q->jobs.first; j != NULL; j = j->next) {
        bool of_token = has_token(contact) && ctw_job_is_of(j, contact);
        n += is_open(j) && (of_token || j->contact.pipe == contact->pipe);
    }
    return n;
}

/* Jobs of this token; 0 for this user over ipc, whose jobs may take every slot. */
static int n_owned_jobs(const struct ctw_queue *q, const struct ctw_contact *contact)
{
    int n = 0;
    for (const struct ctw_job *j = q->jobs.first; has_token(contact) && j != NULL; j = j->next)
        n += !j->removed && ctw_job_is_of(j, contact);
    return n;
}

/* ---- jobs of clients that went away ---- */

/* Whether a list such as "process 17, process 4" has this entry, and not only a part of one. */
static bool has_entry(const char *list, const char *entry)
{
    size_t n = strlen(entry);
    for (const char *at = list; (at = strstr(at, entry)) != NULL; at++)
        if ((at == list || at[-1] == ' ') && (at[n] == '\0' || at[n] == ','))
            return true;
    return false;
}

static void note_client(struct ctw_dropped *d, const struct ctw_job *j)
{
    char client[CTW_CLIENT_MAX];
    size_t at = strlen(d->clients);
    ctw_job_client(j, client);
    if (!has_entry(d->clients, client) && at + strlen(client) + 3 < sizeof(d->clients))
        snprintf(d->clients + at, sizeof(d->clients) - at, "%s%s", at == 0 ? "" : ", ", client);
}

static bool drop_open_jobs(struct ctw_queue *q, struct ctw_space_request *r)
{
    int n = 0;
    for (struct ctw_job *j = q->jobs.first, *next; j != NULL; j = next) {
        next = j->next;
        if (!is_open(j) || r->contact->now_ms - j->contact.last_ms < SILENT_MS)
            continue;
        n++;
        note_client(&r->dropped, j);
        ctw_queue_cancel_job(q, j,
                             "it was not sealed, and its client was silent while others waited");
        ctw_queue_remove(q, j);
    }
    r->dropped.n_open += n;
    return n > 0;
}

/* A job whose client polls or fetches is never absent: that is contact. */
static bool is_absent(const struct ctw_job *j, int64_t now_ms)
{
    int64_t silent_ms = now_ms - ctw_job_quiet_since(j);
    bool gone = j->contact.gone_ms != 0 && now_ms - j->contact.gone_ms >= GONE_MS;
    return silent_ms >= (gone ? GONE_MS : SILENT_MS);
}

/* Drops the finished job that has been without contact longest. `own`: only of the same token. */
static bool drop_final_job(struct ctw_queue *q, struct ctw_space_request *r, bool own)
{
    struct ctw_job *oldest = NULL;
    for (struct ctw_job *j = q->jobs.first; j != NULL; j = j->next) {
        if (j->removed || j->pins > 0 || !ctw_job_is_final(j) ||
            !is_absent(j, r->contact->now_ms) || (own && !ctw_job_is_of(j, r->contact)))
            continue;
        if (oldest == NULL || ctw_job_quiet_since(j) < ctw_job_quiet_since(oldest))
            oldest = j;
    }
    if (oldest == NULL)
        return false;
    note_client(&r->dropped, oldest);
    r->dropped.n_final++;
    ctw_queue_remove(q, oldest);
    return true;
}

void ctw_space_log(const struct ctw_dropped *d)
{
    if (d->n_open > 0)
        ctw_warn("the queue is full: dropped %d unsealed job%s without contact for %d s, of %s",
                 d->n_open, d->n_open == 1 ? "" : "s", SILENT_MS / 1000, d->clients);
    if (d->n_final > 0)
        ctw_warn("the queue is full: dropped %d finished job%s whose client is absent, of %s",
                 d->n_final, d->n_final == 1 ? "" : "s", d->clients);
}

/* ---- space ---- */

static struct ctw_line_want want_of(const struct ctw_space_request *r, bool has_slot, size_t bytes)
{
    return (struct ctw_line_want){
        .contact = r->contact, .job = r->job, .has_slot = has_slot, .bytes = bytes};
}

/* One client has a part of the unsealed jobs, and one token leaves slots for others. */
static enum ctw_status check_client(struct ctw_queue *q, struct ctw_space_request *r, int n_ahead,
                                    struct ctw_err *err)
{
    if (n_open_jobs(q, r->contact) >= OPEN_JOBS)
        return ctw_fail(err, CTW_EBUSY,
                        "this client has %d jobs that are not sealed, the maximum: seal them, "
                        "or cancel and release them",
                        OPEN_JOBS);
    if (!has_token(r->contact))
        return CTW_OK;
    int n = n_owned_jobs(q, r->contact);
    while (n + n_ahead >= OWNER_JOBS && drop_final_job(q, r, true))
        n--;
    if (n + n_ahead < OWNER_JOBS)
        return CTW_OK;
    return ctw_fail(err, CTW_EBUSY,
                    "the token %s has %d jobs here, the maximum for one token is %d: release "
                    "finished jobs, or wait (%d of its clients asked earlier)",
                    r->contact->owner, n, OWNER_JOBS, n_ahead);
}

static enum ctw_status check_slots(struct ctw_queue *q, struct ctw_space_request *r, int n_ahead,
                                   struct ctw_err *err)
{
    if (q->jobs.n + n_ahead >= CTW_IPC_JOBS)
        drop_open_jobs(q, r);
    while (q->jobs.n + n_ahead >= CTW_IPC_JOBS && drop_final_job(q, r, false))
        ;
    if (q->jobs.n + n_ahead < CTW_IPC_JOBS)
        return CTW_OK;
    return ctw_fail(err, CTW_EBUSY,
                    "the queue has %d jobs, the maximum is %d: release finished jobs, or wait (%d "
                    "clients asked earlier)",
                    q->jobs.n, CTW_IPC_JOBS, n_ahead);
}

/* A quarter is for the further parts of unsealed jobs: otherwise none might ever be sealed. */
static enum ctw_status check_open_bytes(struct ctw_queue *q, struct ctw_space_request *r,
                                        struct ctw_err *err)
{
    size_t most = q->jobs.max_bytes - q->jobs.max_bytes / 4, bytes = open_bytes(q);
    if (bytes >= most && drop_open_jobs(q, r))
        bytes = open_bytes(q);
    if (bytes < most)
        return CTW_OK;
    return ctw_fail(err, CTW_EBUSY,
                    "jobs that are not sealed yet fill %zu of the queue's %zu bytes: seal or "
                    "release them, or wait",
                    bytes, q->jobs.max_bytes);
}

enum ctw_status ctw_space_for_job(struct ctw_queue *q, struct ctw_space_request *r,
                                  struct ctw_err *err)
{
    enum ctw_status st = ctw_queue_admits(q, err);
    if (st != CTW_OK)
        return st;
    struct ctw_line_want want = want_of(r, false, 0);
    struct ctw_ahead ahead = ctw_line_ahead(&q->line, &want);
    int n_free = 0; /* unless slots are all that is lacking, a free one is no help */
    st = check_client(q, r, ahead.of_owner, err);
    want.at_bound = st != CTW_OK;
    if (st == CTW_OK) {
        st = check_slots(q, r, ahead.slots, err);
        n_free = st != CTW_OK ? CTW_IPC_JOBS - q->jobs.n : 0;
    }
    if (st == CTW_OK)
        st = check_open_bytes(q, r, err);
    if (st != CTW_OK)
        *r->retry_ms = ctw_line_wait(&q->line, &want, n_free);
    return st;
}

enum ctw_status ctw_space_for_part(struct ctw_queue *q, struct ctw_space_request *r,
                                   const struct ctw_job *j, size_t bytes, struct ctw_err *err)
{
    struct ctw_line_want want = want_of(r, j->input.n_parts > 0, bytes);
    size_t job_bytes = j->input.bytes + bytes, most = q->jobs.max_bytes;
    if (job_bytes > most)
        return ctw_fail(
            err, CTW_EINVAL,
            "the job with its results would take %zu bytes, but the queue has only %zu: "
            "split the job",
            job_bytes, most);
    size_t wanted = ctw_line_ahead(&q->line, &want).bytes + bytes;
    if (q->jobs.bytes + wanted > most)
        drop_open_jobs(q, r);
    while (q->jobs.bytes + wanted > most && drop_final_job(q, r, false))
        ;
    if (q->jobs.bytes + wanted <= most)
        return CTW_OK;
    *r->retry_ms = ctw_line_wait(&q->line, &want, 0);
    return ctw_fail(
        err, CTW_EBUSY,
        "the queue holds %zu of %zu bytes, and clients that asked earlier wait for %zu: "
        "release finished jobs, or wait",
        q->jobs.bytes, most, wanted - bytes);
}

void ctw_space_taken(struct ctw_queue *q, const struct ctw_space_request *r,
                     const struct ctw_job *j)
{
    struct ctw_line_want want = want_of(r, j->input.n_parts > 1, 0);
    ctw_line_leave(&q->line, &want);
}
