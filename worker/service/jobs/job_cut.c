/* How the kind of a job cuts an item into windows, each of which is one sequence of the engine. */
#include "worker/service/jobs/job.h"

void ctw_item_count_windows(struct ctw_item *it, const struct ctw_job_head *head)
{
    int64_t n = 1;
    if (head->kind == CTW_JOB_ROLLING)
        n = ctw_windows_count(it->n_targets, head->max_length, head->context_length);
    else if (ctw_job_kind_has_rule(head->kind))
        n = ctw_rule_count(&head->rule, it->n_tok);
    it->n_sequences = (int32_t)n;
    it->sequences_left = (int32_t)n;
}

struct ctw_window ctw_item_window(const struct ctw_item *it, const struct ctw_job_head *head,
                                  int64_t i)
{
    if (head->kind == CTW_JOB_ROLLING)
        return ctw_window_at(it->n_targets, head->max_length, head->context_length, i);
    if (ctw_job_kind_has_rule(head->kind))
        return ctw_rule_window(&head->rule, it->n_tok, i);
    return (struct ctw_window){.n_tok = it->n_tok, .first = it->n_tok - it->n_targets};
}

int64_t ctw_item_input(const struct ctw_item *it, const struct ctw_job_head *head)
{
    if (head->kind == CTW_JOB_ROLLING)
        return ctw_windows_input(it->n_targets, head->max_length, head->context_length);
    if (ctw_job_kind_has_rule(head->kind))
        return ctw_rule_inputs(&head->rule, it->n_tok);
    return it->n_tok - 1;
}

int64_t ctw_item_longest_input(const struct ctw_item *it, const struct ctw_job_head *head)
{
    if (it->n_sequences == 0)
        return 0;
    if (ctw_job_kind_has_rule(head->kind)) { /* the first window is the longest */
        struct ctw_window w = ctw_rule_window(&head->rule, it->n_tok, 0);
        return ctw_rule_input(&head->rule, &w);
    }
    int64_t n = it->n_tok - 1;
    return n > head->max_length ? head->max_length : n; /* in windows */
}

int64_t ctw_item_copied(const struct ctw_item *it, const struct ctw_job_head *head)
{
    if (!ctw_job_kind_has_rule(head->kind) || head->rule.bos_mode == CTW_BOS_NONE)
        return 0;
    return ctw_item_input(it, head) + it->n_sequences;
}
