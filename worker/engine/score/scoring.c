/* Makes passes of sequences, and scores a pass layer by layer. A pass is repeated if its files
 * change meanwhile. Comparing runs a pass of the same sequences for each model (scoring_both.c). */
#include <time.h>

#include "base/log.h"
#include "base/mem.h"
#include "worker/checkpoint/identity.h"
#include "worker/engine/compare/exchange.h"
#include "worker/engine/open/activity.h"
#include "worker/engine/score/scoring_state.h"

static bool is_mapped(const struct ctw_engine *e)
{
    return e->placing.place == CTW_MAPPED;
}

/*
 * Do the files still hold the identity's bytes? *touched: the files were written to since the last
 * check and hold the same bytes now; reads through the map in the meantime may have seen other
 * bytes. `scored`: results were computed from these bytes; mapped files that are not settled yet
 * are then digested again.
 */
static enum ctw_status check_files(struct ctw_engine *e, bool scored, bool *touched,
                                   struct ctw_err *err)
{
    struct ctw_model *m = e->model;
    struct ctw_container *c = m->container;
    pthread_mutex_lock(e->files);
    enum ctw_status st = ctw_container_check(c, touched, err);
    bool in_doubt = scored && is_mapped(e) && !ctw_container_is_settled(c);
    if (st == CTW_OK && (*touched || in_doubt)) {
        bool settled = ctw_container_settle(c, (int64_t)time(NULL));
        st = ctw_identity_verify(m->identity, c, e->n_threads, e->stop, err);
        if (st == CTW_OK)
            ctw_container_accept(c, settled);
        if (st == CTW_OK && *touched)
            ctw_info("%s: the weights' files were written to, but hold the same bytes: continuing",
                     m->dir);
    }
    pthread_mutex_unlock(e->files);
    return st;
}

/* What comes after the pass's sequences; NULL: not known. */
static const struct ctw_seq *next_of(const struct ctw_scoring *s)
{
    int64_t next = s->first + s->n;
    return next < s->n_seqs ? &s->side[0].seqs[next] : s->hooks.next;
}

static enum ctw_status begin_pass(struct ctw_scoring *s, struct ctw_scoring_side *side,
                                  struct ctw_err *err)
{
    struct ctw_engine *e = side->e;
    /* Other providers have their own copy, digested as it was read. */
    bool touched;
    enum ctw_status st = is_mapped(e) ? check_files(e, false, &touched, err) : CTW_OK;
    s->n = ctw_scoring_take_pass(s, s->first, &s->side[0].e->forward->has);
    if (side->progress.n_passes <= side->progress.pass) /* trunks were not what was expected */
        side->progress.n_passes = side->progress.pass + 1;
    side->before = side->progress;
    const struct ctw_sharing sharing = {.shares = s->shares,
                                        .own_rows = s->n_sides == 2,
                                        .trunk = &e->forward->has,
                                        .next = next_of(s)};
    if (st == CTW_OK)
        st = ctw_pass_begin(&side->pass, e->forward, e->provider, side->seqs + s->first, s->n,
                            &sharing, s->n_sides == 2 ? &s->both : &s->hooks, &side->progress, err);
    s->hidden_asked = false;
    if (st == CTW_OK && side == &s->side[0])
        ctw_activity_begin_pass(e);
    return st;
}

/* Called when all layers are done. *again: the files were written to meanwhile. */
static enum ctw_status end_side(struct ctw_scoring_side *side, bool *again, struct ctw_err *err)
{
    struct ctw_engine *e = side->e;
    bool reading = ctw_provider_needs_files(e->provider); /* will it read more? */
    bool touched = false;
    enum ctw_status st = e->files_checked ? CTW_OK : check_files(e, true, &touched, err);
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
        for (int i = 0; i < s->n_sides; i++) {
            s->side[i].progress = s->side[i].before;
            ctw_forward_forget_trunk(s->side[i].e->forward);
        }
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
    ctw_activity_end_pass(s->side[0].e, s->side[0].progress.tok_done - s->side[0].before.tok_done);
    s->first += s->n;
    s->n_tries = 0;
    return CTW_OK;
}

/* Tokens of a pass if all passes have about the same number: a short pass would decode weights for
 * few tokens. */
static int64_t equal_share(int64_t most, int64_t total, int64_t longest)
{
    int64_t n = total / most + (total % most > 0), share = total / n + longest;
    return share < most ? share : most;
}

enum ctw_status ctw_scoring_begin(struct ctw_scoring **out, struct ctw_engine *e,
                                  struct ctw_seq *seqs, int64_t n_seqs,
                                  const struct ctw_hooks *hooks, struct ctw_err *err)
{
    int64_t longest, total;
    struct ctw_need need = {0};
    enum ctw_status st = ctw_scoring_check(e, seqs, n_seqs, &longest, &total, err);
    if (e->share > 0) /* its buffers are for comparing */
        ctw_engine_trim_here(e);
    if (st == CTW_OK && n_seqs > 0) {
        need =
            ctw_scoring_need(e, seqs, n_seqs, longest, total, hooks != NULL ? hooks->next : NULL);
        st = ctw_engine_prepare(e, &need, err);
    }
    if (st != CTW_OK)
        return st;
    struct ctw_scoring *s = ctw_calloc(1, sizeof(*s));
    if (s == NULL)
        return ctw_fail(err, CTW_ENOMEM, "out of memory");
    *s = (struct ctw_scoring){.side = {ctw_scoring_side(e, seqs, total)},
                              .n_sides = 1,
                              .n_seqs = n_seqs,
                              .shares = !e->no_share};
    if (n_seqs > 0)
        s->pass_tokens = equal_share(e->forward->plan.pass_tokens, need.total, longest);
    if (hooks != NULL)
        s->hooks = *hooks;
    ctw_scoring_count_passes(s);
    *out = s;
    return CTW_OK;
}

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
        st = s->n_sides == 2 ? ctw_scoring_step_both(s, &pass_done, err)
                             : ctw_pass_step(s->side[0].pass, &pass_done, err);
    if (st == CTW_OK && pass_done)
        st = end_pass(s, err);
    else if (st == CTW_OK && s->n_seqs > 0)
        ctw_activity_next_layer(s->side[0].e);
    *done = s->first == s->n_seqs;
    return st;
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
    if (st != CTW_OK)
        ctw_activity_end(s->side[0].e, st, err);
    ctw_scoring_end(s);
    return st;
}

enum ctw_status ctw_engine_score_here(struct ctw_engine *e, struct ctw_seq *seqs, int64_t n_seqs,
                                      const struct ctw_hooks *hooks, struct ctw_err *err)
{
    struct ctw_scoring *s;
    enum ctw_status st = ctw_scoring_begin(&s, e, seqs, n_seqs, hooks, err);
    if (st == CTW_OK)
        return run(s, NULL, err);
    ctw_activity_end(e, st, err);
    return st;
}

enum ctw_status ctw_engine_compare_here(struct ctw_engine *e, struct ctw_engine *reference,
                                        struct ctw_seq *seqs, int64_t n_seqs,
                                        const struct ctw_hooks *hooks, bool *in_reference,
                                        struct ctw_err *err)
{
    struct ctw_scoring *s;
    enum ctw_status st = ctw_scoring_begin_comparing(&s, e, reference, seqs, n_seqs, hooks, err);
    if (st == CTW_OK)
        return run(s, in_reference, err);
    ctw_activity_end(e, st, err);
    return st;
}
