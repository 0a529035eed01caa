/*
 * One pass takes several sequences, packed one after another without padding, through the
 * embedding, every decoder layer (layer by layer, chunk by chunk) and the head. It acquires each
 * layer once.
 */
#ifndef CTW_WORKER_PASS_H
#define CTW_WORKER_PASS_H

#include "worker/engine/forward.h"

/*
 * Scores seqs[0 .. n_seqs-1], whose inputs together fit f's plan. On CTW_OK every logprob, greedy,
 * hidden and bad_layer is written; after a failure these outputs are invalid. Sets progress->layer,
 * adds to progress->tok_done, and calls the hooks (NULL: none) after every chunk.
 */
enum ctw_status ctw_pass_run(struct ctw_forward *f, struct ctw_provider *provider,
                             struct ctw_seq *seqs, int64_t n_seqs, const struct ctw_hooks *hooks,
                             struct ctw_progress *progress, struct ctw_err *err) CTW_MUST_CHECK;

#endif
