#include "worker/engine/layout.h"

#include <string.h>

#include "base/mem.h"

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static bool allocate(struct ctw_layout *l, bool has_long)
{
    size_t n_tok = (size_t)l->n_tok, n_rows = (size_t)l->n_rows, n_chunks = (size_t)l->n_chunks;
    size_t n_parts = (size_t)l->n_seqs + n_chunks; /* a boundary of chunks splits one sequence */
    l->chunks = ctw_calloc(n_chunks, sizeof(*l->chunks));
    l->tokens = ctw_calloc(n_tok, sizeof(*l->tokens));
    l->positions = ctw_calloc(n_tok, sizeof(*l->positions));
    l->rows = ctw_calloc(n_rows, sizeof(*l->rows));
    l->targets = ctw_calloc(n_rows, sizeof(*l->targets));
    l->seqs = ctw_calloc(n_parts, sizeof(*l->seqs));
    l->kept_seqs = ctw_calloc(n_parts, sizeof(*l->kept_seqs));
    l->runs = ctw_calloc(n_parts, sizeof(*l->runs));
    l->kept_runs = ctw_calloc(n_parts, sizeof(*l->kept_runs));
    if (has_long)
        l->rope_rows = ctw_calloc(n_tok, sizeof(*l->rope_rows));
    return l->chunks != NULL && l->tokens != NULL && l->positions != NULL && l->rows != NULL &&
           l->targets != NULL && l->seqs != NULL && l->kept_seqs != NULL && l->runs != NULL &&
           l->kept_runs != NULL && (l->rope_rows != NULL || !has_long);
}

static void fill_tokens(struct ctw_layout *l, const struct ctw_seq *seqs,
                        const struct ctw_plan *plan, int64_t long_from)
{
    int64_t row = 0;
    for (int64_t i = 0; i < l->n_seqs; i++) {
        const struct ctw_seq *seq = &seqs[i];
        int64_t n_tok = ctw_seq_inputs(seq), start = l->start[i];
        int64_t rope_row0 = long_from > 0 && n_tok > long_from ? plan->longest : 0;
        memcpy(l->tokens + start, seq->tokens, (size_t)n_tok * sizeof(*l->tokens));
        for (int64_t t = 0; t < n_tok; t++) {
            l->positions[start + t] = (int32_t)t;
            if (l->rope_rows != NULL)
                l->rope_rows[start + t] = (int32_t)(rope_row0 + t);
        }
        for (int64_t t = seq->first; t < seq->n_tok; t++, row++) {
            l->rows[row] = start + t - 1; /* position t-1 predicts token t */
            l->targets[row] = seq->tokens[t];
        }
    }
}

/* Fills part n of the pass: what sequence `seq` has in the chunk. */
static void fill_part(struct ctw_layout *l, int64_t n, int64_t seq, const struct ctw_chunk *chunk)
{
    int64_t begin = max64(l->start[seq], chunk->tok0);
    int64_t end = min64(l->start[seq + 1], chunk->tok0 + chunk->n_tok);
    int64_t pos0 = begin - l->start[seq], n_keys = end - l->start[seq];
    int64_t first_key = begin == chunk->tok0 ? 0 : chunk->kv_row + begin - chunk->tok0;
    l->runs[n] = (struct ctw_kv_run){.row = first_key, .n_tok = n_keys};
    l->kept_runs[n] = (struct ctw_kv_run){.row = l->start[seq], .n_tok = n_keys};
    l->seqs[n] = (struct ctw_attn_seq){.q_row = begin - chunk->tok0,
                                       .n_q = end - begin,
                                       .pos0 = pos0,
                                       .runs = &l->runs[n],
                                       .n_runs = 1};
    l->kept_seqs[n] = l->seqs[n];
    l->kept_seqs[n].runs = &l->kept_runs[n];
}

static void fill_chunks(struct ctw_layout *l, int64_t chunk_tokens)
{
    int64_t seq = 0;  /* of the chunk's first token */
    int64_t part = 0; /* the chunk's first */
    for (int64_t c = 0; c < l->n_chunks; c++) {
        struct ctw_chunk *chunk = &l->chunks[c];
        int64_t tok0 = c * chunk_tokens, tok1 = min64(tok0 + chunk_tokens, l->n_tok);
        *chunk = (struct ctw_chunk){.tok0 = tok0,
                                    .n_tok = tok1 - tok0,
                                    .seqs = &l->seqs[part],
                                    .kept_seqs = &l->kept_seqs[part],
                                    .kv_row = tok0 - l->start[seq]};
        if (chunk->kv_row > 0) { /* the previous chunk's last part goes on */
            chunk->moved_from = l->runs[part - 1].row;
            chunk->n_moved = chunk->moved_from > 0 ? chunk->kv_row : 0;
        }
        for (; seq < l->n_seqs && l->start[seq] < tok1; seq++, part++) {
            fill_part(l, part, seq, chunk);
            chunk->n_seqs++;
        }
        if (l->start[seq] > tok1)
            seq--; /* it goes on in the next chunk */
    }
}

enum ctw_status ctw_layout_make(struct ctw_layout *out, const struct ctw_seq *seqs, int64_t n_seqs,
                                const struct ctw_plan *plan, int64_t long_from, struct ctw_err *err)
{
    struct ctw_layout l = {.n_seqs = n_seqs};
    bool has_long = false;
    *out = l;
    l.start = ctw_calloc((size_t)n_seqs + 1, sizeof(*l.start));
    if (l.start == NULL)
        return ctw_fail(err, CTW_ENOMEM, "out of memory for the tables of a pass");
    for (int64_t i = 0; i < n_seqs; i++) {
        l.start[i] = l.n_tok;
        l.n_tok += ctw_seq_inputs(&seqs[i]);
        l.n_rows += seqs[i].n_tok - seqs[i].first;
        has_long |= long_from > 0 && ctw_seq_inputs(&seqs[i]) > long_from;
    }
    l.start[n_seqs] = l.n_tok;
    l.n_chunks = (l.n_tok + plan->chunk_tokens - 1) / plan->chunk_tokens;
    if (!allocate(&l, has_long)) {
        ctw_layout_free(&l);
        return ctw_fail(err, CTW_ENOMEM, "out of memory for the tables of a pass");
    }
    fill_tokens(&l, seqs, plan, long_from);
    fill_chunks(&l, plan->chunk_tokens);
    *out = l;
    return CTW_OK;
}

void ctw_layout_free(struct ctw_layout *l)
{
    void *arrays[] = {l->start,   l->chunks, l->tokens,    l->positions, l->rope_rows, l->rows,
                      l->targets, l->seqs,   l->kept_seqs, l->runs,      l->kept_runs};
    for (size_t i = 0; i < CTW_COUNT(arrays); i++)
        ctw_free(arrays[i]);
    *l = (struct ctw_layout){0};
}
