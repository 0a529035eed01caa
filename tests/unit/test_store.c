/* The result store: what is found, keys, limits, list and clear, no memory. */
#include "sample_store.h"

#include <sys/stat.h>

/* ---- keys and records ---- */

static void kept_results_are_found(void **state)
{
    (void)state;
    struct ctw_store_stats stats;
    struct ctw_store *s = open_store(LIMIT);
    assert_int_equal(count_found(s, 0, 10), 0);
    assert_true(put_range(s, 0, 100));
    assert_true(put_range(s, 50, 100)); /* half of them again */
    assert_int_equal(count_found(s, 0, 160), 150);
    ctw_store_get_stats(s, &stats);
    assert_int_equal(stats.entries, 150);
    assert_int_equal(stats.hits, 150);
    assert_int_equal(stats.kept, 200);
    assert_int_equal(stats.lost, 0);
    ctw_store_close(s);
    s = open_store(LIMIT);
    assert_int_equal(count_found(s, 0, 160), 150);
    ctw_store_close(s);
}

static void a_key_covers_all_that_a_score_depends_on(void **state)
{
    (void)state;
    const int32_t tokens[6] = {1, 2, 3, 4, 5, 6}, others[6] = {1, 2, 3, 4, 5, 7};
    const struct ctw_store_key keys[] = {
        ctw_store_key_of(tokens, 5, 2, 0),     ctw_store_key_of(tokens, 5, 3, 0),
        ctw_store_key_of(tokens, 6, 2, 0),     ctw_store_key_of(others, 6, 2, 0),
        ctw_store_key_of(tokens + 1, 5, 2, 0), ctw_store_key_of(tokens, 2, 5, 0),
        ctw_store_key_of(tokens, 5, 2, 7)};
    for (size_t i = 0; i < CTW_COUNT(keys); i++) {
        for (size_t k = 0; k < i; k++)
            assert_memory_not_equal(&keys[i], &keys[k], sizeof(keys[0]));
    }
    struct ctw_store_key again = ctw_store_key_of(tokens, 5, 2, 0);
    assert_memory_equal(&again, &keys[0], sizeof(again));

    /* Equal sequences of sources that differ in one part; the outline only says what may be there.
     */
    const struct ctw_store_source sources[] = {{{"ab", "c", "o"}, {"", "", ""}},
                                               {{"a", "bc", "o"}, {"", "", ""}},
                                               {{"ab", "d", "o"}, {"", "", ""}},
                                               {{"ab", "c", "o"}, {"ab", "c", "o"}},
                                               {{"ab", "c", "o"}, {"ab", "d", "o"}}};
    struct ctw_store *s = open_store(LIMIT);
    struct sample sample;
    for (size_t i = 0; i < CTW_COUNT(sources); i++) {
        fill(&sample, 1);
        assert_false(ctw_store_may_have(s, &sources[i]));
        assert_int_equal(ctw_store_find(s, &sources[i], &sample.record, 1), 0);
        assert_true(ctw_store_put(s, &sources[i], &sample.record, 1));
        assert_int_equal(ctw_store_find(s, &sources[i], &sample.record, 1), 1);
        assert_true(ctw_store_may_have(s, &sources[i]));
    }
    const struct ctw_store_source unknown = {{"", "c", "o"}, {"", "", ""}};
    const struct ctw_store_source different = {{"", "c", "p"}, {"", "", ""}};
    assert_true(ctw_store_may_have(s, &unknown));
    assert_false(ctw_store_may_have(s, &different));
    ctw_store_close(s);
}

/* ---- the limit ---- */

static void the_oldest_go_first(void **state)
{
    (void)state;
    enum { SMALL = CTW_STORE_MIN_BYTES };
    struct ctw_store_stats stats;
    struct ctw_store *s = open_store(SMALL);
    struct sample sample;
    const struct ctw_store_source first = {{"b", "c", "o"}, {"", "", ""}};
    int n = 0;
    fill(&sample, 1);
    assert_true(ctw_store_put(s, &first, &sample.record, 1));
    for (; n < 30000; n += 500) {
        assert_true(put_range(s, n, 500));
        ctw_store_get_stats(s, &stats);
        assert_true(stats.bytes <= SMALL);
        assert_true(has(s, n + 499));
    }
    assert_true(stats.entries > 2000);
    assert_true(stats.entries < 15000);
    /* What is there is one range of the last. */
    int oldest = n - (int)stats.entries;
    assert_int_equal(count_found(s, oldest, (int)stats.entries), (int)stats.entries);
    assert_int_equal(count_found(s, 0, oldest), 0);
    assert_false(ctw_store_may_have(s, &first)); /* it went with its last record */
    ctw_store_close(s);
    struct stat st;
    assert_int_equal(stat(file, &st), 0);
    assert_true(st.st_size <= SMALL + (256 << 10));
}

static void a_lower_limit_shrinks_the_file(void **state)
{
    (void)state;
    struct ctw_store_stats stats;
    struct stat st;
    struct ctw_store *s = open_store(LIMIT);
    assert_true(put_range(s, 0, 30000));
    ctw_store_close(s);
    assert_int_equal(stat(file, &st), 0);
    assert_true(st.st_size > 3 << 20);
    s = open_store(CTW_STORE_MIN_BYTES);
    ctw_store_get_stats(s, &stats);
    assert_true(stats.bytes <= CTW_STORE_MIN_BYTES);
    assert_true(stats.entries > 1000);
    assert_int_equal(count_found(s, 30000 - 1000, 1000), 1000);
    ctw_store_close(s);
    assert_int_equal(stat(file, &st), 0);
    assert_true(st.st_size <= CTW_STORE_MIN_BYTES + (256 << 10));
}

/* ---- list, clear, memory ---- */

static void add_up(void *sums, const struct ctw_store_listed *l)
{
    uint64_t *sum = sums;
    assert_string_equal(l->identity, identity);
    assert_true(strncmp(l->numerics, "cpu-", 4) == 0);
    assert_true(l->changed_s > 1700000000);
    sum[0]++;
    sum[1] += l->entries;
    sum[2] += l->targets;
}

static void list_and_clear(void **state)
{
    (void)state;
    struct ctw_err err;
    struct sample sample;
    uint64_t sums[3] = {0}, n;
    const struct ctw_store_source other = {{identity, "cpu-avx2/float32/3", "outline"},
                                           {"", "", ""}};
    struct ctw_store *s = open_store(LIMIT);
    assert_true(put_range(s, 0, 20));
    fill(&sample, 3);
    assert_true(ctw_store_put(s, &other, &sample.record, 1));
    assert_int_equal(ctw_store_list(s, add_up, sums, &err), CTW_OK);
    assert_true(sums[0] == 2);
    assert_true(sums[1] == 21);
    assert_true(sums[2] == 21 * N_TARGETS);
    assert_int_equal(ctw_store_clear(dir, &n, &err), CTW_OK); /* while s is open */
    assert_int_equal(n, 21);
    assert_int_equal(count_found(s, 0, 20), 0);
    assert_true(put_range(s, 0, 20));
    assert_int_equal(count_found(s, 0, 20), 20);
    memset(sums, 0, sizeof(sums));
    assert_int_equal(ctw_store_list(s, add_up, sums, &err), CTW_OK);
    assert_true(sums[0] == 1);
    assert_true(sums[1] == 20);
    ctw_store_close(s);
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    struct ctw_store *s = NULL;
    struct ctw_err err;
    for (int64_t n = 1;; n++) {
        int64_t before = ctw_mem_count();
        ctw_mem_fail_at(n);
        enum ctw_status st = ctw_store_open(&s, dir, LIMIT, &err);
        bool kept = st == CTW_OK && put_range(s, 0, 5);
        int found = st == CTW_OK ? count_found(s, 0, 5) : 0;
        ctw_mem_fail_at(0);
        assert_true(st == CTW_OK || st == CTW_ENOMEM);
        assert_true(!kept || found == 5);
        if (st == CTW_OK)
            ctw_store_close(s);
        if (ctw_mem_count() - before < n) {
            assert_true(kept);
            return;
        }
        remove_file();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        EACH(kept_results_are_found), EACH(a_key_covers_all_that_a_score_depends_on),
        EACH(the_oldest_go_first),    EACH(a_lower_limit_shrinks_the_file),
        EACH(list_and_clear),         EACH(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
