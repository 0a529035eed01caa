#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/status.h"
#include "worker/service/windows.h"

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
        int64_t input = 0;
        for (int i = 0; i < golden[c].n_windows; i++) {
            struct ctw_window w = ctw_window_at(n, l, k, i);
            assert_int_equal(w.start, golden[c].windows[i].start);
            assert_int_equal(w.n_tok, golden[c].windows[i].n_tok);
            assert_int_equal(w.first, golden[c].windows[i].first);
            input += w.n_tok - 1;
        }
        assert_int_equal(ctw_windows_input(n, l, k), input);
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
                    assert_true(w.start >= 0 && w.first >= 1 && w.first < w.n_tok);
                    assert_true(i == 0 ? w.n_tok - 1 <= l : w.n_tok - 1 == l);
                    assert_true(i == 0 || w.first >= c);
                    next = w.start + w.n_tok;
                }
                assert_int_equal(next, n + 1);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(windows_are_those_of_lm_eval),
        cmocka_unit_test(every_token_is_predicted_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
