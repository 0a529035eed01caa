/* Who owns a layer's bytes, and when: a provider with room for two layers reuses a layer's bytes
 * for the next layer but one. On the fake GPU (tests/service/fake_device.c), an operation reads its
 * weights until someone waits for a fence behind it. The scores equal the CPU's, and each way of
 * reusing bytes too early ends the process. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "tiny_model.h"
#include "worker/engine/pass/pass.h"
#include "worker/weights/provider_ops.h"

enum { N_DECODERS = 4, N_TOK = 6, ARENAS = 2 };

static char dir[] = "/tmp/ctw_test_layers_XXXXXX";

/* ---- the provider ------------------------------------------------------------------------- */

enum how {
    AS_SAID,       /* in provider.h */
    AT_ONCE,       /* release itself waits, and spoils the bytes */
    NO_FENCE,      /* wrong: release records none */
    NO_WAIT,       /* wrong: nobody waits for it */
    EARLY_FENCE,   /* wrong: recorded before the operations were called */
    NO_WAIT_AT_END /* wrong: the bytes are given back without */
};

struct arena {
    void *memory;
    bool fenced;
    uint64_t fence;
    struct ctw_layer_data data;
};

struct recycling {
    struct ctw_provider base;
    enum how how;
    const struct ctw_model *model;
    struct ctw_backend *be;
    size_t bytes; /* of an arena */
    struct arena arena[ARENAS];
};

static enum ctw_status wait_for(struct recycling *p, struct arena *a, struct ctw_err *err)
{
    enum ctw_status st = a->fenced ? ctw_fence_wait(p->be, a->fence, err) : CTW_OK;
    a->fenced = false;
    return st;
}

static enum ctw_status record(struct recycling *p, struct arena *a, struct ctw_err *err)
{
    a->fenced = true;
    return ctw_fence_record(p->be, &a->fence, err);
}

static enum ctw_status spoil(struct recycling *p, struct arena *a, struct ctw_err *err)
{
    static char poison[1 << 16];
    memset(poison, 0xff, sizeof(poison)); /* NaN */
    assert_true(p->bytes <= sizeof(poison));
    return ctw_device_upload(p->be, a->memory, poison, p->bytes, err);
}

static const void *put(struct recycling *p, struct arena *a, size_t *at, const struct ctw_tensor *t)
{
    struct ctw_err err;
    char *to = (char *)a->memory + *at;
    if (t == NULL)
        return NULL;
    *at += (t->bytes + 255) / 256 * 256;
    assert_true(*at <= p->bytes);
    assert_int_equal(
        ctw_device_upload(p->be, to, ctw_container_data(p->model->container, t), t->bytes, &err),
        CTW_OK);
    return to;
}

static enum ctw_status acquire(struct ctw_provider *base, int layer,
                               const struct ctw_layer_data **out, struct ctw_err *err)
{
    struct recycling *p = (struct recycling *)base;
    struct arena *a = &p->arena[layer % ARENAS];
    const struct ctw_layer *l = &p->model->layers[layer];
    size_t at = 0;
    enum ctw_status st = p->how == NO_WAIT ? CTW_OK : wait_for(p, a, err);
    if (st == CTW_OK)
        st = spoil(p, a, err);
    for (int m = 0; st == CTW_OK && m < CTW_N_MATRICES; m++)
        for (int part = 0; part < CTW_N_PARTS; part++)
            a->data.matrix[m].part[part] = put(p, a, &at, l->matrix[m].part[part]);
    for (int v = 0; st == CTW_OK && v < CTW_N_VECTORS; v++)
        a->data.vector[v] = put(p, a, &at, l->vector[v]);
    if (st == CTW_OK && p->how == EARLY_FENCE)
        st = record(p, a, err);
    *out = &a->data;
    return st;
}

static void release(struct ctw_provider *base, int layer)
{
    struct recycling *p = (struct recycling *)base;
    struct arena *a = &p->arena[layer % ARENAS];
    struct ctw_err err;
    if (p->how != NO_FENCE && p->how != EARLY_FENCE)
        assert_int_equal(record(p, a, &err), CTW_OK);
    if (p->how != AT_ONCE)
        return;
    assert_int_equal(wait_for(p, a, &err), CTW_OK);
    assert_int_equal(spoil(p, a, &err), CTW_OK);
}

static bool needs_files(struct ctw_provider *base)
{
    (void)base;
    return true;
}

static void close_arenas(struct ctw_provider *base)
{
    struct recycling *p = (struct recycling *)base;
    struct ctw_err err;
    for (int i = 0; i < ARENAS; i++) {
        if (p->how != NO_WAIT_AT_END)
            assert_int_equal(wait_for(p, &p->arena[i], &err), CTW_OK);
        ctw_device_free(p->be, p->arena[i].memory);
    }
}

/* ---- scoring ------------------------------------------------------------------------------ */

static const int32_t tokens[N_TOK] = {1, 4, 2, 9, 3, 3};

/* Two passes over the layers, in chunks; the log-probabilities of the second. */
static void score_by(struct ctw_model *m, struct ctw_backend *be, struct ctw_provider *provider,
                     float logprob[N_TOK - 1])
{
    struct ctw_err err;
    struct ctw_plan plan;
    struct ctw_forward *f;
    int32_t greedy[N_TOK - 1];
    const struct ctw_plan_request request = {.model = m,
                                             .backend = be,
                                             .dtype = CTW_F32,
                                             .memory_limit = 1 << 26,
                                             .longest = N_TOK,
                                             .total = N_TOK,
                                             .chunk_tokens = 2,
                                             .pass_tokens = N_TOK};
    assert_int_equal(ctw_plan_make(&plan, &request, &err), CTW_OK);
    assert_int_equal(ctw_forward_open(&f, m, be, CTW_F32, &plan, &err), CTW_OK);
    for (int pass = 0; pass < 2; pass++) {
        struct ctw_seq seq = {
            .tokens = tokens, .n_tok = N_TOK, .first = 1, .logprob = logprob, .greedy = greedy};
        const struct ctw_sharing sharing = {.shares = true};
        struct ctw_progress progress = {0};
        struct ctw_pass *p;
        bool done = false;
        assert_int_equal(ctw_pass_begin(&p, f, provider, &seq, 1, &sharing, NULL, &progress, &err),
                         CTW_OK);
        while (!done)
            assert_int_equal(ctw_pass_step(p, &done, &err), CTW_OK);
        ctw_pass_close(p);
        assert_int_equal(seq.bad_layer, -1);
    }
    ctw_forward_close(f);
}

static void score_on_arenas(enum how how, float logprob[N_TOK - 1])
{
    static const struct ctw_provider_ops ops = {
        .acquire = acquire, .release = release, .needs_files = needs_files, .close = close_arenas};
    struct ctw_err err;
    struct recycling p = {.base = {&ops}, .how = how, .bytes = 16384};
    struct ctw_model *m;
    const struct ctw_backend_options opt = {.n_threads = 1};
    assert_int_equal(ctw_model_open(&m, dir, NULL, &err), CTW_OK);
    assert_int_equal(ctw_backend_open(&p.be, "cuda", &opt, &err), CTW_OK);
    p.model = m;
    for (int i = 0; i < ARENAS; i++)
        assert_int_equal(ctw_device_alloc(p.be, &p.arena[i].memory, p.bytes, &err), CTW_OK);
    score_by(m, p.be, &p.base, logprob);
    ctw_provider_close(&p.base);
    ctw_backend_close(p.be);
    ctw_model_close(m);
}

static void bytes_that_are_taken_behind_the_fence_are_not_missed(void **state)
{
    (void)state;
    float want[N_TOK - 1], got[N_TOK - 1];
    struct ctw_err err;
    struct ctw_model *m;
    struct ctw_backend *be;
    struct ctw_provider *mapped;
    const struct ctw_backend_options opt = {.n_threads = 1};
    assert_int_equal(ctw_model_open(&m, dir, NULL, &err), CTW_OK);
    assert_int_equal(ctw_backend_open(&be, "cpu", &opt, &err), CTW_OK);
    assert_int_equal(ctw_provider_open_mapped(&mapped, m, &err), CTW_OK);
    score_by(m, be, mapped, want);
    ctw_provider_close(mapped);
    ctw_backend_close(be);
    ctw_model_close(m);
    for (enum how how = AS_SAID; how <= AT_ONCE; how++) {
        score_on_arenas(how, got);
        assert_memory_equal(got, want, sizeof(want));
    }
}

/* In a process of its own, which is to end with that line. */
static void expect_death(enum how how, const char *line)
{
    char said[512] = "";
    int pipe_of[2], status;
    assert_int_equal(pipe(pipe_of), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        float logprob[N_TOK - 1];
        dup2(pipe_of[1], STDERR_FILENO);
        score_on_arenas(how, logprob);
        _exit(0);
    }
    close(pipe_of[1]);
    size_t n = 0;
    for (ssize_t got = 1; got > 0 && n < sizeof(said) - 1; n += (size_t)(got > 0 ? got : 0))
        got = read(pipe_of[0], said + n, sizeof(said) - 1 - n);
    close(pipe_of[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGABRT || strstr(said, line) == NULL)
        fail_msg("way %d: status %x, said \"%s\", expected \"%s\"", (int)how, (unsigned)status,
                 said, line);
}

static void bytes_that_are_taken_before_are_noticed(void **state)
{
    (void)state;
    expect_death(NO_FENCE, "upload: the target: ");
    expect_death(NO_WAIT, "upload: the target: ");
    expect_death(EARLY_FENCE, "upload: the target: ");
    expect_death(NO_WAIT_AT_END, "free: ");
}

int main(void)
{
    /* The first forks, which is before this process has threads. */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_that_are_taken_before_are_noticed),
        cmocka_unit_test(bytes_that_are_taken_behind_the_fence_are_not_missed),
    };
    if (mkdtemp(dir) == NULL || setenv("CTWORKER_CUDA_LIBRARY", CTW_FAKE_DEVICE, 1) != 0)
        return 1;
    tiny_write(dir, N_DECODERS, -1);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    tiny_remove(dir);
    return failed;
}
