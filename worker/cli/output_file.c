#include "worker/cli/output_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"

/* Standard output that was closed when the program started cannot be written. */
static bool is_writable(int fd)
{
    int flags = fcntl(fd, F_GETFL);
    if (flags >= 0 && (flags & O_ACCMODE) == O_RDONLY)
        errno = EBADF;
    return flags >= 0 && (flags & O_ACCMODE) != O_RDONLY;
}

static enum ctw_status fail_to_open(const char *path, struct ctw_err *err)
{
    return ctw_fail(err, errno == ENOENT ? CTW_ENOTFOUND : CTW_EIO,
                    "%s: cannot open the file for writing: %s", path, strerror(errno));
}

enum ctw_status ctw_output_file_open(struct ctw_output_file *f, const char *path,
                                     struct ctw_err *err)
{
    struct stat s;
    bool standard = path == NULL || strcmp(path, "-") == 0;
    *f = (struct ctw_output_file){.path = standard ? "standard output" : path,
                                  .fd = standard ? STDOUT_FILENO : -1,
                                  .standard = standard};
    if (!standard) {
        f->fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        f->created = f->fd >= 0;
        if (f->fd < 0 && errno == EEXIST)
            f->fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    }
    if (f->fd < 0 || !is_writable(f->fd) || fstat(f->fd, &s) != 0) {
        enum ctw_status st = fail_to_open(f->path, err);
        if (f->standard)
            f->fd = -1;
        return st;
    }
    f->regular = S_ISREG(s.st_mode);
    return CTW_OK;
}

enum ctw_status ctw_output_file_begin(struct ctw_output_file *f, struct ctw_err *err)
{
    f->created = false;
    if (f->standard || !f->regular || ftruncate(f->fd, 0) == 0)
        return CTW_OK;
    return ctw_fail(err, CTW_EIO, "%s: cannot truncate the file: %s", f->path, strerror(errno));
}

/* Removes the last `bytes` that were written, if no other process has appended to the file. */
static void take_back(const struct ctw_output_file *f, size_t bytes)
{
    struct stat s;
    off_t end = f->regular ? lseek(f->fd, 0, SEEK_CUR) : -1;
    if (bytes == 0 || end < 0 || fstat(f->fd, &s) != 0 || s.st_size != end)
        return;
    if (ftruncate(f->fd, end - (off_t)bytes) == 0)
        (void)lseek(f->fd, end - (off_t)bytes, SEEK_SET);
}

enum ctw_status ctw_output_file_write(struct ctw_output_file *f, const char *lines, size_t bytes,
                                      struct ctw_err *err)
{
    size_t done = ctw_write_all(f->fd, lines, bytes), whole = 0;
    int why = errno;
    for (const char *p = lines; (p = memchr(p, '\n', (size_t)(lines + done - p))) != NULL;) {
        whole = (size_t)(++p - lines);
        f->n_lines++;
    }
    if (done == bytes)
        return CTW_OK;
    take_back(f, done - whole);
    return ctw_fail(err, CTW_EIO, "%s: cannot write: %s; the file ends after %lld whole lines",
                    f->path, strerror(why), (long long)f->n_lines);
}

enum ctw_status ctw_output_file_close(struct ctw_output_file *f, struct ctw_err *err)
{
    int fd = f->fd;
    f->fd = -1;
    if (fd < 0 || f->standard)
        return CTW_OK;
    if (f->created)
        (void)unlink(f->path);
    if (close(fd) != 0)
        return ctw_fail(err, CTW_EIO, "%s: cannot write results: %s", f->path, strerror(errno));
    return CTW_OK;
}
