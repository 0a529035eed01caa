#include "worker/cli/client_command.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"

static void add_name(char *names, size_t cap, const char *name)
{
    size_t at = strlen(names);
    snprintf(names + at, cap - at, "%s%s", at == 0 ? "" : ", ", name);
}

/* Finds the only shared worker. A program's private worker (--owner-pid) is used only by its
 * name. */
static enum ctw_status only_one(const struct ctw_registry_entry *list, int n, char url[CTW_URL_MAX],
                                struct ctw_err *err)
{
    char names[512] = "", private_names[512] = "";
    int n_shared = 0;
    for (int i = 0; i < n; i++) {
        if (list[i].is_private) {
            add_name(private_names, sizeof(private_names), list[i].name);
            continue;
        }
        add_name(names, sizeof(names), list[i].name);
        snprintf(url, CTW_URL_MAX, "%s", list[i].url);
        n_shared++;
    }
    if (n_shared == 1)
        return CTW_OK;
    if (n_shared > 1)
        return ctw_fail(err, CTW_EINVAL,
                        "%d workers run here (%s): name one of them, or give a URL", n_shared,
                        names);
    if (n > 0)
        return ctw_fail(
            err, CTW_ENOTFOUND,
            "no worker of this user runs here, except private workers of other programs (%s): "
            "give the name of a private worker to use it",
            private_names);
    return ctw_fail(
        err, CTW_ENOTFOUND,
        "no worker of this user runs here: start one with `ctworker serve`, or give a URL");
}

static enum ctw_status by_name(const struct ctw_registry_entry *list, int n, const char *name,
                               char url[CTW_URL_MAX], struct ctw_err *err)
{
    for (int i = 0; i < n; i++) {
        if (strcmp(list[i].name, name) == 0) {
            snprintf(url, CTW_URL_MAX, "%s", list[i].url);
            return CTW_OK;
        }
    }
    return ctw_fail(err, CTW_ENOTFOUND,
                    "no worker named %s runs here; `ctworker ps` lists the workers; or give a URL: "
                    "ipc:///PATH or tcp://HOST:PORT",
                    name);
}

enum ctw_status ctw_list_workers(bool sweep, struct ctw_registry_entry **out, int *n,
                                 struct ctw_err *err)
{
    char dir[CTW_URL_MAX], text[CTW_URL_MAX + 256];
    *out = NULL;
    *n = 0;
    if (ctw_runtime_dir_passed_over(text, sizeof(text)) != NULL)
        ctw_warn("%s", text);
    enum ctw_status st = ctw_runtime_dir(dir, sizeof(dir), err);
    return st == CTW_OK ? ctw_registry_list(dir, sweep, out, n, err) : st;
}

static enum ctw_status find_url(const char *which, char url[CTW_URL_MAX], struct ctw_err *err)
{
    struct ctw_registry_entry *list = NULL;
    int n;
    if (which != NULL && strstr(which, "://") != NULL) {
        struct ctw_endpoint e;
        enum ctw_status st = ctw_endpoint_parse(&e, which, err);
        if (st == CTW_OK)
            memcpy(url, e.url, CTW_URL_MAX);
        return st;
    }
    enum ctw_status st = ctw_list_workers(false, &list, &n, err);
    if (st == CTW_OK)
        st = which == NULL ? only_one(list, n, url, err) : by_name(list, n, which, url, err);
    ctw_free(list);
    return st;
}

enum ctw_status ctw_find_worker(const char *which, const char *token_file,
                                struct ctw_worker_address *out, struct ctw_err *err)
{
    enum ctw_status st = find_url(which, out->url, err);
    return st == CTW_OK ? ctw_auth_client_token(token_file, out->token, err) : st;
}

struct ctw_option ctw_answer_timeout_option(int64_t *seconds)
{
    return ctw_opt_int("timeout", seconds, 1, 3600, "SECONDS", "how long to wait for an answer");
}

struct ctw_option ctw_token_option(const char **file)
{
    return ctw_opt_string("token-file", file, "FILE",
                          "file with the token for a worker on tcp: the last word of its first "
                          "line (default: the token in CTW_TOKEN, if set)");
}

struct ctw_command_line ctw_client_command_line(const char *name, const char *synopsis,
                                                const char *about, const struct ctw_option *options,
                                                int n_options, const char **which)
{
    return (struct ctw_command_line){.name = name,
                                     .synopsis = synopsis,
                                     .about = about,
                                     .options = options,
                                     .n_options = n_options,
                                     .positional = "URL",
                                     .n_positional_max = 1,
                                     .positionals = which};
}

enum ctw_status ctw_call_worker(struct ctw_worker_call *call, const struct ctw_worker_address *to,
                                int timeout_ms, struct ctw_err *err)
{
    call->request.token = ctw_span_of(to->token);
    enum ctw_status st = ctw_client_open(&call->client, to->url, err);
    if (st == CTW_OK)
        st = ctw_client_call(call->client, &call->request, timeout_ms, &call->reply, err);
    if (st == CTW_OK)
        st = ctw_reply_status(&call->reply, err);
    if (st != CTW_EREFUSED || err == NULL)
        return st;
    if (to->token[0] != '\0' && strcmp(err->msg, "refused") != 0)
        return ctw_fail_prefix(err, "%s: refused", to->url); /* the worker says why */
    return ctw_fail(err, st, "%s: refused: %s", to->url,
                    to->token[0] == '\0'
                        ? "give the worker's token (--token-file FILE, or CTW_TOKEN)"
                        : "the worker does not know this token");
}

void ctw_worker_call_close(struct ctw_worker_call *call)
{
    ctw_reply_close(&call->reply);
    ctw_client_close(call->client);
}

static void write_str(struct ctw_json_writer *w, struct ctw_span s)
{
    char text[CTW_ERR_MSG_MAX * 2 + 1]; /* CTW_IPC_STR_BYTES */
    ctw_span_copy(s, text, sizeof(text));
    ctw_json_write_string(w, text);
}

static void write_hex(struct ctw_json_writer *w, struct ctw_span s)
{
    char text[65] = "";
    for (size_t i = 0; i < s.n && i < 32; i++)
        snprintf(text + 2 * i, 3, "%02x", (unsigned char)s.data[i]);
    ctw_json_write_string(w, text);
}

static void write_map(struct ctw_json_writer *w, const struct ctw_schema *schema, const void *from)
{
    ctw_json_write_open(w, '{');
    ctw_json_write_members(w, schema, from);
    ctw_json_write_close(w, '}');
}

static void write_list(struct ctw_json_writer *w, const struct ctw_schema *map,
                       const struct ctw_list *list)
{
    ctw_json_write_open(w, '[');
    for (size_t i = 0; i < list->n; i++)
        if (map != NULL)
            write_map(w, map, (const char *)list->data + i * map->size);
        else
            write_str(w, ((const struct ctw_span *)list->data)[i]);
    ctw_json_write_close(w, ']');
}

void ctw_json_write_member(struct ctw_json_writer *w, const struct ctw_schema *schema, int i,
                           const void *from)
{
    const struct ctw_field *f = &schema->fields[i];
    const void *at = (const char *)from + f->offset;
    if (!ctw_field_is_there(f, from))
        return;
    ctw_json_write_key(w, f->key);
    switch (f->type) {
    case CTW_FIELD_UINT:
        ctw_json_write_uint(w, *(const uint64_t *)at);
        break;
    case CTW_FIELD_FLOAT:
        ctw_json_write_double(w, *(const double *)at);
        break;
    case CTW_FIELD_BOOL:
        ctw_json_write_bool(w, *(const bool *)at);
        break;
    case CTW_FIELD_STR:
        write_str(w, *(const struct ctw_span *)at);
        break;
    case CTW_FIELD_BIN:
        write_hex(w, *(const struct ctw_span *)at);
        break;
    case CTW_FIELD_MAP:
        write_map(w, f->map, at);
        break;
    case CTW_FIELD_STRS:
    case CTW_FIELD_MAPS:
        write_list(w, f->map, at);
        break;
    }
}

void ctw_json_write_members(struct ctw_json_writer *w, const struct ctw_schema *schema,
                            const void *from)
{
    for (int i = 0; i < schema->n_fields; i++)
        ctw_json_write_member(w, schema, i, from);
}

enum ctw_status ctw_json_print(struct ctw_json_writer *w, struct ctw_err *err)
{
    const char *text;
    size_t bytes;
    enum ctw_status st = ctw_json_writer_text(w, &text, &bytes, err);
    if (st == CTW_OK && puts(text) < 0)
        st = ctw_fail(err, CTW_EIO, "cannot write to standard output");
    ctw_json_writer_fini(w);
    return st;
}
