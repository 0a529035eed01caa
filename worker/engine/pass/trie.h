/*
 * Shared prefixes. Sequences that begin with the same tokens form a trie, and a pass computes the
 * tokens of a node once. The trie is never built: in the order of base/order.h a sequence shares
 * its longest beginning with the sequence before it.
 *
 * A path is the last sequence of a pass as spans of the pass's tokens, one span per node. The next
 * sequence of the pass reads the path's first tokens, if that is worth a branch, and adds a span of
 * its own. The decision depends on the sequences of the pass, their order, the pass's plan and the
 * trunk, so all code that needs it repeats it from the beginning of the pass. No decision changes a
 * score.
 *
 * The trunk is a beginning whose carry an earlier pass has left behind, for all layers. Any
 * sequence of a pass may read it instead of the path. A pass leaves what its sequences have in
 * common with the sequence that the next pass begins with. Because sequences come depth first,
 * nothing else that later passes share is still to come, and one trunk is enough.
 */
#ifndef CTW_WORKER_TRIE_H
#define CTW_WORKER_TRIE_H

#include "base/order.h"
#include "worker/engine/engine.h"
#include "worker/engine/pass/plan.h"

enum { CTW_PATH_SPANS = 32, CTW_OF_TRUNK = -1 };

/* Tokens tok0 .. tok0 + n_tok - 1 of the pass, at positions pos0 .. of the sequence; or, in the
 * first span of a path, tok0 = CTW_OF_TRUNK: the first n_tok tokens of the trunk. */
struct ctw_path_span {
    int64_t tok0, pos0, n_tok;
};

struct ctw_trunk {
    const int32_t *tokens;
    int64_t n_tok; /* 0: there is no trunk */
    bool is_long;  /* of a sequence with more than long_from inputs, see ctw_layout_make() */
};

/* A position of the path after which a state is kept. */
struct ctw_fork {
    int64_t pos;
    int most; /* states that were kept behind this position at one time */
};

struct ctw_path {
    bool shares;
    bool own_rows; /* a target that two sequences score is a row for each of them */
    struct ctw_trunk trunk;
    int64_t chunk_tokens, long_from;
    int64_t trunk_from, trunk_most; /* tokens that a pass leaves: at least, at most (0: none) */
    int64_t most_chunks;            /* whose rows are kept at one time; 0: all of the pass */
    int64_t most_forks;             /* states that are kept at one time; -1: the model has none */
    int64_t n_tok;                  /* of the pass so far */
    int64_t n_rows;                 /* scored targets of the pass so far: a row each, at most */
    const struct ctw_seq *last;
    struct ctw_path_span spans[CTW_PATH_SPANS];
    int n_spans, n_forks;
    struct ctw_fork forks[CTW_PATH_SPANS];
};

/* What a sequence takes from the sequence before it, or from the trunk: its first n_tok inputs, and
 * the rows of its targets first_target .. first_target + n_targets - 1 (indices of its tokens). */
struct ctw_shared {
    int64_t n_tok, first_target, n_targets;
    bool of_trunk;
};

/* An empty path. `shares` false: no sequence shares. trunk: NULL: none. long_from: see
 * ctw_layout_make(). */
void ctw_path_begin(struct ctw_path *p, const struct ctw_plan *plan, int64_t long_from, bool shares,
                    const struct ctw_trunk *trunk);
struct ctw_shared ctw_path_shared(const struct ctw_path *p, const struct ctw_seq *seq);
/* The next sequence of the pass, with ctw_path_shared()'s answer. `seq` outlives the path. */
void ctw_path_add(struct ctw_path *p, const struct ctw_seq *seq, const struct ctw_shared *shared);

/* The inputs that a sequence of this pass reads of the trunk; 0: too few, or it may not. */
int64_t ctw_path_of_trunk(const struct ctw_path *p, const struct ctw_seq *seq);
/* The tokens of the path that the pass should leave for sequence `next`; 0: too few, or the trunk
 * has them. */
int64_t ctw_path_leaves(const struct ctw_path *p, const struct ctw_seq *next);

/* Tokens and rows that the sequence adds to a pass. */
static inline int64_t ctw_shared_new_tokens(const struct ctw_shared *s, const struct ctw_seq *seq)
{
    return seq->n_tok - 1 - s->n_tok;
}

static inline int64_t ctw_shared_new_rows(const struct ctw_shared *s, const struct ctw_seq *seq)
{
    return seq->n_tok - seq->first - s->n_targets;
}

#endif
