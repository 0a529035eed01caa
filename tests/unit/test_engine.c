/* The engine on a checkpoint of one layer, once on the CPU, and once on the fake GPU
 * (tests/service/fake_device.c). */
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"
#include "pass_watch.h"
#include "tiny_model.h"
#include "worker/engine/engine.h"

static const char *backend;
static char dir[] = "/tmp/ctw_test_engine_XXXXXX";

static struct ctw_engine *open_engine(void)
{
    struct ctw_engine *e;
    struct ctw_err err;
    const struct ctw_engine_options opt = {
        .model_dir = dir, .backend = backend, .n_threads = 1, .chunk_tokens = 2};
    if (ctw_engine_open(&e, &opt, &err) != CTW_OK)
        fail_msg("%s", err.msg);
    return e;
}

static const int32_t tokens[] = {1, 4, 2, 9, 3, 3};
static float logprob[2][5];
static int32_t greedy[2][5];

static struct ctw_seq sequence(int i)
{
    return (struct ctw_seq){
        .tokens = tokens, .n_tok = 6, .first = 1, .logprob = logprob[i], .greedy = greedy[i]};
}

static void scores_are_probabilities(void **state)
{
    (void)state;
    struct ctw_err err;
    tiny_write(dir, 1, -1);
    struct ctw_engine *e = open_engine();
    double total = 0; /* of the last token's probability over all ids */
    for (int32_t id = 0; id < VOCAB; id++) {
        int32_t ids[] = {1, 4, 2, id};
        struct ctw_seq seq = sequence(0);
        seq.tokens = ids;
        seq.n_tok = 4;
        seq.first = 3;
        assert_int_equal(ctw_engine_score(e, &seq, 1, NULL, &err), CTW_OK);
        assert_int_equal(seq.bad_layer, -1);
        total += exp((double)logprob[0][0]);
    }
    assert_true(fabs(total - 1) < 1e-5);
    ctw_engine_close(e);
}

/* A sequence's vocabulary gives the bits of an engine with that vocabulary, in whatever company. */
static void a_sequence_may_have_a_vocabulary(void **state)
{
    (void)state;
    enum { N_IDS = 6, N = 5 };
    struct ctw_err err;
    static const int32_t ids[] = {1, 4, 2, 5, 3, 0};
    float all[5], first[5], out[N][5];
    char numerics[CTW_NUMERICS_MAX];
    struct ctw_engine_info info;
    struct ctw_engine *e = open_engine();
    struct ctw_seq seq = sequence(0), seqs[N];
    seq.tokens = ids;
    seq.logprob = all;
    assert_int_equal(ctw_engine_score(e, &seq, 1, NULL, &err), CTW_OK);
    for (int i = 0; i < N; i++) {
        seqs[i] = seq;
        seqs[i].vocab = i % 3 == 0 ? 0 : N_IDS; /* passes of one, two, one and one */
        seqs[i].logprob = out[i];
    }
    assert_int_equal(ctw_engine_score(e, seqs, N, NULL, &err), CTW_OK);
    ctw_engine_numerics(e, N_IDS, numerics);
    seq.vocab = VOCAB + 1;
    assert_int_equal(ctw_engine_score(e, &seq, 1, NULL, &err), CTW_EINVAL);
    assert_non_null(strstr(err.msg, "a vocabulary of 11 is not in 1..10"));
    seq.vocab = N_IDS - 1;
    assert_int_equal(ctw_engine_score(e, &seq, 1, NULL, &err), CTW_EINVAL);
    assert_non_null(strstr(err.msg, "token 3 is 5, outside the vocabulary of 5"));
    ctw_engine_close(e);
    const struct ctw_engine_options opt = {
        .model_dir = dir, .backend = backend, .n_threads = 1, .vocab = N_IDS};
    assert_int_equal(ctw_engine_open(&e, &opt, &err), CTW_OK);
    seq.vocab = 0;
    seq.logprob = first;
    assert_int_equal(ctw_engine_score(e, &seq, 1, NULL, &err), CTW_OK);
    ctw_engine_get_info(e, &info);
    assert_string_equal(info.numerics, numerics);
    assert_non_null(strstr(numerics, "/vocabulary-6"));
    ctw_engine_numerics(e, N_IDS - 1, numerics); /* one limit, not two */
    assert_string_equal(strstr(numerics, "/vocabulary"), "/vocabulary-5");
    ctw_engine_close(e);
    for (int i = 0; i < N; i++)
        assert_memory_equal(out[i], i % 3 == 0 ? all : first, sizeof(all));
    for (int i = 0; i < 5; i++)
        assert_true(first[i] > all[i]);
}

static void bad_sequences_are_refused(void **state)
{
    (void)state;
    struct ctw_err err;
    struct ctw_engine *e = open_engine();
    static const int32_t outside[] = {1, VOCAB};
    static const int32_t many[40];
    struct ctw_seq cases[5];
    for (int i = 0; i < 5; i++)
        cases[i] = sequence(0);
    cases[0].n_tok = 1;
    cases[1].first = 0;
    cases[2].first = 6;
    cases[3].tokens = outside;
    cases[3].n_tok = 2;
    cases[4].tokens = many;
    cases[4].n_tok = 34; /* 33 inputs */
    static const char *const words[] = {"sequence 1", "sequence 1", "sequence 1", "vocabulary",
                                        "--max-length"};
    for (int i = 0; i < 5; i++) {
        struct ctw_seq seqs[2] = {sequence(0), cases[i]};
        assert_int_equal(ctw_engine_score(e, seqs, 2, NULL, &err), CTW_EINVAL);
        assert_non_null(strstr(err.msg, words[i]));
    }
    ctw_engine_close(e);
}

static void nan_names_its_layer(void **state)
{
    (void)state;
    static const struct {
        int tensor, layer;
    } cases[] = {{4, 0}, {7, 0}, {10, 1}}; /* o_proj; down_proj; the final norm is the head's */
    for (size_t i = 0; i < CTW_COUNT(cases); i++) {
        struct ctw_err err;
        tiny_write(dir, 1, cases[i].tensor);
        struct ctw_engine *e = open_engine();
        struct ctw_seq seq = sequence(0);
        assert_int_equal(ctw_engine_score(e, &seq, 1, NULL, &err), CTW_OK);
        assert_int_equal(seq.bad_layer, cases[i].layer);
        ctw_engine_close(e);
    }
    tiny_write(dir, 1, -1);
}

/* A GPU's weights, and those of files in memory, are a copy; others are mapped. */
static bool copies_weights(void)
{
    struct ctw_container *c;
    struct ctw_err err;
    assert_int_equal(ctw_container_open(&c, dir, &err), CTW_OK);
    bool copies = strcmp(backend, "cuda") == 0 || ctw_container_hides_writes(c) != NULL;
    ctw_container_close(c);
    return copies;
}

static void a_changed_file_is_noticed(void **state)
{
    (void)state;
    struct ctw_err err;
    bool copies = copies_weights();
    struct ctw_engine *e = open_engine();
    struct ctw_seq seq = sequence(0);
    assert_int_equal(ctw_engine_score(e, &seq, 1, NULL, &err), CTW_OK);
    assert_int_equal(ctw_engine_score(e, &seq, 1, NULL, &err), CTW_OK);
    char path[256];
    tiny_path(path, sizeof(path), dir, "model.safetensors");
    assert_int_equal(truncate(path, 100), 0);
    if (copies) { /* it has no more need of it */
        struct ctw_seq again = sequence(1);
        assert_int_equal(ctw_engine_score(e, &again, 1, NULL, &err), CTW_OK);
        assert_memory_equal(logprob[1], logprob[0], sizeof(logprob[0]));
    } else {
        assert_int_equal(ctw_engine_score(e, &seq, 1, NULL, &err), CTW_EIO);
        assert_non_null(strstr(err.msg, "model.safetensors"));
    }
    ctw_engine_close(e);
    tiny_write(dir, 1, -1);
}

/* Cancelled at every moment in turn, the next run gives the bits of the first. */
static void cancelling_leaves_no_trace(void **state)
{
    (void)state;
    struct ctw_err err;
    struct ctw_engine *e = open_engine();
    struct ctw_seq first = sequence(0);
    assert_int_equal(ctw_engine_score(e, &first, 1, NULL, &err), CTW_OK);
    enum ctw_status st = CTW_ECANCELED;
    for (int64_t at = 1; st == CTW_ECANCELED; at++) {
        struct watch w = {.cancel_at = at};
        const struct ctw_hooks hooks = {
            .arg = &w, .cancelled = cancel_late, .done = count_done, .progress = grows};
        struct ctw_seq seqs[] = {sequence(1), sequence(1)};
        st = ctw_engine_score(e, seqs, 2, &hooks, &err);
        assert_int_equal(w.n_done, st == CTW_OK ? 2 : 0);
        struct ctw_seq again = sequence(1);
        assert_int_equal(ctw_engine_score(e, &again, 1, NULL, &err), CTW_OK);
        assert_memory_equal(logprob[1], logprob[0], sizeof(logprob[0]));
        assert_memory_equal(greedy[1], greedy[0], sizeof(greedy[0]));
        assert_true(at < 1000);
    }
    assert_int_equal(st, CTW_OK);
    ctw_engine_close(e);
}

struct course {
    struct ctw_progress last;
    int64_t calls;
};

static void goes_on(void *arg, const struct ctw_progress *p)
{
    struct course *c = arg;
    assert_true(p->tok_done >= c->last.tok_done);
    assert_true(p->pass > c->last.pass || p->layer >= c->last.layer);
    assert_true(p->pass < p->n_passes);
    assert_true(p->layer < p->n_layers);
    assert_true(p->tok_done >= 5 * p->pass);
    assert_true(p->tok_done <= 5 * (p->pass + 1)); /* of this pass */
    c->last = *p;
    c->calls++;
}

/* Three passes of five tokens: each goes on where the former ended, up to all tokens. */
static void progress_counts_all_passes(void **state)
{
    (void)state;
    struct ctw_err err;
    struct ctw_engine *e;
    struct course course = {0};
    const struct ctw_engine_options opt = {.model_dir = dir,
                                           .backend = backend,
                                           .n_threads = 1,
                                           .chunk_tokens = 2,
                                           .pass_tokens = 5,
                                           .no_share = true};
    const struct ctw_hooks hooks = {.arg = &course, .progress = goes_on};
    struct ctw_seq seqs[] = {sequence(0), sequence(0), sequence(1)};
    assert_int_equal(ctw_engine_open(&e, &opt, &err), CTW_OK);
    assert_int_equal(ctw_engine_score(e, seqs, 3, &hooks, &err), CTW_OK);
    assert_int_equal(course.last.n_passes, 3);
    assert_int_equal(course.last.tok_total, 15);
    assert_int_equal(course.last.tok_done, 15);
    assert_int_equal(course.last.tok_computed, 15);
    assert_int_equal(course.calls, 3 * (3 + 3)); /* chunks of 2, 2, 1: the layer's and the head's */
    ctw_engine_close(e);
}

static void copy_progress(void *arg, const struct ctw_progress *p)
{
    *(struct ctw_progress *)arg = *p;
}

/* Equal inputs are computed once, a scored row of equal inputs and target, too, and a pass counts
 * what it computes. Progress counts what is asked. */
static void equal_inputs_are_computed_once(void **state)
{
    (void)state;
    struct ctw_err err;
    struct ctw_engine *e;
    struct ctw_progress last;
    static const int32_t other[] = {1, 4, 2, 9, 3, 5};
    const struct ctw_engine_options opt = {
        .model_dir = dir, .backend = backend, .n_threads = 1, .chunk_tokens = 2, .pass_tokens = 6};
    const struct ctw_hooks hooks = {.arg = &last, .progress = copy_progress};
    float other_logprob[5];
    int32_t other_greedy[5];
    struct ctw_seq seqs[] = {sequence(0), sequence(0), sequence(1)};
    seqs[0].tokens = other;
    seqs[0].logprob = other_logprob;
    seqs[0].greedy = other_greedy;
    assert_int_equal(ctw_engine_open(&e, &opt, &err), CTW_OK);
    assert_int_equal(ctw_engine_score(e, seqs, 3, &hooks, &err), CTW_OK);
    assert_int_equal(last.n_passes, 1);
    assert_int_equal(last.tok_total, 15);
    assert_int_equal(last.tok_done, 15);
    assert_int_equal(last.tok_computed, 5);
    assert_memory_equal(logprob[1], logprob[0], sizeof(logprob[0]));
    for (int i = 0; i < 3; i += 2) {
        struct ctw_seq seq = seqs[i];
        float before[5];
        memcpy(before, seq.logprob, sizeof(before));
        memset(seq.logprob, 0, sizeof(before));
        assert_int_equal(ctw_engine_score(e, &seq, 1, NULL, &err), CTW_OK);
        assert_memory_equal(seq.logprob, before, sizeof(before));
    }
    ctw_engine_close(e);
}

struct touch {
    int64_t calls, at; /* at: the call that touches the file; -1: none */
};

static void touches(void *arg, const struct ctw_progress *p)
{
    static const struct timespec other_times[2] = {{.tv_sec = 1}, {.tv_sec = 1}};
    struct touch *t = arg;
    char path[256];
    assert_true(p->tok_done <= p->tok_total);
    tiny_path(path, sizeof(path), dir, "model.safetensors");
    if (t->calls++ == t->at)
        assert_int_equal(utimensat(AT_FDCWD, path, other_times, 0), 0);
}

/* The weights' file is written to during the pass, and holds the same bytes. */
static void a_repeated_pass_counts_once(void **state)
{
    (void)state;
    struct ctw_err err;
    struct touch once = {.at = -1}, twice = {0};
    struct ctw_engine *e = open_engine();
    struct ctw_seq seqs[] = {sequence(0), sequence(1)};
    const struct ctw_hooks untouched = {.arg = &once, .progress = touches};
    const struct ctw_hooks touched = {.arg = &twice, .progress = touches};
    assert_int_equal(ctw_engine_score(e, &seqs[0], 1, &untouched, &err), CTW_OK);
    assert_int_equal(ctw_engine_score(e, &seqs[1], 1, &touched, &err), CTW_OK);
    assert_memory_equal(logprob[1], logprob[0], sizeof(logprob[0]));
    assert_int_equal(twice.calls, (copies_weights() ? 1 : 2) * once.calls);
    ctw_engine_close(e);
}

/* Bytes that change through a mapping, without a new time, are scored under no identity. */
static void a_write_that_leaves_no_time_is_noticed(void **state)
{
    (void)state;
    struct ctw_err err = {0};
    struct stat file;
    char path[256];
    tiny_path(path, sizeof(path), dir, "model.safetensors");
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    assert_true(fstat(fd, &file) == 0);
    size_t last = (size_t)file.st_size - 1;
    unsigned char *map = mmap(NULL, last + 1, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(map != MAP_FAILED);
    *(volatile unsigned char *)&map[last] = map[last]; /* from now on the page is dirty */
    struct ctw_engine *e = open_engine();
    struct ctw_seq seqs[] = {sequence(0), sequence(1)};
    assert_int_equal(ctw_engine_score(e, &seqs[0], 1, NULL, &err), CTW_OK);
    map[last] ^= 0x40;
    enum ctw_status st = ctw_engine_score(e, &seqs[1], 1, NULL, &err);
    map[last] ^= 0x40;
    if (!copies_weights()) {
        assert_int_equal(st, CTW_EIO);
        assert_non_null(strstr(err.msg, "model.safetensors: the file changed while it was in use"));
    } else {
        assert_int_equal(st, CTW_OK);
        assert_memory_equal(logprob[1], logprob[0], sizeof(logprob[0]));
    }
    assert_int_equal(ctw_engine_score(e, &seqs[1], 1, NULL, &err), CTW_OK);
    assert_memory_equal(logprob[1], logprob[0], sizeof(logprob[0]));
    ctw_engine_close(e);
    (void)munmap(map, last + 1);
    (void)close(fd);
}

/* Reading the weights may take minutes: with reading stopped, only options that are in order get
 * that far. */
static void wrong_options_are_refused_before_the_weights_are_read(void **state)
{
    (void)state;
    static const struct {
        int64_t max_length;
        uint64_t memory_limit;
        const char *dtype;
        enum ctw_status st;
    } cases[] = {{.st = CTW_ECANCELED},
                 {.dtype = "int8", .st = CTW_EINVAL},
                 {.max_length = -1, .st = CTW_EINVAL},
                 {.max_length = (1 << 24) + 1, .st = CTW_EINVAL},
                 {.memory_limit = 1, .st = CTW_ENOMEM}};
    atomic_bool stop = true;
    for (size_t i = 0; i < CTW_COUNT(cases); i++) {
        struct ctw_engine *e;
        struct ctw_err err;
        const struct ctw_engine_options opt = {.model_dir = dir,
                                               .backend = backend,
                                               .n_threads = 1,
                                               .dtype = cases[i].dtype,
                                               .max_length = cases[i].max_length,
                                               .memory_limit = cases[i].memory_limit,
                                               .stop = &stop};
        enum ctw_status st = ctw_engine_open(&e, &opt, &err);
        if (cases[i].st == CTW_ECANCELED && copies_weights()) {
            assert_int_equal(st, CTW_OK); /* they are read in the background */
            ctw_engine_close(e);
        } else {
            assert_int_equal(st, cases[i].st);
        }
    }
}

/* An engine closes a model that it was given, also if opening fails. */
static void an_open_model_is_taken_over(void **state)
{
    (void)state;
    static const char *const dtypes[] = {"int8", "float32"};
    for (int64_t fail_at = 0; fail_at <= 1; fail_at++)
        for (size_t i = 0; i < CTW_COUNT(dtypes); i++) {
            struct ctw_model *m;
            struct ctw_engine *e;
            struct ctw_err err;
            assert_int_equal(ctw_model_open(&m, dir, NULL, &err), CTW_OK);
            const struct ctw_engine_options opt = {.model = m,
                                                   .backend = backend,
                                                   .dtype = dtypes[i],
                                                   .n_threads = 1,
                                                   .plan_only = true};
            ctw_mem_fail_at(fail_at);
            enum ctw_status st = ctw_engine_open(&e, &opt, &err);
            ctw_mem_fail_at(0);
            assert_int_equal(st, fail_at == 1 ? CTW_ENOMEM : i == 0 ? CTW_EINVAL : CTW_OK);
            if (st == CTW_OK)
                ctw_engine_close(e);
        }
}

/* RoPE type dynamic equals default only up to max_position_embeddings, here 32. */
static void a_dynamic_rope_bounds_the_length(void **state)
{
    (void)state;
    static const char config[] =
        "{\"model_type\": \"llama\", \"dtype\": \"float32\", \"hidden_size\": 16, "
        "\"intermediate_size\": 24, \"num_hidden_layers\": 1, \"num_attention_heads\": 2, "
        "\"vocab_size\": 10, \"max_position_embeddings\": 32, \"tie_word_embeddings\": true, "
        "\"rms_norm_eps\": 1e-5, \"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2.0}}";
    struct ctw_err err;
    float plain[5], dynamic[5];
    struct ctw_seq seq = sequence(0);
    struct ctw_engine *e = open_engine();
    seq.logprob = plain;
    assert_int_equal(ctw_engine_score(e, &seq, 1, NULL, &err), CTW_OK);
    ctw_engine_close(e);
    tiny_write_file(dir, "config.json", config, sizeof(config) - 1, "", 0);
    e = open_engine();
    seq.logprob = dynamic;
    assert_int_equal(ctw_engine_score(e, &seq, 1, NULL, &err), CTW_OK);
    ctw_engine_close(e);
    assert_memory_equal(plain, dynamic, sizeof(plain));
    for (int64_t length = 32; length <= 33; length++) {
        const struct ctw_engine_options opt = {
            .model_dir = dir, .backend = backend, .n_threads = 1, .max_length = length};
        enum ctw_status st = ctw_engine_open(&e, &opt, &err);
        assert_int_equal(st, length == 32 ? CTW_OK : CTW_EUNSUP);
        if (st == CTW_OK)
            ctw_engine_close(e);
    }
    assert_non_null(strstr(err.msg, "--max-length 33 is more than max_position_embeddings = 32"));
    tiny_write(dir, 1, -1);
}

/* Heap blocks taken to score a sequence of n tokens. */
static int64_t blocks_taken(struct ctw_engine *e, int64_t n)
{
    struct ctw_err err;
    struct ctw_seq seq = sequence(0);
    seq.n_tok = n;
    int64_t before = ctw_mem_count();
    assert_int_equal(ctw_engine_score(e, &seq, 1, NULL, &err), CTW_OK);
    return ctw_mem_count() - before;
}

/* Buffers that grew once have room for more. */
static void buffers_grow_in_leaps(void **state)
{
    (void)state;
    struct ctw_engine *e = open_engine();
    int64_t opened = blocks_taken(e, 2), reused = blocks_taken(e, 2);
    assert_true(reused < opened);
    assert_int_equal(blocks_taken(e, 3), opened); /* two tokens go in: now there is room for four */
    assert_int_equal(blocks_taken(e, 4), reused);
    assert_int_equal(blocks_taken(e, 5), reused);
    ctw_engine_close(e);
}

static void failed_allocations_are_reported(void **state)
{
    (void)state;
    enum ctw_status st = CTW_ENOMEM;
    for (int64_t n = 1; st == CTW_ENOMEM; n++) {
        struct ctw_engine *e = NULL;
        struct ctw_err err;
        struct ctw_seq seq = sequence(0);
        const struct ctw_engine_options opt = {
            .model_dir = dir, .backend = backend, .n_threads = 1};
        ctw_mem_fail_at(n);
        st = ctw_engine_open(&e, &opt, &err);
        if (st == CTW_OK)
            st = ctw_engine_score(e, &seq, 1, NULL, &err);
        ctw_mem_fail_at(0);
        ctw_engine_close(st == CTW_OK || e != NULL ? e : NULL);
        assert_true(n < 5000);
    }
    assert_int_equal(st, CTW_OK);
}

/* Buffers that do not fit leave nothing behind, which the next plan would count once more. */
static void what_did_not_fit_is_given_back(void **state)
{
    enum { N_SEQS = 1000 }; /* 5000 tokens: half a megabyte */
    static struct ctw_seq seqs[N_SEQS];
    const struct ctw_engine_options opt = {.model_dir = dir,
                                           .backend = "cuda",
                                           .n_threads = 1,
                                           .memory_limit = 1 << 30,
                                           .no_share = true};
    struct ctw_backend *watch;
    struct ctw_engine *e;
    struct ctw_err err;
    (void)state;
    setenv("CTW_FAKE_GPU_MEMORY", "200000", 1);
    assert_int_equal(ctw_backend_open(&watch, "cuda", NULL, &err), CTW_OK);
    assert_int_equal(ctw_engine_open(&e, &opt, &err), CTW_OK);
    uint64_t before = ctw_backend_memory_free(watch);
    for (int i = 0; i < N_SEQS; i++)
        seqs[i] = sequence(0);
    assert_int_equal(ctw_engine_score(e, seqs, N_SEQS, NULL, &err), CTW_ENOMEM);
    assert_int_equal(ctw_backend_memory_free(watch), before);
    assert_int_equal(ctw_engine_score(e, seqs, 1, NULL, &err), CTW_OK);
    ctw_engine_close(e);
    ctw_backend_close(watch);
    unsetenv("CTW_FAKE_GPU_MEMORY");
}

/* With little memory, weights are streamed beside passes of any size. */
static void the_place_says_what_is_done(void **state)
{
    (void)state;
    const struct ctw_engine_options opt = {.model_dir = dir, .backend = "cuda", .plan_only = true};
    int n_streamed = 0, n_resident = 0;
    tiny_write(dir, 6, -1);
    for (int bytes = 20000; bytes < 400000; bytes += 5000) {
        struct ctw_engine *e;
        struct ctw_engine_info info;
        struct ctw_err err;
        char memory[16];
        snprintf(memory, sizeof(memory), "%d", bytes);
        setenv("CTW_FAKE_GPU_MEMORY", memory, 1);
        if (ctw_engine_open(&e, &opt, &err) != CTW_OK)
            continue;
        ctw_engine_get_info(e, &info);
        assert_string_equal(info.place, info.weights_streamed > 0 ? "streamed" : "resident");
        n_streamed += info.weights_streamed > 0;
        n_resident += info.weights_streamed == 0;
        ctw_engine_close(e);
    }
    assert_true(n_streamed > 0);
    assert_true(n_resident > 0);
    tiny_write(dir, 1, -1);
    unsetenv("CTW_FAKE_GPU_MEMORY");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scores_are_probabilities),
        cmocka_unit_test(a_sequence_may_have_a_vocabulary),
        cmocka_unit_test(bad_sequences_are_refused),
        cmocka_unit_test(nan_names_its_layer),
        cmocka_unit_test(a_changed_file_is_noticed),
        cmocka_unit_test(cancelling_leaves_no_trace),
        cmocka_unit_test(progress_counts_all_passes),
        cmocka_unit_test(equal_inputs_are_computed_once),
        cmocka_unit_test(a_repeated_pass_counts_once),
        cmocka_unit_test(a_write_that_leaves_no_time_is_noticed),
        cmocka_unit_test(buffers_grow_in_leaps),
        cmocka_unit_test(wrong_options_are_refused_before_the_weights_are_read),
        cmocka_unit_test(an_open_model_is_taken_over),
        cmocka_unit_test(a_dynamic_rope_bounds_the_length),
        cmocka_unit_test(failed_allocations_are_reported),
    };
    const struct CMUnitTest on_a_gpu[] = {cmocka_unit_test(what_did_not_fit_is_given_back),
                                          cmocka_unit_test(the_place_says_what_is_done)};
    setenv("CTWORKER_CUDA_LIBRARY", CTW_FAKE_DEVICE, 1);
    if (mkdtemp(dir) == NULL)
        return 1;
    tiny_write(dir, 1, -1);
    backend = "cpu";
    int failed = cmocka_run_group_tests_name("engine on the CPU", tests, NULL, NULL);
    backend = "cuda";
    failed += cmocka_run_group_tests_name("engine on a GPU", tests, NULL, NULL);
    failed += cmocka_run_group_tests(on_a_gpu, NULL, NULL);
    tiny_remove(dir);
    return failed;
}
