/* The sequences of a job that passes have taken, and its share of the running pass. */
#include "worker/service/jobs/job.h"

void ctw_job_share_enter(struct ctw_job *j, double served)
{
    j->share.served = served;
}

void ctw_job_share_divide(struct ctw_job *j, int n_sharing)
{
    j->share.n_sharing = n_sharing;
}

bool ctw_job_has_sequence(const struct ctw_job *j)
{
    return j->plan.made && j->share.next_sequence < j->plan.n_score;
}

int64_t ctw_job_next_input(const struct ctw_job *j)
{
    return ctw_sequence_input(&j->plan.sequences[j->share.next_sequence]);
}

int64_t ctw_job_share_take(struct ctw_job *j)
{
    struct ctw_job_share *share = &j->share;
    int64_t sequence = share->next_sequence;
    const struct ctw_sequence *u = &j->plan.sequences[sequence];
    if (share->tok == 0) { /* the first of this pass */
        share->n_passes++;
        share->tok_done = 0;
        share->cost = 0;
        share->cost_done = 0;
    }
    share->tok += ctw_sequence_input(u);
    share->cost += ctw_sequence_cost(j, u);
    share->served += (double)ctw_sequence_input(u) * share->n_sharing;
    do /* of a pass that found no memory, the scored sequences need not be the first */
        share->next_sequence++;
    while (ctw_job_has_sequence(j) && j->plan.sequences[share->next_sequence].scored);
    return sequence;
}

void ctw_job_share_done(struct ctw_job *j, int64_t sequence)
{
    ctw_job_scored(j, &j->plan.sequences[sequence]);
    j->share.tok_done += ctw_sequence_input(&j->plan.sequences[sequence]);
    j->share.cost_done += ctw_sequence_cost(j, &j->plan.sequences[sequence]);
}

void ctw_job_share_return(struct ctw_job *j, int64_t sequence)
{
    j->share.alone = true;
    if (sequence < j->share.next_sequence)
        j->share.next_sequence = sequence;
    j->share.served -=
        (double)ctw_sequence_input(&j->plan.sequences[sequence]) * j->share.n_sharing;
}

void ctw_job_share_found_memory(struct ctw_job *j)
{
    j->share.alone = false;
}

void ctw_job_share_end(struct ctw_job *j)
{
    j->share.tok = 0;
    j->share.tok_done = 0;
    j->share.cost = 0;
    j->share.cost_done = 0;
}
