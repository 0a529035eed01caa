/*
 * The carry is what a sequence's tokens leave behind in a layer for later tokens. The kinds of a
 * layer's branches describe it (struct ctw_carry_rule): rows, a number of bytes per token, which
 * attention reads in runs; or a state, a number of bytes. Sequences that begin with the same tokens
 * read the same carry. The pass's layout (layout.h) states where rows and states are, and the rule
 * how long they live. Layers whose carries have the same life share the arrays.
 *
 * What later passes read (the trunk, trie.h) is copied from a layer's arrays into memory of its
 * own, a block for each layer and carry, and from there behind the arrays' own rows and states.
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
/* CTW_CARRY_OUT: the state of the convolution of a branch's output, of whatever kind. */
enum { CTW_CARRY_OUT = 5, CTW_BRANCH_CARRIES, CTW_MAX_KEPT = 4, CTW_STATES = 2 };

struct ctw_carry_rule {
    size_t bytes; /* of a row, or of a state; 0: none */
    enum ctw_carry_life life;
    int kept;
    bool alone; /* a token's row is read by this token alone, so that no trunk has it */
};

/* The arrays of a pass: by branch, and by kept number. */
enum { CTW_N_CARRIES = (CTW_MAX_BRANCHES + CTW_MAX_KEPT) * CTW_BRANCH_CARRIES };

struct ctw_carry_plan {
    size_t bytes[CTW_N_CARRIES];
};

/* Bytes of a trunk, of all layers: for each of its tokens, and for its states. */
struct ctw_trunk_size {
    size_t row, state;
};

#define CTW_NO_PLACE SIZE_MAX

/* places (or NULL): [ctw_trunk_n_places()], where the blocks of a trunk of up to n_tok tokens are,
 * for sequences of up to `longest`. */
size_t ctw_trunk_n_places(const struct ctw_model *m);
struct ctw_trunk_size ctw_trunk_size(const struct ctw_model *m, enum ctw_dtype dtype,
                                     int64_t longest, int64_t n_tok, size_t *places);

static inline int ctw_carry_array(const struct ctw_carry_rule *r, int branch, int i)
{
    int owner = r->life == CTW_FOR_PASS ? CTW_MAX_BRANCHES + r->kept : branch;
    return owner * CTW_BRANCH_CARRIES + i;
}

#endif
