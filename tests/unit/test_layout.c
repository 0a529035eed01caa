/* The layout of a pass against what it is for: the arrays of keys are simulated chunk by chunk, and
 * every query must see its own sequence's keys, in order, whatever the chunk. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "worker/engine/pass/layout.h"

enum { MAX_SEQS = 14, MAX_LEN = 100, N_TRIALS = 4000, NONE = -1 };

static uint32_t rng = 1;

static int64_t below(int64_t n)
{
    rng = rng * 1664525u + 1013904223u;
    return (int64_t)(rng >> 8) % n;
}

struct sequences {
    int64_t n, n_tok, longest;
    int32_t tokens[MAX_SEQS][MAX_LEN + 1];
    struct ctw_seq seq[MAX_SEQS];
};

/* The order of the trie, or another. */
static void order(struct sequences *s)
{
    struct ctw_leaf leaves[3 * MAX_SEQS];
    struct ctw_seq sorted[MAX_SEQS];
    for (int64_t i = 0; i < s->n; i++)
        leaves[i] = (struct ctw_leaf){s->seq[i].tokens, s->seq[i].n_tok, i, 0};
    ctw_order_sort(leaves, s->n, leaves + s->n);
    for (int64_t i = 0; i < s->n; i++)
        sorted[i] = s->seq[leaves[i].index];
    memcpy(s->seq, sorted, sizeof(sorted));
}

/* Of 1 to max_len inputs; many begin like an earlier one. */
static void draw(struct sequences *s, int64_t max_len)
{
    *s = (struct sequences){.n = 1 + below(MAX_SEQS)};
    for (int64_t i = 0; i < s->n; i++) {
        int64_t n_tok = 2 + below(max_len), n_same = 0;
        if (i > 0 && below(4) > 0) {
            int64_t like = below(i);
            n_same = below(s->seq[like].n_tok + 1);
            n_tok = below(4) == 0 ? n_same + below(2) : n_tok;
            n_tok = n_tok < 2 ? 2 : n_tok > max_len + 1 ? max_len + 1 : n_tok;
            n_same = n_same < n_tok ? n_same : n_tok;
            memcpy(s->tokens[i], s->tokens[like], (size_t)n_same * sizeof(**s->tokens));
        }
        for (int64_t t = n_same; t < n_tok; t++)
            s->tokens[i][t] = (int32_t)below(1000);
        s->seq[i] = (struct ctw_seq){.tokens = s->tokens[i],
                                     .n_tok = n_tok,
                                     .first = below(2) == 0 ? n_tok - 1 : 1 + below(n_tok - 1)};
        s->n_tok += n_tok - 1;
        s->longest = n_tok - 1 > s->longest ? n_tok - 1 : s->longest;
    }
    if (below(4) > 0)
        order(s);
}

/* In place of an index in the pass, of a token that the trunk has. */
static int64_t trunk_at(int64_t pos)
{
    return -10 - pos;
}

/* The index in the pass of each input of sequence i, said by its spans. */
static void path_of(const struct ctw_layout *l, int64_t i, int64_t n_inputs, int64_t *path)
{
    int64_t pos = 0;
    for (int64_t k = l->span_start[i]; k < l->span_start[i + 1]; k++) {
        assert_int_equal(l->spans[k].pos0, pos);
        assert_true(k == l->span_start[i] || l->spans[k].tok0 >= 0);
        for (int64_t t = 0; t < l->spans[k].n_tok; t++, pos++)
            path[pos] = l->spans[k].tok0 == CTW_OF_TRUNK ? trunk_at(pos) : l->spans[k].tok0 + t;
    }
    assert_int_equal(pos, n_inputs);
}

/* Tokens, positions and scored rows, said anew token by token. Every token of the pass is added by
 * one sequence. */
static void check_tokens(const struct ctw_layout *l, const struct sequences *s,
                         const struct ctw_plan *plan, int64_t long_from,
                         const struct ctw_trunk *trunk)
{
    int64_t target = 0, path[MAX_LEN];
    for (int64_t i = 0; i < s->n; i++) {
        const struct ctw_seq *seq = &s->seq[i];
        int64_t n_own = l->start[i + 1] - l->start[i];
        int64_t long_shift = long_from > 0 && seq->n_tok - 1 > long_from ? plan->longest : 0;
        path_of(l, i, seq->n_tok - 1, path);
        assert_true(long_shift == 0 || l->rope_rows != NULL);
        for (int64_t t = 0; t < seq->n_tok - 1; t++) {
            int64_t at = path[t], own = t - (seq->n_tok - 1 - n_own);
            assert_true(own < 0 ? at < l->start[i] : at == l->start[i] + own);
            if (at < 0) {
                assert_int_equal(trunk->tokens[t], seq->tokens[t]);
                assert_true(t + 1 < seq->first);
                assert_true(t < l->n_of_trunk);
                assert_true(trunk->is_long == (long_shift > 0));
                continue;
            }
            assert_int_equal(l->tokens[at], seq->tokens[t]);
            assert_int_equal(l->positions[at], t);
            if (l->rope_rows != NULL)
                assert_int_equal(l->rope_rows[at], t + long_shift);
            if (t + 1 < seq->first)
                continue;
            int64_t index = l->target_index[target++], row = ctw_layout_row(l, index);
            assert_in_range(index, 0, l->n_targets - 1);
            assert_in_range(row, 0, l->n_rows - 1);
            assert_int_equal(l->rows[row], at);
            assert_int_equal(l->targets[index], seq->tokens[t + 1]);
        }
    }
    assert_int_equal(l->start[0], 0);
    assert_int_equal(l->start[s->n], l->n_tok);
    assert_int_equal(l->n_asked, s->n_tok);
}

/* A position that several sequences score is one row, and each row has its targets. */
static void check_rows(const struct ctw_layout *l)
{
    bool scored[MAX_LEN * MAX_SEQS] = {false};
    for (int64_t i = 0; i < l->n_rows; i++) {
        assert_false(scored[l->rows[i]]);
        scored[l->rows[i]] = true;
        if (l->first_target != NULL)
            assert_in_range(l->first_target[i + 1], l->first_target[i] + 1, l->n_targets);
    }
    if (l->first_target == NULL)
        assert_int_equal(l->n_rows, l->n_targets);
    else
        assert_int_equal(l->first_target[l->n_rows], l->n_targets);
}

/* keys[row] is the token, by its index in the pass, whose key lies there. */
static void check_part(const struct ctw_chunk *chunk, const struct ctw_attn_seq *part,
                       const int64_t *path, const int64_t *keys, int64_t n_keys)
{
    int64_t key = 0;
    assert_int_equal(chunk->tok0 + part->q_row, path[part->pos0]);
    for (int r = 0; r < part->n_runs; r++) {
        for (int64_t j = 0; j < part->runs[r].n_tok; j++, key++) {
            assert_in_range(part->runs[r].row + j, 0, n_keys - 1);
            assert_int_equal(keys[part->runs[r].row + j], path[key]);
        }
    }
    assert_int_equal(key, part->pos0 + part->n_q);
}

/* The sequence that adds a token. */
static int64_t seq_of(const struct ctw_layout *l, int64_t tok)
{
    int64_t seq = 0;
    while (l->start[seq + 1] <= tok)
        seq++;
    return seq;
}

static const enum ctw_carry_life lives[] = {CTW_FOR_LAYER, CTW_FOR_PASS};

/* left[pos]: the token at this position of the next trunk, as the chunk leaves it. */
static void leave(const struct ctw_chunk *chunk, int64_t *const rows[2], int64_t *left)
{
    for (int i = 0; i < chunk->n_leaves; i++) {
        const struct ctw_path_span part = ctw_span_in_chunk(&chunk->leaves[i], chunk);
        for (int64_t t = 0; t < part.n_tok; t++) {
            int64_t at = part.tok0 + t - chunk->tok0;
            assert_int_equal(rows[0][chunk->row0 + at], rows[1][chunk->tok0 + at]);
            left[part.pos0 + t] = rows[0][chunk->row0 + at];
        }
    }
}

/* Every token's queries are asked once, in order, of the rows of either life. Behind them lies the
 * trunk. */
static void check_chunks(const struct ctw_layout *l, const struct sequences *s,
                         const struct ctw_plan *plan)
{
    const int64_t trunk_row[] = {plan->carry_rows, plan->pass_tokens};
    const int64_t n_rows[] = {plan->carry_rows + l->n_of_trunk, plan->pass_tokens + l->n_of_trunk};
    int64_t *rows[2], tok = 0, path[MAX_LEN], left[MAX_LEN];
    for (int i = 0; i < 2; i++) {
        rows[i] = ctw_calloc((size_t)n_rows[i], sizeof(**rows));
        assert_non_null(rows[i]);
        for (int64_t j = 0; j < n_rows[i]; j++)
            rows[i][j] = j < trunk_row[i] ? NONE : trunk_at(j - trunk_row[i]);
    }
    for (int64_t t = 0; t < MAX_LEN; t++)
        left[t] = trunk_at(t);
    assert_true(l->n_of_trunk == 0 || l->chunks[0].of_trunk == l->n_of_trunk);
    for (int64_t c = 0; c < l->n_chunks; c++) {
        const struct ctw_chunk *chunk = &l->chunks[c];
        assert_int_equal(chunk->tok0, tok);
        assert_in_range(chunk->n_tok, 1, plan->chunk_tokens);
        assert_true(c + 1 == l->n_chunks || chunk->n_tok == plan->chunk_tokens);
        assert_true(chunk->row0 + chunk->n_tok <= plan->carry_rows);
        for (int64_t t = 0; t < chunk->n_tok; t++) {
            rows[0][chunk->row0 + t] = chunk->tok0 + t;
            rows[1][chunk->tok0 + t] = chunk->tok0 + t;
        }
        for (int64_t i = 0; i < chunk->n_seqs; i++) {
            const struct ctw_attn_seq *first = &chunk->seqs[CTW_FOR_LAYER][i];
            int64_t seq = seq_of(l, tok);
            path_of(l, seq, s->seq[seq].n_tok - 1, path);
            assert_true(first->n_q >= 1);
            assert_int_equal(chunk->tok0 + first->q_row, tok);
            for (int j = 0; j < 2; j++) {
                const struct ctw_attn_seq *part = &chunk->seqs[lives[j]][i];
                assert_int_equal(part->q_row, first->q_row);
                assert_int_equal(part->n_q, first->n_q);
                check_part(chunk, part, path, rows[j], n_rows[j]);
            }
            tok += first->n_q;
        }
        assert_int_equal(tok, chunk->tok0 + chunk->n_tok);
        leave(chunk, rows, left);
    }
    assert_int_equal(tok, l->n_tok);
    if (l->n_left > 0) {
        path_of(l, l->left_seq, s->seq[l->left_seq].n_tok - 1, path);
        assert_in_range(l->n_left, plan->trunk_from, plan->trunk_tokens);
        assert_memory_equal(left, path, (size_t)l->n_left * sizeof(*left));
    }
    ctw_free(rows[0]);
    ctw_free(rows[1]);
}

/* A part begins with the state after its token before, and has the next tokens, from `tok` on. */
static void check_seq_part(const struct ctw_layout *l, const struct sequences *s,
                           const struct ctw_plan *plan, const struct ctw_seq_part *p, int64_t tok,
                           const int64_t *states)
{
    int64_t path[MAX_LEN], seq = seq_of(l, tok);
    path_of(l, seq, s->seq[seq].n_tok - 1, path);
    assert_true(p->n_q >= 1);
    assert_true((p->pos0 > 0) == (p->before != NONE));
    assert_in_range(p->before - NONE, 0, plan->states + 1 - NONE);
    if (p->pos0 > 0)
        assert_int_equal(states[p->before], path[p->pos0 - 1]);
    for (int64_t k = 0; k < p->n_q; k++)
        assert_int_equal(path[p->pos0 + k], tok + k);
}

/* The parts of a chunk's rounds are its rows, each once, in order within a round, and each part
 * begins with the state after its token before, which no part of its round leaves: states[i] is the
 * token after which state i was left. */
static int64_t check_rounds_of(const struct ctw_layout *l, const struct sequences *s,
                               const struct ctw_chunk *chunk, const struct ctw_plan *plan,
                               int64_t *states)
{
    int64_t n_tok = 0;
    bool seen[MAX_LEN * MAX_SEQS] = {false};
    for (int64_t i = 0; i < chunk->n_rounds; i++) {
        const struct ctw_round *r = &chunk->rounds[i];
        int64_t row = 0, left[64];
        memcpy(left, states, sizeof(left));
        for (int64_t k = 0; k < r->n_parts; k++) {
            const struct ctw_seq_part *p = &r->parts[k];
            assert_true(p->q_row >= row);
            assert_true(p->q_row + p->n_q <= chunk->n_tok);
            check_seq_part(l, s, plan, p, chunk->tok0 + p->q_row, states);
            for (int64_t t = 0; t < p->n_q; t++) {
                assert_false(seen[p->q_row + t]);
                seen[p->q_row + t] = true;
            }
            row = p->q_row + p->n_q;
            n_tok += p->n_q;
            if (p->after == NONE)
                continue;
            assert_in_range(p->after, 0, plan->states + 1);
            assert_int_not_equal(p->after, plan->states);
            for (int64_t other = 0; other < r->n_parts; other++) {
                assert_int_not_equal(r->parts[other].before, p->after);
                if (other != k)
                    assert_int_not_equal(r->parts[other].after, p->after);
            }
            left[p->after] = chunk->tok0 + row - 1;
        }
        memcpy(states, left, sizeof(left));
    }
    return n_tok;
}

static void check_rounds(const struct ctw_layout *l, const struct sequences *s,
                         const struct ctw_plan *plan)
{
    int64_t states[64], path[MAX_LEN];
    states[plan->states] = trunk_at(l->n_of_trunk - 1);
    states[plan->states + 1] = NONE;
    for (int64_t c = 0; c < l->n_chunks; c++) {
        const struct ctw_chunk *chunk = &l->chunks[c];
        assert_true((chunk->n_rounds > 0) == (plan->states > 0));
        if (plan->states > 0)
            assert_int_equal(check_rounds_of(l, s, chunk, plan, states), chunk->n_tok);
        if (plan->states > 0 && l->n_left > 0 && ctw_chunk_ends_trunk(chunk)) {
            path_of(l, l->left_seq, s->seq[l->left_seq].n_tok - 1, path);
            assert_int_equal(states[plan->states + 1], path[l->n_left - 1]);
        }
    }
}

/* Where nothing limits it, a sequence shares what it has in common with the one before, but for a
 * few tokens. */
static void check_sharing(const struct ctw_layout *l, const struct sequences *s, int64_t long_from)
{
    for (int64_t i = 1; i < s->n; i++) {
        const struct ctw_seq *a = &s->seq[i - 1], *b = &s->seq[i];
        int64_t n = a->n_tok < b->n_tok ? a->n_tok - 1 : b->n_tok - 1, own;
        bool alike = long_from == 0 || (a->n_tok - 1 > long_from) == (b->n_tok - 1 > long_from);
        n = alike ? ctw_common_tokens(a->tokens, b->tokens, 0, n) : 0;
        own = l->start[i + 1] - l->start[i];
        assert_true(own >= b->n_tok - 1 - n);
        assert_true(own < b->n_tok - 1 - n + CTW_BRANCH_TOKENS);
        assert_true(n < b->n_tok - 1 || own == 0);
    }
}

/* Tokens of all passes; n_read: of trunks, as rows and with states. */
struct counted {
    int64_t n_asked, n_limited, n_read[2];
};

/* A pass of sequences first .. of a set, up to `end`. *trunk is the pass's, then the next one's. */
static void check_pass(const struct sequences *all, int64_t first, int64_t end,
                       const struct ctw_plan *plan, int64_t long_from, bool shares,
                       struct ctw_trunk *trunk, struct counted *n)
{
    struct sequences s = {.n = end - first};
    int64_t n_targets = 0;
    struct ctw_layout l;
    struct ctw_err err;
    const struct ctw_sharing sharing = {.shares = shares,
                                        .own_rows = below(4) == 0,
                                        .trunk = trunk,
                                        .next = end < all->n ? &all->seq[end] : NULL};
    memcpy(s.seq, all->seq + first, (size_t)s.n * sizeof(*s.seq));
    for (int64_t i = 0; i < s.n; i++) {
        s.n_tok += s.seq[i].n_tok - 1;
        n_targets += s.seq[i].n_tok - s.seq[i].first;
        s.longest = s.seq[i].n_tok - 1 > s.longest ? s.seq[i].n_tok - 1 : s.longest;
    }
    assert_int_equal(ctw_layout_make(&l, s.seq, s.n, plan, long_from, &sharing, &err), CTW_OK);
    check_tokens(&l, &s, plan, long_from, trunk);
    check_chunks(&l, &s, plan);
    check_rounds(&l, &s, plan);
    if (!shares || sharing.own_rows)
        assert_int_equal(l.n_rows, n_targets);
    if (!sharing.own_rows)
        check_rows(&l);
    if (!shares)
        assert_int_equal(l.n_tok + l.n_left + l.n_of_trunk, s.n_tok);
    else if (plan->states == 0 && plan->carry_rows == plan->pass_tokens && l.n_of_trunk == 0)
        check_sharing(&l, &s, long_from);
    else
        n->n_limited += s.n_tok - l.n_tok;
    n->n_asked += s.n_tok;
    n->n_read[plan->states > 0] += l.n_of_trunk;
    if (l.n_left > 0)
        *trunk =
            (struct ctw_trunk){.tokens = s.seq[l.left_seq].tokens,
                               .n_tok = l.n_left,
                               .is_long = long_from > 0 && s.seq[l.left_seq].n_tok - 1 > long_from};
    assert_true((l.rope_rows != NULL) == (long_from > 0 && s.longest > long_from));
    ctw_layout_free(&l);
}

static void every_query_sees_its_own_keys(void **state)
{
    (void)state;
    struct sequences s;
    struct counted n = {0};
    for (int trial = 0; trial < N_TRIALS; trial++) {
        draw(&s, 1 + below(MAX_LEN));
        struct ctw_plan plan = {.chunk_tokens = 1 + below(s.n_tok + 3),
                                .pass_tokens = s.n_tok,
                                .longest = s.longest + below(5),
                                .states = below(2) * (CTW_STATES + below(6)),
                                .trunk_tokens = below(4) > 0 ? CTW_BRANCH_TOKENS + below(60) : 0,
                                .trunk_from = CTW_BRANCH_TOKENS};
        struct ctw_trunk trunk = {0};
        bool shares = below(8) > 0;
        plan.carry_rows = ctw_layout_carry_rows(plan.longest, plan.chunk_tokens, below(3), s.n_tok);
        int64_t long_from = below(3) == 0 ? 1 + below(MAX_LEN) : 0;
        for (int64_t first = 0, end; first < s.n; first = end) {
            end = below(2) == 0 ? s.n : first + 1 + below(s.n - first);
            check_pass(&s, first, end, &plan, long_from, shares, &trunk, &n);
        }
    }
    assert_true(n.n_limited > n.n_asked / 20); /* limits leave something to share */
    assert_true(n.n_read[0] > 1000);
    assert_true(n.n_read[1] > 1000);
}

enum { MOST = 6 };

/* The tokens that sequences compute, each of which begins with the first n_same[i] tokens of the
 * one before, and the rounds of a recurrence. */
static int64_t computed(const int64_t *n_same, const int64_t *n_tok, int n, int64_t states,
                        int64_t *n_rounds)
{
    int32_t tokens[MOST][MAX_LEN + 1];
    struct ctw_seq seq[MOST];
    struct ctw_layout l;
    struct ctw_err err;
    const struct ctw_plan plan = {.chunk_tokens = 1024,
                                  .pass_tokens = 1024,
                                  .carry_rows = 1024,
                                  .longest = MAX_LEN,
                                  .states = states};
    for (int i = 0; i < n; i++) {
        for (int64_t t = 0; t < n_tok[i]; t++)
            tokens[i][t] = t < n_same[i] ? tokens[i - 1][t] : (int32_t)(1000 * i + t);
        seq[i] = (struct ctw_seq){.tokens = tokens[i], .n_tok = n_tok[i], .first = n_tok[i] - 1};
    }
    const struct ctw_sharing sharing = {.shares = true};
    assert_int_equal(ctw_layout_make(&l, seq, n, &plan, 0, &sharing, &err), CTW_OK);
    int64_t n_computed = l.n_tok;
    *n_rounds = l.chunks[0].n_rounds;
    ctw_layout_free(&l);
    return n_computed;
}

static void a_branch_is_worth_its_cost(void **state)
{
    (void)state;
    const struct {
        int64_t n_same[MOST], n_tok[MOST], states, computed;
        const char *what;
    } cases[] = {
        {{0, 15}, {41, 41}, 0, 80, "too few tokens"},
        {{0, 16}, {41, 41}, 0, 64, "enough"},
        {{0, 10}, {11, 11}, 0, 10, "equal inputs, other targets"},
        {{0, 40, 35}, {61, 61, 61}, 0, 60 + 20 + 25, "a branch before the last branch"},
        {{0, 40, 55}, {61, 61, 61}, 0, 60 + 20 + 20, "a few tokens behind the last branch"},
        {{0, 40, 56}, {61, 61, 61}, 0, 60 + 20 + 4, "a branch of a branch"},
        {{0, 40, 56}, {61, 61, 61}, 2, 180, "no state for a branch"},
        {{0, 40, 56}, {61, 61, 61}, 3, 60 + 20 + 20, "one: the last branch is taken again"},
        {{0, 40, 20}, {61, 61, 61}, 3, 60 + 20 + 60, "one: the earlier state cannot be kept, too"},
        {{0, 40, 20}, {61, 61, 61}, 4, 60 + 20 + 40, "two"},
        {{0, 20, 0, 40}, {61, 61, 61, 61}, 3, 60 + 40 + 60 + 20, "one, of another trunk before"},
        {{0, 40, 60, 80, 40, 20},
         {101, 101, 101, 101, 101, 101},
         6,
         100 + 60 + 40 + 20 + 60 + 80,
         "four at one time"},
        {{0, 40, 60, 80, 40, 20},
         {101, 101, 101, 101, 101, 101},
         5,
         100 + 60 + 40 + 20 + 60 + 100,
         "three: three were kept behind the last branch"},
    };
    for (size_t i = 0; i < CTW_COUNT(cases); i++) {
        int n = 0;
        while (n < MOST && cases[i].n_tok[n] > 0)
            n++;
        int64_t n_rounds, got = computed(cases[i].n_same, cases[i].n_tok, n, cases[i].states,
                                         &n_rounds);
        if (got != cases[i].computed)
            fail_msg("%s: %d tokens", cases[i].what, (int)got);
    }
}

/* Parts that do not wait for one another are in one round. */
static void rounds_are_few(void **state)
{
    (void)state;
    const struct {
        int64_t n_same[MOST], n_tok[MOST], states, n_rounds;
        const char *what;
    } cases[] = {
        {{0, 40, 40, 40, 40, 40}, {61, 61, 61, 61, 61, 61}, 3, 2, "branches of one trunk"},
        {{0, 0, 0, 0, 0, 0}, {61, 61, 61, 61, 61, 61}, 2, 1, "nothing is shared"},
        {{0, 40, 0, 40, 0, 40}, {61, 61, 61, 61, 61, 61}, 5, 2, "three trunks, three states"},
        {{0, 40, 0, 40, 0, 40}, {61, 61, 61, 61, 61, 61}, 3, 2, "three states are enough"},
        {{0, 40, 60, 80}, {101, 101, 101, 101}, 6, 4, "a branch of a branch waits"},
        {{0, 80, 60, 0, 80, 60}, {101, 101, 101, 101, 101, 101}, 4, 3, "two trunks, side by side"},
    };
    for (size_t i = 0; i < CTW_COUNT(cases); i++) {
        int64_t n_rounds;
        int n = 0;
        while (n < MOST && cases[i].n_tok[n] > 0)
            n++;
        computed(cases[i].n_same, cases[i].n_tok, n, cases[i].states, &n_rounds);
        if (n_rounds != cases[i].n_rounds)
            fail_msg("%s: %d rounds", cases[i].what, (int)n_rounds);
    }
}

/* Each sequence leaves the one before near its end: a path has only so many spans. */
static void a_path_has_so_many_spans(void **state)
{
    enum { N = CTW_PATH_SPANS + 8, STEP = CTW_BRANCH_TOKENS };
    static int32_t tokens[N][(N + 2) * STEP];
    struct ctw_seq seq[N];
    struct ctw_layout l;
    struct ctw_err err;
    (void)state;
    for (int i = 0; i < N; i++) {
        int64_t n_same = (int64_t)STEP * i, n_tok = n_same + STEP + 2;
        for (int64_t t = 0; t < n_tok; t++)
            tokens[i][t] = t < n_same ? tokens[i - 1][t] : (int32_t)(1000 * (i + 1) + t);
        seq[i] = (struct ctw_seq){.tokens = tokens[i], .n_tok = n_tok, .first = n_tok - 1};
    }
    const struct ctw_plan plan = {
        .chunk_tokens = 4096, .pass_tokens = 4096, .carry_rows = 4096, .longest = N * STEP + STEP};
    const struct ctw_sharing sharing = {.shares = true};
    assert_int_equal(ctw_layout_make(&l, seq, N, &plan, 0, &sharing, &err), CTW_OK);
    for (int i = 0; i < N; i++) {
        int64_t behind = i < CTW_PATH_SPANS ? 0 : (int64_t)(i - CTW_PATH_SPANS + 1) * STEP;
        assert_true(l.span_start[i + 1] - l.span_start[i] <= CTW_PATH_SPANS);
        assert_int_equal(l.start[i + 1] - l.start[i], STEP + 1 + behind);
    }
    ctw_layout_free(&l);
}

static void lack_of_memory_leaves_nothing(void **state)
{
    (void)state;
    struct sequences s;
    struct ctw_layout l;
    struct ctw_err err;
    const struct ctw_plan plan = {.chunk_tokens = 4,
                                  .longest = MAX_LEN,
                                  .pass_tokens = MAX_SEQS * MAX_LEN,
                                  .carry_rows = MAX_SEQS * MAX_LEN,
                                  .states = 6};
    const struct ctw_sharing sharing = {.shares = true};
    enum ctw_status st = CTW_ENOMEM;
    draw(&s, MAX_LEN);
    s.seq[0] = (struct ctw_seq){.tokens = s.tokens[0], .n_tok = MAX_LEN, .first = 1};
    for (int64_t n = 1; st != CTW_OK; n++) {
        ctw_mem_fail_at(n);
        st = ctw_layout_make(&l, s.seq, s.n, &plan, 2, &sharing, &err);
        ctw_mem_fail_at(0);
        assert_true(st == CTW_OK || st == CTW_ENOMEM);
        ctw_layout_free(&l);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_query_sees_its_own_keys),
        cmocka_unit_test(a_branch_is_worth_its_cost),
        cmocka_unit_test(rounds_are_few),
        cmocka_unit_test(a_path_has_so_many_spans),
        cmocka_unit_test(lack_of_memory_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
