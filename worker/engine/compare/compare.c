#include "worker/engine/compare/compare.h"

#include <math.h>

#include "base/mem.h"
#include "worker/engine/pass/pass_state.h"

enum { MODEL, REFERENCE, SIDES };

/* Bytes of both models' logits together. Products of so many rows run at full speed, and more
 * memory gains nothing. On the CPU, a part of the logits stays in the last cache. */
static const size_t block_bytes_host = (size_t)128 << 20, block_bytes_device = (size_t)512 << 20;
/* A head in parts is gathered once for each block. */
static const size_t block_bytes_in_parts = (size_t)2 << 30;
enum { BLOCK_ROWS_MIN = 16, BLOCK_ROWS_TILE = 256 };

struct ctw_compare {
    struct ctw_backend *be;
    struct ctw_compare_size size;
    /* device */
    struct ctw_kept_logits kept[SIDES];    /* of a block */
    struct ctw_divergence_result *results; /* [n_rows] */
    struct ctw_divergence_result *host;    /* [n_rows] */
};

/* ---- memory ------------------------------------------------------------------------------- */

static size_t logits_bytes(const struct ctw_compare_size *s, int side)
{
    return (size_t)s->block * (size_t)s->ld[side] * sizeof(float);
}

struct ctw_compare_size ctw_compare_size(const struct ctw_backend *be,
                                         const struct ctw_model *model,
                                         const struct ctw_model *reference, bool in_parts,
                                         int64_t n_rows, uint64_t limit)
{
    const int64_t vocab[SIDES] = {model->vocab, reference->vocab};
    struct ctw_compare_size s = {.n_rows = n_rows};
    bool host = ctw_backend_traits(be)->host_memory;
    uint64_t most = host ? block_bytes_host : in_parts ? block_bytes_in_parts : block_bytes_device;
    size_t row_bytes = 0;
    most = most < limit / 4 ? most : limit / 4;
    for (int i = 0; i < SIDES; i++) {
        s.ld[i] = (vocab[i] + CTW_LOGITS_ALIGN - 1) / CTW_LOGITS_ALIGN * CTW_LOGITS_ALIGN;
        row_bytes += (size_t)s.ld[i] * sizeof(float);
    }
    s.block = (int64_t)(most / row_bytes);
    if (s.block > BLOCK_ROWS_TILE)
        s.block -= s.block % BLOCK_ROWS_TILE;
    s.block = s.block > BLOCK_ROWS_MIN ? s.block : BLOCK_ROWS_MIN;
    s.block = s.block < n_rows ? s.block : n_rows;
    s.bytes = (size_t)n_rows * sizeof(struct ctw_divergence_result);
    for (int i = 0; i < SIDES; i++)
        s.bytes += logits_bytes(&s, i) + (size_t)s.block * sizeof(struct ctw_head_norm);
    return s;
}

enum ctw_status ctw_compare_open(struct ctw_compare **out, struct ctw_backend *be,
                                 const struct ctw_compare_size *size, struct ctw_err *err)
{
    struct ctw_compare *c = ctw_calloc(1, sizeof(*c));
    if (c == NULL)
        return ctw_fail(err, CTW_ENOMEM, "out of memory");
    *c = (struct ctw_compare){.be = be, .size = *size};
    size_t results = (size_t)size->n_rows * sizeof(*c->results);
    enum ctw_status st = ctw_device_alloc(be, (void **)&c->results, results, err);
    for (int i = 0; st == CTW_OK && i < SIDES; i++) {
        struct ctw_kept_logits *k = &c->kept[i];
        k->ld = size->ld[i];
        st = ctw_device_alloc(be, (void **)&k->logits, logits_bytes(size, i), err);
        if (st == CTW_OK)
            st = ctw_device_alloc(be, (void **)&k->norms, (size_t)size->block * sizeof(*k->norms),
                                  err);
    }
    c->host = ctw_calloc((size_t)size->n_rows, sizeof(*c->host));
    if (st == CTW_OK && c->host == NULL)
        st = ctw_fail(err, CTW_ENOMEM, "out of memory for the divergences of a pass");
    if (st != CTW_OK) {
        ctw_compare_close(c);
        return st;
    }
    *out = c;
    return CTW_OK;
}

void ctw_compare_close(struct ctw_compare *c)
{
    if (c == NULL)
        return;
    for (int i = 0; i < SIDES; i++) {
        ctw_device_free(c->be, c->kept[i].logits);
        ctw_device_free(c->be, c->kept[i].norms);
    }
    ctw_device_free(c->be, c->results);
    ctw_free(c->host);
    ctw_free(c);
}

/* ---- the heads ---------------------------------------------------------------------------- */

static struct ctw_logits logits_of(const struct ctw_compare *c, int side, const struct ctw_pass *p)
{
    const struct ctw_kept_logits *k = &c->kept[side];
    return (struct ctw_logits){p->f->model->vocab, k->logits, k->ld, k->norms};
}

static enum ctw_status run_blocks(struct ctw_compare *c, struct ctw_pass *const pass[SIDES],
                                  const struct ctw_layer_data *const data[SIDES],
                                  struct ctw_err *err)
{
    int64_t n_rows = pass[MODEL]->layout.n_rows, block = c->size.block;
    for (int i = 0; i < SIDES; i++) {
        int64_t chunk = pass[i]->f->plan.chunk_tokens;
        block = block < chunk ? block : chunk;
    }
    for (int i = 0; i < SIDES && n_rows > 0; i++)
        ctw_provider_repeat(pass[i]->provider, (n_rows + block - 1) / block);
    for (int64_t row0 = 0; row0 < n_rows; row0 += block) {
        int64_t n = n_rows - row0 < block ? n_rows - row0 : block;
        enum ctw_status st = CTW_OK;
        for (int i = 0; st == CTW_OK && i < SIDES; i++)
            st = ctw_pass_head(pass[i], data[i], row0, n, pass[i]->f->model->vocab, &c->kept[i],
                               err);
        if (st == CTW_OK)
            st = ctw_divergence(c->be,
                                &(struct ctw_op_divergence){
                                    .n_rows = n,
                                    .model = logits_of(c, MODEL, pass[MODEL]),
                                    .reference = logits_of(c, REFERENCE, pass[REFERENCE]),
                                    .out = c->results + row0,
                                },
                                err);
        if (st != CTW_OK)
            return st;
    }
    return CTW_OK;
}

/* Acquires both heads, and runs them. */
static enum ctw_status run_heads(struct ctw_compare *c, struct ctw_pass *const pass[SIDES],
                                 bool *in_reference, struct ctw_err *err)
{
    const struct ctw_layer_data *data[SIDES];
    int acquired = 0;
    enum ctw_status st = CTW_OK;
    while (st == CTW_OK && acquired < SIDES) {
        struct ctw_pass *p = pass[acquired];
        *in_reference = acquired == REFERENCE;
        st = ctw_provider_acquire(p->provider, p->layer, &data[acquired], err);
        acquired += st == CTW_OK;
    }
    if (st == CTW_OK)
        st = run_blocks(c, pass, data, err);
    for (int i = 0; i < acquired; i++)
        ctw_provider_release(pass[i]->provider, pass[i]->layer);
    return st;
}

/* ---- results ------------------------------------------------------------------------------ */

/* A divergence is infinite if a model gives an id no probability at all. The model's head is then
 * at fault. */
static void check_row(struct ctw_seq *seq, const struct ctw_divergence_result *r,
                      const struct ctw_pass *model, const struct ctw_pass *reference)
{
    if (seq->bad_layer >= 0 || (isfinite(r->kl) && isfinite(r->kl_reverse)))
        return;
    seq->divergence->bad_reference = isfinite(r->kl);
    seq->bad_layer = (isfinite(r->kl) ? reference : model)->f->model->n_decoders;
}

static void take_seq(struct ctw_seq *seq, const struct ctw_seq *ref,
                     const struct ctw_divergence_result *r, const struct ctw_pass *model,
                     const struct ctw_pass *reference)
{
    struct ctw_seq_divergence *d = seq->divergence;
    d->bad_reference = seq->bad_layer < 0 && ref->bad_layer >= 0;
    if (d->bad_reference)
        seq->bad_layer = ref->bad_layer;
    for (int64_t t = 0; t < seq->n_tok - seq->first; t++, r++) {
        d->ref_top[t] = r->ref_top;
        d->kl[t] = r->kl;
        d->kl_reverse[t] = r->kl_reverse;
        d->tv[t] = r->tv;
        d->overlap5[t] = (uint8_t)r->overlap5;
        check_row(seq, r, model, reference);
    }
}

enum ctw_status ctw_compare_heads(struct ctw_compare *c, struct ctw_pass *model,
                                  struct ctw_pass *reference, bool *in_reference,
                                  struct ctw_err *err)
{
    struct ctw_pass *const pass[SIDES] = {model, reference};
    size_t bytes = (size_t)model->layout.n_rows * sizeof(*c->host);
    enum ctw_status st = run_heads(c, pass, in_reference, err);
    for (int i = 0; st == CTW_OK && i < SIDES; i++) {
        pass[i]->layer++;
        st = ctw_pass_collect(pass[i], err);
    }
    if (st == CTW_OK)
        st = ctw_device_download(c->be, c->host, c->results, bytes, err);
    if (st != CTW_OK)
        return st;
    const struct ctw_divergence_result *r = c->host;
    for (int64_t i = 0; i < model->layout.n_seqs; i++) {
        struct ctw_seq *seq = &model->seqs[i];
        take_seq(seq, &reference->seqs[i], r, model, reference);
        r += seq->n_tok - seq->first;
    }
    return CTW_OK;
}
