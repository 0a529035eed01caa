/* ctw_latent() and ctw_gate() in every place, against what they mean, element by element; each row
 * by itself. CPU variants compute both by the same code. */
#include "places.h"

static const enum ctw_dtype kinds[] = {CTW_F32, CTW_BF16, CTW_F16};

/* Of the CPU's places the first. */
static struct ctw_backend *next_place(int place)
{
    return CTW_ON_GPU || place == 0 ? open_place(place, 2) : NULL;
}

enum { N_TOK = 19, MAX_POS = 40, LD_MORE = 5 };

struct problem {
    struct ctw_op_latent op;
    struct buf q, kv, turned, cos_sin, factor, k, v;
    int32_t positions[N_TOK];
};

static struct problem problem_open(enum ctw_dtype dtype, int n_head, int own, int turning,
                                   int head_v)
{
    struct problem p = {
        .op = {.dtype = dtype,
               .n_tok = N_TOK,
               .n_head = n_head,
               .own = own,
               .turning = turning,
               .head_v = head_v,
               .ld_turned = turning + LD_MORE,
               .pairing = rng_below(2) == 0 ? CTW_ROPE_HALVES : CTW_ROPE_INTERLEAVED}};
    int64_t head = own + turning, row = n_head;
    p.q = buf_random(dtype, N_TOK * row * head, 1, 0);
    p.kv = buf_random(dtype, N_TOK * row * (own + head_v), 1, 0);
    p.turned = buf_random(dtype, N_TOK * p.op.ld_turned, 1, 0);
    p.cos_sin = buf_random(CTW_F32, (MAX_POS + 1) * turning, 1, 0);
    p.factor = buf_random(CTW_F32, MAX_POS + 1, 1, 0);
    p.k = buf_random(dtype, N_TOK * row * head, 1, 0);
    p.v = buf_random(dtype, N_TOK * row * head_v, 1, 0);
    for (int i = 0; i < N_TOK; i++)
        p.positions[i] = (int32_t)rng_below(MAX_POS + 1);
    p.op.kv = p.kv.p;
    p.op.k_turned = p.turned.p;
    p.op.k = p.k.p;
    p.op.v = p.v.p;
    return p;
}

static void problem_close(struct problem *p)
{
    struct buf *all[] = {&p->q, &p->kv, &p->turned, &p->cos_sin, &p->factor, &p->k, &p->v};
    for (size_t i = 0; i < CTW_COUNT(all); i++)
        buf_close(all[i]);
}

/* Element i of the turning part that begins at `from`, turned. */
static double turned(const struct problem *p, int64_t t, const void *x, int64_t from, int i)
{
    const struct ctw_op_latent *op = &p->op;
    int half = op->turning / 2, pair = op->pairing == CTW_ROPE_HALVES ? i % half : i / 2;
    bool first = op->pairing == CTW_ROPE_HALVES ? i < half : i % 2 == 0;
    int other = op->pairing == CTW_ROPE_HALVES ? (i + half) % op->turning : i ^ 1;
    double a = ctw_load_float(x, op->dtype, from + i);
    double b = ctw_load_float(x, op->dtype, from + other);
    if (op->cos_sin == NULL)
        return a;
    const float *row = op->cos_sin + (int64_t)p->positions[t] * op->turning;
    return first ? a * row[pair] - b * row[half + pair] : a * row[pair] + b * row[half + pair];
}

/* Head h of token t after the operation. */
static void check_head(const struct problem *p, const struct buf *before, int64_t t, int64_t h)
{
    const struct ctw_op_latent *op = &p->op;
    int64_t at = t * op->n_head + h, head = op->own + op->turning;
    double factor = op->q_factor != NULL ? op->q_factor[p->positions[t]] : 1;
    for (int i = 0; i < head; i++) {
        int64_t from = at * (op->own + op->head_v) + i, turning = at * head + op->own;
        double q = i < op->own ? ctw_load_float(before->p, op->dtype, at * head + i)
                               : turned(p, t, before->p, turning, i - op->own);
        double k = i < op->own ? ctw_load_float(p->kv.p, op->dtype, from)
                               : turned(p, t, p->turned.p, t * op->ld_turned, i - op->own);
        double slack = 1e-6 * (fabs(q * factor) + 1);
        near(ctw_load_float(op->q, op->dtype, at * head + i), q * factor,
             slack + half_step(op->dtype, q * factor), "latent: q", at * head + i);
        near(ctw_load_float(op->k, op->dtype, at * head + i), k, 1e-6 + half_step(op->dtype, k),
             "latent: k", at * head + i);
    }
    for (int i = 0; i < op->head_v; i++)
        assert_memory_equal(element(op->v, op->dtype, at * op->head_v + i),
                            element(p->kv.p, op->dtype, at * (op->own + op->head_v) + op->own + i),
                            ctw_dtype_bytes(op->dtype));
}

/* The operation, on copies of the operands in a backend's memory. */
static void run(struct problem *p, struct ctw_backend *be)
{
    struct ctw_op_latent op = p->op;
    struct buf *of[] = {&p->q, &p->k, &p->v, &p->kv, &p->turned, &p->cos_sin, &p->factor};
    struct dev d[CTW_COUNT(of) + 1];
    for (size_t i = 0; i < CTW_COUNT(of); i++)
        d[i] = dev_of(be, of[i]);
    d[CTW_COUNT(of)] = dev_open(be, p->positions, sizeof(p->positions), 0);
    op.q = d[0].p;
    op.k = d[1].p;
    op.v = d[2].p;
    op.kv = d[3].p;
    op.k_turned = d[4].p;
    op.cos_sin = op.cos_sin != NULL ? (const float *)(const void *)d[5].p : NULL;
    op.q_factor = op.q_factor != NULL ? (const float *)(const void *)d[6].p : NULL;
    op.positions = (const int32_t *)(const void *)d[7].p;
    OK(ctw_latent(be, &op, &last_err));
    dev_read(&d[0], p->op.q);
    dev_read(&d[1], p->op.k);
    dev_read(&d[2], p->op.v);
    for (size_t i = 0; i < CTW_COUNT(d); i++)
        dev_close(&d[i]);
}

static void heads_are_what_they_mean(void **state)
{
    (void)state;
    static const int sizes[][4] = {{1, 8, 2, 8}, {3, 16, 8, 24}, {5, 24, 10, 7}, {4, 128, 64, 128}};
    struct ctw_backend *be;
    for (int place = 0; (be = next_place(place)) != NULL; place++) {
        for (size_t i = 0; i < 12 * CTW_COUNT(sizes); i++) {
            const int *size = sizes[i / 12];
            struct problem p = problem_open(kinds[i % 3], size[0], size[1], size[2], size[3]);
            struct buf q = buf_copy(&p.q, 0);
            p.op.q = q.p;
            p.op.cos_sin = i % 2 == 0 ? p.cos_sin.p : NULL;
            p.op.q_factor = i % 12 >= 6 ? p.factor.p : NULL;
            run(&p, be);
            for (int64_t t = 0; t < N_TOK; t++)
                for (int64_t h = 0; h < p.op.n_head; h++)
                    check_head(&p, &p.q, t, h);
            buf_close(&q);
            problem_close(&p);
        }
        ctw_backend_close(be);
    }
}

static void check_gate(struct ctw_backend *be, int i)
{
    int64_t groups = 1 + rng_below(9), size = i % 4 == 0 ? 1 : 1 + rng_below(70);
    int64_t ldx = groups + rng_below(3), ldy = groups * size + rng_below(3);
    enum ctw_dtype dtype = kinds[i % 3];
    struct buf x = buf_random(dtype, N_TOK * ldx, 8, 0);
    struct buf y = buf_random(dtype, N_TOK * ldy, 1, 0), got = buf_copy(&y, 0);
    struct dev dx = dev_of(be, &x), dy = dev_of(be, &y);
    const struct ctw_op_gate op = {.kind = i % 2 == 0 ? CTW_GATE_SIGMOID : CTW_GATE_SOFTPLUS,
                                   .dtype = dtype,
                                   .n_tok = N_TOK,
                                   .n_groups = groups,
                                   .size = size,
                                   .x = dx.p,
                                   .ldx = ldx,
                                   .y = dy.p,
                                   .ldy = ldy};
    OK(ctw_gate(be, &op, &last_err));
    dev_read(&dy, got.p);
    for (int64_t at = 0; at < N_TOK * ldy; at++) {
        double old = ctw_load_float(y.p, dtype, at), want = old;
        double g = ctw_load_float(x.p, dtype, at / ldy * ldx + at % ldy / size);
        if (at % ldy < groups * size)
            want = old * (op.kind == CTW_GATE_SIGMOID ? 1 / (1 + exp(-g)) : log1p(exp(g)));
        near(ctw_load_float(got.p, dtype, at), want, 1e-6 * fabs(want) + half_step(dtype, want),
             "gate", at);
    }
    dev_close(&dx);
    dev_close(&dy);
    buf_close(&got);
    buf_close(&y);
    buf_close(&x);
}

static void gates_are_what_they_mean(void **state)
{
    (void)state;
    struct ctw_backend *be;
    for (int place = 0; (be = next_place(place)) != NULL; place++) {
        for (int i = 0; i < 18; i++)
            check_gate(be, i);
        ctw_backend_close(be);
    }
}

/* Softplus of numbers that are far from 0, and not a number. */
static void gates_at_their_limits(void **state)
{
    (void)state;
    static const float x[] = {-40, 40, NAN, -INFINITY, 1e30f};
    float y[] = {1, 1, 1, 1, 1};
    struct ctw_backend *be;
    for (int place = 0; (be = next_place(place)) != NULL; place++) {
        struct dev dx = dev_open(be, x, sizeof(x), 0), dy = dev_open(be, y, sizeof(y), 0);
        struct ctw_op_gate op = {.kind = CTW_GATE_SOFTPLUS,
                                 .dtype = CTW_F32,
                                 .n_tok = 1,
                                 .n_groups = CTW_COUNT(x),
                                 .size = 1,
                                 .x = dx.p,
                                 .ldx = CTW_COUNT(x),
                                 .y = dy.p,
                                 .ldy = CTW_COUNT(x)};
        float got[CTW_COUNT(y)];
        OK(ctw_gate(be, &op, &last_err));
        dev_read(&dy, got);
        near(got[0], exp(-40), 1e-6 * exp(-40), "softplus", 0);
        assert_true(got[1] == 40);
        assert_true(isnan(got[2]));
        assert_true(got[3] == 0);
        assert_true(got[4] == x[4]);
        op.kind = CTW_GATE_NONE;
        assert_int_equal(ctw_gate(be, &op, &last_err), CTW_EINTERNAL);
        dev_close(&dx);
        dev_close(&dy);
        ctw_backend_close(be);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(heads_are_what_they_mean),
        cmocka_unit_test(gates_are_what_they_mean),
        cmocka_unit_test(gates_at_their_limits),
    };
    return cmocka_run_group_tests(tests, ops_setup, NULL);
}
