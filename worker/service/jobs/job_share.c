/* What passes have taken of a job, and its share of the running pass. */
#include "worker/service/jobs/job.h"

void ctw_job_share_enter(struct ctw_job *j, double served)
{
    j->share.served = served;
}

void ctw_job_share_divide(struct ctw_job *j, int n_sharing)
{
    j->share.n_sharing = n_sharing;
}

bool ctw_job_has_unit(const struct ctw_job *j)
{
    return j->plan.made && j->share.next_unit < j->plan.n_score;
}

int64_t ctw_job_next_input(const struct ctw_job *j)
{
    return ctw_unit_input(&j->plan.units[j->share.next_unit]);
}

int64_t ctw_job_share_take(struct ctw_job *j)
{
    struct ctw_job_share *share = &j->share;
    int64_t unit = share->next_unit;
    const struct ctw_unit *u = &j->plan.units[unit];
    if (share->tok == 0) { /* the first of this pass */
        share->n_passes++;
        share->tok_done = 0;
        share->cost = 0;
        share->cost_done = 0;
    }
    share->tok += ctw_unit_input(u);
    share->cost += ctw_unit_cost(j, u);
    share->served += (double)ctw_unit_input(u) * share->n_sharing;
    do /* of a pass that found no memory, the scored units need not be the first */
        share->next_unit++;
    while (ctw_job_has_unit(j) && j->plan.units[share->next_unit].scored);
    return unit;
}

void ctw_job_share_done(struct ctw_job *j, int64_t unit)
{
    ctw_job_scored(j, &j->plan.units[unit]);
    j->share.tok_done += ctw_unit_input(&j->plan.units[unit]);
    j->share.cost_done += ctw_unit_cost(j, &j->plan.units[unit]);
}

void ctw_job_share_return(struct ctw_job *j, int64_t unit)
{
    j->share.alone = true;
    if (unit < j->share.next_unit)
        j->share.next_unit = unit;
    j->share.served -= (double)ctw_unit_input(&j->plan.units[unit]) * j->share.n_sharing;
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
