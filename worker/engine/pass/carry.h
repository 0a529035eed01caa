/*
 * The carry is what a sequence's tokens leave behind in a layer for later tokens. The kinds of a
 * layer's branches describe it (struct ctw_carry_rule): rows, a number of bytes per token, which
 * attention reads in runs; or a state, a number of bytes. Sequences that begin with the same tokens
 * read the same carry. The pass's layout (layout.h) states where rows and states are, and the rule
 * how long they live. Layers whose carries have
 * the same life share the arrays.
 */
#ifndef CTW_WORKER_CARRY_H
#define CTW_WORKER_CARRY_H

#include "worker/model/model.h"

enum ctw_carry_life {
    CTW_FOR_CHUNK, /* rows that the chunk alone reads */
    CTW_FOR_LAYER, /* rows, until the layer's last chunk that has tokens of their sequence */
    CTW_FOR_PASS,  /* rows that other layers read, too, by the number `kept` */
    CTW_STATE,     /* a state, after some of the tokens, likewise */
    CTW_N_LIVES
};

/* CTW_STATES: of a pass whose sequences share nothing. */
enum { CTW_BRANCH_CARRIES = 4, CTW_MAX_KEPT = 4, CTW_STATES = 2 };

struct ctw_carry_rule {
    size_t bytes; /* of a row, or of a state; 0: none */
    enum ctw_carry_life life;
    int kept;
};

/* The arrays of a pass: by branch, and by kept number. */
enum { CTW_N_CARRIES = (CTW_MAX_BRANCHES + CTW_MAX_KEPT) * CTW_BRANCH_CARRIES };

struct ctw_carry_plan {
    size_t bytes[CTW_N_CARRIES];
};

static inline int ctw_carry_array(const struct ctw_carry_rule *r, int branch, int i)
{
    int owner = r->life == CTW_FOR_PASS ? CTW_MAX_BRANCHES + r->kept : branch;
    return owner * CTW_BRANCH_CARRIES + i;
}

#endif
