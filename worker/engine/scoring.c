/* Sequences become passes; a pass is scored layer by layer, again if its files change meanwhile. */
#include "base/log.h"
#include "base/mem.h"
#include "worker/checkpoint/identity.h"
#include "worker/engine/engine_state.h"
#include "worker/engine/pass.h"

struct ctw_scoring {
    struct ctw_engine *e;
    struct ctw_seq *seqs;
    int64_t n_seqs;
    struct ctw_hooks hooks;
    struct ctw_progress progress;
    /* the pass, of seqs[first .. first+n-1] */
    int64_t first, n;
    struct ctw_pass *pass; /* NULL: it has not begun */
    struct ctw_progress before;
    int n_tries;
};

static enum ctw_status check_seq(const struct ctw_engine *e, const struct ctw_seq *seq, int64_t i,
                                 struct ctw_err *err)
{
    if (seq->n_tok < 2 || seq->first < 1 || seq->first >= seq->n_tok)
        return ctw_fail(err, CTW_EINVAL,
                        "sequence %lld: needs at least one token before the first target and one "
                        "target (%lld tokens, first target at %lld)",
                        (long long)i, (long long)seq->n_tok, (long long)seq->first);
    if (ctw_seq_inputs(seq) > e->max_length)
        return ctw_fail(
            err, CTW_EINVAL,
            "sequence %lld: %lld input tokens exceed the maximum length of %lld: truncate it "
            "or raise --max-length",
            (long long)i, (long long)ctw_seq_inputs(seq), (long long)e->max_length);
    for (int64_t t = 0; t < seq->n_tok; t++)
        if (seq->tokens[t] < 0 || seq->tokens[t] >= e->model->vocab)
            return ctw_fail(err, CTW_EINVAL,
                            "sequence %lld: token %lld is %d, outside the vocabulary of %lld",
                            (long long)i, (long long)t, seq->tokens[t], (long long)e->model->vocab);
    return CTW_OK;
}

/* How many of the sequences from `first` on make up the next pass; at least one. */
static int64_t take_pass(const struct ctw_seq *seqs, int64_t first, int64_t n_seqs,
                         int64_t pass_tokens)
{
    int64_t n = 0, n_tok = 0;
    while (first + n < n_seqs) {
        int64_t more = ctw_seq_inputs(&seqs[first + n]);
        if (!ctw_pass_fits(n, n_tok, more, pass_tokens))
            break;
        n_tok += more;
        n++;
    }
    return n;
}

/*
 * Do the files still hold the identity's bytes? *touched: they were written to since the last
 * check, and hold the same bytes now; reads through the map in the meantime may have seen other
 * bytes.
 */
static enum ctw_status check_files(struct ctw_engine *e, bool *touched, struct ctw_err *err)
{
    struct ctw_model *m = e->model;
    enum ctw_status st = ctw_container_check(m->container, touched, err);
    if (st != CTW_OK || !*touched)
        return st;
    st = ctw_identity_verify(m->identity, m->container, e->n_threads, e->stop, err);
    if (st != CTW_OK)
        return st;
    ctw_container_accept(m->container);
    ctw_info("%s: the weights' files were written to, but hold the same bytes: continuing", m->dir);
    return CTW_OK;
}

static bool is_mapped(const struct ctw_engine *e)
{
    return ctw_backend_traits(e->be)->host_memory;
}

static enum ctw_status begin_pass(struct ctw_scoring *s, struct ctw_err *err)
{
    struct ctw_engine *e = s->e;
    /* A device has its own copy, digested as it was read, so the files may change after that. */
    bool touched;
    enum ctw_status st = is_mapped(e) ? check_files(e, &touched, err) : CTW_OK;
    s->n = take_pass(s->seqs, s->first, s->n_seqs, e->forward->plan.pass_tokens);
    s->before = s->progress;
    if (st == CTW_OK)
        st = ctw_pass_begin(&s->pass, e->forward, e->provider, s->seqs + s->first, s->n, &s->hooks,
                            &s->progress, err);
    return st;
}

/* All layers are done. If the files were written to meanwhile, the pass is to be repeated. */
static enum ctw_status end_pass(struct ctw_scoring *s, struct ctw_err *err)
{
    enum { MAX_TRIES = 4 };
    struct ctw_engine *e = s->e;
    bool reading = ctw_provider_needs_files(e->provider); /* will it read more? */
    bool touched = false;
    enum ctw_status st = e->files_checked ? CTW_OK : check_files(e, &touched, err);
    ctw_pass_close(s->pass);
    s->pass = NULL;
    if (st != CTW_OK)
        return st;
    e->files_checked = !reading;
    if (is_mapped(e) && touched) {
        s->progress = s->before;
        if (++s->n_tries < MAX_TRIES)
            return CTW_OK;
        return ctw_fail(err, CTW_EIO,
                        "the weights' files keep being written to; load the model again once they "
                        "are complete");
    }
    if (s->hooks.done != NULL)
        s->hooks.done(s->hooks.arg, s->first, s->n);
    s->progress.pass++;
    s->first += s->n;
    s->n_tries = 0;
    return CTW_OK;
}

enum ctw_status ctw_scoring_begin(struct ctw_scoring **out, struct ctw_engine *e,
                                  struct ctw_seq *seqs, int64_t n_seqs,
                                  const struct ctw_hooks *hooks, struct ctw_err *err)
{
    int64_t longest = 0, total = 0;
    for (int64_t i = 0; i < n_seqs; i++) {
        enum ctw_status st = check_seq(e, &seqs[i], i, err);
        if (st != CTW_OK)
            return st;
        int64_t n = ctw_seq_inputs(&seqs[i]);
        longest = n > longest ? n : longest;
        total += n;
    }
    enum ctw_status st = n_seqs > 0 ? ctw_engine_prepare(e, longest, total, err) : CTW_OK;
    if (st != CTW_OK)
        return st;
    struct ctw_scoring *s = ctw_calloc(1, sizeof(*s));
    if (s == NULL)
        return ctw_fail(err, CTW_ENOMEM, "out of memory");
    *s = (struct ctw_scoring){.e = e,
                              .seqs = seqs,
                              .n_seqs = n_seqs,
                              .progress = {.tok_total = total, .n_layers = e->model->n_layers}};
    if (hooks != NULL)
        s->hooks = *hooks;
    for (int64_t first = 0; first < n_seqs; s->progress.n_passes++)
        first += take_pass(seqs, first, n_seqs, e->forward->plan.pass_tokens);
    *out = s;
    return CTW_OK;
}

enum ctw_status ctw_scoring_step(struct ctw_scoring *s, bool *done, struct ctw_err *err)
{
    bool pass_done = false;
    enum ctw_status st = CTW_OK;
    if (s->pass == NULL && s->first < s->n_seqs)
        st = begin_pass(s, err);
    if (st == CTW_OK && s->pass != NULL)
        st = ctw_pass_step(s->pass, &pass_done, err);
    if (st == CTW_OK && pass_done)
        st = end_pass(s, err);
    *done = s->first == s->n_seqs;
    return st;
}

void ctw_scoring_end(struct ctw_scoring *s)
{
    if (s == NULL)
        return;
    ctw_pass_close(s->pass);
    ctw_free(s);
}

enum ctw_status ctw_engine_score(struct ctw_engine *e, struct ctw_seq *seqs, int64_t n_seqs,
                                 const struct ctw_hooks *hooks, struct ctw_err *err)
{
    struct ctw_scoring *s = NULL;
    bool done = false;
    enum ctw_status st = ctw_scoring_begin(&s, e, seqs, n_seqs, hooks, err);
    while (st == CTW_OK && !done)
        st = ctw_scoring_step(s, &done, err);
    ctw_scoring_end(s);
    return st;
}
