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

/* ---- sequences, tokens and rows ----------------------------------------------------------- */

/* Counts the pass's tokens, rows, spans and targets. */
struct counts {
    int64_t n_spans, n_targets;
    bool has_long;
};

/* Is the path of sequence i the best trunk for `next` so far? It must save tokens beyond those of
 * the present trunk. */
static void choose_left(struct ctw_layout *l, int64_t i, const struct ctw_path *path,
                        const struct ctw_seq *next)
{
    int64_t n = ctw_path_leaves(path, next), have = ctw_path_of_trunk(path, next);
    if (n >= have + CTW_BRANCH_TOKENS && n >= l->n_left) {
        l->n_left = n;
        l->left_seq = i;
    }
}

static struct counts count(struct ctw_layout *l, const struct ctw_seq *seqs, struct ctw_path path,
                           const struct ctw_seq *next)
{
    struct counts n = {0};
    for (int64_t i = 0; i < l->n_seqs; i++) {
        const struct ctw_shared shared = ctw_path_shared(&path, &seqs[i]);
        ctw_path_add(&path, &seqs[i], &shared);
        if (path.spans[0].tok0 == CTW_OF_TRUNK)
            l->n_of_trunk = max64(l->n_of_trunk, path.spans[0].n_tok);
        if (next != NULL)
            choose_left(l, i, &path, next);
        n.n_spans += path.n_spans;
        n.n_targets += seqs[i].n_tok - seqs[i].first;
        n.has_long |= path.long_from > 0 && ctw_seq_inputs(&seqs[i]) > path.long_from;
        l->n_asked += ctw_seq_inputs(&seqs[i]);
    }
    l->n_tok = path.n_tok;
    l->n_targets = l->n_rows = path.n_rows;
    return n;
}

static bool allocate(struct ctw_layout *l, const struct counts *n)
{
    size_t n_tok = (size_t)l->n_tok, n_rows = (size_t)l->n_rows, n_seqs = (size_t)l->n_seqs;
    l->start = ctw_calloc(n_seqs + 1, sizeof(*l->start));
    l->span_start = ctw_calloc(n_seqs + 1, sizeof(*l->span_start));
    l->spans = ctw_calloc((size_t)n->n_spans, sizeof(*l->spans));
    l->target_index = ctw_calloc((size_t)n->n_targets, sizeof(*l->target_index));
    l->left = ctw_calloc(CTW_PATH_SPANS, sizeof(*l->left));
    l->chunks = ctw_calloc((size_t)l->n_chunks, sizeof(*l->chunks));
    l->tokens = ctw_calloc(n_tok, sizeof(*l->tokens));
    l->positions = ctw_calloc(n_tok, sizeof(*l->positions));
    l->rows = ctw_calloc(n_rows, sizeof(*l->rows));
    l->targets = ctw_calloc(n_rows, sizeof(*l->targets));
    if (n->has_long)
        l->rope_rows = ctw_calloc(n_tok, sizeof(*l->rope_rows));
    return l->start != NULL && l->span_start != NULL && l->spans != NULL &&
           l->target_index != NULL && l->left != NULL && l->chunks != NULL && l->tokens != NULL &&
           l->positions != NULL && l->rows != NULL && l->targets != NULL &&
           (l->rope_rows != NULL || !n->has_long);
}

/* The tokens that a sequence adds, from its position `from` on. */
static void fill_tokens(struct ctw_layout *l, const struct ctw_seq *seq, int64_t from,
                        int64_t start, int64_t rope_row0)
{
    int64_t n = ctw_seq_inputs(seq) - from;
    memcpy(l->tokens + start, seq->tokens + from, (size_t)n * sizeof(*l->tokens));
    for (int64_t t = 0; t < n; t++) {
        l->positions[start + t] = (int32_t)(from + t);
        if (l->rope_rows != NULL)
            l->rope_rows[start + t] = (int32_t)(rope_row0 + from + t);
    }
}

/* The sequence's targets: those of the sequence before it, or new ones, with a row each. index: of
 * its first target; before: of the first target of the sequence before it. Returns the next new
 * target. */
static int64_t fill_targets(struct ctw_layout *l, const struct ctw_path *path,
                            const struct ctw_seq *seq, const struct ctw_shared *shared,
                            const int64_t *before, int64_t *index, int64_t row)
{
    int span = 0;
    for (int64_t t = seq->first; t < seq->n_tok; t++) {
        int64_t known = t - shared->first_target;
        if (known >= 0 && known < shared->n_targets) {
            *index++ = before[known];
            continue;
        }
        /* position t-1 predicts token t */
        while (t - 1 >= path->spans[span].pos0 + path->spans[span].n_tok)
            span++;
        l->rows[row] = path->spans[span].tok0 + t - 1 - path->spans[span].pos0;
        l->targets[row] = seq->tokens[t];
        *index++ = row++;
    }
    return row;
}

static void fill_sequences(struct ctw_layout *l, const struct ctw_seq *seqs, struct ctw_path path,
                           int64_t longest)
{
    int64_t row = 0, *index = l->target_index, *before = NULL;
    for (int64_t i = 0; i < l->n_seqs; i++) {
        const struct ctw_seq *seq = &seqs[i];
        const struct ctw_shared shared = ctw_path_shared(&path, seq);
        bool is_long = path.long_from > 0 && ctw_seq_inputs(seq) > path.long_from;
        if (shared.n_targets > 0)
            before += shared.first_target - seqs[i - 1].first;
        l->start[i] = path.n_tok;
        fill_tokens(l, seq, shared.n_tok, path.n_tok, is_long ? longest : 0);
        ctw_path_add(&path, seq, &shared);
        row = fill_targets(l, &path, seq, &shared, before, index, row);
        before = index;
        index += seq->n_tok - seq->first;
        memcpy(l->spans + l->span_start[i], path.spans, (size_t)path.n_spans * sizeof(*path.spans));
        l->span_start[i + 1] = l->span_start[i] + path.n_spans;
    }
    l->start[l->n_seqs] = path.n_tok;
}

/* Several targets of one position, such as choices of one token, become one row's: rows and targets
 * are put into the order of positions. False: out of memory. */
static bool share_rows(struct ctw_layout *l, int64_t n_indices)
{
    const size_t n_targets = (size_t)l->n_targets;
    int32_t *first = ctw_calloc((size_t)l->n_tok + 1, sizeof(*first)); /* of each position */
    int32_t *targets = ctw_calloc(n_targets, sizeof(*targets));
    int64_t *place = ctw_calloc(n_targets, sizeof(*place)), n_rows = 0;
    bool ok = first != NULL && targets != NULL && place != NULL, several = false;
    for (int64_t i = 0; ok && i < l->n_targets; i++)
        several |= ++first[l->rows[i] + 1] > 1;
    if (ok && several)
        l->first_target = ctw_calloc(n_targets + 1, sizeof(*l->first_target));
    for (int64_t t = 0; ok && several && t < l->n_tok; t++)
        first[t + 1] += first[t];
    for (int64_t i = 0; ok && l->first_target != NULL && i < l->n_targets; i++) {
        place[i] = first[l->rows[i]]++; /* at the end, where the next position's begin */
        targets[place[i]] = l->targets[i];
    }
    for (int64_t t = 0; ok && l->first_target != NULL && t < l->n_tok; t++)
        if (first[t] > l->first_target[n_rows]) {
            l->rows[n_rows++] = t;
            l->first_target[n_rows] = first[t];
        }
    if (ok && l->first_target != NULL) {
        for (int64_t i = 0; i < n_indices; i++)
            l->target_index[i] = place[l->target_index[i]];
        memcpy(l->targets, targets, n_targets * sizeof(*targets));
        l->n_rows = n_rows;
    }
    ok = ok && several == (l->first_target != NULL);
    ctw_free(first);
    ctw_free(targets);
    ctw_free(place);
    return ok;
}

/* What the pass leaves: the path of a sequence, cut, without what the trunk has. */
static void fill_left(struct ctw_layout *l)
{
    const struct ctw_path_span *of = &l->spans[l->span_start[l->left_seq]];
    for (int64_t n = l->n_left; n > 0; n -= of++->n_tok) {
        if (of->tok0 == CTW_OF_TRUNK)
            continue;
        struct ctw_path_span *s = &l->left[l->n_left_spans++];
        *s = *of;
        s->n_tok = min64(s->n_tok, n);
    }
}

/* ---- chunks ------------------------------------------------------------------------------- */

/* Where a chunk's rows for a layer are. */
struct block {
    int64_t row0;
    int64_t last;  /* the last chunk that reads them */
    int64_t jumps; /* chunks up to this one whose rows are not behind the previous chunk's */
};

/* The last chunk that has tokens of sequence i. */
static int64_t last_chunk(const struct ctw_layout *l, int64_t i, int64_t chunk_tokens)
{
    return (l->start[i + 1] - 1) / chunk_tokens;
}

static void find_last_readers(const struct ctw_layout *l, struct block *blocks,
                              int64_t chunk_tokens)
{
    for (int64_t i = 0; i < l->n_seqs; i++) {
        if (l->start[i + 1] == l->start[i])
            continue;
        int64_t last = last_chunk(l, i, chunk_tokens);
        for (int64_t k = l->span_start[i]; k < l->span_start[i + 1]; k++) {
            const struct ctw_path_span *s = &l->spans[k];
            int64_t end = (s->tok0 + s->n_tok - 1) / chunk_tokens;
            if (s->tok0 == CTW_OF_TRUNK)
                continue;
            for (int64_t c = s->tok0 / chunk_tokens; c <= end; c++)
                blocks[c].last = last; /* never before an earlier sequence's */
        }
    }
}

/* Gives each chunk one of n_places places, by turns. The path's rule (trie.h) keeps one free. */
static void place_blocks(struct block *blocks, int64_t n_chunks, int64_t *owners, int64_t n_places,
                         int64_t chunk_tokens)
{
    int64_t place = 0;
    for (int64_t i = 0; i < n_places; i++)
        owners[i] = -1;
    for (int64_t c = 0; c < n_chunks; c++) {
        while (owners[place] >= 0 && blocks[owners[place]].last >= c)
            place = (place + 1) % n_places;
        owners[place] = c;
        blocks[c].row0 = place * chunk_tokens;
        if (c > 0)
            blocks[c].jumps =
                blocks[c - 1].jumps + (blocks[c].row0 != blocks[c - 1].row0 + chunk_tokens);
        place = (place + 1) % n_places;
    }
}

/* The runs of rows for a layer that have the tokens of a span, behind the n_runs runs at `runs`.
 * Adjacent runs become one. Returns the number of all runs. */
static int64_t add_runs(const struct block *blocks, int64_t chunk_tokens, struct ctw_path_span s,
                        struct ctw_kv_run *runs, int64_t n_runs)
{
    while (s.n_tok > 0) {
        int64_t at = s.tok0 % chunk_tokens, n = min64(s.n_tok, chunk_tokens - at);
        int64_t row = blocks[s.tok0 / chunk_tokens].row0 + at;
        struct ctw_kv_run *last = n_runs > 0 ? &runs[n_runs - 1] : NULL;
        if (last != NULL && last->row + last->n_tok == row)
            last->n_tok += n;
        else
            runs[n_runs++] = (struct ctw_kv_run){.row = row, .n_tok = n};
        s.tok0 += n;
        s.n_tok -= n;
    }
    return n_runs;
}

/* Runs of either life of a sequence's part, at most. */
static int64_t most_runs(const struct ctw_layout *l, int64_t i, const struct block *blocks,
                         int64_t chunk_tokens)
{
    int64_t n = 0;
    for (int64_t k = l->span_start[i]; k < l->span_start[i + 1]; k++) {
        const struct ctw_path_span *s = &l->spans[k];
        int64_t first = s->tok0 / chunk_tokens, last = (s->tok0 + s->n_tok - 1) / chunk_tokens;
        n += s->tok0 == CTW_OF_TRUNK ? 1 : blocks[last].jumps - blocks[first].jumps + 1;
    }
    return n;
}

/* Where the next part's runs go. */
struct runs {
    struct ctw_kv_run *of[CTW_N_LIVES];
    int64_t trunk[CTW_N_LIVES]; /* the trunk's first row */
};

/* Fills part n of the pass: the tokens that sequence i adds in the chunk. */
static void fill_part(struct ctw_layout *l, int64_t n, int64_t i, const struct ctw_chunk *chunk,
                      const struct block *blocks, int64_t chunk_tokens, struct runs *runs)
{
    int64_t begin = max64(l->start[i], chunk->tok0);
    int64_t end = min64(l->start[i + 1], chunk->tok0 + chunk->n_tok), n_layer = 0, n_pass = 0;
    const struct ctw_path_span *own = &l->spans[l->span_start[i + 1] - 1];
    for (int64_t k = l->span_start[i]; k < l->span_start[i + 1]; k++) {
        struct ctw_path_span s = l->spans[k];
        if (s.tok0 == CTW_OF_TRUNK) {
            for (size_t j = 0; j < CTW_COUNT(lives); j++)
                runs->of[lives[j]][0] = (struct ctw_kv_run){runs->trunk[lives[j]], s.n_tok};
            n_layer = n_pass = 1;
            continue;
        }
        s.n_tok = min64(s.n_tok, end - s.tok0);
        n_layer = add_runs(blocks, chunk_tokens, s, runs->of[CTW_FOR_LAYER], n_layer);
        struct ctw_kv_run *last = n_pass > 0 ? &runs->of[CTW_FOR_PASS][n_pass - 1] : NULL;
        if (last != NULL && last->row + last->n_tok == s.tok0)
            last->n_tok += s.n_tok;
        else
            runs->of[CTW_FOR_PASS][n_pass++] = (struct ctw_kv_run){s.tok0, s.n_tok};
    }
    const struct ctw_attn_seq part = {
        .q_row = begin - chunk->tok0, .n_q = end - begin, .pos0 = own->pos0 + begin - own->tok0};
    for (size_t k = 0; k < CTW_COUNT(lives); k++) {
        int64_t n_runs = lives[k] == CTW_FOR_LAYER ? n_layer : n_pass;
        l->seqs[lives[k]][n] = part;
        l->seqs[lives[k]][n].runs = runs->of[lives[k]];
        l->seqs[lives[k]][n].n_runs = (int)n_runs;
        runs->of[lives[k]] += n_runs;
    }
}

/* Parts are what sequences add in chunks. */
static bool allocate_parts(struct ctw_layout *l, const struct block *blocks, int64_t chunk_tokens)
{
    int64_t n_parts = 0, n_runs = 0;
    for (int64_t i = 0; i < l->n_seqs; i++) {
        if (l->start[i + 1] == l->start[i])
            continue;
        int64_t n = last_chunk(l, i, chunk_tokens) - l->start[i] / chunk_tokens + 1;
        n_parts += n;
        n_runs += n * most_runs(l, i, blocks, chunk_tokens);
    }
    bool ok = true;
    for (size_t i = 0; i < CTW_COUNT(lives); i++) {
        l->seqs[lives[i]] = ctw_calloc((size_t)n_parts, sizeof(**l->seqs));
        l->runs[lives[i]] = ctw_calloc((size_t)n_runs, sizeof(**l->runs));
        ok = ok && l->seqs[lives[i]] != NULL && l->runs[lives[i]] != NULL;
    }
    return ok;
}

static void fill_chunks(struct ctw_layout *l, const struct block *blocks,
                        const struct ctw_plan *plan)
{
    struct runs runs = {
        {[CTW_FOR_LAYER] = l->runs[CTW_FOR_LAYER], [CTW_FOR_PASS] = l->runs[CTW_FOR_PASS]},
        {[CTW_FOR_LAYER] = plan->carry_rows, [CTW_FOR_PASS] = plan->pass_tokens}};
    const int64_t chunk_tokens = plan->chunk_tokens;
    int64_t seq = 0, part = 0; /* seq: of the chunk's first token */
    for (int64_t c = 0; c < l->n_chunks; c++) {
        struct ctw_chunk *chunk = &l->chunks[c];
        int64_t tok0 = c * chunk_tokens, end = min64(tok0 + chunk_tokens, l->n_tok);
        *chunk = (struct ctw_chunk){.tok0 = tok0, .n_tok = end - tok0, .row0 = blocks[c].row0};
        chunk->of_trunk = c == 0 ? l->n_of_trunk : 0;
        chunk->leaves = l->left;
        chunk->n_leaves = l->n_left_spans;
        for (size_t i = 0; i < CTW_COUNT(lives); i++)
            chunk->seqs[lives[i]] = &l->seqs[lives[i]][part];
        for (; seq < l->n_seqs && l->start[seq] < end; seq++) {
            if (l->start[seq + 1] == l->start[seq])
                continue;
            fill_part(l, part++, seq, chunk, blocks, chunk_tokens, &runs);
            chunk->n_seqs++;
            if (l->start[seq + 1] > end)
                break;
        }
    }
}

/* False: out of memory. */
static bool make_chunks(struct ctw_layout *l, const struct ctw_plan *plan)
{
    const int64_t chunk_tokens = plan->chunk_tokens;
    int64_t n_places =
        plan->carry_rows < plan->pass_tokens ? plan->carry_rows / chunk_tokens : l->n_chunks;
    struct block *blocks = ctw_calloc((size_t)l->n_chunks, sizeof(*blocks));
    int64_t *owners = ctw_calloc((size_t)n_places, sizeof(*owners));
    bool ok = blocks != NULL && owners != NULL;
    if (ok) {
        find_last_readers(l, blocks, chunk_tokens);
        place_blocks(blocks, l->n_chunks, owners, n_places, chunk_tokens);
        ok = allocate_parts(l, blocks, chunk_tokens);
    }
    if (ok)
        fill_chunks(l, blocks, plan);
    ctw_free(blocks);
    ctw_free(owners);
    return ok;
}

enum ctw_status ctw_layout_make(struct ctw_layout *out, const struct ctw_seq *seqs, int64_t n_seqs,
                                const struct ctw_plan *plan, int64_t long_from,
                                const struct ctw_sharing *sharing, struct ctw_err *err)
{
    struct ctw_layout l = {.n_seqs = n_seqs};
    struct ctw_path path;
    ctw_path_begin(&path, plan, long_from, sharing->shares, sharing->trunk);
    path.own_rows = sharing->own_rows;
    const struct counts n = count(&l, seqs, path, sharing->next);
    *out = (struct ctw_layout){0};
    l.n_chunks = (l.n_tok + plan->chunk_tokens - 1) / plan->chunk_tokens;
    bool ok = allocate(&l, &n);
    if (ok) {
        fill_sequences(&l, seqs, path, plan->longest);
        fill_left(&l);
        ok = (sharing->own_rows || share_rows(&l, n.n_targets)) && make_chunks(&l, plan) &&
             ctw_layout_rounds(&l, plan->states);
    }
    if (!ok) {
        ctw_layout_free(&l);
        return ctw_fail(err, CTW_ENOMEM, "out of memory for the tables of a pass");
    }
    *out = l;
    return CTW_OK;
}

void ctw_layout_free(struct ctw_layout *l)
{
    void *arrays[] = {l->start,  l->span_start, l->spans,  l->target_index, l->first_target,
                      l->chunks, l->tokens,     l->positions, l->rope_rows,
                      l->rows,   l->targets,    l->parts,  l->rounds, l->left};
    for (size_t i = 0; i < CTW_COUNT(arrays); i++)
        ctw_free(arrays[i]);
    for (int i = 0; i < CTW_N_LIVES; i++) {
        ctw_free(l->seqs[i]);
        ctw_free(l->runs[i]);
    }
    *l = (struct ctw_layout){0};
}
