/* The streamed provider, on the CPU and on the fake GPU (tests/service/fake_device.c): with any
 * limit, slow reads, passes that end early, files that change, and without its wait for the fence.
 */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "fenced_pass.h"
#include "same_layer.h"
#include "worker/checkpoint/identity.h"

enum { N_DECODERS = 6 };

static const char *backend;
static char dir[] = "/tmp/ctw_test_streamed_XXXXXX";

/* ---- a disk that is slow, and fails ------------------------------------------------------- */

static atomic_int slow_us, fail_read; /* fail_read: the n-th read from now on; 0: none */
static atomic_uint n_reads;

ssize_t __real_pread(int fd, void *to, size_t bytes, off_t at);
ssize_t __wrap_pread(int fd, void *to, size_t bytes, off_t at);

/* Some reads take long, and many return less than they were asked for. */
ssize_t __wrap_pread(int fd, void *to, size_t bytes, off_t at)
{
    unsigned n = atomic_fetch_add(&n_reads, 1) * 2654435761u >> 16;
    if (atomic_load(&fail_read) > 0 && atomic_fetch_sub(&fail_read, 1) == 1) {
        errno = EIO;
        return -1;
    }
    if (atomic_load(&slow_us) > 0) {
        const struct timespec nap = {.tv_nsec = (long)(n % 8 == 0) * atomic_load(&slow_us) * 1000};
        nanosleep(&nap, NULL);
        bytes = n % 3 == 0 && bytes > 1 ? bytes / 2 : bytes;
    }
    return __real_pread(fd, to, bytes, at);
}

/* ---- a provider that breaks the rule ------------------------------------------------------ */

static bool no_waits, no_fences;
static const struct ctw_backend_ops *sound;

static enum ctw_status no_wait(struct ctw_backend *be, uint64_t fence, struct ctw_err *err)
{
    (void)be;
    (void)fence;
    (void)err;
    return CTW_OK;
}

/* The fence of what was called before the first release. */
static enum ctw_status first_fence(struct ctw_backend *be, uint64_t *fence, struct ctw_err *err)
{
    static uint64_t first;
    static bool recorded;
    enum ctw_status st = recorded ? CTW_OK : sound->fence_record(be, &first, err);
    recorded = true;
    *fence = first;
    return st;
}

/* Before anything uses the backend. */
static void break_fences(struct ctw_backend *be)
{
    static struct ctw_backend_ops broken;
    sound = be->ops;
    broken = *sound;
    broken.fence_wait = no_waits ? no_wait : sound->fence_wait;
    broken.fence_record = no_fences ? first_fence : sound->fence_record;
    be->ops = &broken;
}

/* ---- opening ------------------------------------------------------------------------------ */

struct opened {
    struct ctw_model *m;
    struct ctw_backend *be;
    struct ctw_provider *streamed;
};

static uint64_t all_weights(const struct ctw_model *m, uint64_t *least)
{
    struct ctw_placement p;
    struct ctw_err err;
    assert_int_equal(ctw_placement_make_least(&p, m, &err), CTW_OK);
    uint64_t weights = p.weights;
    *least = p.resident + p.ring;
    ctw_placement_free(&p);
    return weights;
}

static void open_with(struct opened *o, uint64_t limit)
{
    struct ctw_err err;
    struct ctw_placement p;
    const struct ctw_backend_options opt = {.n_threads = 1};
    assert_int_equal(ctw_model_open(&o->m, dir, NULL, &err), CTW_OK);
    assert_int_equal(ctw_backend_open(&o->be, backend, &opt, &err), CTW_OK);
    if (no_waits || no_fences)
        break_fences(o->be);
    if (limit == 0)
        assert_int_equal(ctw_placement_make_least(&p, o->m, &err), CTW_OK);
    else
        assert_int_equal(ctw_placement_make(&p, o->m, limit, &err), CTW_OK);
    assert_int_equal(ctw_provider_open_streamed(&o->streamed, o->m, o->be, &p, NULL, &err), CTW_OK);
}

static void close_all(struct opened *o)
{
    ctw_provider_close(o->streamed);
    ctw_backend_close(o->be);
    ctw_model_close(o->m);
}

/* ---- bytes -------------------------------------------------------------------------------- */

/* The fake GPU's memory is the host's. */
static void assert_layer(struct opened *o, struct ctw_provider *mapped, int layer)
{
    struct ctw_err err;
    const struct ctw_layer_data *a, *b;
    assert_int_equal(ctw_provider_acquire(mapped, layer, &a, &err), CTW_OK);
    if (ctw_provider_acquire(o->streamed, layer, &b, &err) != CTW_OK)
        fail_msg("%s", err.msg);
    assert_int_equal(ctw_backend_sync(o->be, &err), CTW_OK);
    assert_same_layer(&o->m->layers[layer], a, b);
    ctw_provider_release(mapped, layer);
    ctw_provider_release(o->streamed, layer);
}

/* Passes that end at random layers; in every other trial, the first has a head only, which is tied.
 */
static void every_layer_holds_the_files_bytes(void **state)
{
    (void)state;
    struct ctw_err err;
    struct opened o;
    srand(3);
    atomic_store(&slow_us, 300);
    tiny_write(dir, N_DECODERS, -1);
    assert_int_equal(ctw_model_open(&o.m, dir, NULL, &err), CTW_OK);
    uint64_t least, all = all_weights(o.m, &least);
    ctw_model_close(o.m);
    for (int trial = 0; trial < 12; trial++) {
        struct ctw_provider *mapped;
        uint64_t span = all + 1000 - least;
        open_with(&o, trial == 0 ? 0 : trial == 1 ? all : least + (uint64_t)rand() % span);
        assert_int_equal(ctw_provider_open_mapped(&mapped, o.m, &err), CTW_OK);
        if (trial % 2 == 0)
            assert_layer(&o, mapped, o.m->n_layers - 1);
        for (int pass = 0; pass < 5; pass++) {
            int end = pass == 4 || rand() % 2 == 0 ? o.m->n_layers : rand() % o.m->n_layers;
            for (int layer = 0; layer < end; layer++)
                assert_layer(&o, mapped, layer);
        }
        assert_string_not_equal(ctw_identity_text(o.m->identity), "");
        ctw_provider_close(mapped);
        close_all(&o);
    }
    atomic_store(&slow_us, 0);
}

/* ---- scores ------------------------------------------------------------------------------- */

static void scores_do_not_depend_on_the_limit(void **state)
{
    (void)state;
    float want[N_TOK - 1], got[N_TOK - 1];
    struct ctw_err err;
    struct opened o;
    struct ctw_provider *mapped;
    const struct ctw_backend_options opt = {.n_threads = 1};
    tiny_write(dir, N_DECODERS, -1);
    assert_int_equal(ctw_model_open(&o.m, dir, NULL, &err), CTW_OK);
    assert_int_equal(ctw_backend_open(&o.be, "cpu", &opt, &err), CTW_OK);
    assert_int_equal(ctw_provider_open_mapped(&mapped, o.m, &err), CTW_OK);
    score_by(o.m, o.be, mapped, true, want);
    uint64_t least, all = all_weights(o.m, &least);
    ctw_provider_close(mapped);
    ctw_backend_close(o.be);
    ctw_model_close(o.m);
    atomic_store(&slow_us, 100);
    for (uint64_t limit = least; limit < all + 2000; limit += 1700) {
        open_with(&o, limit);
        score_by(o.m, o.be, o.streamed, true, got);
        close_all(&o);
        assert_memory_equal(got, want, sizeof(want));
    }
    atomic_store(&slow_us, 0);
}

/* ---- fences ------------------------------------------------------------------------------- */

static void score_streamed(void *arg)
{
    (void)arg;
    float logprob[N_TOK - 1];
    struct opened o;
    open_with(&o, 0);
    score_by(o.m, o.be, o.streamed, true, logprob);
    close_all(&o);
}

static void bytes_are_not_reused_before_their_fence(void **state)
{
    (void)state;
    tiny_write(dir, N_DECODERS, -1);
    expect_death(score_streamed, NULL, NULL);
    no_waits = true;
    expect_death(score_streamed, NULL, "upload_begin: the target: ");
    no_waits = false;
    no_fences = true;
    expect_death(score_streamed, NULL, "upload_begin: the target: ");
    no_fences = false;
}

/* ---- files that change -------------------------------------------------------------------- */

/* Passes until one fails; its message. */
static void pass_until_failure(struct opened *o, struct ctw_err *err)
{
    enum ctw_status st = CTW_OK;
    for (int layer = 0, n = 0; st == CTW_OK; layer = (layer + 1) % o->m->n_layers) {
        const struct ctw_layer_data *data;
        assert_true(n++ < 100 * o->m->n_layers);
        st = ctw_provider_acquire(o->streamed, layer, &data, err);
        if (st == CTW_OK)
            ctw_provider_release(o->streamed, layer);
    }
    assert_int_equal(st, CTW_EIO);
}

static void pass_once(struct opened *o)
{
    struct ctw_err err;
    for (int layer = 0; layer < o->m->n_layers; layer++) {
        const struct ctw_layer_data *data;
        assert_int_equal(ctw_provider_acquire(o->streamed, layer, &data, &err), CTW_OK);
        ctw_provider_release(o->streamed, layer);
    }
}

static void a_file_that_changes_is_an_error(void **state)
{
    (void)state;
    enum { CUT, CHANGED, BROKEN, N_WAYS };
    for (int way = 0; way < 2 * N_WAYS; way++) {
        static const char *const says[] = {"model.safetensors: the file became shorter",
                                           "model.safetensors: the file changed while it was in "
                                           "use (tensor model.layers.",
                                           "model.safetensors: cannot read: Input/output error"};
        struct opened o;
        struct ctw_err err = {0};
        char path[256];
        tiny_write(dir, N_DECODERS, -1);
        tiny_path(path, sizeof(path), dir, "model.safetensors");
        open_with(&o, 0);
        if (way < N_WAYS)
            pass_once(&o);
        if (way % N_WAYS == CHANGED) {
            /* Without a pass before, what is read first is the identity; so make one. */
            if (way >= N_WAYS)
                pass_once(&o);
            int fd = open(path, O_RDWR | O_CLOEXEC);
            off_t end = lseek(fd, 0, SEEK_END);
            unsigned char byte;
            assert_int_equal(pread(fd, &byte, 1, end / 2), 1);
            byte ^= 1;
            assert_int_equal(pwrite(fd, &byte, 1, end / 2), 1);
            close(fd);
        } else if (way % N_WAYS == CUT) {
            assert_int_equal(truncate(path, 3000), 0);
        } else {
            atomic_store(&fail_read, 5 + way);
        }
        pass_until_failure(&o, &err);
        assert_non_null(strstr(err.msg, says[way % N_WAYS]));
        pass_until_failure(&o, &err); /* for good */
        atomic_store(&fail_read, 0);
        close_all(&o);
    }
}

int main(void)
{
    const struct CMUnitTest first[] = {cmocka_unit_test(bytes_are_not_reused_before_their_fence)};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_layer_holds_the_files_bytes),
        cmocka_unit_test(scores_do_not_depend_on_the_limit),
        cmocka_unit_test(a_file_that_changes_is_an_error),
    };
    if (mkdtemp(dir) == NULL || setenv("CTWORKER_CUDA_LIBRARY", CTW_FAKE_DEVICE, 1) != 0)
        return 1;
    backend = "cuda";
    /* It forks, which is before this process has threads. */
    int failed = cmocka_run_group_tests_name("fences", first, NULL, NULL);
    failed += cmocka_run_group_tests_name("streamed on a GPU", tests, NULL, NULL);
    backend = "cpu";
    failed += cmocka_run_group_tests_name("streamed on the CPU", tests, NULL, NULL);
    tiny_remove(dir);
    return failed;
}
