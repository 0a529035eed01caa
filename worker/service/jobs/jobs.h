/*
 * The list of a worker's jobs. jobs.c alone changes it. Nothing here locks: the caller holds the
 * queue's lock.
 */
#ifndef CTW_WORKER_JOBS_H
#define CTW_WORKER_JOBS_H

#include "worker/service/jobs/job.h"

struct ctw_jobs {
    struct ctw_job *first; /* newest last */
    int n;                 /* without the removed ones that are still pinned */
    size_t bytes;          /* of all jobs */
    size_t max_bytes;
};

void ctw_jobs_fini(struct ctw_jobs *l); /* destroys all jobs */
int ctw_jobs_unfinished(const struct ctw_jobs *l);
bool ctw_jobs_use_model(const struct ctw_jobs *l, const char *name); /* unfinished jobs do */

/*
 * The job with this id, which the contact owns. With `owner`, an administrator without such a job
 * also finds those of others: of the token *owner, or of any (n 0) if only one has this id. The
 * owner's call counts as contact. CTW_EINVAL, CTW_ENOTFOUND: *out is NULL.
 */
enum ctw_status ctw_jobs_find(const struct ctw_jobs *l, const struct ctw_contact *contact,
                              struct ctw_span id, const struct ctw_span *owner,
                              struct ctw_job **out, struct ctw_err *err) CTW_MUST_CHECK;

void ctw_jobs_append(struct ctw_jobs *l, struct ctw_job *j); /* takes the job over */
/* As ctw_job_add_part(), for a job in the list. */
enum ctw_status ctw_jobs_add_part(struct ctw_jobs *l, struct ctw_job *j, struct ctw_job_part *p,
                                  struct ctw_err *err) CTW_MUST_CHECK;
/*
 * A pinned job may be read without the lock; it is not freed. unpin() and remove() free the job if
 * it is removed and not pinned; a removed job that is pinned stays in the list, but no client finds
 * it.
 */
void ctw_jobs_pin(struct ctw_job *j);
void ctw_jobs_unpin(struct ctw_jobs *l, struct ctw_job *j);
void ctw_jobs_remove(struct ctw_jobs *l, struct ctw_job *j);

#endif
