#include "worker/service/jobs/jobs.h"

void ctw_jobs_fini(struct ctw_jobs *l)
{
    for (struct ctw_job *j = l->first, *next; j != NULL; j = next) {
        next = j->next;
        ctw_job_destroy(j);
    }
    l->first = NULL;
}

int ctw_jobs_unfinished(const struct ctw_jobs *l)
{
    int n = 0;
    for (const struct ctw_job *j = l->first; j != NULL; j = j->next)
        n += !j->removed && !ctw_job_is_final(j);
    return n;
}

bool ctw_jobs_use_model(const struct ctw_jobs *l, const char *name)
{
    for (const struct ctw_job *j = l->first; j != NULL; j = j->next) {
        if (!ctw_job_is_final(j) && ctw_job_uses(j, name))
            return true;
    }
    return false;
}

/* An owner "" is this user over ipc, without a token. */
static enum ctw_status two_owners(const char *a, const char *b, struct ctw_err *err)
{
    if (a[0] != '\0' && b[0] != '\0')
        return ctw_fail(err, CTW_EINVAL,
                        "the tokens %s and %s each have a job with this id: name one of them as "
                        "owner",
                        a, b);
    return ctw_fail(err, CTW_EINVAL,
                    "the token %s and the worker's user each have a job with this id: name the "
                    "token as owner, or ask over ipc without a token",
                    a[0] != '\0' ? a : b);
}

/* The job with this id of the owner (n 0: of any other client than the contact). */
static enum ctw_status find_foreign(const struct ctw_jobs *l, const struct ctw_contact *contact,
                                    struct ctw_span id, struct ctw_span owner, struct ctw_job **out,
                                    struct ctw_err *err)
{
    for (struct ctw_job *j = l->first; j != NULL; j = j->next) {
        if (j->removed || memcmp(j->id, id.data, id.n) != 0 || ctw_job_is_of(j, contact) ||
            (owner.n > 0 && !ctw_span_is(owner, j->contact.owner)))
            continue;
        if (*out != NULL) {
            const char *first = (*out)->contact.owner;
            *out = NULL;
            return two_owners(first, j->contact.owner, err);
        }
        *out = j;
    }
    return CTW_OK;
}

enum ctw_status ctw_jobs_find(const struct ctw_jobs *l, const struct ctw_contact *contact,
                              struct ctw_span id, const struct ctw_span *owner,
                              struct ctw_job **out, struct ctw_err *err)
{
    bool others = owner != NULL && contact->admin;
    bool own = owner == NULL || owner->n == 0 ||
               ctw_span_is(*owner, contact->owner != NULL ? contact->owner : "");
    *out = NULL;
    if (id.n != CTW_IPC_JOB_ID_BYTES)
        return ctw_fail(err, CTW_EINVAL, "job: the id has %zu bytes, expected %d", id.n,
                        CTW_IPC_JOB_ID_BYTES);
    for (struct ctw_job *j = l->first; own && j != NULL; j = j->next) {
        if (j->removed || memcmp(j->id, id.data, id.n) != 0 || !ctw_job_is_of(j, contact))
            continue;
        ctw_job_touch(j, contact);
        *out = j;
        return CTW_OK;
    }
    enum ctw_status st = others ? find_foreign(l, contact, id, *owner, out, err) : CTW_OK;
    if (st != CTW_OK || *out != NULL)
        return st;
    return ctw_fail(err, CTW_ENOTFOUND,
                    "no such job: it was never submitted to this worker, was released, or its time "
                    "without contact was over");
}

void ctw_jobs_append(struct ctw_jobs *l, struct ctw_job *j)
{
    struct ctw_job **at = &l->first;
    while (*at != NULL)
        at = &(*at)->next;
    *at = j;
    l->n++;
    l->bytes += j->input.bytes;
}

enum ctw_status ctw_jobs_add_part(struct ctw_jobs *l, struct ctw_job *j, struct ctw_job_part *p,
                                  struct ctw_err *err)
{
    enum ctw_status st = ctw_job_add_part(j, p, err);
    if (st == CTW_OK)
        l->bytes += p->bytes;
    return st;
}

static void free_if_unused(struct ctw_jobs *l, struct ctw_job *job)
{
    if (!job->removed || job->pins > 0)
        return;
    for (struct ctw_job **at = &l->first; *at != NULL; at = &(*at)->next) {
        if (*at == job) {
            *at = job->next;
            break;
        }
    }
    l->bytes -= job->input.bytes;
    ctw_job_destroy(job);
}

void ctw_jobs_pin(struct ctw_job *j)
{
    j->pins++;
}

void ctw_jobs_unpin(struct ctw_jobs *l, struct ctw_job *j)
{
    j->pins--;
    free_if_unused(l, j);
}

void ctw_jobs_remove(struct ctw_jobs *l, struct ctw_job *j)
{
    l->n -= !j->removed;
    j->removed = true;
    free_if_unused(l, j);
}
