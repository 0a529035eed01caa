/* The stretches of a pass's chunks: which rows go through a recurrence together, and which states
 * they read and leave. See layout.h. */
#include <assert.h>

#include "base/mem.h"
#include "worker/engine/pass/layout.h"

enum { NONE = -1, TRUNK = -2 };

/* While stretches are made. */
struct making {
    struct ctw_layout *l;
    int64_t n_parts, n; /* so far; n stretches */
    int64_t *writer; /* [n_tok]: of a token whose state is kept, the stretch that leaves it; NONE */
    int64_t left;    /* the token whose state is the next trunk's; NONE */
    int64_t *last_read; /* [stretches]: the last stretch that reads its state */
    int64_t *owner;     /* [states]: the stretch whose state it is, or NONE */
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

/* A free state: one that no stretch reads any more, stretch `now` included. */
static int64_t free_state(struct making *m, int64_t states, int64_t now)
{
    for (int64_t i = 0; i < states; i++)
        if (m->owner[i] == NONE || m->last_read[m->owner[i]] < now)
            return i;
    return NONE;
}

/* Adds tok0 .. end-1 of sequence i, which lie in one chunk, as a part. `before`: the token whose
 * state it reads, NONE or TRUNK; keeps: its state is read later. Begins a stretch if necessary. */
static void add_part(struct making *m, struct ctw_chunk *chunk, int64_t i, int64_t tok0,
                     int64_t end, int64_t before, bool begins)
{
    struct ctw_layout *l = m->l;
    const struct ctw_path_span *own = &l->spans[l->span_start[i + 1] - 1];
    struct ctw_attn_seq *part = &l->seqs[CTW_STATE][m->n_parts++];
    if (begins) {
        if (chunk->n_stretches++ == 0)
            chunk->stretches = &l->stretches[m->n];
        l->stretches[m->n++] =
            (struct ctw_stretch){.row0 = tok0 - chunk->tok0,
                                 .before = before < 0 ? before : m->writer[before],
                                 .seqs = part};
        if (before >= 0)
            m->last_read[m->writer[before]] = m->n - 1;
        m->last_read[m->n - 1] = m->n - 1;
    }
    struct ctw_stretch *s = &l->stretches[m->n - 1];
    *part = (struct ctw_attn_seq){
        .q_row = s->n_tok, .n_q = end - tok0, .pos0 = own->pos0 + tok0 - own->tok0};
    s->n_tok += end - tok0;
    s->n_seqs++;
}

/* The parts of all chunks. Until states are chosen, a stretch's `before` is another stretch. */
static void add_parts(struct making *m, int64_t chunk_tokens)
{
    struct ctw_layout *l = m->l;
    bool kept = true; /* the state of the last part is */
    for (int64_t i = 0; i < l->n_seqs; i++) {
        int64_t before = adds_tokens(l, i) ? forks_after(l, i) : NONE, tok = l->start[i];
        while (tok < l->start[i + 1]) {
            int64_t c = tok / chunk_tokens, end = tok + 1;
            while (end < l->start[i + 1] && end % chunk_tokens != 0 && m->writer[end - 1] == NONE)
                end++;
            bool begins = kept || before != NONE || tok % chunk_tokens == 0;
            add_part(m, &l->chunks[c], i, tok, end, before, begins);
            kept = end < l->start[i + 1] || m->writer[end - 1] != NONE;
            if (kept)
                m->writer[end - 1] = m->n - 1;
            before = end - 1;
            tok = end;
        }
    }
}

/* The path's rule (trie.h) has seen to it that there are enough. */
static void choose_states(struct making *m, int64_t states)
{
    for (int64_t i = 0; i < states; i++)
        m->owner[i] = NONE;
    for (int64_t i = 0; i < m->n; i++) {
        struct ctw_stretch *s = &m->l->stretches[i];
        if (s->before == TRUNK)
            s->before = states;
        else if (s->before != NONE) /* the stretch before has chosen */
            s->before = m->l->stretches[s->before].after;
        if (m->left != NONE && i == m->writer[m->left]) {
            s->after = states + 1;
            continue;
        }
        s->after = free_state(m, states, i);
        assert(s->after != NONE);
        m->owner[s->after] = i;
    }
}

/* Parts and stretches, at most: where sequences begin, fork, and go on in another chunk. */
static int64_t most_parts(const struct ctw_layout *l, int64_t n_forks)
{
    return l->n_seqs + l->n_chunks + n_forks;
}

bool ctw_layout_stretches(struct ctw_layout *l, int64_t states)
{
    const struct ctw_path_span *left = &l->left[l->n_left_spans > 0 ? l->n_left_spans - 1 : 0];
    struct making m = {.l = l, .left = l->n_left > 0 ? left->tok0 + left->n_tok - 1 : NONE};
    bool ok = false;
    if (states == 0 || l->n_tok == 0)
        return true;
    m.writer = ctw_calloc((size_t)l->n_tok, sizeof(*m.writer));
    m.owner = ctw_calloc((size_t)states, sizeof(*m.owner));
    if (m.writer != NULL && m.owner != NULL) {
        size_t n = (size_t)most_parts(l, mark_forks(&m));
        m.last_read = ctw_calloc(n, sizeof(*m.last_read));
        l->stretches = ctw_calloc(n, sizeof(*l->stretches));
        l->seqs[CTW_STATE] = ctw_calloc(n, sizeof(**l->seqs));
        ok = m.last_read != NULL && l->stretches != NULL && l->seqs[CTW_STATE] != NULL;
    }
    if (ok) {
        add_parts(&m, l->chunks[0].n_tok);
        choose_states(&m, states);
    }
    ctw_free(m.writer);
    ctw_free(m.owner);
    ctw_free(m.last_read);
    return ok;
}
