#include "base/standard_fds.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

/* The opposite of the descriptor's mode. Writes to /dev/full fail even if a program opens
 * /dev/stdout anew. */
static int open_unusable(int fd)
{
    int got = fd == STDIN_FILENO ? -1 : open("/dev/full", O_RDONLY);
    return got >= 0 ? got : open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
}

bool ctw_standard_fds_open(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) >= 0 || errno != EBADF)
            continue;
        int got = open_unusable(fd); /* the lowest free number, which is fd */
        if (got == fd)
            continue;
        if (got >= 0)
            (void)close(got);
        return false;
    }
    return true;
}
