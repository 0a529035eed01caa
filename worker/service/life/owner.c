#include "worker/service/life/owner.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

/* A pidfd stays correct if the process id is used again. */
enum ctw_status ctw_owner_watch(struct ctw_owner *o, pid_t pid, struct ctw_err *err)
{
    *o = (struct ctw_owner){.pid = pid, .fd = -1};
    if (pid == 0)
        return CTW_OK;
#ifdef SYS_pidfd_open
    o->fd = (int)syscall(SYS_pidfd_open, pid, 0);
#else
    errno = ENOSYS;
#endif
    if (o->fd >= 0)
        return CTW_OK;
    o->polled = errno != ESRCH && kill(pid, 0) == 0;
    if (o->polled)
        return CTW_OK;
    return ctw_fail(err, CTW_EINVAL, "--owner-pid: there is no process %ld", (long)pid);
}

bool ctw_owner_is_gone(const struct ctw_owner *o)
{
    struct pollfd p = {.fd = o->fd, .events = POLLIN};
    if (o->fd >= 0)
        return poll(&p, 1, 0) == 1;
    return o->polled && kill(o->pid, 0) != 0 && errno == ESRCH;
}

void ctw_owner_close(struct ctw_owner *o)
{
    if (o->fd >= 0)
        close(o->fd);
    o->fd = -1;
}
