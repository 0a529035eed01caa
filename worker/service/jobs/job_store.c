/* Looks up a job's sequences in the store, and selects the results that the store keeps. */
#include "base/mem.h"
#include "worker/service/jobs/job.h"

enum { BLOCK = 1024 }; /* sequences of one look-up */

/* All results of the sequence that a client can fetch; the key determines which results these
 * are. */
struct ctw_store_record ctw_job_record(const struct ctw_job *j, int64_t sequence)
{
    struct ctw_seq seq = ctw_job_seq(j, sequence);
    struct ctw_store_record r = {.key = j->plan.keys[sequence], .n = seq.n_tok - seq.first};
    size_t four = (size_t)r.n * 4; /* bytes of a column of float or int32_t */
    ctw_store_add_column(&r, seq.logprob, four);
    ctw_store_add_column(&r, seq.greedy, four);
    if (j->head.kind != CTW_JOB_DIVERGENCE)
        return r;
    struct ctw_seq_divergence d = ctw_job_seq_divergence(j, sequence);
    void *const columns[] = {d.ref_logprob, d.ref_greedy, d.ref_top, d.kl, d.kl_reverse, d.tv};
    for (size_t i = 0; i < CTW_COUNT(columns); i++)
        ctw_store_add_column(&r, columns[i], four);
    ctw_store_add_column(&r, d.overlap5, (size_t)r.n);
    if (d.layers != NULL)
        ctw_store_add_column(&r, d.layers, (size_t)j->head.n_layers * sizeof(*d.layers));
    _Static_assert(CTW_STORE_MAX_COLUMNS == CTW_COUNT(columns) + 4, "count the columns");
    return r;
}

/* Makes the keys of sequences[first .. first+n-1], looks them up and sets found[]. Returns their
 * number. */
static int64_t find_block(struct ctw_job *j, struct ctw_store *store,
                          const struct ctw_store_source *source, struct ctw_store_record *records,
                          int64_t first, int64_t n, bool *found)
{
    for (int64_t i = 0; i < n; i++) {
        struct ctw_seq seq = ctw_job_seq(j, first + i);
        j->plan.keys[first + i] =
            ctw_store_key_of(seq.tokens, seq.n_tok, seq.first, j->head.n_layers);
        records[i] = ctw_job_record(j, first + i);
    }
    if (store == NULL || !ctw_job_is_storable(j))
        return 0;
    int64_t n_found = ctw_store_find(store, source, records, n);
    for (int64_t i = 0; i < n; i++)
        found[first + i] = records[i].found;
    return n_found;
}

/* Moves found sequences behind the others; both keep their order, and sequences share what all
 * between them share. `scratch` has room for the found sequences. */
static void part_sequences(struct ctw_job *j, const bool *found, struct ctw_sequence *scratch)
{
    struct ctw_job_plan *p = &j->plan;
    int64_t n_score = 0, n_found = 0;
    int32_t most = INT32_MAX; /* shared by the sequences since the last one that was not found */
    for (int64_t i = 0; i < j->input.n_sequences; i++) {
        struct ctw_sequence *u = &p->sequences[i];
        most = u->shared < most ? u->shared : most;
        if (found[i]) {
            u->shared = 0;
            scratch[n_found++] = *u;
            continue;
        }
        u->shared = most;
        most = INT32_MAX;
        p->sequences[n_score] = *u;
        p->keys[n_score++] = p->keys[i];
    }
    memcpy(p->sequences + n_score, scratch, (size_t)n_found * sizeof(*scratch));
    p->n_score = n_score;
}

enum ctw_status ctw_job_find_stored(struct ctw_job *j, struct ctw_store *store,
                                    const struct ctw_store_source *source, const atomic_bool *stop,
                                    struct ctw_err *err)
{
    int64_t n = j->input.n_sequences, n_found = 0;
    enum ctw_status st = CTW_OK;
    struct ctw_store_record *records = ctw_calloc(BLOCK, sizeof(*records));
    bool *found = ctw_calloc((size_t)n, sizeof(*found));
    struct ctw_sequence *scratch = NULL;
    j->plan.keys = ctw_calloc((size_t)n, sizeof(*j->plan.keys));
    if (records == NULL || found == NULL || j->plan.keys == NULL)
        goto no_memory;
    for (int64_t i = 0; i < n && !atomic_load(stop); i += BLOCK)
        n_found += find_block(j, store, source, records, i, n - i < BLOCK ? n - i : BLOCK, found);
    scratch = ctw_calloc((size_t)n_found, sizeof(*scratch));
    if (scratch == NULL)
        goto no_memory;
    part_sequences(j, found, scratch);
    goto done;
no_memory:
    st = ctw_fail(err, CTW_ENOMEM, "out of memory to look %lld sequences up in the store",
                  (long long)n);
done:
    ctw_free(records);
    ctw_free(found);
    ctw_free(scratch);
    return st;
}
