/* The five largest logits of a row. */
#ifndef CTW_KERNELS_CPU_TOP_H
#define CTW_KERNELS_CPU_TOP_H

#include <stdint.h>

enum { TOP = 5 };

/* Their ids, the largest logit first; on a tie the lower id first. */
struct top {
    int n;
    int32_t id[TOP];
};

/* Ids are added in ascending order. */
static inline void top_add(struct top *top, const float *x, int32_t id)
{
    int at = top->n;
    while (at > 0 && x[id] > x[top->id[at - 1]])
        at--;
    if (at == TOP)
        return;
    top->n = top->n < TOP ? top->n + 1 : TOP;
    for (int i = top->n - 1; i > at; i--)
        top->id[i] = top->id[i - 1];
    top->id[at] = id;
}

static inline int top_common(const struct top *a, const struct top *b)
{
    int n = 0;
    for (int i = 0; i < a->n; i++)
        for (int j = 0; j < b->n; j++)
            n += a->id[i] == b->id[j];
    return n;
}

#endif
