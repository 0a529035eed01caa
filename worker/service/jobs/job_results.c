/* The results of a job as the columns of a reply. */
#include <inttypes.h>
#include <string.h>

#include "worker/service/jobs/job.h"

enum { N_TARGET_COLUMNS = 9 };

/* How hidden states differ: for each window its tokens, and in the others a value per layer. */
struct layer_columns {
    int32_t *tokens, *channel;
    double *reference, *error, *cosine, *relative, *channel_error;
};

struct column_writer {
    int32_t *item, *count, *truncated, *windows, *window_count;
    double *sum, *window_sum;
    struct layer_columns layers;
    double *matrix_kl;
    uint8_t *is_greedy;
    char *of_targets[N_TARGET_COLUMNS]; /* in the order of target_columns() */
};

/* A column with one value per target. */
struct target_column {
    const void *values; /* of the job, [n_targets] */
    size_t bytes;       /* of a value */
    bool wanted;
    struct ctw_span *span;
};
static void target_columns(const struct ctw_job_head *head, const struct ctw_job_results *r,
                           struct ctw_result_map *map, struct target_column out[N_TARGET_COLUMNS])
{
    const struct ctw_job_divergence *d = &r->divergence;
    bool compared = head->kind == CTW_JOB_DIVERGENCE;
    const struct target_column all[N_TARGET_COLUMNS] = {
        {r->logprob, 4, head->want_logprob, &map->logprob},
        {r->greedy, 4, head->want_greedy, &map->greedy},
        {d->ref_logprob, 4, compared, &map->ref_logprob},
        {d->ref_greedy, 4, compared, &map->ref_greedy},
        {d->ref_top, 4, compared, &map->ref_top},
        {d->kl, 4, compared, &map->kl},
        {d->kl_reverse, 4, compared, &map->kl_reverse},
        {d->tv, 4, compared, &map->tv},
        {d->overlap5, 1, compared, &map->overlap5},
    };
    memcpy(out, all, sizeof(all));
}

int64_t ctw_job_target_bytes(const struct ctw_job_head *head)
{
    return 4 + 4 + (head->kind == CTW_JOB_DIVERGENCE ? 6 * 4 + 1 : 0);
}

static bool alloc_columns(struct column_writer *c, const struct ctw_job *j, int64_t n,
                          int64_t n_targets, int64_t n_windows, struct ctw_reply *reply)
{
    struct ctw_result_map *map = &reply->body.fetch.result;
    bool by_window = ctw_job_kind_has_rule(j->head.kind);
    size_t items = (size_t)n, targets = (size_t)n_targets;
    size_t windows = by_window ? (size_t)n_windows : 0;
    size_t layers = windows * (size_t)j->head.n_layers;
    size_t matrices = windows * (size_t)j->head.n_matrices;
    struct {
        void *to;
        struct ctw_span *span;
        size_t bytes;
    } all[] = {
        {&c->item, &map->item, items * 4},
        {&c->sum, &map->sum, items * 8},
        {&c->count, &map->count, items * 4},
        {&c->is_greedy, &map->is_greedy, items},
        {&c->truncated, &map->truncated, items * 4},
        {&c->windows, &map->windows, by_window ? items * 4 : 0},
        {&c->window_sum, &map->window_sum, windows * 8},
        {&c->window_count, &map->window_count, windows * 4},
        {&c->layers.tokens, &map->window_tokens, layers > 0 ? windows * 4 : 0},
        {&c->layers.reference, &map->layer_reference, layers * 8},
        {&c->layers.error, &map->layer_error, layers * 8},
        {&c->layers.cosine, &map->layer_cosine, layers * 8},
        {&c->layers.relative, &map->layer_relative, layers * 8},
        {&c->layers.channel, &map->layer_channel, layers * 4},
        {&c->layers.channel_error, &map->layer_channel_error, layers * 8},
        {&c->matrix_kl, &map->matrix_kl, matrices * 8},
    };
    for (size_t i = 0; i < CTW_COUNT(all); i++) {
        void *p = ctw_reply_alloc(reply, all[i].bytes);
        if (p == NULL)
            return false;
        *all[i].span = (struct ctw_span){.data = p, .n = all[i].bytes};
        memcpy(all[i].to, &p, sizeof(p));
    }
    struct target_column columns[N_TARGET_COLUMNS];
    target_columns(&j->head, &j->results, map, columns);
    for (size_t i = 0; i < N_TARGET_COLUMNS; i++) {
        size_t bytes = columns[i].wanted ? targets * columns[i].bytes : 0;
        c->of_targets[i] = ctw_reply_alloc(reply, bytes);
        if (c->of_targets[i] == NULL)
            return false;
        *columns[i].span = (struct ctw_span){.data = c->of_targets[i], .n = bytes};
    }
    map->has.logprob = j->head.want_logprob;
    map->has.greedy = j->head.want_greedy;
    map->has.windows = by_window;
    map->has.divergence = j->head.kind == CTW_JOB_DIVERGENCE;
    map->has.layers = j->head.n_layers > 0;
    map->has.matrices = j->head.n_matrices > 0;
    return true;
}

static void write_windows(struct column_writer *c, const struct ctw_job *j, int64_t at,
                          const struct ctw_item *it)
{
    const float *logprob = j->results.logprob + it->out;
    c->windows[at] = it->n_sequences;
    for (int64_t k = 0; k < it->n_sequences; k++) {
        struct ctw_window w = ctw_item_window(it, &j->head, k);
        int64_t n = w.n_tok - w.first;
        double sum = 0;
        for (int64_t i = 0; i < n; i++)
            sum += (double)*logprob++;
        *c->window_sum++ = sum;
        *c->window_count++ = (int32_t)n;
    }
}

static void write_layers(struct layer_columns *c, const struct ctw_job *j,
                         const struct ctw_item *it)
{
    int64_t n_layers = j->head.n_layers;
    const struct ctw_difference_result *r = j->results.divergence.layers + it->window * n_layers;
    for (int64_t k = 0; k < it->n_sequences; k++) {
        struct ctw_window w = ctw_item_window(it, &j->head, k);
        *c->tokens++ = (int32_t)ctw_rule_input(&j->head.rule, &w);
        for (int64_t l = 0; l < n_layers; l++, r++) {
            *c->reference++ = r->reference;
            *c->error++ = r->error;
            *c->cosine++ = r->cosine;
            *c->relative++ = r->relative;
            *c->channel++ = (int32_t)r->channel;
            *c->channel_error++ = r->channel_error;
        }
    }
}

static void write_item(struct column_writer *c, const struct ctw_job *j, int64_t at, int64_t item)
{
    const struct ctw_item *it = &j->plan.items[item];
    struct target_column columns[N_TARGET_COLUMNS];
    struct ctw_result_map unused;
    size_t n = (size_t)it->n_targets, out = (size_t)it->out;
    c->item[at] = (int32_t)item;
    c->sum[at] = it->sum;
    c->count[at] = it->n_targets;
    c->is_greedy[at] = it->is_greedy;
    c->truncated[at] = it->truncated;
    target_columns(&j->head, &j->results, &unused, columns);
    for (size_t i = 0; i < N_TARGET_COLUMNS; i++) {
        const struct target_column *t = &columns[i];
        if (!t->wanted || n == 0)
            continue;
        memcpy(c->of_targets[i], (const char *)t->values + out * t->bytes, n * t->bytes);
        c->of_targets[i] += n * t->bytes;
    }
    if (ctw_job_kind_has_rule(j->head.kind))
        write_windows(c, j, at, it);
    if (j->head.n_layers > 0)
        write_layers(&c->layers, j, it);
    if (j->head.n_matrices > 0 && it->n_sequences > 0) {
        int64_t n_matrices = j->head.n_matrices, values = it->n_sequences * n_matrices;
        memcpy(c->matrix_kl, j->results.divergence.matrices + it->window * n_matrices,
               (size_t)values * sizeof(*c->matrix_kl));
        c->matrix_kl += values;
    }
}

int64_t ctw_item_column_bytes(const struct ctw_item *it, const struct ctw_job_head *head)
{
    int64_t bytes = 4 + 8 + 4 + 1 + 4;
    int64_t unwanted = 4 * !head->want_logprob + 4 * !head->want_greedy;
    bytes += (int64_t)it->n_targets * (ctw_job_target_bytes(head) - unwanted);
    if (ctw_job_kind_has_rule(head->kind))
        bytes += 4 + (int64_t)it->n_sequences * (8 + 4);
    bytes += (int64_t)it->n_sequences * head->n_matrices * 8;
    if (head->n_layers > 0)
        bytes += (int64_t)it->n_sequences * (4 + head->n_layers * (5 * 8 + 4));
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
        n_windows += it->n_sequences;
        ++*n;
    }
    struct column_writer c;
    if (!alloc_columns(&c, j, *n, n_targets, n_windows, reply))
        return ctw_fail(err, CTW_ENOMEM, "fetch: out of memory for %" PRId64 " items", *n);
    for (int64_t i = 0; i < *n; i++)
        write_item(&c, j, i, j->results.order[first + i]);
    return CTW_OK;
}
