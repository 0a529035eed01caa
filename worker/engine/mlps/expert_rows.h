/* How a mixture's experts take their rows. */
#ifndef CTW_WORKER_EXPERT_ROWS_H
#define CTW_WORKER_EXPERT_ROWS_H

#include <stdint.h>

/* The next expert from e on that has rows. */
static inline int ctw_expert_with_rows(const int32_t *start, int n_experts, int e)
{
    while (e < n_experts && start[e] == start[e + 1])
        e++;
    return e;
}

/* Rows of the next part, with `left` rows to go: parts are equal, in whole tiles, and have at most
 * `most` rows. */
static inline int64_t ctw_expert_part(int64_t left, int64_t most)
{
    enum { TILE = 256 };
    int64_t parts = (left + most - 1) / most, n = (left + parts - 1) / parts;
    n = (n + TILE - 1) / TILE * TILE;
    n = n < most ? n : most;
    return n < left ? n : left;
}

#endif
