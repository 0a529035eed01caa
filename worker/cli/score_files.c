#include "worker/cli/score_files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"

/* Standard input that was closed when the program started cannot be read. */
static bool is_readable(int fd)
{
    int flags = fcntl(fd, F_GETFL);
    if (flags >= 0 && (flags & O_ACCMODE) == O_WRONLY)
        errno = EBADF;
    return flags >= 0 && (flags & O_ACCMODE) != O_WRONLY;
}

static enum ctw_status open_input(int *fd, const char *path, struct ctw_err *err)
{
    struct stat s;
    bool standard = path == NULL || strcmp(path, "-") == 0;
    const char *name = standard ? "standard input" : path;
    *fd = standard ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    if (*fd < 0 || !is_readable(*fd) || fstat(*fd, &s) != 0)
        return ctw_fail(err, errno == ENOENT ? CTW_ENOTFOUND : CTW_EIO,
                        "%s: cannot read the input: %s", name, strerror(errno));
    if (S_ISDIR(s.st_mode))
        return ctw_fail(err, CTW_EIO, "%s: found a folder, expected a file of JSON lines", name);
    return CTW_OK;
}

static bool same_file(int a, int b)
{
    struct stat x, y;
    return fstat(a, &x) == 0 && fstat(b, &y) == 0 && S_ISREG(x.st_mode) && x.st_dev == y.st_dev &&
           x.st_ino == y.st_ino;
}

/* Does the path name a file descriptor? Its folder cannot hold a record. */
static bool names_descriptor(const char *path)
{
    static const char *const places[] = {"/dev/std", "/dev/fd/", "/proc/"};
    for (size_t i = 0; i < CTW_COUNT(places); i++)
        if (strncmp(path, places[i], strlen(places[i])) == 0)
            return true;
    return false;
}

static enum ctw_status open_meta(struct ctw_score_files *f, const char *path, struct ctw_err *err)
{
    if (path == NULL) {
        if (f->out.standard || !f->out.regular || names_descriptor(f->out.path))
            return CTW_OK;
        size_t bytes = strlen(f->out.path) + sizeof(".meta.json");
        f->meta_path = ctw_calloc(bytes, 1);
        if (f->meta_path == NULL)
            return ctw_fail(err, CTW_ENOMEM, "out of memory");
        (void)snprintf(f->meta_path, bytes, "%s.meta.json", f->out.path);
        path = f->meta_path;
    }
    enum ctw_status st = ctw_output_file_open(&f->meta, path, err);
    if (st == CTW_OK && (same_file(f->in, f->meta.fd) || same_file(f->out.fd, f->meta.fd)))
        st = ctw_fail(err, CTW_EINVAL,
                      "%s: the record is the same file as the input or the output: give --meta "
                      "another file",
                      path);
    return st;
}

enum ctw_status ctw_score_files_open(struct ctw_score_files *f, const struct ctw_score_paths *paths,
                                     struct ctw_err *err)
{
    *f = (struct ctw_score_files){
        .in = -1, .out = CTW_OUTPUT_FILE_CLOSED, .meta = CTW_OUTPUT_FILE_CLOSED};
    enum ctw_status st = open_input(&f->in, paths->in, err);
    if (st == CTW_OK)
        st = ctw_output_file_open(&f->out, paths->out, err);
    if (st == CTW_OK && same_file(f->in, f->out.fd))
        st = ctw_fail(
            err, CTW_EINVAL,
            "%s: the output is the same file as the input, which is still being read: give "
            "--out another file",
            f->out.path);
    return st == CTW_OK ? open_meta(f, paths->meta, err) : st;
}

enum ctw_status ctw_score_files_close(struct ctw_score_files *f, struct ctw_err *err)
{
    if (f->in > STDIN_FILENO)
        (void)close(f->in);
    enum ctw_status out = ctw_output_file_close(&f->out, err);
    enum ctw_status meta = ctw_output_file_close(&f->meta, out == CTW_OK ? err : NULL);
    ctw_free(f->meta_path);
    f->meta_path = NULL;
    return out != CTW_OK ? out : meta;
}
