/* The order of a pass's sequences: see worker/service/scorer/scorer.h. */
#include <string.h>

#include "base/mem.h"
#include "base/order.h"
#include "worker/service/scorer/scorer.h"

/* A job's sequences are in order. */
static bool has_one_job(const struct ctw_scorer *s)
{
    for (int64_t i = 1; i < s->n; i++)
        if (s->entries[i].job != s->entries[0].job)
            return false;
    return true;
}

void ctw_scorer_order_pass(struct ctw_scorer *s)
{
    size_t n = (size_t)s->n;
    if (has_one_job(s))
        return;
    struct ctw_leaf *leaves = ctw_calloc(3 * n, sizeof(*leaves));
    struct ctw_pass_entry *entries = ctw_calloc(n, sizeof(*entries));
    /* Without memory, what jobs have in common is computed for each. */
    if (leaves != NULL && entries != NULL) {
        for (size_t i = 0; i < n; i++)
            leaves[i] = (struct ctw_leaf){s->seqs[i].tokens, s->seqs[i].n_tok, (int64_t)i, 0};
        ctw_order_sort(leaves, s->n, leaves + n);
        for (size_t i = 0; i < n; i++)
            entries[i] = s->entries[leaves[i].index];
        memcpy(s->entries, entries, n * sizeof(*entries));
        for (size_t i = 0; i < n; i++) {
            s->seqs[i] = ctw_job_seq(entries[i].job, entries[i].sequence);
            if (entries[i].job->head.kind == CTW_JOB_DIVERGENCE)
                s->divergences[i] = ctw_job_seq_divergence(entries[i].job, entries[i].sequence);
        }
    }
    ctw_free(leaves);
    ctw_free(entries);
}
