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
    const struct ctw_sequence *u = &j->plan.sequences[j->share.next_sequence];
    return ctw_sequence_input(u) - (ctw_job_in_pass(j) ? u->shared : 0);
}

int64_t ctw_job_next_targets(const struct ctw_job *j)
{
    const struct ctw_sequence *u = &j->plan.sequences[j->share.next_sequence];
    return u->n_tok - u->first;
}

int64_t ctw_job_share_take(struct ctw_job *j)
{
    struct ctw_job_share *share = &j->share;
    int64_t sequence = share->next_sequence;
    struct ctw_sequence *u = &j->plan.sequences[sequence];
    u->added = (int32_t)ctw_job_next_input(j);
    if (share->tok == 0) { /* the first of this pass */
        share->n_passes++;
        share->tok_done = 0;
        share->cost = 0;
        share->cost_done = 0;
    }
    share->tok += ctw_sequence_input(u);
    share->cost += ctw_sequence_cost(j, u);
    share->served += (double)u->added * share->n_sharing;
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
    j->share.served -= (double)j->plan.sequences[sequence].added * j->share.n_sharing;
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
