/*
 * A regular expression as a program whose threads all run in lockstep (Thompson's construction).
 * regex.c compiles it, regex_run.c runs it.
 */
#ifndef CTW_WORKER_REGEX_PROGRAM_H
#define CTW_WORKER_REGEX_PROGRAM_H

#include <stdint.h>

#include "worker/checkpoint/regex.h"

enum regex_op {
    OP_SET,   /* consumes one character of `set` */
    OP_SPLIT, /* continues at both +x and +y */
    OP_JUMP,  /* continues at +x */
    OP_START, /* assertions */
    OP_END,
    OP_WORD_EDGE,
    OP_NOT_WORD_EDGE,
    OP_LOOK, /* y 1: continues at +x if the program at +1, up to its OP_MATCH, matches here; 0: if
                not */
    OP_MATCH
};

struct regex_instr {
    enum regex_op op;
    int x, y; /* relative */
    uint32_t set[8];
};

struct ctw_regex {
    struct regex_instr *code;
    int n_code;
};

static inline bool regex_set_has(const uint32_t set[8], unsigned char c)
{
    return (set[c >> 5] >> (c & 31) & 1u) != 0;
}

#endif
