#include "worker/store/hidden.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/digest.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/sha256.h"
#include "base/threads.h"
#include "worker/store/store.h"

/* Readers of a pass's files; the digests take most of the time. */
enum { READERS = 4 };

#define SUFFIX ".hidden"

/* The start of a file, then the rows. Little-endian. */
struct header {
    char magic[8]; /* the last byte is the version */
    struct ctw_hidden_key key;
    uint64_t n_rows, row_bytes;
    struct ctw_digest digest; /* of the rows */
};
static const char magic[8] = {'c', 't', 'w', 'h', 'i', 'd', 'd', 1};
_Static_assert(sizeof(struct header) == 72, "without gaps, as in docs/FORMATS.md");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the header is written as it is");

struct ctw_hidden_dir {
    char *path;
    uint64_t limit, bytes; /* bytes: about those of all files */
    struct ctw_threads *threads;
    bool warned;
};

static void warn_once(struct ctw_hidden_dir *d, const char *what, const char *why)
{
    if (!d->warned)
        ctw_warn("%s: %s: %s; hidden states that cannot be kept are computed again", d->path, what,
                 why);
    d->warned = true;
}

static void file_path(const struct ctw_hidden_dir *d, const struct ctw_hidden_key *key,
                      const char *suffix, char out[PATH_MAX])
{
    char hex[2 * sizeof(key->bytes) + 1];
    for (size_t i = 0; i < sizeof(key->bytes); i++)
        (void)snprintf(hex + 2 * i, 3, "%02x", key->bytes[i]);
    (void)snprintf(out, PATH_MAX, "%s/%s%s", d->path, hex, suffix);
}

static size_t bytes_of(const struct ctw_hidden_rows *r)
{
    return (size_t)r->n_rows * r->row_bytes;
}

struct ctw_hidden_key ctw_hidden_key_of(const char *identity, const char *numerics,
                                        const int32_t *tokens, int64_t n_tok, int64_t first)
{
    struct ctw_sha256 h;
    struct ctw_hidden_key key;
    const uint64_t counts[2] = {(uint64_t)n_tok, (uint64_t)first};
    ctw_sha256_init(&h);
    ctw_sha256_update(&h, identity, strlen(identity) + 1);
    ctw_sha256_update(&h, numerics, strlen(numerics) + 1);
    ctw_sha256_update(&h, counts, sizeof(counts));
    ctw_sha256_update(&h, tokens, (size_t)n_tok * sizeof(*tokens));
    ctw_sha256_final(&h, key.bytes);
    return key;
}

/* ---- the folder --------------------------------------------------------------------------- */

struct old_file {
    struct timespec used;
    uint64_t bytes;
    char name[2 * sizeof(struct ctw_hidden_key) + sizeof(SUFFIX)];
};

static int by_age(const void *a_, const void *b_)
{
    const struct old_file *a = a_, *b = b_;
    if (a->used.tv_sec != b->used.tv_sec)
        return a->used.tv_sec < b->used.tv_sec ? -1 : 1;
    return (a->used.tv_nsec > b->used.tv_nsec) - (a->used.tv_nsec < b->used.tv_nsec);
}

/* Is this the name of one of our files? */
static bool is_ours(const char *name)
{
    size_t hex = 2 * sizeof(struct ctw_hidden_key);
    return strspn(name, "0123456789abcdef") == hex && strcmp(name + hex, SUFFIX) == 0;
}

/* All our files, with *bytes of them together; NULL: none, or no memory. Others are left alone. */
static struct old_file *list_files(const struct ctw_hidden_dir *d, int64_t *n, uint64_t *bytes)
{
    struct old_file *files = NULL;
    int64_t cap = 0;
    DIR *dir = opendir(d->path);
    *n = 0;
    *bytes = 0;
    if (dir == NULL)
        return NULL;
    for (struct dirent *e; (e = readdir(dir)) != NULL;) {
        struct stat st;
        if (!is_ours(e->d_name) || fstatat(dirfd(dir), e->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0)
            continue;
        if (*n == cap) {
            cap = cap == 0 ? 64 : 2 * cap;
            struct old_file *more = ctw_realloc(files, (size_t)cap, sizeof(*files));
            if (more == NULL)
                break;
            files = more;
        }
        files[*n] = (struct old_file){.used = st.st_mtim, .bytes = (uint64_t)st.st_size};
        memcpy(files[*n].name, e->d_name, sizeof(files[*n].name)); /* its length is known */
        *bytes += files[(*n)++].bytes;
    }
    (void)closedir(dir);
    return files;
}

/* Makes room for `more` bytes. False: they can never fit. */
static bool make_room(struct ctw_hidden_dir *d, uint64_t more)
{
    if (more > d->limit)
        return false;
    if (d->bytes + more <= d->limit)
        return true;
    int64_t n;
    struct old_file *files = list_files(d, &n, &d->bytes); /* as other processes left it */
    if (files != NULL)
        qsort(files, (size_t)n, sizeof(*files), by_age);
    for (int64_t i = 0; i < n && d->bytes + more > d->limit; i++) {
        char path[PATH_MAX];
        (void)snprintf(path, sizeof(path), "%s/%s", d->path, files[i].name);
        (void)unlink(path);
        d->bytes -= files[i].bytes;
    }
    ctw_free(files);
    return true;
}

/* Removes what processes left that ended while they wrote: names that end with their number. */
static void remove_drafts(const struct ctw_hidden_dir *d)
{
    size_t hex = 2 * sizeof(struct ctw_hidden_key);
    DIR *dir = opendir(d->path);
    if (dir == NULL)
        return;
    for (struct dirent *e; (e = readdir(dir)) != NULL;) {
        char *end = e->d_name;
        long pid = 0;
        if (strspn(e->d_name, "0123456789abcdef") == hex && e->d_name[hex] == '.')
            pid = strtol(e->d_name + hex + 1, &end, 10);
        if (pid > 0 && *end == '\0' && kill((pid_t)pid, 0) != 0 && errno == ESRCH)
            (void)unlinkat(dirfd(dir), e->d_name, 0);
    }
    (void)closedir(dir);
}

enum ctw_status ctw_hidden_open(struct ctw_hidden_dir **out, const char *dir, uint64_t limit,
                                struct ctw_err *err)
{
    int64_t n;
    enum ctw_status st = ctw_store_make_folder(dir, err);
    if (st == CTW_OK && access(dir, W_OK) != 0)
        st = ctw_fail(err, CTW_EIO, "%s: %s", dir, strerror(errno));
    if (st != CTW_OK)
        return st;
    struct ctw_hidden_dir *d = ctw_calloc(1, sizeof(*d));
    if (d == NULL)
        return ctw_fail(err, CTW_ENOMEM, "%s: out of memory", dir);
    d->limit = limit;
    d->path = ctw_strdup(dir);
    st = d->path != NULL ? ctw_threads_open(&d->threads, READERS, err)
                         : ctw_fail(err, CTW_ENOMEM, "%s: out of memory", dir);
    if (st != CTW_OK) {
        ctw_hidden_close(d);
        return st;
    }
    remove_drafts(d);
    ctw_free(list_files(d, &n, &d->bytes));
    *out = d;
    return CTW_OK;
}

void ctw_hidden_close(struct ctw_hidden_dir *d)
{
    if (d == NULL)
        return;
    ctw_threads_close(d->threads);
    ctw_free(d->path);
    ctw_free(d);
}

/* ---- reading ------------------------------------------------------------------------------ */

static bool is_intact(int fd, const struct ctw_hidden_rows *r)
{
    struct header h;
    struct stat st;
    if (fstat(fd, &st) != 0 || (uint64_t)st.st_size != sizeof(h) + bytes_of(r) ||
        ctw_read_at(fd, &h, sizeof(h), 0) != sizeof(h) ||
        memcmp(h.magic, magic, sizeof(magic)) != 0 || memcmp(&h.key, &r->key, sizeof(h.key)) != 0 ||
        h.n_rows != (uint64_t)r->n_rows || h.row_bytes != r->row_bytes ||
        ctw_read_at(fd, r->rows, bytes_of(r), sizeof(h)) != bytes_of(r))
        return false;
    struct ctw_digest digest = ctw_digest_of(r->rows, bytes_of(r));
    return memcmp(&digest, &h.digest, sizeof(digest)) == 0;
}

struct reading {
    const struct ctw_hidden_dir *d;
    const struct ctw_hidden_rows *records;
    bool *ok;
};

static void read_one(void *arg, int64_t i, int thread)
{
    const struct reading *reading = arg;
    const struct ctw_hidden_rows *r = &reading->records[i];
    char path[PATH_MAX];
    (void)thread;
    file_path(reading->d, &r->key, SUFFIX, path);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    reading->ok[i] = is_intact(fd, r);
    (void)close(fd);
    if (reading->ok[i])
        (void)utimensat(AT_FDCWD, path, NULL, 0); /* used now */
    else
        (void)unlink(path);
}

bool ctw_hidden_read(struct ctw_hidden_dir *d, const struct ctw_hidden_rows *records, int64_t n)
{
    char path[PATH_MAX];
    bool all = true;
    for (int64_t i = 0; i < n; i++) { /* most often all are there, or none */
        file_path(d, &records[i].key, SUFFIX, path);
        if (access(path, R_OK) != 0)
            return false;
    }
    struct reading reading = {d, records, ctw_calloc((size_t)n, sizeof(bool))};
    if (reading.ok == NULL)
        return false;
    ctw_threads_for(d->threads, n, read_one, &reading);
    for (int64_t i = 0; i < n; i++)
        all = all && reading.ok[i];
    ctw_free(reading.ok);
    return all;
}

/* ---- writing ------------------------------------------------------------------------------ */

/* A file under another name first: nobody sees half of it. */
void ctw_hidden_write(struct ctw_hidden_dir *d, const struct ctw_hidden_rows *r)
{
    char path[PATH_MAX], draft[PATH_MAX], suffix[32];
    struct header h = {.key = r->key,
                       .n_rows = (uint64_t)r->n_rows,
                       .row_bytes = r->row_bytes,
                       .digest = ctw_digest_of(r->rows, bytes_of(r))};
    memcpy(h.magic, magic, sizeof(magic));
    if (!make_room(d, sizeof(h) + bytes_of(r))) {
        warn_once(d, "cannot keep the states of a sequence", "they exceed --hidden-limit");
        return;
    }
    (void)snprintf(suffix, sizeof(suffix), ".%ld", (long)getpid());
    file_path(d, &r->key, SUFFIX, path);
    file_path(d, &r->key, suffix, draft);
    int fd = open(draft, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0) {
        warn_once(d, "cannot make a file", strerror(errno));
        return;
    }
    bool written = ctw_write_all(fd, &h, sizeof(h)) == sizeof(h) &&
                   ctw_write_all(fd, r->rows, bytes_of(r)) == bytes_of(r);
    int why = errno;
    if (close(fd) == 0 && written && rename(draft, path) == 0) {
        d->bytes += sizeof(h) + bytes_of(r);
        return;
    }
    warn_once(d, "cannot write a file", strerror(written ? errno : why));
    (void)unlink(draft);
}
