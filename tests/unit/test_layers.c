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

#include "fenced_pass.h"
#include "worker/weights/provider_ops.h"

enum { N_DECODERS = 4, ARENAS = 2 };

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
    score_by(m, p.be, &p.base, false, logprob);
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
    score_by(m, be, mapped, false, want);
    ctw_provider_close(mapped);
    ctw_backend_close(be);
    ctw_model_close(m);
    for (enum how how = AS_SAID; how <= AT_ONCE; how++) {
        score_on_arenas(how, got);
        assert_memory_equal(got, want, sizeof(want));
    }
}

static void score_wrongly(void *how)
{
    float logprob[N_TOK - 1];
    score_on_arenas(*(const enum how *)how, logprob);
}

static void bytes_that_are_taken_before_are_noticed(void **state)
{
    (void)state;
    for (enum how how = NO_FENCE; how <= NO_WAIT_AT_END; how++)
        expect_death(score_wrongly, &how,
                     how == NO_WAIT_AT_END ? "free: " : "upload: the target: ");
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
