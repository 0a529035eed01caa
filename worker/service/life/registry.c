#include "worker/service/life/registry.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/text.h"
#include "ipc/endpoint.h"

int64_t ctw_process_started(pid_t pid)
{
    char path[64], text[1024];
    snprintf(path, sizeof(path), "/proc/%ld/stat", (long)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    ssize_t n = read(fd, text, sizeof(text) - 1);
    close(fd);
    if (n <= 0)
        return -1;
    text[n] = '\0';
    /* proc(5): field 2 is the command in parentheses and may hold anything; then come 3, the state,
     * 20, the number of threads, and 22, the start. Others may run after the first has ended. */
    static const char fields[] =
        " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %ld %*s %" SCNd64;
    const char *at = strrchr(text, ')');
    char state;
    long n_threads;
    int64_t started;
    if (at == NULL || sscanf(at + 1, fields, &state, &n_threads, &started) != 3)
        return -1;
    bool first_ended = state == 'Z' || state == 'X';
    return first_ended && n_threads <= 1 ? -1 : started;
}

enum ctw_status ctw_write_file_atomically(const char *path, const char *text, size_t bytes,
                                          struct ctw_err *err)
{
    char temporary[CTW_REGISTRY_PATH_MAX + 32];
    int n = snprintf(temporary, sizeof(temporary), "%s.%ld.tmp", path, (long)getpid());
    if (n < 0 || (size_t)n >= sizeof(temporary))
        return ctw_fail(err, CTW_EINVAL, "%s: the path is too long", path);
    int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return ctw_fail(err, CTW_EIO, "%s: %s", temporary, strerror(errno));
    bool written = write(fd, text, bytes) == (ssize_t)bytes;
    written = close(fd) == 0 && written;
    if (written && rename(temporary, path) == 0)
        return CTW_OK;
    enum ctw_status st = ctw_fail(err, CTW_EIO, "%s: %s", path, strerror(errno));
    unlink(temporary);
    return st;
}

/* ---- reading ---- */

static enum ctw_status read_text(const struct ctw_json_node *root, const char *key, char *out,
                                 size_t capacity, struct ctw_err *err)
{
    const char *text = "";
    enum ctw_status st = ctw_json_read_string(root, key, CTW_JSON_REQUIRED, &text, err);
    if (st == CTW_OK && strlen(text) >= capacity)
        return ctw_fail(err, CTW_EFORMAT, "%s is too long", key);
    if (st == CTW_OK)
        memcpy(out, text, strlen(text) + 1);
    return st;
}

static enum ctw_status read_entry(const char *path, const char *file, struct ctw_registry_entry *e,
                                  struct ctw_err *err)
{
    enum { MAX_BYTES = 16384 };
    struct ctw_json *doc = NULL;
    int64_t pid = 0;
    memset(e, 0, sizeof(*e));
    snprintf(e->name, sizeof(e->name), "%.*s", (int)(strlen(file) - strlen(".json")), file);
    enum ctw_status st = ctw_json_parse_file(&doc, NULL, path, MAX_BYTES, err);
    if (st != CTW_OK)
        return st;
    const struct ctw_json_node *root = ctw_json_root(doc);
    st = ctw_json_expect(root, CTW_JSON_OBJECT, err);
    if (st == CTW_OK)
        st = read_text(root, "url", e->url, sizeof(e->url), err);
    if (st == CTW_OK)
        st = read_text(root, "models", e->models, sizeof(e->models), err);
    if (st == CTW_OK)
        st = read_text(root, "boot", e->boot, sizeof(e->boot), err);
    if (st == CTW_OK)
        st = ctw_json_read_int(root, "pid", CTW_JSON_REQUIRED, 1, INT32_MAX, &pid, err);
    if (st == CTW_OK)
        st = ctw_json_read_int(root, "started", CTW_JSON_REQUIRED, 0, INT64_MAX, &e->started, err);
    if (st == CTW_OK)
        st = ctw_json_read_int(root, "started_unix_s", CTW_JSON_REQUIRED, 0, INT64_MAX,
                               &e->started_unix_s, err);
    if (st == CTW_OK)
        st = ctw_json_read_bool(root, "private", CTW_JSON_OPTIONAL, &e->is_private, err);
    e->pid = (pid_t)pid;
    ctw_json_close(doc);
    return st;
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash == NULL ? path : slash + 1;
}

/* *holder: the process that holds the lock of the entry's address, 0 for none. */
static bool is_held(const struct ctw_registry_entry *e, int64_t *holder)
{
    struct ctw_endpoint endpoint;
    *holder = 0;
    return ctw_endpoint_parse(&endpoint, e->url, NULL) == CTW_OK && endpoint.path != NULL &&
           ctw_endpoint_held(endpoint.path, holder);
}

static bool is_alive(const struct ctw_registry_entry *e)
{
    int64_t holder;
    if (ctw_process_started(e->pid) == e->started)
        return true;
    /* A process that we cannot see, for example in a container. */
    return is_held(e, &holder) && holder == e->pid;
}

/* Removes the dead worker's file, and for ipc its socket and lock. */
static void clean(const char *path, const struct ctw_registry_entry *e)
{
    struct ctw_endpoint endpoint;
    ctw_info("worker %s (process %ld) is gone: its files are removed", e->name, (long)e->pid);
    if (ctw_endpoint_parse(&endpoint, e->url, NULL) == CTW_OK && endpoint.path != NULL)
        (void)ctw_endpoint_clean(endpoint.path);
    unlink(path);
}

/* ---- writing ---- */

/*
 * Like ctw_write_file_atomically(), but never replaces the file of a running worker: link() fails
 * if the file exists, rename() would replace it.
 */
static enum ctw_status write_new(const char *path, const char *text, size_t bytes,
                                 struct ctw_err *err)
{
    char temporary[CTW_REGISTRY_PATH_MAX + 32];
    snprintf(temporary, sizeof(temporary), "%s.%ld.new", path, (long)getpid());
    enum ctw_status st = ctw_write_file_atomically(temporary, text, bytes, err);
    if (st != CTW_OK)
        return st;
    for (int attempt = 0; st == CTW_OK && link(temporary, path) != 0; attempt++) {
        struct ctw_registry_entry old = {0};
        if (errno != EEXIST || attempt > 2) {
            st = ctw_fail(err, CTW_EIO, "%s: %s", path, strerror(errno));
        } else if (read_entry(path, base_name(path), &old, NULL) != CTW_OK) {
            unlink(path);
        } else if (is_alive(&old)) {
            st = ctw_fail(err, CTW_EBUSY,
                          "a worker named %s is already running (process %ld): give another --name",
                          old.name, (long)old.pid);
        } else {
            clean(path, &old);
        }
    }
    unlink(temporary);
    return st;
}

enum ctw_status ctw_registry_add(const char *dir, struct ctw_registry_entry *entry,
                                 char path[CTW_REGISTRY_PATH_MAX], struct ctw_err *err)
{
    struct ctw_json_writer w = {0};
    const char *text;
    size_t bytes;
    entry->pid = getpid();
    entry->started = ctw_process_started(entry->pid);
    entry->started_unix_s = (int64_t)time(NULL);
    int n = snprintf(path, CTW_REGISTRY_PATH_MAX, "%s/%s.json", dir, entry->name);
    if (n < 0 || n >= CTW_REGISTRY_PATH_MAX) {
        path[0] = '\0';
        return ctw_fail(err, CTW_EINVAL, "%s: the path is too long", dir);
    }
    ctw_json_write_open(&w, '{');
    ctw_json_write_key_string(&w, "url", entry->url);
    ctw_json_write_key_string(&w, "models", entry->models);
    ctw_json_write_key_string(&w, "boot", entry->boot);
    ctw_json_write_key_int(&w, "pid", entry->pid);
    ctw_json_write_key_int(&w, "started", entry->started);
    ctw_json_write_key_int(&w, "started_unix_s", entry->started_unix_s);
    ctw_json_write_key_bool(&w, "private", entry->is_private);
    ctw_json_write_close(&w, '}');
    enum ctw_status st = ctw_json_writer_text(&w, &text, &bytes, err);
    if (st == CTW_OK)
        st = write_new(path, text, bytes, err);
    ctw_json_writer_fini(&w);
    if (st != CTW_OK)
        path[0] = '\0';
    return st;
}

void ctw_registry_remove(const char *path)
{
    if (path[0] != '\0')
        unlink(path);
}

/* ---- listing ---- */

static bool is_entry_name(const char *name)
{
    size_t n = strlen(name), suffix = strlen(".json");
    return n > suffix && strcmp(name + n - suffix, ".json") == 0 && ctw_is_name(name);
}

static int compare_entries(const void *a, const void *b)
{
    return strcmp(((const struct ctw_registry_entry *)a)->name,
                  ((const struct ctw_registry_entry *)b)->name);
}

/* Is there a running worker in this file? */
static bool read_running(const char *path, const char *file, bool sweep,
                         struct ctw_registry_entry *e)
{
    struct ctw_err why;
    int64_t holder;
    if (read_entry(path, file, e, &why) != CTW_OK) {
        if (sweep)
            ctw_warn("%s", why.msg);
        return false;
    }
    if (is_alive(e))
        return true;
    /* A process that holds its address may be about to write this file: then keep it. */
    if (sweep && !is_held(e, &holder))
        clean(path, e);
    return false;
}

enum ctw_status ctw_registry_list(const char *dir, bool sweep, struct ctw_registry_entry **out,
                                  int *n, struct ctw_err *err)
{
    *out = NULL;
    *n = 0;
    DIR *d = opendir(dir);
    if (d == NULL)
        return ctw_fail(err, CTW_EIO, "%s: %s", dir, strerror(errno));
    enum ctw_status st = CTW_OK;
    for (struct dirent *f = readdir(d); f != NULL && st == CTW_OK; f = readdir(d)) {
        char path[CTW_REGISTRY_PATH_MAX];
        struct ctw_registry_entry e;
        if (!is_entry_name(f->d_name))
            continue;
        snprintf(path, sizeof(path), "%s/%s", dir, f->d_name);
        if (!read_running(path, f->d_name, sweep, &e))
            continue;
        struct ctw_registry_entry *list = ctw_realloc(*out, (size_t)*n + 1, sizeof(*list));
        if (list == NULL) {
            st = ctw_fail(err, CTW_ENOMEM, "out of memory");
            break;
        }
        list[(*n)++] = e;
        *out = list;
    }
    closedir(d);
    if (*n > 1)
        qsort(*out, (size_t)*n, sizeof(**out), compare_entries);
    return st;
}
