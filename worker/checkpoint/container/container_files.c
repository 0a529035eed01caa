/* A container's files: opening and reading them, and checking whether they changed. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/file.h"
#include "base/map_guard.h"
#include "base/mem.h"
#include "worker/checkpoint/container/container_internal.h"
#include "worker/checkpoint/container/files_stamp.h"
#include "worker/checkpoint/container/shows_writes.h"

enum ctw_status ctw_container_reserve(struct ctw_container *c, int n, struct ctw_err *err)
{
    c->files = ctw_calloc((size_t)n, sizeof(*c->files));
    return c->files != NULL ? CTW_OK : ctw_fail(err, CTW_ENOMEM, "out of memory for %d files", n);
}

enum ctw_status ctw_container_open_file(int *fd, struct stat *info, int dir_fd, const char *name,
                                        struct ctw_err *err)
{
    /* O_NONBLOCK: opening a FIFO of that name must not block. Symbolic links are followed: the
     * cache of the Hugging Face hub consists of links. */
    *fd = openat(dir_fd, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*fd < 0 && errno == ENOENT) {
        struct stat link;
        bool dangling = fstatat(dir_fd, name, &link, AT_SYMLINK_NOFOLLOW) == 0;
        return ctw_fail(err, dangling ? CTW_EIO : CTW_ENOTFOUND,
                        dangling ? "%s: a symbolic link to a file that does not exist: a download "
                                   "was interrupted; fetch it again"
                                 : "%s: no such file",
                        name);
    }
    if (*fd < 0)
        return ctw_fail(err, CTW_EIO, "%s: cannot be opened: %s%s", name, strerror(errno),
                        errno == EMFILE ? " (raise ulimit -n)" : "");
    if (fstat(*fd, info) != 0)
        return ctw_fail(err, CTW_EIO, "%s: %s", name, strerror(errno));
    if (!S_ISREG(info->st_mode))
        return ctw_fail(err, CTW_EIO, "%s: not a regular file", name);
    return CTW_OK;
}

enum ctw_status ctw_container_add_file(struct ctw_container *c, int dir_fd, const char *name,
                                       ctw_records_read *read, struct ctw_err *err)
{
    struct ctw_container_file *f = &c->files[c->n_files++];
    f->fd = -1;
    f->guard = -1;
    f->name = ctw_strdup(name);
    if (f->name == NULL)
        return ctw_fail(err, CTW_ENOMEM, "%s: out of memory", name);
    enum ctw_status st = ctw_container_open_file(&f->fd, &f->info, dir_fd, name, err);
    if (st != CTW_OK)
        return st;
    size_t bytes = (size_t)f->info.st_size;
    st = read(&f->records, name, f->fd, bytes, err);
    if (st != CTW_OK)
        return st;
    c->headers_alone |= f->records.header_alone;
    void *map = mmap(NULL, bytes, PROT_READ, MAP_SHARED, f->fd, 0);
    if (map == MAP_FAILED)
        return ctw_fail(err, errno == ENOMEM ? CTW_ENOMEM : CTW_EIO, "%s: cannot be mapped: %s",
                        name, strerror(errno));
    f->map = map;
    f->guard = ctw_map_guard_add(map, bytes, false);
    /* No madvise() for the whole map: providers ask for the next layer, and the kernel's own
     * read-ahead serves all other reads. */
    return CTW_OK;
}

const void *ctw_container_data(const struct ctw_container *c, const struct ctw_tensor *t)
{
    return c->files[t->file].map + t->offset;
}

static enum ctw_status is_shorter(const struct ctw_container_file *f, struct ctw_err *err)
{
    struct stat now = {0};
    (void)fstat(f->fd, &now);
    if (now.st_size >= f->info.st_size) /* a failing disk, or the file was truncated for a moment */
        return ctw_fail(err, CTW_EIO,
                        "%s: part of the file could not be read while it was in use; load the "
                        "model again once it is complete",
                        f->name);
    return ctw_fail(err, CTW_EIO,
                    "%s: the file became shorter while it was in use (it had %lld bytes, now "
                    "%lld); load the model again once it is complete",
                    f->name, (long long)f->info.st_size, (long long)now.st_size);
}

enum ctw_status ctw_container_read(const struct ctw_container *c, int file, uint64_t offset,
                                   void *dst, size_t bytes, struct ctw_err *err)
{
    const struct ctw_container_file *f = &c->files[file];
    if (ctw_read_at(f->fd, dst, bytes, offset) == bytes)
        return CTW_OK;
    return errno == 0 ? is_shorter(f, err)
                      : ctw_fail(err, CTW_EIO, "%s: cannot read: %s", f->name, strerror(errno));
}

bool ctw_container_is_headers_alone(const struct ctw_container *c)
{
    return c->headers_alone;
}

enum ctw_status ctw_container_check_weights(const struct ctw_container *c, struct ctw_err *err)
{
    const struct ctw_container_file *f = c->files;
    if (!c->headers_alone)
        return CTW_OK;
    while (!f->records.header_alone)
        f++;
    return ctw_fail(err, CTW_ENOTFOUND,
                    "%s: a copy of the file's header, made by `ctworker inspect ORG/NAME`, without "
                    "the weights; fetch the checkpoint (hf download ORG/NAME --local-dir DIR) and "
                    "give its folder",
                    f->name);
}

void ctw_container_read_ahead(const struct ctw_container *c)
{
    enum { SMALL_BYTES = 64 };
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), done = 0;
    for (int64_t i = 0; i < c->n_tensors; i++) {
        const struct ctw_tensor *t = &c->tensors[i];
        uintptr_t data = (uintptr_t)ctw_container_data(c, t), start = data & ~(page - 1);
        if (t->bytes == 0 || t->bytes > SMALL_BYTES || start == done) /* many share a page */
            continue;
        (void)madvise((void *)start, data + t->bytes - start, MADV_WILLNEED);
        done = start;
    }
}

enum ctw_status ctw_container_check_maps(const struct ctw_container *c, struct ctw_err *err)
{
    for (int i = 0; i < c->n_files; i++)
        if (ctw_map_guard_hit(c->files[i].guard))
            return is_shorter(&c->files[i], err);
    return CTW_OK;
}

static bool is_same_time(const struct timespec *a, const struct timespec *b)
{
    return a->tv_sec == b->tv_sec && a->tv_nsec == b->tv_nsec;
}

enum ctw_status ctw_container_check(struct ctw_container *c, bool *touched, struct ctw_err *err)
{
    *touched = false;
    for (int i = 0; i < c->n_files; i++) {
        struct ctw_container_file *f = &c->files[i];
        if (fstat(f->fd, &f->seen) != 0)
            return ctw_fail(err, CTW_EIO, "%s: %s", f->name, strerror(errno));
        if (f->seen.st_size < f->info.st_size)
            return is_shorter(f, err);
        if (f->seen.st_size > f->info.st_size)
            return ctw_fail(err, CTW_EIO,
                            "%s: the file changed while it was in use (it had %lld bytes, now "
                            "%lld); load the model again once it is complete",
                            f->name, (long long)f->info.st_size, (long long)f->seen.st_size);
        /* A program can set the time of modification back (cp -p), but not that of the change. */
        *touched = *touched || !is_same_time(&f->seen.st_mtim, &f->info.st_mtim) ||
                   !is_same_time(&f->seen.st_ctim, &f->info.st_ctim);
    }
    return ctw_container_check_maps(c, err);
}

enum ctw_status ctw_container_check_untouched(struct ctw_container *c, struct ctw_err *err)
{
    bool touched;
    enum ctw_status st = ctw_container_check(c, &touched, err);
    if (st == CTW_OK && touched)
        st = ctw_fail(err, CTW_EIO,
                      "the weights' files are being written to; load the model again once they are "
                      "complete");
    return st;
}

void ctw_container_accept(struct ctw_container *c, bool settled)
{
    for (int i = 0; i < c->n_files; i++)
        c->files[i].info = c->files[i].seen;
    c->settled = settled;
}

/* ---- do the times of files show every write? ---- */

const char *ctw_container_hides_writes(const struct ctw_container *c)
{
    for (int i = 0; i < c->n_files; i++)
        if (!ctw_file_shows_writes(c->files[i].fd))
            return c->files[i].name;
    return NULL;
}

bool ctw_container_is_settled(const struct ctw_container *c)
{
    return c->settled;
}

/* A page that is dirty now could be written to again without a new time. */
static bool clean_pages(int fd)
{
    return fsync(fd) == 0 || errno == EINVAL || errno == EROFS; /* nothing can be dirty */
}

bool ctw_container_settle(const struct ctw_container *c, int64_t now_s)
{
    if (ctw_container_hides_writes(c) != NULL)
        return false;
    for (int i = 0; i < c->n_files; i++) {
        const struct ctw_container_file *f = &c->files[i];
        struct stat now;
        if (f->info.st_ctim.tv_sec > now_s - CTW_FILES_REST_S || !clean_pages(f->fd) ||
            fstat(f->fd, &now) != 0 || !is_same_time(&now.st_mtim, &f->info.st_mtim) ||
            !is_same_time(&now.st_ctim, &f->info.st_ctim))
            return false;
    }
    return true;
}
