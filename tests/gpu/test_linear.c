/*
 * ctw_linear() on the GPU against the CPU's reference; equal bits regardless of the other rows; choices
 * of algorithms that change nothing; rates. From the repository's root, with a built backend:
 *
 *   cc -std=gnu11 -O2 -ffp-contract=off -D_GNU_SOURCE -I. -Itests/ops -o test_linear
 *     tests/gpu/test_linear.c BUILD/kernels/libctw_kernels.a BUILD/base/libctw_base.a
 *     -lcmocka -ldl -lm -pthread
 *   CTWORKER_CUDA_LIBRARY=BUILD/kernels/cuda/libctworker_cuda.so ./test_linear
 *
 * About a minute; test_linear rates: only the rates. CTW_LOG=info prints the chosen algorithms.
 */
#include <dirent.h>
#include <unistd.h>

#include "linear_problem.h"

static void it_agrees_with_the_definition(void **state)
{
    (void)state;
    struct ctw_backend *c = backend("c", 0);
    for (size_t v = 0; v < CTW_COUNT(variants); v++) {
        struct ctw_backend *be = gpu(variants[v]);
        if (be == NULL)
            continue;
        int n = 0;
        for (size_t s = 0; s < CTW_COUNT(shapes); s++) {
            for (size_t d = 0; d < CTW_COUNT(dtypes); d++) {
                for (int aligned = 0; aligned < 2; aligned++) {
                    struct problem p;
                    struct placed on;
                    enum ctw_epilogue epilogue = (enum ctw_epilogue)((s + d + (size_t)aligned) % N_EPI);
                    problem_open(&p, &shapes[s], dtypes[d], epilogue, aligned != 0, false);
                    place(&on, &p, be);
                    decode_rows(&p);
                    struct buf want = run_cpu(&p, c);
                    struct buf got = run_gpu(&p, &on, be, p.op.n_tok, rng_below(2) == 0);
                    compare(&p, &got, &want, variants[v]);
                    buf_close(&got);
                    buf_close(&want);
                    unplace(&on);
                    problem_close(&p);
                    n++;
                }
            }
        }
        ctw_backend_close(be);
        printf("ok: %s: %d products agree with the definition\n", variants[v], n);
    }
    ctw_backend_close(c);
}

/* ---- the same regardless of the other rows ------------------------------------------------ */

static void a_row_does_not_depend_on_the_other_rows(void **state)
{
    (void)state;
    static const struct shape some[] = {{300, 256, 512}, {1030, 384, 96},   {2100, 128, 256},
                                        {131, 200, 33},  {513, 1024, 2048}, {260, 33, 64}};
    static const int64_t pieces[] = {1, 2, 7, 64, 127, 128, 129, 256, 257, 1000, 1024, 1025};
    for (size_t v = 0; v < CTW_COUNT(variants); v++) {
        struct ctw_backend *be = gpu(variants[v]);
        if (be == NULL)
            continue;
        for (size_t s = 0; s < 3 * N_EPI * CTW_COUNT(some); s++) {
            struct problem p;
            struct placed on;
            size_t which = s / (3 * N_EPI);
            problem_open(&p, &some[which], dtypes[s % 3], (enum ctw_epilogue)(s / 3 % N_EPI),
                         which != 3 && which != 5, false);
            place(&on, &p, be);
            struct buf want = run_gpu(&p, &on, be, p.op.n_tok, true);
            for (size_t q = 0; q < CTW_COUNT(pieces); q++) {
                if (pieces[q] >= p.op.n_tok || (pieces[q] < 7 && p.op.n_tok > 300))
                    continue;
                struct buf got = run_gpu(&p, &on, be, pieces[q], true);
                if (memcmp(got.p, want.p, want.bytes) != 0)
                    fail_msg("%s %s epilogue %d m %" PRId64 " n %" PRId64 ": other bits in pieces of %d",
                             variants[v], ctw_dtype_name(p.op.dtype), (int)p.op.epilogue, p.op.n_tok,
                             p.n_columns, (int)pieces[q]);
                buf_close(&got);
            }
            buf_close(&want);
            unplace(&on);
            problem_close(&p);
        }
        ctw_backend_close(be);
        printf("ok: %s: a row is the same regardless of the other rows\n", variants[v]);
    }
}

/* ---- two products of experts at once ------------------------------------------------------ */

static void open_expert(struct problem *p, const struct shape *s, enum ctw_dtype dtype, bool down)
{
    for (;;) {
        enum ctw_epilogue up = rng_below(4) == 0 ? CTW_EPI_STORE : CTW_EPI_GATE;
        problem_open(p, s, dtype, down ? CTW_EPI_SCATTER : up, true, false);
        p->op.slot = ctw_expert_slot(down, down);
        if ((down ? p->op.y_rows : p->op.x_rows) != NULL && p->op.x_weight == NULL)
            return;
        problem_close(p);
    }
}

/* The square of the ReLU of a product that is stored. */
static struct ctw_op_act relu2_of(const struct ctw_op_linear *op, int64_t n)
{
    return (struct ctw_op_act){.act = CTW_ACT_RELU2,
                               .dtype = op->dtype,
                               .n_tok = op->n_tok,
                               .dim = n,
                               .x = op->y,
                               .ldx = op->ldy,
                               .y = op->y,
                               .ldy = op->ldy};
}

/* Few and many tiles of either, so that they are dealt to the clusters in every way. */
static void pairs_have_the_bits_of_each_alone(void **state)
{
    (void)state;
    static const int64_t rows[] = {3, 130, 700, 2100, 4500}, cols[] = {64, 256, 520, 1536};
    static const int64_t k[] = {64, 192, 768};
    for (size_t v = 0; v < CTW_COUNT(variants); v++) {
        struct ctw_backend *be = gpu(variants[v]);
        if (be == NULL)
            continue;
        for (int round = 0; round < 40; round++) {
            struct problem p[2];
            struct placed on[2];
            struct buf want[2];
            struct dev y[2];
            struct ctw_op_linear op[2];
            for (int i = 0; i < 2; i++) {
                struct shape s = {rows[rng_below(5)], cols[rng_below(4)], k[rng_below(3)]};
                open_expert(&p[i], &s, dtypes[round % 3], i == 1);
                place(&on[i], &p[i], be);
                want[i] = run_gpu(&p[i], &on[i], be, p[i].op.n_tok, true);
                y[i] = dev_open(be, p[i].y.p, p[i].y.bytes, p[i].y_shift);
                op[i] = on_device(&p[i], &on[i], &y[i]);
                OK(ctw_prepare(be, &op[i], &last_err));
            }
            const struct ctw_op_act act = relu2_of(&op[0], p[0].n_columns);
            const bool acts = op[0].epilogue == CTW_EPI_STORE && round % 2 == 0;
            if (acts) {
                struct ctw_op_act after = act;
                struct dev stored = dev_open(be, want[0].p, want[0].bytes, p[0].y_shift);
                after.x = after.y = stored.p;
                OK(ctw_act(be, &after, &last_err));
                dev_read(&stored, want[0].p);
                dev_close(&stored);
            }
            OK(ctw_linear_pair(be, &op[0], acts ? &act : NULL, &op[1], &last_err));
            for (int i = 0; i < 2; i++) {
                struct buf got = buf_open(p[i].y.bytes, 0);
                dev_read(&y[i], got.p);
                if (memcmp(got.p, want[i].p, got.bytes) != 0)
                    fail_msg("%s %s: %s product, m %d n %d k %d beside m %d n %d k %d: other bits",
                             variants[v], ctw_dtype_name(p[i].op.dtype),
                             i == 0 ? "gathered" : "scattered",
                             (int)p[i].op.n_tok, (int)p[i].n_columns, (int)p[i].w[0].w.k,
                             (int)p[1 - i].op.n_tok, (int)p[1 - i].n_columns, (int)p[1 - i].w[0].w.k);
                buf_close(&got);
                buf_close(&want[i]);
                dev_close(&y[i]);
                unplace(&on[i]);
                problem_close(&p[i]);
            }
        }
        ctw_backend_close(be);
        printf("ok: %s: two products of experts at once have the bits of each alone\n", variants[v]);
    }
}

/* NaN and infinity reach all columns of their own row, and no other row. */
static void what_is_not_finite_stays_in_its_row(void **state)
{
    (void)state;
    static const struct shape shape = {140, 128, 256};
    for (size_t v = 0; v < 2 * CTW_COUNT(variants); v++) {
        struct ctw_backend *be = gpu(variants[v / 2]);
        if (be == NULL)
            continue;
        for (size_t d = 0; d < 2 * CTW_COUNT(dtypes); d++) {
            struct problem p;
            struct placed on;
            problem_open(&p, &shape, dtypes[d / 2], d % 2 != 0 ? CTW_EPI_GATE : CTW_EPI_STORE, v % 2 != 0,
                         true);
            place(&on, &p, be);
            struct buf want = run_gpu(&p, &on, be, p.op.n_tok, true);
            unplace(&on);
            ctw_store_float(p.x.p, p.op.dtype, 5 * p.op.ldx + 9, NAN);
            ctw_store_float(p.x.p, p.op.dtype, 6 * p.op.ldx + 3, INFINITY);
            place(&on, &p, be);
            struct buf got = run_gpu(&p, &on, be, p.op.n_tok, true);
            for (int64_t t = 0; t < shape.m; t++) {
                for (int64_t o = 0; o < shape.n; o++) {
                    float g = ctw_load_float(got.p, p.op.dtype, t * p.op.ldy + o);
                    float w = ctw_load_float(want.p, p.op.dtype, t * p.op.ldy + o);
                    if (t == 5 ? !isnan(g) : t == 6 ? d % 2 == 0 && isfinite(g) : g != w)
                        fail_msg("row %d column %d: %g, before %g", (int)t, (int)o, g, w);
                }
            }
            buf_close(&want);
            buf_close(&got);
            unplace(&on);
            problem_close(&p);
        }
        ctw_backend_close(be);
    }
    printf("ok: what is not finite stays in its row\n");
}

/* ---- fences ------------------------------------------------------------------------------- */

/* Weights are overwritten as soon as a fence allows it, behind a long queue of decoding ahead:
 * the last decoded weights must not have seen that. */
static void a_fence_covers_what_is_decoded_ahead(void **state)
{
    (void)state;
    enum { QUEUE = 200 };
    static const struct shape shape = {64, 4096, 4096};
    for (size_t v = 0; v < CTW_COUNT(variants); v++) {
        struct problem p;
        struct placed on;
        uint64_t fence;
        struct ctw_backend *be = gpu(variants[v]);
        if (be == NULL)
            continue;
        rng_state = 17;
        problem_open(&p, &shape, CTW_F16, CTW_EPI_STORE, true, true);
        place(&on, &p, be);
        struct buf want = run_gpu(&p, &on, be, p.op.n_tok, true), got = buf_open(p.y.bytes, 0);
        struct dev y = dev_open(be, p.y.p, p.y.bytes, p.y_shift);
        struct ctw_op_linear op = p.op;
        op.shards = on.shards;
        op.x = on.x.p;
        op.y = y.p;
        for (int i = 0; i < QUEUE; i++)
            OK(ctw_prepare(be, &op, &last_err));
        OK(ctw_fence_record(be, &fence, &last_err));
        OK(ctw_fence_wait(be, fence, &last_err));
        for (int i = 0; i < p.op.n_shards; i++) {
            const struct dev *values = &on.part[i][CTW_PART_VALUES];
            if (values->base == NULL) /* rows of another shard's matrix */
                continue;
            void *zeros = calloc(1, values->bytes);
            assert_non_null(zeros);
            OK(ctw_device_upload(be, values->p, zeros, values->bytes, &last_err));
            free(zeros);
        }
        OK(ctw_linear(be, &op, &last_err));
        dev_read(&y, got.p);
        assert_memory_equal(got.p, want.p, want.bytes);
        dev_close(&y);
        buf_close(&want);
        buf_close(&got);
        unplace(&on);
        problem_close(&p);
        ctw_backend_close(be);
    }
    printf("ok: a fence covers what is decoded ahead\n");
}

/* ---- activations -------------------------------------------------------------------------- */

/* act(x) of single numbers, through a layer of one weight. */
static void activations_are_accurate(void **state)
{
    (void)state;
    enum { N = 20000 };
    struct problem p;
    struct placed on;
    static const struct shape shape = {N, 1, 1};
    struct ctw_backend *be = gpu("general");
    rng_state = 7;
    problem_open(&p, &shape, CTW_F32, CTW_EPI_GATE, false, true);
    float one = 1;
    for (int i = 0; i < 2; i++) {
        if (p.w[i].bias.base != NULL)
            buf_close(&p.w[i].bias);
        p.shards[i].bias = NULL;
        ctw_store_float(p.w[i].part[CTW_PART_VALUES].p, CTW_BF16, 0, i == 0 ? 1 : 0);
    }
    p.w[1].bias = buf_open(sizeof(one), 0); /* up = 0 * x + 1 */
    memcpy(p.w[1].bias.p, &one, sizeof(one));
    p.shards[1].bias = p.w[1].bias.p;
    p.shards[1].bias_dtype = CTW_F32;
    for (int i = 0; i < N; i++)
        ctw_store_float(p.x.p, CTW_F32, i * p.op.ldx,
                        i < 200 ? (float)(i - 100) : rng_normal() * ldexpf(1, -(int)(i % 30) + 5));
    place(&on, &p, be);
    double worst[5] = {0};
    for (int a = 0; a < 5; a++) {
        p.op.act = (enum ctw_activation)a;
        struct buf y = run_gpu(&p, &on, be, N, false);
        for (int t = 0; t < N; t++) {
            double g = ctw_load_float(p.x.p, CTW_F32, t * p.op.ldx), want;
            double got = ctw_load_float(y.p, CTW_F32, t * p.op.ldy);
            double inner = 0.7978845608028654 * (g + 0.044715 * g * g * g);
            if (a == CTW_ACT_SILU)
                want = g / (1 + exp(-g));
            else if (a == CTW_ACT_GELU)
                want = 0.5 * g * erfc(-g * M_SQRT1_2);
            else if (a == CTW_ACT_GELU_TANH)
                want = g / (1 + exp(-2 * inner));
            else
                want = g < 0 ? 0 : a == CTW_ACT_RELU ? g : g * g;
            double e = a == CTW_ACT_SILU   ? 8 * 0x1p-24 * fabs(want)
                       : a == CTW_ACT_GELU ? (12 + 2 * g * g) * 0x1p-24 * fabs(want)
                       : a == CTW_ACT_GELU_TANH
                           ? (12 + 16 * fabs(inner)) * 0x1p-24 * fabs(want)
                           : 2 * 0x1p-24 * fabs(want);
            near(got, want, e + 0x1p-120, "activation", t);
            if (fabs(g) < 4 && want != 0)
                worst[a] = fmax(worst[a], fabs(got / want - 1) * 0x1p24);
        }
        buf_close(&y);
    }
    printf("ok: activations; worst relative errors below 4: silu %.1f gelu %.1f gelu_tanh %.1f x 2^-24\n",
           worst[0], worst[1], worst[2]);
    unplace(&on);
    problem_close(&p);
    ctw_backend_close(be);
}

/* ---- the file of choices ------------------------------------------------------------------ */

static char cache[] = "/tmp/ctw-cache-XXXXXX";

/* Puts `text` at the start of every file of choices, or removes the files. Returns their number. */
static int spoil(const char *text)
{
    char folder[64], path[400];
    int n = 0;
    snprintf(folder, sizeof(folder), "%s/ctworker", cache);
    DIR *dir = opendir(folder);
    for (struct dirent *e; dir != NULL && (e = readdir(dir)) != NULL;) {
        if (strncmp(e->d_name, "gemm-", 5) != 0)
            continue;
        snprintf(path, sizeof(path), "%s/%s", folder, e->d_name);
        n++;
        if (text == NULL) {
            unlink(path);
            continue;
        }
        FILE *f = fopen(path, "r+");
        assert_non_null(f);
        fputs(text, f);
        fclose(f);
    }
    if (dir != NULL)
        closedir(dir);
    return n;
}

static void choices_change_nothing(void **state)
{
    (void)state;
    static const struct shape shape = {700, 1024, 1024};
    for (size_t v = 0; v < CTW_COUNT(variants); v++) {
        struct problem p;
        struct buf want = {0};
        problem_open(&p, &shape, CTW_BF16, CTW_EPI_STORE, true, true);
        for (int round = 0; round < 4; round++) { /* new, remembered, spoiled, removed */
            struct ctw_backend *be = gpu(variants[v]);
            struct placed on;
            if (be == NULL)
                break;
            place(&on, &p, be);
            struct buf got = run_gpu(&p, &on, be, p.op.n_tok, true);
            if (round > 0)
                assert_memory_equal(got.p, want.p, want.bytes);
            else
                want = buf_copy(&got, 0);
            buf_close(&got);
            unplace(&on);
            ctw_backend_close(be);
            if (round > 0)
                assert_true(spoil(round == 1 ? "spoiled" : NULL) > 0);
        }
        if (want.base != NULL)
            buf_close(&want);
        problem_close(&p);
    }
    printf("ok: remembered, spoiled or gone: choices change no bit\n");
}

/* ---- rates -------------------------------------------------------------------------------- */

#include "linear_qkv.h"
#include "linear_rates.h"

/* In one step if the product can finish heads itself, else in two: the results are the same. */
static void heads_are_the_same_in_one_step(void **state)
{
    (void)state;
    for (size_t v = 0; v < CTW_COUNT(variants); v++) {
        struct ctw_backend *be = gpu(variants[v]);
        if (be == NULL)
            continue;
        split_check(be, variants[v]);
        ctw_backend_close(be);
        printf("ok: %s: queries, keys and values are the same in one step\n", variants[v]);
    }
}

/* If the product finishes heads, it does not write y, so the test can see that it does. */
static void the_product_finishes_heads_itself(void **state)
{
    (void)state;
    struct ctw_backend *be = gpu("hopper");
    for (size_t s = 0; be != NULL && s < 3; s++) {
        struct split_problem p;
        split_open(&p, be, &split_shapes[s], s == 1 ? CTW_F16 : CTW_BF16, 0);
        p.qkv.pairing = CTW_ROPE_HALVES;
        size_t bytes = (size_t)(SPLIT_ROWS * p.op.ldy) * 2;
        struct buf before = buf_open(bytes, 0), after = buf_open(bytes, 0);
        OK(ctw_device_download(be, before.p, p.op.y, bytes, &last_err));
        struct buf out = split_run(&p, be, SPLIT_ROWS, true);
        OK(ctw_device_download(be, after.p, p.op.y, bytes, &last_err));
        assert_memory_equal(before.p, after.p, bytes);
        buf_close(&out);
        out = split_run(&p, be, SPLIT_ROWS, false);
        OK(ctw_device_download(be, after.p, p.op.y, bytes, &last_err));
        assert_memory_not_equal(before.p, after.p, bytes);
        buf_close(&out);
        buf_close(&before);
        buf_close(&after);
        split_close(&p, be);
    }
    ctw_backend_close(be);
}

static int setup(void **state)
{
    assert_non_null(mkdtemp(cache));
    setenv("XDG_CACHE_HOME", cache, 1);
    setenv("CTW_LOG", "debug", 0); /* logs the chosen algorithms */
    setvbuf(stdout, NULL, _IOLBF, 0);
    return ops_setup(state);
}

static int teardown(void **state)
{
    (void)state;
    char folder[64];
    (void)spoil(NULL);
    snprintf(folder, sizeof(folder), "%s/ctworker", cache);
    (void)rmdir(folder);
    (void)rmdir(cache);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_agrees_with_the_definition),
        cmocka_unit_test(a_row_does_not_depend_on_the_other_rows),
        cmocka_unit_test(pairs_have_the_bits_of_each_alone),
        cmocka_unit_test(what_is_not_finite_stays_in_its_row),
        cmocka_unit_test(a_fence_covers_what_is_decoded_ahead),
        cmocka_unit_test(activations_are_accurate),
        cmocka_unit_test(heads_are_the_same_in_one_step),
        cmocka_unit_test(the_product_finishes_heads_itself),
        cmocka_unit_test(choices_change_nothing),
    };
    const struct CMUnitTest measured[] = {cmocka_unit_test(rates)};
    return rates_wanted(argc, argv) ? cmocka_run_group_tests(measured, setup, teardown)
                                    : cmocka_run_group_tests(tests, setup, teardown);
}
