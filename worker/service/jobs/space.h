/*
 * Space in the queue for a new job, and for a further part of a job: first come, first served. If
 * there is none, the jobs of clients that went away make room, the longest silent first. The caller
 * holds the queue's lock.
 */
#ifndef CTW_WORKER_SPACE_H
#define CTW_WORKER_SPACE_H

#include "worker/service/jobs/queue.h"

/* Jobs that made room, for the log. */
struct ctw_dropped {
    int n_open, n_final; /* not sealed; finished */
    char
        clients[400]; /* "process 17, 10.0.0.7:41234 (token NAME)": each once, as far as they fit */
};

/* Who asks for space, and what asking did. */
struct ctw_space_request {
    const struct ctw_contact *contact;
    struct ctw_span job; /* its id */
    int *retry_ms;       /* set with CTW_EBUSY; the client has a place in the line then */
    struct ctw_dropped dropped;
};

/* A slot for a new job. CTW_EBUSY; the errors of ctw_queue_admits(). */
enum ctw_status ctw_space_for_job(struct ctw_queue *q, struct ctw_space_request *r,
                                  struct ctw_err *err) CTW_MUST_CHECK;
/* `bytes` for a part of the job `j`, which is new if it has no parts. CTW_EBUSY; CTW_EINVAL: the
 * job would be larger than the queue. */
enum ctw_status ctw_space_for_part(struct ctw_queue *q, struct ctw_space_request *r,
                                   const struct ctw_job *j, size_t bytes,
                                   struct ctw_err *err) CTW_MUST_CHECK;
/* The space that was found has been taken: the client leaves the line. */
void ctw_space_taken(struct ctw_queue *q, const struct ctw_space_request *r,
                     const struct ctw_job *j);
/* Logs the dropped jobs. Call without the lock: standard error may be a full pipe. */
void ctw_space_log(const struct ctw_dropped *d);

#endif
