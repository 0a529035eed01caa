#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "worker/service/requests/handlers.h"

/* ---- health ---- */

enum ctw_status ctw_handle_health(struct ctw_handler_call *c, struct ctw_err *err)
{
    struct ctw_queue *q = c->service->queue;
    struct ctw_health_reply *r = &c->reply->body.health;
    const char *message;
    pthread_mutex_lock(&q->lock);
    r->state = ctw_span_of(ctw_service_state(c->service, &message));
    bool copied = ctw_copy_message(c, message, &r->message);
    r->jobs = (uint64_t)ctw_jobs_unfinished(&q->jobs);
    r->stalled_ms = ctw_running_stalled_ms(&q->running, c->contact.now_ms);
    pthread_mutex_unlock(&q->lock);
    r->boot = (struct ctw_span){.data = (const char *)c->service->boot, .n = CTW_BOOT_BYTES};
    return copied ? CTW_OK : ctw_fail(err, CTW_ENOMEM, "health: out of memory");
}

/* ---- models ---- */

/* Is `path` (absolute, without links) the folder `root` or below it? */
static bool is_below(const char *path, const char *root)
{
    size_t n = strlen(root);
    return strncmp(path, root, n) == 0 && (path[n] == '\0' || path[n] == '/' || root[n - 1] == '/');
}

/* `local`: messages may name the folder. */
static enum ctw_status allowed_path(const char *root, struct ctw_span asked, bool local,
                                    char out[PATH_MAX], struct ctw_err *err)
{
    char path[PATH_MAX], real_root[PATH_MAX];
    if (root == NULL)
        return ctw_fail(err, CTW_EUNSUP,
                        "load: this worker was started without --allow-load DIR: clients cannot "
                        "load models");
    if (!ctw_span_copy(asked, path, sizeof(path)))
        return ctw_fail(err, CTW_EINVAL, "load: the path is too long");
    if (realpath(root, real_root) == NULL)
        return ctw_fail(err, CTW_EIO, "load: %s: %s", local ? root : "--allow-load",
                        strerror(errno));
    /* One message for every other path: a client learns nothing about files outside the folder. */
    if (path[0] != '/' || realpath(path, out) == NULL || !is_below(out, real_root))
        return ctw_fail(
            err, CTW_EINVAL,
            "load: %s is not the absolute path of a folder below %s, from which this worker may "
            "load (--allow-load)",
            path, local ? root : "the folder");
    return CTW_OK;
}

enum ctw_status ctw_handle_load(struct ctw_handler_call *c, struct ctw_err *err)
{
    const struct ctw_load *request = &c->request->body.load;
    struct ctw_model_reply *r = &c->reply->body.model;
    char path[PATH_MAX], asked[CTW_MODEL_NAME_MAX], name[CTW_MODEL_NAME_MAX],
        caller[CTW_CALLER_MAX];
    if (!ctw_span_copy(request->model, asked, sizeof(asked)))
        return ctw_fail(err, CTW_EINVAL, "load: the name is longer than %d bytes",
                        CTW_MODEL_NAME_MAX - 1);
    enum ctw_status st =
        allowed_path(c->service->allow_load, request->path, c->peer->local, path, err);
    if (st == CTW_OK)
        st = ctw_queue_load(c->service->queue, path, asked, NULL, name, &c->retry_ms, err);
    if (st != CTW_OK)
        return st;
    ctw_info("%s loads model %s from %s", ctw_caller_name(c, caller), name, path);
    r->state = ctw_span_of(ctw_model_state_name(CTW_MODEL_LOADING));
    return ctw_reply_copy(c->reply, name, &r->model)
               ? CTW_OK
               : ctw_fail(err, CTW_ENOMEM, "load: out of memory");
}

enum ctw_status ctw_handle_unload(struct ctw_handler_call *c, struct ctw_err *err)
{
    char name[CTW_MODEL_NAME_MAX], caller[CTW_CALLER_MAX];
    struct ctw_model_reply *r = &c->reply->body.model;
    if (!ctw_span_copy(c->request->body.unload.model, name, sizeof(name)))
        return ctw_fail(err, CTW_ENOTFOUND, "unload: no model has so long a name");
    enum ctw_status st = ctw_queue_unload(c->service->queue, name, &c->retry_ms, err);
    if (st == CTW_OK)
        ctw_info("%s unloads model %s", ctw_caller_name(c, caller), name);
    r->state = ctw_span_of(ctw_model_state_name(CTW_MODEL_CLOSING));
    r->model = c->request->body.unload.model;
    return st;
}

/* ---- drain, shutdown ---- */

static enum ctw_status drain(struct ctw_handler_call *c, bool shut_down, struct ctw_err *err)
{
    struct ctw_span mode = c->request->body.mode.mode;
    bool cancel = ctw_span_is(mode, "cancel");
    if (!cancel && !ctw_span_is(mode, "finish"))
        return ctw_fail(err, CTW_EINVAL, "mode is neither finish nor cancel");
    char caller[CTW_CALLER_MAX];
    ctw_info("%s asks to %s: unfinished jobs are %s", ctw_caller_name(c, caller),
             shut_down ? "stop" : "drain", cancel ? "cancelled" : "finished");
    c->reply->body.drain.jobs = (uint64_t)ctw_queue_drain(c->service->queue, cancel, shut_down);
    c->reply->body.drain.state = ctw_span_of("draining");
    return CTW_OK;
}

enum ctw_status ctw_handle_drain(struct ctw_handler_call *c, struct ctw_err *err)
{
    return drain(c, false, err);
}

enum ctw_status ctw_handle_shutdown(struct ctw_handler_call *c, struct ctw_err *err)
{
    return drain(c, true, err);
}
