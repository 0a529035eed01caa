/* Routers and the sort of rows by expert, in every place: against the rules in double, and against
 * the plain C definition, which has the same experts, also on ties, and their weights but for the
 * last bits. */
#include "places.h"

/* ctw_route() on host memory. */
static void route(struct ctw_backend *be, struct ctw_op_route op)
{
    const size_t n = (size_t)op.rule.n_experts, n_out = (size_t)(op.n_tok * op.rule.chosen) * 4;
    int32_t *ids = op.ids;
    float *weights = op.weights, *identity = op.identity;
    struct dev d[] = {
        dev_open(be, op.logits, (size_t)op.n_tok * n * sizeof(float), 0),
        dev_open(be, ids, n_out, 4),
        dev_open(be, weights, n_out, 8),
        op.correction != NULL
            ? dev_open(be, op.correction, n * ctw_dtype_bytes(op.correction_dtype), 4)
            : (struct dev){0},
        op.expert_scale != NULL
            ? dev_open(be, op.expert_scale, n * ctw_dtype_bytes(op.expert_scale_dtype), 4)
            : (struct dev){0},
        op.table != NULL ? dev_open(be, op.table, n * (size_t)op.rule.chosen * 8, 4)
                         : (struct dev){0},
        op.table != NULL ? dev_open(be, op.tokens, (size_t)op.n_tok * 4, 0) : (struct dev){0},
        identity != NULL ? dev_open(be, identity, (size_t)op.n_tok * 4, 0) : (struct dev){0},
    };
    op.logits = (const void *)d[0].p;
    op.ids = (void *)d[1].p;
    op.weights = (void *)d[2].p;
    op.correction = d[3].p;
    op.expert_scale = d[4].p;
    op.table = d[5].p;
    op.tokens = (const void *)d[6].p;
    op.identity = (void *)d[7].p;
    OK(ctw_route(be, &op, &last_err));
    dev_read(&d[1], ids);
    dev_read(&d[2], weights);
    if (identity != NULL)
        dev_read(&d[7], identity);
    for (size_t i = 0; i < CTW_COUNT(d); i++)
        if (d[i].be != NULL)
            dev_close(&d[i]);
}

/* ---- rules -------------------------------------------------------------------------------- */

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
        s[e] = r->score == CTW_SCORE_SIGMOID         ? 1 / (1 + exp(-l[e]))
               : r->score == CTW_SCORE_SQRT_SOFTPLUS ? sqrt(log1p(exp(l[e])))
               : r->score == CTW_SCORE_SOFTMAX       ? exp(l[e]) / total
                                                     : exp(l[e]);
        bool of_logits = r->corrects_logits || (correction == NULL && r->n_groups == 0);
        choice[e] = (of_logits ? l[e] : s[e]) + (correction != NULL ? correction[e] : 0);
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
    const int n = E - r->always, n_free = r->chosen - r->always;
    for (int e = n; e < E; e++)
        can[e] = false;
    for (int e = 0; e < E; e++)
        chosen += e >= n || (can[e] && rank_of(choice, can, e) < n_free) ? s[e] : 0;
    double by = r->normalised                          ? fmax(chosen + r->sum_add, r->sum_least)
                : r->score == CTW_SCORE_SOFTMAX_CHOSEN ? chosen
                                                       : 1;
    for (int e = 0; e < E; e++) {
        int rank = e >= n ? n_free + e - n : can[e] ? rank_of(choice, can, e) : E;
        w[e] = s[e] / by * r->scale * (scale != NULL ? scale[e] : 1);
        if (rank >= (e >= n ? r->chosen : n_free))
            continue;
        assert_int_equal(op->ids[t * r->chosen + rank], e);
        near(op->weights[t * r->chosen + rank], w[e], 1e-6 * fabs(w[e]), "weight", t);
    }
}

/* The sum of the weights of the last experts, in fp32 and in the order of the choice. */
static void check_identity(const struct ctw_op_route *op, int64_t t)
{
    const int n = op->rule.chosen, first = E - op->rule.n_identity;
    float sum = 0;
    for (int64_t k = t * n; k < (t + 1) * n; k++)
        sum += op->ids[k] >= first ? op->weights[k] : 0;
    if (op->identity != NULL)
        assert_true(op->identity[t] == sum);
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
    r->always = r->score == CTW_SCORE_SIGMOID && r->n_groups == 0 ? (int)rng_below(r->chosen) : 0;
    r->corrects_logits = r->n_groups == 0 && rng_below(3) == 0;
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
    static float identity[TOKENS];
    static int32_t ids[TOKENS * E];
    struct ctw_backend *be = open_place(0, 3);
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
        op.identity = round % 2 == 0 ? identity : NULL;
        op.rule.n_identity = (int)rng_below(E + 1);
        route(be, op);
        for (int64_t t = 0; t < TOKENS; t++) {
            check_row(&op, t);
            check_identity(&op, t);
        }
    }
    ctw_backend_close(be);
}

/* A token's experts are its row of the table, in either dtype, with weights by the rule. */
static void tables_choose_for_tokens(void **state)
{
    (void)state;
    enum { K = 3 };
    static float logits[TOKENS * E], weights[TOKENS * K];
    static int32_t ids[TOKENS * K], tokens[TOKENS], narrow[2 * E * K];
    static int64_t wide[E * K];
    struct ctw_backend *be = open_place(0, 3);
    for (int i = 0; i < TOKENS * E; i++)
        logits[i] = 3 * rng_normal();
    for (int t = 0; t < TOKENS; t++)
        tokens[t] = (int32_t)rng_below(E);
    for (int i = 0; i < E * K; i++)
        wide[i] = narrow[i] = (7 * i + i / K) % E;
    for (int round = 0; round < 4; round++) {
        const bool sigmoid = round % 2 == 0;
        struct ctw_op_route op = {
            .rule = {.score = sigmoid ? CTW_SCORE_SIGMOID : CTW_SCORE_SQRT_SOFTPLUS,
                     .n_experts = E,
                     .chosen = K,
                     .normalised = true,
                     .scale = 1.5f},
            .n_tok = TOKENS,
            .logits = logits,
            .table = round < 2 ? (const void *)wide : narrow,
            .table_dtype = round < 2 ? CTW_I64 : CTW_I32,
            .tokens = tokens,
            .ids = ids,
            .weights = weights};
        route(be, op);
        for (int t = 0; t < TOKENS; t++) {
            double s[K], sum = 0;
            for (int k = 0; k < K; k++) {
                const int64_t e = wide[tokens[t] * K + k];
                double l = logits[t * E + e];
                sum += s[k] = sigmoid ? 1 / (1 + exp(-l)) : sqrt(log1p(exp(l)));
                assert_int_equal(ids[t * K + k], e);
            }
            for (int k = 0; k < K; k++)
                near(weights[t * K + k], 1.5 * s[k] / sum, 1e-6, "weight", t);
        }
    }
    ctw_backend_close(be);
}

/* The two experts of Phi's mixture: its code, in double. */
static void sparse_mixers_choose_two(void **state)
{
    (void)state;
    float logits[E], weights[2];
    int32_t ids[2];
    struct ctw_backend *be = open_place(0, 1);
    const double jitter = 0.01f;
    for (int round = 0; round < 500; round++) {
        double l[E];
        for (int e = 0; e < E; e++)
            l[e] = logits[e] = 1 + 0.02f * rng_normal();
        route(be, (struct ctw_op_route){.rule = {.score = CTW_SCORE_SPARSEMIXER,
                                                 .n_experts = E,
                                                 .chosen = 2,
                                                 .jitter = 0.01f},
                                        .n_tok = 1,
                                        .logits = logits,
                                        .ids = ids,
                                        .weights = weights});
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
    struct ctw_backend *be = open_place(0, 1);
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
        route(be, op);
        for (int k = 0; k < op.rule.chosen; k++) {
            assert_in_range(ids[k], 0, E - 1);
            assert_false(seen[ids[k]]);
            seen[ids[k]] = true;
            assert_true(isnan(weights[k]) || (finite && !nan));
        }
        int n_seen = 0; /* groups: a correction of NaN leads to no other one */
        for (int n = 0; n < op.rule.n_groups; n++) {
            bool in_group = false;
            for (int e = n * E / op.rule.n_groups; e < (n + 1) * E / op.rule.n_groups; e++)
                in_group |= seen[e];
            n_seen += in_group;
        }
        assert_true(nan || !finite || n_seen <= op.rule.kept_groups);
    }
    ctw_backend_close(be);
}

/* ---- families' routers against the definition ---------------------------------------------- */

struct router {
    struct ctw_route_rule rule;
    int64_t n_tok;
    bool correction, scale; /* per expert */
};

#define RULE(of, n, k, ...)                                                                        \
    {                                                                                              \
        .score = CTW_SCORE_##of, .n_experts = n, .chosen = k, __VA_ARGS__                          \
    }
#define GROUPS(n, kept, best) .n_groups = n, .kept_groups = kept, .group_best = best

/* As families have them, with small and large numbers of experts. */
static const struct router routers[] = {
    {RULE(SOFTMAX, 128, 8, .normalised = true), 3000, false, false},
    {RULE(SOFTMAX, 60, 4, .scale = 0), 700, false, false},
    {RULE(SOFTMAX_CHOSEN, 32, 4, .scale = 0), 1000, false, false},
    {RULE(SOFTMAX_CHOSEN, 8, 2, .scale = 0), 33, false, false},
    {RULE(SIGMOID, 256, 8, GROUPS(8, 4, 2), .normalised = true, .sum_add = 1e-20f, .scale = 2.5f),
     900, true, false},
    {RULE(SIGMOID, 128, 8, .normalised = true, .sum_least = 1e-12f), 200, true, false},
    {RULE(SIGMOID, 16, 1, .scale = 0), 500, false, false},
    {RULE(SOFTMAX, 160, 6, GROUPS(8, 3, 1), .scale = 16), 300, false, false},
    {RULE(SOFTMAX, 64, 6, GROUPS(1, 1, 1)), 65, false, false},
    {RULE(SPARSEMIXER, 16, 2, .jitter = 0.01f), 700, false, false},
    {RULE(SOFTMAX, 256, 10, .factor = 0.5f, .softcap = 3, .normalised = true), 100, true, true},
    {RULE(SIGMOID, 4096, 64, .scale = 0), 20, false, true},
    {RULE(SOFTMAX, 1, 1, .scale = 0), 5, false, false},
    {RULE(SOFTMAX, 3, 3, .scale = 0), 40, false, false},
};

/* Logits: random; on a coarse grid, so that many are equal; and rows that are not finite. */
static void make_logits(float *l, int64_t n_tok, int n, int round)
{
    for (int64_t i = 0; i < n_tok * n; i++)
        l[i] = round == 1 ? floorf(rng_normal() * 2) / 2 : 2 * rng_normal();
    if (round != 2)
        return;
    static const float odd[] = {NAN, INFINITY, -INFINITY};
    for (int64_t t = 0; t < n_tok; t += 3)
        for (int e = 0; e < n; e++)
            if (rng_below(n) == 0 || t % 9 == 6) /* every ninth row: all -infinity, or NaN */
                l[t * n + e] = odd[t % 9 == 6 ? 2 : (size_t)rng_below(3)];
}

static void check_router(struct ctw_backend *be, struct ctw_backend *c, const struct router *r,
                         int round)
{
    int n = r->rule.n_experts, chosen = r->rule.chosen;
    int64_t n_out = r->n_tok * chosen;
    struct buf logits = buf_open((size_t)(r->n_tok * n) * sizeof(float), 0);
    struct buf correction = buf_random(CTW_BF16, n, 0.3f, 0), scale = buf_random(CTW_F16, n, 1, 0);
    struct buf ids[2], weights[2]; /* of c, of be */
    make_logits(logits.p, r->n_tok, n, round);
    for (int i = 0; i < 2; i++) {
        ids[i] = buf_open((size_t)n_out * 4, 0);
        weights[i] = buf_open((size_t)n_out * 4, 0);
        route(i == 0 ? c : be,
              (struct ctw_op_route){.rule = r->rule,
                                    .n_tok = r->n_tok,
                                    .logits = logits.p,
                                    .correction = r->correction ? correction.p : NULL,
                                    .correction_dtype = CTW_BF16,
                                    .expert_scale = r->scale ? scale.p : NULL,
                                    .expert_scale_dtype = CTW_F16,
                                    .ids = ids[i].p,
                                    .weights = weights[i].p});
    }
    for (int64_t i = 0; i < n_out; i++) {
        float w = ((float *)weights[0].p)[i], g = ((float *)weights[1].p)[i];
        int32_t a = ((int32_t *)ids[0].p)[i], b = ((int32_t *)ids[1].p)[i];
        if (a != b || isnan(w) != isnan(g) || fabsf(w - g) > 4e-7f * fabsf(w))
            fail_msg(
                "router %d of %d experts, round %d, row %d, choice %d: expert %d, weight %.9g; "
                "the definition: %d, %.9g",
                (int)r->rule.score, n, round, (int)(i / chosen), (int)(i % chosen), b, (double)g, a,
                (double)w);
    }
    struct buf *bufs[] = {&logits, &correction, &scale, &ids[0], &ids[1], &weights[0], &weights[1]};
    for (size_t i = 0; i < CTW_COUNT(bufs); i++)
        buf_close(bufs[i]);
}

static void routers_choose_as_defined(void **state)
{
    (void)state;
    struct ctw_backend *c = backend("c", 1), *be = open_place(0, 3);
    for (size_t r = 0; r < CTW_COUNT(routers); r++)
        for (int round = 0; round < 3; round++)
            check_router(be, c, &routers[r], round);
    ctw_backend_close(be);
    ctw_backend_close(c);
}

/* ---- the sort ----------------------------------------------------------------------------- */

/* Distinct experts of each row; skewed: all rows choose the first ones. */
static void make_choices(int32_t *ids, int64_t n_tok, int n_experts, int chosen, bool skewed)
{
    for (int64_t t = 0; t < n_tok; t++)
        for (int k = 0; k < chosen; k++) {
            bool again = true;
            while (again) {
                ids[t * chosen + k] = (int32_t)(skewed ? k : rng_below(n_experts));
                again = false;
                for (int j = 0; j < k; j++)
                    again |= ids[t * chosen + j] == ids[t * chosen + k];
            }
        }
}

/* Rows by expert, and in their order for each. */
static void check_group(struct ctw_backend *be, int64_t n_tok, int n_experts, int chosen,
                        bool skewed)
{
    int64_t n = n_tok * chosen, all = 2 * n + n_experts + 1;
    struct buf ids = buf_open((size_t)n * 4 + 4, 0), weights = buf_random(CTW_F32, n + 1, 1, 0);
    struct buf want = buf_open((size_t)all * 4, 0), got = buf_open((size_t)all * 4, 0);
    make_choices(ids.p, n_tok, n_experts, chosen, skewed);
    int32_t *rows = want.p, *start = rows + 2 * n, *id = ids.p;
    float *row_weights = (float *)want.p + n;
    memset(start, 0, (size_t)(n_experts + 1) * sizeof(*start));
    for (int64_t i = 0; i < n; i++)
        start[id[i] + 1]++;
    for (int e = 0; e < n_experts; e++)
        start[e + 1] += start[e];
    int32_t *next = malloc((size_t)n_experts * sizeof(*next));
    assert_non_null(next);
    memcpy(next, start, (size_t)n_experts * sizeof(*next));
    for (int64_t i = 0; i < n; i++) {
        int32_t at = next[id[i]]++;
        rows[at] = (int32_t)(i / chosen);
        row_weights[at] = ((float *)weights.p)[i];
    }
    free(next);
    struct dev d_ids = dev_open(be, ids.p, ids.bytes, 4), d_out = dev_open(be, got.p, got.bytes, 4);
    struct dev d_weights = dev_open(be, weights.p, weights.bytes, 12);
    int32_t *out = (void *)d_out.p;
    const struct ctw_op_group op = {.n_experts = n_experts,
                                    .chosen = chosen,
                                    .n_tok = n_tok,
                                    .ids = (const void *)d_ids.p,
                                    .weights = (const void *)d_weights.p,
                                    .rows = out,
                                    .row_weights = (void *)(out + n),
                                    .start = out + 2 * n};
    OK(ctw_group(be, &op, &last_err));
    dev_read(&d_out, got.p);
    assert_memory_equal(got.p, want.p, want.bytes);
    dev_close(&d_ids);
    dev_close(&d_out);
    dev_close(&d_weights);
    struct buf *bufs[] = {&ids, &weights, &want, &got};
    for (size_t i = 0; i < CTW_COUNT(bufs); i++)
        buf_close(bufs[i]);
}

static void rows_are_grouped_by_expert(void **state)
{
    (void)state;
    static const struct {
        int64_t n_tok;
        int n_experts, chosen;
    } cases[] = {{0, 8, 2},       {1, 8, 2},       {127, 32, 4},  {128, 128, 8},
                 {129, 128, 8},   {1000, 1, 1},    {4097, 60, 4}, {2500, 256, 8},
                 {70000, 128, 8}, {300, 4096, 64}, {200, 24, 24}, {200, 24, 15}};
    struct ctw_backend *be = open_place(0, 2);
    for (size_t i = 0; i < 2 * CTW_COUNT(cases); i++)
        check_group(be, cases[i / 2].n_tok, cases[i / 2].n_experts, cases[i / 2].chosen,
                    i % 2 == 1);
    ctw_backend_close(be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(routers_choose_by_the_rule),
        cmocka_unit_test(tables_choose_for_tokens),
        cmocka_unit_test(sparse_mixers_choose_two),
        cmocka_unit_test(bad_logits_choose_experts_that_exist),
        cmocka_unit_test(routers_choose_as_defined),
        cmocka_unit_test(rows_are_grouped_by_expert),
    };
    return cmocka_run_group_tests(tests, ops_setup, NULL);
}
