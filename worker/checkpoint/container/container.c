#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/map_guard.h"
#include "base/mem.h"
#include "worker/checkpoint/container/container_folder.h"
#include "worker/checkpoint/container/container_internal.h"

_Static_assert(sizeof(size_t) == 8 && sizeof(off_t) == 8, "files are mapped whole: 64 bits needed");

/* All kinds, the preferred first. One more is a file with its row, and a line here. */
static const struct ctw_container_kind *const kinds[] = {&ctw_container_safetensors,
                                                         &ctw_container_gguf};

/* NULL: the folder has no files of any kind. */
static const struct ctw_container_kind *kind_of(int dir_fd)
{
    for (size_t i = 0; i < CTW_COUNT(kinds); i++)
        if (kinds[i]->is_in(dir_fd))
            return kinds[i];
    return NULL;
}

/* The kind of container that the file's name says; NULL: no kind's. */
static const struct ctw_container_kind *kind_of_file(const char *name)
{
    size_t n = strlen(name);
    for (size_t i = 0; i < CTW_COUNT(kinds); i++) {
        size_t m = strlen(kinds[i]->suffix);
        if (n >= m && strcasecmp(name + n - m, kinds[i]->suffix) == 0)
            return kinds[i];
    }
    return NULL;
}

enum ctw_status ctw_checkpoint_path(struct ctw_checkpoint_path *out, const char *path,
                                    struct ctw_err *err)
{
    struct stat info;
    const char *slash = strrchr(path, '/'), *file = slash != NULL ? slash + 1 : path;
    const struct ctw_container_kind *kind = kind_of_file(file);
    bool is_file = kind != NULL && kind->is_same_model != NULL &&
                   !(stat(path, &info) == 0 && S_ISDIR(info.st_mode));
    if (strlen(path) >= sizeof(out->dir) || (is_file && strlen(file) >= sizeof(out->file)))
        return ctw_fail(err, CTW_EINVAL, "%.200s...: the path is too long", path);
    *out = (struct ctw_checkpoint_path){0};
    if (!is_file)
        (void)snprintf(out->dir, sizeof(out->dir), "%s", path);
    else if (slash == NULL)
        out->dir[0] = '.';
    else
        memcpy(out->dir, path, slash == path ? 1 : (size_t)(slash - path));
    if (is_file)
        (void)snprintf(out->file, sizeof(out->file), "%s", file);
    return CTW_OK;
}

bool ctw_checkpoint_has_file(const struct ctw_checkpoint_path *path, const char *name)
{
    if (path->file[0] == '\0')
        return kind_of_file(name) != NULL;
    return kind_of_file(path->file)->is_same_model(path->file, name);
}

enum ctw_status ctw_container_open(struct ctw_container **out, const char *path,
                                   struct ctw_err *err)
{
    int dir_fd = -1;
    struct ctw_checkpoint_path place;
    struct ctw_container *c = NULL;
    *out = NULL;
    enum ctw_status st = ctw_checkpoint_path(&place, path, err);
    if (st == CTW_OK)
        st = ctw_container_open_folder(&dir_fd, place.dir, err);
    if (st != CTW_OK)
        return st;
    c = ctw_calloc(1, sizeof(*c));
    if (c == NULL)
        st = ctw_fail(err, CTW_ENOMEM, "%s: out of memory", path);
    bool is_file = place.file[0] != '\0';
    const struct ctw_container_kind *kind = is_file ? kind_of_file(place.file) : kind_of(dir_fd);
    if (st == CTW_OK && kind == NULL)
        st = ctw_container_explain_missing(place.dir, err);
    if (st == CTW_OK)
        c->method = kind->method;
    if (st == CTW_OK)
        st = kind->open(c, place.dir, dir_fd, is_file ? place.file : NULL, err);
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
        ctw_records_free(&f->records);
        ctw_free(f->name);
    }
    ctw_free(c->files);
    ctw_free(c->tensors);
    ctw_free(c->names);
    ctw_free(c->slots);
    ctw_free(c);
}

const struct ctw_metadata *ctw_container_metadata(const struct ctw_container *c)
{
    return c->method != NULL ? &c->files[0].records.metadata : NULL;
}

const char *ctw_container_method(const struct ctw_container *c)
{
    return c->method;
}

int64_t ctw_container_count(const struct ctw_container *c)
{
    return c->n_tensors;
}

const struct ctw_tensor *ctw_container_at(const struct ctw_container *c, int64_t i)
{
    return &c->tensors[i];
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
