/* Jobs of a worker with a result store: how many sequences the engine computes. */
#include <stdio.h>
#include <unistd.h>

#include "queue_bench.h"

static char folder[64];

static int open_store(void **state)
{
    struct ctw_err err;
    (void)state;
    snprintf(folder, sizeof(folder), "/tmp/ctw-stored-jobs-%ld", (long)getpid());
    assert_int_equal(ctw_store_make_folder(folder, &err), CTW_OK);
    assert_int_equal(ctw_store_open(&bench_store, folder, 1 << 24, &err), CTW_OK);
    return 0;
}

static int remove_store(void **state)
{
    char path[128];
    const char *const ends[] = {"", "-wal", "-shm"};
    (void)state;
    ctw_store_close(bench_store);
    bench_store = NULL;
    for (size_t i = 0; i < CTW_COUNT(ends); i++) {
        snprintf(path, sizeof(path), "%s/results.sqlite%s", folder, ends[i]);
        unlink(path);
    }
    return rmdir(folder);
}

static int64_t computed(void)
{
    int64_t calls, seqs, most;
    fake_engine_counts(&calls, &seqs, &most);
    fake_engine_reset_counts();
    return seqs;
}

/* Submits and waits; returns the sum of the results. submit() of so many items: see there. */
static double run_job(struct bench *b, const char *id, int n_items, int n_context)
{
    struct ctw_err err;
    double sum;
    assert_int_equal(submit(b, id, n_items, n_context, 7, true, &err), CTW_OK);
    assert_string_equal(wait_for_job(b, id, &err), "done");
    assert_int_equal(fetch(b, id, &sum, &err), n_items);
    return sum;
}

static void a_second_job_computes_nothing(void **state)
{
    (void)state;
    struct bench b;
    open_ready(&b);
    computed();
    double sum = run_job(&b, "first-----------", 60, 11); /* 500 tokens until they repeat */
    int64_t n = computed();
    assert_in_range(n, 1, 60);
    assert_true(run_job(&b, "second----------", 60, 11) == sum);
    assert_int_equal(computed(), 0);
    close_bench(&b);
    open_ready(&b); /* another worker */
    assert_true(run_job(&b, "third-----------", 60, 11) == sum);
    assert_int_equal(computed(), 0);
    close_bench(&b);
}

/* Items i and i + 125 are equal: 4 tokens each, of 500 that repeat. Passes take 64 items, so
 * repeated sequences lie in the same pass and in later ones, before the first is stored. */
static void repeated_sequences_are_computed_once(void **state)
{
    (void)state;
    struct bench b;
    open_ready(&b);
    computed();
    double sum = run_job(&b, "repeats---------", 1000, 3);
    assert_int_equal(computed(), 125);
    double expected = 0;
    int32_t tokens[4];
    for (int i = 0; i < 1000; i++) {
        for (int k = 0; k < 3; k++)
            tokens[k] = (i * 4 + k) % 500;
        tokens[3] = 7;
        expected += (double)fake_logprob(tokens, 3);
    }
    assert_true(sum == expected);
    struct ctw_store_stats stats;
    ctw_store_get_stats(bench_store, &stats);
    assert_int_equal(stats.kept, 125);
    assert_int_equal(stats.entries, 125);
    close_bench(&b);
}

/* Equal jobs at the same time: each sequence is computed for one of them. */
static void jobs_share_sequences(void **state)
{
    (void)state;
    struct bench b;
    struct ctw_err err;
    double sums[8];
    char id[17] = "equal-0---------";
    fake_engine.us_per_token = 50;
    open_ready(&b);
    computed();
    for (id[6] = '0'; id[6] < '8'; id[6]++)
        assert_int_equal(submit(&b, id, 50, 19, 7, true, &err), CTW_OK);
    for (id[6] = '0'; id[6] < '8'; id[6]++) {
        assert_string_equal(wait_for_job(&b, id, &err), "done");
        assert_int_equal(fetch(&b, id, &sums[id[6] - '0'], &err), 50);
    }
    assert_int_equal(computed(), 25); /* items i and i + 25 are equal */
    for (int i = 1; i < 8; i++)
        assert_true(sums[i] == sums[0]);
    close_bench(&b);
    fake_engine.us_per_token = 0;
}

/* A NaN is not kept, and its job fails as without a store; so do jobs that find no memory. */
static void only_final_results_are_kept(void **state)
{
    (void)state;
    struct bench b;
    struct ctw_err err;
    struct ctw_store_stats stats;
    fake_engine.inf_token = 77;
    open_ready(&b);
    assert_int_equal(submit(&b, "infinite--------", 2, 5, 77, true, &err), CTW_OK);
    assert_string_equal(wait_for_job(&b, "infinite--------", &err), "failed");
    fake_engine.inf_token = -1;
    fake_engine.nan_token = 78;
    assert_int_equal(submit(&b, "nan-------------", 2, 5, 78, true, &err), CTW_OK);
    assert_string_equal(wait_for_job(&b, "nan-------------", &err), "failed");
    fake_engine.nan_token = -1;
    fake_engine.memory_token = 79;
    assert_int_equal(submit(&b, "memory----------", 2, 5, 79, true, &err), CTW_OK);
    assert_string_equal(wait_for_job(&b, "memory----------", &err), "failed");
    fake_engine.memory_token = -1;
    ctw_store_get_stats(bench_store, &stats);
    assert_int_equal(stats.entries, 0);
    (void)computed();
    (void)run_job(&b, "finite----------", 2, 5);
    assert_int_equal(computed(), 2);
    close_bench(&b);
}

/* A pass of jobs of which one finds no memory is repeated; nothing is counted twice. */
static void a_pass_is_repeated(void **state)
{
    (void)state;
    struct bench b;
    struct ctw_err err;
    fake_engine.us_per_token = 1000;
    open_ready(&b);
    (void)run_job(&b, "stored----------", 3, 40);
    fake_engine.memory_token = 666;
    computed();
    assert_int_equal(submit(&b, "before----------", 4, 63, 7, true, &err), CTW_OK);
    struct timespec ts = {.tv_nsec = 50000000}; /* of a pass of 256 ms */
    nanosleep(&ts, NULL);
    assert_int_equal(submit(&b, "longest---------", 6, 40, 7, true, &err), CTW_OK); /* 3 stored */
    assert_int_equal(submit(&b, "too-large-------", 2, 20, 666, true, &err), CTW_OK);
    assert_int_equal(submit(&b, "small-----------", 2, 10, 7, true, &err), CTW_OK);
    assert_int_equal(submit(&b, "equal-----------", 2, 10, 7, true, &err), CTW_OK);
    const char *const done[] = {"before----------", "longest---------", "small-----------",
                                "equal-----------"};
    for (size_t i = 0; i < CTW_COUNT(done); i++)
        assert_string_equal(wait_for_job(&b, done[i], &err), "done");
    assert_string_equal(wait_for_job(&b, "too-large-------", &err), "failed");
    assert_int_equal(computed(), 4 + 3 + 2);
    close_bench(&b);
    fake_engine.us_per_token = 0;
    fake_engine.memory_token = -1;
}

/* Its sequence is scored for another job of the pass, whose failure is its own. */
static void a_nan_fails_all_that_wait_for_it(void **state)
{
    (void)state;
    struct bench b;
    struct ctw_err err;
    fake_engine.us_per_token = 1000;
    fake_engine.nan_token = 666;
    open_ready(&b);
    computed();
    assert_int_equal(submit(&b, "before----------", 3, 63, 7, true, &err), CTW_OK);
    struct timespec ts = {.tv_nsec = 50000000}; /* of a pass of 189 ms */
    nanosleep(&ts, NULL);
    assert_int_equal(submit(&b, "first-----------", 1, 20, 666, true, &err), CTW_OK);
    assert_int_equal(submit(&b, "later-----------", 1, 20, 666, true, &err), CTW_OK);
    const char *first = wait_for_job(&b, "first-----------", &err);
    const char *later = wait_for_job(&b, "later-----------", &err);
    close_bench(&b);
    fake_engine.us_per_token = 0;
    fake_engine.nan_token = -1;
    assert_string_equal(first, "failed");
    assert_string_equal(later, "failed");
    assert_int_equal(computed(), 3 + 1);
}

static void check_counts(struct bench *b, const char *id)
{
    struct ctw_contact c = contact();
    struct ctw_job *j;
    struct ctw_err err;
    pthread_mutex_lock(&b->queue.lock);
    assert_int_equal(ctw_jobs_find(&b->queue.jobs, &c, id_of(id), NULL, &j, &err), CTW_OK);
    assert_int_equal(j->results.tok_done, j->input.n_tok);
    for (int64_t i = 0; i < j->input.n_items; i++)
        assert_int_equal(j->plan.items[i].sequences_left, 0);
    pthread_mutex_unlock(&b->queue.lock);
}

/* Memory runs out after a part of a pass. Of the job `later`, the first sequence waits for that of
 * the job `first`, which it equals, and the second is scored: it must not be taken again. */
static void a_part_of_a_pass_is_repeated(void **state)
{
    (void)state;
    struct bench b;
    struct ctw_err err;
    fake_engine.us_per_token = 1000;
    open_ready(&b);
    assert_int_equal(submit(&b, "before----------", 3, 63, 7, true, &err), CTW_OK);
    fake_engine_fail_after(3);
    struct timespec ts = {.tv_nsec = 50000000}; /* of a pass of 189 ms */
    nanosleep(&ts, NULL);
    assert_int_equal(submit(&b, "first-----------", 1, 20, 7, true, &err), CTW_OK);
    assert_int_equal(submit(&b, "later-----------", 3, 20, 7, true, &err), CTW_OK);
    assert_int_equal(submit(&b, "other-----------", 3, 20, 8, true, &err), CTW_OK);
    const char *const ids[] = {"before----------", "first-----------", "later-----------",
                               "other-----------"};
    for (size_t i = 0; i < CTW_COUNT(ids); i++) {
        assert_string_equal(wait_for_job(&b, ids[i], &err), "done");
        check_counts(&b, ids[i]);
    }
    assert_int_equal(computed(), 3 + 6 + 3); /* the second time: 2 of `other`, 1 of `later` */
    close_bench(&b);
    fake_engine.us_per_token = 0;
}

/* The identity of a GPU's checkpoint is known late. It is waited for only if that may save work. */
static void the_identity_is_waited_for(void **state)
{
    (void)state;
    struct bench b;
    struct ctw_store_stats stats;
    fake_engine.late_identity = 1;
    open_ready(&b);
    computed();
    (void)fake_engine_n_waits();
    double sum = run_job(&b, "first-----------", 20, 11);
    close_bench(&b);
    assert_int_equal(computed(), 20);
    assert_int_equal(fake_engine_n_waits(), 0);
    ctw_store_get_stats(bench_store, &stats);
    assert_int_equal(stats.kept, 20);
    open_ready(&b);
    assert_true(run_job(&b, "second----------", 20, 11) == sum);
    close_bench(&b);
    assert_int_equal(computed(), 0);
    assert_int_equal(fake_engine_n_waits(), 1);
    fake_engine.late_identity = 0;
}

int main(void)
{
#define EACH(test) cmocka_unit_test_setup_teardown(test, open_store, remove_store)
    const struct CMUnitTest tests[] = {
        EACH(a_second_job_computes_nothing),
        EACH(repeated_sequences_are_computed_once),
        EACH(jobs_share_sequences),
        EACH(only_final_results_are_kept),
        EACH(a_pass_is_repeated),
        EACH(a_nan_fails_all_that_wait_for_it),
        EACH(a_part_of_a_pass_is_repeated),
        EACH(the_identity_is_waited_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
