#include "worker/engine/pass/trie.h"

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* ---- the path ----------------------------------------------------------------------------- */

void ctw_path_begin(struct ctw_path *p, const struct ctw_plan *plan, int64_t long_from, bool shares)
{
    *p = (struct ctw_path){.shares = shares,
                           .chunk_tokens = plan->chunk_tokens,
                           .long_from = long_from,
                           .most_forks = plan->states > 0 ? plan->states - CTW_STATES : -1};
    if (plan->carry_rows < plan->pass_tokens)
        p->most_chunks = plan->carry_rows / plan->chunk_tokens;
}

/* Of the path, which is cut before position n: the spans that are left, and the last one's end. */
static int spans_before(const struct ctw_path *p, int64_t n)
{
    int i = 0;
    while (i < p->n_spans && p->spans[i].pos0 < n)
        i++;
    return i;
}

/* A shorter beginning, if n ends a few tokens behind a span's beginning, or in too deep a span. */
static int64_t cut_short(const struct ctw_path *p, int64_t n)
{
    int i = spans_before(p, n);
    if (i == CTW_PATH_SPANS) {
        n = p->spans[i - 1].pos0;
        i--;
    }
    while (i > 0 && n - p->spans[i - 1].pos0 < CTW_BRANCH_TOKENS)
        n = p->spans[--i].pos0;
    return n;
}

/* Are the rows kept that the path's first n tokens and n_new further ones have in the chunks? */
static bool has_rows(const struct ctw_path *p, int64_t n, int64_t n_new)
{
    int64_t n_chunks = 0, before = -1;
    if (p->most_chunks == 0)
        return true;
    for (int i = 0; i <= p->n_spans; i++) {
        struct ctw_path_span s = {p->n_tok, n, n_new};
        if (i < p->n_spans && p->spans[i].pos0 < n) {
            s = p->spans[i];
            s.n_tok = min64(s.n_tok, n - s.pos0);
        } else if (i < p->n_spans) {
            continue;
        }
        int64_t first = s.tok0 / p->chunk_tokens, last = (s.tok0 + s.n_tok - 1) / p->chunk_tokens;
        n_chunks += last - max64(first, before + 1) + 1;
        before = last;
    }
    return n_chunks <= p->most_chunks;
}

/* The forks at positions up to n that are left if the path is cut there. */
static int forks_up_to(const struct ctw_path *p, int64_t n)
{
    int i = p->n_forks;
    while (i > 0 && p->forks[i - 1].pos > n)
        i--;
    return i;
}

/* States that were kept behind position n of the path at one time: at most so many. */
static int most_behind(const struct ctw_path *p, int64_t n)
{
    int i = forks_up_to(p, n), most = i > 0 ? p->forks[i - 1].most : 0;
    int cut = i < p->n_forks ? 1 + p->forks[i].most : 0;
    return cut > most ? cut : most;
}

/* The states are kept that a branch at n needs; if not, the last fork before, or 0. */
static int64_t fork_before(const struct ctw_path *p, int64_t n)
{
    int i = forks_up_to(p, n);
    if (p->most_forks < 0 || n == 0 || (i > 0 && p->forks[i - 1].pos == n))
        return n;
    if (i < CTW_PATH_SPANS && i + 1 + most_behind(p, n) <= p->most_forks)
        return n;
    return i > 0 ? p->forks[i - 1].pos : 0;
}

static void add_fork(struct ctw_path *p, int64_t n)
{
    int most = most_behind(p, n), i = forks_up_to(p, n);
    if (i == 0 || p->forks[i - 1].pos != n)
        p->forks[i++].pos = n;
    p->forks[i - 1].most = most;
    p->n_forks = i;
    for (int j = 0; j < i - 1; j++) {
        int behind = i - 1 - j + most;
        p->forks[j].most = behind > p->forks[j].most ? behind : p->forks[j].most;
    }
}

static bool is_long(const struct ctw_path *p, const struct ctw_seq *seq)
{
    return p->long_from > 0 && seq->n_tok - 1 > p->long_from;
}

struct ctw_shared ctw_path_shared(const struct ctw_path *p, const struct ctw_seq *seq)
{
    const struct ctw_seq *last = p->last;
    const int64_t n_inputs = seq->n_tok - 1;
    struct ctw_shared s = {.first_target = seq->first};
    if (!p->shares || last == NULL || is_long(p, last) != is_long(p, seq))
        return s;
    int64_t same = ctw_common_tokens(last->tokens, seq->tokens, 0, min64(last->n_tok, seq->n_tok));
    int64_t n = min64(min64(same, n_inputs), last->n_tok - 1);
    if (n < n_inputs)
        n = fork_before(p, cut_short(p, n));
    if (n < n_inputs && !has_rows(p, n, n_inputs - n))
        n = 0;
    s.n_tok = n;
    /* The row of target t is at position t - 1. */
    int64_t first = max64(seq->first, last->first), end = min64(same, n + 1);
    if (end > first) {
        s.first_target = first;
        s.n_targets = end - first;
    }
    return s;
}

void ctw_path_add(struct ctw_path *p, const struct ctw_seq *seq, const struct ctw_shared *shared)
{
    const int64_t n = shared->n_tok, n_new = ctw_shared_new_tokens(shared, seq);
    if (n_new > 0 && n > 0)
        add_fork(p, n);
    else
        p->n_forks = forks_up_to(p, n);
    p->n_spans = spans_before(p, n);
    if (p->n_spans > 0) {
        struct ctw_path_span *end = &p->spans[p->n_spans - 1];
        end->n_tok = min64(end->n_tok, n - end->pos0);
    }
    if (n_new > 0)
        p->spans[p->n_spans++] = (struct ctw_path_span){p->n_tok, n, n_new};
    p->n_tok += n_new;
    p->n_rows += ctw_shared_new_rows(shared, seq);
    p->last = seq;
}
