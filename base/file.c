#include "base/file.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

size_t ctw_read_at(int fd, void *to, size_t bytes, uint64_t offset)
{
    size_t done = 0;
    while (done < bytes) {
        ssize_t n = pread(fd, (char *)to + done, bytes - done, (off_t)(offset + done));
        if (n == 0)
            errno = 0;
        if (n > 0)
            done += (size_t)n;
        else if (errno != EINTR)
            break;
    }
    return done;
}

enum ctw_status ctw_read_exactly(int fd, void *to, size_t bytes, uint64_t offset, const char *what,
                                 struct ctw_err *err)
{
    if (ctw_read_at(fd, to, bytes, offset) == bytes)
        return CTW_OK;
    if (errno == 0)
        return ctw_fail(err, CTW_EIO, "%s: the file became shorter while it was being read", what);
    return ctw_fail(err, CTW_EIO, "%s: cannot be read: %s", what, strerror(errno));
}

size_t ctw_write_all(int fd, const void *from, size_t bytes)
{
    size_t done = 0;
    while (done < bytes) {
        ssize_t n = write(fd, (const char *)from + done, bytes - done);
        if (n > 0)
            done += (size_t)n;
        else if (n < 0 && errno == EAGAIN)
            (void)poll(&(struct pollfd){.fd = fd, .events = POLLOUT}, 1, -1);
        else if (n == 0 || errno != EINTR)
            break;
    }
    return done;
}
