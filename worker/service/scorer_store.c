/* What the scoring thread does with the result store: see worker/service/scorer.h. */
#include <math.h>

#include "base/mem.h"
#include "worker/service/scorer.h"

enum ctw_status ctw_scorer_find_stored(struct ctw_scorer *s, struct ctw_job *j,
                                       struct ctw_engine *engine, struct ctw_err *err)
{
    if (s->store == NULL)
        return CTW_OK;
    enum ctw_status st = ctw_engine_wait_identity(engine, err);
    if (st != CTW_OK)
        return st;
    struct ctw_store_source source =
        ctw_store_source_of(ctw_engine_identity(engine), j->results.numerics);
    return ctw_job_find_stored(j, s->store, &source, &s->queue->life.stop, err);
}

static bool is_finite(const struct ctw_seq *seq)
{
    for (int64_t i = 0; i < seq->n_tok - seq->first; i++) {
        if (!isfinite(seq->logprob[i]))
            return false;
    }
    return seq->bad_layer < 0;
}

void ctw_scorer_keep(struct ctw_scorer *s, int64_t first, int64_t n)
{
    if (s->store == NULL)
        return;
    struct ctw_store_record *records = ctw_calloc((size_t)n, sizeof(*records));
    if (records == NULL) /* they are computed again when they are needed */
        return;
    int64_t n_records = 0;
    for (int64_t i = first; i < first + n; i++) {
        if (is_finite(&s->seqs[i]))
            records[n_records++] = ctw_job_record(s->units[i].job, s->units[i].unit);
    }
    struct ctw_store_source source =
        ctw_store_source_of(ctw_engine_identity(s->engine), s->units[first].job->results.numerics);
    (void)ctw_store_put(s->store, &source, records, n_records);
    ctw_free(records);
}
