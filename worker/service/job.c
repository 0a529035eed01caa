#include "worker/service/job.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "worker/service/windows.h"

const char *ctw_job_state_name(enum ctw_job_state state)
{
    static const char *const names[] = {
        [CTW_JOB_OPEN] = "open", [CTW_JOB_QUEUED] = "queued", [CTW_JOB_RUNNING] = "running",
        [CTW_JOB_DONE] = "done", [CTW_JOB_FAILED] = "failed", [CTW_JOB_CANCELED] = "canceled"};
    return names[state];
}

const char *ctw_job_kind_name(enum ctw_job_kind kind)
{
    return kind == CTW_JOB_ROLLING ? "loglikelihood_rolling" : "loglikelihood";
}

struct ctw_job *ctw_job_create(const void *id, const struct ctw_job_head *head,
                               const char *numerics)
{
    struct ctw_job *j = ctw_calloc(1, sizeof(*j));
    if (j == NULL)
        return NULL;
    memcpy(j->id, id, sizeof(j->id));
    j->head = *head;
    j->error_item = -1;
    j->error_layer = -1;
    j->bytes = sizeof(*j);
    j->numerics = ctw_strdup(numerics);
    if (j->numerics == NULL) {
        ctw_job_destroy(j);
        return NULL;
    }
    return j;
}

void ctw_job_destroy(struct ctw_job *j)
{
    if (j == NULL)
        return;
    for (int64_t i = 0; i < j->n_parts; i++)
        ctw_job_part_destroy(j->parts[i]);
    ctw_free(j->parts);
    ctw_free(j->numerics);
    ctw_free(j->items);
    ctw_free(j->units);
    ctw_free(j->logprob);
    ctw_free(j->greedy);
    ctw_free(j->order);
    ctw_free(j);
}

enum ctw_status ctw_job_add_part(struct ctw_job *j, struct ctw_job_part *p, struct ctw_err *err)
{
    if (j->n_parts == j->cap_parts) {
        int64_t cap = j->cap_parts == 0 ? 4 : j->cap_parts * 2;
        struct ctw_job_part **parts = ctw_realloc(j->parts, (size_t)cap, sizeof(*parts));
        if (parts == NULL)
            return ctw_fail(err, CTW_ENOMEM, "submit: out of memory");
        j->parts = parts;
        j->cap_parts = cap;
    }
    j->parts[j->n_parts++] = p;
    j->n_items += p->n_items;
    j->n_targets += p->n_targets;
    j->n_units += p->n_units;
    j->n_input += p->n_input;
    j->bytes += p->bytes;
    return CTW_OK;
}

/* ---- planning ---- */

static void gather_items(struct ctw_job *j)
{
    struct ctw_item *to = j->items;
    int64_t n_targets = 0;
    for (int64_t i = 0; i < j->n_parts; i++) {
        struct ctw_job_part *p = j->parts[i];
        if (p->n_items > 0)
            memcpy(to, p->items, (size_t)p->n_items * sizeof(*to));
        for (int64_t k = 0; k < p->n_items; k++)
            to[k].out += n_targets;
        to += p->n_items;
        n_targets += p->n_targets;
        ctw_free(p->items);
        p->items = NULL;
    }
}

static struct ctw_unit unit_of(const struct ctw_job *j, int64_t item, int64_t window)
{
    const struct ctw_item *it = &j->items[item];
    if (j->head.kind == CTW_JOB_LOGLIKELIHOOD)
        return (struct ctw_unit){
            .item = (int32_t)item, .n_tok = it->n_tok, .first = it->n_tok - it->n_targets};
    struct ctw_window w =
        ctw_window_at(it->n_targets, j->head.max_length, j->head.context_length, window);
    return (struct ctw_unit){.item = (int32_t)item,
                             .start = (int32_t)w.start,
                             .n_tok = (int32_t)w.n_tok,
                             .first = (int32_t)w.first};
}

/* Longest first: what is left at a pass's end is then small, and the rest's time can be told. */
static int compare_units(const void *a_, const void *b_)
{
    const struct ctw_unit *a = a_, *b = b_;
    if (a->n_tok != b->n_tok)
        return a->n_tok > b->n_tok ? -1 : 1;
    if (a->item != b->item)
        return a->item < b->item ? -1 : 1;
    return (a->start > b->start) - (a->start < b->start);
}

enum ctw_status ctw_job_plan(struct ctw_job *j, int64_t *n_done, struct ctw_err *err)
{
    *n_done = 0;
    j->items = ctw_calloc((size_t)j->n_items, sizeof(*j->items));
    j->units = ctw_calloc((size_t)j->n_units, sizeof(*j->units));
    j->logprob = ctw_calloc((size_t)j->n_targets, sizeof(*j->logprob));
    j->greedy = ctw_calloc((size_t)j->n_targets, sizeof(*j->greedy));
    j->order = ctw_calloc((size_t)j->n_items, sizeof(*j->order));
    if (j->items == NULL || j->units == NULL || j->logprob == NULL || j->greedy == NULL ||
        j->order == NULL)
        return ctw_fail(err, CTW_ENOMEM,
                        "out of memory for a job of %" PRId64 " items and %" PRId64 " targets",
                        j->n_items, j->n_targets);
    gather_items(j);
    struct ctw_unit *u = j->units;
    for (int64_t i = 0; i < j->n_items; i++) {
        for (int64_t w = 0; w < j->items[i].n_units; w++)
            *u++ = unit_of(j, i, w);
        if (j->items[i].n_units == 0)
            j->order[(*n_done)++] = (int32_t)i;
    }
    qsort(j->units, (size_t)j->n_units, sizeof(*j->units), compare_units);
    return CTW_OK;
}

/* ---- scoring ---- */

int64_t ctw_unit_input(const struct ctw_unit *u)
{
    return u->n_tok - 1;
}

double ctw_unit_cost(const struct ctw_job *j, const struct ctw_unit *u)
{
    double n = (double)ctw_unit_input(u);
    return n + j->head.pair_cost * n * (n + 1) / 2;
}

double ctw_model_pair_cost(const struct ctw_model *model)
{
    double pair = 0; /* multiply-adds: q with k, then with v; a weight is one for each token */
    for (int i = 1; model->layers != NULL && i <= model->n_decoders; i++)
        pair += 2.0 * model->layers[i].n_head * model->layers[i].head;
    return model->n_params > 0 ? pair / (double)model->n_params : 0;
}

/* Place of the unit's first target in logprob[] and greedy[]. */
static int64_t unit_out(const struct ctw_job *j, const struct ctw_unit *u)
{
    const struct ctw_item *it = &j->items[u->item];
    return it->out + (u->start + u->first) - (it->n_tok - it->n_targets);
}

struct ctw_seq ctw_job_seq(const struct ctw_job *j, int64_t unit)
{
    const struct ctw_unit *u = &j->units[unit];
    int64_t out = unit_out(j, u);
    return (struct ctw_seq){.tokens = j->items[u->item].tokens + u->start,
                            .n_tok = u->n_tok,
                            .first = u->first,
                            .logprob = j->logprob + out,
                            .greedy = j->greedy + out,
                            .bad_layer = -1};
}

static void finish_item(struct ctw_job *j, int64_t item)
{
    struct ctw_item *it = &j->items[item];
    const int32_t *targets = it->tokens + it->n_tok - it->n_targets;
    for (int64_t i = 0; i < it->n_targets; i++) {
        it->sum += (double)j->logprob[it->out + i];
        it->is_greedy = it->is_greedy && j->greedy[it->out + i] == targets[i];
    }
    j->order[j->n_done++] = (int32_t)item;
}

static enum ctw_status not_finite(struct ctw_job *j, int64_t item, int layer, int n_decoders,
                                  struct ctw_err *err)
{
    j->error_item = item;
    j->error_layer = layer;
    if (layer >= n_decoders)
        return ctw_fail(err, CTW_ENUMERIC,
                        "item %" PRId64 ": the scores are not finite, though all %d layers were: "
                        "try --dtype float32, or look at the checkpoint's head",
                        item, n_decoders);
    return ctw_fail(err, CTW_ENUMERIC,
                    "item %" PRId64 ": NaN or infinity after layer %d of %d (counted from 0): try "
                    "--dtype float32, or look at that layer's weights",
                    item, layer, n_decoders);
}

void ctw_job_name_source(struct ctw_job *j, const char *identity)
{
    if (j->identity[0] == '\0')
        snprintf(j->identity, sizeof(j->identity), "%s", identity);
}

enum ctw_status ctw_job_take(struct ctw_job *j, int64_t unit, int bad_layer, int n_decoders,
                             struct ctw_err *err)
{
    const struct ctw_unit *u = &j->units[unit];
    if (bad_layer >= 0)
        return not_finite(j, u->item, bad_layer, n_decoders, err);
    int64_t out = unit_out(j, u);
    for (int64_t i = 0; i < u->n_tok - u->first; i++) {
        if (!isfinite(j->logprob[out + i]))
            return not_finite(j, u->item, n_decoders, n_decoders, err);
    }
    j->tok_done += ctw_unit_input(u);
    j->cost_done += ctw_unit_cost(j, u);
    if (--j->items[u->item].units_left == 0)
        finish_item(j, u->item);
    return CTW_OK;
}

/* ---- results ---- */

struct column_writer {
    int32_t *item, *count, *truncated, *greedy;
    double *sum;
    uint8_t *is_greedy;
    float *logprob;
};

static bool alloc_columns(struct column_writer *c, const struct ctw_job *j, int64_t n,
                          int64_t n_targets, struct ctw_reply *reply)
{
    struct ctw_result_map *map = &reply->body.fetch.result;
    size_t items = (size_t)n, targets = (size_t)n_targets;
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
    return true;
}

static void write_item(struct column_writer *c, const struct ctw_job *j, int64_t at, int64_t item)
{
    const struct ctw_item *it = &j->items[item];
    size_t n = (size_t)it->n_targets;
    c->item[at] = (int32_t)item;
    c->sum[at] = it->sum;
    c->count[at] = it->n_targets;
    c->is_greedy[at] = it->is_greedy;
    c->truncated[at] = it->truncated;
    if (j->head.want_logprob && n > 0) {
        memcpy(c->logprob, j->logprob + it->out, n * 4);
        c->logprob += n;
    }
    if (j->head.want_greedy && n > 0) {
        memcpy(c->greedy, j->greedy + it->out, n * 4);
        c->greedy += n;
    }
}

enum ctw_status ctw_job_columns(const struct ctw_job *j, int64_t first, int64_t n_done,
                                int64_t max_bytes, struct ctw_reply *reply, int64_t *n,
                                struct ctw_err *err)
{
    const int64_t item_bytes = 4 + 8 + 4 + 1 + 4;
    int64_t per_target = 4 * j->head.want_logprob + 4 * j->head.want_greedy;
    int64_t n_targets = 0;
    *n = 0;
    while (first + *n < n_done) {
        int64_t more = j->items[j->order[first + *n]].n_targets;
        if (*n > 0 && (*n + 1) * item_bytes + (n_targets + more) * per_target > max_bytes)
            break;
        n_targets += more;
        ++*n;
    }
    struct column_writer c;
    if (!alloc_columns(&c, j, *n, n_targets, reply))
        return ctw_fail(err, CTW_ENOMEM, "fetch: out of memory for %" PRId64 " items", *n);
    for (int64_t i = 0; i < *n; i++)
        write_item(&c, j, i, j->order[first + i]);
    return CTW_OK;
}
