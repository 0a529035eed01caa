#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/status.h"
#include "worker/service/jobs/windows.h"

/*
 * Generated with lm_eval.utils.get_rolling_token_windows(range(n), -1, max_length, context_length)
 * and make_disjoint_window() of lm-eval 0.4.13: start, n_tok and first of each window. Positions
 * count from the prefix.
 */
static const struct {
    int n, max_length, context_length, n_windows;
    struct {
        int start, n_tok, first;
    } windows[28];
} golden[] = {
    {34, 10, 1, 4, {{0, 11, 1}, {10, 11, 1}, {20, 11, 1}, {24, 11, 7}}},
    {34, 10, 5, 5, {{0, 11, 1}, {6, 11, 5}, {12, 11, 5}, {18, 11, 5}, {24, 11, 5}}},
    {34, 10, 10, 25, {{0, 11, 1},   {1, 11, 10},  {2, 11, 10},  {3, 11, 10},  {4, 11, 10},
                      {5, 11, 10},  {6, 11, 10},  {7, 11, 10},  {8, 11, 10},  {9, 11, 10},
                      {10, 11, 10}, {11, 11, 10}, {12, 11, 10}, {13, 11, 10}, {14, 11, 10},
                      {15, 11, 10}, {16, 11, 10}, {17, 11, 10}, {18, 11, 10}, {19, 11, 10},
                      {20, 11, 10}, {21, 11, 10}, {22, 11, 10}, {23, 11, 10}, {24, 11, 10}}},
    {10, 4, 1, 3, {{0, 5, 1}, {4, 5, 1}, {6, 5, 3}}},
    {10, 5, 3, 3, {{0, 6, 1}, {3, 6, 3}, {5, 6, 4}}},
    {3, 4, 1, 1, {{0, 4, 1}}},
    {1, 4, 1, 1, {{0, 2, 1}}},
    {4, 4, 1, 1, {{0, 5, 1}}},
    {5, 4, 1, 2, {{0, 5, 1}, {1, 5, 4}}},
    {8, 4, 1, 2, {{0, 5, 1}, {4, 5, 1}}},
    {9, 4, 4, 6, {{0, 5, 1}, {1, 5, 4}, {2, 5, 4}, {3, 5, 4}, {4, 5, 4}, {5, 5, 4}}},
    {5, 1, 1, 5, {{0, 2, 1}, {1, 2, 1}, {2, 2, 1}, {3, 2, 1}, {4, 2, 1}}},
    {1, 1, 1, 1, {{0, 2, 1}}},
    {0, 4, 1, 0, {{0, 0, 0}}},
    {100, 37, 11, 4, {{0, 38, 1}, {27, 38, 11}, {54, 38, 11}, {63, 38, 29}}},
};

static void windows_are_those_of_lm_eval(void **state)
{
    (void)state;
    for (size_t c = 0; c < CTW_COUNT(golden); c++) {
        int64_t n = golden[c].n, l = golden[c].max_length, k = golden[c].context_length;
        assert_int_equal(ctw_windows_count(n, l, k), golden[c].n_windows);
        for (int i = 0; i < golden[c].n_windows; i++) {
            struct ctw_window w = ctw_window_at(n, l, k, i);
            assert_int_equal(w.start, golden[c].windows[i].start);
            assert_int_equal(w.n_tok, golden[c].windows[i].n_tok);
            assert_int_equal(w.first, golden[c].windows[i].first);
        }
    }
}

/* For all small sizes: every token is predicted once, in order, and no window is too long. */
static void every_token_is_predicted_once(void **state)
{
    (void)state;
    for (int64_t l = 1; l <= 12; l++) {
        for (int64_t c = 1; c <= l; c++) {
            for (int64_t n = 0; n <= 40; n++) {
                int64_t next = 1; /* position of the next token to predict */
                for (int64_t i = 0; i < ctw_windows_count(n, l, c); i++) {
                    struct ctw_window w = ctw_window_at(n, l, c, i);
                    assert_int_equal(w.start + w.first, next);
                    assert_true(w.start >= 0);
                    assert_true(w.first >= 1);
                    assert_true(w.first < w.n_tok);
                    assert_true(i == 0 ? w.n_tok - 1 <= l : w.n_tok - 1 == l);
                    assert_true(i == 0 || w.first >= c);
                    next = w.start + w.n_tok;
                }
                assert_int_equal(next, n + 1);
            }
        }
    }
}

/* ---- a client's rule ---- */

/* n, then window, stride, first, rows, only_new, tail, bos_mode; the windows were written by hand.
 */
static const struct {
    int64_t n;
    struct ctw_cut_rule rule;
    int n_windows;
    struct ctw_window windows[4];
} by_hand[] = {
    {10, {4, 4, 1, 0, false, false, 0, 0}, 2, {{0, 4, 1}, {4, 4, 1}}},
    {10, {4, 4, 1, 0, false, true, 0, 0}, 3, {{0, 4, 1}, {4, 4, 1}, {8, 2, 1}}},
    {9, {4, 4, 1, 0, false, true, 0, 0}, 2, {{0, 4, 1}, {4, 4, 1}}}, /* one token has no target */
    {9, {4, 4, 0, 0, false, true, CTW_BOS_PREFIX, 7}, 3, {{0, 4, 0}, {4, 4, 0}, {8, 1, 0}}},
    {8, {4, 4, 1, 1, false, true, 0, 0}, 1, {{0, 4, 1}}},
    {9, {4, 2, 1, 0, false, false, 0, 0}, 3, {{0, 4, 1}, {2, 4, 1}, {4, 4, 1}}},
    {9, {4, 2, 1, 0, true, true, 0, 0}, 4, {{0, 4, 1}, {2, 4, 2}, {4, 4, 2}, {6, 3, 2}}},
    {8,
     {4, 2, 1, 0, true, true, 0, 0},
     3,
     {{0, 4, 1}, {2, 4, 2}, {4, 4, 2}}}, /* ends with the text */
    {8, {4, 4, 3, 0, false, false, CTW_BOS_REPLACE, 7}, 2, {{0, 4, 3}, {4, 4, 3}}},
    {9, {4, 3, 2, 0, true, true, 0, 0}, 3, {{0, 4, 2}, {3, 4, 2}, {6, 3, 2}}},
    {3, {4, 4, 1, 0, false, false, 0, 0}, 0, {{0, 0, 0}}},
    {3, {4, 4, 1, 0, false, true, 0, 0}, 1, {{0, 3, 1}}},
    {1, {4, 4, 1, 0, false, true, 0, 0}, 0, {{0, 0, 0}}},
    {0, {4, 4, 0, 0, true, true, CTW_BOS_PREFIX, 7}, 0, {{0, 0, 0}}},
};

static void windows_follow_the_rule(void **state)
{
    (void)state;
    for (size_t c = 0; c < CTW_COUNT(by_hand); c++) {
        const struct ctw_cut_rule *r = &by_hand[c].rule;
        assert_int_equal(ctw_rule_count(r, by_hand[c].n), by_hand[c].n_windows);
        for (int i = 0; i < by_hand[c].n_windows; i++) {
            struct ctw_window w = ctw_rule_window(r, by_hand[c].n, i);
            assert_int_equal(w.start, by_hand[c].windows[i].start);
            assert_int_equal(w.n_tok, by_hand[c].windows[i].n_tok);
            assert_int_equal(w.first, by_hand[c].windows[i].first);
            assert_int_equal(ctw_rule_input(r, &w), w.n_tok - 1 + (r->bos_mode == CTW_BOS_PREFIX));
        }
    }
}

/* For all small rules: windows lie in the text, have targets, and with only_new and tail each token
 * from `first` on is scored once, in order. */
static void check_rule(const struct ctw_cut_rule *r, int64_t n)
{
    int64_t next = r->first, count = ctw_rule_count(r, n);
    bool whole = r->only_new && r->tail && r->rows == 0;
    for (int64_t i = 0; i < count; i++) {
        struct ctw_window w = ctw_rule_window(r, n, i);
        assert_true(w.start == i * r->stride);
        assert_true(w.start + w.n_tok <= n);
        assert_true(w.first >= r->first);
        assert_true(w.first < w.n_tok);
        assert_true(w.n_tok <= r->window);
        assert_true(w.n_tok == r->window || (r->tail && i == count - 1));
        if (whole && r->first <= r->window - r->stride) {
            assert_int_equal(w.start + w.first, next);
            next = w.start + w.n_tok;
        }
    }
    if (whole && r->first <= r->window - r->stride && n > r->first)
        assert_int_equal(next, n);
    if (!r->tail) /* the next window would not fit, unless `rows` stopped earlier */
        assert_true(count * r->stride + r->window > n || count == r->rows);
}

static void every_rule_keeps_its_bounds(void **state)
{
    (void)state;
    for (int64_t window = 2; window <= 7; window++)
        for (int64_t stride = 1; stride <= window; stride++)
            for (int64_t first = 0; first < window; first++)
                for (int64_t n = 0; n <= 25; n++)
                    for (int more = 0; more < 8; more++) {
                        struct ctw_cut_rule r = {window,   stride,   first, more & 4 ? 2 : 0,
                                                 more & 1, more & 2, 0,     0};
                        check_rule(&r, n);
                    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(windows_follow_the_rule),
        cmocka_unit_test(every_rule_keeps_its_bounds),
        cmocka_unit_test(windows_are_those_of_lm_eval),
        cmocka_unit_test(every_token_is_predicted_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
