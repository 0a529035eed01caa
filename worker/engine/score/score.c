/* Scores on one device, or deals to several. */
#include "worker/engine/engine_state.h"
#include "worker/engine/score/deal.h"

enum ctw_status ctw_engine_score(struct ctw_engine *e, struct ctw_seq *seqs, int64_t n_seqs,
                                 const struct ctw_hooks *hooks, struct ctw_err *err)
{
    return e->n_peers == 0 ? ctw_engine_score_here(e, seqs, n_seqs, hooks, err)
                           : ctw_deal(e, NULL, seqs, n_seqs, hooks, NULL, err);
}

enum ctw_status ctw_engine_compare(struct ctw_engine *e, struct ctw_engine *reference,
                                   struct ctw_seq *seqs, int64_t n_seqs,
                                   const struct ctw_hooks *hooks, bool *in_reference,
                                   struct ctw_err *err)
{
    bool dummy, several = e->n_peers > 0 && e->n_peers == reference->n_peers;
    in_reference = in_reference != NULL ? in_reference : &dummy;
    *in_reference = false;
    return several ? ctw_deal(e, reference, seqs, n_seqs, hooks, in_reference, err)
                   : ctw_engine_compare_here(e, reference, seqs, n_seqs, hooks, in_reference, err);
}
