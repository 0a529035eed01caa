/* Private to this room; all other code includes worker/engine/engine.h. */
#ifndef CTW_WORKER_SCORING_STATE_H
#define CTW_WORKER_SCORING_STATE_H

#include "worker/engine/engine_state.h"
#include "worker/engine/pass/pass.h"

struct ctw_exchange;

/* One model's part. */
struct ctw_scoring_side {
    struct ctw_engine *e;
    struct ctw_seq *seqs; /* [n_seqs] */
    struct ctw_progress progress;
    /* the pass, of seqs[first .. first+n-1] */
    struct ctw_pass *pass; /* NULL: it has not begun */
    struct ctw_progress before;
};

struct ctw_scoring {
    struct ctw_scoring_side side[2]; /* the model; when comparing, the reference */
    int n_sides;
    int64_t n_seqs;
    int64_t pass_tokens;
    bool shares; /* sequences that begin with the same tokens share them, see trie.h */
    struct ctw_hooks hooks;
    struct ctw_hooks both; /* of both passes, when comparing */
    struct ctw_seq *ref_seqs;
    void *hidden;                    /* NULL, or the final hidden states of the reference's pass */
    bool hidden_asked, hidden_found; /* since the pass began; they were loaded */
    struct ctw_compare *compare;
    struct ctw_differences *differences; /* NULL: no sequence has `layers` */
    struct ctw_exchange *exchange;       /* NULL: no sequence has `matrices` */
    bool in_reference;                   /* the step that failed was the reference's */
    int64_t first, n;
    int n_tries;
};

/* Checks all sequences, and measures their inputs. */
enum ctw_status ctw_scoring_check(const struct ctw_engine *e, const struct ctw_seq *seqs,
                                  int64_t n_seqs, int64_t *longest, int64_t *total,
                                  struct ctw_err *err) CTW_MUST_CHECK;
/* What checked sequences need, the longest and the total of whose inputs are given: about, because
 * memory may not let all of them share. next: see struct ctw_hooks. */
struct ctw_need ctw_scoring_need(const struct ctw_engine *e, const struct ctw_seq *seqs,
                                 int64_t n_seqs, int64_t longest, int64_t total,
                                 const struct ctw_seq *next);
struct ctw_scoring_side ctw_scoring_side(struct ctw_engine *e, struct ctw_seq *seqs, int64_t total);
/* The number of sequences from `first` on that make up the next pass if an earlier pass has left
 * this trunk; at least 1. All have the same vocabulary, over which the head computes. */
int64_t ctw_scoring_take_pass(const struct ctw_scoring *s, int64_t first,
                              const struct ctw_trunk *trunk);
void ctw_scoring_count_passes(struct ctw_scoring *s);

/* scoring_both.c: the same for two models that are compared. */
enum ctw_status ctw_scoring_check_both(const struct ctw_engine *e,
                                       const struct ctw_engine *reference,
                                       const struct ctw_seq *seqs, int64_t n_seqs, int64_t *longest,
                                       int64_t *total, struct ctw_err *err) CTW_MUST_CHECK;
/* scoring_both.c: do sequences that are compared share beginnings? Not if layers or matrices are,
 * too: these are of all tokens of a sequence. */
bool ctw_scoring_both_share(const struct ctw_engine *e, const struct ctw_engine *reference,
                            const struct ctw_seq *seqs, int64_t n_seqs);
/* scoring_both.c: a step of both passes. */
enum ctw_status ctw_scoring_step_both(struct ctw_scoring *s, bool *pass_done,
                                      struct ctw_err *err) CTW_MUST_CHECK;

#endif
