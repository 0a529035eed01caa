#include "worker/checkpoint/container_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/log.h"
#include "base/map_guard.h"
#include "base/mem.h"
#include "worker/checkpoint/container_folder.h"
#include "worker/checkpoint/shard_index.h"

_Static_assert(sizeof(size_t) == 8 && sizeof(off_t) == 8, "files are mapped whole: 64 bits needed");

static const char single_name[] = "model.safetensors";
static const char index_name[] = "model.safetensors.index.json";

/* ---- files ---- */

/* CTW_ENOTFOUND: no such file. Anything but a regular file is refused. */
static enum ctw_status open_file(int *fd, struct stat *info, int dir_fd, const char *name,
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

static enum ctw_status open_shard(struct ctw_container *c, int dir_fd, const char *name,
                                  struct ctw_err *err)
{
    struct ctw_container_file *f = &c->files[c->n_files++];
    f->fd = -1;
    f->guard = -1;
    f->name = ctw_strdup(name);
    if (f->name == NULL)
        return ctw_fail(err, CTW_ENOMEM, "%s: out of memory", name);
    enum ctw_status st = open_file(&f->fd, &f->info, dir_fd, name, err);
    if (st != CTW_OK)
        return st;
    size_t bytes = (size_t)f->info.st_size;
    st = ctw_safetensors_read(&f->header, name, f->fd, bytes, err);
    if (st != CTW_OK)
        return st;
    c->headers_alone |= f->header.header_alone;
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

/* ---- names ---- */

static uint32_t find_slot(const struct ctw_container *c, const char *name)
{
    uint32_t slot = (uint32_t)ctw_hash(0, name, strlen(name)) & c->slot_mask;
    while (c->slots[slot] != 0 && strcmp(c->tensors[c->slots[slot] - 1].name, name) != 0)
        slot = (slot + 1) & c->slot_mask;
    return slot;
}

/* Tensors that are odd in one way. */
struct odd {
    int64_t n;
    const char *tensor, *other; /* the first tensor, and the shard of a copy, or in the index */
    const char *shard;          /* the shard that the tensor is read from */
};

static void count_odd(struct odd *odd, const char *tensor, const char *other, const char *shard)
{
    if (odd->n++ == 0)
        *odd = (struct odd){.n = 1, .tensor = tensor, .other = other, .shard = shard};
}

/* " (and 3 more tensors)", or nothing. */
static const char *and_more(const struct odd *odd, char buf[48])
{
    buf[0] = '\0';
    if (odd->n > 1)
        (void)snprintf(buf, 48, " (and %" PRId64 " more tensor%s)", odd->n - 1,
                       odd->n > 2 ? "s" : "");
    return buf;
}

/*
 * Accepts a second tensor of one name only if both are equal: transformers reads the last shard's,
 * so the names of the shards would choose between two that differ.
 */
static enum ctw_status check_copy(const struct ctw_container *c, const struct ctw_tensor *kept,
                                  const struct ctw_tensor *copy, struct ctw_err *err)
{
    bool equal =
        kept->dtype == copy->dtype && kept->n_dims == copy->n_dims &&
        memcmp(kept->shape, copy->shape, sizeof(kept->shape)) == 0 && kept->bytes == copy->bytes &&
        (c->headers_alone ||
         memcmp(ctw_container_data(c, kept), ctw_container_data(c, copy), kept->bytes) == 0);
    if (equal)
        return CTW_OK;
    return ctw_fail(err, CTW_EFORMAT,
                    "%s: tensor %s is also in %s, and the two differ; remove the shard that does "
                    "not belong to the model from the folder and from %s",
                    c->files[copy->file].name, kept->name, c->files[kept->file].name, index_name);
}

/* Joins the files' tensors into one array and one table of names. */
static enum ctw_status collect(struct ctw_container *c, struct ctw_err *err)
{
    size_t total = 0, n_slots = 4;
    struct odd copies = {0};
    char more[48];
    enum ctw_status st = CTW_OK;
    for (int f = 0; f < c->n_files; f++)
        total += (size_t)c->files[f].header.n_tensors;
    while (n_slots < 2 * total && n_slots < (size_t)1 << 31)
        n_slots *= 2;
    if (total >= n_slots)
        return ctw_fail(err, CTW_EUNSUP, "found %zu tensors, more than are supported", total);
    c->tensors = ctw_calloc(total, sizeof(*c->tensors));
    c->slots = ctw_calloc(n_slots, sizeof(*c->slots));
    if (c->tensors == NULL || c->slots == NULL)
        return ctw_fail(err, CTW_ENOMEM, "out of memory for the names of %zu tensors", total);
    c->slot_mask = (uint32_t)(n_slots - 1);
    for (int f = 0; f < c->n_files; f++)
        for (int64_t i = 0; i < c->files[f].header.n_tensors && st == CTW_OK; i++) {
            struct ctw_tensor *t = &c->tensors[c->n_tensors];
            *t = c->files[f].header.tensors[i];
            t->file = f;
            uint32_t slot = find_slot(c, t->name);
            if (c->slots[slot] == 0) {
                c->slots[slot] = (uint32_t)++c->n_tensors;
                continue;
            }
            const struct ctw_tensor *kept = &c->tensors[c->slots[slot] - 1];
            count_odd(&copies, t->name, c->files[f].name, c->files[kept->file].name);
            st = check_copy(c, kept, t, err);
        }
    if (st == CTW_OK && copies.n > 0)
        ctw_warn("%s: tensor %s is also in %s%s; the copies are equal", copies.other, copies.tensor,
                 copies.shard, and_more(&copies, more));
    return st;
}

/* ---- the index ---- */

static void warn_of_index(const struct odd *moved, const struct odd *unlisted,
                          const struct odd *gone)
{
    char more[48];
    if (moved->n > 0)
        ctw_warn("%s: tensor %s should be in %s, but is in %s%s; it is read from there, as "
                 "transformers",
                 index_name, moved->tensor, moved->other, moved->shard, and_more(moved, more));
    if (unlisted->n > 0)
        ctw_warn("%s: weight_map has no tensor %s, but %s has%s; it is read from there, as "
                 "transformers",
                 index_name, unlisted->tensor, unlisted->shard, and_more(unlisted, more));
    if (gone->n > 0)
        ctw_warn("%s: tensor %s should be in %s, but is in no shard%s; a model that needs a "
                 "missing tensor is refused",
                 index_name, gone->tensor, gone->other, and_more(gone, more));
}

/* Warns of what the index says wrongly of the shards. As in transformers, the index chooses the
 * shards, and the shards' headers say where each tensor is. CTW_ENOMEM. */
static enum ctw_status compare_with_index(const struct ctw_container *c,
                                          const struct ctw_shard_index *index, struct ctw_err *err)
{
    struct odd moved = {0}, unlisted = {0}, gone = {0};
    bool *listed = ctw_calloc((size_t)c->n_tensors, sizeof(*listed));
    if (listed == NULL)
        return ctw_fail(err, CTW_ENOMEM, "%s: out of memory", index_name);
    for (int64_t i = 0; i < index->n_entries; i++) {
        const struct ctw_shard_entry *e = &index->entries[i];
        const struct ctw_tensor *t = ctw_container_find(c, e->tensor);
        if (t == NULL) {
            count_odd(&gone, e->tensor, index->shards[e->shard], NULL);
            continue;
        }
        listed[t - c->tensors] = true;
        if (t->file != e->shard)
            count_odd(&moved, e->tensor, index->shards[e->shard], c->files[t->file].name);
    }
    for (int64_t i = 0; i < c->n_tensors; i++)
        if (!listed[i])
            count_odd(&unlisted, c->tensors[i].name, NULL, c->files[c->tensors[i].file].name);
    warn_of_index(&moved, &unlisted, &gone);
    ctw_free(listed);
    return CTW_OK;
}

static enum ctw_status read_index(struct ctw_shard_index *index, int fd, const struct stat *info,
                                  struct ctw_err *err)
{
    if (info->st_size > CTW_SHARD_INDEX_MAX_BYTES)
        return ctw_fail(err, CTW_EFORMAT, "%s: %lld bytes; at most %d are accepted", index_name,
                        (long long)info->st_size, (int)CTW_SHARD_INDEX_MAX_BYTES);
    size_t bytes = (size_t)info->st_size, at = 0;
    char *text = ctw_calloc(bytes, 1);
    if (text == NULL)
        return ctw_fail(err, CTW_ENOMEM, "%s: out of memory for %zu bytes", index_name, bytes);
    enum ctw_status st = CTW_OK;
    while (at < bytes && st == CTW_OK) {
        ssize_t n = pread(fd, text + at, bytes - at, (off_t)at);
        if (n > 0)
            at += (size_t)n;
        else if (n == 0 || errno != EINTR)
            st = ctw_fail(err, CTW_EIO, "%s: cannot be read: %s", index_name,
                          n == 0 ? "the file became shorter" : strerror(errno));
    }
    if (st == CTW_OK)
        st = ctw_shard_index_parse(index, index_name, text, bytes, err);
    ctw_free(text);
    return st;
}

static enum ctw_status allocate_files(struct ctw_container *c, int n, struct ctw_err *err)
{
    c->files = ctw_calloc((size_t)n, sizeof(*c->files));
    return c->files != NULL ? CTW_OK : ctw_fail(err, CTW_ENOMEM, "out of memory for %d files", n);
}

static enum ctw_status open_sharded(struct ctw_container *c, int dir_fd, int index_fd,
                                    const struct stat *info, struct ctw_err *err)
{
    struct ctw_shard_index index;
    enum ctw_status st = read_index(&index, index_fd, info, err);
    if (st != CTW_OK)
        return st;
    st = allocate_files(c, index.n_shards, err);
    for (int i = 0; i < index.n_shards && st == CTW_OK; i++) {
        st = open_shard(c, dir_fd, index.shards[i], err);
        if (st == CTW_ENOTFOUND)
            st = ctw_fail(err, CTW_ENOTFOUND,
                          "%s: shard %d of %d is missing (%s names it); fetch it", index.shards[i],
                          i + 1, index.n_shards, index_name);
    }
    if (st == CTW_OK)
        st = collect(c, err);
    if (st == CTW_OK)
        st = compare_with_index(c, &index, err);
    ctw_shard_index_fini(&index);
    return st;
}

/* As in transformers: model.safetensors if present, else the index. */
static enum ctw_status open_files(struct ctw_container *c, const char *dir, int dir_fd,
                                  struct ctw_err *err)
{
    struct stat info;
    int index_fd = -1;
    enum ctw_status st = allocate_files(c, 1, err);
    if (st != CTW_OK)
        return st;
    st = open_shard(c, dir_fd, single_name, err);
    if (st == CTW_OK) {
        if (faccessat(dir_fd, index_name, F_OK, 0) == 0)
            ctw_warn("%s: found both %s and %s; the first is used, as in transformers", dir,
                     single_name, index_name);
        return collect(c, err);
    }
    if (st != CTW_ENOTFOUND)
        return st;
    ctw_free(c->files[0].name);
    ctw_free(c->files);
    c->files = NULL;
    c->n_files = 0;
    st = open_file(&index_fd, &info, dir_fd, index_name, err);
    if (st == CTW_OK)
        st = open_sharded(c, dir_fd, index_fd, &info, err);
    else if (st == CTW_ENOTFOUND)
        st = ctw_container_explain_missing(dir, err);
    if (index_fd >= 0)
        (void)close(index_fd);
    return st;
}

/* ---- the interface ---- */

enum ctw_status ctw_container_open(struct ctw_container **out, const char *dir, struct ctw_err *err)
{
    int dir_fd = -1;
    struct ctw_container *c = NULL;
    *out = NULL;
    enum ctw_status st = ctw_container_open_folder(&dir_fd, dir, err);
    if (st != CTW_OK)
        return st;
    c = ctw_calloc(1, sizeof(*c));
    if (c == NULL)
        st = ctw_fail(err, CTW_ENOMEM, "%s: out of memory", dir);
    if (st == CTW_OK)
        st = open_files(c, dir, dir_fd, err);
    if (st == CTW_OK)
        st = ctw_container_check_untouched(c, err);
    (void)close(dir_fd);
    if (st != CTW_OK) {
        ctw_container_close(c);
        return st;
    }
    *out = c;
    return CTW_OK;
}

void ctw_container_close(struct ctw_container *c)
{
    if (c == NULL)
        return;
    for (int i = 0; i < c->n_files; i++) {
        struct ctw_container_file *f = &c->files[i];
        ctw_map_guard_remove(f->guard);
        if (f->map != NULL)
            (void)munmap((void *)(uintptr_t)f->map, (size_t)f->info.st_size);
        if (f->fd >= 0)
            (void)close(f->fd);
        ctw_safetensors_fini(&f->header);
        ctw_free(f->name);
    }
    ctw_free(c->files);
    ctw_free(c->tensors);
    ctw_free(c->slots);
    ctw_free(c);
}

int64_t ctw_container_count(const struct ctw_container *c)
{
    return c->n_tensors;
}

const struct ctw_tensor *ctw_container_at(const struct ctw_container *c, int64_t i)
{
    return &c->tensors[i];
}

const struct ctw_tensor *ctw_container_find(const struct ctw_container *c, const char *name)
{
    uint32_t slot = find_slot(c, name);
    return c->slots[slot] == 0 ? NULL : &c->tensors[c->slots[slot] - 1];
}

const char *ctw_container_file(const struct ctw_container *c, int file)
{
    return c->files[file].name;
}

int ctw_container_n_files(const struct ctw_container *c)
{
    return c->n_files;
}

uint64_t ctw_container_bytes(const struct ctw_container *c)
{
    uint64_t bytes = 0;
    for (int i = 0; i < c->n_files; i++)
        bytes += (uint64_t)c->files[i].info.st_size;
    return bytes;
}
