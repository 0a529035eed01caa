/* The files of a safetensors checkpoint: one, or shards and their index. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "worker/checkpoint/container/container_internal.h"
#include "worker/checkpoint/container/safetensors.h"
#include "worker/checkpoint/container/shard_index.h"

static const char single_name[] = "model.safetensors";
static const char index_name[] = "model.safetensors.index.json";

static enum ctw_status open_shard(struct ctw_container *c, int dir_fd, const char *name,
                                  struct ctw_err *err)
{
    return ctw_container_add_file(c, dir_fd, name, ctw_safetensors_read, err);
}

static void warn_of_index(const struct ctw_odd *moved, const struct ctw_odd *unlisted,
                          const struct ctw_odd *gone)
{
    char more[48];
    if (moved->n > 0)
        ctw_warn("%s: tensor %s should be in %s, but is in %s%s; it is read from there, as "
                 "transformers",
                 index_name, moved->tensor, moved->other, moved->shard, ctw_odd_more(moved, more));
    if (unlisted->n > 0)
        ctw_warn("%s: weight_map has no tensor %s, but %s has%s; it is read from there, as "
                 "transformers",
                 index_name, unlisted->tensor, unlisted->shard, ctw_odd_more(unlisted, more));
    if (gone->n > 0)
        ctw_warn("%s: tensor %s should be in %s, but is in no shard%s; a model that needs a "
                 "missing tensor is refused",
                 index_name, gone->tensor, gone->other, ctw_odd_more(gone, more));
}

/* Warns of what the index says wrongly of the shards. As in transformers, the index chooses the
 * shards, and the shards' headers say where each tensor is. CTW_ENOMEM. */
static enum ctw_status compare_with_index(const struct ctw_container *c,
                                          const struct ctw_shard_index *index, struct ctw_err *err)
{
    struct ctw_odd moved = {0}, unlisted = {0}, gone = {0};
    bool *listed = ctw_calloc((size_t)c->n_tensors, sizeof(*listed));
    if (listed == NULL)
        return ctw_fail(err, CTW_ENOMEM, "%s: out of memory", index_name);
    for (int64_t i = 0; i < index->n_entries; i++) {
        const struct ctw_shard_entry *e = &index->entries[i];
        const struct ctw_tensor *t = ctw_container_find(c, e->tensor);
        if (t == NULL) {
            ctw_odd_count(&gone, e->tensor, index->shards[e->shard], NULL);
            continue;
        }
        listed[t - c->tensors] = true;
        if (t->file != e->shard)
            ctw_odd_count(&moved, e->tensor, index->shards[e->shard], c->files[t->file].name);
    }
    for (int64_t i = 0; i < c->n_tensors; i++)
        if (!listed[i])
            ctw_odd_count(&unlisted, c->tensors[i].name, NULL, c->files[c->tensors[i].file].name);
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
    size_t bytes = (size_t)info->st_size;
    char *text = ctw_calloc(bytes, 1);
    if (text == NULL)
        return ctw_fail(err, CTW_ENOMEM, "%s: out of memory for %zu bytes", index_name, bytes);
    enum ctw_status st = ctw_read_exactly(fd, text, bytes, 0, index_name, err);
    if (st == CTW_OK)
        st = ctw_shard_index_parse(index, index_name, text, bytes, err);
    ctw_free(text);
    return st;
}

static enum ctw_status open_sharded(struct ctw_container *c, int dir_fd, int index_fd,
                                    const struct stat *info, struct ctw_err *err)
{
    struct ctw_shard_index index;
    c->list_name = index_name;
    enum ctw_status st = read_index(&index, index_fd, info, err);
    if (st != CTW_OK)
        return st;
    st = ctw_container_reserve(c, index.n_shards, err);
    for (int i = 0; i < index.n_shards && st == CTW_OK; i++) {
        st = open_shard(c, dir_fd, index.shards[i], err);
        if (st == CTW_ENOTFOUND)
            st = ctw_fail(err, CTW_ENOTFOUND,
                          "%s: shard %d of %d is missing (%s names it); fetch it", index.shards[i],
                          i + 1, index.n_shards, index_name);
    }
    if (st == CTW_OK)
        st = ctw_container_collect(c, err);
    if (st == CTW_OK)
        st = compare_with_index(c, &index, err);
    ctw_shard_index_fini(&index);
    return st;
}

static bool has_file(int dir_fd, const char *name)
{
    struct stat link; /* a symbolic link to nothing is an error of its own */
    return fstatat(dir_fd, name, &link, AT_SYMLINK_NOFOLLOW) == 0 || errno != ENOENT;
}

static bool is_in(int dir_fd)
{
    return has_file(dir_fd, single_name) || has_file(dir_fd, index_name);
}

/* As in transformers: model.safetensors if present, else the index. */
static enum ctw_status open_files(struct ctw_container *c, const char *dir, int dir_fd,
                                  const char *only, struct ctw_err *err)
{
    struct stat info;
    (void)only;
    int index_fd = -1;
    if (has_file(dir_fd, single_name)) {
        enum ctw_status st = ctw_container_reserve(c, 1, err);
        if (st == CTW_OK)
            st = open_shard(c, dir_fd, single_name, err);
        if (st == CTW_OK && has_file(dir_fd, index_name))
            ctw_warn("%s: found both %s and %s; the first is used, as in transformers", dir,
                     single_name, index_name);
        return st == CTW_OK ? ctw_container_collect(c, err) : st;
    }
    enum ctw_status st = ctw_container_open_file(&index_fd, &info, dir_fd, index_name, err);
    if (st == CTW_OK)
        st = open_sharded(c, dir_fd, index_fd, &info, err);
    if (index_fd >= 0)
        (void)close(index_fd);
    return st;
}

const struct ctw_container_kind ctw_container_safetensors = {
    .suffix = ".safetensors", .is_in = is_in, .open = open_files};
