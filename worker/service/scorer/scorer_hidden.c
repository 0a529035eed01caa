/* Final hidden states of references, kept in a folder: see worker/service/scorer/scorer.h. */
#include "base/mem.h"
#include "worker/service/scorer/scorer.h"

/* The files' keys and rows of seqs[first .. first+n-1]; NULL: no memory. */
static struct ctw_hidden_rows *records_of(const struct ctw_scorer *s, int64_t first, int64_t n,
                                          char *rows)
{
    struct ctw_hidden_rows *records = ctw_calloc((size_t)n, sizeof(*records));
    if (records == NULL)
        return NULL;
    const char *identity = ctw_engine_identity(s->reference);
    const char *numerics = s->entries[first].job->results.ref_numerics;
    for (int64_t i = 0; i < n; i++) {
        const struct ctw_seq *seq = &s->seqs[first + i];
        records[i] = (struct ctw_hidden_rows){
            .key = ctw_hidden_key_of(identity, numerics, seq->tokens, seq->n_tok, seq->first),
            .n_rows = seq->n_tok - seq->first,
            .row_bytes = s->ref_row_bytes,
            .rows = rows};
        rows += (size_t)records[i].n_rows * s->ref_row_bytes;
    }
    return records;
}

bool ctw_scorer_load_hidden(void *scorer, int64_t first, int64_t n, void *rows)
{
    struct ctw_scorer *s = scorer;
    struct ctw_hidden_rows *records = records_of(s, first, n, rows);
    bool found = records != NULL && ctw_hidden_read(s->hidden, records, n);
    ctw_free(records);
    pthread_mutex_lock(&s->queue->lock);
    for (int64_t i = first; i < first + n && found; i++)
        s->entries[i].job->results.n_ref_read++;
    pthread_mutex_unlock(&s->queue->lock);
    return found;
}

void ctw_scorer_keep_hidden(void *scorer, int64_t first, int64_t n, const void *rows)
{
    struct ctw_scorer *s = scorer;
    /* writing does not change the rows */
    struct ctw_hidden_rows *records = records_of(s, first, n, (char *)(uintptr_t)rows);
    for (int64_t i = 0; records != NULL && i < n; i++)
        if (s->seqs[first + i].bad_layer < 0)
            ctw_hidden_write(s->hidden, &records[i]);
    ctw_free(records);
}
