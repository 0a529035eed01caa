/*
 * Routers and the sort by expert on the GPU, against the definitions: the same experts, also on
 * ties, the same weights but for their last bits, and the same order. Seconds.
 */
#include "gpu_device.h"

struct router {
    struct ctw_route_rule rule;
    int64_t n_tok;
    bool correction, scale; /* per expert */
};

#define RULE(of, n, k, ...) {.score = CTW_SCORE_##of, .n_experts = n, .chosen = k, __VA_ARGS__}
#define GROUPS(n, kept, best) .n_groups = n, .kept_groups = kept, .group_best = best

/* As families have them, with small and large numbers of experts. */
static const struct router routers[] = {
    {RULE(SOFTMAX, 128, 8, .normalised = true), 3000, false, false},
    {RULE(SOFTMAX, 60, 4, .scale = 0), 700, false, false},
    {RULE(SOFTMAX_CHOSEN, 32, 4, .scale = 0), 1000, false, false},
    {RULE(SOFTMAX_CHOSEN, 8, 2, .scale = 0), 33, false, false},
    {RULE(SIGMOID, 256, 8, GROUPS(8, 4, 2), .normalised = true, .sum_add = 1e-20f, .scale = 2.5f), 900,
     true, false},
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

static void check_router(struct ctw_backend *be, struct ctw_backend *c, const struct router *r, int round)
{
    int n = r->rule.n_experts, chosen = r->rule.chosen;
    int64_t n_out = r->n_tok * chosen;
    size_t bytes = (size_t)n_out * 4;
    struct buf logits = buf_open((size_t)(r->n_tok * n) * sizeof(float), 0);
    struct buf correction = buf_random(CTW_BF16, n, 0.3f, 0), scale = buf_random(CTW_F16, n, 1, 0);
    struct buf want_ids = buf_open(bytes, 0), want = buf_open(bytes, 0);
    struct buf got_ids = buf_open(bytes, 0), got = buf_open(bytes, 0);
    make_logits(logits.p, r->n_tok, n, round);
    struct ctw_op_route op = {.rule = r->rule,
                              .n_tok = r->n_tok,
                              .logits = logits.p,
                              .correction = r->correction ? correction.p : NULL,
                              .correction_dtype = CTW_BF16,
                              .expert_scale = r->scale ? scale.p : NULL,
                              .expert_scale_dtype = CTW_F16,
                              .ids = want_ids.p,
                              .weights = want.p};
    OK(ctw_route(c, &op, &last_err));
    struct dev d_logits = dev_open(be, logits.p, logits.bytes, 0);
    struct dev d_correction = dev_open(be, correction.p, correction.bytes, 2);
    struct dev d_scale = dev_open(be, scale.p, scale.bytes, 2);
    struct dev d_ids = dev_open(be, got_ids.p, bytes, 4), d_weights = dev_open(be, got.p, bytes, 8);
    op.logits = (const float *)(const void *)d_logits.p;
    op.correction = r->correction ? d_correction.p : NULL;
    op.expert_scale = r->scale ? d_scale.p : NULL;
    op.ids = (int32_t *)(void *)d_ids.p;
    op.weights = (float *)(void *)d_weights.p;
    OK(ctw_route(be, &op, &last_err));
    dev_read(&d_ids, got_ids.p);
    dev_read(&d_weights, got.p);
    for (int64_t i = 0; i < n_out; i++) {
        float w = ((float *)want.p)[i], g = ((float *)got.p)[i];
        int32_t a = ((int32_t *)want_ids.p)[i], b = ((int32_t *)got_ids.p)[i];
        if (a != b || isnan(w) != isnan(g) || fabsf(w - g) > 4e-7f * fabsf(w))
            fail_msg("router %d of %d experts, round %d, row %d, choice %d: expert %d, weight %.9g; "
                     "the definition: %d, %.9g",
                     (int)r->rule.score, n, round, (int)(i / chosen), (int)(i % chosen), b, (double)g, a,
                     (double)w);
    }
    struct dev *devices[] = {&d_logits, &d_correction, &d_scale, &d_ids, &d_weights};
    for (size_t i = 0; i < CTW_COUNT(devices); i++)
        dev_close(devices[i]);
    struct buf *bufs[] = {&logits, &correction, &scale, &want_ids, &want, &got_ids, &got};
    for (size_t i = 0; i < CTW_COUNT(bufs); i++)
        buf_close(bufs[i]);
}

static void routers_choose_as_defined(void **state)
{
    (void)state;
    struct ctw_backend *c = backend("c", 0), *be = gpu("general");
    for (size_t r = 0; r < CTW_COUNT(routers); r++)
        for (int round = 0; round < 3; round++)
            check_router(be, c, &routers[r], round);
    ctw_backend_close(be);
    ctw_backend_close(c);
    printf("ok: %d routers choose as defined\n", (int)CTW_COUNT(routers));
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

static void check_group(struct ctw_backend *be, struct ctw_backend *c, int64_t n_tok, int n_experts,
                        int chosen, bool skewed)
{
    int64_t n = n_tok * chosen, all = 2 * n + n_experts + 1;
    struct buf ids = buf_open((size_t)n * 4 + 4, 0), weights = buf_random(CTW_F32, n + 1, 1, 0);
    struct buf want = buf_open((size_t)all * 4, 0), got = buf_open((size_t)all * 4, 0);
    make_choices(ids.p, n_tok, n_experts, chosen, skewed);
    struct ctw_op_group op = {n_experts, chosen, n_tok, ids.p, weights.p, want.p, NULL, NULL};
    op.row_weights = (float *)want.p + n;
    op.start = (int32_t *)want.p + 2 * n;
    OK(ctw_group(c, &op, &last_err));
    struct dev d_ids = dev_open(be, ids.p, ids.bytes, 4), d_out = dev_open(be, got.p, got.bytes, 4);
    struct dev d_weights = dev_open(be, weights.p, weights.bytes, 12);
    op.ids = (const int32_t *)(const void *)d_ids.p;
    op.weights = (const float *)(const void *)d_weights.p;
    op.rows = (int32_t *)(void *)d_out.p;
    op.row_weights = (float *)(void *)d_out.p + n;
    op.start = (int32_t *)(void *)d_out.p + 2 * n;
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

static void choices_are_sorted_as_defined(void **state)
{
    (void)state;
    static const struct {
        int64_t n_tok;
        int n_experts, chosen;
    } cases[] = {{0, 8, 2},    {1, 8, 2},     {127, 32, 4},  {128, 128, 8},  {129, 128, 8},
                 {1000, 1, 1}, {4097, 60, 4}, {2500, 256, 8}, {70000, 128, 8}, {300, 4096, 64}};
    struct ctw_backend *c = backend("c", 0), *be = gpu("general");
    for (size_t i = 0; i < 2 * CTW_COUNT(cases); i++)
        check_group(be, c, cases[i / 2].n_tok, cases[i / 2].n_experts, cases[i / 2].chosen, i % 2 == 1);
    ctw_backend_close(be);
    ctw_backend_close(c);
    printf("ok: choices are sorted as defined\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(routers_choose_as_defined),
        cmocka_unit_test(choices_are_sorted_as_defined),
    };
    return cmocka_run_group_tests(tests, ops_setup, NULL);
}
