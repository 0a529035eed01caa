/* Two models that are compared go through the same passes, layer by layer. */
#include "base/mem.h"
#include "worker/engine/compare/exchange.h"
#include "worker/engine/score/scoring_state.h"

/* ---- beginning ---------------------------------------------------------------------------- */

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

bool ctw_scoring_both_share(const struct ctw_engine *e, const struct ctw_engine *reference,
                            const struct ctw_seq *seqs, int64_t n_seqs)
{
    return !e->no_share && !reference->no_share && !want_layers(seqs, n_seqs) &&
           !want_matrices(seqs, n_seqs);
}

/* Rows of targets are not shared. */
static struct ctw_need need_of(const struct ctw_engine *e, const struct ctw_seq *seqs,
                               int64_t n_seqs, int64_t longest, int64_t total, bool shares)
{
    struct ctw_need need = {.longest = longest, .total = total};
    int64_t n_rows = 0;
    if (!shares)
        return need;
    for (int64_t i = 0; i < n_seqs; i++)
        n_rows += seqs[i].n_tok - seqs[i].first;
    need = ctw_scoring_need(e, seqs, n_seqs, longest, total, NULL);
    need.total = n_rows > need.total ? n_rows : need.total;
    need.trunk = 0;
    return need;
}

enum ctw_status ctw_scoring_check_both(const struct ctw_engine *e,
                                       const struct ctw_engine *reference,
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
        st = ctw_scoring_check(e, seqs, n_seqs, longest, total, err);
    if (st != CTW_OK)
        return st;
    st = ctw_scoring_check(reference, seqs, n_seqs, longest, total, err);
    return st == CTW_OK ? st : ctw_fail_prefix(err, "the reference");
}

enum ctw_status ctw_scoring_begin_comparing(struct ctw_scoring **out, struct ctw_engine *e,
                                            struct ctw_engine *reference, struct ctw_seq *seqs,
                                            int64_t n_seqs, const struct ctw_hooks *hooks,
                                            struct ctw_err *err)
{
    int64_t longest, total;
    enum ctw_status st = ctw_scoring_check_both(e, reference, seqs, n_seqs, &longest, &total, err);
    if (st != CTW_OK)
        return st;
    struct ctw_scoring *s = ctw_calloc(1, sizeof(*s));
    if (s == NULL)
        return ctw_fail(err, CTW_ENOMEM, "out of memory");
    *s = (struct ctw_scoring){.n_sides = 2,
                              .n_seqs = n_seqs,
                              .shares = ctw_scoring_both_share(e, reference, seqs, n_seqs)};
    const struct ctw_need need = need_of(e, seqs, n_seqs, longest, total, s->shares);
    if (hooks != NULL)
        s->hooks = *hooks;
    s->both =
        (struct ctw_hooks){.arg = s, .progress = on_both_progress, .cancelled = on_both_cancelled};
    st = make_ref_seqs(s, seqs, err);
    if (st == CTW_OK && n_seqs > 0)
        st = ctw_engines_prepare(e, reference, &need, &s->compare, &s->pass_tokens, err);
    if (st == CTW_OK && want_layers(seqs, n_seqs))
        st = ctw_differences_open(&s->differences, e->be, e->model,
                                  s->pass_tokens > longest ? s->pass_tokens : longest, err);
    if (st == CTW_OK && want_matrices(seqs, n_seqs))
        st = ctw_exchange_open(&s->exchange, e, reference,
                               s->pass_tokens > longest ? s->pass_tokens : longest, err);
    if (st != CTW_OK) {
        ctw_engine_trim_here(e);
        ctw_engine_trim_here(reference);
        ctw_scoring_end(s);
        return st;
    }
    s->side[0] = ctw_scoring_side(e, seqs, total);
    s->side[1] = ctw_scoring_side(reference, s->ref_seqs, total);
    ctw_scoring_count_passes(s);
    *out = s;
    return CTW_OK;
}

/* ---- steps -------------------------------------------------------------------------------- */

/* Loads the final hidden states of the reference's pass, or arranges that they are kept. */
static enum ctw_status find_hidden(struct ctw_scoring *s, struct ctw_scoring_side *side,
                                   struct ctw_err *err)
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

/*
 * Runs the next layer of each pass, or both heads once both passes have reached them. If the
 * reference's final hidden states may be known, all layers of the model come first: a GPU computes
 * them while the states are read.
 */
enum ctw_status ctw_scoring_step_both(struct ctw_scoring *s, bool *pass_done, struct ctw_err *err)
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
