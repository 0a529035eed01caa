#include "worker/engine/compare/difference.h"

#include <assert.h>

#include "base/mem.h"
#include "worker/engine/engine_state.h"
#include "worker/engine/pass/pass_state.h"

struct ctw_differences {
    struct ctw_backend *be;
    /* device; a pass may have as many sequences as tokens */
    int64_t *start;                          /* [n_tok + 1] */
    struct ctw_difference_row *rows;         /* [n_tok] */
    struct ctw_difference_channel *channels; /* [n_tok, blocks of channels] */
    struct ctw_difference_result *results;   /* [n_tok] */
    struct ctw_difference_result *host;      /* [n_tok] */
};

/* The device arrays, and their sizes. */
struct array {
    void **at;
    size_t bytes;
};
enum { N_ARRAYS = 4 };

static void arrays_of(struct ctw_differences *d, const struct ctw_model *model, int64_t n_tok,
                      struct array out[N_ARRAYS])
{
    size_t n = (size_t)n_tok, blocks = n * (size_t)ctw_difference_blocks(ctw_residual_width(model));
    out[0] = (struct array){(void **)&d->start, (n + 1) * sizeof(*d->start)};
    out[1] = (struct array){(void **)&d->rows, n * sizeof(*d->rows)};
    out[2] = (struct array){(void **)&d->channels, blocks * sizeof(*d->channels)};
    out[3] = (struct array){(void **)&d->results, n * sizeof(*d->results)};
}

size_t ctw_differences_bytes(const struct ctw_model *model, int64_t n_tok)
{
    struct ctw_differences d;
    struct array arrays[N_ARRAYS];
    size_t bytes = 0;
    arrays_of(&d, model, n_tok, arrays);
    for (int i = 0; i < N_ARRAYS; i++)
        bytes += arrays[i].bytes;
    return bytes;
}

enum ctw_status ctw_differences_open(struct ctw_differences **out, struct ctw_backend *be,
                                     const struct ctw_model *model, int64_t n_tok,
                                     struct ctw_err *err)
{
    struct array arrays[N_ARRAYS];
    struct ctw_differences *d = ctw_calloc(1, sizeof(*d));
    if (d == NULL)
        return ctw_fail(err, CTW_ENOMEM, "out of memory");
    d->be = be;
    d->host = ctw_calloc((size_t)n_tok, sizeof(*d->host));
    enum ctw_status st = CTW_OK;
    if (d->host == NULL)
        st = ctw_fail(err, CTW_ENOMEM, "out of memory for the layers of a pass");
    arrays_of(d, model, n_tok, arrays);
    for (int i = 0; st == CTW_OK && i < N_ARRAYS; i++)
        st = ctw_device_alloc(be, arrays[i].at, arrays[i].bytes, err);
    if (st != CTW_OK) {
        ctw_differences_close(d);
        return st;
    }
    *out = d;
    return CTW_OK;
}

void ctw_differences_close(struct ctw_differences *d)
{
    if (d == NULL)
        return;
    ctw_device_free(d->be, d->start);
    ctw_device_free(d->be, d->rows);
    ctw_device_free(d->be, d->channels);
    ctw_device_free(d->be, d->results);
    ctw_free(d->host);
    ctw_free(d);
}

enum ctw_status ctw_differences_take(struct ctw_differences *d, const struct ctw_pass *model,
                                     const struct ctw_pass *reference, struct ctw_err *err)
{
    static_assert(CTW_RESIDUAL == CTW_F32, "ctw_difference() reads residual streams of fp32");
    const struct ctw_layout *l = &model->layout;
    size_t n_seqs = (size_t)l->n_seqs;
    int layer = model->layer - 1;
    enum ctw_status st = CTW_OK;
    if (layer == 0)
        st = ctw_device_upload(d->be, d->start, l->start, (n_seqs + 1) * sizeof(*l->start), err);
    if (st == CTW_OK)
        st = ctw_difference(d->be,
                            &(struct ctw_op_difference){.n_seqs = l->n_seqs,
                                                        .n_rows = l->n_tok,
                                                        .dim = ctw_residual_width(model->f->model),
                                                        .start = d->start,
                                                        .x = reference->f->x,
                                                        .y = model->f->x,
                                                        .rows = d->rows,
                                                        .channels = d->channels,
                                                        .out = d->results},
                            err);
    if (st == CTW_OK)
        st = ctw_device_download(d->be, d->host, d->results, n_seqs * sizeof(*d->host), err);
    for (int64_t i = 0; st == CTW_OK && i < l->n_seqs; i++)
        if (model->seqs[i].divergence->layers != NULL)
            model->seqs[i].divergence->layers[layer] = d->host[i];
    return st;
}

enum ctw_status ctw_engines_layers_comparable(const struct ctw_engine *e,
                                              const struct ctw_engine *reference,
                                              struct ctw_err *err)
{
    const struct ctw_model *a = e->model, *b = reference->model;
    const int64_t own = ctw_residual_width(a), other = ctw_residual_width(b);
    if (a->n_decoders == b->n_decoders && own == other)
        return CTW_OK;
    return ctw_fail(err, CTW_EINVAL,
                    "the model has %d layers of width %lld and the reference %d of width %lld: "
                    "their layers cannot be compared",
                    a->n_decoders, (long long)own, b->n_decoders, (long long)other);
}
