/*
 * What products have on a GPU alone: decoding ahead, choices of algorithms that change nothing, heads
 * that a product finishes; rates, also of a comparison's operations. From the repository's root, with a
 * built backend:
 *
 *   cc -std=gnu11 -O2 -ffp-contract=off -D_GNU_SOURCE -DCTW_ON_GPU=1 -I. -Itests/ops -o test_products
 *     tests/gpu/test_products.c BUILD/kernels/libctw_kernels.a BUILD/base/libctw_base.a
 *     -lcmocka -ldl -lm -pthread
 *   CTWORKER_CUDA_LIBRARY=BUILD/kernels/cuda/libctworker_cuda.so ./test_products
 *
 * test_products rates: instead, the rates. CTW_LOG=info prints the chosen algorithms.
 */
#include <dirent.h>
#include <unistd.h>

#include "gpu_device.h"
#include "linear_problem.h"
#include "linear_qkv.h"

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
        struct buf want = run(&p, &on, be, p.op.n_tok, true), got = buf_open(p.y.bytes, 0);
        struct dev y = dev_open(be, p.y.p, p.y.bytes, p.y_shift);
        struct ctw_op_linear op = on_device(&p, &on, &y);
        for (int i = 0; i < QUEUE; i++)
            OK(ctw_prepare(be, &op, &last_err));
        OK(ctw_fence_record(be, &fence, &last_err));
        OK(ctw_fence_wait(be, fence, &last_err));
        for (int i = 0; i < p.op.n_shards; i++) {
            const struct dev *values = &on.w[i].part[CTW_PART_VALUES];
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
            struct buf got = run(&p, &on, be, p.op.n_tok, true);
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

#include "head_rates.h"
#include "linear_rates.h"

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
        cmocka_unit_test(a_fence_covers_what_is_decoded_ahead),
        cmocka_unit_test(the_product_finishes_heads_itself),
        cmocka_unit_test(choices_change_nothing),
    };
    const struct CMUnitTest measured[] = {
        cmocka_unit_test(rates),
        cmocka_unit_test(rates_of_heads),
        cmocka_unit_test(rate_of_differences),
    };
    return rates_wanted(argc, argv) ? cmocka_run_group_tests(measured, setup, teardown)
                                    : cmocka_run_group_tests(tests, setup, teardown);
}
