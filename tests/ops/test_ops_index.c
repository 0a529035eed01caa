/* ctw_index() in every place: against its definition, ties, and cuts. */
#include "places.h"

enum { N_SEQS = 10, MAX_RUNS = 6, LONGEST = 400, LD_SEEN = LONGEST / 32 + 3, LD_MORE = 3 };

static const int64_t lengths[N_SEQS] = {1, 129, 2, 65, LONGEST, 63, 64, 127, 128, 200};

struct problem {
    struct ctw_op_index op;
    bool in_fp32; /* sums, see choice_error() */
    struct ctw_attn_seq seqs[N_SEQS];
    struct ctw_kv_run runs[N_SEQS][MAX_RUNS];
    int64_t q_rows, k_rows;
    struct buf q, k, weights;
    struct dev d[4]; /* q, k, weights, seen */
};

/* The first n_seqs sequences; a third of them begins after position 0. Keys are in runs, of which
 * the last lies first; rows that belong to no sequence are NaN. */
static void problem_open(struct problem *p, struct ctw_backend *be, int64_t n_seqs,
                         enum ctw_dtype dtype, int n_head, int head, int64_t chosen)
{
    memset(p, 0, sizeof(*p));
    for (int i = 0; i < n_seqs; i++) {
        struct ctw_attn_seq *s = &p->seqs[i];
        struct ctw_kv_run *runs = p->runs[i];
        s->pos0 = i % 3 == 1 ? rng_below(lengths[i]) : 0;
        s->n_q = lengths[i] - s->pos0;
        s->q_row = p->q_rows;
        p->q_rows += s->n_q;
        s->runs = runs;
        for (int64_t left = lengths[i]; left > 0; left -= runs[s->n_runs++].n_tok)
            runs[s->n_runs].n_tok = s->n_runs + 1 < MAX_RUNS ? 1 + rng_below(left) : left;
        for (int r = s->n_runs - 1; r >= 0; r--) {
            runs[r].row = p->k_rows + rng_below(3);
            p->k_rows = runs[r].row + runs[r].n_tok;
        }
    }
    p->q = buf_random(dtype, p->q_rows * n_head * head, 1, 0);
    p->k = buf_random(dtype, p->k_rows * head, 1, 0);
    p->weights = buf_random(dtype, p->q_rows * (n_head + LD_MORE), 1, 0);
    for (int64_t i = 0; i < p->q_rows * (n_head + LD_MORE); i += 17)
        ctw_store_float(p->weights.p, dtype, i, 0);
    struct buf seen = buf_open((size_t)(p->q_rows * LD_SEEN) * sizeof(uint32_t), 0);
    p->d[0] = dev_of(be, &p->q);
    p->d[1] = dev_of(be, &p->k);
    p->d[2] = dev_of(be, &p->weights);
    p->d[3] = dev_of(be, &seen);
    buf_close(&seen);
    p->in_fp32 = CTW_ON_GPU && dtype != CTW_F32 && head <= 128;
    p->op = (struct ctw_op_index){.dtype = dtype,
                                  .n_head = n_head,
                                  .head = head,
                                  .chosen = chosen,
                                  .q = p->d[0].p,
                                  .k = p->d[1].p,
                                  .weights = p->d[2].p,
                                  .ld_weights = n_head + LD_MORE,
                                  .seqs = p->seqs,
                                  .n_seqs = n_seqs,
                                  .seen = (uint32_t *)(void *)p->d[3].p,
                                  .ld_seen = LD_SEEN};
}

static void problem_close(struct problem *p)
{
    for (size_t i = 0; i < CTW_COUNT(p->d); i++)
        dev_close(&p->d[i]);
    buf_close(&p->q);
    buf_close(&p->k);
    buf_close(&p->weights);
}

/* Makes all words those of bytes 0xFF. */
static void clear(struct problem *p)
{
    struct buf ones = buf_open(p->d[3].bytes, 0);
    memset(ones.p, 0xFF, ones.bytes);
    OK(ctw_device_upload(p->d[3].be, p->d[3].p, ones.p, ones.bytes, &last_err));
    buf_close(&ones);
}

static struct buf words(const struct problem *p)
{
    struct buf seen = buf_open(p->d[3].bytes, 0);
    dev_read(&p->d[3], seen.p);
    return seen;
}

static struct buf choose(struct problem *p)
{
    clear(p);
    OK(ctw_index(p->d[3].be, &p->op, &last_err));
    return words(p);
}

static int64_t key_row(const struct ctw_attn_seq *s, int64_t pos)
{
    const struct ctw_kv_run *run = s->runs;
    while (pos >= run->n_tok)
        pos -= run++->n_tok;
    return run->row + pos;
}

/* In the order of kernels/cpu/c_index.c; *size: the sum of what is added, in size. */
static double score_of(const struct problem *p, int64_t q_row, int64_t k_row, double *size)
{
    const struct ctw_op_index *op = &p->op;
    double sum = 0;
    *size = 0;
    for (int h = 0; h < op->n_head; h++) {
        double lane[8] = {0}, abs = 0;
        const double w = op->weights == NULL
                             ? 1
                             : ctw_load_float(p->weights.p, op->dtype, q_row * op->ld_weights + h);
        for (int d = 0; d < op->head; d++) {
            double x =
                (double)ctw_load_float(p->q.p, op->dtype, (q_row * op->n_head + h) * op->head + d) *
                ctw_load_float(p->k.p, op->dtype, k_row * op->head + d);
            lane[d % 8] += x;
            abs += fabs(x);
        }
        double s = (lane[0] + lane[1]) + (lane[2] + lane[3]);
        s += (lane[4] + lane[5]) + (lane[6] + lane[7]);
        sum += w * (s < 0 ? 0 : s);
        *size += fabs(w) * abs;
    }
    return isnan(sum) ? -INFINITY : sum;
}

/* Sums in fp32 of `head` products and of the heads: each addition is off by 2^-23 at most (tensor
 * cores cut off), and a sum has as many as its terms; a choice compares two. */
static double choice_error(const struct problem *p)
{
    return p->in_fp32 ? 2 * (p->op.head + p->op.n_head) * 0x1p-23 : 0;
}

/*
 * One query's choice: `chosen` keys; the least of them is not below the best of the others by more
 * than `error` times the largest size; with error 0, the lower keys of equal ones. Bits after the
 * query's own are 0, words after that untouched.
 */
static void check_query(const struct problem *p, const struct ctw_attn_seq *s, int64_t i,
                        const uint32_t *row)
{
    const int64_t n = s->pos0 + i + 1;
    const double error = choice_error(p);
    int64_t n_chosen = 0, last_least = -1, first_best = n;
    double least = INFINITY, best = -INFINITY, largest = 0;
    for (int64_t j = 0; j < n; j++) {
        double size, x = score_of(p, s->q_row + i, key_row(s, j), &size);
        largest = fmax(size, largest);
        if ((row[j / 32] >> j % 32 & 1) != 0) {
            n_chosen++;
            last_least = x <= least ? j : last_least;
            least = fmin(x, least);
        } else {
            first_best = x > best ? j : first_best;
            best = fmax(x, best);
        }
    }
    assert_int_equal(n_chosen, n < p->op.chosen ? n : p->op.chosen);
    assert_false(least < best - error * largest);
    assert_true(error > 0 || least > best || last_least < first_best);
    assert_true(n % 32 == 0 || row[n / 32] >> n % 32 == 0);
    for (int64_t w = (n + 31) / 32; w < LD_SEEN; w++)
        assert_int_equal(row[w], UINT32_MAX);
}

/* Each sequence alone, in two calls. */
static void check_company(struct problem *p, const struct buf *want)
{
    struct ctw_op_index op = p->op;
    clear(p);
    op.n_seqs = 1;
    for (int64_t s = p->op.n_seqs - 1; s >= 0; s--) {
        struct ctw_attn_seq part = p->seqs[s];
        op.seqs = &part;
        part.n_q = rng_below(part.n_q);
        OK(ctw_index(p->d[3].be, &op, &last_err));
        part.q_row += part.n_q;
        part.pos0 += part.n_q;
        part.n_q = p->seqs[s].n_q - part.n_q;
        OK(ctw_index(p->d[3].be, &op, &last_err));
    }
    struct buf got = words(p);
    assert_memory_equal(got.p, want->p, want->bytes);
    buf_close(&got);
}

/* Equal keys: the first are chosen. A key that is not a number is chosen last. */
static void check_ties(struct problem *p, int64_t seq)
{
    const struct ctw_attn_seq *s = &p->seqs[seq];
    const int64_t head = p->op.head, nan = key_row(s, 3), chosen = p->op.chosen;
    for (int64_t i = 0; i < p->k_rows * head; i++)
        ctw_store_float(p->k.p, p->op.dtype, i, i / head == nan ? NAN : 1);
    OK(ctw_device_upload(p->d[1].be, p->d[1].p, p->k.p, p->k.bytes, &last_err));
    struct buf seen = choose(p);
    const uint32_t *got = seen.p;
    for (int64_t i = 0; i < s->n_q; i++)
        for (int64_t j = 0; j <= s->pos0 + i; j++) {
            const bool is = (got[(s->q_row + i) * LD_SEEN + j / 32] >> j % 32 & 1) != 0;
            const bool all = s->pos0 + i + 1 <= chosen;
            assert_int_equal(is, all || (j != 3 && j < chosen + (chosen > 3)));
        }
    buf_close(&seen);
}

static void the_best_keys_are_chosen(void **state)
{
    (void)state;
    static const enum ctw_dtype dtypes_of[] = {CTW_F32, CTW_BF16, CTW_F16};
    static const int heads[][3] = {
        {64, 128, 96}, {4, 32, 1}, {3, 20, 40}, {5, 136, 64}, {2, 300, 33}};
    static struct problem p;
    struct ctw_backend *be;
    /* CPU variants choose by the same code. */
    for (int place = 0; (CTW_ON_GPU || place == 0) && (be = open_place(place, 2)) != NULL;
         place++) {
        for (size_t i = 0; i < CTW_COUNT(heads) * CTW_COUNT(dtypes_of); i += COARSE) {
            const int *h = heads[i / CTW_COUNT(dtypes_of)];
            const int64_t n_seqs = h[0] == 64 ? 2 : CTW_ON_GPU ? N_SEQS : 4;
            problem_open(&p, be, n_seqs, dtypes_of[i % CTW_COUNT(dtypes_of)], h[0], h[1], h[2]);
            p.op.weights = h[0] == 3 ? NULL : p.op.weights; /* heads count alike */
            struct buf seen = choose(&p);
            for (int64_t s = 0; s < n_seqs; s++)
                for (int64_t q = 0; q < p.seqs[s].n_q; q++)
                    check_query(&p, &p.seqs[s], q,
                                (uint32_t *)seen.p + (p.seqs[s].q_row + q) * LD_SEEN);
            check_company(&p, &seen);
            check_ties(&p, n_seqs == N_SEQS ? 4 : 1);
            buf_close(&seen);
            problem_close(&p);
        }
        ctw_backend_close(be);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_best_keys_are_chosen),
    };
    return cmocka_run_group_tests(tests, ops_setup, NULL);
}
