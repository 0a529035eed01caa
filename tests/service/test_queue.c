/* Jobs from submission to results: passes, shares, failures, memory. */
#include "base/mem.h"
#include "queue_bench.h"

static void small_jobs_share_a_pass(void **state)
{
    (void)state;
    struct bench b;
    struct ctw_err err;
    int64_t calls, seqs, most;
    fake_engine.us_per_token = 2000;
    fake_engine.pass_tokens = 256;
    open_ready(&b);
    fake_engine_reset_counts();
    assert_int_equal(submit(&b, "large-----------", 40, 63, 7, true, &err), CTW_OK);
    char id[17] = "small-0---------";
    for (id[6] = '0'; id[6] < '8'; id[6]++)
        assert_int_equal(submit(&b, id, 3, 10, 7, true, &err), CTW_OK);
    for (id[6] = '0'; id[6] < '8'; id[6]++)
        assert_string_equal(wait_for_job(&b, id, &err), "done");
    fake_engine_counts(&calls, &seqs, &most);
    /* With fair shares the 240 tokens of eight jobs fit the three passes after the first. */
    assert_true(calls <= 4);
    assert_true(most <= 256);
    struct ctw_contact c = contact();
    assert_int_equal(ask_job(ctw_handle_cancel, &b.queue, &c, id_of("large-----------"), &err),
                     CTW_OK);
    close_bench(&b);
    fake_engine.us_per_token = 0;
}

/* What several jobs begin with is computed once, and the room that this makes is filled. */
static void jobs_that_begin_alike_fill_a_pass(void **state)
{
    (void)state;
    struct bench b;
    struct ctw_err err;
    int64_t calls, seqs, most;
    fake_engine.us_per_token = 2000;
    fake_engine.pass_tokens = 256;
    open_ready(&b);
    fake_engine_reset_counts();
    assert_int_equal(submit(&b, "first-----------", 1, 200, 7, true, &err), CTW_OK);
    char id[17] = "alike-0---------"; /* 8 times 60 tokens, meanwhile */
    for (id[6] = '0'; id[6] < '8'; id[6]++)
        assert_int_equal(submit(&b, id, 1, 60, id[6], true, &err), CTW_OK);
    for (id[6] = '0'; id[6] < '8'; id[6]++)
        assert_string_equal(wait_for_job(&b, id, &err), "done");
    fake_engine_counts(&calls, &seqs, &most);
    assert_true(calls <= 2); /* three, if each job's tokens counted */
    close_bench(&b);
    fake_engine.us_per_token = 0;
}

/* A later job gets no compensation for the past; equal jobs end at about the same time. */
static void equal_jobs_get_equal_shares(void **state)
{
    (void)state;
    struct bench b;
    struct ctw_err err;
    double sum;
    fake_engine.us_per_token = 200;
    fake_engine.pass_tokens = 256;
    open_ready(&b);
    assert_int_equal(submit(&b, "first-----------", 60, 63, 7, true, &err), CTW_OK);
    const struct timespec ts = {.tv_nsec = 10000000};
    int64_t before = 0;
    while (before <= 8) { /* two passes of four */
        nanosleep(&ts, NULL);
        before = fetch(&b, "first-----------", &sum, &err);
    }
    assert_int_equal(submit(&b, "second----------", 60, 63, 7, true, &err), CTW_OK);
    assert_string_equal(wait_for_job(&b, "first-----------", &err), "done");
    int64_t second = fetch(&b, "second----------", &sum, &err);
    /* Afterwards 60 - before items of each job, give or take two passes of four. */
    assert_in_range(second, 60 - before - 8, 60 - before + 8);
    assert_string_equal(wait_for_job(&b, "second----------", &err), "done");
    close_bench(&b);
    fake_engine.us_per_token = 0;
}

/* Shares are of clients: a client with one job does not wait for all eight of another. */
static void many_jobs_get_one_share(void **state)
{
    (void)state;
    struct bench b;
    struct ctw_err err;
    double sum;
    int64_t n_many = 0;
    fake_engine.us_per_token = 600; /* a pass takes longer than the fetches, on a busy machine too */
    fake_engine.pass_tokens = 512;
    open_ready(&b);
    char id[17] = "many-0----------";
    for (id[5] = '0'; id[5] < '8'; id[5]++)
        assert_int_equal(submit(&b, id, 60, 63, 7, true, &err), CTW_OK);
    bench_pipe = 2;
    assert_int_equal(submit(&b, "one-------------", 60, 63, 7, true, &err), CTW_OK);
    assert_string_equal(wait_for_job(&b, "one-------------", &err), "done");
    bench_pipe = 1;
    for (id[5] = '0'; id[5] < '8'; id[5]++)
        n_many += fetch(&b, id, &sum, &err);
    /* 60 items, and as many of the others, give or take a few passes of eight; else 480. */
    assert_in_range(n_many, 30, 120);
    for (id[5] = '0'; id[5] < '8'; id[5]++)
        assert_string_equal(wait_for_job(&b, id, &err), "done");
    close_bench(&b);
    fake_engine.us_per_token = 0;
}

static void infinity_is_no_score(void **state)
{
    (void)state;
    struct bench b;
    struct ctw_err err;
    double sum;
    fake_engine.inf_token = 77;
    open_ready(&b);
    assert_int_equal(submit(&b, "infinite--------", 2, 5, 77, true, &err), CTW_OK);
    assert_string_equal(wait_for_job(&b, "infinite--------", &err), "failed");
    assert_int_equal(fetch(&b, "infinite--------", &sum, &err), 0);
    assert_int_equal(submit(&b, "finite----------", 2, 5, 7, true, &err), CTW_OK);
    assert_string_equal(wait_for_job(&b, "finite----------", &err), "done");
    close_bench(&b);
    fake_engine.inf_token = -1;
}

static void bytes_are_given_back(void **state)
{
    (void)state;
    struct bench b;
    struct ctw_err err;
    open_ready(&b);
    assert_int_equal(submit(&b, "one-------------", 100, 5, 7, true, &err), CTW_OK);
    assert_int_equal(submit(&b, "two-------------", 100, 5, 7, false, &err), CTW_OK);
    assert_true(b.queue.jobs.bytes > 2 * 100 * 6 * 4);
    assert_string_equal(wait_for_job(&b, "one-------------", &err), "done");
    struct ctw_contact c = contact();
    assert_int_equal(ask_job(ctw_handle_cancel, &b.queue, &c, id_of("two-------------"), &err),
                     CTW_OK);
    assert_int_equal(ask_job(ctw_handle_release, &b.queue, &c, id_of("one-------------"), &err),
                     CTW_OK);
    assert_int_equal(ask_job(ctw_handle_release, &b.queue, &c, id_of("two-------------"), &err),
                     CTW_OK);
    /* The pass that scored a job may keep a reference a little longer. */
    bool empty = false;
    for (int64_t end = ctw_now_ms() + WAIT_MS; !empty && ctw_now_ms() < end;) {
        pthread_mutex_lock(&b.queue.lock);
        empty = b.queue.jobs.bytes == 0 && b.queue.jobs.n == 0;
        pthread_mutex_unlock(&b.queue.lock);
    }
    assert_true(empty);
    close_bench(&b);
}

/* The item of the error in a job's poll reply; -1: none. */
static int64_t error_item(struct bench *b, const char *id)
{
    struct ctw_err err;
    struct ctw_reply reply = {.op = CTW_OP_POLL};
    struct ctw_poll poll = {.job = id_of(id)};
    struct ctw_contact c = contact();
    struct ctw_wait wait = {.since_ms = c.now_ms};
    assert_int_equal(ask_poll(&b->queue, &c, &poll, &wait, &reply, &err), CTW_OK);
    const struct ctw_error_map *e = &reply.body.poll.error;
    int64_t item = e->has.item ? (int64_t)e->item : -1;
    ctw_reply_close(&reply);
    return item;
}

/* An input that does not fit the memory is refused with its item, before anything is scored. */
static void what_cannot_fit_is_told_at_submit(void **state)
{
    (void)state;
    struct bench b;
    struct ctw_err err;
    fake_engine.fit_length = 30;
    open_ready(&b);
    assert_int_equal(submit(&b, "fits------------", 3, 30, 7, true, &err), CTW_OK);
    assert_int_equal(submit(&b, "long------------", 3, 31, 7, true, &err), CTW_ENOMEM);
    assert_non_null(strstr(err.msg, "item 0: its input of 31 tokens"));
    assert_non_null(strstr(err.msg, "enough for 30 tokens"));
    assert_non_null(strstr(err.msg, "--memory-limit"));
    assert_non_null(strstr(err.msg, "--max-length 30"));
    assert_string_equal(wait_for_job(&b, "fits------------", &err), "done");
    close_bench(&b);
    fake_engine.fit_length = 0;
}

/* If one of three jobs in a pass runs out of memory, only that job fails, whichever is longest. */
static void a_lack_of_memory_is_one_jobs(void **state)
{
    (void)state;
    struct bench b;
    struct ctw_err err;
    double sum;
    int64_t calls, seqs, most;
    fake_engine.us_per_token = 1000;
    fake_engine.memory_token = 666;
    open_ready(&b);
    fake_engine_reset_counts();
    assert_int_equal(submit(&b, "before----------", 4, 63, 7, true, &err), CTW_OK);
    struct timespec ts = {.tv_nsec = 50000000}; /* of a pass of 256 ms */
    nanosleep(&ts, NULL);
    assert_int_equal(submit(&b, "longest---------", 2, 40, 7, true, &err), CTW_OK);
    assert_int_equal(submit(&b, "too-large-------", 2, 20, 666, true, &err), CTW_OK);
    assert_int_equal(submit(&b, "small-----------", 2, 10, 7, true, &err), CTW_OK);
    assert_string_equal(wait_for_job(&b, "longest---------", &err), "done");
    assert_string_equal(wait_for_job(&b, "small-----------", &err), "done");
    assert_string_equal(wait_for_job(&b, "too-large-------", &err), "failed");
    assert_int_equal(error_item(&b, "too-large-------"), 0);
    assert_int_equal(fetch(&b, "longest---------", &sum, &err), 2);
    assert_int_equal(fetch(&b, "small-----------", &sum, &err), 2);
    fake_engine_counts(&calls, &seqs, &most);
    assert_int_equal(calls, 3); /* started calls: one for each scored job */
    assert_int_equal(submit(&b, "after-----------", 2, 10, 7, true, &err), CTW_OK);
    assert_string_equal(wait_for_job(&b, "after-----------", &err), "done");
    int n_alone = 0; /* jobs that had memory share passes again */
    pthread_mutex_lock(&b.queue.lock);
    for (const struct ctw_job *j = b.queue.jobs.first; j != NULL; j = j->next)
        n_alone += j->share.alone;
    pthread_mutex_unlock(&b.queue.lock);
    assert_int_equal(n_alone, 1);
    close_bench(&b);
    fake_engine.us_per_token = 0;
    fake_engine.memory_token = -1;
}

/* A complete run in which the n-th allocation fails; true if no allocation failed. */
static bool life_with_failing_allocation(int64_t n, double expected)
{
    struct bench b;
    struct ctw_err err = {0};
    double sum = 0;
    int64_t got = -1;
    int64_t before = ctw_mem_count();
    ctw_mem_fail_at(n);
    enum ctw_status st = open_bench(&b, &err);
    if (st == CTW_OK && wait_for_model(&b) != CTW_MODEL_READY)
        st = b.queue.models.slots[0]->error.status;
    if (st == CTW_OK)
        st = submit(&b, "torture---------", 300, 5, 7, true, &err);
    if (st == CTW_OK) {
        const char *end = wait_for_job(&b, "torture---------", &err);
        assert_true(strcmp(end, "done") == 0 || strcmp(end, "failed") == 0 ||
                    strcmp(end, "refused") == 0);
        got = fetch(&b, "torture---------", &sum, &err);
        st = got == 300 ? CTW_OK : CTW_ENOMEM;
    }
    ctw_mem_fail_at(0);
    bool reached = ctw_mem_count() - before >= n;
    close_bench(&b);
    assert_true(st == CTW_OK || st == CTW_ENOMEM);
    if (got == 300)
        assert_true(sum == expected);
    assert_true(reached || got == 300);
    return !reached;
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    double expected = 0;
    int32_t tokens[6];
    for (int i = 0; i < 300; i++) {
        for (int k = 0; k < 5; k++)
            tokens[k] = (i * 6 + k) % 500;
        tokens[5] = 7;
        expected += (double)fake_logprob(tokens, 5);
    }
    int64_t n = 1;
    while (!life_with_failing_allocation(n, expected))
        assert_true(++n < 1000);
    assert_true(n > 15);
    print_message("%lld allocations failed, one after another\n", (long long)n - 1);
}

/* Rates include the completed part of a cancelled pass. */
static void a_cancelled_pass_is_not_done(void **state)
{
    (void)state;
    struct bench b;
    struct ctw_err err;
    const char *id = "cancelled-------";
    fake_engine.us_per_token = 2000;
    fake_engine.pass_tokens = 256;
    open_ready(&b);
    assert_int_equal(submit(&b, id, 4, 63, 7, true, &err), CTW_OK);
    struct timespec ts = {.tv_nsec = 100000000}; /* of half a second */
    nanosleep(&ts, NULL);
    struct ctw_contact c = contact();
    assert_int_equal(ask_job(ctw_handle_cancel, &b.queue, &c, id_of(id), &err), CTW_OK);
    assert_int_equal(ask_job(ctw_handle_release, &b.queue, &c, id_of(id), &err), CTW_OK);
    for (int64_t end = ctw_now_ms() + WAIT_MS; ctw_now_ms() < end;) {
        pthread_mutex_lock(&b.queue.lock);
        int n_jobs = b.queue.jobs.n;
        pthread_mutex_unlock(&b.queue.lock);
        if (n_jobs == 0)
            break;
    }
    pthread_mutex_lock(&b.queue.lock);
    assert_int_equal(b.queue.jobs.n, 0);
    assert_true(b.queue.running.tok_before < 4 * 63);
    assert_true(b.queue.running.cost_before < 4 * 63);
    pthread_mutex_unlock(&b.queue.lock);
    close_bench(&b);
    fake_engine.us_per_token = 0;
}

static void rates(void **state)
{
    (void)state;
    struct ctw_throughput r = {0};
    assert_true(ctw_throughput_tokens_per_s(&r) == 0);
    for (int i = 0; i <= 1000; i++)
        ctw_throughput_add(&r, 1000 + i * 100, i * 50.0, i * 100.0);
    assert_true(ctw_throughput_tokens_per_s(&r) == 500);
    assert_true(ctw_throughput_cost_per_s(&r) == 1000);
    for (int i = 1; i <= 350; i++) /* after half a minute only the new rate counts */
        ctw_throughput_add(&r, 101000 + i * 100, 50000 + i * 10.0, 0);
    assert_true(ctw_throughput_tokens_per_s(&r) == 100);
    ctw_throughput_reset(&r);
    assert_true(ctw_throughput_tokens_per_s(&r) == 0);
}

static void long_sequences_cost_more(void **state)
{
    (void)state;
    struct ctw_job j = {.head = {.pair_cost = 0.01}};
    struct ctw_sequence one = {.n_tok = 2}, hundred = {.n_tok = 101};
    assert_true(ctw_sequence_cost(&j, &one) == 1.01);
    assert_true(ctw_sequence_cost(&j, &hundred) == 100 + 0.01 * 5050);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_jobs_share_a_pass),
        cmocka_unit_test(jobs_that_begin_alike_fill_a_pass),
        cmocka_unit_test(equal_jobs_get_equal_shares),
        cmocka_unit_test(many_jobs_get_one_share),
        cmocka_unit_test(infinity_is_no_score),
        cmocka_unit_test(bytes_are_given_back),
        cmocka_unit_test(what_cannot_fit_is_told_at_submit),
        cmocka_unit_test(a_lack_of_memory_is_one_jobs),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(rates),
        cmocka_unit_test(long_sequences_cost_more),
        cmocka_unit_test(a_cancelled_pass_is_not_done),
    };
    ctw_log_set_level(CTW_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
