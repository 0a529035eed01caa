/* The operations of mixtures of experts: products that gather, scatter and clamp, against the plain
 * products that test_ops_linear.c compares with the definition; routers and groups of rows. */
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

/* A gathered and a scattered product at once are as one after another. */
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
    OK(ctw_linear_pair(be, &g, &s, &last_err));
    assert_memory_equal(y.p, z.p, (size_t)(ROWS * N) * ctw_dtype_bytes(dtype));
    assert_memory_equal(sum.p, old.p, ROWS * N * sizeof(float));
    memset(y.p, 0, y.bytes);
    OK(ctw_linear_pair(be, &g, NULL, &last_err));
    assert_memory_equal(y.p, z.p, (size_t)(ROWS * N) * ctw_dtype_bytes(dtype));
    run(be, s, old.p);
    OK(ctw_linear_pair(be, NULL, &s, &last_err));
    assert_memory_equal(sum.p, old.p, ROWS * N * sizeof(float));
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
        for (int kind = CTW_GLU_PLAIN; kind <= CTW_GLU_SLOPED; kind++)
            clamped(be, (enum ctw_glu_kind)kind);
        ctw_backend_close(be);
        if (strcmp(variant, "c") == 0)
            break;
    }
}

/* ---- routers ------------------------------------------------------------------------------ */

enum { E = 24, TOKENS = 200 };

/* How many experts come before e, in the order of their choices? */
static int rank_of(const double *choice, const bool *can, int e)
{
    int n = 0;
    for (int i = 0; i < E; i++)
        n += can[i] && (choice[i] > choice[e] || (choice[i] == choice[e] && i < e));
    return n;
}

/* Of a row, by the ranks of groups and experts. */
static void check_row(const struct ctw_op_route *op, int64_t t)
{
    const struct ctw_route_rule *r = &op->rule;
    double l[E], s[E], choice[E], group[E] = {0}, total = 0, chosen = 0, w[E];
    bool can[E];
    const float *correction = op->correction, *scale = op->expert_scale;
    for (int e = 0; e < E; e++) {
        l[e] = (double)op->logits[t * E + e] * r->factor;
        l[e] = r->softcap != 0 ? r->softcap * tanh(l[e] / r->softcap) : l[e];
        total += exp(l[e]);
        can[e] = true;
    }
    for (int e = 0; e < E; e++) {
        s[e] = r->score == CTW_SCORE_SIGMOID   ? 1 / (1 + exp(-l[e]))
               : r->score == CTW_SCORE_SOFTMAX ? exp(l[e]) / total
                                               : exp(l[e]);
        choice[e] = correction != NULL ? s[e] + correction[e] : r->n_groups > 0 ? s[e] : l[e];
    }
    for (int g = 0; g < r->n_groups; g++) {
        int n = E / r->n_groups;
        for (int i = g * n; i < (g + 1) * n; i++) {
            int before = 0;
            for (int j = g * n; j < (g + 1) * n; j++)
                before += choice[j] > choice[i] || (choice[j] == choice[i] && j < i);
            group[g] += before < r->group_best ? choice[i] : 0;
        }
    }
    for (int e = 0; e < E && r->n_groups > 0; e++) {
        int g = e / (E / r->n_groups), before = 0;
        for (int h = 0; h < r->n_groups; h++)
            before += group[h] > group[g] || (group[h] == group[g] && h < g);
        can[e] = before < r->kept_groups;
    }
    for (int e = 0; e < E; e++)
        chosen += can[e] && rank_of(choice, can, e) < r->chosen ? s[e] : 0;
    double by = r->normalised                          ? fmax(chosen + r->sum_add, r->sum_least)
                : r->score == CTW_SCORE_SOFTMAX_CHOSEN ? chosen
                                                       : 1;
    for (int e = 0; e < E; e++) {
        int rank = can[e] ? rank_of(choice, can, e) : E;
        w[e] = s[e] / by * r->scale * (scale != NULL ? scale[e] : 1);
        if (rank >= r->chosen)
            continue;
        assert_int_equal(op->ids[t * r->chosen + rank], e);
        near(op->weights[t * r->chosen + rank], w[e], 1e-6 * fabs(w[e]), "weight", t);
    }
}

static void random_rule(struct ctw_op_route *op, const float *correction, const float *scale)
{
    struct ctw_route_rule *r = &op->rule;
    r->score = (enum ctw_score)rng_below(CTW_SCORE_SPARSEMIXER);
    bool free_choice = r->score != CTW_SCORE_SOFTMAX_CHOSEN;
    r->n_experts = E;
    r->n_groups = free_choice && rng_below(2) == 0 ? (int)(2 + rng_below(2) * 2) : 0;
    r->kept_groups = r->n_groups / 2;
    r->group_best = 1 + (int)rng_below(2);
    r->chosen = (int)(1 + rng_below(r->n_groups > 0 ? E / 2 : E));
    r->normalised = rng_below(2) == 0;
    r->sum_add = rng_below(2) == 0 ? 1e-20f : 0;
    r->sum_least = rng_below(2) == 0 ? 0.3f : 0;
    r->factor = rng_below(2) == 0 ? 1 : 0.25f;
    r->softcap = rng_below(3) == 0 ? 5 : 0;
    r->scale = rng_below(2) == 0 ? 1 : 2.5f;
    op->correction = free_choice && rng_below(2) == 0 ? correction : NULL;
    op->expert_scale = rng_below(2) == 0 ? scale : NULL;
    op->correction_dtype = op->expert_scale_dtype = CTW_F32;
}

static void routers_choose_by_the_rule(void **state)
{
    (void)state;
    static float logits[TOKENS * E], weights[TOKENS * E], correction[E], scale[E];
    static int32_t ids[TOKENS * E];
    struct ctw_backend *be = backend("c", 3);
    for (int round = 0; round < 300; round++) {
        struct ctw_op_route op = {
            .n_tok = TOKENS, .logits = logits, .ids = ids, .weights = weights};
        for (int i = 0; i < TOKENS * E; i++) /* a third of the rounds is full of ties */
            logits[i] = round % 3 == 0 ? (float)rng_below(3) : 3 * rng_normal();
        for (int e = 0; e < E; e++) {
            correction[e] = round % 3 == 0 ? 0.5f * (float)rng_below(2) : 0.2f * rng_normal();
            scale[e] = 1 + 0.1f * rng_normal();
        }
        random_rule(&op, correction, scale);
        OK(ctw_route(be, &op, &last_err));
        for (int64_t t = 0; t < TOKENS; t++)
            check_row(&op, t);
    }
    ctw_backend_close(be);
}

/* The two experts of Phi's mixture: its code, in double. */
static void sparse_mixers_choose_two(void **state)
{
    (void)state;
    float logits[E], weights[2];
    int32_t ids[2];
    struct ctw_backend *be = backend("c", 1);
    const double jitter = 0.01f;
    for (int round = 0; round < 500; round++) {
        double l[E];
        for (int e = 0; e < E; e++)
            l[e] = logits[e] = 1 + 0.02f * rng_normal();
        OK(ctw_route(be,
                     &(struct ctw_op_route){.rule = {.score = CTW_SCORE_SPARSEMIXER,
                                                     .n_experts = E,
                                                     .chosen = 2,
                                                     .jitter = 0.01f},
                                            .n_tok = 1,
                                            .logits = logits,
                                            .ids = ids,
                                            .weights = weights},
                     &last_err));
        for (int k = 0; k < 2; k++) {
            int best = 0;
            for (int e = 1; e < E; e++)
                best = l[e] > l[best] ? e : best;
            double m = l[best], sum = 0;
            for (int e = 0; e < E; e++)
                if (isfinite(l[e]) && (m - l[e]) / fmax(fabs((double)logits[e]), m) <= 2 * jitter)
                    sum += exp(l[e] - m);
            assert_int_equal(ids[k], best);
            near(weights[k], 1 / sum, 1e-6, "weight", k);
            l[best] = -INFINITY;
        }
    }
    ctw_backend_close(be);
}

/* Whatever the logits are, each id is an expert, and none comes twice. */
static void bad_logits_choose_experts_that_exist(void **state)
{
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    struct ctw_backend *be = backend("c", 1);
    for (int round = 0; round < 2000; round++) {
        float logits[E], weights[E], correction[E];
        int32_t ids[E];
        bool seen[E] = {false}, nan = false, finite = false;
        struct ctw_op_route op = {.n_tok = 1, .logits = logits, .ids = ids, .weights = weights};
        for (int e = 0; e < E; e++) {
            logits[e] = rng_below(4) == 0 || round == 0 ? bad[rng_below(3)] : rng_normal();
            logits[e] = round % 2 == 0 && logits[e] != -INFINITY ? 1 : logits[e];
            nan |= isnan(logits[e]) || logits[e] == INFINITY;
            finite |= isfinite(logits[e]);
            correction[e] = rng_below(4) == 0 ? bad[rng_below(3)] : 0;
        }
        random_rule(&op, correction, NULL);
        op.expert_scale = NULL;
        OK(ctw_route(be, &op, &last_err));
        for (int k = 0; k < op.rule.chosen; k++) {
            assert_in_range(ids[k], 0, E - 1);
            assert_false(seen[ids[k]]);
            seen[ids[k]] = true;
            assert_true(isnan(weights[k]) || (finite && !nan));
        }
    }
    ctw_backend_close(be);
}

/* ---- groups ------------------------------------------------------------------------------- */

/* Every row's experts: k of E from `first` on, or all tokens the same ones. */
static void check_groups(int k, bool same)
{
    static int32_t ids[TOKENS * E], rows[TOKENS * E], start[E + 1];
    static float weights[TOKENS * E], row_weights[TOKENS * E];
    struct ctw_backend *be = backend("c", 1);
    int64_t n = 0;
    for (int t = 0; t < TOKENS; t++) {
        int first = same ? 5 : (int)rng_below(E);
        for (int i = 0; i < k; i++) {
            ids[t * k + i] = (first + 5 * i) % E; /* 5 and E have no common divisor */
            weights[t * k + i] = rng_normal();
        }
    }
    OK(ctw_group(be,
                 &(struct ctw_op_group){.n_experts = E,
                                        .chosen = k,
                                        .n_tok = TOKENS,
                                        .ids = ids,
                                        .weights = weights,
                                        .rows = rows,
                                        .row_weights = row_weights,
                                        .start = start},
                 &last_err));
    assert_int_equal(start[0], 0);
    for (int e = 0; e < E; e++) {
        for (int t = 0; t < TOKENS; t++)
            for (int i = 0; i < k; i++)
                if (ids[t * k + i] == e) {
                    assert_int_equal(rows[n], t);
                    assert_true(row_weights[n] == weights[t * k + i]);
                    n++;
                }
        assert_int_equal(start[e + 1], n);
    }
    ctw_backend_close(be);
}

static void rows_are_grouped_by_expert(void **state)
{
    (void)state;
    for (int k = 1; k <= E; k += 7) {
        check_groups(k, false);
        check_groups(k, true);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_gather_scatter_and_clamp),
        cmocka_unit_test(routers_choose_by_the_rule),
        cmocka_unit_test(sparse_mixers_choose_two),
        cmocka_unit_test(bad_logits_choose_experts_that_exist),
        cmocka_unit_test(rows_are_grouped_by_expert),
    };
    return cmocka_run_group_tests(tests, ops_setup, NULL);
}
