/* A job's state, its client, and the end of its time without contact. */
#include <stdio.h>
#include <string.h>

#include "worker/service/jobs/job.h"

enum { GONE_GRACE_MS = 5000 }; /* for a client to connect again, under policy cancel */

/* ---- state ---- */

const char *ctw_job_state_name(enum ctw_job_state state)
{
    static const char *const names[] = {
        [CTW_JOB_OPEN] = "open", [CTW_JOB_QUEUED] = "queued", [CTW_JOB_RUNNING] = "running",
        [CTW_JOB_DONE] = "done", [CTW_JOB_FAILED] = "failed", [CTW_JOB_CANCELED] = "canceled"};
    return names[state];
}

void ctw_job_seal(struct ctw_job *j, int64_t now_ms)
{
    j->state = CTW_JOB_QUEUED;
    j->sealed_ms = now_ms;
}

void ctw_job_start(struct ctw_job *j)
{
    j->state = CTW_JOB_RUNNING;
}

void ctw_job_end(struct ctw_job *j, enum ctw_job_state state, const struct ctw_err *err,
                 int64_t now_ms)
{
    j->state = state;
    j->ended_ms = now_ms;
    if (err != NULL)
        j->error.err = *err;
}

void ctw_job_blame(struct ctw_job *j, int64_t item, int layer)
{
    j->error.item = item;
    j->error.layer = layer;
}

/* ---- contact ---- */

bool ctw_job_is_of(const struct ctw_job *j, const struct ctw_contact *contact)
{
    return strcmp(j->contact.owner, contact->owner != NULL ? contact->owner : "") == 0;
}

bool ctw_job_same_client(const struct ctw_job *a, const struct ctw_job *b)
{
    return a->contact.pipe == b->contact.pipe && strcmp(a->contact.owner, b->contact.owner) == 0;
}

void ctw_job_client(const struct ctw_job *j, char out[CTW_CLIENT_MAX])
{
    const struct ctw_job_contact *c = &j->contact;
    bool token = c->owner[0] != '\0';
    snprintf(out, CTW_CLIENT_MAX, "%s%s%s%s", c->address[0] != '\0' ? c->address : "this user",
             token ? " (token " : "", c->owner, token ? ")" : "");
}

void ctw_job_touch(struct ctw_job *j, const struct ctw_contact *contact)
{
    j->contact.last_ms = contact->now_ms;
    j->contact.pipe = contact->pipe;
    j->contact.gone_ms = 0;
    if (contact->address != NULL)
        snprintf(j->contact.address, sizeof(j->contact.address), "%s", contact->address);
}

void ctw_job_wait_until(struct ctw_job *j, int64_t until_ms)
{
    j->contact.last_ms = until_ms;
}

void ctw_job_peer_gone(struct ctw_job *j, int64_t now_ms)
{
    j->contact.gone_ms = now_ms;
    if (j->contact.last_ms > now_ms) /* its poll waits no more */
        j->contact.last_ms = now_ms;
}

void ctw_job_forgive(struct ctw_job *j, int64_t lost_ms, int64_t now_ms)
{
    int64_t *times[] = {&j->contact.last_ms, &j->ended_ms, &j->contact.gone_ms};
    for (size_t i = 0; i < CTW_COUNT(times); i++) {
        if (*times[i] != 0) /* 0: not yet */
            *times[i] = *times[i] + lost_ms < now_ms ? *times[i] + lost_ms : now_ms;
    }
}

int64_t ctw_job_quiet_since(const struct ctw_job *j)
{
    return j->ended_ms > j->contact.last_ms ? j->ended_ms : j->contact.last_ms;
}

int64_t ctw_job_deadline(const struct ctw_job *j)
{
    bool final = ctw_job_is_final(j);
    if (j->state == CTW_JOB_OPEN)
        return j->contact.last_ms + j->head.ttl_ms;
    if (j->head.keep && !final)
        return INT64_MAX;
    if (j->head.keep)
        return ctw_job_quiet_since(j) + j->head.ttl_ms;
    int64_t at = j->contact.last_ms + j->head.ttl_ms;
    if (j->contact.gone_ms != 0 && j->contact.gone_ms + GONE_GRACE_MS < at)
        at = j->contact.gone_ms + GONE_GRACE_MS;
    return at;
}
