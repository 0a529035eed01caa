/* The windows of Qwen 2 and 3. */
#ifndef CTW_WORKER_QWEN_H
#define CTW_WORKER_QWEN_H

#include "worker/model/families/family.h"

/*
 * If use_sliding_window, the layers from max_window_layers (or absent_first) on have the window,
 * unless layer_types says otherwise. Else sliding_window may be anything, since the class ignores
 * it.
 */
static inline const int64_t *qwen_windows(struct ctw_config *c, int64_t n_layers,
                                          int64_t absent_first)
{
    bool on = ctw_key_bool(c, "use_sliding_window", false);
    int64_t window = ctw_key_int(c, "sliding_window", 4096, 0, -(1 << 30), 1 << 30);
    int64_t first = ctw_key_int(c, "max_window_layers", absent_first, CTW_NULL_REFUSED, 0, 1 << 20);
    if (on && window < 1 && ctw_key_is_given(c, "sliding_window"))
        ctw_key_fail(c, "sliding_window", CTW_EFORMAT, "found %lld, expected at least 1",
                     (long long)window);
    return ctw_key_windows(c, n_layers, on ? window : 0, &(struct ctw_window_rule){.first = first});
}

#endif
