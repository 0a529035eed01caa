/* ctw_ngram_gate() in every place: against its definition in long double, and rows by themselves.
 */
#include "kernels/ngram_gate.h"
#include "places.h"

enum { ROWS = 5, STREAMS = 3, DIM = 300, WIDTH = STREAMS * DIM, LD = WIDTH + DIM };

struct problem {
    struct ctw_op_ngram_gate op;
    struct buf x, kv, key_norm, x_norm;
    struct dev d[6];
};

static struct problem problem_open(struct ctw_backend *be, enum ctw_dtype dtype)
{
    static const int16_t bad[ROWS] = {-1, -1, 2, -1, -1};
    struct problem p = {.x = buf_random(CTW_F32, ROWS * WIDTH, 3, 0),
                        .kv = buf_random(dtype, ROWS * LD, 1, 0),
                        .key_norm = buf_random(CTW_BF16, WIDTH, 1, 0),
                        .x_norm = buf_random(CTW_F32, WIDTH, 1, 0)};
    struct buf y = buf_open((size_t)(ROWS * WIDTH) * ctw_dtype_bytes(dtype), 0);
    for (int i = 0; i < DIM; i++) /* row 1: a gate of 0 */
        ctw_store_float(p.kv.p, dtype, LD + i, 0);
    ((float *)p.x.p)[2 * WIDTH] = ((float *)p.x.p)[3 * WIDTH + DIM] = INFINITY;
    p.d[0] = dev_of(be, &p.x);
    p.d[1] = dev_of(be, &p.kv);
    p.d[2] = dev_of(be, &p.key_norm);
    p.d[3] = dev_of(be, &p.x_norm);
    p.d[4] = dev_of(be, &y);
    p.d[5] = dev_open(be, bad, sizeof(bad), 0);
    buf_close(&y);
    p.op = (struct ctw_op_ngram_gate){.dtype = dtype,
                                      .n_tok = ROWS,
                                      .dim = DIM,
                                      .n = STREAMS,
                                      .x = (const float *)(void *)p.d[0].p,
                                      .key = p.d[1].p,
                                      .value = element(p.d[1].p, dtype, WIDTH),
                                      .ld = LD,
                                      .key_norm = {p.d[2].p, CTW_BF16},
                                      .x_norm = {p.d[3].p, CTW_F32},
                                      .offset = 1,
                                      .eps = 1e-3f,
                                      .y = p.d[4].p,
                                      .bad = (int16_t *)(void *)p.d[5].p,
                                      .stamp = 7};
    return p;
}

static void problem_close(struct problem *p)
{
    for (size_t i = 0; i < CTW_COUNT(p->d); i++)
        dev_close(&p->d[i]);
    buf_close(&p->x);
    buf_close(&p->kv);
    buf_close(&p->key_norm);
    buf_close(&p->x_norm);
}

static long double gate_of(const struct problem *p, int64_t row, int s)
{
    long double xx = 0, kk = 0, dot = 0;
    for (int64_t i = s * DIM; i < (s + 1) * DIM; i++) {
        const long double x = ctw_load_float(p->x.p, CTW_F32, row * WIDTH + i);
        const long double k = ctw_load_float(p->kv.p, p->op.dtype, row * LD + i);
        xx += x * x;
        kk += k * k;
        dot += x * (1 + (long double)ctw_load_float(p->x_norm.p, CTW_F32, i)) * k *
               (1 + (long double)ctw_load_float(p->key_norm.p, CTW_BF16, i));
    }
    const long double eps = p->op.eps;
    const long double g = dot / sqrtl(xx / DIM + eps) / sqrtl(kk / DIM + eps) / sqrtl(DIM);
    const long double size = sqrtl(fabsl(g) > 1e-6L ? fabsl(g) : 1e-6L);
    return 1 / (1 + expl(g > 0 ? -size : g < 0 ? size : 0));
}

static void values_are_gated_for_each_stream(void **state)
{
    (void)state;
    static const enum ctw_dtype dtypes[] = {CTW_F32, CTW_BF16, CTW_F16};
    struct ctw_backend *be;
    for (int place = 0; (be = open_place(place, 2)) != NULL; place++) {
        for (size_t i = 0; i < CTW_COUNT(dtypes); i++) {
            struct problem p = problem_open(be, dtypes[i]);
            struct buf y = buf_open(p.d[4].bytes, 0), alone = buf_open(p.d[4].bytes, 0);
            int16_t bad[ROWS];
            OK(ctw_ngram_gate(be, &p.op, &last_err));
            dev_read(&p.d[4], y.p);
            dev_read(&p.d[5], bad);
            for (int64_t row = 0; row < ROWS; row++) {
                assert_int_equal(bad[row], row == 2 ? 2 : row == 3 ? 7 : -1);
                for (int s = 0; s < STREAMS && row != 2 && row != 3; s++)
                    for (int64_t j = 0; j < DIM; j++) {
                        const double want =
                            (double)(gate_of(&p, row, s) *
                                     ctw_load_float(p.kv.p, dtypes[i], row * LD + WIDTH + j));
                        near(ctw_load_float(y.p, dtypes[i], row * WIDTH + s * DIM + j), want,
                             2e-6 + half_step(dtypes[i], want), "gate", row);
                    }
            }
            struct ctw_op_ngram_gate one = p.op; /* the last row, by itself */
            one.n_tok = 1;
            one.bad = NULL;
            one.x += (ROWS - 1) * WIDTH;
            one.key = element(p.d[1].p, dtypes[i], (ROWS - 1) * LD);
            one.value = element(p.d[1].p, dtypes[i], (ROWS - 1) * LD + WIDTH);
            OK(ctw_ngram_gate(be, &one, &last_err));
            dev_read(&p.d[4], alone.p);
            const size_t bytes = WIDTH * ctw_dtype_bytes(dtypes[i]);
            assert_memory_equal(alone.p, (char *)y.p + (ROWS - 1) * bytes, bytes);
            buf_close(&y);
            buf_close(&alone);
            problem_close(&p);
        }
        ctw_backend_close(be);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_gated_for_each_stream),
    };
    return cmocka_run_group_tests(tests, ops_setup, NULL);
}
