/*
 * One pass takes several sequences, packed one after another without padding, through the
 * embedding, every decoder layer (layer by layer, chunk by chunk) and the head. A pass acquires
 * each layer once, and holds no layer between two steps.
 */
#ifndef CTW_WORKER_PASS_H
#define CTW_WORKER_PASS_H

#include "worker/engine/pass/forward.h"

struct ctw_pass;

/*
 * Prepares to score seqs[0 .. n_seqs-1], whose inputs together fit f's plan. All arguments but err
 * and `sharing` must outlive the pass. A trunk is f's own (f->has). progress: layer is set, and
 * tok_done and tok_computed are added to; hooks (NULL: none) are called after every chunk.
 */
enum ctw_status ctw_pass_begin(struct ctw_pass **out, struct ctw_forward *f,
                               struct ctw_provider *provider, struct ctw_seq *seqs, int64_t n_seqs,
                               const struct ctw_sharing *sharing, const struct ctw_hooks *hooks,
                               struct ctw_progress *progress, struct ctw_err *err) CTW_MUST_CHECK;
/* Takes all sequences through the next layer. *done: this was the last layer, and every logprob,
 * greedy, hidden and bad_layer is written. After a failure these outputs are invalid, and the pass
 * can only be closed. */
enum ctw_status ctw_pass_step(struct ctw_pass *p, bool *done, struct ctw_err *err) CTW_MUST_CHECK;
/* Is the next layer the head, the last? */
bool ctw_pass_at_head(const struct ctw_pass *p);
/* Before the first step: the final hidden states of all targets are known. Only the head is left;
 * it reads `rows`, host memory [targets, embed_dim], which must outlive the pass. */
void ctw_pass_skip_to_head(struct ctw_pass *p, const void *rows);
void ctw_pass_close(struct ctw_pass *p); /* NULL is fine */

#endif
