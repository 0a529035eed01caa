/* Engines of several models on one device: it is opened once, its scratch memory is shared, and
 * steps of two engines may be interleaved in any way without changing a bit. On the CPU, and on the
 * fake GPU (tests/service/fake_device.c). */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "tiny_model.h"
#include "worker/engine/engine.h"
#include "worker/engine/open/activity.h"
#include "worker/weights/provider_ops.h"

enum { N_MODELS = 2, N_SEQS = 5, N_TOK = 7, N_OUT = N_SEQS * (N_TOK - 1) };

static const char *backend;
static char dirs[N_MODELS][32] = {"/tmp/ctw_test_devices_XXXXXX", "/tmp/ctw_test_devices_XXXXXX"};
static const char *const names[N_MODELS] = {"short", "deep"};
static const int n_decoders[N_MODELS] = {2, 5};

static struct ctw_engine *open_engine(int model, struct ctw_devices *devices)
{
    struct ctw_engine *e;
    struct ctw_err err;
    const struct ctw_engine_options opt = {.model_dir = dirs[model],
                                           .name = names[model],
                                           .backend = backend,
                                           .devices = devices,
                                           .n_threads = 1,
                                           .chunk_tokens = 4 + model,
                                           .pass_tokens = 13};
    if (ctw_engine_open(&e, &opt, &err) != CTW_OK)
        fail_msg("%s", err.msg);
    return e;
}

/* What one engine scores: three passes, and chunks whose edges lie within sequences. */
struct scores {
    int32_t tokens[N_SEQS][N_TOK];
    struct ctw_seq seqs[N_SEQS];
    float logprob[N_OUT];
    int32_t greedy[N_OUT];
};

static void prepare(struct scores *s, int model)
{
    memset(s, 0, sizeof(*s));
    for (int i = 0; i < N_SEQS; i++) {
        for (int t = 0; t < N_TOK; t++)
            s->tokens[i][t] = (3 * i + t * t + model) % VOCAB;
        s->seqs[i] = (struct ctw_seq){.tokens = s->tokens[i],
                                      .n_tok = N_TOK - i % 3,
                                      .first = 1,
                                      .logprob = s->logprob + (ptrdiff_t)i * (N_TOK - 1),
                                      .greedy = s->greedy + (ptrdiff_t)i * (N_TOK - 1)};
    }
}

static void assert_same(const struct scores *got, const struct scores *want)
{
    assert_memory_equal(got->logprob, want->logprob, sizeof(want->logprob));
    assert_memory_equal(got->greedy, want->greedy, sizeof(want->greedy));
}

/* Of this backend, by an engine on a device of its own. */
static struct scores alone[N_MODELS];

static int score_alone(void **state)
{
    (void)state;
    for (int m = 0; m < N_MODELS; m++) {
        struct ctw_err err;
        struct ctw_engine *e = open_engine(m, NULL);
        prepare(&alone[m], m);
        assert_int_equal(ctw_engine_score(e, alone[m].seqs, N_SEQS, NULL, &err), CTW_OK);
        ctw_engine_close(e);
    }
    return 0;
}

static void a_device_is_opened_once(void **state)
{
    (void)state;
    struct ctw_devices devices = {0};
    struct ctw_device *d[4];
    struct ctw_err err;
    const struct ctw_backend_options one = {.n_threads = 1}, two = {.n_threads = 2};
    const struct ctw_backend_options bad = {.variant = "none"};
    assert_int_equal(ctw_devices_borrow(&devices, &d[0], backend, &one, &err), CTW_OK);
    assert_int_equal(ctw_devices_borrow(&devices, &d[1], backend, &two, &err), CTW_OK);
    assert_int_equal(ctw_devices_borrow(&devices, &d[2], backend, &one, &err), CTW_OK);
    assert_int_equal(ctw_devices_borrow(&devices, &d[3], backend, &bad, &err), CTW_EINVAL);
    assert_true(d[0] == d[2]);
    assert_true(d[0] != d[1]);
    assert_true(d[0]->be != d[1]->be);
    ctw_devices_return(&devices, d[0]);
    assert_int_equal(ctw_backend_sync(d[2]->be, &err), CTW_OK); /* it is still open */
    ctw_devices_return(&devices, d[1]);
    assert_true(devices.first == d[2]);
    assert_true(d[2]->next == NULL);
    ctw_devices_return(&devices, d[2]);
    assert_null(devices.first);
    ctw_devices_return(&devices, NULL);
}

/* Every engine takes a step in its turn; order: which engine is next. */
static void take_turns(int (*order)(int64_t step))
{
    struct ctw_devices devices = {0};
    struct ctw_engine *e[N_MODELS];
    struct ctw_scoring *scoring[N_MODELS];
    struct scores got[N_MODELS];
    bool done[N_MODELS] = {false};
    struct ctw_err err;
    for (int m = 0; m < N_MODELS; m++) {
        prepare(&got[m], m);
        e[m] = open_engine(m, &devices);
        assert_int_equal(ctw_scoring_begin(&scoring[m], e[m], got[m].seqs, N_SEQS, NULL, &err),
                         CTW_OK);
    }
    assert_null(devices.first->next);
    for (int64_t i = 0; !done[0] || !done[1]; i++) {
        int m = order(i) % N_MODELS;
        m = done[m] ? 1 - m : m;
        assert_int_equal(ctw_scoring_step(scoring[m], &done[m], &err), CTW_OK);
    }
    for (int m = 0; m < N_MODELS; m++) {
        ctw_scoring_end(scoring[m]);
        assert_same(&got[m], &alone[m]);
        ctw_engine_close(e[m]);
    }
    assert_null(devices.first);
}

static int in_turn(int64_t step)
{
    return (int)step;
}

static int two_and_one(int64_t step)
{
    return step % 3 == 2;
}

static int one_after_the_other(int64_t step)
{
    (void)step;
    return 1;
}

static int by_chance(int64_t step)
{
    return (int)((uint32_t)(step + 1) * 2654435761u >> 20);
}

static void interleaved_steps_change_no_bit(void **state)
{
    (void)state;
    take_turns(in_turn);
    take_turns(two_and_one);
    take_turns(one_after_the_other);
    take_turns(by_chance);
}

static bool always(void *arg)
{
    (void)arg;
    return true;
}

/* While one engine is in the middle of a pass, others open, score, are cancelled, trimmed and
 * closed, at each layer in turn. */
static void other_engines_come_and_go(void **state)
{
    (void)state;
    struct ctw_devices devices = {0};
    struct ctw_engine *e = open_engine(1, &devices);
    struct ctw_scoring *scoring, *cancelled;
    struct scores mine, other;
    struct ctw_err err;
    const struct ctw_hooks hooks = {.cancelled = always};
    bool done = false, other_done;
    prepare(&mine, 1);
    assert_int_equal(ctw_scoring_begin(&scoring, e, mine.seqs, N_SEQS, NULL, &err), CTW_OK);
    while (!done) {
        struct ctw_engine *guest = open_engine(0, &devices);
        prepare(&other, 0);
        assert_int_equal(ctw_engine_score(guest, other.seqs, N_SEQS, NULL, &err), CTW_OK);
        assert_same(&other, &alone[0]);
        assert_int_equal(ctw_scoring_begin(&cancelled, guest, other.seqs, N_SEQS, &hooks, &err),
                         CTW_OK);
        assert_int_equal(ctw_scoring_step(cancelled, &other_done, &err), CTW_OK); /* embedding */
        assert_int_equal(ctw_scoring_step(cancelled, &other_done, &err), CTW_ECANCELED);
        assert_int_equal(ctw_scoring_step(scoring, &done, &err), CTW_OK);
        ctw_scoring_end(cancelled);
        ctw_engine_trim(guest);
        ctw_engine_close(guest);
    }
    ctw_scoring_end(scoring);
    assert_same(&mine, &alone[1]);
    ctw_engine_close(e);
    assert_null(devices.first);
}

static void lack_of_memory_harms_no_other_engine(void **state)
{
    (void)state;
    struct ctw_devices devices = {0};
    struct ctw_engine *host = open_engine(0, &devices);
    struct scores s;
    struct ctw_err err;
    enum ctw_status st = CTW_ENOMEM;
    for (int64_t n = 1; st == CTW_ENOMEM; n++) {
        struct ctw_engine *guest = NULL;
        const struct ctw_engine_options opt = {
            .model_dir = dirs[1], .backend = backend, .devices = &devices, .n_threads = 1};
        prepare(&s, 1);
        ctw_mem_fail_at(n);
        st = ctw_engine_open(&guest, &opt, &err);
        if (st == CTW_OK)
            st = ctw_engine_score(guest, s.seqs, N_SEQS, NULL, &err);
        ctw_mem_fail_at(0);
        ctw_engine_close(guest);
        assert_int_equal(devices.first->n_engines, 1);
        assert_int_equal(devices.first->n_holders, 0);
    }
    assert_int_equal(st, CTW_OK);
    prepare(&s, 0);
    assert_int_equal(ctw_engine_score(host, s.seqs, N_SEQS, NULL, &err), CTW_OK);
    assert_same(&s, &alone[0]);
    ctw_engine_close(host);
    assert_null(devices.first);
}

/* The GPU's memory that is free once both engines have scored. */
static uint64_t free_after_both(struct ctw_engine *e[N_MODELS], struct ctw_backend *watch)
{
    struct scores s;
    struct ctw_err err;
    for (int m = 0; m < N_MODELS; m++) {
        prepare(&s, m);
        assert_int_equal(ctw_engine_score(e[m], s.seqs, N_SEQS, NULL, &err), CTW_OK);
    }
    return ctw_backend_memory_free(watch);
}

static void scratch_is_shared_and_outlives_a_trim(void **state)
{
    (void)state;
    struct ctw_devices devices = {0};
    struct ctw_backend *watch;
    struct ctw_engine *e[N_MODELS];
    struct ctw_err err;
    uint64_t apart, together;
    assert_int_equal(ctw_backend_open(&watch, "cuda", NULL, &err), CTW_OK);
    for (int m = 0; m < N_MODELS; m++)
        e[m] = open_engine(m, NULL);
    apart = free_after_both(e, watch);
    for (int m = 0; m < N_MODELS; m++)
        ctw_engine_close(e[m]);
    for (int m = 0; m < N_MODELS; m++)
        e[m] = open_engine(m, &devices);
    uint64_t before = ctw_backend_memory_free(watch);
    together = free_after_both(e, watch);
    assert_true(together > apart);
    char kept[256], trimmed[256];
    ctw_engine_describe(e[1], kept, sizeof(kept));
    ctw_engine_trim(e[0]); /* the other still needs the device's scratch memory */
    ctw_engine_describe(e[1], trimmed, sizeof(trimmed));
    assert_string_equal(kept, trimmed);
    ctw_engine_trim(e[1]);
    assert_int_equal(ctw_backend_memory_free(watch), before);
    for (int m = 0; m < N_MODELS; m++)
        ctw_engine_close(e[m]);
    ctw_backend_close(watch);
}

/* ---- what a device does ---- */

struct watched {
    const struct ctw_devices *devices;
    int n, n_layers, last_layer; /* reports while a pass ran */
};

static void look(void *arg, const struct ctw_progress *p)
{
    struct watched *w = arg;
    struct ctw_device_report r;
    (void)p;
    assert_int_equal(ctw_devices_report(w->devices, &r, 1), 1);
    assert_string_equal(r.state, "computing");
    assert_string_equal(r.model, "deep");
    assert_in_range(r.layer, 1, r.n_layers);
    w->n_layers = r.n_layers;
    w->last_layer = r.layer > w->last_layer ? r.layer : w->last_layer;
    w->n++;
}

static struct ctw_device_report report_of(const struct ctw_devices *devices)
{
    struct ctw_device_report r[2];
    assert_int_equal(ctw_devices_report(devices, r, 2), 1);
    return r[0];
}

static void others_see_what_a_device_does(void **state)
{
    (void)state;
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    struct ctw_devices devices = {.lock = &lock};
    struct ctw_engine *e[N_MODELS];
    struct ctw_engine_info info[N_MODELS];
    struct ctw_device_report r;
    struct scores s;
    struct ctw_err err;
    struct watched watched = {.devices = &devices};
    const struct ctw_hooks hooks = {.arg = &watched, .progress = look};
    assert_int_equal(ctw_devices_report(&devices, &r, 1), 0);
    for (int m = 0; m < N_MODELS; m++) {
        e[m] = open_engine(m, &devices);
        ctw_engine_get_info(e[m], &info[m]);
    }
    r = report_of(&devices);
    assert_true(r.weights == info[0].weights_memory + info[1].weights_memory);
    assert_true(r.tokens_done == 0);
    int64_t n_tok = 0;
    for (int m = 0; m < N_MODELS; m++) {
        prepare(&s, m);
        for (int i = 0; i < N_SEQS; i++)
            n_tok += s.seqs[i].n_tok - 1;
        assert_int_equal(ctw_engine_score(e[m], s.seqs, N_SEQS, m == 1 ? &hooks : NULL, &err),
                         CTW_OK);
    }
    r = report_of(&devices);
    assert_true(watched.n > 0);
    assert_true(watched.n_layers == n_decoders[1] + 1);
    assert_int_equal(watched.last_layer, watched.n_layers); /* the head */
    assert_string_equal(r.state, "idle");
    assert_true(r.weights_read == 1);
    assert_true(r.tokens_done == n_tok);
    assert_true(r.tokens_per_s > 0);
    assert_int_equal(r.passes_planned, info[1].memory_planned);
    if (strcmp(backend, "cuda") == 0) { /* what the fake GPU counts, in whole pages */
        uint64_t taken = r.memory_total - ctw_backend_memory_free(devices.first->be);
        assert_true(taken >= r.memory_used);
        assert_true(taken < r.memory_used + (1 << 20));
        assert_true(r.memory_free == r.memory_total - taken);
    } else {
        assert_true(r.memory_free < r.memory_total);
        assert_true(r.memory_used > 1 << 20);
    }
    uint64_t both = r.memory_used;
    ctw_engine_close(e[1]);
    r = report_of(&devices);
    assert_int_equal(r.weights, info[0].weights_memory);
    assert_true(strcmp(backend, "cpu") == 0 || r.memory_used < both - info[1].weights_memory);
    ctw_engine_close(e[0]);
    assert_int_equal(ctw_devices_report(&devices, &r, 1), 0);
}

static atomic_bool waiting;

static enum ctw_status acquire_waiting(struct ctw_provider *p, int layer,
                                       const struct ctw_layer_data **out, struct ctw_err *err)
{
    (void)p;
    (void)layer;
    (void)err;
    *out = NULL;
    return atomic_load(&waiting) ? CTW_OK : CTW_EINTERNAL;
}

static void a_wait_for_weights_shows(void **state)
{
    (void)state;
    static const struct ctw_provider_ops ops = {.acquire = acquire_waiting};
    struct ctw_provider p = {.ops = &ops};
    const struct ctw_layer_data *data;
    struct ctw_err err;
    assert_int_equal(ctw_provider_acquire(&p, 0, &data, &err), CTW_EINTERNAL); /* nobody asked */
    ctw_provider_watch(&p, &waiting);
    assert_int_equal(ctw_provider_acquire(&p, 0, &data, &err), CTW_OK);
    assert_false(atomic_load(&waiting));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_device_is_opened_once),
        cmocka_unit_test(interleaved_steps_change_no_bit),
        cmocka_unit_test(other_engines_come_and_go),
        cmocka_unit_test(lack_of_memory_harms_no_other_engine),
        cmocka_unit_test(others_see_what_a_device_does),
        cmocka_unit_test(a_wait_for_weights_shows),
    };
    const struct CMUnitTest on_a_gpu[] = {cmocka_unit_test(scratch_is_shared_and_outlives_a_trim)};
    setenv("CTWORKER_CUDA_LIBRARY", CTW_FAKE_DEVICE, 1);
    setenv("CTW_FAKE_GPU_COPY_US", "20", 1);
    for (int m = 0; m < N_MODELS; m++) {
        if (mkdtemp(dirs[m]) == NULL)
            return 1;
        tiny_write(dirs[m], n_decoders[m], -1);
    }
    backend = "cpu";
    int failed = cmocka_run_group_tests_name("devices: the CPU", tests, score_alone, NULL);
    backend = "cuda";
    failed += cmocka_run_group_tests_name("devices: a GPU", tests, score_alone, NULL);
    failed += cmocka_run_group_tests(on_a_gpu, NULL, NULL);
    for (int m = 0; m < N_MODELS; m++)
        tiny_remove(dirs[m]);
    return failed;
}
