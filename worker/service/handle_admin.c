#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "worker/service/handlers.h"

/* ---- state ---- */

/* The state by the models, once all models of the command line are loaded. */
static const char *models_state(const struct ctw_service *service, const char **message)
{
    const struct ctw_queue *q = service->queue;
    const struct ctw_model_slot *m = ctw_models_in_state(&q->models, CTW_MODEL_LOADING, false);
    if (ctw_models_in_state(&q->models, CTW_MODEL_READY, false) != NULL)
        return "ready";
    if (m != NULL) {
        *message = m->name; /* not the path, which tcp clients must not see */
        return "loading";
    }
    m = ctw_models_in_state(&q->models, CTW_MODEL_FAILED, false);
    if (m != NULL) {
        *message = m->error.msg;
        return "failed";
    }
    *message =
        service->allow_load != NULL
            ? "no model is loaded: load one below the folder of --allow-load"
            : "no model is loaded, and clients cannot load one without --allow-load: start another "
              "worker";
    return "empty";
}

const char *ctw_service_state(const struct ctw_service *service, const char **message)
{
    const struct ctw_queue *q = service->queue;
    *message = "";
    if (q->life.fatal.status != CTW_OK) {
        *message = q->life.fatal.msg;
        return "failed";
    }
    const struct ctw_model_slot *m = ctw_models_in_state(&q->models, CTW_MODEL_FAILED, true);
    if (m != NULL) {
        *message = m->error.msg;
        return "failed";
    }
    if (q->life.draining)
        return "draining";
    m = ctw_models_in_state(&q->models, CTW_MODEL_LOADING, true);
    if (m != NULL) {
        *message = m->name; /* not the path, as above */
        return "loading";
    }
    return models_state(service, message);
}

/* ---- health ---- */

enum ctw_status ctw_handle_health(struct ctw_handler_call *c, struct ctw_err *err)
{
    struct ctw_queue *q = c->service->queue;
    struct ctw_health_reply *r = &c->reply->body.health;
    const char *message;
    pthread_mutex_lock(&q->lock);
    r->state = ctw_slice_of(ctw_service_state(c->service, &message));
    bool copied = ctw_copy_message(c, message, &r->message);
    r->jobs = (uint64_t)ctw_jobs_unfinished(&q->jobs);
    r->stalled_ms = ctw_running_stalled_ms(&q->running, c->contact.now_ms);
    pthread_mutex_unlock(&q->lock);
    r->boot = (struct ctw_slice){.data = (const char *)c->service->boot, .n = CTW_BOOT_BYTES};
    return copied ? CTW_OK : ctw_fail(err, CTW_ENOMEM, "health: out of memory");
}

/* ---- info; lock held ---- */

/* Joins the lines with ';': a newline is a control character, which a str must not contain. */
static bool copy_products(struct ctw_reply *reply, const struct ctw_model_slot *m,
                          struct ctw_slice *out)
{
    char text[sizeof(m->products)];
    memcpy(text, m->products, sizeof(text));
    for (char *end = strchr(text, '\n'); end != NULL; end = strchr(end, '\n'))
        *end = end[1] == '\0' ? '\0' : ';';
    return ctw_reply_copy(reply, text, out);
}

static bool fill_model(struct ctw_handler_call *c, const struct ctw_model_slot *m,
                       struct ctw_model_map *out)
{
    struct ctw_reply *reply = c->reply;
    out->state = ctw_slice_of(ctw_model_state_name(m->state));
    bool ok = ctw_reply_copy(reply, m->name, &out->name) &&
              ctw_reply_copy(reply, c->peer->local ? m->path : "", &out->path) &&
              ctw_copy_message(c, m->state == CTW_MODEL_FAILED ? m->error.msg : "", &out->message);
    if (m->state != CTW_MODEL_READY || !ok)
        return ok;
    const struct ctw_engine_info *info = &m->info;
    out->has = CTW_MODEL_READY_BITS | CTW_MODEL_MORE_BITS;
    out->threads = (uint64_t)info->backend.n_threads;
    out->max_length = (uint64_t)info->max_length;
    out->fit_length = (uint64_t)info->fit_length;
    out->vocab = (uint64_t)info->vocab;
    out->params = (uint64_t)info->model->n_params;
    out->weight_bits = info->model->weight_bits;
    out->chunk_tokens = (uint64_t)info->chunk_tokens;
    out->pass_tokens = (uint64_t)info->pass_tokens;
    out->memory_planned = info->memory_planned;
    out->memory_limit = info->memory_limit;
    out->weights_bytes = info->weights_bytes;
    out->weights_memory = info->weights_memory;
    out->weights_streamed = info->weights_streamed;
    out->placement = ctw_slice_of(info->place);
    out->dtype = ctw_slice_of(ctw_dtype_long_name(info->dtype));
    out->activations_mode = ctw_slice_of(ctw_activations_mode(info->model));
    return ctw_reply_copy(reply, info->model->architecture, &out->architecture) &&
           ctw_reply_copy(reply, info->model->model_type, &out->model_type) &&
           ctw_reply_copy(reply, ctw_engine_identity(m->engine), &out->identity) &&
           ctw_reply_copy(reply, info->numerics, &out->numerics) &&
           ctw_reply_copy(reply, info->backend.backend, &out->backend) &&
           ctw_reply_copy(reply, info->backend.variant, &out->variant) &&
           ctw_reply_copy(reply, info->backend.device, &out->device) &&
           ctw_reply_copy(reply, info->backend.reason, &out->reason) &&
           copy_products(reply, m, &out->products) &&
           ctw_reply_copy(reply, info->place_note, &out->weights_note) &&
           ctw_reply_copy(reply, info->model->activations, &out->activations);
}

static bool fill_models(struct ctw_handler_call *c, const struct ctw_queue *q)
{
    struct ctw_list *list = &c->reply->body.info.models;
    struct ctw_model_map *maps = ctw_reply_alloc(c->reply, (size_t)q->models.n * sizeof(*maps));
    if (maps == NULL)
        return false;
    *list = (struct ctw_list){.data = maps, .n = (size_t)q->models.n};
    for (int i = 0; i < q->models.n; i++) {
        if (!fill_model(c, q->models.slots[i], &maps[i]))
            return false;
    }
    return true;
}

static bool fill_job(struct ctw_reply *reply, const struct ctw_queue *q, const struct ctw_job *j,
                     struct ctw_job_map *out)
{
    struct ctw_progress_map progress;
    uint8_t *id = ctw_reply_alloc(reply, sizeof(j->id));
    if (id == NULL)
        return false;
    memcpy(id, j->id, sizeof(j->id));
    out->job = (struct ctw_slice){.data = (const char *)id, .n = sizeof(j->id)};
    out->kind = ctw_slice_of(ctw_job_kind_name(j->head.kind));
    out->state = ctw_slice_of(ctw_job_state_name(j->state));
    out->items_done = (uint64_t)j->results.n_done;
    out->items = (uint64_t)j->input.n_items;
    ctw_queue_progress(q, j, &progress);
    out->tokens_done = progress.tokens_done;
    out->tokens = progress.tokens;
    out->seconds_left = progress.seconds_left;
    out->has = CTW_JOB_PROGRESS_BITS;
    return ctw_reply_copy(reply, j->head.model, &out->model);
}

/* An admin sees all jobs, other clients only their own. */
static bool is_seen(const struct ctw_handler_call *c, const struct ctw_job *j)
{
    return !j->removed && (c->contact.admin || ctw_job_is_of(j, &c->contact));
}

static bool fill_jobs(struct ctw_handler_call *c, const struct ctw_queue *q)
{
    struct ctw_reply *reply = c->reply;
    struct ctw_list *list = &reply->body.info.jobs;
    struct ctw_job_map *maps = ctw_reply_alloc(reply, (size_t)q->jobs.n * sizeof(*maps));
    if (maps == NULL)
        return false;
    *list = (struct ctw_list){.data = maps};
    for (const struct ctw_job *j = q->jobs.first; j != NULL; j = j->next) {
        if (is_seen(c, j) && !fill_job(reply, q, j, &maps[list->n++]))
            return false;
    }
    return true;
}

static bool fill_store(struct ctw_handler_call *c)
{
    struct ctw_info_reply *r = &c->reply->body.info;
    struct ctw_store_stats stats;
    if (c->service->store == NULL)
        return true;
    ctw_store_get_stats(c->service->store, &stats);
    r->has |= 1u << CTW_INFO_STORE;
    r->store = (struct ctw_store_map){.entries = stats.entries,
                                      .bytes = stats.bytes,
                                      .limit = stats.limit,
                                      .hits = stats.hits,
                                      .kept = stats.kept,
                                      .lost = stats.lost};
    const char *path = c->peer->local ? ctw_store_dir(c->service->store) : "";
    return ctw_reply_copy(c->reply, path, &r->store.path);
}

enum ctw_status ctw_handle_info(struct ctw_handler_call *c, struct ctw_err *err)
{
    struct ctw_queue *q = c->service->queue;
    struct ctw_info_reply *r = &c->reply->body.info;
    const char *message;
    pthread_mutex_lock(&q->lock);
    r->state = ctw_slice_of(ctw_service_state(c->service, &message));
    bool ok = ctw_copy_message(c, message, &r->message) && fill_models(c, q) && fill_jobs(c, q);
    size_t max_bytes = q->jobs.max_bytes;
    pthread_mutex_unlock(&q->lock);
    r->version = ctw_slice_of(c->service->version);
    r->protocol = CTW_PROTOCOL_VERSION;
    r->boot = (struct ctw_slice){.data = (const char *)c->service->boot, .n = CTW_BOOT_BYTES};
    r->pid = (uint64_t)getpid();
    r->uptime_s = (double)(c->contact.now_ms - c->service->started_ms) / 1000;
    r->insecure = c->service->insecure;
    r->has |= 1u << CTW_INFO_INSECURE;
    r->libraries.nng = ctw_slice_of(ctw_ipc_nng_version());
    r->libraries.msgpack = ctw_slice_of(ctw_ipc_msgpack_version());
    r->limits = (struct ctw_limits_map){.message_bytes = CTW_IPC_MESSAGE_BYTES,
                                        .part_bytes = CTW_IPC_PART_BYTES,
                                        .fetch_bytes = CTW_IPC_FETCH_BYTES,
                                        .jobs = CTW_IPC_JOBS,
                                        .job_items = CTW_IPC_JOB_ITEMS,
                                        .queue_bytes = max_bytes,
                                        .ttl_s = CTW_IPC_TTL_S,
                                        .wait_ms = CTW_IPC_WAIT_MS,
                                        .request_bytes = CTW_IPC_REQUEST_BYTES,
                                        .connections = (uint64_t)c->service->max_connections,
                                        .unanswered = CTW_IPC_UNANSWERED,
                                        .waiting = CTW_IPC_WAITING,
                                        .requests_per_s = CTW_IPC_REQUESTS_PER_S,
                                        .unhandled_bytes = CTW_IPC_UNHANDLED_BYTES};
    ok = ok && fill_store(c);
    return ok ? CTW_OK : ctw_fail(err, CTW_ENOMEM, "info: out of memory");
}

/* ---- models ---- */

/* Is `path` (absolute, without links) the folder `root` or below it? */
static bool is_below(const char *path, const char *root)
{
    size_t n = strlen(root);
    return strncmp(path, root, n) == 0 && (path[n] == '\0' || path[n] == '/' || root[n - 1] == '/');
}

/* `local`: messages may name the folder. */
static enum ctw_status allowed_path(const char *root, struct ctw_slice asked, bool local,
                                    char out[PATH_MAX], struct ctw_err *err)
{
    char path[PATH_MAX], real_root[PATH_MAX];
    if (root == NULL)
        return ctw_fail(err, CTW_EUNSUP,
                        "load: this worker was started without --allow-load DIR: clients cannot "
                        "load models");
    if (!ctw_slice_copy(asked, path, sizeof(path)))
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
    if (!ctw_slice_copy(request->model, asked, sizeof(asked)))
        return ctw_fail(err, CTW_EINVAL, "load: the name is longer than %d bytes",
                        CTW_MODEL_NAME_MAX - 1);
    enum ctw_status st =
        allowed_path(c->service->allow_load, request->path, c->peer->local, path, err);
    if (st == CTW_OK)
        st = ctw_queue_load(c->service->queue, path, asked, NULL, name, &c->retry_ms, err);
    if (st != CTW_OK)
        return st;
    ctw_info("%s loads model %s from %s", ctw_caller_name(c, caller), name, path);
    r->state = ctw_slice_of(ctw_model_state_name(CTW_MODEL_LOADING));
    return ctw_reply_copy(c->reply, name, &r->model)
               ? CTW_OK
               : ctw_fail(err, CTW_ENOMEM, "load: out of memory");
}

enum ctw_status ctw_handle_unload(struct ctw_handler_call *c, struct ctw_err *err)
{
    char name[CTW_MODEL_NAME_MAX], caller[CTW_CALLER_MAX];
    struct ctw_model_reply *r = &c->reply->body.model;
    if (!ctw_slice_copy(c->request->body.unload.model, name, sizeof(name)))
        return ctw_fail(err, CTW_ENOTFOUND, "unload: no model has so long a name");
    enum ctw_status st = ctw_queue_unload(c->service->queue, name, &c->retry_ms, err);
    if (st == CTW_OK)
        ctw_info("%s unloads model %s", ctw_caller_name(c, caller), name);
    r->state = ctw_slice_of(ctw_model_state_name(CTW_MODEL_CLOSING));
    r->model = c->request->body.unload.model;
    return st;
}

/* ---- drain, shutdown ---- */

static enum ctw_status drain(struct ctw_handler_call *c, bool shut_down, struct ctw_err *err)
{
    struct ctw_slice mode = c->request->body.mode.mode;
    bool cancel = ctw_slice_is(mode, "cancel");
    if (!cancel && !ctw_slice_is(mode, "finish"))
        return ctw_fail(err, CTW_EINVAL, "mode is neither finish nor cancel");
    char caller[CTW_CALLER_MAX];
    ctw_info("%s asks to %s: unfinished jobs are %s", ctw_caller_name(c, caller),
             shut_down ? "stop" : "drain", cancel ? "cancelled" : "finished");
    c->reply->body.drain.jobs = (uint64_t)ctw_queue_drain(c->service->queue, cancel, shut_down);
    c->reply->body.drain.state = ctw_slice_of("draining");
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
