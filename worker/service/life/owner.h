/* The process that owns a worker (--owner-pid). The worker ends when its owner ends. */
#ifndef CTW_WORKER_OWNER_H
#define CTW_WORKER_OWNER_H

#include <stdbool.h>
#include <sys/types.h>

#include "base/status.h"

struct ctw_owner {
    pid_t pid;
    int fd;      /* pidfd; -1: none */
    bool polled; /* no pidfd: check with kill() */
};

/* pid 0: there is no owner. CTW_EINVAL: no such process. */
enum ctw_status ctw_owner_watch(struct ctw_owner *o, pid_t pid, struct ctw_err *err) CTW_MUST_CHECK;
bool ctw_owner_is_gone(const struct ctw_owner *o);
void ctw_owner_close(struct ctw_owner *o);

#endif
