/* Sequences become passes; a pass is scored layer by layer, again if its files change meanwhile.
 * Two models that are compared have a pass each, of the same sequences. */
#include "base/log.h"
#include "base/mem.h"
#include "worker/checkpoint/identity.h"
#include "worker/engine/engine_state.h"
#include "worker/engine/exchange.h"
#include "worker/engine/pass.h"

/* One model's part. */
struct side {
    struct ctw_engine *e;
    struct ctw_seq *seqs; /* [n_seqs] */
    struct ctw_progress progress;
    /* the pass, of seqs[first .. first+n-1] */
    struct ctw_pass *pass; /* NULL: it has not begun */
    struct ctw_progress before;
};

struct ctw_scoring {
    struct side side[2]; /* the model; when comparing, the reference */
    int n_sides;
    int64_t n_seqs;
    int64_t pass_tokens;
    struct ctw_hooks hooks;
    struct ctw_hooks both; /* of both passes, when comparing */
    struct ctw_seq *ref_seqs;
    void *hidden;                    /* NULL, or the final hidden states of the reference's pass */
    bool hidden_asked, hidden_found; /* since the pass began; they were loaded */
    struct ctw_compare *compare;
    struct ctw_differences *differences; /* NULL: no sequence has `layers` */
    struct ctw_exchange *exchange;       /* NULL: no sequence has `matrices` */
    bool in_reference;                   /* the step that failed was the reference's */
    int64_t first, n;
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
    return e->placing.place == CTW_MAPPED;
}

/* Loads the final hidden states of the reference's pass, or arranges that they are kept. */
static enum ctw_status find_hidden(struct ctw_scoring *s, struct side *side, struct ctw_err *err)
{
    size_t row_bytes = (size_t)side->e->model->embed_dim * ctw_dtype_bytes(side->e->dtype);
    size_t n_rows = 0;
    for (int64_t i = s->first; i < s->first + s->n; i++)
        n_rows += (size_t)(side->seqs[i].n_tok - side->seqs[i].first);
    ctw_free(s->hidden);
    s->hidden = ctw_calloc(n_rows, row_bytes);
    if (s->hidden == NULL)
        return ctw_fail(err, CTW_ENOMEM, "out of memory for the final hidden states of a pass");
    s->hidden_asked = true;
    s->hidden_found = s->hooks.load_hidden(s->hooks.arg, s->first, s->n, s->hidden);
    if (s->hidden_found)
        ctw_pass_skip_to_head(side->pass, s->hidden);
    char *rows = s->hidden;
    for (int64_t i = s->first; i < s->first + s->n; i++) {
        side->seqs[i].hidden = s->hidden_found ? NULL : rows;
        rows += (size_t)(side->seqs[i].n_tok - side->seqs[i].first) * row_bytes;
    }
    return CTW_OK;
}

static enum ctw_status begin_pass(struct ctw_scoring *s, struct side *side, struct ctw_err *err)
{
    struct ctw_engine *e = side->e;
    /* Other providers have their own copy, digested as it was read. */
    bool touched;
    enum ctw_status st = is_mapped(e) ? check_files(e, &touched, err) : CTW_OK;
    s->n = take_pass(side->seqs, s->first, s->n_seqs, s->pass_tokens);
    side->before = side->progress;
    if (st == CTW_OK)
        st = ctw_pass_begin(&side->pass, e->forward, e->provider, side->seqs + s->first, s->n,
                            s->n_sides == 2 ? &s->both : &s->hooks, &side->progress, err);
    s->hidden_asked = false;
    return st;
}

/* All layers are done. *again: the files were written to meanwhile. */
static enum ctw_status end_side(struct side *side, bool *again, struct ctw_err *err)
{
    struct ctw_engine *e = side->e;
    bool reading = ctw_provider_needs_files(e->provider); /* will it read more? */
    bool touched = false;
    enum ctw_status st = e->files_checked ? CTW_OK : check_files(e, &touched, err);
    ctw_pass_close(side->pass);
    side->pass = NULL;
    if (st != CTW_OK)
        return st;
    e->files_checked = !reading;
    *again |= is_mapped(e) && touched;
    return CTW_OK;
}

/* Reports the pass's results, or arranges that it is repeated. */
static enum ctw_status end_pass(struct ctw_scoring *s, struct ctw_err *err)
{
    enum { MAX_TRIES = 4 };
    bool again = false;
    enum ctw_status st = CTW_OK;
    for (int i = 0; st == CTW_OK && i < s->n_sides; i++) {
        s->in_reference = i == 1;
        st = end_side(&s->side[i], &again, err);
    }
    if (st != CTW_OK)
        return st;
    if (again) {
        for (int i = 0; i < s->n_sides; i++)
            s->side[i].progress = s->side[i].before;
        if (++s->n_tries < MAX_TRIES)
            return CTW_OK;
        return ctw_fail(err, CTW_EIO,
                        "the weights' files keep being written to; load the model again once they "
                        "are complete");
    }
    if (s->hidden_asked && !s->hidden_found)
        s->hooks.keep_hidden(s->hooks.arg, s->first, s->n, s->hidden);
    if (s->hooks.done != NULL)
        s->hooks.done(s->hooks.arg, s->first, s->n);
    for (int i = 0; i < s->n_sides; i++)
        s->side[i].progress.pass++;
    s->first += s->n;
    s->n_tries = 0;
    return CTW_OK;
}

/* Checks all sequences, and measures them. */
static enum ctw_status check_seqs(const struct ctw_engine *e, const struct ctw_seq *seqs,
                                  int64_t n_seqs, int64_t *longest, int64_t *total,
                                  struct ctw_err *err)
{
    *longest = *total = 0;
    for (int64_t i = 0; i < n_seqs; i++) {
        enum ctw_status st = check_seq(e, &seqs[i], i, err);
        if (st != CTW_OK)
            return st;
        int64_t n = ctw_seq_inputs(&seqs[i]);
        *longest = n > *longest ? n : *longest;
        *total += n;
    }
    return CTW_OK;
}

static struct side side_of(struct ctw_engine *e, struct ctw_seq *seqs, int64_t total)
{
    return (struct side){
        .e = e, .seqs = seqs, .progress = {.tok_total = total, .n_layers = e->model->n_layers}};
}

static void count_passes(struct ctw_scoring *s)
{
    int n = 0;
    for (int64_t first = 0; first < s->n_seqs; n++)
        first += take_pass(s->side[0].seqs, first, s->n_seqs, s->pass_tokens);
    for (int i = 0; i < s->n_sides; i++)
        s->side[i].progress.n_passes = n;
}

enum ctw_status ctw_scoring_begin(struct ctw_scoring **out, struct ctw_engine *e,
                                  struct ctw_seq *seqs, int64_t n_seqs,
                                  const struct ctw_hooks *hooks, struct ctw_err *err)
{
    int64_t longest, total;
    enum ctw_status st = check_seqs(e, seqs, n_seqs, &longest, &total, err);
    if (e->share > 0) /* its buffers are for comparing */
        ctw_engine_trim(e);
    if (st == CTW_OK && n_seqs > 0)
        st = ctw_engine_prepare(e, longest, total, err);
    if (st != CTW_OK)
        return st;
    struct ctw_scoring *s = ctw_calloc(1, sizeof(*s));
    if (s == NULL)
        return ctw_fail(err, CTW_ENOMEM, "out of memory");
    *s = (struct ctw_scoring){.side = {side_of(e, seqs, total)}, .n_sides = 1, .n_seqs = n_seqs};
    if (n_seqs > 0)
        s->pass_tokens = e->forward->plan.pass_tokens;
    if (hooks != NULL)
        s->hooks = *hooks;
    count_passes(s);
    *out = s;
    return CTW_OK;
}

/* ---- two models --------------------------------------------------------------------------- */

static void on_both_progress(void *arg, const struct ctw_progress *p)
{
    const struct ctw_scoring *s = arg;
    struct ctw_progress both = s->side[0].progress;
    (void)p;
    both.tok_done = (both.tok_done + s->side[1].progress.tok_done) / 2;
    if (s->exchange != NULL) {
        int64_t before = s->side[0].before.tok_done;
        double in_pass = (double)(both.tok_done - before);
        both.tok_done = before + (int64_t)(in_pass * ctw_exchange_done(s->exchange));
    }
    if (s->hooks.progress != NULL)
        s->hooks.progress(s->hooks.arg, &both);
}

static bool on_both_cancelled(void *arg)
{
    const struct ctw_scoring *s = arg;
    return s->hooks.cancelled != NULL && s->hooks.cancelled(s->hooks.arg);
}

/* The reference's sequences: the same tokens, other results. */
static enum ctw_status make_ref_seqs(struct ctw_scoring *s, const struct ctw_seq *seqs,
                                     struct ctw_err *err)
{
    s->ref_seqs = ctw_calloc((size_t)s->n_seqs + 1, sizeof(*s->ref_seqs));
    if (s->ref_seqs == NULL)
        return ctw_fail(err, CTW_ENOMEM, "out of memory");
    for (int64_t i = 0; i < s->n_seqs; i++)
        s->ref_seqs[i] = (struct ctw_seq){.tokens = seqs[i].tokens,
                                          .n_tok = seqs[i].n_tok,
                                          .first = seqs[i].first,
                                          .logprob = seqs[i].divergence->ref_logprob,
                                          .greedy = seqs[i].divergence->ref_greedy};
    return CTW_OK;
}

static bool want_matrices(const struct ctw_seq *seqs, int64_t n_seqs)
{
    for (int64_t i = 0; i < n_seqs; i++)
        if (seqs[i].divergence->matrices != NULL)
            return true;
    return false;
}

static bool want_layers(const struct ctw_seq *seqs, int64_t n_seqs)
{
    for (int64_t i = 0; i < n_seqs; i++)
        if (seqs[i].divergence->layers != NULL)
            return true;
    return false;
}

static enum ctw_status check_both(const struct ctw_engine *e, const struct ctw_engine *reference,
                                  const struct ctw_seq *seqs, int64_t n_seqs, int64_t *longest,
                                  int64_t *total, struct ctw_err *err)
{
    int64_t n_matrices;
    enum ctw_status st = ctw_engines_comparable(e, reference, NULL, err);
    if (st == CTW_OK && want_layers(seqs, n_seqs))
        st = ctw_engines_layers_comparable(e, reference, err);
    if (st == CTW_OK && want_matrices(seqs, n_seqs))
        st = ctw_engines_exchangeable(e, reference, &n_matrices, err);
    if (st == CTW_OK)
        st = check_seqs(e, seqs, n_seqs, longest, total, err);
    if (st != CTW_OK)
        return st;
    st = check_seqs(reference, seqs, n_seqs, longest, total, err);
    return st == CTW_OK ? st : ctw_fail_prefix(err, "the reference");
}

enum ctw_status ctw_scoring_begin_comparing(struct ctw_scoring **out, struct ctw_engine *e,
                                            struct ctw_engine *reference, struct ctw_seq *seqs,
                                            int64_t n_seqs, const struct ctw_hooks *hooks,
                                            struct ctw_err *err)
{
    int64_t longest, total;
    enum ctw_status st = check_both(e, reference, seqs, n_seqs, &longest, &total, err);
    if (st != CTW_OK)
        return st;
    struct ctw_scoring *s = ctw_calloc(1, sizeof(*s));
    if (s == NULL)
        return ctw_fail(err, CTW_ENOMEM, "out of memory");
    *s = (struct ctw_scoring){.n_sides = 2, .n_seqs = n_seqs};
    if (hooks != NULL)
        s->hooks = *hooks;
    s->both =
        (struct ctw_hooks){.arg = s, .progress = on_both_progress, .cancelled = on_both_cancelled};
    st = make_ref_seqs(s, seqs, err);
    if (st == CTW_OK && n_seqs > 0)
        st = ctw_engines_prepare(e, reference, longest, total, &s->compare, &s->pass_tokens, err);
    if (st == CTW_OK && want_layers(seqs, n_seqs))
        st = ctw_differences_open(&s->differences, e->be, e->model,
                                  s->pass_tokens > longest ? s->pass_tokens : longest, err);
    if (st == CTW_OK && want_matrices(seqs, n_seqs))
        st = ctw_exchange_open(&s->exchange, e, reference,
                               s->pass_tokens > longest ? s->pass_tokens : longest, err);
    if (st != CTW_OK) {
        ctw_engine_trim(e);
        ctw_engine_trim(reference);
        ctw_scoring_end(s);
        return st;
    }
    s->side[0] = side_of(e, seqs, total);
    s->side[1] = side_of(reference, s->ref_seqs, total);
    count_passes(s);
    *out = s;
    return CTW_OK;
}

/*
 * The next layer of each pass; once both are at their heads, both heads. If the reference's final
 * hidden states may be known, all layers of the model come first: a GPU computes them while the
 * states are read.
 */
static enum ctw_status step_both(struct ctw_scoring *s, bool *pass_done, struct ctw_err *err)
{
    struct ctw_pass *model = s->side[0].pass, *reference = s->side[1].pass;
    bool is_read = s->differences != NULL || s->exchange != NULL; /* the reference's layers */
    s->in_reference = false;
    if (s->hooks.load_hidden != NULL && !is_read && !s->hidden_asked) {
        bool done;
        if (!ctw_pass_at_head(model))
            return ctw_pass_step(model, &done, err);
        enum ctw_status st = find_hidden(s, &s->side[1], err);
        if (st != CTW_OK)
            return st;
    }
    enum ctw_status st = CTW_OK;
    if (s->exchange != NULL && ctw_exchange_is_running(s->exchange))
        return ctw_exchange_step(s->exchange, s->compare, pass_done, &s->in_reference, err);
    *pass_done = ctw_pass_at_head(model) && ctw_pass_at_head(reference);
    if (*pass_done) {
        st = ctw_compare_heads(s->compare, model, reference, &s->in_reference, err);
        if (st == CTW_OK && s->exchange != NULL) {
            st = ctw_exchange_begin(s->exchange, model, reference, err);
            *pass_done = false;
        }
        return st;
    }
    for (int i = 0; st == CTW_OK && i < s->n_sides; i++) {
        bool done;
        s->in_reference = i == 1;
        if (!ctw_pass_at_head(s->side[i].pass))
            st = ctw_pass_step(s->side[i].pass, &done, err);
    }
    if (st == CTW_OK && s->differences != NULL)
        st = ctw_differences_take(s->differences, model, reference, err);
    return st;
}

/* ---- one or two models -------------------------------------------------------------------- */

enum ctw_status ctw_scoring_step(struct ctw_scoring *s, bool *done, struct ctw_err *err)
{
    bool pass_done = false;
    enum ctw_status st = CTW_OK;
    for (int i = 0; st == CTW_OK && i < s->n_sides; i++) {
        s->in_reference = i == 1;
        if (s->side[i].pass == NULL && s->first < s->n_seqs)
            st = begin_pass(s, &s->side[i], err);
    }
    if (st == CTW_OK && s->side[0].pass != NULL)
        st = s->n_sides == 2 ? step_both(s, &pass_done, err)
                             : ctw_pass_step(s->side[0].pass, &pass_done, err);
    if (st == CTW_OK && pass_done)
        st = end_pass(s, err);
    *done = s->first == s->n_seqs;
    return st;
}

void ctw_scoring_end(struct ctw_scoring *s)
{
    if (s == NULL)
        return;
    ctw_exchange_close(s->exchange); /* first: it may have the passes */
    for (int i = 0; i < s->n_sides; i++)
        ctw_pass_close(s->side[i].pass);
    ctw_compare_close(s->compare);
    ctw_differences_close(s->differences);
    ctw_free(s->ref_seqs);
    ctw_free(s->hidden);
    ctw_free(s);
}

/* Steps to the end. */
static enum ctw_status run(struct ctw_scoring *s, bool *in_reference, struct ctw_err *err)
{
    bool done = false;
    enum ctw_status st = CTW_OK;
    while (st == CTW_OK && !done)
        st = ctw_scoring_step(s, &done, err);
    if (in_reference != NULL)
        *in_reference = s->in_reference;
    ctw_scoring_end(s);
    return st;
}

enum ctw_status ctw_engine_score(struct ctw_engine *e, struct ctw_seq *seqs, int64_t n_seqs,
                                 const struct ctw_hooks *hooks, struct ctw_err *err)
{
    struct ctw_scoring *s;
    enum ctw_status st = ctw_scoring_begin(&s, e, seqs, n_seqs, hooks, err);
    return st == CTW_OK ? run(s, NULL, err) : st;
}

enum ctw_status ctw_engine_compare(struct ctw_engine *e, struct ctw_engine *reference,
                                   struct ctw_seq *seqs, int64_t n_seqs,
                                   const struct ctw_hooks *hooks, bool *in_reference,
                                   struct ctw_err *err)
{
    struct ctw_scoring *s;
    if (in_reference != NULL)
        *in_reference = false;
    enum ctw_status st = ctw_scoring_begin_comparing(&s, e, reference, seqs, n_seqs, hooks, err);
    return st == CTW_OK ? run(s, in_reference, err) : st;
}
