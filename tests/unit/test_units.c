/* Layers in several units: an embedding and a head of several parts, and decoder layers that are
 * released before they compute, on 1 to 8 fake GPUs. The same bits as of a model that is resident,
 * in less memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define TINY_FLOATS (2 << 20)
#include "base/mem.h"
#include "kernels/backend.h"
#include "tiny_model.h"
#include "worker/engine/engine.h"
#include "worker/engine/open/devices.h"
#include "worker/engine/place/cuts.h"
#include "worker/weights/placement.h"
#include "worker/weights/shards.h"

/* A row of the matrices has 64 bytes; parts have whole blocks of 1 MiB, so of 16384 rows. */
enum { N_DECODERS = 4, WIDE = 40000, PARTS = 3, N_TOK = 9, MAX_GPUS = 8, MOST_MATRICES = 64 };

/* Sanitizers look at threads and memory, which more tokens do not change, nor more trials: STEP is
 * the one between trials, which are counted by numbers of GPUs. */
#if defined(__SANITIZE_THREAD__)
enum { N_SEQS = 4, STEP = 3 };
#elif defined(__SANITIZE_ADDRESS__)
enum { N_SEQS = 8, STEP = 2 };
#else
enum { N_SEQS = 20, STEP = 1 };
#endif

static char dir[] = "/tmp/ctw_test_units_XXXXXX", other[] = "/tmp/ctw_test_units_XXXXXX";
static char dense[] =
    "/tmp/ctw_test_units_XXXXXX"; /* decoder layers whose matrices stay in the ring */
static uint64_t rng_state = 5;

static int64_t random_below(int64_t n)
{
    rng_state = rng_state * 6364136223846793005ull + 1442695040888963407ull;
    return (int64_t)((uint32_t)(rng_state >> 33) % (uint32_t)n);
}

static void set(const char *name, const char *value)
{
    char full[64];
    snprintf(full, sizeof(full), "CTW_FAKE_GPU_%s", name);
    setenv(full, value, 1);
}

/* ---- what is scored ----------------------------------------------------------------------- */

struct scores {
    int32_t tokens[N_SEQS][N_TOK];
    struct ctw_seq seqs[N_SEQS];
    float logprob[N_SEQS][N_TOK];
    int32_t greedy[N_SEQS][N_TOK];
    struct ctw_seq_divergence divergence[N_SEQS];
    float columns[5][N_SEQS][N_TOK];
    int32_t ref_greedy[N_SEQS][N_TOK];
    uint8_t overlap5[N_SEQS][N_TOK];
    double matrices[N_SEQS][MOST_MATRICES];
    int64_t n_left; /* hooks until it is cancelled; 0: never */
};

/* Tokens and targets of all parts. Their bits do not depend on the others'. */
static void prepare(struct scores *s, bool compared)
{
    memset(s, 0, sizeof(*s));
    for (int i = 0; i < N_SEQS; i++) {
        for (int t = 0; t < N_TOK; t++)
            s->tokens[i][t] = (7919 * (i + 1) * (t + 1) + 16384 * t) % WIDE;
        s->seqs[i] = (struct ctw_seq){.tokens = s->tokens[i],
                                      .n_tok = 2 + i % (N_TOK - 1),
                                      .first = 1,
                                      .logprob = s->logprob[i],
                                      .greedy = s->greedy[i]};
        s->divergence[i] = (struct ctw_seq_divergence){.ref_logprob = s->columns[0][i],
                                                       .ref_greedy = s->ref_greedy[i],
                                                       .ref_top = s->columns[1][i],
                                                       .kl = s->columns[2][i],
                                                       .kl_reverse = s->columns[3][i],
                                                       .tv = s->columns[4][i],
                                                       .overlap5 = s->overlap5[i]};
        s->seqs[i].divergence = compared ? &s->divergence[i] : NULL;
    }
}

static bool is_cancelled(void *arg)
{
    struct scores *s = arg;
    return s->n_left > 0 && --s->n_left == 0;
}

static void assert_same(const struct scores *a, const struct scores *b)
{
    assert_memory_equal(a->logprob, b->logprob, sizeof(a->logprob));
    assert_memory_equal(a->greedy, b->greedy, sizeof(a->greedy));
    assert_memory_equal(a->columns, b->columns, sizeof(a->columns));
    assert_memory_equal(a->ref_greedy, b->ref_greedy, sizeof(a->ref_greedy));
    assert_memory_equal(a->overlap5, b->overlap5, sizeof(a->overlap5));
    assert_memory_equal(a->matrices, b->matrices, sizeof(a->matrices));
}

static const char *first_gpus(int n)
{
    static const char *const lists[MAX_GPUS] = {"0",   "0-1", "0-2", "0-3",
                                                "0-4", "0-5", "0-6", "all"};
    return lists[n - 1];
}

static struct ctw_engine *open_on(int n_gpus, const char *from, struct ctw_engine_options opt)
{
    struct ctw_engine *e;
    struct ctw_err err;
    opt.model_dir = from;
    opt.backend = "cuda";
    opt.n_threads = 1;
    opt.device_list = first_gpus(n_gpus);
    opt.place = n_gpus > 1 ? "sharded" : "resident";
    if (ctw_engine_open(&e, &opt, &err) != CTW_OK)
        fail_msg("%s", err.msg);
    return e;
}

static void score(struct ctw_engine *e, struct scores *s)
{
    struct ctw_err err;
    prepare(s, false);
    if (ctw_engine_score(e, s->seqs, N_SEQS, NULL, &err) != CTW_OK)
        fail_msg("%s", err.msg);
}

/* ---- tests -------------------------------------------------------------------------------- */

static struct ctw_placement place_of(const struct ctw_model *m, const struct ctw_cuts *cuts)
{
    struct ctw_placement p;
    struct ctw_err err;
    assert_int_equal(ctw_placement_make_parted(&p, m, 2, cuts, &err), CTW_OK);
    return p;
}

static bool is_prepared(const struct ctw_model *m, const struct ctw_backend *be, int layer)
{
    struct ctw_cuts cuts;
    struct ctw_err err;
    assert_int_equal(ctw_cuts_find(&cuts, m, be, CTW_F32, &err), CTW_OK);
    bool prepared = cuts.prepared[layer];
    ctw_cuts_free(&cuts);
    return prepared;
}

/* A layer is released early only if ctw_prepare() decodes all of its products. */
static void split_products_stay_to_the_end(void **state)
{
    (void)state;
    struct ctw_model *m;
    struct ctw_backend *be;
    struct ctw_err err;
    assert_int_equal(ctw_model_open(&m, dir, NULL, &err), CTW_OK);
    assert_int_equal(ctw_backend_open_planned(&be, 1 << 30, &err), CTW_OK);
    struct ctw_layer *l = &m->layers[1];
    struct ctw_matrix *k = &l->matrix[l->product[CTW_P_QKV].shard[1].matrix];
    assert_true(l->product[CTW_P_QKV].n_shards == 3);
    assert_true(is_prepared(m, be, 1));
    static struct ctw_rotation rotation;
    m->rotations = &rotation;
    k->rotate_out = 1;
    assert_false(is_prepared(m, be, 1));
    k->rotate_out = 0;
    k->rotate_in = 1;
    assert_false(is_prepared(m, be, 1));
    k->rotate_in = 0;
    m->rotations = NULL;
    k->input.codes = CTW_CODES_INT;
    assert_false(is_prepared(m, be, 1));
    k->input.codes = CTW_CODES_NONE;
    assert_true(is_prepared(m, be, 1));
    assert_true(is_prepared(m, be, 2));
    ctw_backend_close(be);
    ctw_model_close(m);
}

/* A layer's units are its arena, in order; the rows of the parts are the matrix. */
static void units_are_the_layers(void **state)
{
    (void)state;
    struct ctw_model *m;
    struct ctw_backend *be;
    struct ctw_cuts cuts;
    struct ctw_err err;
    assert_int_equal(ctw_model_open(&m, dir, NULL, &err), CTW_OK);
    assert_int_equal(ctw_backend_open_planned(&be, 1 << 30, &err), CTW_OK);
    assert_int_equal(ctw_cuts_find(&cuts, m, be, CTW_F32, &err), CTW_OK);
    struct ctw_placement p = place_of(m, &cuts), whole = place_of(m, NULL);
    for (int l = 0; l < m->n_layers; l++) {
        size_t at = 0;
        int64_t row = 0;
        bool edge = l == 0 || l == m->n_layers - 1;
        for (int u = p.first[l]; u < p.first[l + 1]; u++) {
            const struct ctw_unit *unit = &p.unit[u];
            assert_true(unit->layer == l);
            assert_true(unit->at == at);
            assert_true(unit->row0 == row);
            assert_int_equal(unit->kind, edge && unit->n_rows > 0   ? CTW_UNIT_ROWS
                                         : u == p.first[l] && l > 0 ? CTW_UNIT_HELD
                                                                    : CTW_UNIT_MATRICES);
            assert_int_equal(unit->stays, unit->kind == CTW_UNIT_HELD);
            at += unit->bytes;
            row += unit->n_rows;
        }
        assert_int_equal(at, m->layers[l].arena_bytes);
        assert_int_equal(row, edge ? WIDE : 0);
        assert_int_equal(whole.first[l], l);
    }
    assert_int_equal(p.first[1], PARTS);
    assert_int_equal(p.ring, 1 << 20); /* a part: far more than a decoder layer */
    assert_int_equal(p.weights, whole.weights);
    assert_true(whole.ring > 2 * p.ring);
    ctw_placement_free(&p);
    ctw_placement_free(&whole);
    ctw_cuts_free(&cuts);
    ctw_backend_close(be);
    ctw_model_close(m);
}

/* Any number of GPUs, chunks (and so rounds of the head's parts), passes and limits; copies that
 * are late and out of order; passes that end early, anywhere. */
static void score_on_several(const char *from, int n_trials)
{
    static struct scores alone, s;
    struct ctw_err err;
    struct ctw_engine *e = open_on(1, from, (struct ctw_engine_options){0});
    score(e, &alone);
    ctw_engine_close(e);
    for (int i = 0; i < n_trials; i += STEP) {
        const uint64_t more = (uint64_t)random_below(1 << 20);
        e = open_on(
            2 + i % (MAX_GPUS - 1), from,
            (struct ctw_engine_options){.pass_tokens = 20 + random_below(60),
                                        .chunk_tokens = 3 + random_below(30),
                                        .weights_limit = i / STEP % 3 == 0 ? 0 : (4 << 20) + more});
        for (int k = 0; k < 3; k++) {
            const struct ctw_hooks hooks = {.arg = &s, .cancelled = is_cancelled};
            score(e, &s);
            assert_same(&s, &alone);
            prepare(&s, false);
            s.n_left = 1 + random_below(40);
            enum ctw_status st = ctw_engine_score(e, s.seqs, N_SEQS, &hooks, &err);
            assert_true(st == CTW_OK || st == CTW_ECANCELED);
        }
        assert_int_equal(ctw_engine_wait_identity(e, &err), CTW_OK);
        ctw_engine_close(e);
    }
}

static void the_same_bits_in_parts(void **state)
{
    (void)state;
    score_on_several(dir, 10);
    score_on_several(dense, 6);
}

static uint64_t bytes_copied(struct ctw_backend *be)
{
    char text[512];
    unsigned long long bytes = 0;
    ctw_backend_describe(be, text, sizeof(text));
    const char *at = strstr(text, "uploaded bytes ");
    assert_true(at != NULL);
    assert_true(sscanf(at, "uploaded bytes %llu", &bytes) == 1);
    return bytes;
}

/* What a pass does with the provider, slowly, so that all that fits into the ring is read ahead. */
static void pass_through(struct ctw_provider *p, int n_layers, int n_rounds)
{
    const struct ctw_layer_data *data;
    struct ctw_err err;
    for (int l = 0; l < n_layers; l++) {
        assert_int_equal(ctw_provider_acquire(p, l, &data, &err), CTW_OK);
        if (l == n_layers - 1)
            ctw_provider_repeat(p, n_rounds);
        for (int round = 0; round < (l == n_layers - 1 ? n_rounds : 1); round++) {
            for (int i = 0; i < ctw_provider_parts(p, l); i++) {
                assert_int_equal(ctw_provider_acquire_part(p, l, i, &err), CTW_OK);
                ctw_provider_release_part(p, l, i);
                usleep(1000);
            }
        }
        ctw_provider_release(p, l);
    }
}

/* In every pass, each unit comes once, and the head's parts once a round: no more is read than
 * that, and ahead than the ring holds. */
static void no_part_comes_in_vain(void **state)
{
    enum { N_PASSES = 3, N_ROUNDS = 5 };
    (void)state;
    struct ctw_model *m;
    struct ctw_backend *be[2];
    struct ctw_cuts cuts;
    struct ctw_shards *shards;
    struct ctw_provider *p;
    struct ctw_err err;
    assert_int_equal(ctw_model_open(&m, dir, NULL, &err), CTW_OK);
    for (int i = 0; i < 2; i++) {
        const struct ctw_backend_options opt = {.n_threads = 1, .device = i};
        assert_int_equal(ctw_backend_open(&be[i], "cuda", &opt, &err), CTW_OK);
    }
    assert_int_equal(ctw_cuts_find(&cuts, m, be[0], CTW_F32, &err), CTW_OK);
    struct ctw_placement place = place_of(m, &cuts);
    size_t head = 0, streamed = place.streamed, ring = place.ring, resident = place.resident;
    for (int u = place.first[m->n_layers - 1]; u < place.n_units; u++)
        head += place.unit[u].stays ? 0 : place.unit[u].bytes;
    assert_int_equal(ctw_shards_open(&shards, m, &place, be, 2, &err), CTW_OK);
    while (!ctw_shards_all_in(shards))
        usleep(100);
    uint64_t before = bytes_copied(be[1]);
    assert_int_equal(ctw_provider_open_streamed(&p, m, be[1], &place, shards, &err), CTW_OK);
    for (int i = 0; i < N_PASSES; i++)
        pass_through(p, m->n_layers, N_ROUNDS);
    uint64_t copied = bytes_copied(be[1]) - before;
    uint64_t least = resident + N_PASSES * (streamed + (N_ROUNDS - 1) * head);
    assert_in_range(copied, least - (64 << 10),
                    least + ring); /* units are padded, slices are not */
    ctw_shards_stop(shards);
    ctw_provider_close(p);
    ctw_shards_close(shards);
    ctw_cuts_free(&cuts);
    for (int i = 0; i < 2; i++)
        ctw_backend_close(be[i]);
    ctw_model_close(m);
}

/* The head's parts behind the last token are not read. */
static void fewer_tokens_than_rows(void **state)
{
    (void)state;
    static const int64_t vocab[] = {WIDE - 1, 2 * 16384 + 1, 2 * 16384};
    static struct scores alone, s;
    for (size_t v = 0; v < CTW_COUNT(vocab); v++) {
        struct scores *both[] = {&alone, &s};
        for (int n = 1; n <= 2; n++) {
            struct ctw_err err;
            struct ctw_engine *e =
                open_on(n, dir, (struct ctw_engine_options){.vocab = vocab[v], .chunk_tokens = 16});
            prepare(both[n - 1], false);
            for (int i = 0; i < N_SEQS; i++)
                for (int t = 0; t < N_TOK; t++)
                    both[n - 1]->tokens[i][t] %= vocab[v];
            for (int k = 0; k < 2; k++)
                assert_int_equal(ctw_engine_score(e, both[n - 1]->seqs, N_SEQS, NULL, &err),
                                 CTW_OK);
            ctw_engine_close(e);
        }
        assert_same(&s, &alone);
    }
}

static void compare_on(int n_gpus, const char *reference, struct scores *s)
{
    struct ctw_devices table = {0};
    struct ctw_err err;
    int64_t n_matrices;
    const struct ctw_engine_options opt = {
        .pass_tokens = 3 * N_SEQS, .chunk_tokens = 17, .memory_limit = 24 << 20, .devices = &table};
    struct ctw_engine *e = open_on(n_gpus, dir, opt), *r = open_on(n_gpus, reference, opt);
    assert_int_equal(ctw_engines_exchangeable(e, r, &n_matrices, &err), CTW_OK);
    assert_int_equal(n_matrices, 7 * N_DECODERS);
    for (int k = 0; k < 2; k++) {
        prepare(s, true);
        for (int i = 0; k == 1 && i < N_SEQS; i++)
            s->divergence[i].matrices = s->matrices[i];
        if (ctw_engine_compare(e, r, s->seqs, N_SEQS, NULL, NULL, &err) != CTW_OK)
            fail_msg("%s", err.msg);
    }
    for (int m = 0; m < n_matrices; m++)
        assert_true(s->matrices[N_SEQS - 1][m] > 0);
    ctw_engine_close(e);
    ctw_engine_close(r);
}

/* Two heads in parts, block by block; then with one matrix of the reference exchanged at a time,
 * where layers of both models are released early, and of one alone. */
static void comparing_in_parts(void **state)
{
    (void)state;
    static struct scores one, several;
    const char *const references[] = {other, dense};
    for (int i = 0; i < 2; i++) {
        compare_on(1, references[i], &one);
        compare_on(3, references[i], &several);
        assert_same(&several, &one);
    }
}

/* What the planner says is what each GPU loses by opening, and hardly more than its part. */
static void memory_is_as_planned(void **state)
{
    enum { PAGES = 2 * 4096 }; /* a fake GPU's two allocations are of whole pages */
    (void)state;
    for (int n = 2; n <= 5; n += STEP) {
        struct ctw_backend *be[MAX_GPUS];
        uint64_t before[MAX_GPUS], most = 0;
        struct ctw_engine_info info;
        struct ctw_err err;
        for (int i = 0; i < n; i++) {
            const struct ctw_backend_options opt = {.n_threads = 1, .device = i};
            assert_int_equal(ctw_backend_open(&be[i], "cuda", &opt, &err), CTW_OK);
            before[i] = ctw_backend_memory_free(be[i]);
        }
        struct ctw_engine *e = open_on(n, dir, (struct ctw_engine_options){0});
        ctw_engine_get_info(e, &info);
        for (int i = 0; i < n; i++) {
            uint64_t taken = before[i] - ctw_backend_memory_free(be[i]);
            assert_true(taken <= info.weights_memory + PAGES);
            most = taken > most ? taken : most;
        }
        assert_in_range(most, info.weights_memory, info.weights_memory + PAGES);
        /* a ring of 1 MiB, and slices of up to 2 MiB */
        assert_true(most <= info.weights_bytes / (uint64_t)n + (3 << 20));
        ctw_engine_close(e);
        for (int i = 0; i < n; i++)
            ctw_backend_close(be[i]);
    }
}

static void write_models(void)
{
    static struct tiny_writer w;
    uint64_t quantised = 0;
    for (int l = 0; l < N_DECODERS; l++)
        quantised |= (uint64_t)0x7f << (1 + 9 * l);
    w = (struct tiny_writer){.quantised = quantised, .vocab = WIDE};
    tiny_write_with(&w, dir, N_DECODERS, -1);
    w = (struct tiny_writer){.quantised = quantised, .vocab = WIDE, .changed = UINT64_MAX};
    tiny_write_with(&w, other, N_DECODERS, -1);
    w = (struct tiny_writer){.vocab = WIDE, .changed = UINT64_MAX};
    tiny_write_with(&w, dense, N_DECODERS, -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(split_products_stay_to_the_end), cmocka_unit_test(units_are_the_layers),
        cmocka_unit_test(the_same_bits_in_parts),         cmocka_unit_test(no_part_comes_in_vain),
        cmocka_unit_test(fewer_tokens_than_rows),         cmocka_unit_test(comparing_in_parts),
        cmocka_unit_test(memory_is_as_planned),
    };
    if (mkdtemp(dir) == NULL || mkdtemp(other) == NULL || mkdtemp(dense) == NULL ||
        setenv("CTWORKER_CUDA_LIBRARY", CTW_FAKE_DEVICE, 1) != 0)
        return 1;
    set("COUNT", "8");
    set("COPY_US", "50,0,150");
    set("JITTER_US", "100");
    write_models();
    int failed = cmocka_run_group_tests_name("units", tests, NULL, NULL);
    tiny_remove(dir);
    tiny_remove(other);
    tiny_remove(dense);
    return failed;
}
