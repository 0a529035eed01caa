/* Private to pass.c and compare.c; all other code includes worker/engine/pass/pass.h. */
#ifndef CTW_WORKER_PASS_STATE_H
#define CTW_WORKER_PASS_STATE_H

#include "worker/engine/pass/pass.h"

struct ctw_pass {
    struct ctw_forward *f;
    struct ctw_provider *provider;
    const struct ctw_hooks *hooks;
    struct ctw_progress *progress;
    int layer;                  /* the next */
    struct ctw_progress before; /* of earlier passes */
    struct ctw_seq *seqs;
    const void *final; /* NULL, or the final hidden states of all rows, if they are known */
    struct ctw_layout layout;
    int32_t *tokens_before;          /* see before.h */
    int16_t *bad;                    /* [n_tok] */
    struct ctw_head_result *results; /* [n_targets] */
    double cost_done, cost_total;    /* floating-point operations */
    double began_s;
};

/* Counts `cost` as done and calls the hooks. CTW_ECANCELED. */
enum ctw_status ctw_pass_advance(struct ctw_pass *p, double cost, int layer,
                                 struct ctw_err *err) CTW_MUST_CHECK;

/* The acquired head, over n_vocab ids, for rows row0 .. row0+n-1, at most a chunk; keep: see
 * ctw_forward_head(). */
enum ctw_status ctw_pass_head(struct ctw_pass *p, const struct ctw_layer_data *data, int64_t row0,
                              int64_t n, int64_t n_vocab, const struct ctw_kept_logits *keep,
                              struct ctw_err *err) CTW_MUST_CHECK;

/* After the head: waits for the device, and writes logprob, greedy and bad_layer. */
enum ctw_status ctw_pass_collect(struct ctw_pass *p, struct ctw_err *err) CTW_MUST_CHECK;

#endif
