/* Part of test_ops_attention.c: sequences with their operands in every place, and what attention
 * gives by its definition. */
#include "base/threads.h"
#include "places.h"

enum { MAX_SEQS = 12, MAX_RUNS = 40, MAX_KEYS = 512 };

static const enum ctw_dtype kinds[] = {CTW_F32, CTW_BF16, CTW_F16};

struct shape {
    int n_head, n_kv, head;
    int64_t window;
    float softcap;
    int head_v; /* 0: head */
    int64_t chunk;
    float v_factor; /* 0: 1 */
};

/* What a problem has besides queries, keys and values, as far as its shape allows. */
enum extra { PLAIN, SINKS, ALIBI, SEEN, RELATIVE, N_EXTRAS };

enum operand { Q, K, V, SINK, SLOPE, WORDS, STATES, PROJ, FACTORS, N_OPERANDS };

struct problem {
    char name[160];
    const char *place;
    bool same_as_unseen; /* in this place, a choice of all keys gives the bits of no choice */
    struct ctw_op_attention op;
    struct ctw_attn_seq seqs[MAX_SEQS];
    struct ctw_kv_run runs[MAX_SEQS][MAX_RUNS];
    int64_t q_rows, kv_rows, row; /* row: elements of a row of results */
    struct buf in[N_OPERANDS];    /* base NULL: absent */
    size_t misalign;
    struct dev dev[N_OPERANDS], out;
    double *want, *bound; /* [q_rows, row] */
};

/* ---- places ------------------------------------------------------------------------------- */

static struct ctw_backend *places[MAX_PLACES]; /* NULL from the first that does not exist on */

static int suite_setup(void **state)
{
    assert_true(open_places(places) < MAX_PLACES);
    return ops_setup(state);
}

static int suite_teardown(void **state)
{
    (void)state;
    int n = 0;
    while (n < MAX_PLACES && places[n] != NULL)
        n++;
    close_places(places, n);
    return 0;
}

/* The plain definition in C, which is slow, beside fast variants. */
static bool is_plain(int i)
{
    return i > 0 && strcmp(place_name(i), "c") == 0;
}

/* ---- operands ----------------------------------------------------------------------------- */

/* n elements from element `at` on: random numbers from a pool, begun anywhere. */
static void fill(const struct buf *b, enum ctw_dtype dtype, int64_t at, int64_t n, float scale)
{
    enum { POOL = 65537 };
    static float pool[POOL];
    for (int64_t i = 0; pool[POOL - 1] == 0 && i < POOL; i++)
        pool[i] = rng_normal();
    int64_t from = rng_below(POOL);
    for (int64_t i = 0; i < n; i++)
        ctw_store_float(b->p, dtype, at + i, scale * pool[(from + i) % POOL]);
}

/* Rows that belong to no sequence are NaN. */
static struct buf rows_open(enum ctw_dtype dtype, int64_t n)
{
    struct buf b = buf_open((size_t)n * ctw_dtype_bytes(dtype), 0);
    memset(b.p, 0xFF, b.bytes);
    return b;
}

/* Keys of one sequence in up to `pieces` runs, of which the last lies first. */
static void runs_open(struct problem *p, int i, int64_t n, int pieces)
{
    struct ctw_attn_seq *s = &p->seqs[i];
    s->runs = p->runs[i];
    for (int64_t left = n; left > 0;) {
        int64_t len = s->n_runs + 1 < pieces ? 1 + rng_below(left) : left;
        p->runs[i][s->n_runs++].n_tok = len;
        left -= len;
    }
    for (int r = s->n_runs - 1; r >= 0; r--) {
        p->runs[i][r].row = p->kv_rows + rng_below(4);
        p->kv_rows = p->runs[i][r].row + p->runs[i][r].n_tok;
    }
}

static void give_sinks(struct problem *p)
{
    p->op.sinks_dtype = kinds[rng_below(3)];
    p->in[SINK] = buf_random(p->op.sinks_dtype, p->op.n_head, 3, 0);
}

/* Slopes from 1/2 to 1/256. */
static void give_slopes(struct problem *p)
{
    p->in[SLOPE] = buf_open((size_t)p->op.n_head * sizeof(float), 0);
    for (int h = 0; h < p->op.n_head; h++)
        ctw_store_float(p->in[SLOPE].p, CTW_F32, h, exp2f(-1 - 7 * (float)rng_below(1000) / 1000));
}

/* A bias up to a distance within sequences or beyond all, with factors of positions or without. */
static void give_relative(struct problem *p)
{
    const int rank = 1 + (int)rng_below(20);
    struct ctw_relative *r = &p->op.relative;
    *r = (struct ctw_relative){.rank = rank,
                               .extent = 1 + rng_below(rng_below(2) == 0 ? 90 : MAX_KEYS),
                               .ld = (int64_t)rank * p->op.n_head + rng_below(9),
                               .proj_dtype = kinds[rng_below(3)]};
    p->in[STATES] = buf_random(p->op.dtype, p->q_rows * r->ld, 0.5f, 0);
    p->in[PROJ] = buf_random(r->proj_dtype, rank * r->extent, 0.5f, 0);
    if (rng_below(2) == 0)
        return;
    p->in[FACTORS] = buf_open(MAX_KEYS * sizeof(float), 0);
    for (int64_t i = 0; i < MAX_KEYS; i++)
        ctw_store_float(p->in[FACTORS].p, CTW_F32, i, 1 + 0.001f * (float)i);
}

/* The bias of head h in row q_row of q at a distance; *sums: that of the sizes of its products. */
static double relative(const struct problem *p, int64_t q_row, int h, int64_t pos, int64_t key,
                       double *sums)
{
    const struct ctw_relative *r = &p->op.relative;
    const float factor = p->in[FACTORS].base != NULL ? ((const float *)p->in[FACTORS].p)[pos] : 1;
    double bias = *sums = 0;
    for (int i = 0; pos - key < r->extent && i < r->rank; i++) {
        double x = (double)factor *
                   ctw_load_float(p->in[STATES].p, p->op.dtype, q_row * r->ld + h * r->rank + i) *
                   ctw_load_float(p->in[PROJ].p, r->proj_dtype, i * r->extent + pos - key);
        bias += x;
        *sums += fabs(x);
    }
    return bias;
}

/* A quarter of the keys and the query's own; all for queries at positions below `from`. Words past
 * the query's own key are arbitrary. */
static void give_seen(struct problem *p, int64_t from)
{
    p->op.ld_seen = MAX_KEYS / 32 + 2;
    p->op.seen_from = from;
    p->in[WORDS] = buf_open((size_t)(p->q_rows * p->op.ld_seen) * sizeof(uint32_t), 0);
    uint32_t *word = p->in[WORDS].p;
    for (int64_t i = 0; i < p->q_rows * p->op.ld_seen; i++)
        word[i] = rng() & rng();
    for (int64_t s = 0; s < p->op.n_seqs; s++)
        for (int64_t i = 0; i < p->seqs[s].n_q; i++) {
            int64_t pos = p->seqs[s].pos0 + i;
            uint32_t *row = word + (p->seqs[s].q_row + i) * p->op.ld_seen;
            row[pos / 32] |= (uint32_t)1 << pos % 32;
            for (int64_t w = 0; pos < from && w <= pos / 32; w++)
                row[w] = UINT32_MAX;
        }
}

static bool is_seen(const struct problem *p, int64_t q_row, int64_t pos)
{
    const uint32_t *word = p->in[WORDS].p;
    return p->in[WORDS].base == NULL ||
           (word[q_row * p->op.ld_seen + pos / 32] >> pos % 32 & 1) != 0;
}

/* Sequences of these lengths; a third begins after position 0. */
static void problem_open(struct problem *p, const struct shape *s, enum ctw_dtype dtype,
                         enum extra extra, const int64_t *lengths, int64_t n_seqs, int pieces)
{
    static const char *const names[] = {"", ", sinks", ", ALiBi", ", chosen keys", ", bias"};
    memset(p, 0, sizeof(*p));
    p->op = (struct ctw_op_attention){.dtype = dtype,
                                      .n_head = s->n_head,
                                      .n_kv = s->n_kv,
                                      .head = s->head,
                                      .head_v = s->head_v > 0 ? s->head_v : s->head,
                                      .window = s->window,
                                      .chunk = s->chunk,
                                      .softcap = s->softcap,
                                      .v_factor = s->v_factor == 0 ? 1 : s->v_factor,
                                      .scale = 1.0f / sqrtf((float)s->head),
                                      .seqs = p->seqs,
                                      .n_seqs = n_seqs};
    for (int i = 0; i < n_seqs; i++) {
        struct ctw_attn_seq *q = &p->seqs[i];
        q->pos0 = i % 3 == 1 ? rng_below(lengths[i]) : 0;
        q->n_q = lengths[i] - q->pos0;
        q->q_row = p->q_rows + rng_below(3);
        p->q_rows = q->q_row + q->n_q;
        runs_open(p, i, lengths[i], pieces);
    }
    p->q_rows += 1;
    p->kv_rows += 2;
    p->row = (int64_t)s->n_head * p->op.head_v;
    const int64_t q_row = (int64_t)s->n_head * s->head, k_row = (int64_t)s->n_kv * s->head;
    const int64_t v_row = (int64_t)s->n_kv * p->op.head_v;
    p->in[Q] = rows_open(dtype, p->q_rows * q_row);
    p->in[K] = rows_open(dtype, p->kv_rows * k_row);
    p->in[V] = rows_open(dtype, p->kv_rows * v_row);
    for (int i = 0; i < n_seqs; i++) {
        const struct ctw_attn_seq *q = &p->seqs[i];
        fill(&p->in[Q], dtype, q->q_row * q_row, q->n_q * q_row, 2);
        for (const struct ctw_kv_run *r = q->runs; r < q->runs + q->n_runs; r++) {
            fill(&p->in[K], dtype, r->row * k_row, r->n_tok * k_row, 1.5f);
            fill(&p->in[V], dtype, r->row * v_row, r->n_tok * v_row, 1);
        }
    }
    if ((extra == ALIBI || extra == SEEN) && s->softcap > 0)
        extra = SINKS;
    if (extra == SEEN && s->chunk > 0)
        extra = PLAIN;
    if (extra == RELATIVE &&
        (s->softcap > 0 || s->chunk > 0 || p->op.head_v != s->head || p->op.v_factor != 1))
        extra = SINKS;
    if (extra == RELATIVE)
        give_relative(p);
    if (extra == SINKS || (extra == ALIBI && dtype == CTW_F32))
        give_sinks(p);
    if (extra == ALIBI)
        give_slopes(p);
    if (extra == SEEN)
        give_seen(p, 70);
    snprintf(p->name, sizeof(p->name),
             "%s heads %d / %d of %d and %d, x %g, window %" PRId64 " chunk %" PRId64 " cap %g%s",
             ctw_dtype_name(dtype), s->n_head, s->n_kv, s->head, p->op.head_v,
             (double)p->op.v_factor, s->window, s->chunk, (double)s->softcap, names[extra]);
}

static void problem_close(struct problem *p)
{
    for (int i = 0; i < N_OPERANDS; i++)
        if (p->in[i].base != NULL)
            buf_close(&p->in[i]);
    free(p->want);
    free(p->bound);
}

/* The operands go to a place; problem_leave() frees them. */
static void problem_enter(struct problem *p, int place)
{
    struct ctw_backend *be = places[place];
    struct buf none = rows_open(p->op.dtype, p->q_rows * p->row);
    p->place = place_name(place);
    p->same_as_unseen = !CTW_ON_GPU || (place == 0 && p->op.head_v != p->op.head &&
                                        p->op.head <= 192 && p->op.head_v <= 128);
    for (int i = 0; i < N_OPERANDS; i++)
        if (p->in[i].base != NULL)
            p->dev[i] = dev_open(be, p->in[i].p, p->in[i].bytes, i <= V ? p->misalign : 0);
    p->out = dev_open(be, none.p, none.bytes, p->misalign);
    buf_close(&none);
    p->op.q = p->dev[Q].p;
    p->op.k = p->dev[K].p;
    p->op.v = p->dev[V].p;
    p->op.out = p->out.p;
    p->op.sinks = p->dev[SINK].p;
    p->op.alibi = (const float *)(const void *)p->dev[SLOPE].p;
    p->op.seen = (const uint32_t *)(const void *)p->dev[WORDS].p;
    p->op.relative.states = p->dev[STATES].p;
    p->op.relative.proj = p->dev[PROJ].p;
    p->op.relative.factor = (const float *)(const void *)p->dev[FACTORS].p;
}

static void problem_leave(struct problem *p)
{
    for (int i = 0; i < N_OPERANDS; i++)
        dev_close(&p->dev[i]);
    memset(p->dev, 0, sizeof(p->dev));
    dev_close(&p->out);
}

/* ---- results ------------------------------------------------------------------------------ */

static size_t row_bytes(const struct problem *p)
{
    return (size_t)p->row * ctw_dtype_bytes(p->op.dtype);
}

/* Makes all results NaN. */
static void poison(struct problem *p)
{
    struct buf none = rows_open(p->op.dtype, p->q_rows * p->row);
    OK(ctw_device_upload(p->out.be, p->out.p, none.p, none.bytes, &last_err));
    buf_close(&none);
}

/* All rows after an operation that is the problem's, or a part of it. */
static struct buf results(struct problem *p, const struct ctw_op_attention *op)
{
    struct buf r = buf_open(p->out.bytes, 0);
    OK(ctw_attention(p->out.be, op, &last_err));
    dev_read(&p->out, r.p);
    return r;
}

/* Likewise, from the problem's operation alone. */
static struct buf all_results(struct problem *p)
{
    poison(p);
    return results(p, &p->op);
}

static void same_rows(const struct problem *p, const struct buf *a, const struct buf *b,
                      const struct ctw_attn_seq *s, const char *what)
{
    const size_t from = (size_t)s->q_row * row_bytes(p), n = (size_t)s->n_q * row_bytes(p);
    if (n > 0 && memcmp((char *)a->p + from, (char *)b->p + from, n) != 0)
        fail_msg("%s, %s: other bits %s, row %" PRId64, p->place, p->name, what, s->q_row);
}

/* ---- the definition ----------------------------------------------------------------------- */

struct definition {
    struct problem *p;
    const struct ctw_attn_seq *seq;
    const float *in[3];    /* q, k and v, widened */
    int64_t row[MAX_KEYS]; /* of the key at each position */
};

/* 2^-24 of a score's partial sums in size: by so much a score in fp32 may be off; and once more for
 * ALiBi, or for tanhf. */
static double score(const struct ctw_op_attention *op, const float *q, const float *k, double bias,
                    double *off)
{
    double s = 0, sums = 0;
    for (int d = 0; d < op->head; d++) {
        s += (double)q[d] * k[d];
        sums += fabs(s);
    }
    s = s * op->scale + bias;
    s = op->softcap > 0 ? op->softcap * tanh(s / op->softcap) : s;
    *off = 0x1p-24 * (sums * op->scale + (op->softcap > 0 ? 4 : 1) * fabs(s));
    return s;
}

/*
 * fp32: the scores, and what follows them: weights that are off by a few 2^-24, in a sum whose
 * roundings add up to the square root of its terms. 16 bits: rounding P and the result, half a step
 * each; scores and sums in fp32, fp16's smallest P: the rest. ALiBi adds up to about 40 to a score
 * that matters.
 */
static double bound(const struct problem *p, double want, double size, double moved)
{
    const struct ctw_op_attention *op = &p->op;
    double s = (op->head <= 256 ? 1e-5 : 2e-5) + (p->in[SLOPE].base != NULL ? 1e-5 : 0) +
               (op->relative.rank > 0 ? 1e-5 : 0);
    double factor = fmax(fabs((double)op->v_factor), 1);
    if (op->dtype == CTW_F32)
        return moved + 2e-6 * size + 1e-6 * factor;
    double step = op->dtype == CTW_BF16 ? 0x1p-8 : 0x1p-11;
    return step * 1.02 * (size + fabs(want)) + s * size +
           (op->dtype == CTW_F16 ? 3e-5 : 1e-6) * factor;
}

/* The results of query i's head h. A score that is off by e moves a result by at most weight * e *
 * (value - result). */
static void define_head(const struct definition *d, int64_t i, int h)
{
    struct problem *p = d->p;
    const struct ctw_op_attention *op = &p->op;
    const int64_t pos = d->seq->pos0 + i, first = ctw_attn_first(op, pos), kv_step = op->n_kv;
    const int64_t kv = h / (op->n_head / op->n_kv), q_row = d->seq->q_row + i;
    const float *slope = p->in[SLOPE].p, *v = d->in[V] + kv * op->head_v;
    double weight[MAX_KEYS], off[MAX_KEYS], most = -INFINITY, total = 0;
    if (p->in[SINK].base != NULL)
        most = ctw_load_float(p->in[SINK].p, op->sinks_dtype, h);
    const double sink = most;
    for (int64_t j = first; j <= pos; j++) {
        double sums = 0, bias = p->in[SLOPE].base != NULL ? slope[h] * (double)(j - pos) : 0;
        if (op->relative.rank > 0)
            bias = relative(p, q_row, h, pos, j, &sums);
        weight[j] = score(op, d->in[Q] + (q_row * op->n_head + h) * op->head,
                          d->in[K] + (d->row[j] * kv_step + kv) * op->head, bias, &off[j]);
        off[j] += 0x1p-24 * 4 * sums;
        weight[j] = is_seen(p, q_row, j) ? weight[j] : -INFINITY;
        most = fmax(most, weight[j]);
    }
    total = exp(sink - most);
    for (int64_t j = first; j <= pos; j++)
        total += weight[j] = exp(weight[j] - most);
    double sum[CTW_MAX_HEAD] = {0}, size[CTW_MAX_HEAD] = {0}, moved[CTW_MAX_HEAD] = {0};
    for (int64_t j = first; j <= pos; j++)
        for (int e = 0; e < op->head_v; e++) {
            double x = weight[j] / total * v[d->row[j] * kv_step * op->head_v + e];
            sum[e] += x;
            size[e] += fabs(x);
        }
    for (int64_t j = first; j <= pos && op->dtype == CTW_F32; j++)
        for (int e = 0; e < op->head_v; e++)
            moved[e] +=
                weight[j] / total * off[j] * fabs(v[d->row[j] * kv_step * op->head_v + e] - sum[e]);
    const double factor = fabs((double)op->v_factor);
    for (int e = 0; e < op->head_v; e++) {
        int64_t at = q_row * p->row + h * op->head_v + e;
        p->want[at] = sum[e] * op->v_factor;
        p->bound[at] = bound(p, p->want[at], size[e] * factor, moved[e] * factor);
    }
}

static void define_query(void *arg, int64_t i, int thread)
{
    (void)thread;
    const struct definition *d = arg;
    for (int h = 0; h < d->p->op.n_head; h++)
        define_head(d, i, h);
}

/* Computes p->want and p->bound, NaN in rows of no sequence. */
static void define(struct problem *p)
{
    struct definition d = {.p = p};
    struct ctw_threads *threads;
    float *wide[3];
    OK(ctw_threads_open(&threads, 0, &last_err));
    for (int i = 0; i < 3; i++) {
        int64_t n = (int64_t)(p->in[i].bytes / ctw_dtype_bytes(p->op.dtype));
        assert_non_null(d.in[i] = wide[i] = malloc((size_t)n * sizeof(float)));
        for (int64_t e = 0; e < n; e++)
            wide[i][e] = ctw_load_float(p->in[i].p, p->op.dtype, e);
    }
    const size_t bytes = (size_t)(p->q_rows * p->row) * sizeof(double);
    assert_non_null(p->want = malloc(bytes));
    assert_non_null(p->bound = malloc(bytes));
    memset(p->want, 0xFF, bytes);
    for (int64_t s = 0; s < p->op.n_seqs; s++) {
        d.seq = &p->seqs[s];
        int64_t n = 0;
        for (int r = 0; r < d.seq->n_runs; r++)
            for (int64_t j = 0; j < d.seq->runs[r].n_tok; j++)
                d.row[n++] = d.seq->runs[r].row + j;
        ctw_threads_for(threads, d.seq->n_q, define_query, &d);
    }
    for (int i = 0; i < 3; i++)
        free(wide[i]);
    ctw_threads_close(threads);
}
