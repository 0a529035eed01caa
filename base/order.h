/*
 * The order in which sequences of tokens share their beginnings. Sequences that begin with the same
 * tokens form a trie. An engine computes a shared beginning once if a sequence follows another with
 * the same beginning in the same pass, so callers give it sequences in the order of the trie, depth
 * first.
 */
#ifndef CTW_BASE_ORDER_H
#define CTW_BASE_ORDER_H

#include <stdint.h>

/* A branch costs a run of keys for each of its queries, so it saves at least so many tokens. */
enum { CTW_BRANCH_TOKENS = 16 };

struct ctw_leaf {
    const int32_t *tokens;
    int64_t n_tok; /* the last target included */
    int64_t index; /* the caller's */
    int64_t same;  /* after sorting: tokens in common with the leaf before it; 0 if too few for a
                      branch */
};

/*
 * Sorts leaves: leaves that share beginnings follow one another, and groups of such leaves come in
 * the order of their longest leaf, longest first, so that little space is left at the end of a
 * pass. Among equals the lower index comes first. Compares about as many tokens as the leaves have;
 * scratch [2 n].
 */
void ctw_order_sort(struct ctw_leaf *leaves, int64_t n, struct ctw_leaf *scratch);

/* Tokens in common of a and b, up to n; the first `same` are known to be equal. */
int64_t ctw_common_tokens(const int32_t *a, const int32_t *b, int64_t same, int64_t n);

/* Inputs that a sequence of n_inputs shares with the sequence before it if `same` tokens are equal.
 * A pass may share fewer. */
int64_t ctw_worth_sharing(int64_t same, int64_t n_inputs);
/* The same of sequence b, of n_b inputs, behind sequence a. */
int64_t ctw_shared_tokens(const int32_t *a, int64_t n_a, const int32_t *b, int64_t n_b);

#endif
