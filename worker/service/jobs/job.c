#include "worker/service/jobs/job.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/order.h"

struct ctw_job *ctw_job_create(const void *id, const struct ctw_job_head *head,
                               const char *numerics, const char *ref_numerics,
                               const struct ctw_contact *contact)
{
    struct ctw_job *j = ctw_calloc(1, sizeof(*j));
    if (j == NULL)
        return NULL;
    memcpy(j->id, id, sizeof(j->id));
    j->head = *head;
    ctw_job_blame(j, -1, -1);
    ctw_job_touch(j, contact);
    if (contact->owner != NULL)
        ctw_span_copy(ctw_span_of(contact->owner), j->contact.owner, sizeof(j->contact.owner));
    j->input.bytes = sizeof(*j);
    j->results.numerics = ctw_strdup(numerics);
    j->results.matrix_names =
        ctw_calloc((size_t)head->n_matrices, sizeof(*j->results.matrix_names));
    if (ref_numerics != NULL)
        j->results.ref_numerics = ctw_strdup(ref_numerics);
    if (j->results.matrix_names == NULL || j->results.numerics == NULL ||
        (ref_numerics != NULL && j->results.ref_numerics == NULL)) {
        ctw_job_destroy(j);
        return NULL;
    }
    return j;
}

static void free_divergence(struct ctw_job_divergence *d)
{
    ctw_free(d->ref_logprob);
    ctw_free(d->ref_top);
    ctw_free(d->kl);
    ctw_free(d->kl_reverse);
    ctw_free(d->tv);
    ctw_free(d->ref_greedy);
    ctw_free(d->overlap5);
    ctw_free(d->layers);
    ctw_free(d->matrices);
}

void ctw_job_destroy(struct ctw_job *j)
{
    if (j == NULL)
        return;
    for (int64_t i = 0; i < j->input.n_parts; i++)
        ctw_job_part_destroy(j->input.parts[i]);
    ctw_free(j->input.parts);
    ctw_free(j->results.numerics);
    ctw_free(j->results.ref_numerics);
    free_divergence(&j->results.divergence);
    for (int64_t i = 0; j->results.matrix_names != NULL && i < j->head.n_matrices; i++)
        ctw_free(j->results.matrix_names[i]);
    ctw_free(j->results.matrix_names);
    ctw_free(j->plan.items);
    ctw_free(j->plan.sequences);
    ctw_free(j->plan.tokens);
    ctw_free(j->plan.keys);
    ctw_free(j->results.logprob);
    ctw_free(j->results.greedy);
    ctw_free(j->results.order);
    ctw_free(j);
}

bool ctw_job_name_matrix(struct ctw_job *j, int64_t i, const char *name)
{
    j->results.matrix_names[i] = ctw_strdup(name);
    j->input.bytes += sizeof(char *) + strlen(name) + 1;
    return j->results.matrix_names[i] != NULL;
}

enum ctw_status ctw_job_add_part(struct ctw_job *j, struct ctw_job_part *p, struct ctw_err *err)
{
    if (j->input.n_parts == j->input.cap_parts) {
        int64_t cap = j->input.cap_parts == 0 ? 4 : j->input.cap_parts * 2;
        struct ctw_job_part **parts = ctw_realloc(j->input.parts, (size_t)cap, sizeof(*parts));
        if (parts == NULL)
            return ctw_fail(err, CTW_ENOMEM, "submit: out of memory");
        j->input.parts = parts;
        j->input.cap_parts = cap;
    }
    j->input.parts[j->input.n_parts++] = p;
    j->input.n_items += p->n_items;
    j->input.n_targets += p->n_targets;
    j->input.n_sequences += p->n_sequences;
    j->input.n_tok += p->n_input;
    j->input.n_copied += p->n_copied;
    j->input.bytes += p->bytes;
    return CTW_OK;
}

/* ---- planning ---- */

static void gather_items(struct ctw_job *j)
{
    struct ctw_item *to = j->plan.items;
    int64_t n_targets = 0;
    for (int64_t i = 0; i < j->input.n_parts; i++) {
        struct ctw_job_part *p = j->input.parts[i];
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

/* The sequence of a window, with the rule's BOS. *to: where a copy of the tokens may be put. */
static struct ctw_sequence sequence_of(const struct ctw_job *j, const struct ctw_item *it,
                                       const struct ctw_window *w, int32_t **to)
{
    const struct ctw_cut_rule *rule = &j->head.rule;
    bool before = rule->bos_mode == CTW_BOS_PREFIX;
    struct ctw_sequence u = {.tokens = it->tokens + w->start,
                             .n_tok = (int32_t)w->n_tok + before,
                             .first = (int32_t)w->first + before};
    if (rule->bos_mode != CTW_BOS_NONE) {
        memcpy(*to + before, u.tokens, (size_t)w->n_tok * sizeof(**to));
        (*to)[0] = rule->bos;
        u.tokens = *to;
        *to += u.n_tok;
    }
    return u;
}

static void make_sequences(struct ctw_job *j)
{
    struct ctw_sequence *u = j->plan.sequences;
    int32_t *copy = j->plan.tokens;
    for (int64_t i = 0; i < j->input.n_items; i++) {
        struct ctw_item *it = &j->plan.items[i];
        int64_t out = 0;
        it->window = u - j->plan.sequences;
        for (int64_t k = 0; k < it->n_sequences; k++) {
            struct ctw_window w = ctw_item_window(it, &j->head, k);
            *u = sequence_of(j, it, &w, &copy);
            u->item = (int32_t)i;
            u->out = (int32_t)out;
            u->window = it->window + k;
            out += w.n_tok - w.first;
            u++;
        }
    }
}

/* In the trie's order. False: out of memory. */
static bool order_sequences(struct ctw_job *j)
{
    size_t n = (size_t)j->input.n_sequences;
    struct ctw_leaf *leaves = ctw_calloc(3 * n, sizeof(*leaves));
    struct ctw_sequence *sorted = ctw_calloc(n, sizeof(*sorted));
    bool ok = leaves != NULL && sorted != NULL;
    for (size_t i = 0; ok && i < n; i++) {
        const struct ctw_sequence *u = &j->plan.sequences[i];
        leaves[i] = (struct ctw_leaf){u->tokens, u->n_tok, (int64_t)i, 0};
    }
    if (ok)
        ctw_order_sort(leaves, (int64_t)n, leaves + n);
    for (size_t i = 0; ok && i < n; i++) {
        sorted[i] = j->plan.sequences[leaves[i].index];
        sorted[i].shared =
            (int32_t)ctw_worth_sharing(leaves[i].same, ctw_sequence_input(&sorted[i]));
    }
    ctw_free(leaves);
    ctw_free(ok ? j->plan.sequences : sorted);
    j->plan.sequences = ok ? sorted : j->plan.sequences;
    return ok;
}

/* Longest first: little space is left at the end of a pass, and the time left can be estimated. */
static int compare_sequences(const void *a_, const void *b_)
{
    const struct ctw_sequence *a = a_, *b = b_;
    if (a->n_tok != b->n_tok)
        return a->n_tok > b->n_tok ? -1 : 1;
    if (a->item != b->item)
        return a->item < b->item ? -1 : 1;
    return (a->out > b->out) - (a->out < b->out);
}

/* False: out of memory. */
static bool alloc_divergence(struct ctw_job_divergence *d, size_t n_targets, size_t n_layers,
                             size_t n_matrices)
{
    d->ref_logprob = ctw_calloc(n_targets, sizeof(*d->ref_logprob));
    d->ref_top = ctw_calloc(n_targets, sizeof(*d->ref_top));
    d->kl = ctw_calloc(n_targets, sizeof(*d->kl));
    d->kl_reverse = ctw_calloc(n_targets, sizeof(*d->kl_reverse));
    d->tv = ctw_calloc(n_targets, sizeof(*d->tv));
    d->ref_greedy = ctw_calloc(n_targets, sizeof(*d->ref_greedy));
    d->overlap5 = ctw_calloc(n_targets, sizeof(*d->overlap5));
    d->layers = ctw_calloc(n_layers, sizeof(*d->layers));
    d->matrices = ctw_calloc(n_matrices, sizeof(*d->matrices));
    return d->ref_logprob != NULL && d->ref_top != NULL && d->kl != NULL && d->kl_reverse != NULL &&
           d->tv != NULL && d->ref_greedy != NULL && d->overlap5 != NULL && d->layers != NULL &&
           d->matrices != NULL;
}

enum ctw_status ctw_job_plan(struct ctw_job *j, bool shares, int64_t *n_done, struct ctw_err *err)
{
    bool ok = j->head.kind != CTW_JOB_DIVERGENCE ||
              alloc_divergence(&j->results.divergence, (size_t)j->input.n_targets,
                               (size_t)(j->input.n_sequences * j->head.n_layers),
                               (size_t)(j->input.n_sequences * j->head.n_matrices));
    *n_done = 0;
    j->plan.items = ctw_calloc((size_t)j->input.n_items, sizeof(*j->plan.items));
    j->plan.sequences = ctw_calloc((size_t)j->input.n_sequences, sizeof(*j->plan.sequences));
    j->plan.tokens = ctw_calloc((size_t)j->input.n_copied, sizeof(*j->plan.tokens));
    j->results.logprob = ctw_calloc((size_t)j->input.n_targets, sizeof(*j->results.logprob));
    j->results.greedy = ctw_calloc((size_t)j->input.n_targets, sizeof(*j->results.greedy));
    j->results.order = ctw_calloc((size_t)j->input.n_items, sizeof(*j->results.order));
    if (!ok || j->plan.items == NULL || j->plan.sequences == NULL || j->plan.tokens == NULL ||
        j->results.logprob == NULL || j->results.greedy == NULL || j->results.order == NULL)
        return ctw_fail(err, CTW_ENOMEM,
                        "out of memory for a job of %" PRId64 " items and %" PRId64 " targets",
                        j->input.n_items, j->input.n_targets);
    gather_items(j);
    make_sequences(j);
    for (int64_t i = 0; i < j->input.n_items; i++) {
        if (j->plan.items[i].n_sequences == 0)
            j->results.order[(*n_done)++] = (int32_t)i;
    }
    j->plan.n_score = j->input.n_sequences;
    if (!shares || j->head.n_layers > 0 || j->head.n_matrices > 0)
        qsort(j->plan.sequences, (size_t)j->input.n_sequences, sizeof(*j->plan.sequences),
              compare_sequences);
    else if (!order_sequences(j))
        return ctw_fail(err, CTW_ENOMEM, "out of memory to order %" PRId64 " sequences",
                        j->input.n_sequences);
    return CTW_OK;
}

/* ---- scoring ---- */

int64_t ctw_sequence_input(const struct ctw_sequence *u)
{
    return u->n_tok - 1;
}

double ctw_sequence_cost(const struct ctw_job *j, const struct ctw_sequence *u)
{
    double n = (double)ctw_sequence_input(u), shared = (double)u->shared;
    double cost = n - shared + j->head.pair_cost * (n * (n + 1) - shared * (shared + 1)) / 2;
    if (j->head.kind != CTW_JOB_DIVERGENCE)
        return cost;
    /* Through two models. The reference goes through its layers once more for matrices, of which
     * each takes half a pass on average. */
    double matrices = (double)j->head.n_matrices;
    return cost * (2 + (matrices > 0) + matrices / 2);
}

/* Index of the sequence's first target in logprob[] and greedy[]. */
static int64_t sequence_out(const struct ctw_job *j, const struct ctw_sequence *u)
{
    return j->plan.items[u->item].out + u->out;
}

struct ctw_seq ctw_job_seq(const struct ctw_job *j, int64_t sequence)
{
    const struct ctw_sequence *u = &j->plan.sequences[sequence];
    int64_t out = sequence_out(j, u);
    return (struct ctw_seq){.tokens = u->tokens,
                            .n_tok = u->n_tok,
                            .first = u->first,
                            .vocab = j->head.limit,
                            .logprob = j->results.logprob + out,
                            .greedy = j->results.greedy + out,
                            .bad_layer = -1};
}

struct ctw_seq_divergence ctw_job_seq_divergence(const struct ctw_job *j, int64_t sequence)
{
    const struct ctw_job_divergence *d = &j->results.divergence;
    const struct ctw_sequence *u = &j->plan.sequences[sequence];
    int64_t out = sequence_out(j, u), n_layers = j->head.n_layers, n_matrices = j->head.n_matrices;
    return (struct ctw_seq_divergence){
        .ref_logprob = d->ref_logprob + out,
        .ref_greedy = d->ref_greedy + out,
        .ref_top = d->ref_top + out,
        .kl = d->kl + out,
        .kl_reverse = d->kl_reverse + out,
        .tv = d->tv + out,
        .overlap5 = d->overlap5 + out,
        .layers = n_layers > 0 ? d->layers + u->window * n_layers : NULL,
        .matrices = n_matrices > 0 ? d->matrices + u->window * n_matrices : NULL};
}

static void finish_item(struct ctw_job *j, int64_t item)
{
    struct ctw_item *it = &j->plan.items[item];
    const float *logprob = j->results.logprob + it->out;
    const int32_t *greedy = j->results.greedy + it->out;
    for (int64_t k = 0; k < it->n_sequences; k++) {
        struct ctw_window w = ctw_item_window(it, &j->head, k);
        const int32_t *targets = it->tokens + w.start + w.first;
        for (int64_t i = 0; i < w.n_tok - w.first; i++) {
            it->sum += (double)logprob[i];
            it->is_greedy = it->is_greedy && greedy[i] == targets[i];
        }
        logprob += w.n_tok - w.first;
        greedy += w.n_tok - w.first;
    }
    j->results.order[j->results.n_done++] = (int32_t)item;
}

void ctw_job_scored(struct ctw_job *j, struct ctw_sequence *u)
{
    u->scored = true;
    j->results.tok_done += ctw_sequence_input(u);
    j->results.tok_added += u->added;
    j->results.cost_done += ctw_sequence_cost(j, u);
}

static void take_sequence(struct ctw_job *j, const struct ctw_sequence *u)
{
    j->results.news = true;
    if (--j->plan.items[u->item].sequences_left == 0)
        finish_item(j, u->item);
}

void ctw_job_planned(struct ctw_job *j, int64_t n_done)
{
    for (int64_t i = 0; i < j->input.n_sequences; i++) {
        const struct ctw_sequence *u = &j->plan.sequences[i];
        j->plan.cost += ctw_sequence_cost(j, u);
        j->plan.n_new += ctw_sequence_input(u) - u->shared;
    }
    j->plan.made = true;
    j->results.n_done = n_done;
    j->results.news = true;
    for (int64_t i = j->plan.n_score; i < j->input.n_sequences; i++) {
        ctw_job_scored(j, &j->plan.sequences[i]);
        j->results.tok_found += ctw_sequence_input(&j->plan.sequences[i]);
        take_sequence(j, &j->plan.sequences[i]);
    }
}

static enum ctw_status not_finite(struct ctw_job *j, int64_t item, int layer, int n_decoders,
                                  struct ctw_err *err)
{
    ctw_job_blame(j, item, layer);
    if (layer >= n_decoders)
        return ctw_fail(err, CTW_ENUMERIC,
                        "item %" PRId64
                        ": the scores are not finite, but the outputs of all %d layers are: "
                        "try --dtype float32, or check the checkpoint's head",
                        item, n_decoders);
    return ctw_fail(err, CTW_ENUMERIC,
                    "item %" PRId64 ": NaN or infinity after layer %d of %d (counted from 0): try "
                    "--dtype float32, or check that layer's weights",
                    item, layer, n_decoders);
}

void ctw_job_name_source(struct ctw_job *j, const char *identity, const char *ref_identity)
{
    struct ctw_job_results *r = &j->results;
    if (r->identity[0] != '\0')
        return;
    snprintf(r->identity, sizeof(r->identity), "%s", identity);
    if (ref_identity != NULL)
        snprintf(r->ref_identity, sizeof(r->ref_identity), "%s", ref_identity);
}

bool ctw_job_is_finite(const struct ctw_job *j, int64_t sequence)
{
    struct ctw_seq seq = ctw_job_seq(j, sequence);
    for (int64_t i = 0; i < seq.n_tok - seq.first; i++) {
        if (!isfinite(seq.logprob[i]))
            return false;
    }
    return true;
}

enum ctw_status ctw_job_take(struct ctw_job *j, int64_t sequence, int bad_layer, int n_decoders,
                             struct ctw_err *err)
{
    const struct ctw_sequence *u = &j->plan.sequences[sequence];
    if (bad_layer >= 0)
        return not_finite(j, u->item, bad_layer, n_decoders, err);
    if (!ctw_job_is_finite(j, sequence))
        return not_finite(j, u->item, n_decoders, n_decoders, err);
    take_sequence(j, u);
    return CTW_OK;
}

bool ctw_job_take_news(struct ctw_job *j)
{
    bool news = j->results.news;
    j->results.news = false;
    return news;
}
