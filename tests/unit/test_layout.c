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

enum { MAX_SEQS = 12, MAX_LEN = 40, N_TRIALS = 4000, NO_KEY = -1 };

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

/* Of 1 to max_len inputs. */
static void draw(struct sequences *s, int64_t max_len)
{
    *s = (struct sequences){.n = 1 + below(MAX_SEQS)};
    for (int64_t i = 0; i < s->n; i++) {
        int64_t n_tok = 2 + below(max_len);
        for (int64_t t = 0; t < n_tok; t++)
            s->tokens[i][t] = (int32_t)below(1000);
        s->seq[i] =
            (struct ctw_seq){.tokens = s->tokens[i], .n_tok = n_tok, .first = 1 + below(n_tok - 1)};
        s->n_tok += n_tok - 1;
        s->longest = n_tok - 1 > s->longest ? n_tok - 1 : s->longest;
    }
}

/* Tokens, positions and scored rows, said anew token by token. */
static void check_tokens(const struct ctw_layout *l, const struct sequences *s,
                         const struct ctw_plan *plan, int64_t long_from)
{
    int64_t at = 0, row = 0, long_shift;
    for (int64_t i = 0; i < s->n; i++) {
        const struct ctw_seq *seq = &s->seq[i];
        assert_int_equal(l->start[i], at);
        long_shift = long_from > 0 && seq->n_tok - 1 > long_from ? plan->longest : 0;
        assert_true(long_shift == 0 || l->rope_rows != NULL);
        for (int64_t t = 0; t < seq->n_tok - 1; t++, at++) {
            assert_int_equal(l->tokens[at], seq->tokens[t]);
            assert_int_equal(l->positions[at], t);
            if (l->rope_rows != NULL)
                assert_int_equal(l->rope_rows[at], t + long_shift);
            if (t + 1 < seq->first)
                continue;
            assert_int_equal(l->rows[row], at);
            assert_int_equal(l->targets[row], seq->tokens[t + 1]);
            row++;
        }
    }
    assert_int_equal(l->start[s->n], at);
    assert_int_equal(l->n_tok, at);
    assert_int_equal(l->n_rows, row);
}

/* keys[row] is the token, by its index in the pass, whose key lies there. */
static void check_part(const struct ctw_layout *l, const struct ctw_chunk *chunk,
                       const struct ctw_attn_seq *part, int64_t seq, const int64_t *keys,
                       int64_t n_keys)
{
    int64_t key = 0;
    assert_int_equal(chunk->tok0 + part->q_row, l->start[seq] + part->pos0);
    for (int r = 0; r < part->n_runs; r++) {
        for (int64_t j = 0; j < part->runs[r].n_tok; j++, key++) {
            assert_in_range(part->runs[r].row + j, 0, n_keys - 1);
            assert_int_equal(keys[part->runs[r].row + j], l->start[seq] + key);
        }
    }
    assert_int_equal(key, part->pos0 + part->n_q);
}

static int64_t seq_of(const struct ctw_layout *l, int64_t tok)
{
    int64_t seq = 0;
    while (l->start[seq + 1] <= tok)
        seq++;
    return seq;
}

static const enum ctw_carry_life lives[] = {CTW_FOR_LAYER, CTW_FOR_PASS};

/* Every token's queries are asked once, in order, of the rows of either life. */
static void check_chunks(const struct ctw_layout *l, const struct ctw_plan *plan)
{
    const int64_t n_rows[] = {plan->carry_rows, l->n_tok};
    int64_t *rows[2], tok = 0;
    for (int i = 0; i < 2; i++) {
        rows[i] = ctw_calloc((size_t)n_rows[i], sizeof(**rows));
        assert_non_null(rows[i]);
        for (int64_t j = 0; j < n_rows[i]; j++)
            rows[i][j] = NO_KEY;
    }
    for (int64_t c = 0; c < l->n_chunks; c++) {
        const struct ctw_chunk *chunk = &l->chunks[c];
        assert_int_equal(chunk->tok0, tok);
        assert_in_range(chunk->n_tok, 1, plan->chunk_tokens);
        assert_int_equal(chunk->continues, tok > l->start[seq_of(l, tok)]);
        assert_true(c + 1 == l->n_chunks || chunk->n_tok == plan->chunk_tokens);
        /* A state that is read is the one that was left. */
        assert_true(c == 0 || chunk->state[0] == l->chunks[c - 1].state[1]);
        assert_true(chunk->state[0] != chunk->state[1]);
        assert_true(chunk->row0 + chunk->n_tok <= plan->carry_rows);
        for (int64_t t = 0; t < chunk->n_tok; t++) {
            rows[0][chunk->row0 + t] = chunk->tok0 + t;
            rows[1][chunk->tok0 + t] = chunk->tok0 + t;
        }
        for (int64_t i = 0; i < chunk->n_seqs; i++) {
            const struct ctw_attn_seq *first = &chunk->seqs[CTW_FOR_LAYER][i];
            assert_true(first->n_q >= 1);
            assert_int_equal(chunk->tok0 + first->q_row, tok);
            for (int j = 0; j < 2; j++) {
                const struct ctw_attn_seq *part = &chunk->seqs[lives[j]][i];
                assert_int_equal(part->q_row, first->q_row);
                assert_int_equal(part->n_q, first->n_q);
                check_part(l, chunk, part, seq_of(l, tok), rows[j], n_rows[j]);
            }
            tok += first->n_q;
        }
        assert_int_equal(tok, chunk->tok0 + chunk->n_tok);
    }
    assert_int_equal(tok, l->n_tok);
    ctw_free(rows[0]);
    ctw_free(rows[1]);
}

static void every_query_sees_its_own_keys(void **state)
{
    (void)state;
    struct sequences s;
    struct ctw_layout l;
    struct ctw_err err;
    for (int trial = 0; trial < N_TRIALS; trial++) {
        draw(&s, 1 + below(MAX_LEN));
        struct ctw_plan plan = {.chunk_tokens = 1 + below(s.n_tok + 3),
                                .longest = s.longest + below(5)};
        plan.carry_rows = ctw_layout_carry_rows(plan.longest, plan.chunk_tokens, s.n_tok);
        int64_t long_from = below(3) == 0 ? 1 + below(MAX_LEN) : 0;
        assert_int_equal(ctw_layout_make(&l, s.seq, s.n, &plan, long_from, &err), CTW_OK);
        check_tokens(&l, &s, &plan, long_from);
        check_chunks(&l, &plan);
        assert_true((l.rope_rows != NULL) == (long_from > 0 && s.longest > long_from));
        ctw_layout_free(&l);
    }
}

static void lack_of_memory_leaves_nothing(void **state)
{
    (void)state;
    struct sequences s;
    struct ctw_layout l;
    struct ctw_err err;
    const struct ctw_plan plan = {.chunk_tokens = 4, .longest = MAX_LEN};
    enum ctw_status st = CTW_ENOMEM;
    draw(&s, MAX_LEN);
    s.seq[0].n_tok = MAX_LEN; /* longer than long_from */
    for (int64_t n = 1; st != CTW_OK; n++) {
        ctw_mem_fail_at(n);
        st = ctw_layout_make(&l, s.seq, s.n, &plan, 2, &err);
        ctw_mem_fail_at(0);
        assert_true(st == CTW_OK || st == CTW_ENOMEM);
        ctw_layout_free(&l);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_query_sees_its_own_keys),
        cmocka_unit_test(lack_of_memory_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
