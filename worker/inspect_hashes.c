#include "worker/inspect_hashes.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/sha256.h"
#include "base/threads.h"
#include "worker/dtype_name.h"

enum { BLOCK_BYTES = 1 << 20, SHOW_FROM = 100000000 /* elements: some seconds */ };

struct job {
    const struct ctw_matrix *matrix;
    int64_t elements;
    char hex[65];
};

struct hashing {
    const struct ctw_model *model;
    struct job *jobs;     /* in the model's order */
    struct job **by_size; /* the largest first, which keeps the threads busy to the end */
    void **scratch;       /* [n_threads], each for one row and at least BLOCK_BYTES */
    size_t scratch_bytes;
    int64_t n_jobs;
    int64_t n_elements;
    atomic_llong n_elements_done;
};

static void hash_matrix(void *arg, int64_t item, int thread)
{
    struct hashing *h = arg;
    struct job *job = h->by_size[item];
    const struct ctw_weight *w = &job->matrix->weight;
    struct ctw_weight_data data;
    struct ctw_sha256 sha;
    for (int p = 0; p < CTW_N_PARTS; p++)
        data.part[p] = job->matrix->part[p] != NULL
                           ? ctw_container_data(h->model->container, job->matrix->part[p])
                           : NULL;
    size_t row_bytes = (size_t)w->k * ctw_dtype_bytes(h->model->dtype);
    int64_t block = (int64_t)(h->scratch_bytes / row_bytes);
    ctw_sha256_init(&sha);
    for (int64_t row = 0; row < w->n; row += block) {
        int64_t n = w->n - row < block ? w->n - row : block;
        ctw_weight_decode(w, &data, row, n, h->model->dtype, h->scratch[thread], w->k);
        ctw_sha256_update(&sha, h->scratch[thread], (size_t)n * row_bytes);
    }
    ctw_sha256_final_hex(&sha, job->hex);
    int64_t done = atomic_fetch_add(&h->n_elements_done, job->elements) + job->elements;
    if (h->n_elements >= SHOW_FROM)
        ctw_log_progress("hashing weights: %.0f %%", 100.0 * (double)done / (double)h->n_elements);
}

static int larger_first(const void *a, const void *b)
{
    int64_t x = (*(struct job *const *)a)->elements, y = (*(struct job *const *)b)->elements;
    return x > y ? -1 : x < y;
}

static enum ctw_status collect(struct hashing *h, struct ctw_err *err)
{
    size_t cap = (size_t)h->model->n_layers * CTW_N_MATRICES;
    h->jobs = ctw_calloc(cap, sizeof(*h->jobs));
    h->by_size = ctw_calloc(cap, sizeof(struct job *));
    if (h->jobs == NULL || h->by_size == NULL)
        return ctw_fail(err, CTW_ENOMEM, "out of memory for the list of matrices");
    h->scratch_bytes = BLOCK_BYTES;
    for (int l = 0; l < h->model->n_layers; l++)
        for (int i = 0; i < CTW_N_MATRICES; i++) {
            const struct ctw_matrix *m = &h->model->layers[l].matrix[i];
            if (m->name == NULL || i == CTW_M_EMBED)
                continue;
            size_t row_bytes = (size_t)m->weight.k * ctw_dtype_bytes(h->model->dtype);
            h->scratch_bytes = row_bytes > h->scratch_bytes ? row_bytes : h->scratch_bytes;
            h->jobs[h->n_jobs] = (struct job){.matrix = m, .elements = m->weight.n * m->weight.k};
            h->by_size[h->n_jobs] = &h->jobs[h->n_jobs];
            h->n_elements += h->jobs[h->n_jobs++].elements;
        }
    qsort(h->by_size, (size_t)h->n_jobs, sizeof(struct job *), larger_first);
    return CTW_OK;
}

enum ctw_status ctw_inspect_hashes(const struct ctw_model *model, int n_threads,
                                   struct ctw_err *err)
{
    struct hashing h = {.model = model};
    struct ctw_threads *pool = NULL;
    int n = 0;
    enum ctw_status st = collect(&h, err);
    if (st == CTW_OK)
        st = ctw_threads_open(&pool, n_threads, err);
    if (st != CTW_OK)
        goto done;
    n = ctw_threads_count(pool);
    h.scratch = ctw_calloc((size_t)n, sizeof(void *));
    for (int i = 0; h.scratch != NULL && i < n; i++) {
        h.scratch[i] = ctw_alloc_aligned(h.scratch_bytes);
        if (h.scratch[i] == NULL)
            st = CTW_ENOMEM;
    }
    if (h.scratch == NULL || st != CTW_OK) {
        st = ctw_fail(err, CTW_ENOMEM, "out of memory for decoding weights");
        goto done;
    }
    ctw_threads_for(pool, h.n_jobs, hash_matrix, &h);
    ctw_log_progress("%s", "");
    for (int64_t i = 0; i < h.n_jobs; i++)
        printf("%s.weight  %" PRId64 "  %" PRId64 "  %s  %s\n", h.jobs[i].matrix->name,
               h.jobs[i].matrix->weight.n, h.jobs[i].matrix->weight.k,
               ctw_dtype_long_name(model->dtype), h.jobs[i].hex);
done:
    for (int i = 0; h.scratch != NULL && i < n; i++)
        ctw_free_aligned(h.scratch[i]);
    ctw_free(h.scratch);
    ctw_threads_close(pool);
    ctw_free(h.by_size);
    ctw_free(h.jobs);
    return st;
}
