/* What operations over the tokens of sequences share: convolutions, delta rules, state spaces. */
#ifndef CTW_KERNELS_RECURRENT_H
#define CTW_KERNELS_RECURRENT_H

#include "kernels/operations.h"

/*
 * Tokens of a sequence, in rows q_row .. q_row + n_q - 1 of the operation, at positions pos0 .. of
 * the sequence. An operation's parts come in the order of their rows. Rows between parts are
 * neither read nor written.
 */
struct ctw_seq_part {
    int64_t q_row, n_q, pos0;
    /* Indices of states. Several parts may begin with one state; no part of the operation reads or
     * leaves a state that another part leaves. */
    int64_t before; /* what the tokens before left; -1: the sequence begins here, pos0 is 0 */
    int64_t after;  /* what these tokens leave; -1: no state is left */
};

struct ctw_states {
    void *data;   /* device */
    size_t bytes; /* from a state to the next */
};

/* NULL: none. */
CTW_HD void *ctw_state_at(const struct ctw_states *s, int64_t i)
{
    return i < 0 ? NULL : (char *)s->data + (size_t)i * s->bytes;
}

#endif
