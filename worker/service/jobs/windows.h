/*
 * Cuts texts into windows: the windows of a rolling log-likelihood, or the windows of a rule that
 * the client states. docs/PROTOCOL.md defines both for clients.
 */
#ifndef CTW_WORKER_WINDOWS_H
#define CTW_WORKER_WINDOWS_H

#include <stdbool.h>
#include <stdint.h>

struct ctw_window {
    int64_t start; /* position of its first token in the text */
    int64_t n_tok; /* tokens, the last target included: the model reads all but the last */
    int64_t first; /* its first target, counted from `start`; targets are first .. n_tok-1 */
};

/*
 * The windows of a rolling log-likelihood, exactly as lm-eval makes them
 * (get_rolling_token_windows, then make_disjoint_window; lm_eval/utils.py of 0.4.13): every token
 * is predicted once; the first window is conditioned on the prefix token; every other window is
 * extended to the left to the full input length.
 *
 * Positions count in the text with its prefix token: the prefix is at 0, token j of the text at
 * j + 1. For a text of n tokens (the prefix not counted), 1 <= context_length <= max_length. No
 * windows for n = 0.
 */
int64_t ctw_windows_count(int64_t n, int64_t max_length, int64_t context_length);
/* Window i, 0 <= i < count, in the order of the text. */
struct ctw_window ctw_window_at(int64_t n, int64_t max_length, int64_t context_length, int64_t i);

/* What is done with the BOS token of a rule. */
enum ctw_bos_mode {
    CTW_BOS_NONE,
    CTW_BOS_REPLACE, /* the model reads it in place of each window's first token */
    CTW_BOS_PREFIX   /* the model reads it before each window's first token */
};

/* Windows of the same length, at equal distances. Positions count in the text, without any BOS. */
struct ctw_cut_rule {
    int64_t window; /* tokens of a window, >= 2 */
    int64_t stride; /* tokens from one window's start to the next window's, 1 .. window */
    int64_t first;  /* first scored position of a window; 0 only with CTW_BOS_PREFIX; < window */
    int64_t rows;   /* at most this many windows of a text; 0: all */
    bool only_new;  /* later windows score only tokens behind the end of the window before */
    bool tail; /* a shorter window takes the tokens that are left at the end, if it scores any */
    enum ctw_bos_mode bos_mode;
    int32_t bos;
};

/* For a text of n tokens. No window is without a target. */
int64_t ctw_rule_count(const struct ctw_cut_rule *r, int64_t n);
/* Window i, 0 <= i < count, in the order of the text. */
struct ctw_window ctw_rule_window(const struct ctw_cut_rule *r, int64_t n, int64_t i);
/* Tokens that the model reads for window w, its last target not counted. */
int64_t ctw_rule_input(const struct ctw_cut_rule *r, const struct ctw_window *w);

#endif
