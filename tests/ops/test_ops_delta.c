/* ctw_delta() against its definition in double, whole and cut into calls, in every place. */
#include "kernels/delta.h"
#include "places.h"

enum { DELTA_MAX_SEQS = 150, DELTA_ARRAYS = 6, DELTA_CHUNK_KEY = 128 };

/* Of a chunk on tensor cores, whose operands are sums of two bf16: 16 times the error of one. */
#define DELTA_CHUNK_ERROR 0x1p-14

struct delta_shape {
    int n_key, n_value, key, value;
    int64_t n_seqs, longest; /* sequences of 1 .. longest tokens, the first of longest */
    bool by_head;            /* b and a in turn for each key head */
    double decays;           /* a_log is near ln of this */
    bool by_channel, twice;
    float least_log;
    bool tiled, as_rates; /* as GGUF files have them */
};

struct delta_problem {
    struct ctw_backend *be;
    struct ctw_op_delta op; /* of all rows */
    struct ctw_seq_part seqs[DELTA_MAX_SEQS];
    struct buf x, ba, a_log, dt_bias;
    bool by_chunks;             /* on tensor cores, see kernels/cuda/recurrent/delta_chunks.cu */
    void *device[DELTA_ARRAYS]; /* x, ba, a_log, dt_bias, y, states */
    int64_t b_at, a_at;
};

static int64_t delta_sequences(struct delta_problem *p, const struct delta_shape *s)
{
    int64_t n_tok = 0;
    for (int64_t i = 0; i < s->n_seqs; i++) {
        int64_t n = i == 0 ? s->longest : 1 + rng_below(s->longest);
        p->seqs[i] = (struct ctw_seq_part){.q_row = n_tok, .n_q = n, .before = -1, .after = -1};
        n_tok += n;
    }
    return n_tok;
}

static struct delta_problem delta_open(struct ctw_backend *be, enum ctw_dtype dtype,
                                       const struct delta_shape *s)
{
    struct delta_problem p = {.be = be};
    const int64_t n_tok = delta_sequences(&p, s), gap = rng_below(2) == 0 ? 0 : 3;
    const int64_t values = (int64_t)s->n_value * s->value;
    const int64_t ldx = 2 * (int64_t)s->n_key * s->key + values + gap, ldy = values + gap;
    const int64_t n_a = (int64_t)s->n_value * (s->by_channel ? s->key : 1);
    const int64_t ldba = s->n_value + n_a + gap, r = s->n_value / s->n_key;
    const size_t es = ctw_dtype_bytes(dtype);
    const size_t state = ctw_delta_bytes(s->n_key, s->n_value, s->key, s->value, dtype);
    p.x = buf_random(dtype, n_tok * ldx, 1, 0);
    p.ba = buf_random(dtype, n_tok * ldba, 2, 0);
    p.a_log = buf_random(CTW_F32, s->n_value, 1, 0);
    p.dt_bias = buf_random(dtype, n_a, 1, 0);
    for (int i = 0; i < s->n_value; i++)
        ((float *)p.a_log.p)[i] += (float)log(s->decays);
    for (int i = 0; i < s->n_value && s->as_rates; i++)
        ((float *)p.a_log.p)[i] = expf(((float *)p.a_log.p)[i]) * (i % 2 == 0 ? -1.0f : 1.0f);
    const struct buf *from[] = {&p.x, &p.ba, &p.a_log, &p.dt_bias};
    const size_t bytes[] = {(size_t)(n_tok * ldx) * es, (size_t)(n_tok * ldba) * es,
                            (size_t)s->n_value * sizeof(float), (size_t)n_a * es};
    for (int i = 0; i < 4; i++)
        p.device[i] = upload(be, from[i]->p, bytes[i]);
    p.device[4] = upload(be, NULL, (size_t)(n_tok * ldy) * es);
    p.device[5] = upload(be, NULL, CUT_STATES * state);
    p.a_at = s->by_head ? r : s->n_value;
    p.op = (struct ctw_op_delta){.dtype = dtype,
                                 .n_tok = n_tok,
                                 .n_key = s->n_key,
                                 .n_value = s->n_value,
                                 .key = s->key,
                                 .value = s->value,
                                 .x = p.device[0],
                                 .ldx = ldx,
                                 .b = p.device[1],
                                 .a = (char *)p.device[1] + (size_t)p.a_at * es,
                                 .ldba = ldba,
                                 .ba_step = s->by_head ? 2 * r : r,
                                 .by_channel = s->by_channel,
                                 .twice = s->twice,
                                 .least_log = s->least_log,
                                 .a_log = p.device[2],
                                 .as_rates = s->as_rates,
                                 .tiled = s->tiled,
                                 .dt_bias = p.device[3],
                                 .a_log_dtype = CTW_F32,
                                 .dt_bias_dtype = dtype,
                                 .n_parts = s->n_seqs,
                                 .states = {p.device[5], state},
                                 .y = p.device[4],
                                 .ldy = ldy};
    return p;
}

static void delta_close(struct delta_problem *p)
{
    struct buf *all[] = {&p->x, &p->ba, &p->a_log, &p->dt_bias};
    for (size_t i = 0; i < CTW_COUNT(all); i++)
        buf_close(all[i]);
    for (int i = 0; i < DELTA_ARRAYS; i++)
        ctw_device_free(p->be, p->device[i]);
}

/* y, after the calls of a cut. */
static struct buf delta_run(struct delta_problem *p, int64_t most)
{
    const size_t es = ctw_dtype_bytes(p->op.dtype);
    const size_t bytes = (size_t)(p->op.n_tok * p->op.ldy) * es;
    struct buf y = buf_open(bytes, 0);
    struct ctw_seq_part parts[DELTA_MAX_SEQS];
    struct cut cut = {.seqs = p->seqs, .n_seqs = p->op.n_parts, .most = most};
    for (struct cut_call call = {.parts = parts}; cut_next(&cut, &call);) {
        struct ctw_op_delta op = p->op;
        op.n_tok = call.n_tok;
        op.parts = parts;
        op.n_parts = call.n_parts;
        op.x = (const char *)p->op.x + (size_t)(call.row0 * op.ldx) * es;
        op.b = (const char *)p->op.b + (size_t)(call.row0 * op.ldba) * es;
        op.a = (const char *)p->op.a + (size_t)(call.row0 * op.ldba) * es;
        op.y = (char *)p->op.y + (size_t)(call.row0 * op.ldy) * es;
        OK(ctw_delta(p->be, &op, &last_err));
    }
    OK(ctw_device_download(p->be, y.p, p->op.y, bytes, &last_err));
    return y;
}

struct delta_head {
    double S[CTW_MAX_DELTA_HEAD][CTW_MAX_DELTA_HEAD]; /* [value][key] */
    double q[CTW_MAX_DELTA_HEAD], k[CTW_MAX_DELTA_HEAD], decay[CTW_MAX_DELTA_HEAD];
    double largest; /* length of a column so far */
};

static void delta_unit(const struct delta_problem *p, int64_t at, double factor, double *out)
{
    double sum = 0;
    for (int i = 0; i < p->op.key; i++) {
        out[i] = ctw_load_float(p->x.p, p->op.dtype, at + i);
        sum += out[i] * out[i];
    }
    for (int i = 0; i < p->op.key; i++)
        out[i] *= factor / sqrt(sum + 1e-6);
}

/* The decay of each row of S. */
static void delta_decay(const struct delta_problem *p, struct delta_head *h, int head, int64_t row)
{
    const struct ctw_op_delta *op = &p->op;
    for (int i = 0; i < op->key; i++) {
        const int64_t own = (int64_t)head * op->key + i;
        const int64_t col = op->by_channel ? own : ctw_delta_column(op, head);
        double a = ctw_load_float(p->ba.p, op->dtype, row * op->ldba + p->a_at + col) +
                   ctw_load_float(p->dt_bias.p, op->dtype, op->by_channel ? own : head);
        double a_log = ((float *)p->a_log.p)[head], rate = op->as_rates ? fabs(a_log) : exp(a_log);
        h->decay[i] =
            exp(op->least_log < 0 ? op->least_log / (1 + exp(-rate * a)) : -rate * log1p(exp(a)));
    }
}

/*
 * One token of a head: S in double, and each of y's elements near S^T q. In fp32 a token adds an
 * error of at most (key + 20) u times the length of S's column to each of the products k S and
 * q S, and so to S; the rule makes no error in S larger.
 */
static void delta_token(const struct delta_problem *p, struct delta_head *h, int head, int64_t row,
                        int64_t pos, const struct buf *y)
{
    const struct ctw_op_delta *op = &p->op;
    const int64_t keys = (int64_t)op->n_key * op->key, ba = row * op->ldba;
    const int key_head = op->tiled ? head % op->n_key : head / (op->n_value / op->n_key);
    const int64_t from = row * op->ldx + (int64_t)key_head * op->key;
    const int64_t col = ctw_delta_column(op, head), v0 = row * op->ldx + 2 * keys;
    delta_unit(p, from, 1 / sqrt(op->key), h->q);
    delta_unit(p, from + keys, 1, h->k);
    double b = ctw_load_float(p->ba.p, op->dtype, ba + col),
           beta = (op->twice ? 2 : 1) / (1 + exp(-b));
    delta_decay(p, h, head, row);
    for (int c = 0; c < op->value; c++) {
        double read = 0, out = 0, length = 0, *S = h->S[c];
        for (int i = 0; i < op->key; i++)
            read += h->k[i] * h->decay[i] * S[i];
        double v = ctw_load_float(p->x.p, op->dtype, v0 + (int64_t)head * op->value + c);
        double d = beta * (v - read);
        for (int i = 0; i < op->key; i++) {
            S[i] = h->decay[i] * S[i] + h->k[i] * d;
            out += h->q[i] * S[i];
            length += S[i] * S[i];
        }
        h->largest = fmax(h->largest, fmax(sqrt(length), fabs(v)));
        double got = ctw_load_float(y->p, op->dtype, row * op->ldy + (int64_t)head * op->value + c);
        double error = (double)(pos + 2) * (op->key + 20) * 0x1p-24 * h->largest / sqrt(op->key);
        if (p->by_chunks)
            error += (double)(pos / CTW_DELTA_CHUNK + 1) * DELTA_CHUNK_ERROR * h->largest /
                     sqrt(op->key);
        near(got, out, error + half_step(op->dtype, out), "delta", row);
    }
}

static void delta_check(const struct delta_problem *p, const struct buf *y)
{
    struct delta_head *h = malloc(sizeof(*h));
    assert_non_null(h);
    for (int64_t i = 0; i < p->op.n_parts; i++)
        for (int head = 0; head < p->op.n_value; head++) {
            memset(h, 0, sizeof(*h));
            for (int64_t t = 0; t < p->seqs[i].n_q; t++)
                delta_token(p, h, head, p->seqs[i].q_row + t, t, y);
        }
    free(h);
}

/* The elements of y's rows that the operation writes. */
static void delta_same(const struct delta_problem *p, const struct buf *a, const struct buf *b)
{
    const size_t es = ctw_dtype_bytes(p->op.dtype);
    for (int64_t row = 0; row < p->op.n_tok; row++)
        assert_memory_equal((char *)a->p + (size_t)(row * p->op.ldy) * es,
                            (char *)b->p + (size_t)(row * p->op.ldy) * es,
                            (size_t)p->op.n_value * (size_t)p->op.value * es);
}

static const struct delta_shape delta_shapes[] = {
    {1, 1, 1, 1, 3, 5, false, .decays = 0.1},
    {2, 4, 16, 32, 5, 70, false, .decays = 0.3, .tiled = true, .as_rates = true},
    {2, 6, 20, 33, 4, 40, true, .decays = 0.3},
    {3, 3, 32, 16, 100, 3, false, .decays = 1},
    {1, 3, 128, 128, 2, 200, true, .decays = 0.02, .as_rates = true},
    {2, 2, 96, 72, 3, 65, false, .decays = 20},
    {1, 2, 160, 40, 2, 33, true, .decays = 1},
    {1, 1, 256, 256, 1, 20, false, .decays = 0.1},
    {4, 8, 64, 128, 140, 2, false, .decays = 0.1, .tiled = true},
    {2, 4, 24, 48, 3, 90, false, .decays = 0.3, .twice = true, .tiled = true},
    {2, 2, 40, 24, 2, 50, false, .decays = 0.5, .least_log = -5, .as_rates = true},
    {1, 2, 64, 40, 2, 130, false, .decays = 0.05, .twice = true},
    {2, 2, 16, 16, 5, 70, false, .decays = 0.3, .by_channel = true},
    {3, 3, 33, 70, 70, 4, false, .decays = 1, .by_channel = true, .twice = true},
    {1, 1, 128, 128, 2, 200, false, .decays = 0.05, .by_channel = true},
    {2, 2, 100, 72, 3, 65, false, .decays = 20, .by_channel = true, .as_rates = true},
    {2, 2, 64, 40, 2, 70, false, .decays = 1, .by_channel = true, .least_log = -5},
    /* more chunks than multiprocessors, which share heads then */
    {8, 24, 16, 16, 16, 150, false, .decays = 0.1},
};

/*
 * chunks: 16-bit dtypes are computed by chunks, if keys are not too long. With a sanitizer, a place
 * has one dtype a shape, which takes turns with places.
 */
static void delta_agrees(struct ctw_backend *be, size_t place, bool chunks)
{
    static const int64_t cuts[] = {CUT_IN_TWO, 1, 7, 31, 63, 64, 65};
    static const enum ctw_dtype kinds[] = {CTW_F32, CTW_BF16, CTW_F16};
    for (size_t i = 0; i < CTW_COUNT(delta_shapes) * CTW_COUNT(kinds); i++) {
        if (SPARSE > 1 && (i / CTW_COUNT(kinds) + i + place) % CTW_COUNT(kinds) != 0)
            continue;
        struct delta_problem p =
            delta_open(be, kinds[i % CTW_COUNT(kinds)], &delta_shapes[i / CTW_COUNT(kinds)]);
        p.by_chunks =
            chunks && p.op.dtype != CTW_F32 && p.op.key <= DELTA_CHUNK_KEY && !p.op.by_channel;
        struct buf whole = delta_run(&p, p.op.n_tok);
        delta_check(&p, &whole);
        for (size_t c = 0; c < CTW_COUNT(cuts); c++) {
            if (SPARSE > 1 && (c + i) % 3 != 0)
                continue;
            struct buf cut = delta_run(&p, cuts[c]);
            delta_same(&p, &whole, &cut);
            buf_close(&cut);
        }
        buf_close(&whole);
        delta_close(&p);
    }
}

static void results_agree_however_sequences_are_cut(void **state)
{
    (void)state;
    struct ctw_backend *be;
    for (int i = 0; (be = open_place(i, 1 + i % 3)) != NULL; i++) {
        delta_agrees(be, (size_t)i, CTW_ON_GPU && strcmp(variants[i], "hopper") == 0);
        ctw_backend_close(be);
    }
}

/*
 * A beta or a decay of one head that is not a number: what comes before and other sequences keep
 * their bits (by chunks: but for up to 15 tokens before); from there on, none of the head's y is
 * a number.
 */
static void delta_spoils_what_follows(struct ctw_backend *be, const struct delta_shape *shape,
                                      bool of_decay, int64_t before)
{
    struct delta_problem p = delta_open(be, CTW_BF16, shape);
    struct buf good = delta_run(&p, p.op.n_tok);
    const int64_t n = p.seqs[0].n_q, row = n / 2, width = p.op.n_value * (int64_t)p.op.value;
    ctw_store_float(p.ba.p, CTW_BF16, row * p.op.ldba + (of_decay ? p.a_at : p.b_at), NAN);
    OK(ctw_device_upload(be, p.device[1], p.ba.p, (size_t)(p.op.n_tok * p.op.ldba) * 2, &last_err));
    struct buf y = delta_run(&p, p.op.n_tok);
    for (int64_t r = 0; r < p.op.n_tok; r++) {
        const uint16_t *of = (uint16_t *)y.p + r * p.op.ldy;
        if (r < row - before || r >= n)
            assert_memory_equal((uint16_t *)good.p + r * p.op.ldy, of, (size_t)width * 2);
        for (int64_t i = 0; i < p.op.value && r >= row && r < n; i++)
            assert_true(isnan(ctw_load_float(of, CTW_BF16, i)));
    }
    buf_close(&good);
    buf_close(&y);
    delta_close(&p);
}

static void nan_is_never_hidden(void **state)
{
    (void)state;
    static const struct delta_shape shapes[] = {
        {2, 2, 40, 24, 2, 50, false, .decays = 0.5, .least_log = -5},
        {2, 2, 16, 16, 2, 70, false, .decays = 0.3, .twice = true},
        {2, 2, 64, 40, 2, 70, false, .decays = 1, .by_channel = true, .least_log = -5},
        {2, 2, 100, 72, 2, 65, false, .decays = 0.3, .by_channel = true},
    };
    struct ctw_backend *be;
    for (int i = 0; (be = open_place(i, 1 + i % 3)) != NULL; i++) {
        const bool chunks = CTW_ON_GPU && strcmp(variants[i], "hopper") == 0;
        for (size_t k = 0; k < 2 * CTW_COUNT(shapes); k++)
            delta_spoils_what_follows(be, &shapes[k / 2], k % 2 == 1,
                                      chunks && !shapes[k / 2].by_channel ? 15 : 0);
        ctw_backend_close(be);
    }
}

static void shapes_out_of_range_are_refused(void **state)
{
    (void)state;
    struct ctw_backend *be = open_place(0, 1);
    struct delta_problem p = delta_open(be, CTW_F32, &delta_shapes[1]);
    struct ctw_op_delta op = p.op;
    op.parts = p.seqs;
    op.n_value = 3; /* no multiple of the key heads */
    assert_int_equal(ctw_delta(be, &op, &last_err), CTW_EINTERNAL);
    op.n_value = p.op.n_value;
    op.key = CTW_MAX_DELTA_HEAD + 1;
    assert_int_equal(ctw_delta(be, &op, &last_err), CTW_EINTERNAL);
    op.key = p.op.key;
    op.by_channel = true; /* with more value heads than key heads */
    assert_int_equal(ctw_delta(be, &op, &last_err), CTW_EINTERNAL);
    op.by_channel = false;
    op.least_log = 1;
    assert_int_equal(ctw_delta(be, &op, &last_err), CTW_EINTERNAL);
    op.least_log = 0;
    p.seqs[0].pos0 = 1; /* without what it left */
    assert_int_equal(ctw_delta(be, &op, &last_err), CTW_EINTERNAL);
    delta_close(&p);
    ctw_backend_close(be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(results_agree_however_sequences_are_cut),
        cmocka_unit_test(nan_is_never_hidden),
        cmocka_unit_test(shapes_out_of_range_are_refused),
    };
    return cmocka_run_group_tests(tests, ops_setup, NULL);
}
