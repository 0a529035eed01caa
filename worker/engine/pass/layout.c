#include "worker/engine/pass/layout.h"

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

/* The lives of rows that runs name. */
static const enum ctw_carry_life lives[] = {CTW_FOR_LAYER, CTW_FOR_PASS};

enum { RUNS = 2 }; /* of a part, at most: its rows may reach the ring's end */

static bool allocate(struct ctw_layout *l, int64_t n_parts, bool has_long)
{
    size_t n_tok = (size_t)l->n_tok, n_rows = (size_t)l->n_rows, n = (size_t)n_parts;
    l->chunks = ctw_calloc((size_t)l->n_chunks, sizeof(*l->chunks));
    l->tokens = ctw_calloc(n_tok, sizeof(*l->tokens));
    l->positions = ctw_calloc(n_tok, sizeof(*l->positions));
    l->rows = ctw_calloc(n_rows, sizeof(*l->rows));
    l->targets = ctw_calloc(n_rows, sizeof(*l->targets));
    bool ok = l->chunks != NULL && l->tokens != NULL && l->positions != NULL && l->rows != NULL &&
              l->targets != NULL;
    for (size_t i = 0; i < CTW_COUNT(lives); i++) {
        l->seqs[lives[i]] = ctw_calloc(n, sizeof(**l->seqs));
        l->runs[lives[i]] = ctw_calloc(RUNS * n, sizeof(**l->runs));
        ok = ok && l->seqs[lives[i]] != NULL && l->runs[lives[i]] != NULL;
    }
    if (has_long)
        l->rope_rows = ctw_calloc(n_tok, sizeof(*l->rope_rows));
    return ok && (l->rope_rows != NULL || !has_long);
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

/* Fills part n of the pass: the tokens of node `seq` in the chunk. */
static void fill_part(struct ctw_layout *l, int64_t n, int64_t seq, const struct ctw_chunk *chunk,
                      int64_t ring)
{
    const struct ctw_node *node = &l->nodes[seq];
    int64_t begin = max64(node->tok0, chunk->tok0);
    int64_t end = min64(node->tok0 + node->n_tok, chunk->tok0 + chunk->n_tok);
    int64_t n_keys = end - node->tok0, row = node->tok0 % ring;
    struct ctw_kv_run *layer = &l->runs[CTW_FOR_LAYER][RUNS * n];
    struct ctw_kv_run *pass = &l->runs[CTW_FOR_PASS][RUNS * n];
    layer[0] = (struct ctw_kv_run){.row = row, .n_tok = min64(n_keys, ring - row)};
    layer[1] = (struct ctw_kv_run){.row = 0, .n_tok = n_keys - layer[0].n_tok};
    pass[0] = (struct ctw_kv_run){.row = node->tok0, .n_tok = n_keys};
    struct ctw_attn_seq part = {.q_row = begin - chunk->tok0,
                                .n_q = end - begin,
                                .pos0 = begin - node->tok0,
                                .n_runs = 1};
    l->seqs[CTW_FOR_PASS][n] = part;
    l->seqs[CTW_FOR_PASS][n].runs = pass;
    part.n_runs += layer[1].n_tok > 0;
    l->seqs[CTW_FOR_LAYER][n] = part;
    l->seqs[CTW_FOR_LAYER][n].runs = layer;
}

/* The number of the nodes' parts in chunks. */
static int64_t count_parts(const struct ctw_layout *l, int64_t chunk_tokens)
{
    int64_t n = 0;
    for (int64_t i = 0; i < l->n_seqs; i++)
        n += (l->start[i + 1] - 1) / chunk_tokens - l->start[i] / chunk_tokens + 1;
    return n;
}

static void fill_chunks(struct ctw_layout *l, int64_t chunk_tokens, int64_t ring)
{
    int64_t seq = 0, part = 0; /* seq: of the chunk's first token */
    for (int64_t i = 0; i < l->n_seqs; i++)
        l->nodes[i] = (struct ctw_node){
            .parent = -1, .tok0 = l->start[i], .n_tok = l->start[i + 1] - l->start[i]};
    for (int64_t c = 0; c < l->n_chunks; c++) {
        struct ctw_chunk *chunk = &l->chunks[c];
        int64_t tok0 = c * chunk_tokens, end = min64(tok0 + chunk_tokens, l->n_tok);
        *chunk = (struct ctw_chunk){.tok0 = tok0,
                                    .n_tok = end - tok0,
                                    .row0 = tok0 % ring,
                                    .state = {c % CTW_STATES, (c + 1) % CTW_STATES},
                                    .continues = tok0 > l->start[seq]};
        for (size_t i = 0; i < CTW_COUNT(lives); i++)
            chunk->seqs[lives[i]] = &l->seqs[lives[i]][part];
        for (int64_t at = seq; at < l->n_seqs && l->start[at] < end; at++, part++) {
            fill_part(l, part, at, chunk, ring);
            chunk->n_seqs++;
            seq = l->start[at + 1] <= end ? at + 1 : at;
        }
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
    l.nodes = ctw_calloc((size_t)n_seqs, sizeof(*l.nodes));
    l.n_chunks = (l.n_tok + plan->chunk_tokens - 1) / plan->chunk_tokens;
    if (l.nodes == NULL || !allocate(&l, count_parts(&l, plan->chunk_tokens), has_long)) {
        ctw_layout_free(&l);
        return ctw_fail(err, CTW_ENOMEM, "out of memory for the tables of a pass");
    }
    fill_tokens(&l, seqs, plan, long_from);
    fill_chunks(&l, plan->chunk_tokens, ctw_layout_ring(plan->longest, plan->chunk_tokens));
    *out = l;
    return CTW_OK;
}

void ctw_layout_free(struct ctw_layout *l)
{
    void *arrays[] = {l->start,     l->nodes,     l->chunks, l->tokens,
                      l->positions, l->rope_rows, l->rows,   l->targets};
    for (size_t i = 0; i < CTW_COUNT(arrays); i++)
        ctw_free(arrays[i]);
    for (int i = 0; i < CTW_N_LIVES; i++) {
        ctw_free(l->seqs[i]);
        ctw_free(l->runs[i]);
    }
    *l = (struct ctw_layout){0};
}
