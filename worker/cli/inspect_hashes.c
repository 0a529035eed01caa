#include "worker/cli/inspect_hashes.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/sha256.h"
#include "base/threads.h"
#include "worker/weights/provider.h"

enum {
    HOST_BLOCK = 1 << 20, /* bytes decoded at a time: fits a thread's cache, or fills a GPU */
    DEVICE_BLOCK = 64 << 20,
    SHOW_FROM = 100000000 /* elements: some seconds */
};

struct job {
    const struct ctw_matrix *matrix;
    int layer, index; /* index: of the matrix within its layer */
    int64_t elements;
    char hex[65];
    enum ctw_status st;
    struct ctw_err err;
};

struct hashing {
    const struct ctw_model *model;
    struct ctw_backend *be;        /* NULL: the definition decodes from the mapped files */
    struct ctw_provider *provider; /* weights in be's memory */
    void *device;                  /* a block in be's memory */
    struct job *jobs;              /* in the model's order */
    struct job *
        *in_turn; /* order of work: largest first, which keeps all threads busy to the end */
    void **block; /* [n_threads], of block_bytes each: at least one row */
    size_t block_bytes;
    int n_threads; /* 1 with a device */
    int64_t n_jobs;
    int64_t n_elements;
    atomic_llong n_elements_done;
    atomic_bool failed;
};

/* Decodes rows row0 .. row0+n-1 into the thread's block. */
static enum ctw_status decode(struct hashing *h, const struct ctw_weight *w,
                              const struct ctw_weight_data *data, int64_t row0, int64_t n,
                              int thread, struct ctw_err *err)
{
    enum ctw_dtype dtype = h->model->dtype;
    if (h->be == NULL) {
        ctw_weight_decode(w, data, row0, n, dtype, h->block[thread], w->k);
        return CTW_OK;
    }
    const struct ctw_shard shard = ctw_shard_of(w, data);
    const struct ctw_op_decode op = {
        .shard = &shard, .row0 = row0, .n_rows = n, .dtype = dtype, .dst = h->device};
    enum ctw_status st = ctw_decode(h->be, &op, err);
    if (st == CTW_OK)
        st = ctw_device_download(h->be, h->block[thread], h->device,
                                 (size_t)n * (size_t)w->k * ctw_dtype_bytes(dtype), err);
    return st;
}

/* Finds the stored parts. Parts on a device are valid until the layer is released. */
static enum ctw_status find_parts(struct hashing *h, struct job *job, struct ctw_weight_data *data)
{
    const struct ctw_layer_data *layer;
    if (h->be != NULL) {
        enum ctw_status st = ctw_provider_acquire(h->provider, job->layer, &layer, &job->err);
        if (st == CTW_OK)
            *data = *ctw_data_matrix_of(layer, job->index);
        return st;
    }
    for (int p = 0; p < CTW_N_PARTS; p++)
        data->part[p] =
            job->matrix->part[p] != NULL
                ? (const char *)ctw_container_data(h->model->container, job->matrix->part[p]) +
                      ctw_part_offset(job->matrix, p)
                : NULL;
    return CTW_OK;
}

/* Is the matrix stored, and listed, as [k, n]? */
static bool is_transposed(const struct job *job)
{
    const struct ctw_weight *w = &job->matrix->weight;
    return w->format->id == CTW_FORMAT_dense_transposed && w->rows_of_head == w->n;
}

/* Hashes all n rows as columns, in the layout of the file. */
static enum ctw_status hash_columns(struct hashing *h, struct job *job,
                                    const struct ctw_weight_data *data, int64_t block,
                                    struct ctw_sha256 *sha, int thread)
{
    const struct ctw_weight *w = &job->matrix->weight;
    size_t es = ctw_dtype_bytes(h->model->dtype), column_bytes = (size_t)w->n * es;
    enum ctw_status st = CTW_OK;
    char *all = ctw_calloc((size_t)w->k, column_bytes);
    if (all == NULL)
        return ctw_fail(&job->err, CTW_ENOMEM, "out of memory for decoded weights");
    for (int64_t row = 0; st == CTW_OK && row < w->n; row += block) {
        int64_t n = w->n - row < block ? w->n - row : block;
        st = decode(h, w, data, row, n, thread, &job->err);
        const char *decoded = h->block[thread];
        for (int64_t r = 0; r < n; r++)
            for (int64_t i = 0; i < w->k; i++)
                memcpy(all + (size_t)i * column_bytes + (size_t)(row + r) * es,
                       decoded + (size_t)(r * w->k + i) * es, es);
    }
    ctw_sha256_update(sha, all, (size_t)w->k * column_bytes);
    ctw_free(all);
    return st;
}

static enum ctw_status hash_matrix(struct hashing *h, struct job *job, int thread)
{
    const struct ctw_weight *w = &job->matrix->weight;
    struct ctw_weight_data data;
    size_t row_bytes = (size_t)w->k * ctw_dtype_bytes(h->model->dtype);
    int64_t block = (int64_t)(h->block_bytes / row_bytes);
    if (block > 8) /* 8 rows, as zero points are packed: a block decodes like the whole matrix */
        block -= block % 8;
    struct ctw_sha256 sha;
    ctw_sha256_init(&sha);
    enum ctw_status st = find_parts(h, job, &data);
    if (st != CTW_OK)
        return st;
    if (is_transposed(job))
        st = hash_columns(h, job, &data, block, &sha, thread);
    for (int64_t row = 0; st == CTW_OK && row < w->n && !is_transposed(job); row += block) {
        int64_t n = w->n - row < block ? w->n - row : block;
        st = decode(h, w, &data, row, n, thread, &job->err);
        if (st == CTW_OK)
            ctw_sha256_update(&sha, h->block[thread], (size_t)n * row_bytes);
    }
    ctw_sha256_final_hex(&sha, job->hex);
    if (h->be != NULL)
        ctw_provider_release(h->provider, job->layer);
    return st;
}

static void run_job(void *arg, int64_t item, int thread)
{
    struct hashing *h = arg;
    struct job *job = h->in_turn[item];
    if (atomic_load(&h->failed))
        return;
    job->st = hash_matrix(h, job, thread);
    if (job->st != CTW_OK)
        atomic_store(&h->failed, true);
    int64_t done = atomic_fetch_add(&h->n_elements_done, job->elements) + job->elements;
    if (h->n_elements >= SHOW_FROM)
        ctw_log_progress("hashing weights: %.0f %%", 100.0 * (double)done / (double)h->n_elements);
}

static int larger_first(const void *a, const void *b)
{
    int64_t x = (*(struct job *const *)a)->elements, y = (*(struct job *const *)b)->elements;
    return x > y ? -1 : x < y;
}

/* Lists the matrices and sets block_bytes to at least the longest row. With a device, the order of
 * work is by layer, as layers arrive in the device's memory. */
static enum ctw_status collect(struct hashing *h, struct ctw_err *err)
{
    size_t cap = 0;
    for (int l = 0; l < h->model->n_layers; l++)
        cap += (size_t)ctw_layer_n_matrices(&h->model->layers[l]);
    h->jobs = ctw_calloc(cap, sizeof(*h->jobs));
    h->in_turn = ctw_calloc(cap, sizeof(struct job *));
    if (h->jobs == NULL || h->in_turn == NULL)
        return ctw_fail(err, CTW_ENOMEM, "out of memory for the list of matrices");
    h->block_bytes = h->be == NULL ? HOST_BLOCK : DEVICE_BLOCK;
    for (int l = 0; l < h->model->n_layers; l++)
        for (int i = 0; i < ctw_layer_n_matrices(&h->model->layers[l]); i++) {
            const struct ctw_matrix *m = ctw_layer_matrix_of(&h->model->layers[l], i);
            bool table =
                l == 0 && (i == CTW_M_EMBED || i == CTW_M_POSITIONS || i == CTW_M_INPUT_EMBED);
            if (m->name == NULL || (table && ctw_weight_is_dense(&m->weight)) ||
                ctw_is_repeated_matrix(h->model, l, i))
                continue;
            size_t row_bytes = (size_t)m->weight.k * ctw_dtype_bytes(h->model->dtype);
            h->block_bytes = row_bytes > h->block_bytes ? row_bytes : h->block_bytes;
            h->jobs[h->n_jobs] = (struct job){
                .matrix = m, .layer = l, .index = i, .elements = m->weight.n * m->weight.k};
            h->in_turn[h->n_jobs] = &h->jobs[h->n_jobs];
            h->n_elements += h->jobs[h->n_jobs++].elements;
        }
    if (h->be == NULL)
        qsort(h->in_turn, (size_t)h->n_jobs, sizeof(struct job *), larger_first);
    return CTW_OK;
}

static enum ctw_status open_blocks(struct hashing *h, struct ctw_err *err)
{
    h->block = ctw_calloc((size_t)h->n_threads, sizeof(void *));
    for (int i = 0; h->block != NULL && i < h->n_threads; i++) {
        h->block[i] = ctw_alloc_aligned(h->block_bytes);
        if (h->block[i] == NULL)
            return ctw_fail(err, CTW_ENOMEM, "out of memory for decoded weights");
    }
    if (h->block == NULL)
        return ctw_fail(err, CTW_ENOMEM, "out of memory for decoded weights");
    return h->be == NULL ? CTW_OK : ctw_device_alloc(h->be, &h->device, h->block_bytes, err);
}

/* Opens a GPU only on request: the plain C decoder defines the hashes, and needs no GPU. */
static enum ctw_status open_device(struct hashing *h, const struct ctw_engine_options *opt,
                                   struct ctw_err *err)
{
    if (opt->backend == NULL || strcmp(opt->backend, "cuda") != 0)
        return CTW_OK;
    const struct ctw_backend_options be_opt = {
        .cuda_variant = opt->cuda_variant, .n_threads = opt->n_threads, .device = opt->device};
    enum ctw_status st = ctw_backend_open(&h->be, opt->backend, &be_opt, err);
    if (st == CTW_OK)
        st = ctw_provider_open_resident(&h->provider, h->model, h->be, err);
    return st;
}

/* Prints all jobs, or the jobs before the first failed job. */
static enum ctw_status print_jobs(const struct hashing *h, struct ctw_err *err)
{
    for (int64_t i = 0; i < h->n_jobs; i++) {
        const struct job *job = &h->jobs[i];
        if (job->st != CTW_OK) {
            *err = job->err;
            return job->st;
        }
        bool tied =
            ctw_is_tied_head(h->model, job->layer, job->index); /* has no tensor of its own */
        const char *end = job->matrix->n_stacked > 0 ? "" : ".weight"; /* "NAME[3]" of a stack */
        printf("%s%s  %" PRId64 "  %" PRId64 "  %s  %s\n", tied ? "lm_head" : job->matrix->name,
               end, is_transposed(job) ? job->matrix->weight.k : job->matrix->weight.n,
               is_transposed(job) ? job->matrix->weight.n : job->matrix->weight.k,
               ctw_dtype_long_name(h->model->dtype), job->hex);
    }
    return CTW_OK;
}

static void release(struct hashing *h)
{
    for (int i = 0; h->block != NULL && i < h->n_threads; i++)
        ctw_free_aligned(h->block[i]);
    ctw_free(h->block);
    if (h->be != NULL)
        ctw_device_free(h->be, h->device);
    ctw_provider_close(h->provider);
    ctw_backend_close(h->be);
    ctw_free(h->in_turn);
    ctw_free(h->jobs);
}

enum ctw_status ctw_inspect_hashes(const struct ctw_model *model,
                                   const struct ctw_engine_options *opt, struct ctw_err *err)
{
    struct hashing h = {.model = model};
    struct ctw_threads *pool = NULL;
    enum ctw_status st = open_device(&h, opt, err);
    if (st == CTW_OK)
        st = collect(&h, err);
    if (st == CTW_OK)
        st = ctw_threads_open(&pool, h.be == NULL ? opt->n_threads : 1, err);
    if (st == CTW_OK) {
        h.n_threads = ctw_threads_count(pool);
        st = open_blocks(&h, err);
    }
    if (st == CTW_OK) {
        ctw_threads_for(pool, h.n_jobs, run_job, &h);
        ctw_log_progress("%s", "");
        st = ctw_container_check_maps(model->container, err);
    }
    if (st == CTW_OK)
        st = print_jobs(&h, err);
    ctw_threads_close(pool);
    release(&h);
    return st;
}
