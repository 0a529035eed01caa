#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "worker/checkpoint/identity.h"
#include "worker/engine/deal.h"
#include "worker/engine/device_list.h"
#include "worker/engine/engine_state.h"

/* Raised by every change that can change a score's last bit (docs/NUMERICS.md). */
#define NUMERICS_VERSION 3

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

/* The GPU backend does not compute all models yet. */
static enum ctw_status check_backend(const struct ctw_engine *e, struct ctw_err *err)
{
    bool experts = false;
    for (int i = 1; i <= e->model->n_decoders; i++)
        experts |= e->model->layers[i].mixture.route.n_experts > 0;
    if (experts && !ctw_backend_has_experts(e->be))
        return ctw_fail(
            err, CTW_EUNSUP,
            "the GPU backend cannot compute mixtures of experts yet: use --backend cpu");
    return CTW_OK;
}

static struct ctw_plan_request plan_request(const struct ctw_engine *e, int64_t longest,
                                            int64_t total)
{
    uint64_t limit = e->share > 0 && e->share < e->memory_limit ? e->share : e->memory_limit;
    return (struct ctw_plan_request){.model = e->model,
                                     .backend = e->be,
                                     .dtype = e->dtype,
                                     .memory_limit = limit,
                                     .longest = longest,
                                     .total = total,
                                     .chunk_tokens = e->chunk_tokens,
                                     .pass_tokens = e->pass_tokens,
                                     .hide_tokens = e->placing.hide_tokens};
}

/* The plan for `total` tokens in sequences of up to `longest`, within the engine's limits. */
static enum ctw_status make_plan(const struct ctw_engine *e, int64_t longest, int64_t total,
                                 struct ctw_plan *plan, struct ctw_err *err)
{
    const struct ctw_plan_request request = plan_request(e, longest, total);
    return ctw_plan_make(plan, &request, err);
}

/* See struct ctw_engine_info. */
static int64_t find_fit_length(const struct ctw_engine *e)
{
    const struct ctw_plan_request request = plan_request(e, e->max_length, e->max_length);
    bool found_anew = e->limit_is_default && !ctw_backend_traits(e->be)->host_memory;
    return found_anew ? e->max_length : ctw_plan_longest(&request);
}

/* The plan for many windows of min(max_length, 2048) tokens: the usual evaluation. */
static enum ctw_status plan_usual(struct ctw_engine *e, struct ctw_err *err)
{
    int64_t longest = e->max_length < 2048 ? e->max_length : 2048;
    return make_plan(e, longest, INT64_MAX, &e->plan, err);
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

static enum ctw_status choose_place(struct ctw_engine *e, const struct ctw_engine_options *opt,
                                    struct ctw_err *err)
{
    const struct ctw_placing_request r = {.model = e->model,
                                          .be = e->be,
                                          .dtype = e->dtype,
                                          .place = opt->place,
                                          .weights_limit = opt->weights_limit,
                                          .limit_is_default = e->limit_is_default,
                                          .memory_limit = e->memory_limit,
                                          .work = usual_need(e, UINT64_MAX),
                                          .least_work = usual_need(e, 1)};
    return ctw_placing_choose(&e->placing, &r, err);
}

/* On a GPU: most of the memory that the weights leave free; else ctw_plan_default_limit(). */
static enum ctw_status set_default_limit(struct ctw_engine *e, struct ctw_err *err)
{
    if (ctw_backend_traits(e->be)->host_memory) {
        e->memory_limit = ctw_plan_default_limit();
        return CTW_OK;
    }
    uint64_t have = ctw_backend_memory_free(e->be), weights = 0;
    if (e->provider == NULL) /* plan_only: not read yet */
        weights = e->placing.memory;
    e->memory_limit = have > weights ? (have - weights) / 10 * 9 : 0;
    return ctw_backend_sync(e->be, err); /* a failed GPU reports nothing free: return its error */
}

/* Reads all bytes once for the identity, which also brings them into the page cache. Other
 * providers do so in the background. */
static enum ctw_status read_mapped(struct ctw_engine *e, struct ctw_err *err)
{
    struct ctw_model *m = e->model;
    enum ctw_status st = ctw_identity_read(m->identity, m->container, e->n_threads, e->stop, err);
    return st == CTW_OK ? ctw_container_check_untouched(m->container, err) : st;
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
    if (st == CTW_OK)
        st = choose_dtype(&e->dtype, opt->dtype, e->model, err);
    return st == CTW_OK ? set_max_length(e, opt->max_length, err) : st;
}

/* The rest, on one device. Reads the weights last: that may take minutes, and a wrong option must
 * not wait for it. */
static enum ctw_status open_here(struct ctw_engine *e, const struct ctw_engine_options *opt,
                                 struct ctw_err *err)
{
    const struct ctw_backend_options be_opt = {.variant = opt->variant,
                                               .cuda_variant = opt->cuda_variant,
                                               .n_threads = opt->n_threads,
                                               .device = e->device_number};
    struct ctw_backend_info info;
    enum ctw_status st = ctw_devices_borrow(e->devices, &e->device, opt->backend, &be_opt, err);
    if (st != CTW_OK)
        return st;
    e->be = e->device->be;
    ctw_backend_get_info(e->be, &info);
    snprintf(e->numerics, sizeof(e->numerics), "%s/%s/%d", info.numerics,
             ctw_dtype_long_name(e->dtype), NUMERICS_VERSION);
    st = check_backend(e, err);
    if (st == CTW_OK)
        st = choose_place(e, opt, err);
    if (st == CTW_OK && !opt->plan_only)
        st = ctw_placing_open(&e->placing, e->model, e->be, &e->provider, err);
    if (st == CTW_OK && e->limit_is_default)
        st = set_default_limit(e, err);
    if (st == CTW_OK)
        st = plan_usual(e, err);
    if (st == CTW_OK && e->placing.place == CTW_MAPPED && !opt->plan_only)
        st = read_mapped(e, err);
    if (st != CTW_OK)
        return st;
    ctw_placing_describe(&e->placing, e->model, e->plan.pass_tokens);
    e->fit_length = find_fit_length(e);
    return CTW_OK;
}

static void copy_options(struct ctw_engine *e, const struct ctw_engine_options *opt)
{
    e->devices = opt->devices != NULL ? opt->devices : &e->own;
    e->device_number = opt->device;
    e->n_threads = opt->n_threads;
    e->stop = opt->stop;
    e->chunk_tokens = opt->chunk_tokens;
    e->pass_tokens = opt->pass_tokens;
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
    enum ctw_status st = open_here(p, opt, err);
    if (st == CTW_OK && strcmp(p->numerics, e->numerics) != 0)
        st =
            ctw_fail(err, CTW_EINVAL,
                     "its numerics id is %s, that of device %d is %s: devices of different kinds "
                     "do not compute the same bits: give --devices of one kind, and start a worker "
                     "for each kind",
                     p->numerics, e->device_number, e->numerics);
    return st == CTW_OK ? st : ctw_fail_prefix(err, "device %d", number);
}

/* e is open on the first device. */
static enum ctw_status open_peers(struct ctw_engine *e, const struct ctw_engine_options *opt,
                                  struct ctw_device_list *list, struct ctw_err *err)
{
    enum ctw_status st = CTW_OK;
    if (list->all)
        st = ctw_backend_count(e->be, &list->n, err);
    if (st == CTW_OK && list->n > CTW_MAX_DEVICES)
        list->n = CTW_MAX_DEVICES;
    for (int i = 0; list->all && i < list->n; i++)
        list->number[i] = i;
    if (st == CTW_OK && list->n > 1 && ctw_backend_traits(e->be)->host_memory)
        return ctw_fail(err, CTW_EINVAL,
                        "--devices: the CPU is one device, and uses all of its threads: leave the "
                        "option out, or choose GPUs with --backend cuda");
    for (int i = 1; st == CTW_OK && i < list->n; i++)
        st = open_peer(e, opt, list->number[i], err);
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
        st = ctw_device_list_parse(&list, opt->device_list, err);
    if (list.all || list.n > 0)
        e->device_number = list.number[0];
    if (st == CTW_OK)
        st = open_here(e, opt, err);
    if (st == CTW_OK)
        st = open_peers(e, opt, &list, err);
    if (st != CTW_OK) {
        ctw_engine_close(e);
        return st;
    }
    name_activations(e);
    limit_vocabulary(e, opt->vocab);
    *out = e;
    return CTW_OK;
}

static void close_buffers(struct ctw_engine *e)
{
    if (e->forward != NULL)
        e->device->n_holders--;
    ctw_forward_close(e->forward);
    e->forward = NULL;
    if (e->device->n_holders == 0)
        ctw_backend_trim(e->be);
}

void ctw_engine_trim_here(struct ctw_engine *e)
{
    if (e->device != NULL)
        close_buffers(e);
    e->share = 0;
}

void ctw_engine_trim(struct ctw_engine *e)
{
    for (int i = 0; i < e->n_peers; i++)
        ctw_engine_trim_here(e->peer[i]);
    ctw_engine_trim_here(e);
}

void ctw_engine_close(struct ctw_engine *e)
{
    if (e == NULL)
        return;
    for (int i = 0; i < e->n_peers; i++)
        ctw_engine_close(e->peer[i]);
    e->n_peers = 0;
    ctw_placing_free(&e->placing);
    ctw_provider_close(e->provider); /* first: freeing waits for uploads in flight */
    ctw_engine_trim(e);
    ctw_devices_return(e->devices, e->device);
    if (!e->is_peer) {
        ctw_model_close(e->model);
        pthread_mutex_destroy(e->files);
        ctw_free(e->files);
    }
    ctw_free(e);
}

void ctw_engine_get_info(const struct ctw_engine *e, struct ctw_engine_info *out)
{
    *out = (struct ctw_engine_info){
        .dtype = e->dtype,
        .max_length = e->max_length,
        .fit_length = e->fit_length,
        .vocab = e->model->vocab,
        .chunk_tokens = e->plan.chunk_tokens,
        .pass_tokens = e->plan.pass_tokens,
        .n_devices = e->n_peers + 1,
        .call_tokens = ctw_deal_tokens(e),
        .memory_planned = e->plan.total,
        .memory_limit = e->memory_limit,
        .place = ctw_place_name(e->placing.place),
        .weights_bytes = e->placing.weights,
        .weights_memory = e->placing.memory,
        .weights_streamed = e->placing.streamed,
        .place_note = e->placing.note,
        .numerics = e->numerics,
        .model = e->model,
    };
    ctw_backend_get_info(e->be, &out->backend);
}

const char *ctw_engine_identity(const struct ctw_engine *e)
{
    return ctw_identity_text(e->model->identity);
}

const char *ctw_engine_outline(const struct ctw_engine *e)
{
    return ctw_identity_outline(e->model->identity);
}

enum ctw_status ctw_engine_wait_identity(struct ctw_engine *e, struct ctw_err *err)
{
    const struct ctw_layer_data *data;
    enum ctw_status st = CTW_OK;
    for (int l = 0; st == CTW_OK && l < e->model->n_layers; l++) {
        st = ctw_provider_acquire(e->provider, l, &data, err);
        if (st == CTW_OK)
            ctw_provider_release(e->provider, l);
    }
    assert(st != CTW_OK || ctw_engine_identity(e)[0] != '\0');
    return st;
}

void ctw_engine_describe(const struct ctw_engine *e, char *buf, size_t cap)
{
    ctw_backend_describe(e->be, buf, cap);
}

/* ---- buffers ------------------------------------------------------------------------------ */

/* Buffers that were too small once are likely to be slightly too small again. So this plans for
 * twice the need, unless that makes passes or chunks smaller. */
static void plan_ahead(const struct ctw_engine *e, int64_t longest, int64_t total,
                       struct ctw_plan *plan)
{
    struct ctw_plan roomy;
    int64_t twice = longest < e->max_length / 2 ? 2 * longest : e->max_length;
    if (make_plan(e, twice, 2 * total, &roomy, NULL) == CTW_OK &&
        roomy.chunk_tokens >= plan->chunk_tokens && roomy.pass_tokens >= plan->pass_tokens)
        *plan = roomy;
}

static enum ctw_status open_buffers(struct ctw_engine *e, const struct ctw_plan *plan,
                                    struct ctw_err *err)
{
    enum ctw_status st = ctw_forward_open(&e->forward, e->model, e->be, e->dtype, plan, err);
    if (st == CTW_OK)
        e->device->n_holders++;
    return st;
}

enum ctw_status ctw_engine_measure_limit(struct ctw_engine *e, struct ctw_err *err)
{
    if (e->limit_is_default && !ctw_backend_traits(e->be)->host_memory)
        return set_default_limit(e, err);
    return CTW_OK;
}

enum ctw_status ctw_engine_prepare(struct ctw_engine *e, int64_t longest, int64_t total,
                                   struct ctw_err *err)
{
    struct ctw_plan plan;
    enum ctw_status st = CTW_OK;
    /* Meanwhile other engines may have allocated or freed memory on this GPU. */
    if (e->forward == NULL)
        st = ctw_engine_measure_limit(e, err);
    if (st == CTW_OK)
        st = make_plan(e, longest, total, &plan, err);
    if (st != CTW_OK)
        return st;
    if (e->forward != NULL) {
        const struct ctw_plan *have = &e->forward->plan;
        if (have->chunk_tokens >= plan.chunk_tokens && have->pass_tokens >= plan.pass_tokens &&
            have->kv_tokens >= longest + have->chunk_tokens && have->longest >= longest)
            return CTW_OK;
        close_buffers(e);
        struct ctw_plan roomy = plan;
        plan_ahead(e, longest, total, &roomy);
        if (open_buffers(e, &roomy, NULL) == CTW_OK)
            return CTW_OK;
        close_buffers(e); /* fall back to exactly what is needed */
    }
    st = open_buffers(e, &plan, err);
    if (st != CTW_OK)
        close_buffers(e); /* so that reserved memory does not count twice in the next plan */
    return st;
}
