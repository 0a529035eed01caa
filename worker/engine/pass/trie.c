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

void ctw_path_begin(struct ctw_path *p, const struct ctw_plan *plan, int64_t long_from, bool shares,
                    const struct ctw_trunk *trunk)
{
    *p = (struct ctw_path){.shares = shares,
                           .chunk_tokens = plan->chunk_tokens,
                           .long_from = long_from,
                           .trunk_from = plan->trunk_from,
                           .trunk_most = shares ? plan->trunk_tokens : 0,
                           .most_forks = plan->states > 0 ? plan->states - CTW_STATES : -1};
    if (shares && trunk != NULL)
        p->trunk = *trunk;
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

/* The tokens that the path reads of the trunk. */
static int64_t of_trunk(const struct ctw_path *p)
{
    return p->n_spans > 0 && p->spans[0].tok0 == CTW_OF_TRUNK ? p->spans[0].n_tok : 0;
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
        if (s.tok0 == CTW_OF_TRUNK)
            continue;
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

/* The states are kept that a branch at n needs; if not, the last fork before, or 0. The trunk's
 * state, behind all of the trunk, is there throughout the pass and no fork of the list. */
static int64_t fork_before(const struct ctw_path *p, int64_t n)
{
    int i = forks_up_to(p, n);
    int64_t trunk = n >= of_trunk(p) ? of_trunk(p) : 0;
    if (p->most_forks < 0 || n == trunk || (i > 0 && p->forks[i - 1].pos == n))
        return n;
    if (n > of_trunk(p) && i < CTW_PATH_SPANS && i + 1 + most_behind(p, n) <= p->most_forks)
        return n;
    return i > 0 ? p->forks[i - 1].pos : trunk;
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

/* The hidden state that target t is scored from, at position t - 1, is not part of a trunk. */
int64_t ctw_path_of_trunk(const struct ctw_path *p, const struct ctw_seq *seq)
{
    if (p->trunk.n_tok == 0 || p->trunk.is_long != is_long(p, seq))
        return 0;
    int64_t most = min64(p->trunk.n_tok, seq->first - 1);
    if (p->most_forks >= 0 && most < p->trunk.n_tok)
        return 0;
    int64_t n = ctw_common_tokens(p->trunk.tokens, seq->tokens, 0, most);
    if (n < CTW_BRANCH_TOKENS || (p->most_forks >= 0 && n < p->trunk.n_tok))
        return 0;
    return n;
}

/* Sequences that branch off at a fork are likely to be followed by others. A state serves no other
 * place, so the last fork is taken unless that loses much. */
int64_t ctw_path_leaves(const struct ctw_path *p, const struct ctw_seq *next)
{
    const struct ctw_seq *last = p->last;
    if (p->trunk_most == 0 || is_long(p, last) != is_long(p, next))
        return 0;
    int64_t most = min64(p->trunk_most, min64(last->n_tok, next->first) - 1);
    int64_t n = cut_short(p, ctw_common_tokens(last->tokens, next->tokens, 0, most));
    int i = forks_up_to(p, n);
    if (p->most_forks >= 0 && i > 0 && p->forks[i - 1].pos >= n - n / 8)
        n = p->forks[i - 1].pos;
    return n >= p->trunk_from && n > of_trunk(p) ? n : 0;
}

/* Takes it from the trunk if the path has less. */
static struct ctw_shared or_of_trunk(const struct ctw_path *p, const struct ctw_seq *seq,
                                     struct ctw_shared s)
{
    int64_t n = s.n_tok < p->trunk.n_tok ? ctw_path_of_trunk(p, seq) : 0;
    if (n > s.n_tok)
        s = (struct ctw_shared){.n_tok = n, .first_target = seq->first, .of_trunk = true};
    return s;
}

struct ctw_shared ctw_path_shared(const struct ctw_path *p, const struct ctw_seq *seq)
{
    const struct ctw_seq *last = p->last;
    const int64_t n_inputs = seq->n_tok - 1;
    struct ctw_shared s = {.first_target = seq->first};
    if (!p->shares || last == NULL || is_long(p, last) != is_long(p, seq))
        return or_of_trunk(p, seq, s);
    int64_t same = ctw_common_tokens(last->tokens, seq->tokens, 0, min64(last->n_tok, seq->n_tok));
    int64_t n = min64(min64(same, n_inputs), last->n_tok - 1);
    if (seq->first - 1 < of_trunk(p)) /* it scores tokens of the trunk */
        n = min64(n, seq->first - 1);
    if (n < n_inputs)
        n = fork_before(p, cut_short(p, n));
    if (n < n_inputs && !has_rows(p, n, n_inputs - n))
        n = 0;
    s.n_tok = n;
    /* The row of target t is at position t - 1. */
    int64_t first = max64(seq->first, last->first), end = min64(same, n + 1);
    if (end > first && !p->own_rows) {
        s.first_target = first;
        s.n_targets = end - first;
    }
    return or_of_trunk(p, seq, s);
}

void ctw_path_add(struct ctw_path *p, const struct ctw_seq *seq, const struct ctw_shared *shared)
{
    const int64_t n = shared->n_tok, n_new = ctw_shared_new_tokens(shared, seq);
    if (shared->of_trunk) {
        p->spans[0] = (struct ctw_path_span){CTW_OF_TRUNK, 0, n};
        p->n_spans = 1;
        p->n_forks = 0;
    }
    if (n_new > 0 && n > of_trunk(p))
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
