/*
 * Scores with all devices of an engine (engine_state.h: the engine and its peers), each of which
 * has the model. A free device takes sequences by cost, so that all devices finish together. If a
 * device fails, the others score its unfinished sequences. The device that scores a sequence cannot
 * change its numbers.
 */
#ifndef CTW_WORKER_DEAL_H
#define CTW_WORKER_DEAL_H

#include "worker/engine/engine.h"

/* As ctw_engine_score() and, with a reference, ctw_engine_compare(). The reference has as many
 * devices, in the same order. Hooks are called by one thread at a time; done() in any order. */
enum ctw_status ctw_deal(struct ctw_engine *e, struct ctw_engine *reference, struct ctw_seq *seqs,
                         int64_t n_seqs, const struct ctw_hooks *hooks, bool *in_reference,
                         struct ctw_err *err) CTW_MUST_CHECK;

/* About the tokens that keep all devices busy for several passes, but not for minutes. */
int64_t ctw_deal_tokens(const struct ctw_engine *e);

#endif
