/*
 * The windows of a rolling log-likelihood, exactly as lm-eval makes them
 * (get_rolling_token_windows, then make_disjoint_window; lm_eval/utils.py of 0.4.13): every token
 * is predicted once; the first window is conditioned on the prefix token; every other window is
 * extended to the left to the full input length.
 *
 * Positions count in the text with its prefix token: the prefix is at 0, token j of the text at
 * j + 1.
 */
#ifndef CTW_WORKER_WINDOWS_H
#define CTW_WORKER_WINDOWS_H

#include <stdint.h>

struct ctw_window {
    int64_t start; /* position of its first token */
    int64_t n_tok; /* tokens, the last target included: the model reads all but the last */
    int64_t first; /* its first target, counted from `start`; targets are first .. n_tok-1 */
};

/*
 * For a text of n tokens (the prefix not counted), 1 <= context_length <= max_length. No windows
 * for n = 0.
 */
int64_t ctw_windows_count(int64_t n, int64_t max_length, int64_t context_length);
/* Window i, 0 <= i < count, in the order of the text. */
struct ctw_window ctw_window_at(int64_t n, int64_t max_length, int64_t context_length, int64_t i);
/* Input tokens of all windows together. */
int64_t ctw_windows_input(int64_t n, int64_t max_length, int64_t context_length);

#endif
