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

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* The tokens of `seq` that a pass with `before` may leave for it. */
static int64_t trunk_of(const struct ctw_seq *before, const struct ctw_seq *seq)
{
    int64_t most = min64(before->n_tok, seq->first) - 1;
    return ctw_common_tokens(before->tokens, seq->tokens, 0, most);
}

void ctw_engine_count(const struct ctw_engine *e, const struct ctw_seq *seqs, int64_t n_seqs,
                      int64_t *n_tok, int64_t *n_rows)
{
    const struct ctw_plan unlimited = {0};
    const struct ctw_plan *plan = e->forward != NULL ? &e->forward->plan : &unlimited;
    struct ctw_path path;
    ctw_path_begin(&path, plan, ctw_plan_long_from(e->model), !e->no_share,
                   e->forward != NULL && e->n_peers == 0 ? &e->forward->has : NULL);
    for (int64_t i = 0; i < n_seqs; i++) {
        const struct ctw_shared shared = ctw_path_shared(&path, &seqs[i]);
        ctw_path_add(&path, &seqs[i], &shared);
    }
    *n_tok = path.n_tok;
    *n_rows = path.n_rows;
}

struct ctw_need ctw_scoring_need(const struct ctw_engine *e, const struct ctw_seq *seqs,
                                 int64_t n_seqs, int64_t longest, int64_t total,
                                 const struct ctw_seq *next)
{
    const struct ctw_plan unlimited = {0};
    struct ctw_need need = {.longest = longest, .follows = next != NULL};
    struct ctw_path path;
    ctw_path_begin(&path, &unlimited, ctw_plan_long_from(e->model), !e->no_share, NULL);
    for (int64_t i = 0; i < n_seqs; i++) {
        const struct ctw_shared shared = ctw_path_shared(&path, &seqs[i]);
        const struct ctw_seq *then = i + 1 < n_seqs ? &seqs[i + 1] : next;
        int64_t trunk = then != NULL && !e->no_share ? trunk_of(&seqs[i], then) : 0;
        need.trunk = trunk > need.trunk ? trunk : need.trunk;
        ctw_path_add(&path, &seqs[i], &shared);
    }
    need.total = path.n_tok > path.n_rows ? path.n_tok : path.n_rows;
    need.shares = need.total < total || need.trunk >= CTW_BRANCH_TOKENS;
    return need;
}

/* The sequences that one side's pass takes. When comparing, each target has a row. */
static int64_t take_side(const struct ctw_scoring *s, int side, int64_t first,
                         const struct ctw_trunk *trunk)
{
    const struct ctw_engine *e = s->side[side].e;
    const struct ctw_seq *seqs = s->side[0].seqs;
    const struct ctw_plan *plan = &e->forward->plan;
    int64_t n = 0, most_rows = s->n_sides == 2 ? s->pass_tokens : plan->pass_tokens;
    struct ctw_path path;
    ctw_path_begin(&path, plan, ctw_plan_long_from(e->model), s->shares, trunk);
    path.own_rows = s->n_sides == 2;
    while (first + n < s->n_seqs && seqs[first + n].vocab == seqs[first].vocab) {
        const struct ctw_seq *seq = &seqs[first + n];
        const struct ctw_shared shared = ctw_path_shared(&path, seq);
        if (!ctw_pass_fits(n, path.n_tok, ctw_shared_new_tokens(&shared, seq), s->pass_tokens) ||
            !ctw_pass_fits(n, path.n_rows, ctw_shared_new_rows(&shared, seq), most_rows))
            break;
        ctw_path_add(&path, seq, &shared);
        n++;
    }
    return n;
}

int64_t ctw_scoring_take_pass(const struct ctw_scoring *s, int64_t first,
                              const struct ctw_trunk *trunk)
{
    int64_t n = take_side(s, 0, first, trunk);
    return s->n_sides == 2 ? min64(n, take_side(s, 1, first, NULL)) : n;
}

/* What the pass before sequence `first` is likely to leave. */
static struct ctw_trunk likely_trunk(const struct ctw_scoring *s, int64_t first)
{
    const struct ctw_engine *e = s->side[0].e;
    const struct ctw_seq *seq = &s->side[0].seqs[first];
    const int64_t long_from = ctw_plan_long_from(e->model);
    int64_t most = e->forward->plan.trunk_tokens;
    if (first == 0 || most == 0)
        return e->forward->has;
    return (struct ctw_trunk){.tokens = seq->tokens,
                              .n_tok = min64(trunk_of(seq - 1, seq), most),
                              .is_long = long_from > 0 && ctw_seq_inputs(seq) > long_from};
}

void ctw_scoring_count_passes(struct ctw_scoring *s)
{
    int n = 0;
    for (int64_t first = 0; first < s->n_seqs; n++) {
        const struct ctw_trunk trunk = likely_trunk(s, first);
        first += ctw_scoring_take_pass(s, first, &trunk);
    }
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
