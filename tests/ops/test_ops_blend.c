/* ctw_blend() in every place: against its definition in long double, and rows by themselves. */
#include "kernels/blend.h"
#include "places.h"

enum { ROWS = 9, DIM = 75, PARTS = 5, LDX = PARTS * DIM + 3, LDY = DIM + 2 };

static long double weight(const struct buf *a, const struct buf *b, int i)
{
    return ctw_load_float(a->p, CTW_BF16, i) * (b != NULL ? ctw_load_float(b->p, CTW_F32, i) : 1);
}

static void want_row(const float *x, int n_parts, const struct buf *a, const struct buf *b,
                     double *want)
{
    long double score[PARTS], total = 0;
    for (int s = 0; s < n_parts; s++) {
        long double dot = 0, squares = 0;
        for (int i = 0; i < DIM; i++) {
            dot += weight(a, b, i) * x[s * DIM + i];
            squares += (long double)x[s * DIM + i] * x[s * DIM + i];
        }
        score[s] = expl(dot / sqrtl(squares / DIM + 0.5L));
        total += score[s];
    }
    for (int i = 0; i < DIM; i++) {
        long double sum = 0;
        for (int s = 0; s < n_parts; s++)
            sum += score[s] / total * x[s * DIM + i];
        want[i] = (double)sum;
    }
}

/* Rows 7, 0, 4 of nine, and all; other rows stay. */
static void blends_are_as_defined(void **state)
{
    (void)state;
    static const int64_t rows[] = {7, 0, 4};
    static float y[ROWS * LDY];
    struct buf x = buf_random(CTW_F32, ROWS * LDX, 1, 0), a = buf_random(CTW_BF16, DIM, 1, 0);
    struct buf b = buf_random(CTW_F32, DIM, 1, 0);
    struct ctw_backend *be;
    for (int place = 0; (be = open_place(place, 2)) != NULL; place++) {
        for (int n_parts = 1; n_parts <= PARTS; n_parts += 2) {
            for (int64_t i = 0; i < ROWS * LDY; i++)
                y[i] = 9;
            struct dev d[] = {dev_open(be, x.p, x.bytes, 0), dev_open(be, a.p, a.bytes, 0),
                              dev_open(be, b.p, b.bytes, 0), dev_open(be, rows, sizeof(rows), 0),
                              dev_open(be, y, sizeof(y), 0)};
            struct ctw_op_blend op = {.n_tok = CTW_COUNT(rows),
                                      .dim = DIM,
                                      .n_parts = n_parts,
                                      .x = (const float *)(const void *)d[0].p,
                                      .ldx = LDX,
                                      .rows = (const int64_t *)(const void *)d[3].p,
                                      .a = d[1].p,
                                      .b = d[2].p,
                                      .a_dtype = CTW_BF16,
                                      .b_dtype = CTW_F32,
                                      .eps = 0.5f,
                                      .y = (float *)(void *)d[4].p,
                                      .ldy = LDY};
            OK(ctw_blend(be, &op, &last_err));
            dev_read(&d[4], y);
            for (int64_t r = 0; r < ROWS; r++) {
                double want[DIM];
                bool listed = r == 7 || r == 0 || r == 4;
                want_row((const float *)x.p + r * LDX, n_parts, &a, &b, want);
                for (int i = 0; i < LDY; i++)
                    near(y[r * LDY + i], listed && i < DIM ? want[i] : 9, 2e-6, "blend", r);
            }
            static float all[ROWS * LDY];
            op.rows = NULL;
            op.n_tok = ROWS;
            OK(ctw_blend(be, &op, &last_err));
            dev_read(&d[4], all);
            for (size_t i = 0; i < CTW_COUNT(rows); i++) /* the other rows change no bit */
                assert_memory_equal(all + rows[i] * LDY, y + rows[i] * LDY, DIM * sizeof(float));
            op.b = NULL; /* one vector of weights */
            OK(ctw_blend(be, &op, &last_err));
            dev_read(&d[4], all);
            for (int64_t r = 0; r < ROWS; r++) {
                double want[DIM];
                want_row((const float *)x.p + r * LDX, n_parts, &a, NULL, want);
                for (int i = 0; i < DIM; i++)
                    near(all[r * LDY + i], want[i], 2e-6, "blend of one vector", r);
            }
            for (size_t i = 0; i < CTW_COUNT(d); i++)
                dev_close(&d[i]);
        }
        ctw_backend_close(be);
    }
    buf_close(&x);
    buf_close(&a);
    buf_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blends_are_as_defined),
    };
    return cmocka_run_group_tests(tests, ops_setup, NULL);
}
