/* Engines with several devices, on 1 to 8 fake GPUs (tests/service/fake_device.c): the same bits as
 * on one, for any number, memory and speed of devices, and when some of them fail. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "tiny_model.h"
#include "worker/engine/engine.h"
#include "worker/engine/open/device_list.h"
#include "worker/engine/open/devices.h"

enum { N_DECODERS = 5, N_SEQS = 40, N_TOK = 9, N_OUT = N_SEQS * (N_TOK - 1), MAX_GPUS = 8 };

/* Sanitizers make opening an engine slow. Trials are then left out, but no faulty device, kind of
 * fault or placement, and no number of devices that each hold the whole model. */
#if defined(__SANITIZE_THREAD__)
enum { STEP_NUMBER = 3, STEP_FAULT = 5, STEP_ALLOCATION = 35, N_HOSTED = 14 };
#elif defined(__SANITIZE_ADDRESS__)
enum { STEP_NUMBER = 3, STEP_FAULT = 5, STEP_ALLOCATION = 11, N_HOSTED = 14 };
#else
enum { STEP_NUMBER = 1, STEP_FAULT = 1, STEP_ALLOCATION = 7, N_HOSTED = 20 };
#endif

static char dir[] = "/tmp/ctw_test_several_XXXXXX";
static char other[] = "/tmp/ctw_test_several_XXXXXX"; /* a reference: slightly other values */
static uint64_t rng_state = 1;

static int64_t random_below(int64_t n)
{
    rng_state = rng_state * 6364136223846793005ull + 1442695040888963407ull;
    return (int64_t)((uint32_t)(rng_state >> 33) % (uint32_t)n);
}

/* ---- what is scored ----------------------------------------------------------------------- */

struct scores {
    int32_t tokens[N_SEQS][N_TOK];
    struct ctw_seq seqs[N_SEQS];
    float logprob[N_OUT];
    int32_t greedy[N_OUT];
    int of[N_SEQS];       /* which of `alone` each sequence is */
    int n_done[N_SEQS];   /* reports */
    int64_t n;            /* sequences */
    int64_t cancel_after; /* reports; 0: never */
    int64_t n_reports;
};

static void add_seq(struct scores *s, int of)
{
    int64_t i = s->n++;
    for (int t = 0; t < N_TOK; t++)
        s->tokens[i][t] = (3 * of + t * t + of / 7) % VOCAB;
    s->of[i] = of;
    s->seqs[i] = (struct ctw_seq){.tokens = s->tokens[i],
                                  .n_tok = 2 + of % (N_TOK - 1),
                                  .first = 1,
                                  .logprob = s->logprob + i * (N_TOK - 1),
                                  .greedy = s->greedy + i * (N_TOK - 1)};
}

static void on_done(void *arg, int64_t first, int64_t n)
{
    struct scores *s = arg;
    for (int64_t i = first; i < first + n; i++)
        s->n_done[i]++;
    s->n_reports++;
}

static bool is_cancelled(void *arg)
{
    const struct scores *s = arg;
    return s->cancel_after > 0 && s->n_reports >= s->cancel_after;
}

static int64_t tok_done, tok_total;
static bool progress_ok = true;

static void on_progress(void *arg, const struct ctw_progress *p)
{
    (void)arg;
    progress_ok &= p->tok_done <= p->tok_total && p->pass <= p->n_passes;
    tok_done = p->tok_done;
    tok_total = p->tok_total;
}

static enum ctw_status score(struct ctw_engine *e, struct scores *s, struct ctw_err *err)
{
    const struct ctw_hooks hooks = {
        .arg = s, .progress = on_progress, .cancelled = is_cancelled, .done = on_done};
    enum ctw_status st = ctw_engine_score(e, s->seqs, s->n, &hooks, err);
    assert_true(progress_ok);
    return st;
}

static struct scores alone; /* on one GPU */

/* Every reported sequence has the bits that it has alone; *n: how many were reported. */
static void assert_same(const struct scores *s, int64_t *n)
{
    *n = 0;
    for (int64_t i = 0; i < s->n; i++) {
        const struct ctw_seq *got = &s->seqs[i], *want = &alone.seqs[s->of[i]];
        size_t n_out = (size_t)(got->n_tok - 1);
        assert_in_range(s->n_done[i], 0, 1);
        if (s->n_done[i] == 0)
            continue;
        assert_memory_equal(got->logprob, want->logprob, n_out * sizeof(float));
        assert_memory_equal(got->greedy, want->greedy, n_out * sizeof(int32_t));
        assert_int_equal(got->bad_layer, -1);
        ++*n;
    }
}

static void assert_all_same(const struct scores *s)
{
    int64_t n;
    assert_same(s, &n);
    assert_int_equal(n, s->n);
}

/* A random selection in a random order. */
static void prepare(struct scores *s, int64_t n)
{
    memset(s, 0, sizeof(*s));
    for (int64_t i = 0; i < n; i++)
        add_seq(s, (int)random_below(N_SEQS));
}

/* ---- engines ------------------------------------------------------------------------------ */

static void set(const char *name, const char *value)
{
    char full[64];
    snprintf(full, sizeof(full), "CTW_FAKE_GPU_%s", name);
    setenv(full, value, 1);
}

static void settings_of_every_test(void)
{
    static const char *const zero[] = {"OP_US",    "FAIL_OP", "FAIL_COPY",
                                       "NOMEM_OP", "KIND",    "LOCKED"};
    for (size_t i = 0; i < sizeof(zero) / sizeof(zero[0]); i++)
        set(zero[i], "0");
    set("COUNT", "8");
    set("COPY_US", "0");
    set("JITTER_US", "100");
    set("REPAIR", "1");
}

static enum ctw_status try_open(struct ctw_engine **e, const char *devices,
                                struct ctw_engine_options opt, struct ctw_err *err)
{
    opt.model_dir = opt.model_dir == NULL ? dir : opt.model_dir;
    opt.backend = "cuda";
    opt.n_threads = 1;
    opt.device_list = devices;
    return ctw_engine_open(e, &opt, err);
}

static struct ctw_engine *open_engine(const char *devices, struct ctw_engine_options opt)
{
    struct ctw_engine *e;
    struct ctw_err err;
    if (try_open(&e, devices, opt, &err) != CTW_OK)
        fail_msg("%s", err.msg);
    return e;
}

static int score_alone(void **state)
{
    (void)state;
    struct ctw_err err;
    settings_of_every_test();
    struct ctw_engine *e = open_engine(NULL, (struct ctw_engine_options){0});
    for (int i = 0; i < N_SEQS; i++)
        add_seq(&alone, i);
    for (int i = 0; i < N_SEQS; i++)
        assert_int_equal(ctw_engine_score(e, &alone.seqs[i], 1, NULL, &err), CTW_OK);
    ctw_engine_close(e);
    return 0;
}

static int set_up(void **state)
{
    (void)state;
    settings_of_every_test();
    return 0;
}

static const char *first_gpus(int n)
{
    static const char *const lists[MAX_GPUS] = {"0",   "0-1", "0-2", "0-3",
                                                "0-4", "0-5", "0-6", "all"};
    return lists[n - 1];
}

/* ---- tests -------------------------------------------------------------------------------- */

static void lists_of_devices(void **state)
{
    (void)state;
    static const char *const bad[] = {"",   ",",  "0,",  "a",   "1-0",  "0,0",  "0-1,1",
                                      "0-", "-1", "256", "0 1", "0-16", "all,0"};
    struct ctw_device_list l;
    struct ctw_err err;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_equal(ctw_device_list_parse(&l, bad[i], NULL, &err), CTW_EINVAL);
    assert_int_equal(ctw_device_list_parse(&l, "3,0-1,7", NULL, &err), CTW_OK);
    assert_true(l.n == 4);
    assert_true(l.number[0] == 3);
    assert_true(l.number[1] == 0);
    assert_true(l.number[2] == 1);
    assert_true(l.number[3] == 7);
    assert_true(!l.all);
    assert_int_equal(ctw_device_list_parse(&l, "all", NULL, &err), CTW_OK);
    assert_true(l.all);
}

/* Any number of devices, memory, pass and chunk; sequences in any company and order. */
static void the_same_bits_on_any_number(void **state)
{
    (void)state;
    static const uint64_t limits[] = {0, 16 << 10, 24 << 10, 40 << 10};
    struct scores s;
    struct ctw_err err;
    for (int i = 0; i < 24; i += STEP_NUMBER) {
        int n = 1 + i % MAX_GPUS;
        struct ctw_engine *e = open_engine(
            first_gpus(n), (struct ctw_engine_options){.pass_tokens = 1 + random_below(60),
                                                       .chunk_tokens = 1 + random_below(30),
                                                       .weights_limit = limits[random_below(4)]});
        struct ctw_engine_info info;
        ctw_engine_get_info(e, &info);
        assert_int_equal(info.n_devices, n);
        for (int k = 0; k < 3; k++) {
            prepare(&s, random_below(N_SEQS + 1));
            if (score(e, &s, &err) != CTW_OK)
                fail_msg("%s", err.msg);
            assert_all_same(&s);
            assert_true(s.n == 0 || tok_done == tok_total);
        }
        assert_true(s.n == 0 || strlen(ctw_engine_identity(e)) == 64);
        ctw_engine_close(e);
    }
}

/* Three calls, the second one cancelled: what is final has the same bits. all: all sequences each
 * time, else a random number of them. */
static void score_thrice_and_close(struct ctw_engine *e, struct scores *s, bool all)
{
    struct ctw_err err;
    for (int k = 0; k < 3; k++) {
        prepare(s, all ? N_SEQS : random_below(N_SEQS + 1));
        s->cancel_after = k == 1 ? 2 : 0;
        enum ctw_status st = score(e, s, &err);
        if (st != CTW_OK && (st != CTW_ECANCELED || k != 1))
            fail_msg("%s", err.msg);
        int64_t n_same;
        assert_same(s, &n_same);
        assert_true(st != CTW_OK || n_same == s->n);
    }
    assert_int_equal(ctw_engine_wait_identity(e, &err), CTW_OK);
    ctw_engine_close(e);
}

/* Weights spread over the devices, some layers whole on each; copies are late and out of order. */
static void the_same_bits_from_shards(void **state)
{
    (void)state;
    struct scores s;
    struct ctw_err err;
    set("COPY_US", "100,0,300");
    for (int i = 0; i < 16; i += STEP_FAULT) {
        int n = 2 + i % (MAX_GPUS - 1);
        uint64_t limit = i % 3 == 0 ? 0 : (uint64_t)(32 + random_below(28)) << 10;
        struct ctw_engine *e = NULL;
        const struct ctw_engine_options opt = {.place = "sharded",
                                               .pass_tokens = 1 + random_below(60),
                                               .chunk_tokens = 1 + random_below(30),
                                               .weights_limit = limit};
        if (try_open(&e, first_gpus(n), opt, &err) != CTW_OK) {
            assert_true(limit > 0);
            assert_true(strstr(err.msg, "the weights need ") != NULL);
            continue;
        }
        struct ctw_engine_info info;
        ctw_engine_get_info(e, &info);
        assert_string_equal(info.place, "sharded");
        assert_true(limit == 0 || info.weights_memory <= limit);
        score_thrice_and_close(e, &s, false);
    }
}

/* Weights larger than the memory of all devices together: some on the devices, some in host memory
 * that they share, some only in the files, also if host memory cannot be locked. */
static void the_same_bits_from_host_memory(void **state)
{
    (void)state;
    struct scores s;
    struct ctw_err err;
    int n_sharded = 0, n_streamed = 0;
    set("COPY_US", "100,0,300");
    for (int i = 0; i < N_HOSTED; i++) {
        struct ctw_engine *e = NULL;
        struct ctw_engine_info info;
        const struct ctw_engine_options opt = {
            .place = i % 2 == 0 ? "sharded" : "streamed",
            .pass_tokens = 1 + random_below(60),
            .weights_limit = (uint64_t)(16 + random_below(16)) << 10,
            .host_limit = (uint64_t)(1 + random_below(i % 3 == 0 ? 60 : 12)) << 10};
        set("LOCKED", i % 5 == 4 ? "9000000" : "0"); /* stages, and no host memory */
        if (try_open(&e, first_gpus(2 + i % 3), opt, &err) != CTW_OK) {
            assert_int_equal(err.status, CTW_ENOMEM);
            continue;
        }
        ctw_engine_get_info(e, &info);
        assert_true(info.weights_memory <= opt.weights_limit);
        n_sharded += strcmp(info.place, "sharded") == 0 && info.weights_hosted > 0;
        n_streamed += strcmp(info.place, "streamed") == 0 && info.weights_hosted > 0;
        score_thrice_and_close(e, &s, true);
    }
    if (n_sharded < 2 || n_streamed < N_HOSTED / 5)
        fail_msg("%d sharded, %d streamed", n_sharded, n_streamed);
}

/* A device that fails takes its part of the weights with it: one clear error, no wrong number. */
static void shards_of_a_device_that_fails(void **state)
{
    (void)state;
    struct scores s;
    struct ctw_err err;
    for (int i = 0; i < 12; i += STEP_FAULT) {
        char list[32];
        struct ctw_engine *e = NULL;
        int64_t n;
        snprintf(list, sizeof(list), "0,%d,0", 1 + 7 * i);
        set(i % 2 == 0 ? "FAIL_OP" : "FAIL_COPY", list);
        set(i % 2 == 1 ? "FAIL_OP" : "FAIL_COPY", "0");
        enum ctw_status st = try_open(
            &e, "0-2", (struct ctw_engine_options){.place = "sharded", .pass_tokens = 16}, &err);
        prepare(&s, N_SEQS);
        if (st == CTW_OK)
            st = score(e, &s, &err);
        assert_true(st == CTW_OK || st == CTW_EDEVICE);
        assert_same(&s, &n);
        assert_true(st != CTW_OK || n == N_SEQS);
        ctw_engine_close(e);
    }
}

static void cancelling(void **state)
{
    (void)state;
    struct scores s;
    struct ctw_err err;
    struct ctw_engine *e = open_engine("0-3", (struct ctw_engine_options){.pass_tokens = 16});
    for (int64_t after = 1; after < 8; after++) {
        int64_t n;
        prepare(&s, N_SEQS);
        s.cancel_after = after;
        assert_int_equal(score(e, &s, &err), CTW_ECANCELED);
        assert_same(&s, &n);
        assert_in_range(n, 1, N_SEQS - 1);
        prepare(&s, N_SEQS);
        assert_int_equal(score(e, &s, &err), CTW_OK);
        assert_all_same(&s);
    }
    ctw_engine_close(e);
}

/* Products that a device has computed, of ctw_engine_describe() by fake_device.c. */
static unsigned long long products_of(const char *devices, struct ctw_devices *devices_table)
{
    char text[256];
    unsigned long long n = 0;
    struct ctw_engine *e =
        open_engine(devices, (struct ctw_engine_options){.devices = devices_table});
    ctw_engine_describe(e, text, sizeof(text));
    assert_int_equal(sscanf(text, "products %llu", &n), 1);
    ctw_engine_close(e);
    return n;
}

/* A device that takes 30 times as long gets less, and all finish. */
static void a_slow_device_gets_less(void **state)
{
    (void)state;
    struct ctw_devices table = {0};
    struct scores s;
    struct ctw_err err;
    set("OP_US", "100,3000");
    struct ctw_engine *e =
        open_engine("0,1", (struct ctw_engine_options){.devices = &table, .pass_tokens = 20});
    for (int k = 0; k < 3; k++) {
        prepare(&s, N_SEQS);
        assert_int_equal(score(e, &s, &err), CTW_OK);
        assert_all_same(&s);
    }
    unsigned long long fast = products_of("0", &table), slow = products_of("1", &table);
    assert_true(slow > 0);
    if (fast < 3 * slow)
        fail_msg("the fast device computed %llu products, the slow one %llu", fast, slow);
    ctw_engine_close(e);
    assert_null(table.first);
}

/* Each operation in turn fails on one device, for good or for lack of memory: the others score
 * everything, and the next call does without that device, or with it. */
static void others_take_over(void **state)
{
    (void)state;
    struct scores s;
    struct ctw_err err;
    for (int i = 0; i < 24; i += STEP_FAULT) {
        char list[16];
        int faulty = i % 3;
        snprintf(list, sizeof(list), "%s%d,0",
                 faulty == 2   ? "0,0,"
                 : faulty == 1 ? "0,"
                               : "",
                 1 + i * 5);
        set(i % 2 == 0 ? "FAIL_OP" : "NOMEM_OP", list);
        set(i % 2 == 1 ? "FAIL_OP" : "NOMEM_OP", "0");
        struct ctw_engine *e = open_engine(
            "0-2", (struct ctw_engine_options){.pass_tokens = 16,
                                               .place = i % 4 < 2 ? "resident" : "streamed",
                                               .weights_limit = i % 4 < 2 ? 0 : 24 << 10,
                                               .host_limit = i % 8 == 7 ? 24 << 10 : 0});
        for (int k = 0; k < 2; k++) {
            prepare(&s, N_SEQS);
            if (score(e, &s, &err) != CTW_OK)
                fail_msg("operation %d of device %d: %s", 1 + i * 5, faulty, err.msg);
            assert_all_same(&s);
        }
        ctw_engine_close(e);
    }
}

static void all_fail(void **state)
{
    (void)state;
    struct scores s;
    struct ctw_err err;
    int64_t n;
    set("FAIL_OP", "100,150,200");
    struct ctw_engine *e = open_engine("0-2", (struct ctw_engine_options){.pass_tokens = 8});
    prepare(&s, N_SEQS);
    assert_int_equal(score(e, &s, &err), CTW_EDEVICE);
    assert_same(&s, &n);
    assert_true(n < N_SEQS);
    prepare(&s, N_SEQS);
    assert_int_equal(score(e, &s, &err), CTW_EDEVICE);
    ctw_engine_close(e);
}

static void assert_refused(const char *devices, const char *part)
{
    struct ctw_engine *e = NULL;
    struct ctw_err err;
    assert_int_equal(try_open(&e, devices, (struct ctw_engine_options){0}, &err), CTW_EINVAL);
    if (strstr(err.msg, part) == NULL)
        fail_msg("%s: %s", devices, err.msg);
}

static void refusals(void **state)
{
    (void)state;
    set("KIND", "0,0,3");
    assert_refused("0-2", "device 2: its numerics id is fake-");
    assert_refused("0,9", "device 9: device 9: this machine has 8 GPUs");
    assert_refused("0,x", "--devices 0,x: expected all");
    struct ctw_engine *e = open_engine("2", (struct ctw_engine_options){0}); /* of one kind */
    ctw_engine_close(e);
    struct ctw_err err;
    struct ctw_engine_options cpu = {.model_dir = dir, .backend = "cpu", .n_threads = 1};
    static const char *const lists[] = {"0,1", "0", "1", NULL};
    for (size_t i = 0; i < CTW_COUNT(lists); i++) {
        cpu.device_list = lists[i];
        cpu.device = lists[i] == NULL;
        assert_int_equal(ctw_engine_open(&e, &cpu, &err), CTW_EINVAL);
        assert_non_null(strstr(err.msg, cpu.device ? "--device: the CPU is one device"
                                                   : "--devices: the CPU is one device"));
    }
    cpu.device = 0;
    cpu.device_list = "all";
    assert_int_equal(ctw_engine_open(&e, &cpu, &err), CTW_OK);
    ctw_engine_close(e);
}

/* ---- comparing ---------------------------------------------------------------------------- */

struct both {
    struct scores s;
    struct ctw_seq_divergence of[N_SEQS];
    float ref_logprob[N_OUT], ref_top[N_OUT], kl[N_OUT], kl_reverse[N_OUT], tv[N_OUT];
    int32_t ref_greedy[N_OUT];
    uint8_t overlap5[N_OUT];
};

static void prepare_both(struct both *b)
{
    memset(b, 0, sizeof(*b));
    for (int i = 0; i < N_SEQS; i++) {
        int at = i * (N_TOK - 1);
        add_seq(&b->s, i);
        b->of[i] = (struct ctw_seq_divergence){.ref_logprob = b->ref_logprob + at,
                                               .ref_greedy = b->ref_greedy + at,
                                               .ref_top = b->ref_top + at,
                                               .kl = b->kl + at,
                                               .kl_reverse = b->kl_reverse + at,
                                               .tv = b->tv + at,
                                               .overlap5 = b->overlap5 + at};
        b->s.seqs[i].divergence = &b->of[i];
    }
}

static void compare_on(const char *devices, struct both *b)
{
    struct ctw_devices table = {0};
    struct ctw_err err;
    struct ctw_engine *e =
        open_engine(devices, (struct ctw_engine_options){.devices = &table, .pass_tokens = 30});
    struct ctw_engine *r = open_engine(
        devices,
        (struct ctw_engine_options){.model_dir = other, .devices = &table, .pass_tokens = 40});
    const struct ctw_hooks hooks = {.arg = &b->s, .done = on_done};
    prepare_both(b);
    if (ctw_engine_compare(e, r, b->s.seqs, N_SEQS, &hooks, NULL, &err) != CTW_OK)
        fail_msg("%s", err.msg);
    assert_all_same(&b->s);
    ctw_engine_close(e);
    ctw_engine_close(r);
}

static void comparing(void **state)
{
    (void)state;
    struct both *one = ctw_calloc(1, sizeof(*one)), *several = ctw_calloc(1, sizeof(*several));
    compare_on("0", one);
    for (int n = 2; n <= MAX_GPUS; n += 6) {
        compare_on(first_gpus(n), several);
        assert_memory_equal(several->ref_logprob, one->ref_logprob, sizeof(one->ref_logprob));
        assert_memory_equal(several->kl, one->kl, sizeof(one->kl));
        assert_memory_equal(several->tv, one->tv, sizeof(one->tv));
        assert_memory_equal(several->overlap5, one->overlap5, sizeof(one->overlap5));
    }
    ctw_free(one);
    ctw_free(several);
}

static void lack_of_host_memory(void **state)
{
    (void)state;
    enum ctw_status st = CTW_ENOMEM;
    struct scores s;
    struct ctw_err err;
    int64_t n_ok = 0;
    for (int64_t n = 1; n_ok < 3; n += STEP_ALLOCATION) {
        struct ctw_engine *e = NULL;
        ctw_mem_fail_at(n);
        st = try_open(&e, "0-1", (struct ctw_engine_options){.pass_tokens = 30}, &err);
        prepare(&s, N_SEQS);
        if (st == CTW_OK)
            st = score(e, &s, &err);
        ctw_mem_fail_at(0);
        if (st == CTW_OK) /* all, by whichever device had memory */
            assert_all_same(&s);
        assert_true(st == CTW_OK || st == CTW_ENOMEM);
        n_ok += st == CTW_OK;
        ctw_engine_close(e);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_of_devices),
        cmocka_unit_test_setup(the_same_bits_on_any_number, set_up),
        cmocka_unit_test_setup(the_same_bits_from_shards, set_up),
        cmocka_unit_test_setup(the_same_bits_from_host_memory, set_up),
        cmocka_unit_test_setup(shards_of_a_device_that_fails, set_up),
        cmocka_unit_test_setup(cancelling, set_up),
        cmocka_unit_test_setup(a_slow_device_gets_less, set_up),
        cmocka_unit_test_setup(others_take_over, set_up),
        cmocka_unit_test_setup(all_fail, set_up),
        cmocka_unit_test_setup(refusals, set_up),
        cmocka_unit_test_setup(comparing, set_up),
        cmocka_unit_test_setup(lack_of_host_memory, set_up),
    };
    setenv("CTWORKER_CUDA_LIBRARY", CTW_FAKE_DEVICE, 1);
    if (mkdtemp(dir) == NULL || mkdtemp(other) == NULL)
        return 1;
    tiny_write(dir, N_DECODERS, -1);
    tiny_write_changed(other, N_DECODERS, -1, 0x555);
    int failed = cmocka_run_group_tests_name("several devices", tests, score_alone, NULL);
    tiny_remove(dir);
    tiny_remove(other);
    return failed;
}
