/* The results of a job as the columns of a reply. */
#include <inttypes.h>
#include <string.h>

#include "worker/service/job.h"

struct column_writer {
    int32_t *item, *count, *truncated, *greedy, *windows, *window_count;
    double *sum, *window_sum;
    uint8_t *is_greedy;
    float *logprob;
};

static bool alloc_columns(struct column_writer *c, const struct ctw_job *j, int64_t n,
                          int64_t n_targets, int64_t n_windows, struct ctw_reply *reply)
{
    struct ctw_result_map *map = &reply->body.fetch.result;
    bool by_window = ctw_job_kind_has_rule(j->head.kind);
    size_t items = (size_t)n, targets = (size_t)n_targets;
    size_t windows = by_window ? (size_t)n_windows : 0;
    map->has = 0;
    struct {
        void *to;
        struct ctw_slice *slice;
        size_t bytes;
    } all[] = {
        {&c->item, &map->item, items * 4},
        {&c->sum, &map->sum, items * 8},
        {&c->count, &map->count, items * 4},
        {&c->is_greedy, &map->is_greedy, items},
        {&c->truncated, &map->truncated, items * 4},
        {&c->logprob, &map->logprob, j->head.want_logprob ? targets * 4 : 0},
        {&c->greedy, &map->greedy, j->head.want_greedy ? targets * 4 : 0},
        {&c->windows, &map->windows, by_window ? items * 4 : 0},
        {&c->window_sum, &map->window_sum, windows * 8},
        {&c->window_count, &map->window_count, windows * 4},
    };
    for (size_t i = 0; i < CTW_COUNT(all); i++) {
        void *p = ctw_reply_alloc(reply, all[i].bytes);
        if (p == NULL)
            return false;
        *all[i].slice = (struct ctw_slice){.data = p, .n = all[i].bytes};
        memcpy(all[i].to, &p, sizeof(p));
    }
    map->has |= (uint32_t)j->head.want_logprob << CTW_RESULT_LOGPROB;
    map->has |= (uint32_t)j->head.want_greedy << CTW_RESULT_GREEDY;
    map->has |= by_window ? CTW_RESULT_WINDOWS_BITS : 0;
    return true;
}

static void write_windows(struct column_writer *c, const struct ctw_job *j, int64_t at,
                          const struct ctw_item *it)
{
    const float *logprob = j->results.logprob + it->out;
    c->windows[at] = it->n_units;
    for (int64_t k = 0; k < it->n_units; k++) {
        struct ctw_window w = ctw_item_window(it, &j->head, k);
        int64_t n = w.n_tok - w.first;
        double sum = 0;
        for (int64_t i = 0; i < n; i++)
            sum += (double)*logprob++;
        *c->window_sum++ = sum;
        *c->window_count++ = (int32_t)n;
    }
}

static void write_item(struct column_writer *c, const struct ctw_job *j, int64_t at, int64_t item)
{
    const struct ctw_item *it = &j->plan.items[item];
    size_t n = (size_t)it->n_targets;
    c->item[at] = (int32_t)item;
    c->sum[at] = it->sum;
    c->count[at] = it->n_targets;
    c->is_greedy[at] = it->is_greedy;
    c->truncated[at] = it->truncated;
    if (j->head.want_logprob && n > 0) {
        memcpy(c->logprob, j->results.logprob + it->out, n * 4);
        c->logprob += n;
    }
    if (j->head.want_greedy && n > 0) {
        memcpy(c->greedy, j->results.greedy + it->out, n * 4);
        c->greedy += n;
    }
    if (ctw_job_kind_has_rule(j->head.kind))
        write_windows(c, j, at, it);
}

int64_t ctw_item_column_bytes(const struct ctw_item *it, const struct ctw_job_head *head)
{
    int64_t bytes = 4 + 8 + 4 + 1 + 4;
    bytes += (int64_t)it->n_targets * (4 * head->want_logprob + 4 * head->want_greedy);
    if (ctw_job_kind_has_rule(head->kind))
        bytes += 4 + (int64_t)it->n_units * (8 + 4);
    return bytes;
}

enum ctw_status ctw_job_columns(const struct ctw_job *j, int64_t first, int64_t n_done,
                                int64_t max_bytes, struct ctw_reply *reply, int64_t *n,
                                struct ctw_err *err)
{
    int64_t bytes = 0, n_targets = 0, n_windows = 0;
    *n = 0;
    while (first + *n < n_done) {
        const struct ctw_item *it = &j->plan.items[j->results.order[first + *n]];
        bytes += ctw_item_column_bytes(it, &j->head);
        if (*n > 0 && bytes > max_bytes)
            break;
        n_targets += it->n_targets;
        n_windows += it->n_units;
        ++*n;
    }
    struct column_writer c;
    if (!alloc_columns(&c, j, *n, n_targets, n_windows, reply))
        return ctw_fail(err, CTW_ENOMEM, "fetch: out of memory for %" PRId64 " items", *n);
    for (int64_t i = 0; i < *n; i++)
        write_item(&c, j, i, j->results.order[first + i]);
    return CTW_OK;
}
