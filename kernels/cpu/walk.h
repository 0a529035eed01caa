/* The rows of a sequence's tokens, found by walking its runs. */
#ifndef CTW_KERNELS_CPU_WALK_H
#define CTW_KERNELS_CPU_WALK_H

#include "kernels/operations.h"

struct ctw_walk {
    const struct ctw_kv_run *run;
    int64_t pos0; /* of the run's first token */
};

static inline struct ctw_walk ctw_walk_begin(const struct ctw_attn_seq *s)
{
    return (struct ctw_walk){s->runs, 0};
}

/* The row of the token at `pos`, which is not before the walk's last one. */
static inline int64_t ctw_walk_row(struct ctw_walk *w, int64_t pos)
{
    while (pos - w->pos0 >= w->run->n_tok)
        w->pos0 += w->run++->n_tok;
    return w->run->row + pos - w->pos0;
}

#endif
