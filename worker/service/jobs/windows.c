#include "worker/service/jobs/windows.h"

int64_t ctw_windows_count(int64_t n, int64_t max_length, int64_t context_length)
{
    if (n == 0)
        return 0;
    if (n <= max_length)
        return 1;
    int64_t step = max_length - context_length + 1;
    return 1 + (n - max_length + step - 1) / step;
}

struct ctw_window ctw_window_at(int64_t n, int64_t max_length, int64_t context_length, int64_t i)
{
    if (i == 0) {
        int64_t k = n < max_length ? n : max_length;
        return (struct ctw_window){.start = 0, .n_tok = k + 1, .first = 1};
    }
    int64_t step = max_length - context_length + 1;
    int64_t predicted = max_length + (i - 1) * step;
    int64_t k = n - predicted < step ? n - predicted : step;
    /* The last target is the text's token predicted + k - 1; max_length + 1 tokens end there. */
    return (struct ctw_window){
        .start = predicted + k - max_length, .n_tok = max_length + 1, .first = max_length + 1 - k};
}

/* ---- a client's rule ---- */

/* First target of window i. */
static int64_t rule_first(const struct ctw_cut_rule *r, int64_t i)
{
    int64_t seen = r->window - r->stride; /* tokens that it shares with the window before */
    return i > 0 && r->only_new && seen > r->first ? seen : r->first;
}

/* Windows of full length, whatever `rows` says. */
static int64_t full_windows(const struct ctw_cut_rule *r, int64_t n)
{
    return n < r->window ? 0 : (n - r->window) / r->stride + 1;
}

int64_t ctw_rule_count(const struct ctw_cut_rule *r, int64_t n)
{
    int64_t count = full_windows(r, n);
    bool ends = count > 0 && (count - 1) * r->stride + r->window == n; /* with the text */
    if (r->tail && !ends && n - count * r->stride > rule_first(r, count))
        count++;
    return r->rows > 0 && count > r->rows ? r->rows : count;
}

struct ctw_window ctw_rule_window(const struct ctw_cut_rule *r, int64_t n, int64_t i)
{
    int64_t start = i * r->stride;
    int64_t left = n - start;
    return (struct ctw_window){
        .start = start, .n_tok = left < r->window ? left : r->window, .first = rule_first(r, i)};
}

int64_t ctw_rule_input(const struct ctw_cut_rule *r, const struct ctw_window *w)
{
    return w->n_tok - 1 + (r->bos_mode == CTW_BOS_PREFIX);
}
