/* Answers `info`: the worker, its models, devices and jobs. */
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "worker/engine/open/activity.h"
#include "worker/service/requests/handlers.h"

/* ---- info; lock held ---- */

/* Joins the lines with ';': a newline is a control character, which a str must not contain. */
static bool copy_products(struct ctw_reply *reply, const struct ctw_model_slot *m,
                          struct ctw_span *out)
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
    out->state = ctw_span_of(ctw_model_state_name(m->state));
    bool ok = ctw_reply_copy(reply, m->name, &out->name) &&
              ctw_reply_copy(reply, c->peer->local ? m->path : "", &out->path) &&
              ctw_copy_message(c, m->state == CTW_MODEL_FAILED ? m->error.msg : "", &out->message);
    if (m->state != CTW_MODEL_READY || !ok)
        return ok;
    const struct ctw_engine_info *info = &m->info;
    out->has.ready = out->has.more = out->has.weights = true;
    out->threads = (uint64_t)info->backend.n_threads;
    out->max_length = (uint64_t)info->max_length;
    out->fit_length = (uint64_t)info->fit_length;
    out->own_length = (uint64_t)info->model->own_length;
    out->has.own_length = info->model->own_length > 0;
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
    out->placement = ctw_span_of(info->place);
    out->weights = (struct ctw_weights_map){.has = {.files = true},
                                            .kept = info->weights_bytes - info->weights_gathered -
                                                    info->weights_hosted - info->weights_streamed,
                                            .gathered = info->weights_gathered,
                                            .hosted = info->weights_hosted,
                                            .streamed = info->weights_streamed};
    out->dtype = ctw_span_of(ctw_dtype_long_name(info->dtype));
    out->activations_mode = ctw_span_of(ctw_activations_mode(info->model));
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
           ctw_reply_copy(reply, info->model->files_stamp, &out->weights.files) &&
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

/* Only local clients see the machine's paths. */
static bool fill_device(struct ctw_handler_call *c, const struct ctw_device_report *d,
                        struct ctw_device_map *out)
{
    struct ctw_reply *reply = c->reply;
    out->device = (uint64_t)d->number;
    out->threads = (uint64_t)d->info.n_threads;
    out->memory_total = d->memory_total;
    out->memory_free = d->memory_free;
    out->memory_used = d->memory_used;
    out->weights = d->weights;
    out->passes_planned = d->passes_planned;
    out->state = ctw_span_of(d->state);
    out->layer = (uint64_t)d->layer;
    out->layers = (uint64_t)d->n_layers;
    out->weights_read = d->weights_read;
    out->tokens_done = (uint64_t)d->tokens_done;
    out->tokens_per_s = d->tokens_per_s;
    return ctw_reply_copy(reply, d->info.backend, &out->backend) &&
           ctw_reply_copy(reply, d->info.device, &out->name) &&
           ctw_reply_copy(reply, d->info.pci, &out->pci) &&
           ctw_reply_copy(reply, d->info.uuid, &out->uuid) &&
           ctw_reply_copy(reply, d->model, &out->model) &&
           ctw_copy_message(c, d->message, &out->message);
}

static bool fill_devices(struct ctw_handler_call *c)
{
    struct ctw_info_reply *r = &c->reply->body.info;
    struct ctw_device_report *d = ctw_calloc(CTW_MAX_DEVICES, sizeof(*d));
    struct ctw_device_map *maps = ctw_reply_alloc(c->reply, CTW_MAX_DEVICES * sizeof(*maps));
    bool ok = d != NULL && maps != NULL;
    int n = ok ? ctw_devices_report(c->service->devices, d, CTW_MAX_DEVICES) : 0;
    for (int i = 0; ok && i < n; i++)
        ok = fill_device(c, &d[i], &maps[i]);
    ctw_free(d);
    r->has.devices = true;
    r->devices = (struct ctw_list){.data = maps, .n = (size_t)n};
    return ok;
}

static bool fill_job(struct ctw_reply *reply, const struct ctw_queue *q, const struct ctw_job *j,
                     struct ctw_job_map *out)
{
    struct ctw_progress_map progress;
    uint8_t *id = ctw_reply_alloc(reply, sizeof(j->id));
    if (id == NULL)
        return false;
    memcpy(id, j->id, sizeof(j->id));
    out->job = (struct ctw_span){.data = (const char *)id, .n = sizeof(j->id)};
    out->kind = ctw_span_of(ctw_job_kind_name(j->head.kind));
    out->state = ctw_span_of(ctw_job_state_name(j->state));
    out->items_done = (uint64_t)j->results.n_done;
    out->items = (uint64_t)j->input.n_items;
    ctw_queue_progress(q, j, &progress);
    out->tokens_done = progress.tokens_done;
    out->tokens = progress.tokens;
    out->tokens_computed = progress.tokens_computed;
    out->seconds_left = progress.seconds_left;
    out->has.progress = true;
    if (j->contact.owner[0] != '\0')
        out->has.owner = true;
    return ctw_reply_copy(reply, j->head.model, &out->model) &&
           ctw_reply_copy(reply, j->contact.owner, &out->owner);
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
    r->has.store = true;
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
    r->state = ctw_span_of(ctw_service_state(c->service, &message));
    bool ok = ctw_copy_message(c, message, &r->message) && fill_models(c, q) && fill_devices(c) &&
              fill_jobs(c, q);
    size_t max_bytes = q->jobs.max_bytes;
    pthread_mutex_unlock(&q->lock);
    r->version = ctw_span_of(c->service->version);
    r->protocol = CTW_PROTOCOL_VERSION;
    r->boot = (struct ctw_span){.data = (const char *)c->service->boot, .n = CTW_BOOT_BYTES};
    r->pid = (uint64_t)getpid();
    r->uptime_s = (double)(c->contact.now_ms - c->service->started_ms) / 1000;
    r->insecure = c->service->insecure;
    r->has.insecure = true;
    r->libraries.nng = ctw_span_of(ctw_ipc_nng_version());
    r->libraries.msgpack = ctw_span_of(ctw_ipc_msgpack_version());
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
