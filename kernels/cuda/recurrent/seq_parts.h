/* The parts of a launch, which has them as arguments. */
#ifndef CTW_KERNELS_CUDA_SEQ_PARTS_H
#define CTW_KERNELS_CUDA_SEQ_PARTS_H

#include "kernels/recurrent.h"

enum { CTW_CUDA_PARTS = 128 };

/* struct ctw_seq_part, in less memory: a chunk's rows and a sequence's positions have 31 bits. */
struct ctw_cuda_part {
    int32_t row, n_tok, pos0;
    int32_t before, after; /* states; -1: none */
};

struct ctw_cuda_parts {
    int n;
    bool leave; /* any of them leaves a state */
    struct ctw_cuda_part part[CTW_CUDA_PARTS];
};

/* The first of n parts, as many as a launch has. Returns the tokens of the longest. */
static inline int64_t ctw_cuda_take_parts(struct ctw_cuda_parts *to, const struct ctw_seq_part *parts,
                                          int64_t n)
{
    int64_t most = 0;
    to->leave = false;
    for (to->n = 0; to->n < CTW_CUDA_PARTS && to->n < n; to->n++) {
        const struct ctw_seq_part *p = &parts[to->n];
        const struct ctw_cuda_part part = {(int32_t)p->q_row, (int32_t)p->n_q, (int32_t)p->pos0,
                                           (int32_t)p->before, (int32_t)p->after};
        to->part[to->n] = part;
        to->leave = to->leave || p->after >= 0;
        most = p->n_q > most ? p->n_q : most;
    }
    return most;
}

#endif
