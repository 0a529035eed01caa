/* Adds a pass's findings to its jobs: see worker/service/scorer/scorer.h. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "worker/service/scorer/scorer.h"

void ctw_scorer_note_end(struct ctw_scorer *s, const struct ctw_job *j)
{
    double seconds = (double)(j->ended_ms - j->sealed_ms) / 1000;
    int64_t n_found = j->input.n_sequences - j->plan.n_score;
    int64_t n_tok = j->input.n_tok - j->results.tok_found;
    char found[256] = "";
    if (n_found > 0)
        (void)snprintf(found, sizeof(found), ", %" PRId64 " of %" PRId64 " sequences stored before",
                       n_found, j->input.n_sequences);
    if (j->results.n_ref_read > 0)
        (void)snprintf(found, sizeof(found),
                       ", the reference's hidden states of %" PRId64 " of %" PRId64
                       " sequences read",
                       j->results.n_ref_read, j->input.n_sequences);
    if (j->results.tok_added < n_tok)
        (void)snprintf(found + strlen(found), sizeof(found) - strlen(found),
                       ", %.1f times fewer computed: shared beginnings are computed once",
                       (double)n_tok / (double)j->results.tok_added);
    ctw_scorer_note(s, CTW_LOG_INFO,
                    "job of %" PRId64 " items, %" PRId64
                    " tokens: done after %.1f s, %.0f tokens/s%s",
                    j->input.n_items, j->input.n_tok, seconds,
                    seconds > 0 ? (double)n_tok / seconds : 0, found);
}

void ctw_scorer_take(struct ctw_scorer *s, struct ctw_job *j, const struct ctw_scored *u)
{
    struct ctw_err err;
    if (ctw_job_is_final(j))
        return;
    ctw_job_name_source(j, u->identity, u->ref_identity);
    enum ctw_status st = ctw_job_take(j, u->sequence, u->bad_layer, u->n_decoders, &err);
    if (st != CTW_OK && u->ref_identity != NULL)
        st =
            ctw_fail_prefix(&err, "model %s", u->bad_reference ? j->head.reference : j->head.model);
    if (st != CTW_OK) {
        ctw_scorer_note(s, CTW_LOG_ERROR, "a job fails: %s", err.msg);
        ctw_queue_end(s->queue, j, CTW_JOB_FAILED, &err);
    } else if (j->results.n_done == j->input.n_items) {
        ctw_queue_end(s->queue, j, CTW_JOB_DONE, NULL);
        ctw_scorer_note_end(s, j);
    }
}

struct ctw_scored ctw_scorer_scored(const struct ctw_scorer *s, int64_t i)
{
    struct ctw_scored u = {.sequence = s->entries[i].sequence,
                           .bad_layer = s->seqs[i].bad_layer,
                           .n_decoders = s->n_decoders,
                           .identity = ctw_engine_identity(s->engine)};
    if (s->reference == NULL)
        return u;
    u.ref_identity = ctw_engine_identity(s->reference);
    u.bad_reference = s->divergences[i].bad_reference;
    if (u.bad_reference)
        u.n_decoders = s->ref_decoders;
    return u;
}
