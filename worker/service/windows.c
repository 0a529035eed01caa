#include "worker/service/windows.h"

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
    /* Its last target is the text's token predicted + k - 1; max_length + 1 tokens end there. */
    return (struct ctw_window){
        .start = predicted + k - max_length, .n_tok = max_length + 1, .first = max_length + 1 - k};
}

int64_t ctw_windows_input(int64_t n, int64_t max_length, int64_t context_length)
{
    if (n <= max_length)
        return n;
    return max_length * ctw_windows_count(n, max_length, context_length);
}
