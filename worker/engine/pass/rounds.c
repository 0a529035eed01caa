/*
 * The rounds of a pass's chunks: which rows go through a recurrence together, and which states they
 * read and leave. See layout.h.
 *
 * The path's rule (trie.h) guarantees enough states if parts run one by one, in their order. A round
 * takes every part whose state before exists, as far as states suffice. The first part that has not
 * run may always leave a state. Parts that overtake the first part share the spare states, which
 * parts in their order never need.
 */
#include <assert.h>

#include "base/mem.h"
#include "worker/engine/pass/layout.h"

enum { NONE = -1, TRUNK = -2 };

/* Tokens of a sequence between places where a state is kept. */
struct piece {
    struct ctw_seq_part part; /* before, after: NONE until the piece has a round */
    int64_t chunk;
    int64_t before;  /* the piece whose state it reads; NONE, TRUNK */
    int64_t readers; /* pieces that are to read its state */
    bool keeps, done, is_trunk; /* its state is read later; is the next trunk's */
};

/* While rounds are made. */
struct making {
    struct ctw_layout *l;
    struct piece *pieces;
    int64_t n, n_rounds, n_parts; /* so far */
    int64_t *writer; /* [n_tok]: of a token whose state is kept, the piece that leaves it; NONE */
    int64_t left;    /* the token whose state is the next trunk's; NONE */
    int64_t states;
    int64_t *owner; /* [states]: the piece whose state it is, or NONE */
    int64_t spare;  /* states that pieces in their order never need */
};

/* The token after which a sequence's own tokens begin; NONE: it begins with them; TRUNK: they come
 * after the trunk. */
static int64_t forks_after(const struct ctw_layout *l, int64_t i)
{
    if (l->span_start[i + 1] - l->span_start[i] < 2)
        return NONE;
    const struct ctw_path_span *parent = &l->spans[l->span_start[i + 1] - 2];
    if (parent->tok0 == CTW_OF_TRUNK)
        return TRUNK;
    return parent->tok0 + parent->n_tok - 1;
}

static bool adds_tokens(const struct ctw_layout *l, int64_t i)
{
    return l->start[i + 1] > l->start[i];
}

/* Marks the tokens after which sequences fork: writer = 0. Returns their number, or more. */
static int64_t mark_forks(struct making *m)
{
    int64_t n = 0;
    for (int64_t t = 0; t < m->l->n_tok; t++)
        m->writer[t] = NONE;
    for (int64_t i = 0; i < m->l->n_seqs; i++) {
        int64_t after = adds_tokens(m->l, i) ? forks_after(m->l, i) : NONE;
        if (after >= 0) {
            m->writer[after] = 0;
            n++;
        }
    }
    if (m->left != NONE) {
        m->writer[m->left] = 0;
        n++;
    }
    return n;
}

/* ---- pieces ------------------------------------------------------------------------------- */

/* Tokens tok .. end-1 of sequence i, which lie in one chunk. before: the token whose state they
 * read, NONE or TRUNK. */
static void add_piece(struct making *m, int64_t i, int64_t tok, int64_t end, int64_t before,
                      int64_t chunk_tokens, bool keeps)
{
    const struct ctw_path_span *own = &m->l->spans[m->l->span_start[i + 1] - 1];
    struct piece *p = &m->pieces[m->n];
    *p = (struct piece){.part = {.q_row = tok % chunk_tokens,
                                 .n_q = end - tok,
                                 .pos0 = own->pos0 + tok - own->tok0,
                                 .before = NONE,
                                 .after = NONE},
                        .chunk = tok / chunk_tokens,
                        .before = before < 0 ? before : m->writer[before],
                        .keeps = keeps,
                        .is_trunk = m->left == end - 1};
    if (p->before >= 0)
        m->pieces[p->before].readers++;
    if (keeps)
        m->writer[end - 1] = m->n;
    m->n++;
}

static void add_pieces(struct making *m, int64_t chunk_tokens)
{
    struct ctw_layout *l = m->l;
    for (int64_t i = 0; i < l->n_seqs; i++) {
        int64_t before = adds_tokens(l, i) ? forks_after(l, i) : NONE, tok = l->start[i];
        while (tok < l->start[i + 1]) {
            int64_t end = tok + 1;
            while (end < l->start[i + 1] && end % chunk_tokens != 0 && m->writer[end - 1] == NONE)
                end++;
            bool keeps = end < l->start[i + 1] || m->writer[end - 1] != NONE;
            add_piece(m, i, tok, end, before, chunk_tokens, keeps);
            before = end - 1;
            tok = end;
        }
    }
}

/* ---- states and rounds -------------------------------------------------------------------- */

static bool takes_state(const struct piece *p)
{
    return p->keeps && !p->is_trunk;
}

/* The states that the pieces need in their order. */
static int64_t most_states(const struct making *m, int64_t *readers)
{
    int64_t n = 0, most = 0;
    for (int64_t i = 0; i < m->n; i++) {
        const struct piece *p = &m->pieces[i];
        readers[i] = p->readers;
        n += takes_state(p);
        most = n > most ? n : most;
        if (p->before >= 0 && --readers[p->before] == 0 && takes_state(&m->pieces[p->before]))
            n--;
    }
    return most;
}

/* A state for piece i, if the piece takes one; `first`: the first piece that is not done. */
static bool choose_state(struct making *m, int64_t i, int64_t first)
{
    struct piece *p = &m->pieces[i];
    int64_t n_ahead = 0, found = NONE;
    if (p->is_trunk)
        p->part.after = m->states + 1;
    if (!takes_state(p))
        return true;
    for (int64_t s = 0; s < m->states; s++) {
        n_ahead += m->owner[s] > first;
        found = m->owner[s] == NONE && found == NONE ? s : found;
    }
    if (i != first && n_ahead >= m->spare)
        return false;
    assert(found != NONE);
    m->owner[found] = i;
    p->part.after = found;
    return true;
}

/* Was the state before left in an earlier round? */
static bool is_ready(const struct making *m, const struct piece *p)
{
    return p->before < 0 || m->pieces[p->before].done;
}

/* The states that nobody reads after this round are free. */
static void end_round(struct making *m, const int64_t *taken, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        struct piece *p = &m->pieces[taken[i]];
        p->done = true;
        if (p->before >= 0 && --m->pieces[p->before].readers == 0 &&
            takes_state(&m->pieces[p->before]))
            m->owner[m->pieces[p->before].part.after] = NONE;
    }
}

/* The next round, of pieces first .. end - 1, of which the first is not done. */
static void add_round(struct making *m, int64_t first, int64_t end, int64_t *taken)
{
    struct ctw_round *r = &m->l->rounds[m->n_rounds++];
    *r = (struct ctw_round){.parts = &m->l->parts[m->n_parts]};
    for (int64_t i = first; i < end; i++) {
        struct piece *p = &m->pieces[i];
        if (p->done || !is_ready(m, p) || !choose_state(m, i, first))
            continue;
        p->part.before = p->before == TRUNK  ? m->states
                         : p->before == NONE ? NONE
                                             : m->pieces[p->before].part.after;
        m->l->parts[m->n_parts++] = p->part;
        taken[r->n_parts++] = i;
    }
    end_round(m, taken, r->n_parts);
}

static void add_rounds(struct making *m, int64_t *taken)
{
    int64_t first = 0, end = 0;
    for (int64_t c = 0; c < m->l->n_chunks; c++) {
        struct ctw_chunk *chunk = &m->l->chunks[c];
        chunk->rounds = &m->l->rounds[m->n_rounds];
        while (end < m->n && m->pieces[end].chunk == c)
            end++;
        for (; first < end; first++)
            if (!m->pieces[first].done) {
                add_round(m, first, end, taken);
                chunk->n_rounds++;
            }
    }
}

/* Pieces, at most: where sequences begin, fork, and go on in another chunk. */
static int64_t most_pieces(const struct ctw_layout *l, int64_t n_forks)
{
    return l->n_seqs + l->n_chunks + n_forks;
}

bool ctw_layout_rounds(struct ctw_layout *l, int64_t states)
{
    const struct ctw_path_span *left = &l->left[l->n_left_spans > 0 ? l->n_left_spans - 1 : 0];
    struct making m = {.l = l,
                       .left = l->n_left > 0 ? left->tok0 + left->n_tok - 1 : NONE,
                       .states = states};
    int64_t *work = NULL;
    if (states == 0 || l->n_tok == 0)
        return true;
    m.writer = ctw_calloc((size_t)l->n_tok, sizeof(*m.writer));
    m.owner = ctw_calloc((size_t)states, sizeof(*m.owner));
    if (m.writer != NULL && m.owner != NULL) {
        size_t n = (size_t)most_pieces(l, mark_forks(&m));
        m.pieces = ctw_calloc(n, sizeof(*m.pieces));
        work = ctw_calloc(n, sizeof(*work));
        l->parts = ctw_calloc(n, sizeof(*l->parts));
        l->rounds = ctw_calloc(n, sizeof(*l->rounds));
    }
    bool ok = m.pieces != NULL && work != NULL && l->parts != NULL && l->rounds != NULL;
    if (ok) {
        for (int64_t i = 0; i < states; i++)
            m.owner[i] = NONE;
        add_pieces(&m, l->chunks[0].n_tok);
        m.spare = states - most_states(&m, work);
        assert(m.spare >= 0);
        add_rounds(&m, work);
    }
    ctw_free(m.writer);
    ctw_free(m.owner);
    ctw_free(m.pieces);
    ctw_free(work);
    return ok;
}
