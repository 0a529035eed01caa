/* The products of mixtures of experts, which gather, scatter and clamp, against the plain products
 * that test_ops_linear.c compares with the definition. */
#include "ops.h"

/* Sizes around the kernels' tiles. */
enum { ROWS = 61, K = 96, N = 70, LD = 101 };

static const enum ctw_dtype dtypes[] = {CTW_F32, CTW_BF16, CTW_F16};

static const char *variant_of(int v)
{
    const char *fast = fast_variant(v);
    return fast != NULL ? fast : fast_variant(v - 1) != NULL || v == 0 ? "c" : NULL;
}

/* ---- products ----------------------------------------------------------------------------- */

static enum weight_kind some_kind(void)
{
    return (enum weight_kind)rng_below(N_WEIGHT_KINDS);
}

static void run(struct ctw_backend *be, struct ctw_op_linear op, void *y)
{
    op.y = y;
    OK(ctw_linear(be, &op, &last_err));
}

/* Rows in any order, some twice, some never, are as rows that are copied together first. */
static void gathered(struct ctw_backend *be, enum ctw_dtype dtype, bool weighted)
{
    struct test_weight w;
    weight_open(&w, some_kind(), N, K, 1);
    struct buf x = buf_random(dtype, (int64_t)ROWS * LD, 1, 2), copy = buf_copy(&x, 0);
    struct buf y = buf_open(ROWS * N * 4, 0), z = buf_open(ROWS * N * 4, 0);
    int32_t rows[ROWS];
    float weight[ROWS];
    for (int t = 0; t < ROWS; t++) {
        rows[t] = (int32_t)rng_below(ROWS);
        weight[t] = rng_normal();
        for (int i = 0; i < K; i++) {
            float v = ctw_load_float(x.p, dtype, (int64_t)rows[t] * LD + i);
            ctw_store_float(copy.p, dtype, (int64_t)t * LD + i, weighted ? v * weight[t] : v);
        }
    }
    struct ctw_op_linear op = {.shards = &w.shard,
                               .n_shards = 1,
                               .dtype = dtype,
                               .n_tok = ROWS,
                               .x = copy.p,
                               .ldx = LD,
                               .ldy = N};
    run(be, op, z.p);
    op.x = x.p;
    op.x_rows = rows;
    op.x_weight = weighted ? weight : NULL;
    run(be, op, y.p);
    assert_memory_equal(y.p, z.p, (size_t)(ROWS * N) * ctw_dtype_bytes(dtype));
    weight_close(&w);
    buf_close(&x);
    buf_close(&copy);
    buf_close(&y);
    buf_close(&z);
}

/* What is scattered is the sum that a plain product adds, times its weight; other rows stay. */
static void scattered(struct ctw_backend *be, enum ctw_dtype dtype, bool weighted)
{
    enum { ALL = 2 * ROWS };
    struct test_weight w;
    weight_open(&w, some_kind(), N, K, 1);
    struct buf x = buf_random(dtype, (int64_t)ROWS * K, 1, 0),
               y = buf_random(CTW_F32, ALL * N, 1, 4);
    struct buf sums = buf_open(ROWS * N * 4, 0), old = buf_copy(&y, 0);
    int32_t rows[ROWS];
    float weight[ROWS];
    bool hit[ALL] = {false};
    for (int t = 0; t < ROWS; t++) {
        rows[t] = (int32_t)((7 * t + 3) % ALL);
        weight[t] = rng_normal();
        hit[rows[t]] = true;
    }
    struct ctw_op_linear op = {.shards = &w.shard,
                               .n_shards = 1,
                               .dtype = dtype,
                               .epilogue = CTW_EPI_ADD,
                               .residual_dtype = CTW_F32,
                               .n_tok = ROWS,
                               .x = x.p,
                               .ldx = K,
                               .ldy = N};
    memset(sums.p, 0, sums.bytes);
    run(be, op, sums.p);
    op.epilogue = CTW_EPI_SCATTER;
    op.y_rows = rows;
    op.y_weight = weighted ? weight : NULL;
    run(be, op, y.p);
    const float *got = y.p, *was = old.p, *sum = sums.p;
    for (int t = 0; t < ROWS; t++)
        for (int o = 0; o < N; o++) {
            int64_t at = (int64_t)rows[t] * N + o;
            float f = sum[t * N + o] * (weighted ? weight[t] : 1);
            near(got[at], (double)was[at] + f, 0x1p-22 * (fabsf(was[at]) + fabsf(f)), "scatter",
                 at);
        }
    for (int r = 0; r < ALL; r++)
        if (!hit[r])
            assert_memory_equal(got + (int64_t)r * N, was + (int64_t)r * N, N * sizeof(float));
    weight_close(&w);
    buf_close(&x);
    buf_close(&y);
    buf_close(&old);
    buf_close(&sums);
}

/* A gathered and a scattered product at once are as one after another; an activation as well. */
static void paired(struct ctw_backend *be, enum ctw_dtype dtype)
{
    struct test_weight up, down;
    weight_open(&up, some_kind(), N, K, 1);
    weight_open(&down, some_kind(), N, K, 1);
    struct buf x = buf_random(dtype, (int64_t)ROWS * LD, 1, 2),
               sum = buf_random(CTW_F32, ROWS * N, 1, 4);
    struct buf y = buf_open(ROWS * N * 4, 0), z = buf_open(ROWS * N * 4, 0),
               old = buf_copy(&sum, 0);
    int32_t rows[ROWS];
    for (int t = 0; t < ROWS; t++)
        rows[t] = (int32_t)((7 * t + 3) % ROWS);
    struct ctw_op_linear g = {.shards = &up.shard,
                              .n_shards = 1,
                              .dtype = dtype,
                              .n_tok = ROWS,
                              .x = x.p,
                              .ldx = LD,
                              .x_rows = rows,
                              .ldy = N};
    struct ctw_op_linear s = g;
    s.shards = &down.shard;
    s.epilogue = CTW_EPI_SCATTER;
    s.x_rows = NULL;
    s.y_rows = rows;
    run(be, g, z.p);
    run(be, s, old.p);
    g.y = y.p;
    s.y = sum.p;
    OK(ctw_linear_pair(be, &g, NULL, &s, &last_err));
    assert_memory_equal(y.p, z.p, (size_t)(ROWS * N) * ctw_dtype_bytes(dtype));
    assert_memory_equal(sum.p, old.p, ROWS * N * sizeof(float));
    memset(y.p, 0, y.bytes);
    OK(ctw_linear_pair(be, &g, NULL, NULL, &last_err));
    assert_memory_equal(y.p, z.p, (size_t)(ROWS * N) * ctw_dtype_bytes(dtype));
    run(be, s, old.p);
    OK(ctw_linear_pair(be, NULL, NULL, &s, &last_err));
    assert_memory_equal(sum.p, old.p, ROWS * N * sizeof(float));
    const struct ctw_op_act act = {.act = CTW_ACT_RELU2,
                                   .dtype = dtype,
                                   .n_tok = ROWS,
                                   .dim = N,
                                   .x = y.p,
                                   .ldx = N,
                                   .y = y.p,
                                   .ldy = N};
    struct ctw_op_act after = act;
    after.x = after.y = z.p;
    OK(ctw_act(be, &after, &last_err));
    run(be, s, old.p);
    OK(ctw_linear_pair(be, &g, &act, &s, &last_err));
    assert_memory_equal(y.p, z.p, (size_t)(ROWS * N) * ctw_dtype_bytes(dtype));
    assert_memory_equal(sum.p, old.p, ROWS * N * sizeof(float));
    memset(y.p, 0, y.bytes);
    OK(ctw_linear_act(be, &g, &act, &last_err));
    assert_memory_equal(y.p, z.p, (size_t)(ROWS * N) * ctw_dtype_bytes(dtype));
    weight_close(&up);
    weight_close(&down);
    buf_close(&x);
    buf_close(&sum);
    buf_close(&y);
    buf_close(&z);
    buf_close(&old);
}

/* Every other row of a matrix is as a matrix of these rows. */
static void interleaved(struct ctw_backend *be, enum ctw_dtype dtype, bool transposed)
{
    struct test_weight w, apart[2];
    weight_open(&w, transposed ? W_BF16_TRANSPOSED : W_BF16, 2 * N, K, 1);
    struct buf x = buf_random(dtype, (int64_t)ROWS * K, 1, 0);
    struct buf y = buf_open(ROWS * N * 4, 0), z = buf_open(ROWS * N * 4, 0);
    struct ctw_shard shards[2], plain[2];
    for (int s = 0; s < 2; s++) {
        weight_open(&apart[s], transposed ? W_BF16_TRANSPOSED : W_BF16, N, K, 0);
        apart[s].bias = buf_open(N * ctw_dtype_bytes(w.shard.bias_dtype), 0);
        for (int64_t o = 0; o < N; o++) {
            for (int64_t i = 0; i < K; i++) {
                int64_t from = transposed ? i * 2 * N + 2 * o + s : (2 * o + s) * K + i;
                ctw_store_float(apart[s].part[CTW_PART_VALUES].p, CTW_BF16,
                                transposed ? i * N + o : o * K + i,
                                ctw_load_float(w.part[CTW_PART_VALUES].p, CTW_BF16, from));
            }
            ctw_store_float(apart[s].bias.p, w.shard.bias_dtype, o,
                            ctw_load_float(w.shard.bias, w.shard.bias_dtype, 2 * o + s));
        }
        plain[s] = apart[s].shard;
        plain[s].bias = apart[s].bias.p;
        plain[s].bias_dtype = w.shard.bias_dtype;
        shards[s] = w.shard;
        shards[s].row0 = s;
        shards[s].n = N;
        shards[s].step = 2;
        shards[s].bias = element(w.shard.bias, w.shard.bias_dtype, s);
    }
    struct ctw_op_linear op = {.shards = plain,
                               .n_shards = 2,
                               .dtype = dtype,
                               .epilogue = CTW_EPI_GATE,
                               .n_tok = ROWS,
                               .x = x.p,
                               .ldx = K,
                               .ldy = N};
    run(be, op, z.p);
    op.shards = shards;
    run(be, op, y.p);
    assert_memory_equal(y.p, z.p, (size_t)(ROWS * N) * ctw_dtype_bytes(dtype));
    weight_close(&w);
    weight_close(&apart[0]);
    weight_close(&apart[1]);
    buf_close(&x);
    buf_close(&y);
    buf_close(&z);
}

static double clamp(double x, double limit)
{
    return x > limit ? limit : x < -limit ? -limit : x;
}

static double silu(double x)
{
    return x / (1 + exp(-x));
}

static void clamped(struct ctw_backend *be, enum ctw_glu_kind kind)
{
    struct test_weight w[2];
    struct ctw_shard shards[2];
    for (int s = 0; s < 2; s++) {
        weight_open(&w[s], W_F32, N, K, 1);
        shards[s] = w[s].shard;
    }
    struct buf x = buf_random(CTW_F32, (int64_t)ROWS * K, 0.3f, 0);
    struct buf g = buf_open(ROWS * N * 4, 0), u = buf_open(ROWS * N * 4, 0);
    struct buf y = buf_open(ROWS * N * 4, 0);
    ((float *)x.p)[3 * K] = NAN;
    struct ctw_op_linear op = {.shards = shards,
                               .n_shards = 1,
                               .dtype = CTW_F32,
                               .n_tok = ROWS,
                               .x = x.p,
                               .ldx = K,
                               .ldy = N};
    run(be, op, g.p);
    op.shards = &shards[1];
    run(be, op, u.p);
    op.shards = shards;
    op.n_shards = 2;
    op.epilogue = CTW_EPI_GATE;
    op.act = CTW_ACT_SILU;
    op.glu = (struct ctw_glu){kind, 1.5f, 1.702f};
    run(be, op, y.p);
    for (int64_t i = 0; i < (int64_t)ROWS * N; i++) {
        double a = ((float *)g.p)[i], b = ((float *)u.p)[i], m = a > 1.5 ? 1.5 : a;
        double c = clamp(b, 1.5);
        double want = kind == CTW_GLU_PLAIN     ? silu(a) * b
                      : kind == CTW_GLU_CLAMPED ? silu(m) * c
                      : kind == CTW_GLU_CLAMPED_ACT
                          ? fmin(silu(a), 1.5) * c
                      : kind == CTW_GLU_BOUNDED
                          ? 1.702f * tanh(a / 1.702f) / (1 + exp(-a)) * 1.5 * tanh(b / 1.5)
                          : m / (1 + exp(-1.702f * m)) * (kind == CTW_GLU_OFFSET ? c + 1 : c);
        want = isnan(a) ? NAN : want;
        near(((float *)y.p)[i], want, 1e-6 * (1 + fabs(want)), "clamped", i);
    }
    weight_close(&w[0]);
    weight_close(&w[1]);
    buf_close(&x);
    buf_close(&g);
    buf_close(&u);
    buf_close(&y);
}

/* Weights that the activations' dtype does not hold are not rounded to it. */
static void router_logits(struct ctw_backend *be, enum ctw_dtype dtype)
{
    struct test_weight w;
    weight_open(&w, W_F32, N, K, 1);
    struct buf x = buf_random(dtype, (int64_t)ROWS * K, 1, 0), y = buf_open(ROWS * N * 4, 0);
    float row[K];
    run(be,
        (struct ctw_op_linear){.shards = &w.shard,
                               .n_shards = 1,
                               .dtype = dtype,
                               .epilogue = CTW_EPI_LOGITS,
                               .n_tok = ROWS,
                               .x = x.p,
                               .ldx = K,
                               .ldy = N},
        y.p);
    for (int64_t o = 0; o < N; o++) {
        weight_row(&w, o, CTW_F32, row);
        for (int64_t t = 0; t < ROWS; t++) {
            double sum = ctw_load_float(w.shard.bias, w.shard.bias_dtype, o), all = fabs(sum);
            for (int64_t i = 0; i < K; i++) {
                double v = (double)ctw_load_float(x.p, dtype, t * K + i) * row[i];
                sum += v;
                all += fabs(v);
            }
            near(((float *)y.p)[t * N + o], sum, 2 * K * 0x1p-24 * all, "logits", t * N + o);
        }
    }
    weight_close(&w);
    buf_close(&x);
    buf_close(&y);
}

static void products_gather_scatter_and_clamp(void **state)
{
    (void)state;
    const char *variant;
    for (int v = 0; (variant = variant_of(v)) != NULL; v++) {
        struct ctw_backend *be = backend(variant, 2);
        for (int i = 0; i < 3; i++) {
            for (int r = 0; r < 6; r++) {
                gathered(be, dtypes[i], r % 2 == 0);
                scattered(be, dtypes[i], r % 2 == 0);
                paired(be, dtypes[i]);
            }
            interleaved(be, dtypes[i], false);
            interleaved(be, dtypes[i], true);
            router_logits(be, dtypes[i]);
        }
        for (int kind = CTW_GLU_PLAIN; kind <= CTW_GLU_BOUNDED; kind++)
            clamped(be, (enum ctw_glu_kind)kind);
        ctw_backend_close(be);
        if (strcmp(variant, "c") == 0)
            break;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_gather_scatter_and_clamp),
    };
    return cmocka_run_group_tests(tests, ops_setup, NULL);
}
