#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "worker/engine/pass/before.h"
#include "worker/engine/pass/pass_state.h"

static void set_progress(struct ctw_pass *p, double share)
{
    p->progress->tok_done = p->before.tok_done + (int64_t)(share * (double)p->layout.n_asked);
    p->progress->tok_computed = p->before.tok_computed + (int64_t)(share * (double)p->layout.n_tok);
}

enum ctw_status ctw_pass_advance(struct ctw_pass *p, double cost, int layer, struct ctw_err *err)
{
    p->cost_done += cost;
    p->progress->layer = layer;
    set_progress(p, p->cost_done / p->cost_total);
    if (p->hooks == NULL)
        return CTW_OK;
    if (p->hooks->progress != NULL)
        p->hooks->progress(p->hooks->arg, p->progress);
    if (p->hooks->cancelled != NULL && p->hooks->cancelled(p->hooks->arg))
        return ctw_fail(err, CTW_ECANCELED, "cancelled");
    return CTW_OK;
}

static enum ctw_status prepare(struct ctw_pass *p, int64_t n_seqs,
                               const struct ctw_sharing *sharing, struct ctw_err *err)
{
    const struct ctw_layout *l = &p->layout;
    enum ctw_status st = ctw_layout_make(&p->layout, p->seqs, n_seqs, &p->f->plan,
                                         ctw_plan_long_from(p->f->model), sharing, err);
    if (st != CTW_OK)
        return st;
    if (l->n_left > 0) /* its memory is about to be overwritten */
        ctw_forward_forget_trunk(p->f);
    p->bad = ctw_calloc((size_t)l->n_tok, sizeof(*p->bad));
    p->results = ctw_calloc((size_t)l->n_targets, sizeof(*p->results));
    p->tokens_before = ctw_tokens_before(p->f->model, l, p->seqs);
    if (p->bad == NULL || p->results == NULL ||
        (p->tokens_before == NULL && p->f->model->ngram_before > 0))
        return ctw_fail(err, CTW_ENOMEM, "out of memory for the tables of a pass");
    double layers = ctw_plan_layer_flops(p->f->model), head = ctw_plan_head_flops(p->f->model);
    p->cost_total = layers * (double)l->n_tok + head * (double)l->n_rows;
    memset(p->bad, 0xff, (size_t)l->n_tok * sizeof(*p->bad));
    return CTW_OK;
}

/* Uploads tokens, positions, bad marks, scored rows and their targets. */
static enum ctw_status upload(struct ctw_pass *p, struct ctw_err *err)
{
    const struct ctw_forward *f = p->f;
    const struct ctw_layout *l = &p->layout;
    size_t n_tok = (size_t)l->n_tok, n_rows = (size_t)l->n_rows, n_targets = (size_t)l->n_targets;
    const struct {
        void *to;
        const void *from;
        size_t bytes;
    } arrays[] = {
        {f->tokens, l->tokens, n_tok * sizeof(*l->tokens)},
        {f->positions, l->rope_rows != NULL ? l->rope_rows : l->positions,
         n_tok * sizeof(*l->positions)},
        {f->bad, p->bad, n_tok * sizeof(*p->bad)},
        {f->rows, l->rows, n_rows * sizeof(*l->rows)},
        {f->targets, l->targets, n_targets * sizeof(*l->targets)},
        {f->first_target, l->first_target,
         l->first_target != NULL ? (n_rows + 1) * sizeof(*l->first_target) : 0},
    };
    enum ctw_status st = CTW_OK;
    for (size_t i = 0; st == CTW_OK && i < CTW_COUNT(arrays); i++)
        if (arrays[i].bytes > 0)
            st = ctw_device_upload(f->be, arrays[i].to, arrays[i].from, arrays[i].bytes, err);
    return st;
}

/* The experts that are computing. */
struct counting {
    struct ctw_pass *p;
    int layer;
    double cost; /* of a token with an expert */
};

static enum ctw_status count_rows(void *arg, int64_t n_rows, struct ctw_err *err)
{
    const struct counting *c = arg;
    return ctw_pass_advance(c->p, c->cost * (double)n_rows, c->layer, err);
}

/* The layer's part is released early, so that the next layer can be read while this layer
 * computes. */
static enum ctw_status prepare_layer(struct ctw_pass *p, int layer,
                                     const struct ctw_layer_data *data, struct ctw_err *err)
{
    enum ctw_status st = ctw_provider_acquire_part(p->provider, layer, 0, err);
    if (st != CTW_OK)
        return st;
    st = ctw_forward_prepare(p->f, layer, data, err);
    ctw_provider_release_part(p->provider, layer, 0);
    return st;
}

/* Runs one decoder layer: all chunks through the branches up to a branch that has a part for the
 * whole pass, then that part, then all chunks through the next branches. */
static enum ctw_status run_decoder(struct ctw_pass *p, int layer, const struct ctw_layer_data *data,
                                   struct ctw_err *err)
{
    struct ctw_forward *f = p->f;
    const struct ctw_layer *l = &f->model->layers[layer];
    f->before = p->tokens_before;
    double cost_per_tok = ctw_plan_token_flops(f->model, l);
    struct counting counting = {p, layer, ctw_plan_expert_flops(l)};
    enum ctw_status st = prepare_layer(p, layer, data, err);
    int from = 0, stop;
    do {
        stop = ctw_forward_stop(f, layer, from);
        for (int64_t c = 0; st == CTW_OK && c < p->layout.n_chunks; c++) {
            const struct ctw_chunk *chunk = &p->layout.chunks[c];
            st = ctw_forward_branches(f, layer, data, chunk, from, err);
            if (st == CTW_OK && from == 0)
                st = ctw_pass_advance(p, cost_per_tok * (double)chunk->n_tok, layer, err);
        }
        if (st == CTW_OK && stop < l->n_branches)
            st = ctw_forward_whole(f, layer, data, stop, p->layout.n_tok, count_rows, &counting,
                                   err);
        from = stop + 1;
    } while (st == CTW_OK && stop < l->n_branches);
    return st;
}

static enum ctw_status run_embedding(struct ctw_pass *p, const struct ctw_layer_data *data,
                                     struct ctw_err *err)
{
    enum ctw_status st = CTW_OK;
    for (int i = 0; st == CTW_OK && i < ctw_provider_parts(p->provider, 0); i++) {
        st = ctw_provider_acquire_part(p->provider, 0, i, err);
        if (st != CTW_OK)
            break;
        for (int64_t c = 0; st == CTW_OK && c < p->layout.n_chunks; c++)
            st = ctw_forward_embed(p->f, data, p->layout.chunks[c].tok0, p->layout.chunks[c].n_tok,
                                   err);
        ctw_provider_release_part(p->provider, 0, i);
    }
    return st;
}

static size_t row_bytes_of(const struct ctw_pass *p)
{
    return (size_t)p->f->model->embed_dim * ctw_dtype_bytes(p->f->dtype);
}

/* f->norm = the final hidden states of rows row0 .. row0+n-1. */
static enum ctw_status read_final(struct ctw_pass *p, const struct ctw_layer_data *data,
                                  int64_t row0, int64_t n, struct ctw_err *err)
{
    size_t row_bytes = row_bytes_of(p);
    if (p->final == NULL)
        return ctw_forward_read(p->f, data, row0, n, err);
    return ctw_device_upload(p->f->be, p->f->norm,
                             (const char *)p->final + (size_t)row0 * row_bytes,
                             (size_t)n * row_bytes, err);
}

/* Downloads them from f->norm to the sequence's `hidden`; index: of its n_targets targets. */
static enum ctw_status keep_hidden_of(struct ctw_pass *p, void *hidden, const int64_t *index,
                                      int64_t n_targets, int64_t row0, int64_t n,
                                      struct ctw_err *err)
{
    const struct ctw_layout *l = &p->layout;
    size_t row_bytes = row_bytes_of(p);
    enum ctw_status st = CTW_OK;
    for (int64_t t = 0, end; st == CTW_OK && t < n_targets; t = end) {
        const int64_t row = ctw_layout_row(l, index[t]);
        end = t + 1;
        if (row < row0 || row >= row0 + n)
            continue;
        while (end < n_targets && row + end - t < row0 + n &&
               ctw_layout_row(l, index[end]) == row + end - t)
            end++;
        st = ctw_device_download(p->f->be, (char *)hidden + (size_t)t * row_bytes,
                                 (char *)p->f->norm + (size_t)(row - row0) * row_bytes,
                                 (size_t)(end - t) * row_bytes, err);
    }
    return st;
}

static enum ctw_status keep_hidden(struct ctw_pass *p, int64_t row0, int64_t n, struct ctw_err *err)
{
    const int64_t *index = p->layout.target_index;
    enum ctw_status st = CTW_OK;
    for (int64_t i = 0; st == CTW_OK && i < p->layout.n_seqs; i++) {
        int64_t n_targets = p->seqs[i].n_tok - p->seqs[i].first;
        if (p->seqs[i].hidden != NULL)
            st = keep_hidden_of(p, p->seqs[i].hidden, index, n_targets, row0, n, err);
        index += n_targets;
    }
    return st;
}

enum ctw_status ctw_pass_head(struct ctw_pass *p, const struct ctw_layer_data *data, int64_t row0,
                              int64_t n, int64_t n_vocab, const struct ctw_kept_logits *keep,
                              struct ctw_err *err)
{
    enum ctw_status st = read_final(p, data, row0, n, err);
    for (int i = 0; st == CTW_OK && i < ctw_provider_parts(p->provider, p->layer); i++) {
        st = ctw_provider_acquire_part(p->provider, p->layer, i, err);
        if (st != CTW_OK)
            break;
        st = ctw_forward_head(p->f, data, row0, n, p->layout.first_target != NULL, n_vocab, keep,
                              err);
        ctw_provider_release_part(p->provider, p->layer, i);
    }
    if (st == CTW_OK)
        st = keep_hidden(p, row0, n, err);
    if (st == CTW_OK)
        st = ctw_pass_advance(p, ctw_plan_head_flops(p->f->model) * (double)n, p->layer, err);
    return st;
}

static enum ctw_status run_head(struct ctw_pass *p, const struct ctw_layer_data *data,
                                struct ctw_err *err)
{
    int64_t vocab = p->seqs[0].vocab != 0 ? p->seqs[0].vocab : p->f->model->vocab;
    int64_t n_rows = p->layout.n_rows, most = p->f->plan.chunk_tokens;
    enum ctw_status st = CTW_OK;
    if (n_rows > 0)
        ctw_provider_repeat(p->provider, (n_rows + most - 1) / most);
    for (int64_t row0 = 0; st == CTW_OK && row0 < n_rows; row0 += most)
        st = ctw_pass_head(p, data, row0, n_rows - row0 < most ? n_rows - row0 : most, vocab, NULL,
                           err);
    return st;
}

static enum ctw_status run_layer(struct ctw_pass *p, int layer, struct ctw_err *err)
{
    const struct ctw_model *m = p->f->model;
    const struct ctw_layer_data *data;
    enum ctw_status st = ctw_provider_acquire(p->provider, layer, &data, err);
    if (st != CTW_OK)
        return st;
    if (layer == 0)
        st = run_embedding(p, data, err);
    else if (layer <= m->n_decoders)
        st = run_decoder(p, layer, data, err);
    else
        st = run_head(p, data, err);
    ctw_provider_release(p->provider, layer);
    return st;
}

/* The layer after which a sequence's numbers were not finite: the lowest mark of its inputs. A
 * trunk's numbers are finite. */
static int first_bad_layer(const struct ctw_pass *p, int64_t seq)
{
    const struct ctw_layout *l = &p->layout;
    int layer = p->f->model->n_decoders;
    for (int64_t i = l->span_start[seq]; i < l->span_start[seq + 1]; i++)
        for (int64_t t = 0; t < l->spans[i].n_tok && l->spans[i].tok0 != CTW_OF_TRUNK; t++) {
            int16_t bad = p->bad[l->spans[i].tok0 + t];
            layer = bad >= 0 && bad < layer ? bad : layer;
        }
    return layer;
}

/* Numbers that are not finite make no trunk: who shares them shall know their layer. */
static void keep_trunk(struct ctw_pass *p)
{
    struct ctw_forward *f = p->f;
    const struct ctw_layout *l = &p->layout;
    const struct ctw_seq *seq = &p->seqs[l->left_seq];
    const int64_t long_from = ctw_plan_long_from(f->model);
    for (int i = 0; i < l->n_left_spans; i++)
        for (int64_t t = l->left[i].tok0; t < l->left[i].tok0 + l->left[i].n_tok; t++)
            if (p->bad[t] >= 0)
                return;
    if (l->n_left == 0)
        return;
    memcpy(f->trunk_tokens, seq->tokens, (size_t)l->n_left * sizeof(*f->trunk_tokens));
    f->has = (struct ctw_trunk){.tokens = f->trunk_tokens,
                                .n_tok = l->n_left,
                                .is_long = long_from > 0 && ctw_seq_inputs(seq) > long_from};
}

enum ctw_status ctw_pass_collect(struct ctw_pass *p, struct ctw_err *err)
{
    const struct ctw_forward *f = p->f;
    double queued_s = ctw_now_s(); /* a GPU is still computing */
    enum ctw_status st = ctw_device_download(f->be, p->results, f->results,
                                             (size_t)p->layout.n_targets * sizeof(*p->results), err);
    if (st == CTW_OK)
        st = ctw_device_download(f->be, p->bad, f->bad, (size_t)p->layout.n_tok * sizeof(*p->bad),
                                 err);
    if (st != CTW_OK)
        return st;
    const int64_t *index = p->layout.target_index;
    for (int64_t i = 0; i < p->layout.n_seqs; i++) {
        struct ctw_seq *seq = &p->seqs[i];
        seq->bad_layer = -1;
        for (int64_t t = 0; t < seq->n_tok - seq->first; t++) {
            const struct ctw_head_result *r = &p->results[*index++];
            seq->logprob[t] = r->logprob;
            seq->greedy[t] = r->greedy;
            if (!isfinite(r->logprob) && seq->bad_layer < 0)
                seq->bad_layer = first_bad_layer(p, i);
        }
    }
    keep_trunk(p);
    set_progress(p, 1);
    ctw_debug("pass: %" PRId64 " tokens, queued after %.1f ms, computed after %.1f ms; with what "
              "sequences share they are %" PRId64 "; %" PRId64
              " were read from an earlier pass, and "
              "%" PRId64 " are kept for the next",
              p->layout.n_tok, 1e3 * (queued_s - p->began_s), 1e3 * (ctw_now_s() - p->began_s),
              p->layout.n_asked, p->layout.n_of_trunk, p->f->has.n_tok);
    return CTW_OK;
}

enum ctw_status ctw_pass_begin(struct ctw_pass **out, struct ctw_forward *f,
                               struct ctw_provider *provider, struct ctw_seq *seqs, int64_t n_seqs,
                               const struct ctw_sharing *sharing, const struct ctw_hooks *hooks,
                               struct ctw_progress *progress, struct ctw_err *err)
{
    struct ctw_pass *p = ctw_calloc(1, sizeof(*p));
    if (p == NULL)
        return ctw_fail(err, CTW_ENOMEM, "out of memory for the tables of a pass");
    *p = (struct ctw_pass){.f = f,
                           .provider = provider,
                           .hooks = hooks,
                           .progress = progress,
                           .before = *progress,
                           .seqs = seqs,
                           .began_s = ctw_now_s()};
    enum ctw_status st = prepare(p, n_seqs, sharing, err);
    if (st == CTW_OK)
        st = upload(p, err);
    if (st != CTW_OK) {
        ctw_pass_close(p);
        return st;
    }
    *out = p;
    return CTW_OK;
}

enum ctw_status ctw_pass_step(struct ctw_pass *p, bool *done, struct ctw_err *err)
{
    enum ctw_status st = run_layer(p, p->layer, err);
    p->layer++;
    *done = p->layer == p->f->model->n_layers;
    return st == CTW_OK && *done ? ctw_pass_collect(p, err) : st;
}

bool ctw_pass_at_head(const struct ctw_pass *p)
{
    return p->layer == p->f->model->n_layers - 1;
}

void ctw_pass_skip_to_head(struct ctw_pass *p, const void *rows)
{
    p->final = rows;
    p->layer = p->f->model->n_layers - 1;
    p->cost_done = ctw_plan_layer_flops(p->f->model) * (double)p->layout.n_tok;
}

void ctw_pass_close(struct ctw_pass *p)
{
    if (p == NULL)
        return;
    ctw_layout_free(&p->layout);
    ctw_free(p->tokens_before);
    ctw_free(p->bad);
    ctw_free(p->results);
    ctw_free(p);
}
