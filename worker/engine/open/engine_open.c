/* Opens engines: the model, its devices, where the weights are, and the usual plan. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/text.h"
#include "worker/checkpoint/identity.h"
#include "worker/engine/engine_state.h"
#include "worker/engine/open/activity.h"
#include "worker/engine/open/device_list.h"
#include "worker/weights/shards.h"

/* Raised by every change that can change a score's last bit (docs/NUMERICS.md). */
#define NUMERICS_VERSION 6

/* Opening refuses a longer maximum; RoPE tables and int32 positions rely on this limit. */
enum { MAX_LENGTH = 1 << 24 };

static enum ctw_status choose_dtype(enum ctw_dtype *out, const char *name,
                                    const struct ctw_model *model, struct ctw_err *err)
{
    static const struct {
        const char *name;
        enum ctw_dtype dtype;
    } names[] = {{"bfloat16", CTW_BF16}, {"float16", CTW_F16}, {"float32", CTW_F32}};
    if (name == NULL || strcmp(name, "auto") == 0) {
        *out = model->dtype;
        return CTW_OK;
    }
    for (size_t i = 0; i < CTW_COUNT(names); i++) {
        if (strcmp(name, names[i].name) == 0) {
            *out = names[i].dtype;
            return CTW_OK;
        }
    }
    return ctw_fail(err, CTW_EINVAL, "--dtype %s: expected auto, bfloat16, float16 or float32",
                    name);
}

static struct ctw_plan_request plan_request(const struct ctw_engine *e, const struct ctw_need *need)
{
    uint64_t limit = e->share > 0 && e->share < e->memory_limit ? e->share : e->memory_limit;
    return (struct ctw_plan_request){.model = e->model,
                                     .backend = e->be,
                                     .dtype = e->dtype,
                                     .memory_limit = limit,
                                     .limit_is_free = e->limit_is_free,
                                     .longest = need->longest,
                                     .total = need->total,
                                     .shares = need->shares,
                                     .trunk = need->trunk,
                                     .follows = need->follows,
                                     .chunk_tokens = e->chunk_tokens,
                                     .pass_tokens = e->pass_tokens,
                                     .hide_tokens = e->placing.hide_tokens};
}

enum ctw_status ctw_engine_make_plan(const struct ctw_engine *e, const struct ctw_need *need,
                                     struct ctw_plan *plan, struct ctw_err *err)
{
    const struct ctw_plan_request request = plan_request(e, need);
    return ctw_plan_make(plan, &request, err);
}

/* See struct ctw_engine_info. */
static int64_t find_fit_length(const struct ctw_engine *e)
{
    const struct ctw_need need = {.longest = e->max_length, .total = e->max_length};
    const struct ctw_plan_request request = plan_request(e, &need);
    bool found_anew = e->limit_is_default && !ctw_backend_traits(e->be)->host_memory;
    return found_anew ? e->max_length : ctw_plan_longest(&request);
}

/* The plan for many windows of min(max_length, 2048) tokens: the usual evaluation. */
static enum ctw_status plan_usual(struct ctw_engine *e, struct ctw_err *err)
{
    const struct ctw_need need = {.longest = e->max_length < 2048 ? e->max_length : 2048,
                                  .total = INT64_MAX};
    return ctw_engine_make_plan(e, &need, &e->plan, err);
}

/* The memory beyond the weights that the usual plan takes if the limit is `limit`, or at least. */
static uint64_t usual_need(struct ctw_engine *e, uint64_t limit)
{
    uint64_t have = e->memory_limit;
    e->memory_limit = limit;
    enum ctw_status st = plan_usual(e, NULL);
    (void)st; /* if it does not fit, e->plan is the smallest */
    e->memory_limit = have;
    return e->plan.total;
}

/* If one limit covers weights and passes, the weights get the memory that passes do not need. */
static enum ctw_status weights_limit(const struct ctw_engine *e,
                                     const struct ctw_engine_options *opt, uint64_t room,
                                     uint64_t *out, struct ctw_err *err)
{
    char all[32], passes[32];
    *out = opt->weights_limit;
    if (e->device_limit == 0 || e->limit_is_default)
        return CTW_OK;
    if (room <= e->memory_limit)
        return ctw_fail(err, CTW_ENOMEM,
                        "--device-memory-limit leaves %s, and --memory-limit takes %s of it, so "
                        "that nothing is left for weights: lower --memory-limit, or leave it out",
                        ctw_format_bytes(all, sizeof(all), (double)room),
                        ctw_format_bytes(passes, sizeof(passes), (double)e->memory_limit));
    uint64_t rest = room - e->memory_limit;
    *out = *out == 0 || rest < *out ? rest : *out;
    return CTW_OK;
}

static enum ctw_status choose_place(struct ctw_engine *e, const struct ctw_engine_options *opt,
                                    int n_devices, int n_readers, struct ctw_err *err)
{
    struct ctw_backend *devices[CTW_MAX_DEVICES] = {e->be};
    uint64_t least = UINT64_MAX;
    for (int i = 0; i < e->n_peers; i++) {
        uint64_t room = ctw_engine_room(e->peer[i]);
        devices[1 + i] = e->peer[i]->be;
        least = room < least ? room : least;
    }
    struct ctw_placing_request r = {.model = e->model,
                                    .be = e->be,
                                    .dtype = e->dtype,
                                    .machine = e->machine,
                                    .have = ctw_engine_room(e),
                                    .is_limited = e->device_limit > 0,
                                    .n_devices = n_devices,
                                    .devices = devices,
                                    .others_have = least,
                                    .n_readers = n_readers,
                                    .place = opt->place,
                                    .host_limit = opt->host_limit,
                                    .limit_is_default = e->limit_is_default,
                                    .memory_limit = e->memory_limit,
                                    .work = usual_need(e, UINT64_MAX),
                                    .least_work = usual_need(e, 1)};
    enum ctw_status st = weights_limit(e, opt, r.have, &r.weights_limit, err);
    return st == CTW_OK ? ctw_placing_choose(&e->placing, &r, err) : st;
}

/* Reads all bytes once for the identity, which also brings them into the page cache. Other
 * providers do so in the background. */
static enum ctw_status read_mapped(struct ctw_engine *e, struct ctw_err *err)
{
    struct ctw_model *m = e->model;
    bool settled = ctw_container_settle(m->container, (int64_t)time(NULL));
    enum ctw_status st = ctw_identity_read(m->identity, m->container, e->n_threads, e->stop, err);
    if (st == CTW_OK)
        st = ctw_container_check_untouched(m->container, err);
    if (st == CTW_OK)
        ctw_container_accept(m->container, settled);
    return st;
}

static enum ctw_status set_max_length(struct ctw_engine *e, int64_t wanted, struct ctw_err *err)
{
    const struct ctw_model *m = e->model;
    e->max_length = wanted != 0 ? wanted : m->max_length < MAX_LENGTH ? m->max_length : MAX_LENGTH;
    if (e->max_length < 1 || e->max_length > MAX_LENGTH)
        return ctw_fail(err, CTW_EINVAL, "--max-length %lld is not in 1..%d",
                        (long long)e->max_length, MAX_LENGTH);
    if (m->length_limit != 0 && e->max_length > m->length_limit)
        return ctw_fail(err, CTW_EUNSUP,
                        "--max-length %lld is more than max_position_embeddings = %lld; the "
                        "model's %s is supported only up to that length: lower --max-length",
                        (long long)e->max_length, (long long)m->length_limit, m->limited_by);
    if (m->own_length != 0 && e->max_length > m->own_length)
        ctw_warn("--max-length %lld is more than the %lld tokens that config.json makes the "
                 "model's positions for: scores of longer inputs say little about the model",
                 (long long)e->max_length, (long long)m->own_length);
    return CTW_OK;
}

/* The file's own quantisation of activations is other arithmetic, so another id. */
static void name_activations(struct ctw_engine *e)
{
    size_t n = strlen(e->numerics);
    if (e->model->quantises_activations)
        snprintf(e->numerics + n, sizeof(e->numerics) - n, "/activations-checkpoint");
}

struct ctw_model_options ctw_engine_model_options(const struct ctw_engine_options *opt)
{
    return (struct ctw_model_options){.config_name = opt->config_name,
                                      .quantises_activations = opt->quantises_activations};
}

/* Rows of the head behind the tokenizer's last token are no tokens. Other bits, so another id. */
void ctw_engine_numerics(const struct ctw_engine *e, int64_t vocab, char out[CTW_NUMERICS_MAX])
{
    bool limited = vocab > 0 && vocab < e->model->vocab;
    if (limited)
        snprintf(out, CTW_NUMERICS_MAX, "%.*s/vocabulary-%lld", (int)e->n_numerics, e->numerics,
                 (long long)vocab);
    else
        snprintf(out, CTW_NUMERICS_MAX, "%s", e->numerics);
}

static void limit_vocabulary(struct ctw_engine *e, int64_t wanted)
{
    char numerics[CTW_NUMERICS_MAX];
    e->n_numerics = strlen(e->numerics);
    ctw_engine_numerics(e, wanted, numerics);
    memcpy(e->numerics, numerics, sizeof(numerics));
    if (wanted > 0 && wanted < e->model->vocab)
        e->model->vocab = wanted;
}

static enum ctw_status open_model(struct ctw_engine *e, const struct ctw_engine_options *opt,
                                  struct ctw_err *err)
{
    const struct ctw_model_options model_opt = ctw_engine_model_options(opt);
    enum ctw_status st = CTW_OK;
    e->model = opt->model;
    if (e->model == NULL)
        st = ctw_model_open(&e->model, opt->model_dir, &model_opt, err);
    if (st == CTW_OK && !opt->plan_only)
        st = ctw_container_check_weights(e->model->container, err);
    if (st == CTW_OK)
        st = choose_dtype(&e->dtype, opt->dtype, e->model, err);
    return st == CTW_OK ? set_max_length(e, opt->max_length, err) : st;
}

static enum ctw_status open_device(struct ctw_engine *e, const struct ctw_engine_options *opt,
                                   struct ctw_err *err)
{
    const struct ctw_backend_options be_opt = {.variant = opt->variant,
                                               .cuda_variant = opt->cuda_variant,
                                               .n_threads = opt->n_threads,
                                               .device = e->device_number};
    struct ctw_backend_info info;
    enum ctw_status st =
        e->machine->n_devices > 0
            ? ctw_devices_plan(e->devices, &e->device, e->machine, err)
            : ctw_devices_borrow(e->devices, &e->device, opt->backend, &be_opt, err);
    if (st != CTW_OK)
        return st;
    e->be = e->device->be;
    ctw_activity_opening(e);
    ctw_engine_limit_device(e, &opt->device_limit);
    ctw_backend_get_info(e->be, &info);
    snprintf(e->numerics, sizeof(e->numerics), "%s/%s/%d", info.numerics,
             ctw_dtype_long_name(e->dtype), NUMERICS_VERSION);
    return CTW_OK;
}

/* Where the weights are is chosen. Reads them last: that may take minutes, and a wrong option must
 * not wait for it. */
static enum ctw_status open_weights(struct ctw_engine *e, const struct ctw_engine_options *opt,
                                    struct ctw_shards *shards, int n_devices, struct ctw_err *err)
{
    enum ctw_status st = CTW_OK;
    bool on_host = ctw_backend_traits(e->be)->host_memory;
    if (on_host) {
        ctw_engine_limit_host(e);
        st = plan_usual(e, err); /* before weights take memory that is not there */
    }
    if (st == CTW_OK && !opt->plan_only)
        st = ctw_placing_open(&e->placing, e->model, e->be, shards, &e->provider, err);
    if (e->provider != NULL)
        ctw_activity_holds_weights(e);
    if (st == CTW_OK && !on_host && e->limit_is_default)
        st = ctw_engine_set_default_limit(e, err);
    if (st == CTW_OK && !on_host)
        st = plan_usual(e, err);
    if (st == CTW_ENOMEM && e->device_limit > 0)
        st = ctw_fail_prefix(err, "--device-memory-limit leaves too little (raise it)");
    if (st == CTW_OK && e->placing.place == CTW_MAPPED && !opt->plan_only)
        st = read_mapped(e, err);
    if (st != CTW_OK)
        return st;
    ctw_placing_describe(&e->placing, e->model, &e->plan, n_devices);
    e->fit_length = find_fit_length(e);
    return CTW_OK;
}

static const struct ctw_machine this_machine;

static void copy_options(struct ctw_engine *e, const struct ctw_engine_options *opt)
{
    e->devices = opt->devices != NULL ? opt->devices : &e->own;
    e->name = opt->name;
    e->device_number = opt->device;
    e->n_threads = opt->n_threads;
    e->machine = opt->machine != NULL ? opt->machine : &this_machine;
    e->stop = opt->stop;
    e->chunk_tokens = opt->chunk_tokens;
    e->pass_tokens = opt->pass_tokens;
    e->no_share = opt->no_share;
    e->limit_is_default = opt->memory_limit == 0;
    e->memory_limit = opt->memory_limit;
}

/* The same model on one more device, which must be of the same kind. */
static enum ctw_status open_peer(struct ctw_engine *e, const struct ctw_engine_options *opt,
                                 int number, struct ctw_err *err)
{
    struct ctw_engine *p = ctw_calloc(1, sizeof(*p));
    if (p == NULL)
        return ctw_fail(err, CTW_ENOMEM, "out of memory");
    e->peer[e->n_peers++] = p; /* from now on, closing e closes it */
    copy_options(p, opt);
    p->devices = e->devices;
    p->device_number = number;
    p->is_peer = true;
    p->files = e->files;
    p->model = e->model;
    p->dtype = e->dtype;
    p->max_length = e->max_length;
    enum ctw_status st = open_device(p, opt, err);
    if (st == CTW_OK && strcmp(p->numerics, e->numerics) != 0)
        st =
            ctw_fail(err, CTW_EINVAL,
                     "its numerics id is %s, that of device %d is %s: devices of different kinds "
                     "do not compute the same bits: give --devices of one kind, and start a worker "
                     "for each kind",
                     p->numerics, e->device_number, e->numerics);
    return st == CTW_OK ? st : ctw_fail_prefix(err, "device %d", number);
}

/* The devices behind the first, which is open. */
static enum ctw_status open_peers(struct ctw_engine *e, const struct ctw_engine_options *opt,
                                  struct ctw_device_list *list, struct ctw_err *err)
{
    enum ctw_status st = CTW_OK;
    bool planned = e->machine->n_devices > 0, named = list->n > 0 || e->device_number > 0;
    if (planned)
        list->n = e->machine->n_devices;
    else if (list->all)
        st = ctw_backend_count(e->be, &list->n, err);
    if (st == CTW_OK && list->n > CTW_MAX_DEVICES)
        list->n = CTW_MAX_DEVICES;
    for (int i = 0; (planned || list->all) && i < list->n; i++)
        list->number[i] = i;
    if (st == CTW_OK && (list->n > 1 || named) && ctw_backend_traits(e->be)->host_memory)
        return ctw_fail(err, CTW_EINVAL,
                        "%s: the CPU is one device, and uses all of its threads: leave the option "
                        "out, or choose GPUs with --backend cuda",
                        list->n > 0 ? "--devices" : "--device");
    for (int i = 1; st == CTW_OK && i < list->n; i++)
        st = open_peer(e, opt, list->number[i], err);
    return st;
}

static enum ctw_status open_shards(struct ctw_engine *e, struct ctw_err *err)
{
    struct ctw_backend *be[CTW_MAX_DEVICES] = {e->be};
    for (int i = 0; i < e->n_peers; i++)
        be[1 + i] = e->peer[i]->be;
    return ctw_shards_open(&e->shards, e->model, &e->placing.layers, be, 1 + e->n_peers, err);
}

/* On all devices, which are open. The first one's choice counts if they share the weights. */
static enum ctw_status open_all_weights(struct ctw_engine *e, const struct ctw_engine_options *opt,
                                        struct ctw_err *err)
{
    enum ctw_status st = choose_place(e, opt, 1 + e->n_peers, 1 + e->n_peers, err);
    bool shared = ctw_placing_is_shared(&e->placing);
    for (int i = 0; st == CTW_OK && i < e->n_peers; i++)
        st = shared ? ctw_placing_copy(&e->peer[i]->placing, &e->placing, err)
                    : choose_place(e->peer[i], opt, 1, 1 + e->n_peers, err);
    if (st == CTW_OK && shared && !opt->plan_only)
        st = open_shards(e, err);
    if (st == CTW_OK)
        st = open_weights(e, opt, e->shards, 1 + e->n_peers, err);
    for (int i = 0; st == CTW_OK && i < e->n_peers; i++) {
        st = open_weights(e->peer[i], opt, e->shards, 1 + e->n_peers, err);
        if (st != CTW_OK)
            (void)ctw_fail_prefix(err, "device %d", e->peer[i]->device_number);
    }
    return st;
}

enum ctw_status ctw_engine_open(struct ctw_engine **out, const struct ctw_engine_options *opt,
                                struct ctw_err *err)
{
    struct ctw_device_list list = {0};
    struct ctw_engine *e = ctw_calloc(1, sizeof(*e));
    pthread_mutex_t *files = ctw_calloc(1, sizeof(*files));
    if (e == NULL || files == NULL) {
        ctw_free(e);
        ctw_free(files);
        ctw_model_close(opt->model);
        return ctw_fail(err, CTW_ENOMEM, "out of memory");
    }
    e->files = files;
    pthread_mutex_init(e->files, NULL);
    copy_options(e, opt);
    enum ctw_status st = open_model(e, opt, err);
    if (st == CTW_OK && opt->device_list != NULL)
        st = ctw_device_list_parse(&list, opt->device_list, opt->backend, err);
    if (list.all || list.n > 0)
        e->device_number = list.number[0];
    if (st == CTW_OK)
        st = open_device(e, opt, err);
    if (st == CTW_OK)
        st = open_peers(e, opt, &list, err);
    if (st == CTW_OK)
        st = open_all_weights(e, opt, err);
    if (st != CTW_OK) {
        ctw_engine_close(e);
        return st;
    }
    name_activations(e);
    limit_vocabulary(e, opt->vocab);
    ctw_activity_opened(e);
    for (int i = 0; i < e->n_peers; i++)
        ctw_activity_opened(e->peer[i]);
    *out = e;
    return CTW_OK;
}
