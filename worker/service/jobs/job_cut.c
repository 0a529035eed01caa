/* Cuts an item into windows by the job's kind; each window is one sequence of the engine. */
#include "worker/service/jobs/job.h"

static int64_t count(const struct ctw_item *it, const struct ctw_job_head *head)
{
    if (head->kind == CTW_JOB_ROLLING)
        return ctw_windows_count(it->n_tok - 1, head->max_length, head->context_length);
    return ctw_job_kind_has_rule(head->kind) ? ctw_rule_count(&head->rule, it->n_tok) : 1;
}

struct ctw_window ctw_item_window(const struct ctw_item *it, const struct ctw_job_head *head,
                                  int64_t i)
{
    if (head->kind == CTW_JOB_ROLLING)
        return ctw_window_at(it->n_tok - 1, head->max_length, head->context_length, i);
    if (ctw_job_kind_has_rule(head->kind))
        return ctw_rule_window(&head->rule, it->n_tok, i);
    return (struct ctw_window){.n_tok = it->n_tok, .first = it->n_tok - it->n_targets};
}

struct ctw_cut ctw_item_cut(const struct ctw_item *it, const struct ctw_job_head *head)
{
    struct ctw_cut cut = {.n_windows = count(it, head)};
    for (int64_t i = 0; i < cut.n_windows; i++) {
        struct ctw_window w = ctw_item_window(it, head, i);
        int64_t n_input = ctw_rule_input(&head->rule, &w);
        cut.n_targets += w.n_tok - w.first;
        cut.n_input += n_input;
        cut.longest = n_input > cut.longest ? n_input : cut.longest;
    }
    return cut;
}
