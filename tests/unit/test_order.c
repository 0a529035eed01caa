/* The order in which sequences share their beginnings, against its definition. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/order.h"

enum { MAX_LEAVES = 40, MAX_LEN = 200, N_TRIALS = 3000 };

static uint32_t rng = 1;

static int64_t below(int64_t n)
{
    rng = rng * 1664525u + 1013904223u;
    return (int64_t)(rng >> 8) % n;
}

static int32_t tokens[MAX_LEAVES][MAX_LEN];

/* Of few different tokens; many begin like an earlier one. */
static int64_t draw(struct ctw_leaf *leaves)
{
    int64_t n = below(MAX_LEAVES + 1);
    for (int64_t i = 0; i < n; i++) {
        int64_t n_tok = 2 + below(MAX_LEN - 1), like = i > 0 ? below(i) : 0;
        int64_t same = i > 0 ? below(leaves[like].n_tok + 1) : 0;
        same = same < n_tok ? same : n_tok;
        memcpy(tokens[i], tokens[like], (size_t)same * sizeof(**tokens));
        for (int64_t t = same; t < n_tok; t++)
            tokens[i][t] = (int32_t)below(3) - 1;
        leaves[i] = (struct ctw_leaf){tokens[i], n_tok, i, 77};
    }
    return n;
}

static int64_t common(const struct ctw_leaf *a, const struct ctw_leaf *b)
{
    int64_t n = 0;
    while (n < a->n_tok && n < b->n_tok && a->tokens[n] == b->tokens[n])
        n++;
    return n;
}

/* Does a come before b within a group? */
static bool is_before(const struct ctw_leaf *a, const struct ctw_leaf *b)
{
    int64_t n = common(a, b);
    if (n < a->n_tok && n < b->n_tok)
        return a->tokens[n] < b->tokens[n];
    return a->n_tok != b->n_tok ? a->n_tok < b->n_tok : a->index < b->index;
}

static void check_order(const struct ctw_leaf *leaves, int64_t n)
{
    bool seen[MAX_LEAVES] = {false};
    int64_t longest = 0, before = INT64_MAX; /* of this group, and of the one before */
    for (int64_t i = 0; i < n; i++) {
        assert_false(seen[leaves[i].index]);
        seen[leaves[i].index] = true;
        assert_ptr_equal(leaves[i].tokens, tokens[leaves[i].index]);
        int64_t same = i > 0 ? common(&leaves[i - 1], &leaves[i]) : 0;
        bool follows = i > 0 && leaves[i].same > 0;
        if (follows) {
            assert_int_equal(leaves[i].same, same);
            assert_true(is_before(&leaves[i - 1], &leaves[i]));
        }
        if (!follows) {
            assert_true(longest <= before);
            before = i > 0 ? longest : before;
            longest = 0;
        }
        longest = leaves[i].n_tok > longest ? leaves[i].n_tok : longest;
    }
    assert_true(longest <= before);
}

/* No leaf of another group has a beginning in common that is worth a branch. */
static void check_groups(const struct ctw_leaf *leaves, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t group = i;
        while (group > 0 && leaves[group].same > 0)
            group--;
        for (int64_t j = 0; j < group; j++) {
            int64_t same = common(&leaves[i], &leaves[j]);
            assert_true(same < CTW_BRANCH_TOKENS);
        }
    }
}

static void leaves_that_share_follow_one_another(void **state)
{
    (void)state;
    struct ctw_leaf leaves[3 * MAX_LEAVES];
    for (int trial = 0; trial < N_TRIALS; trial++) {
        int64_t n = draw(leaves);
        ctw_order_sort(leaves, n, leaves + n);
        check_order(leaves, n);
        check_groups(leaves, n);
    }
}

/* What shares nothing keeps the order that packs passes well: longest first, then as it came. */
static void without_sharing_the_longest_come_first(void **state)
{
    (void)state;
    struct ctw_leaf leaves[15];
    const int64_t n_tok[] = {5, 9, 3, 9, 5}, want[] = {1, 3, 0, 4, 2};
    for (int64_t i = 0; i < 5; i++) {
        for (int64_t t = 0; t < n_tok[i]; t++)
            tokens[i][t] = (int32_t)(t == 0 ? 1 : 10 - i); /* the same BOS */
        leaves[i] = (struct ctw_leaf){tokens[i], n_tok[i], i, 0};
    }
    ctw_order_sort(leaves, 5, leaves + 5);
    for (int64_t i = 0; i < 5; i++)
        assert_int_equal(leaves[i].index, want[i]);
}

static void few_tokens_are_worth_no_branch(void **state)
{
    (void)state;
    assert_int_equal(ctw_worth_sharing(CTW_BRANCH_TOKENS - 1, 100), 0);
    assert_int_equal(ctw_worth_sharing(CTW_BRANCH_TOKENS, 100), CTW_BRANCH_TOKENS);
    assert_int_equal(ctw_worth_sharing(5, 4), 4); /* all of them: no branch */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(leaves_that_share_follow_one_another),
        cmocka_unit_test(without_sharing_the_longest_come_first),
        cmocka_unit_test(few_tokens_are_worth_no_branch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
