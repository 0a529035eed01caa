#include "base/order.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

int64_t ctw_common_tokens(const int32_t *a, const int32_t *b, int64_t same, int64_t n)
{
    enum { BLOCK = 64 };
    while (same + BLOCK <= n && memcmp(a + same, b + same, BLOCK * sizeof(*a)) == 0)
        same += BLOCK;
    while (same < n && a[same] == b[same])
        same++;
    return same;
}

/* ---- the order ---------------------------------------------------------------------------- */

/* Does a come before b? The first `same` tokens are equal; *out: how many tokens are. */
static bool is_before(const struct ctw_leaf *a, const struct ctw_leaf *b, int64_t same,
                      int64_t *out)
{
    int64_t n = min64(a->n_tok, b->n_tok);
    same = *out = ctw_common_tokens(a->tokens, b->tokens, same, n);
    if (same < n)
        return a->tokens[same] < b->tokens[same];
    return a->n_tok != b->n_tok ? a->n_tok < b->n_tok : a->index < b->index;
}

/*
 * Merges the sorted halves of from[0 .. n-1]. The `same` of a half's next leaf counts tokens in
 * common with the leaf that was merged last: the leaf that has more of them comes first, and only
 * if the counts are equal are tokens compared, from there on.
 */
static void merge(const struct ctw_leaf *from, int64_t half, int64_t n, struct ctw_leaf *to)
{
    int64_t a = 0, b = half, same_a = from[0].same, same_b = from[half].same;
    for (int64_t i = 0; i < n; i++) {
        bool takes_a = b == n || (a < half && same_a > same_b);
        int64_t same = min64(same_a, same_b); /* of both next leaves */
        if (a < half && b < n && same_a == same_b)
            takes_a = is_before(&from[a], &from[b], same, &same);
        to[i] = takes_a ? from[a] : from[b];
        to[i].same = takes_a ? same_a : same_b;
        if (takes_a) {
            same_b = b < n ? same : 0;
            same_a = ++a < half ? from[a].same : 0;
        } else {
            same_a = a < half ? same : 0;
            same_b = ++b < n ? from[b].same : 0;
        }
    }
}

/* By tokens, bottom up: sorted runs of 1, 2, 4, .. leaves. */
static void sort_by_tokens(struct ctw_leaf *leaves, int64_t n, struct ctw_leaf *scratch)
{
    struct ctw_leaf *from = leaves, *to = scratch;
    for (int64_t i = 0; i < n; i++)
        leaves[i].same = 0;
    for (int64_t run = 1; run < n; run *= 2) {
        for (int64_t i = 0; i < n; i += 2 * run) {
            int64_t here = min64(2 * run, n - i);
            if (here > run)
                merge(from + i, run, here, to + i);
            else
                memcpy(to + i, from + i, (size_t)here * sizeof(*to));
        }
        struct ctw_leaf *swap = from;
        from = to;
        to = swap;
    }
    if (from != leaves)
        memcpy(leaves, from, (size_t)n * sizeof(*leaves));
}

int64_t ctw_worth_sharing(int64_t same, int64_t n_inputs)
{
    int64_t n = min64(same, n_inputs);
    return n == n_inputs || n >= CTW_BRANCH_TOKENS ? n : 0;
}

int64_t ctw_shared_tokens(const int32_t *a, int64_t n_a, const int32_t *b, int64_t n_b)
{
    return ctw_worth_sharing(ctw_common_tokens(a, b, 0, min64(n_a, n_b)), n_b);
}

/* Leaves first .. first + n - 1, each of which shares with the one before it. */
struct group {
    int64_t longest, lowest; /* the most tokens, and the lowest index, of its leaves */
    int64_t first, n;
};

_Static_assert(sizeof(struct group) <= sizeof(struct ctw_leaf), "groups fit in scratch");

static int compare_groups(const void *a_, const void *b_)
{
    const struct group *a = a_, *b = b_;
    if (a->longest != b->longest)
        return a->longest > b->longest ? -1 : 1;
    return (a->lowest > b->lowest) - (a->lowest < b->lowest);
}

static int64_t find_groups(const struct ctw_leaf *leaves, int64_t n, struct group *groups)
{
    int64_t n_groups = 0;
    for (int64_t i = 0; i < n; i++) {
        const struct ctw_leaf *l = &leaves[i];
        if (i == 0 || ctw_worth_sharing(l->same, l->n_tok - 1) == 0)
            groups[n_groups++] = (struct group){l->n_tok, l->index, i, 0};
        struct group *g = &groups[n_groups - 1];
        g->longest = max64(g->longest, l->n_tok);
        g->lowest = min64(g->lowest, l->index);
        g->n++;
    }
    return n_groups;
}

void ctw_order_sort(struct ctw_leaf *leaves, int64_t n, struct ctw_leaf *scratch)
{
    struct group *groups = (struct group *)(void *)(scratch + n);
    sort_by_tokens(leaves, n, scratch);
    int64_t n_groups = find_groups(leaves, n, groups);
    qsort(groups, (size_t)n_groups, sizeof(*groups), compare_groups);
    struct ctw_leaf *to = scratch;
    for (int64_t i = 0; i < n_groups; to += groups[i++].n) {
        memcpy(to, leaves + groups[i].first, (size_t)groups[i].n * sizeof(*to));
        to->same = 0; /* or so few that they do not count */
    }
    if (n > 0)
        memcpy(leaves, scratch, (size_t)n * sizeof(*leaves));
}
