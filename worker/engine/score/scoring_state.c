/* What scoring one model and comparing two have in common: checks, sides, the end. */
#include "worker/engine/score/scoring_state.h"

#include "base/mem.h"
#include "worker/engine/compare/exchange.h"
#include "worker/engine/open/activity.h"

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
    int64_t vocab = seq->vocab != 0 ? seq->vocab : e->model->vocab;
    if (vocab < 1 || vocab > e->model->vocab)
        return ctw_fail(err, CTW_EINVAL, "sequence %lld: a vocabulary of %lld is not in 1..%lld",
                        (long long)i, (long long)vocab, (long long)e->model->vocab);
    for (int64_t t = 0; t < seq->n_tok; t++)
        if (seq->tokens[t] < 0 || seq->tokens[t] >= vocab)
            return ctw_fail(err, CTW_EINVAL,
                            "sequence %lld: token %lld is %d, outside the vocabulary of %lld",
                            (long long)i, (long long)t, seq->tokens[t], (long long)vocab);
    return CTW_OK;
}

enum ctw_status ctw_scoring_check(const struct ctw_engine *e, const struct ctw_seq *seqs,
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

struct ctw_scoring_side ctw_scoring_side(struct ctw_engine *e, struct ctw_seq *seqs, int64_t total)
{
    return (struct ctw_scoring_side){
        .e = e, .seqs = seqs, .progress = {.tok_total = total, .n_layers = e->model->n_layers}};
}

int64_t ctw_scoring_need(const struct ctw_engine *e, const struct ctw_seq *seqs, int64_t n_seqs)
{
    const struct ctw_plan unlimited = {0};
    struct ctw_path path;
    ctw_path_begin(&path, &unlimited, ctw_plan_long_from(e->model), !e->no_share);
    for (int64_t i = 0; i < n_seqs; i++) {
        const struct ctw_shared shared = ctw_path_shared(&path, &seqs[i]);
        ctw_path_add(&path, &seqs[i], &shared);
    }
    return path.n_tok > path.n_rows ? path.n_tok : path.n_rows;
}

int64_t ctw_scoring_take_pass(const struct ctw_scoring *s, int64_t first)
{
    const struct ctw_engine *e = s->side[0].e;
    const struct ctw_seq *seqs = s->side[0].seqs;
    const struct ctw_plan *plan = &e->forward->plan;
    struct ctw_path path;
    int64_t n = 0;
    ctw_path_begin(&path, plan, ctw_plan_long_from(e->model), s->shares);
    while (first + n < s->n_seqs && seqs[first + n].vocab == seqs[first].vocab) {
        const struct ctw_seq *seq = &seqs[first + n];
        const struct ctw_shared shared = ctw_path_shared(&path, seq);
        if (!ctw_pass_fits(n, path.n_tok, ctw_shared_new_tokens(&shared, seq), s->pass_tokens) ||
            !ctw_pass_fits(n, path.n_rows, ctw_shared_new_rows(&shared, seq), plan->pass_tokens))
            break;
        ctw_path_add(&path, seq, &shared);
        n++;
    }
    return n;
}

void ctw_scoring_count_passes(struct ctw_scoring *s)
{
    int n = 0;
    for (int64_t first = 0; first < s->n_seqs; n++)
        first += ctw_scoring_take_pass(s, first);
    for (int i = 0; i < s->n_sides; i++)
        s->side[i].progress.n_passes = n;
}

void ctw_scoring_end(struct ctw_scoring *s)
{
    if (s == NULL)
        return;
    if (s->side[0].e != NULL)
        ctw_activity_end(s->side[0].e, CTW_OK, NULL);
    ctw_exchange_close(s->exchange); /* first: it may have the passes */
    for (int i = 0; i < s->n_sides; i++)
        ctw_pass_close(s->side[i].pass);
    ctw_compare_close(s->compare);
    ctw_differences_close(s->differences);
    ctw_free(s->ref_seqs);
    ctw_free(s->hidden);
    ctw_free(s);
}
