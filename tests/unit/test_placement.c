/* Which layers stay in memory: for models of random layers, and every kind of limit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "worker/weights/placement.h"

enum { MOST_LAYERS = 40 };

/* A model whose layers have so many bytes, a multiple of 256. */
static struct ctw_layer layers[MOST_LAYERS];

static struct ctw_model model_of(int n, const size_t *bytes, bool tied)
{
    memset(layers, 0, sizeof(layers));
    for (int i = 0; i < n; i++)
        layers[i].arena_bytes = bytes[i];
    return (struct ctw_model){.n_layers = n, .n_decoders = n - 2, .layers = layers, .tied = tied};
}

/* Opens for a limit, and checks what holds for every placement. False: it does not fit. */
static bool place(struct ctw_placement *p, const struct ctw_model *m, uint64_t limit)
{
    struct ctw_err err = {0};
    size_t resident = 0, weights = 0, largest = 0;
    if (ctw_placement_make(p, m, limit, &err) != CTW_OK) {
        assert_int_equal(err.status, CTW_ENOMEM);
        assert_non_null(strstr(err.msg, "raise --weights-limit"));
        return false;
    }
    for (int i = 0; i < m->n_layers; i++) {
        weights += p->unit[i].bytes;
        resident += p->unit[i].stays ? p->unit[i].bytes : 0;
        largest = !p->unit[i].stays && p->unit[i].bytes > largest ? p->unit[i].bytes : largest;
        assert_true(p->unit[i].stays || p->unit[i].bytes > 0);
    }
    assert_int_equal(p->weights, weights);
    assert_int_equal(p->resident, resident);
    assert_int_equal(p->streamed, weights - resident);
    assert_true(p->resident + p->ring <= limit);
    assert_true(p->ring >= largest);
    assert_true(!m->tied || p->unit[0].stays);
    assert_int_equal(p->streamed == 0, weights <= limit);
    return true;
}

/* Beside the two largest layers that then do not. */
static void no_other_layer_fits(const struct ctw_placement *p, uint64_t limit)
{
    for (int more = 0; more < p->n_units; more++) {
        size_t largest = 0, second = 0;
        for (int i = 0; i < p->n_units; i++) {
            size_t bytes = p->unit[i].stays || i == more ? 0 : p->unit[i].bytes;
            second = bytes > largest ? largest : bytes > second ? bytes : second;
            largest = bytes > largest ? bytes : largest;
        }
        if (!p->unit[more].stays)
            assert_true(p->resident + p->unit[more].bytes + largest + second > limit);
    }
}

/* Of each of n devices, no choice of whole layers takes less; and with small edges, hardly more
 * than its part. */
static void parted_over_devices(void **state)
{
    (void)state;
    srand(11);
    for (int trial = 0; trial < 200; trial++) {
        size_t bytes[MOST_LAYERS], all = 0;
        int n = 3 + rand() % (MOST_LAYERS - 2), devices = 2 + rand() % 7;
        size_t edge = (size_t)(1 + rand() % 300) * 256;
        for (int i = 0; i < n; i++) {
            bytes[i] = i == 0 || i == n - 1 ? edge : 20 * 256;
            all += bytes[i];
        }
        struct ctw_model m = model_of(n, bytes, false);
        struct ctw_placement p;
        struct ctw_err err;
        assert_int_equal(ctw_placement_make_parted(&p, &m, devices, NULL, &err), CTW_OK);
        size_t memory = p.resident + p.ring + p.streamed / (size_t)devices;
        size_t pair = n > 3 ? 2 * 20 * 256 : 20 * 256;
        size_t in_ring = (edge > pair ? edge : pair) + all / (size_t)devices;
        size_t whole = 2 * edge + (n > 3 ? pair : 20 * 256) + (all - 2 * edge) / (size_t)devices;
        assert_true(memory <= in_ring + 1);
        assert_true(memory <= whole + 1);
        assert_true(memory <= all);
        assert_true(p.unit[0].stays ? p.ring <= pair : p.ring >= edge);
        ctw_placement_free(&p);
    }
}

/* Decoder layers that are released before they compute: the ring holds the largest of them, or one
 * and the layer before it; with more memory more stays, and never more than that. */
static void released_early(void **state)
{
    (void)state;
    srand(13);
    for (int trial = 0; trial < 200; trial++) {
        size_t bytes[MOST_LAYERS], early = 0, late = 0, second = 0;
        bool prepared[MOST_LAYERS] = {false};
        int n = 3 + rand() % (MOST_LAYERS - 2), devices = 2 + rand() % 7;
        for (int i = 0; i < n; i++)
            bytes[i] = (size_t)(i == 0 || i == n - 1 ? 3 : 20 + rand() % 9) * 256;
        struct ctw_model m = model_of(n, bytes, false);
        for (int i = 1; i < n - 1; i++) {
            size_t own = bytes[i];
            prepared[i] = trial % 3 != 0 || rand() % 2 == 0;
            layers[i].held_bytes = 256;
            if (prepared[i])
                early = own - 256 > early ? own - 256 : early;
            second = prepared[i] ? second : own < late ? (own > second ? own : second) : late;
            late = prepared[i] || own < late ? late : own;
        }
        const struct ctw_cuts cuts = {.prepared = prepared};
        struct ctw_placement p;
        struct ctw_err err;
        assert_int_equal(ctw_placement_make_parted(&p, &m, devices, &cuts, &err), CTW_OK);
        second = second > early ? second : early;
        size_t most = late == 0 ? early : late + second, memory = p.resident + p.ring;
        assert_true(p.ring <= most);
        assert_true((late > 0 || p.ring == early));
        assert_true(p.ahead);
        for (int i = 0; i < p.n_units; i++)
            assert_true(p.unit[i].stays || p.unit[i].kind != CTW_UNIT_HELD);
        size_t spare = (size_t)rand() % p.weights, streamed = p.streamed;
        ctw_placement_keep_more(&p, devices, spare);
        double part = (double)p.streamed / devices, before = (double)streamed / devices;
        assert_true((double)(p.resident + p.ring) + part <= (double)(memory + spare) + before + 1);
        assert_true(p.streamed <= streamed);
        assert_true(p.ahead);
        ctw_placement_free(&p);
    }
}

static void every_limit_is_kept(void **state)
{
    (void)state;
    srand(7);
    for (int trial = 0; trial < 300; trial++) {
        size_t bytes[MOST_LAYERS], all = 0;
        int n = 3 + rand() % (MOST_LAYERS - 2);
        bool even = rand() % 2 == 0;
        for (int i = 0; i < n; i++) {
            bytes[i] = (size_t)(even ? 20 : rand() % 40) * 256;
            if (i == 0 || i == n - 1)
                bytes[i] = (size_t)(rand() % 200) * 256;
            all += bytes[i];
        }
        struct ctw_model m = model_of(n, bytes, rand() % 2 == 0);
        bool fitted = false;
        for (uint64_t limit = 0; limit < all + 512; limit += all / 61 + 1) {
            struct ctw_placement p;
            bool fits = place(&p, &m, limit);
            assert_true(fits || !fitted); /* more memory is never worse */
            fitted = fits;
            if (!fits)
                continue;
            if (!p.one_at_a_time)
                no_other_layer_fits(&p, limit);
            ctw_placement_free(&p);
        }
        assert_true(fitted);
    }
}

/* The limit in the message is the least that works. */
static void the_message_says_how_much_is_needed(void **state)
{
    (void)state;
    const size_t kib = 1024, bytes[] = {100 * kib, 10 * kib, 20 * kib, 10 * kib, 90 * kib};
    struct ctw_model m = model_of(5, bytes, false);
    struct ctw_placement p;
    struct ctw_err err;
    assert_int_equal(ctw_placement_make(&p, &m, 100 * kib - 1, &err), CTW_ENOMEM);
    assert_non_null(strstr(err.msg, "100.0 KiB"));
    assert_true(place(&p, &m, 100 * kib));
    assert_true(p.one_at_a_time);
    ctw_placement_free(&p);
    m = model_of(5, bytes, true); /* 100 stay, and pairs of the others take turns */
    assert_int_equal(ctw_placement_make(&p, &m, 190 * kib - 1, &err), CTW_ENOMEM);
    assert_true(place(&p, &m, 190 * kib));
    ctw_placement_free(&p);
    assert_int_equal(ctw_placement_make_least(&p, &m, &err), CTW_OK);
    assert_false(p.one_at_a_time);
    assert_int_equal(p.resident + p.ring, 210 * kib);
    ctw_placement_free(&p);
}

/* A large embedding and head stay if a small ring then suffices; the others are spread evenly. */
static void what_stays_is_spread_over_the_depth(void **state)
{
    (void)state;
    enum { N = 34 };
    const size_t kib = 1024;
    size_t bytes[N];
    for (int i = 0; i < N; i++)
        bytes[i] = (i == 0 || i == N - 1 ? 64 : 16) * kib;
    struct ctw_model m = model_of(N, bytes, false);
    struct ctw_placement p;
    assert_true(place(&p, &m, (2 * 64 + 2 * 16 + 8 * 16) * kib));
    assert_int_equal(p.ring, 2 * 16 * kib);
    assert_true(p.unit[0].stays);
    assert_true(p.unit[N - 1].stays);
    int n = 0, gap = 0, longest = 0;
    for (int i = 1; i < N - 1; i++) {
        n += p.unit[i].stays;
        gap = p.unit[i].stays ? 0 : gap + 1;
        longest = gap > longest ? gap : longest;
    }
    assert_int_equal(n, 8);
    assert_int_equal(longest, 3); /* of 32, every fourth stays */
    ctw_placement_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_limit_is_kept),
        cmocka_unit_test(parted_over_devices),
        cmocka_unit_test(released_early),
        cmocka_unit_test(the_message_says_how_much_is_needed),
        cmocka_unit_test(what_stays_is_spread_over_the_depth),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
