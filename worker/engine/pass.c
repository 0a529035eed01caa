#include "worker/engine/pass.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

struct pass {
    struct ctw_forward *f;
    struct ctw_provider *provider;
    const struct ctw_hooks *hooks;
    struct ctw_progress *progress;
    int64_t tok_before; /* tokens of earlier passes */
    struct ctw_seq *seqs;
    int64_t n_seqs;
    int64_t n_tok;  /* inputs of all sequences */
    int64_t n_rows; /* scored positions of all sequences */
    int64_t *start; /* [n_seqs + 1]: the first input of each sequence in the pass */
    int64_t *rows;  /* [n_rows] */
    int32_t *words; /* [max(n_tok, n_rows)]: staging for tokens, positions or targets */
    int16_t *bad;   /* [n_tok] */
    struct ctw_head_result *results; /* [n_rows] */
    struct ctw_attn_seq *attn;       /* [n_seqs] */
    struct ctw_kv_run *runs;         /* [n_seqs] */
    double cost_done, cost_total;    /* floating-point operations */
};

static enum ctw_status no_memory(struct ctw_err *err)
{
    return ctw_fail(err, CTW_ENOMEM, "out of memory for the tables of a pass");
}

static enum ctw_status step(struct pass *p, double cost, int layer, struct ctw_err *err)
{
    p->cost_done += cost;
    p->progress->layer = layer;
    p->progress->tok_done =
        p->tok_before + (int64_t)(p->cost_done / p->cost_total * (double)p->n_tok);
    if (p->hooks == NULL)
        return CTW_OK;
    if (p->hooks->progress != NULL)
        p->hooks->progress(p->hooks->arg, p->progress);
    if (p->hooks->cancelled != NULL && p->hooks->cancelled(p->hooks->arg))
        return ctw_fail(err, CTW_ECANCELED, "cancelled");
    return CTW_OK;
}

static enum ctw_status allocate(struct pass *p, struct ctw_err *err)
{
    p->start = ctw_calloc((size_t)p->n_seqs + 1, sizeof(*p->start));
    if (p->start == NULL)
        return no_memory(err);
    for (int64_t i = 0; i < p->n_seqs; i++) {
        p->start[i] = p->n_tok;
        p->n_tok += ctw_seq_inputs(&p->seqs[i]);
        p->n_rows += p->seqs[i].n_tok - p->seqs[i].first;
    }
    p->start[p->n_seqs] = p->n_tok;
    p->rows = ctw_calloc((size_t)p->n_rows, sizeof(*p->rows));
    p->words = ctw_calloc((size_t)p->n_tok, sizeof(*p->words));
    p->bad = ctw_calloc((size_t)p->n_tok, sizeof(*p->bad));
    p->results = ctw_calloc((size_t)p->n_rows, sizeof(*p->results));
    p->attn = ctw_calloc((size_t)p->n_seqs, sizeof(*p->attn));
    p->runs = ctw_calloc((size_t)p->n_seqs, sizeof(*p->runs));
    if (p->rows == NULL || p->words == NULL || p->bad == NULL || p->results == NULL ||
        p->attn == NULL || p->runs == NULL)
        return no_memory(err);
    double layers = ctw_plan_layer_flops(p->f->model), head = ctw_plan_head_flops(p->f->model);
    p->cost_total = layers * (double)p->n_tok + head * (double)p->n_rows;
    return CTW_OK;
}

static void release(struct pass *p)
{
    ctw_free(p->start);
    ctw_free(p->rows);
    ctw_free(p->words);
    ctw_free(p->bad);
    ctw_free(p->results);
    ctw_free(p->attn);
    ctw_free(p->runs);
}

/* Uploads tokens, positions, bad marks, scored rows and targets. */
static enum ctw_status upload(struct pass *p, struct ctw_err *err)
{
    struct ctw_forward *f = p->f;
    size_t tok_bytes = (size_t)p->n_tok * sizeof(int32_t);
    for (int64_t i = 0; i < p->n_seqs; i++)
        memcpy(p->words + p->start[i], p->seqs[i].tokens,
               (size_t)ctw_seq_inputs(&p->seqs[i]) * sizeof(int32_t));
    enum ctw_status st = ctw_device_upload(f->be, f->tokens, p->words, tok_bytes, err);
    if (st != CTW_OK)
        return st;
    for (int64_t i = 0; i < p->n_seqs; i++)
        for (int64_t t = p->start[i]; t < p->start[i + 1]; t++)
            p->words[t] = (int32_t)(t - p->start[i]);
    st = ctw_device_upload(f->be, f->positions, p->words, tok_bytes, err);
    if (st != CTW_OK)
        return st;
    memset(p->bad, 0xff, (size_t)p->n_tok * sizeof(*p->bad));
    st = ctw_device_upload(f->be, f->bad, p->bad, (size_t)p->n_tok * sizeof(*p->bad), err);
    if (st != CTW_OK)
        return st;
    int64_t row = 0;
    for (int64_t i = 0; i < p->n_seqs; i++) {
        for (int64_t t = p->seqs[i].first; t < p->seqs[i].n_tok; t++, row++) {
            p->rows[row] = p->start[i] + t - 1; /* position t-1 predicts token t */
            p->words[row] = p->seqs[i].tokens[t];
        }
    }
    st = ctw_device_upload(f->be, f->rows, p->rows, (size_t)row * sizeof(*p->rows), err);
    if (st != CTW_OK)
        return st;
    return ctw_device_upload(f->be, f->targets, p->words, (size_t)row * sizeof(int32_t), err);
}

/*
 * A chunk's keys and values follow the keys and values that its first sequence left in earlier
 * chunks. If that sequence began in the middle of the previous chunk, this moves its keys and
 * values to the front.
 */
static enum ctw_status carry_keys(struct pass *p, const struct ctw_layer *l, int64_t from_row,
                                  int64_t n_rows, struct ctw_err *err)
{
    struct ctw_forward *f = p->f;
    if (from_row == 0 || n_rows == 0)
        return CTW_OK;
    size_t row_bytes = (size_t)l->n_kv * (size_t)l->head * ctw_dtype_bytes(f->dtype);
    size_t from = (size_t)from_row * row_bytes, bytes = (size_t)n_rows * row_bytes;
    void *arrays[] = {f->k, f->v};
    enum ctw_status st = CTW_OK;
    for (size_t i = 0; st == CTW_OK && i < CTW_COUNT(arrays); i++) {
        const void *source = (char *)arrays[i] + from;
        /* If source and destination overlap, copy by way of f->wide, which is unused now. The keys
         * fit: a sequence that does not start at row 0 began in the previous chunk, so it has fewer
         * keys than a chunk. */
        if (from_row < n_rows) {
            st = ctw_device_copy(f->be, f->wide, source, bytes, err);
            source = f->wide;
        }
        if (st == CTW_OK)
            st = ctw_device_copy(f->be, arrays[i], source, bytes, err);
    }
    return st;
}

/* One decoder layer over all chunks. */
static enum ctw_status run_decoder(struct pass *p, int layer, const struct ctw_layer_data *data,
                                   double cost_per_tok, struct ctw_err *err)
{
    struct ctw_forward *f = p->f;
    const struct ctw_layer *l = &f->model->layers[layer];
    int64_t seq0 = 0;     /* the sequence of the chunk's first token */
    int64_t seq0_row = 0; /* the first row of its keys after the previous chunk */
    enum ctw_status prepared = ctw_forward_prepare(f, layer, data, err);
    if (prepared != CTW_OK)
        return prepared;
    for (int64_t tok0 = 0; tok0 < p->n_tok; tok0 += f->plan.chunk_tokens) {
        int64_t tok1 = tok0 + f->plan.chunk_tokens;
        tok1 = tok1 < p->n_tok ? tok1 : p->n_tok;
        int64_t n_carried = tok0 - p->start[seq0];
        enum ctw_status st = carry_keys(p, l, seq0_row, n_carried, err);
        if (st != CTW_OK)
            return st;
        int64_t n = 0;
        for (int64_t s = seq0; s < p->n_seqs && p->start[s] < tok1; s++, n++) {
            int64_t begin = p->start[s] > tok0 ? p->start[s] : tok0;
            int64_t end = p->start[s + 1] < tok1 ? p->start[s + 1] : tok1;
            int64_t pos0 = begin - p->start[s];
            p->runs[n] = (struct ctw_kv_run){.row = s == seq0 ? 0 : n_carried + begin - tok0,
                                             .n_tok = pos0 + end - begin};
            p->attn[n] = (struct ctw_attn_seq){.q_row = begin - tok0,
                                               .n_q = end - begin,
                                               .pos0 = pos0,
                                               .runs = &p->runs[n],
                                               .n_runs = 1};
        }
        struct ctw_chunk chunk = {
            .tok0 = tok0, .n_tok = tok1 - tok0, .kv_row = n_carried, .seqs = p->attn, .n_seqs = n};
        st = ctw_forward_decoder(f, layer, data, &chunk, err);
        if (st == CTW_OK)
            st = step(p, cost_per_tok * (double)chunk.n_tok, layer, err);
        if (st != CTW_OK)
            return st;
        /* The next chunk begins with this chunk's last sequence, unless that sequence ends here. */
        int64_t last = seq0 + n - 1;
        seq0_row = p->runs[n - 1].row;
        seq0 = p->start[last + 1] == tok1 ? last + 1 : last;
        if (seq0 != last)
            seq0_row = 0;
    }
    return CTW_OK;
}

static enum ctw_status run_embedding(struct pass *p, const struct ctw_layer_data *data,
                                     struct ctw_err *err)
{
    for (int64_t tok0 = 0; tok0 < p->n_tok; tok0 += p->f->plan.chunk_tokens) {
        int64_t n = p->n_tok - tok0;
        n = n < p->f->plan.chunk_tokens ? n : p->f->plan.chunk_tokens;
        enum ctw_status st = ctw_forward_embed(p->f, data, tok0, n, err);
        if (st != CTW_OK)
            return st;
    }
    return CTW_OK;
}

/* Downloads the final hidden states of scored rows row0 .. row0+n-1 for sequences with `hidden`. */
static enum ctw_status keep_hidden(struct pass *p, int64_t row0, int64_t n, struct ctw_err *err)
{
    size_t row_bytes = (size_t)p->f->model->hidden * ctw_dtype_bytes(p->f->dtype);
    int64_t seq_row0 = 0;
    for (int64_t i = 0; i < p->n_seqs; i++) {
        int64_t seq_row1 = seq_row0 + p->seqs[i].n_tok - p->seqs[i].first;
        int64_t from = seq_row0 > row0 ? seq_row0 : row0;
        int64_t to = seq_row1 < row0 + n ? seq_row1 : row0 + n;
        if (p->seqs[i].hidden != NULL && from < to) {
            enum ctw_status st = ctw_device_download(
                p->f->be, (char *)p->seqs[i].hidden + (size_t)(from - seq_row0) * row_bytes,
                (char *)p->f->norm + (size_t)(from - row0) * row_bytes,
                (size_t)(to - from) * row_bytes, err);
            if (st != CTW_OK)
                return st;
        }
        seq_row0 = seq_row1;
    }
    return CTW_OK;
}

static enum ctw_status run_head(struct pass *p, int layer, const struct ctw_layer_data *data,
                                struct ctw_err *err)
{
    double cost = ctw_plan_head_flops(p->f->model);
    for (int64_t row0 = 0; row0 < p->n_rows; row0 += p->f->plan.chunk_tokens) {
        int64_t n = p->n_rows - row0;
        n = n < p->f->plan.chunk_tokens ? n : p->f->plan.chunk_tokens;
        enum ctw_status st = ctw_forward_head(p->f, data, row0, n, err);
        if (st == CTW_OK)
            st = keep_hidden(p, row0, n, err);
        if (st == CTW_OK)
            st = step(p, cost * (double)n, layer, err);
        if (st != CTW_OK)
            return st;
    }
    return CTW_OK;
}

static enum ctw_status run_layers(struct pass *p, struct ctw_err *err)
{
    const struct ctw_model *m = p->f->model;
    double per_tok = ctw_plan_layer_flops(m) / m->n_decoders;
    for (int layer = 0; layer < m->n_layers; layer++) {
        const struct ctw_layer_data *data;
        enum ctw_status st = ctw_provider_acquire(p->provider, layer, &data, err);
        if (st != CTW_OK)
            return st;
        if (layer == 0)
            st = run_embedding(p, data, err);
        else if (layer <= m->n_decoders)
            st = run_decoder(p, layer, data, per_tok, err);
        else
            st = run_head(p, layer, data, err);
        ctw_provider_release(p->provider, layer);
        if (st != CTW_OK)
            return st;
    }
    return CTW_OK;
}

/* The layer after which a sequence's numbers were not finite: the lowest mark of its inputs. */
static int first_bad_layer(const struct pass *p, int64_t seq)
{
    int layer = p->f->model->n_decoders;
    for (int64_t t = p->start[seq]; t < p->start[seq + 1]; t++)
        if (p->bad[t] >= 0 && p->bad[t] < layer)
            layer = p->bad[t];
    return layer;
}

static enum ctw_status collect(struct pass *p, struct ctw_err *err)
{
    struct ctw_forward *f = p->f;
    enum ctw_status st = ctw_device_download(f->be, p->results, f->results,
                                             (size_t)p->n_rows * sizeof(*p->results), err);
    if (st == CTW_OK)
        st = ctw_device_download(f->be, p->bad, f->bad, (size_t)p->n_tok * sizeof(*p->bad), err);
    if (st != CTW_OK)
        return st;
    const struct ctw_head_result *r = p->results;
    for (int64_t i = 0; i < p->n_seqs; i++) {
        struct ctw_seq *seq = &p->seqs[i];
        seq->bad_layer = -1;
        for (int64_t t = 0; t < seq->n_tok - seq->first; t++, r++) {
            seq->logprob[t] = r->logprob;
            seq->greedy[t] = r->greedy;
            if (!isfinite(r->logprob) && seq->bad_layer < 0)
                seq->bad_layer = first_bad_layer(p, i);
        }
    }
    return CTW_OK;
}

enum ctw_status ctw_pass_run(struct ctw_forward *f, struct ctw_provider *provider,
                             struct ctw_seq *seqs, int64_t n_seqs,
                             const struct ctw_hooks *hooks, struct ctw_progress *progress,
                             struct ctw_err *err)
{
    struct pass p = {.f = f,
                     .provider = provider,
                     .hooks = hooks,
                     .progress = progress,
                     .tok_before = progress->tok_done,
                     .seqs = seqs,
                     .n_seqs = n_seqs};
    double started_s = ctw_now_s();
    enum ctw_status st = allocate(&p, err);
    if (st == CTW_OK)
        st = upload(&p, err);
    if (st == CTW_OK)
        st = run_layers(&p, err);
    double queued_s = ctw_now_s(); /* a GPU is still computing */
    if (st == CTW_OK)
        st = collect(&p, err);
    if (st == CTW_OK)
        progress->tok_done = p.tok_before + p.n_tok;
    if (st == CTW_OK)
        ctw_debug("pass: %" PRId64 " tokens, queued after %.1f ms, computed after %.1f ms", p.n_tok,
                  1e3 * (queued_s - started_s), 1e3 * (ctw_now_s() - started_s));
    release(&p);
    return st;
}
