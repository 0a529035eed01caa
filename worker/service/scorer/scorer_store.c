/* Looks up the scoring thread's sequences in the result store: see
 * worker/service/scorer/scorer.h. */
#include <string.h>

#include "base/mem.h"
#include "worker/service/scorer/scorer.h"

static struct ctw_store_model store_model(const struct ctw_engine *e, const char *numerics)
{
    if (e == NULL)
        return (struct ctw_store_model){"", "", ""};
    return (struct ctw_store_model){ctw_engine_identity(e), numerics, ctw_engine_outline(e)};
}

static struct ctw_store_source source_of(const struct ctw_job *j, const struct ctw_engine *engine,
                                         const struct ctw_engine *reference)
{
    return (struct ctw_store_source){store_model(engine, j->results.numerics),
                                     store_model(reference, j->results.ref_numerics)};
}

static bool is_known(const struct ctw_store_source *source, bool has_reference)
{
    return source->model.identity[0] != '\0' &&
           (!has_reference || source->reference.identity[0] != '\0');
}

enum ctw_status ctw_scorer_find_stored(struct ctw_scorer *s, struct ctw_job *j,
                                       struct ctw_engine *engine, struct ctw_engine *reference,
                                       struct ctw_err *err)
{
    if (s->store == NULL)
        return CTW_OK;
    enum ctw_status st = CTW_OK;
    const atomic_bool *stop = &s->queue->life.stop;
    struct ctw_store_source source = source_of(j, engine, reference);
    /* A GPU computes while its weights are still being read: wait only if that may save work. */
    if (!is_known(&source, reference != NULL) && !ctw_store_may_have(s->store, &source))
        return ctw_job_find_stored(j, NULL, &source, stop, err);
    st = ctw_engine_wait_identity(engine, err);
    if (st == CTW_OK && reference != NULL)
        st = ctw_engine_wait_identity(reference, err);
    if (st != CTW_OK)
        return st;
    source = source_of(j, engine, reference);
    return ctw_job_find_stored(j, s->store, &source, stop, err);
}

/* ---- a pass that is about to begin ---- */

static const struct ctw_store_key *key_of(const struct ctw_scorer *s, int64_t i)
{
    return &s->entries[i].job->plan.keys[s->entries[i].sequence];
}

/* Keys of the pass -> the first sequence with the key: open addressing; the size is a power of 2.
 */
struct table {
    const struct ctw_scorer *s;
    int64_t *entries; /* -1: free */
    uint64_t mask;
};

/* The key's place: its sequence's, or a free one. */
static int64_t *place_of(const struct table *t, const struct ctw_store_key *key)
{
    uint64_t at;
    memcpy(&at, key->bytes, sizeof(at)); /* a hash already */
    at &= t->mask;
    while (t->entries[at] >= 0 && memcmp(key_of(t->s, t->entries[at]), key, sizeof(*key)) != 0)
        at = (at + 1) & t->mask;
    return &t->entries[at];
}

static bool is_in_pass(const void *table, const struct ctw_store_key *key)
{
    return *place_of(table, key) >= 0;
}

static void find_twins(struct ctw_scorer *s, const struct table *t)
{
    memset(t->entries, -1, (t->mask + 1) * sizeof(*t->entries));
    for (int64_t i = 0; i < s->n; i++) {
        if (!ctw_job_is_storable(s->entries[i].job))
            continue;
        int64_t *place = place_of(t, key_of(s, i));
        if (*place < 0)
            *place = i;
        else
            s->entries[i].twin = *place;
    }
}

/* Other jobs and other workers may have stored results since the jobs were planned. */
static void find_again(struct ctw_scorer *s, struct ctw_store_record *records)
{
    struct ctw_store_source source = source_of(s->entries[0].job, s->engine, s->reference);
    if (!is_known(&source, s->reference != NULL))
        return; /* the store has nothing of it */
    int64_t n = 0;
    for (int64_t i = 0; i < s->n; i++) {
        if (ctw_job_is_storable(s->entries[i].job))
            records[n++] = ctw_job_record(s->entries[i].job, s->entries[i].sequence);
    }
    if (ctw_store_find(s->store, &source, records, n) == 0)
        return;
    n = 0;
    for (int64_t i = 0; i < s->n; i++)
        s->entries[i].stored = ctw_job_is_storable(s->entries[i].job) && records[n++].found;
}

static bool is_scored(const struct ctw_pass_entry *u)
{
    return !u->stored && u->twin < 0;
}

/* Moves the sequences to score to the front; all keep their order. `place` becomes each sequence's
 * new index. */
static void order_pass(struct ctw_scorer *s, struct ctw_pass_entry *entries, int64_t *place)
{
    int64_t n = 0;
    s->n_score = 0;
    s->pass_cost = 0;
    for (int64_t i = 0; i < s->n; i++)
        s->n_score += is_scored(&s->entries[i]);
    int64_t behind = s->n_score;
    for (int64_t i = 0; i < s->n; i++) {
        const struct ctw_pass_entry *u = &s->entries[i];
        place[i] = is_scored(u) ? n++ : behind++;
        if (is_scored(u))
            s->pass_cost += ctw_sequence_cost(u->job, &u->job->plan.sequences[u->sequence]);
        entries[place[i]] = *u;
        if (u->twin >= 0)
            entries[place[i]].twin = place[u->twin];
    }
    memcpy(s->entries, entries, (size_t)s->n * sizeof(*entries));
    for (int64_t i = 0; i < s->n; i++) {
        s->seqs[i] = ctw_job_seq(entries[i].job, entries[i].sequence);
        if (s->reference != NULL)
            s->divergences[i] = ctw_job_seq_divergence(entries[i].job, entries[i].sequence);
    }
}

void ctw_scorer_skip_known(struct ctw_scorer *s)
{
    size_t n = (size_t)s->n, size = 4;
    s->n_score = s->n;
    if (s->store == NULL)
        return;
    while (size < 2 * n)
        size *= 2;
    struct ctw_store_record *records = ctw_calloc(n, sizeof(*records));
    struct ctw_pass_entry *entries = ctw_calloc(n, sizeof(*entries));
    struct table table = {
        .s = s, .entries = ctw_calloc(size, sizeof(*table.entries)), .mask = size - 1};
    /* Without memory, what is known already is computed again. */
    if (records != NULL && entries != NULL && table.entries != NULL) {
        find_twins(s, &table);
        ctw_settle_wait_for(s, is_in_pass, &table);
        find_again(s, records);
        order_pass(s, entries, table.entries);
    }
    ctw_free(records);
    ctw_free(entries);
    ctw_free(table.entries);
}

void ctw_scorer_copy_twins(struct ctw_scorer *s)
{
    for (int64_t i = s->n_score; i < s->n; i++) {
        const struct ctw_pass_entry *u = &s->entries[i];
        if (u->twin < 0)
            continue;
        const struct ctw_pass_entry *twin = &s->entries[u->twin];
        struct ctw_store_record to = ctw_job_record(u->job, u->sequence);
        struct ctw_store_record from = ctw_job_record(twin->job, twin->sequence);
        for (int k = 0; k < to.n_columns; k++)
            memcpy(to.columns[k].data, from.columns[k].data, to.columns[k].bytes);
        s->seqs[i].bad_layer = s->seqs[u->twin].bad_layer;
        if (s->reference != NULL)
            s->divergences[i].bad_reference = s->divergences[u->twin].bad_reference;
    }
}
