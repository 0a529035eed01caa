/* The files of a GGUF model: one, or the parts that gguf-split makes of one,
 * "NAME-00001-of-00003.gguf" to "NAME-00003-of-00003.gguf". */
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/mem.h"
#include "worker/checkpoint/container/container_internal.h"
#include "worker/checkpoint/container/gguf.h"

enum { MAX_NAME = 256, MAX_PARTS = 4096, MAX_LISTED = 8 };

static const char suffix[] = ".gguf";

/* Writes the name before "-00002-of-00003.gguf" to stem. 0: it is no such name, else the parts. */
static int parts_of(const char *name, char stem[MAX_NAME])
{
    static const char form[] = "-00000-of-00000";
    size_t n = strlen(name), tail = sizeof(form) - 1 + sizeof(suffix) - 1;
    if (n <= tail || n >= MAX_NAME)
        return 0;
    const char *at = name + n - tail;
    for (size_t i = 0; i < sizeof(form) - 1; i++) {
        bool digit = at[i] >= '0' && at[i] <= '9';
        if (form[i] == '0' ? !digit : at[i] != form[i])
            return 0;
    }
    long parts = strtol(at + 10, NULL, 10);
    (void)snprintf(stem, MAX_NAME, "%.*s", (int)(n - tail), name);
    return parts >= 1 && parts <= MAX_PARTS ? (int)parts : 0;
}

static bool is_same_model(const char *file, const char *name)
{
    char a[MAX_NAME], b[MAX_NAME];
    int parts = parts_of(file, a);
    if (parts == 0)
        return strcmp(file, name) == 0;
    return parts_of(name, b) == parts && strcmp(a, b) == 0;
}

/* Is that a file of a model, and not the projector of a vision model beside it? */
static bool is_model(const char *name)
{
    size_t n = strlen(name), m = sizeof(suffix) - 1;
    return n > m && n < MAX_NAME && strcasecmp(name + n - m, suffix) == 0 &&
           strncasecmp(name, "mmproj", 6) != 0;
}

/* ---- the models of a folder ---- */

struct models {
    char first[MAX_LISTED][MAX_NAME]; /* a file of each, sorted */
    int n;                            /* may be more */
};

static int by_text(const void *a, const void *b)
{
    return strcmp(a, b);
}

static void add_model(struct models *models, const char *name)
{
    for (int i = 0; i < models->n && i < MAX_LISTED; i++)
        if (is_same_model(models->first[i], name))
            return;
    if (models->n < MAX_LISTED)
        (void)snprintf(models->first[models->n], MAX_NAME, "%s", name);
    models->n++;
}

static void list_models(struct models *models, int dir_fd)
{
    const struct dirent *e;
    int fd = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *listing = fd >= 0 ? fdopendir(fd) : NULL;
    *models = (struct models){0};
    if (listing == NULL && fd >= 0)
        (void)close(fd);
    while (listing != NULL && (e = readdir(listing)) != NULL)
        if (is_model(e->d_name))
            add_model(models, e->d_name);
    if (listing != NULL)
        (void)closedir(listing);
    qsort(models->first, (size_t)(models->n < MAX_LISTED ? models->n : MAX_LISTED), MAX_NAME,
          by_text);
}

static bool is_in(int dir_fd)
{
    struct models models;
    list_models(&models, dir_fd);
    return models.n > 0;
}

/* The one model of the folder. */
static enum ctw_status choose(const char *dir, int dir_fd, char file[MAX_NAME], struct ctw_err *err)
{
    struct models models;
    char list[MAX_LISTED * MAX_NAME] = "";
    size_t at = 0;
    list_models(&models, dir_fd);
    int n = models.n < MAX_LISTED ? models.n : MAX_LISTED;
    for (int i = 0; i < n && at < sizeof(list); i++)
        at += (size_t)snprintf(list + at, sizeof(list) - at, "%s%s", i > 0 ? ", " : "",
                               models.first[i]);
    if (models.n > 1)
        return ctw_fail(err, CTW_EINVAL,
                        "the folder holds several GGUF models (%s%s); give the path of one, such "
                        "as %s/%s",
                        list, models.n > n ? ", ..." : "", dir, models.first[0]);
    (void)snprintf(file, MAX_NAME, "%s", models.first[0]);
    return CTW_OK;
}

/* ---- the parts of a model ---- */

/* A number that a part says of itself; absent: -1. */
static int64_t number_of(const struct ctw_container_file *f, const char *key)
{
    int64_t value = -1;
    const struct ctw_meta *m = ctw_meta_find(&f->records.metadata, key);
    return m != NULL && !m->is_array && ctw_meta_int(m, 0, &value) ? value : -1;
}

/* Does part i say that it is this part of `parts`? */
static enum ctw_status check_part(const struct ctw_container *c, int i, int parts,
                                  struct ctw_err *err)
{
    const struct ctw_container_file *f = &c->files[i];
    int64_t count = number_of(f, "split.count"), no = number_of(f, "split.no");
    if (parts == 0 && count > 1)
        return ctw_fail(err, CTW_EFORMAT,
                        "%s: part %" PRId64 " of %" PRId64 " of a split model, under another name; "
                        "parts are named NAME-00001-of-%05d.gguf and so on",
                        f->name, no + 1, count, (int)(count < 99999 ? count : 99999));
    if (parts > 0 && (count != parts || no != i))
        return ctw_fail(err, CTW_EFORMAT,
                        "%s: its name says part %d of %d, but its split.no is %" PRId64 " and its "
                        "split.count %" PRId64 "; expected %d and %d",
                        f->name, i + 1, parts, no, count, i, parts);
    return CTW_OK;
}

static enum ctw_status check_total(const struct ctw_container *c, struct ctw_err *err)
{
    int64_t want = number_of(&c->files[0], "split.tensors.count"), n = 0;
    for (int i = 0; i < c->n_files; i++)
        n += c->files[i].records.n_tensors;
    if (want < 0 || want == n)
        return CTW_OK;
    return ctw_fail(err, CTW_EFORMAT,
                    "%s: split.tensors.count is %" PRId64 ", but the parts have %" PRId64
                    " tensors; fetch them again",
                    c->files[0].name, want, n);
}

static enum ctw_status open_files(struct ctw_container *c, const char *dir, int dir_fd,
                                  const char *only, struct ctw_err *err)
{
    char file[MAX_NAME], stem[MAX_NAME], name[MAX_NAME + 32];
    enum ctw_status st = CTW_OK;
    if (only == NULL)
        st = choose(dir, dir_fd, file, err);
    else
        (void)snprintf(file, sizeof(file), "%s", only);
    if (st != CTW_OK)
        return st;
    int parts = parts_of(file, stem), n = parts > 0 ? parts : 1;
    c->list_name = file;
    st = ctw_container_reserve(c, n, err);
    for (int i = 0; i < n && st == CTW_OK; i++) {
        (void)snprintf(name, sizeof(name), "%s", file);
        if (parts > 0)
            (void)snprintf(name, sizeof(name), "%s-%05d-of-%05d%s", stem, i + 1, parts, suffix);
        st = ctw_container_add_file(c, dir_fd, name, ctw_gguf_read, err);
        if (st == CTW_ENOTFOUND && parts > 0)
            st = ctw_fail(err, CTW_ENOTFOUND, "%s: part %d of %d is missing; fetch it", name, i + 1,
                          parts);
        if (st == CTW_OK)
            st = check_part(c, i, parts, err);
    }
    if (st == CTW_OK && parts > 0)
        st = check_total(c, err);
    if (st == CTW_OK)
        st = ctw_container_collect(c, err);
    c->list_name = NULL;
    return st;
}

const struct ctw_container_kind ctw_container_gguf = {.suffix = suffix,
                                                      .method = "ggml",
                                                      .is_in = is_in,
                                                      .open = open_files,
                                                      .is_same_model = is_same_model};
