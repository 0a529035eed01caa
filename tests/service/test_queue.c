#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "fake_engine.h"
#include "worker/clock.h"
#include "worker/scorer.h"

enum { WAIT_MS = 10000 };

struct bench {
    struct ctw_queue queue;
    struct ctw_scorer scorer;
    pthread_t thread;
    bool started;
};

static void *scorer_main(void *scorer)
{
    ctw_scorer_run(scorer);
    return NULL;
}

static enum ctw_status open_bench(struct bench *b, struct ctw_err *err)
{
    char name[CTW_MODEL_NAME_MAX];
    memset(b, 0, sizeof(*b));
    enum ctw_status st = ctw_queue_init(&b->queue, 1 << 24, 8, err);
    assert_int_equal(st, CTW_OK);
    int retry_ms;
    st = ctw_queue_load(&b->queue, "/models/fake", NULL, name, &retry_ms, err);
    if (st != CTW_OK)
        return st;
    assert_string_equal(name, "fake");
    b->scorer.queue = &b->queue;
    b->started = pthread_create(&b->thread, NULL, scorer_main, &b->scorer) == 0;
    assert_true(b->started);
    return CTW_OK;
}

static void close_bench(struct bench *b)
{
    ctw_queue_stop(&b->queue);
    if (b->started)
        pthread_join(b->thread, NULL);
    ctw_scorer_fini(&b->scorer);
    ctw_queue_fini(&b->queue);
    assert_int_equal(fake_engine_n_open(), 0);
}

static enum ctw_model_state wait_for_model(struct bench *b)
{
    enum ctw_model_state state = CTW_MODEL_LOADING;
    for (int64_t end = ctw_now_ms() + WAIT_MS; state == CTW_MODEL_LOADING;) {
        struct timespec ts = {.tv_nsec = 1000000};
        nanosleep(&ts, NULL);
        pthread_mutex_lock(&b->queue.lock);
        state = b->queue.models[0]->state;
        pthread_mutex_unlock(&b->queue.lock);
        assert_true(ctw_now_ms() < end);
    }
    return state;
}

static struct ctw_contact contact(void)
{
    return (struct ctw_contact){.pipe = 1, .now_ms = ctw_now_ms()};
}

static struct ctw_slice id_of(const char *id)
{
    return (struct ctw_slice){.data = id, .n = CTW_IPC_JOB_ID_BYTES};
}

/* n_items pairs of n_context and one token, the last being `token`; ids are 16 characters. */
static enum ctw_status submit(struct bench *b, const char *id, int n_items, int n_context,
                              int32_t token, bool seal, struct ctw_err *err)
{
    int n_tok = n_items * (n_context + 1);
    int32_t *tokens = calloc((size_t)n_tok, 4), *contexts = calloc((size_t)n_items, 4);
    int32_t *continuations = calloc((size_t)n_items, 4);
    assert_true(tokens != NULL && contexts != NULL && continuations != NULL);
    for (int i = 0; i < n_tok; i++)
        tokens[i] = i % (n_context + 1) == n_context ? token : i % 500;
    for (int i = 0; i < n_items; i++) {
        contexts[i] = n_context;
        continuations[i] = 1;
    }
    struct ctw_slice bins[3] = {{(char *)tokens, (size_t)n_tok * 4},
                                {(char *)contexts, (size_t)n_items * 4},
                                {(char *)continuations, (size_t)n_items * 4}};
    struct ctw_submit s = {.has = 1u << CTW_SUBMIT_HEAD,
                           .job = id_of(id),
                           .head = {.kind = ctw_slice_of("loglikelihood")},
                           .items = {.has = 1u << CTW_ITEMS_TOKENS | 1u << CTW_ITEMS_N_CONTEXT |
                                            1u << CTW_ITEMS_N_CONTINUATION,
                                     .tokens = bins[0],
                                     .n_context = bins[1],
                                     .n_continuation = bins[2]}};
    struct ctw_submit_reply reply;
    struct ctw_seal_reply sealed;
    struct ctw_seal seal_request = {.job = id_of(id), .parts = 1};
    struct ctw_contact c = contact();
    int64_t bad_item;
    int retry_ms;
    enum ctw_status st = ctw_queue_submit(&b->queue, &c, &s, &reply, &bad_item, &retry_ms, err);
    if (st == CTW_OK && seal)
        st = ctw_queue_seal(&b->queue, &c, &seal_request, &sealed, err);
    free(tokens);
    free(contexts);
    free(continuations);
    return st;
}

/* The job's last state, as text that lives; its error in *err. */
static const char *wait_for_job(struct bench *b, const char *id, struct ctw_err *err)
{
    static const char *const final[] = {"done", "failed", "canceled"};
    for (int64_t end = ctw_now_ms() + WAIT_MS; ctw_now_ms() < end;) {
        struct ctw_reply reply = {.op = CTW_OP_POLL};
        struct ctw_poll poll = {
            .has = 1u << CTW_POLL_WAIT_MS, .job = id_of(id), .wait_ms = CTW_IPC_WAIT_MS};
        struct ctw_contact c = contact();
        enum ctw_status st = ctw_queue_poll(&b->queue, &c, &poll, &reply, err);
        struct ctw_slice state = reply.body.poll.state;
        ctw_reply_close(&reply);
        if (st != CTW_OK)
            return "refused";
        for (size_t i = 0; i < CTW_COUNT(final); i++) {
            if (ctw_slice_is(state, final[i]))
                return final[i];
        }
    }
    return "late";
}

static int64_t fetch(struct bench *b, const char *id, double *sum, struct ctw_err *err)
{
    struct ctw_reply reply = {.op = CTW_OP_FETCH};
    struct ctw_fetch f = {.job = id_of(id)};
    struct ctw_contact c = contact();
    int64_t n = -1;
    if (ctw_queue_fetch(&b->queue, &c, &f, &reply, err) == CTW_OK) {
        n = (int64_t)reply.body.fetch.n;
        *sum = 0;
        for (int64_t i = 0; i < n; i++)
            *sum += ((const double *)(const void *)reply.body.fetch.result.sum.data)[i];
    }
    ctw_reply_close(&reply);
    return n;
}

static void small_jobs_share_a_pass(void **state)
{
    (void)state;
    struct bench b;
    struct ctw_err err;
    int64_t calls, seqs, most;
    fake_engine.us_per_token = 2000;
    fake_engine.pass_tokens = 256;
    assert_int_equal(open_bench(&b, &err), CTW_OK);
    assert_int_equal(wait_for_model(&b), CTW_MODEL_READY);
    fake_engine_reset_counts();
    assert_int_equal(submit(&b, "large-----------", 40, 63, 7, true, &err), CTW_OK);
    char id[17] = "small-0---------";
    for (id[6] = '0'; id[6] < '8'; id[6]++)
        assert_int_equal(submit(&b, id, 3, 10, 7, true, &err), CTW_OK);
    for (id[6] = '0'; id[6] < '8'; id[6]++)
        assert_string_equal(wait_for_job(&b, id, &err), "done");
    fake_engine_counts(&calls, &seqs, &most);
    /* 240 tokens of eight jobs: with their fair shares, in the three passes after the first. */
    assert_true(calls <= 4);
    assert_true(most <= 256);
    struct ctw_contact c = contact();
    struct ctw_slice job_state;
    assert_int_equal(ctw_queue_cancel(&b.queue, &c, id_of("large-----------"), &job_state, &err),
                     CTW_OK);
    close_bench(&b);
    fake_engine.us_per_token = 0;
}

/* A job that comes later does not make up for the past; equal jobs end at about the same time. */
static void equal_jobs_get_equal_shares(void **state)
{
    (void)state;
    struct bench b;
    struct ctw_err err;
    double sum;
    fake_engine.us_per_token = 200;
    fake_engine.pass_tokens = 256;
    assert_int_equal(open_bench(&b, &err), CTW_OK);
    assert_int_equal(wait_for_model(&b), CTW_MODEL_READY);
    assert_int_equal(submit(&b, "first-----------", 60, 63, 7, true, &err), CTW_OK);
    struct timespec ts = {.tv_nsec = 300000000};
    nanosleep(&ts, NULL);
    int64_t before = fetch(&b, "first-----------", &sum, &err);
    assert_true(before > 8);
    assert_int_equal(submit(&b, "second----------", 60, 63, 7, true, &err), CTW_OK);
    assert_string_equal(wait_for_job(&b, "first-----------", &err), "done");
    int64_t second = fetch(&b, "second----------", &sum, &err);
    /* From then on 60 - before of each, give or take two passes of four. */
    assert_in_range(second, 60 - before - 8, 60 - before + 8);
    assert_string_equal(wait_for_job(&b, "second----------", &err), "done");
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
    assert_int_equal(open_bench(&b, &err), CTW_OK);
    assert_int_equal(wait_for_model(&b), CTW_MODEL_READY);
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
    struct ctw_slice job_state;
    assert_int_equal(open_bench(&b, &err), CTW_OK);
    assert_int_equal(wait_for_model(&b), CTW_MODEL_READY);
    assert_int_equal(submit(&b, "one-------------", 100, 5, 7, true, &err), CTW_OK);
    assert_int_equal(submit(&b, "two-------------", 100, 5, 7, false, &err), CTW_OK);
    assert_true(b.queue.bytes > 2 * 100 * 6 * 4);
    assert_string_equal(wait_for_job(&b, "one-------------", &err), "done");
    struct ctw_contact c = contact();
    assert_int_equal(ctw_queue_cancel(&b.queue, &c, id_of("two-------------"), &job_state, &err),
                     CTW_OK);
    assert_int_equal(ctw_queue_release(&b.queue, &c, id_of("one-------------"), &job_state, &err),
                     CTW_OK);
    assert_int_equal(ctw_queue_release(&b.queue, &c, id_of("two-------------"), &job_state, &err),
                     CTW_OK);
    /* The pass that scored a job may hold it a little longer. */
    bool empty = false;
    for (int64_t end = ctw_now_ms() + WAIT_MS; !empty && ctw_now_ms() < end;) {
        pthread_mutex_lock(&b.queue.lock);
        empty = b.queue.bytes == 0 && b.queue.n_jobs == 0;
        pthread_mutex_unlock(&b.queue.lock);
    }
    assert_true(empty);
    close_bench(&b);
}

/* A whole life with the n-th allocation failing; true when none failed any more. */
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
        st = b.queue.models[0]->error.status;
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

static bool is_there(struct bench *b, const char *id)
{
    bool there = false;
    pthread_mutex_lock(&b->queue.lock);
    for (const struct ctw_job *j = b->queue.jobs; j != NULL; j = j->next)
        there = there || (!j->removed && memcmp(j->id, id, CTW_IPC_JOB_ID_BYTES) == 0);
    pthread_mutex_unlock(&b->queue.lock);
    return there;
}

/* policy cancel with this ttl, of a job that no longer takes parts */
static void make_orphan(struct bench *b, const char *id, int64_t ttl_ms)
{
    pthread_mutex_lock(&b->queue.lock);
    for (struct ctw_job *j = b->queue.jobs; j != NULL; j = j->next) {
        if (memcmp(j->id, id, CTW_IPC_JOB_ID_BYTES) != 0)
            continue;
        j->head.keep = false;
        j->head.ttl_ms = ttl_ms;
    }
    pthread_mutex_unlock(&b->queue.lock);
}

/* The loss of a connection may be told before its last request is handled. */
static void a_request_of_a_lost_connection_saves_no_job(void **state)
{
    (void)state;
    struct bench b;
    struct ctw_err err;
    const char *id = "orphan----------";
    assert_int_equal(open_bench(&b, &err), CTW_OK);
    assert_int_equal(wait_for_model(&b), CTW_MODEL_READY);
    assert_int_equal(submit(&b, id, 2, 5, 7, true, &err), CTW_OK);
    assert_string_equal(wait_for_job(&b, id, &err), "done");
    make_orphan(&b, id, 600000);
    struct ctw_contact c = {.pipe = 9, .now_ms = ctw_now_ms()};
    struct ctw_reply reply = {.op = CTW_OP_POLL};
    struct ctw_poll poll = {.job = id_of(id)};
    ctw_queue_peer_gone(&b.queue, 9, c.now_ms);
    assert_int_equal(ctw_queue_poll(&b.queue, &c, &poll, &reply, &err), CTW_OK);
    ctw_queue_tick(&b.queue, c.now_ms + 4900);
    assert_true(is_there(&b, id));
    ctw_queue_tick(&b.queue, c.now_ms + 5100);
    assert_false(is_there(&b, id));
    ctw_reply_close(&reply);
    close_bench(&b);
}

static void a_poll_is_contact_until_its_end(void **state)
{
    (void)state;
    struct bench b;
    struct ctw_err err;
    const char *id = "polled----------";
    assert_int_equal(open_bench(&b, &err), CTW_OK);
    assert_int_equal(wait_for_model(&b), CTW_MODEL_READY);
    assert_int_equal(submit(&b, id, 2, 5, 7, false, &err), CTW_OK);
    make_orphan(&b, id, 1000);
    struct ctw_contact c = contact();
    struct ctw_reply reply = {.op = CTW_OP_POLL};
    struct ctw_poll poll = {.has = 1u << CTW_POLL_WAIT_MS, .job = id_of(id), .wait_ms = 200};
    assert_int_equal(ctw_queue_poll(&b.queue, &c, &poll, &reply, &err), CTW_OK);
    ctw_queue_tick(&b.queue, c.now_ms + 1100);
    assert_true(is_there(&b, id));
    b.queue.tick_ms = 0;
    ctw_queue_tick(&b.queue, ctw_now_ms() + 1000);
    assert_false(is_there(&b, id));
    ctw_reply_close(&reply);
    close_bench(&b);
}

struct waiting_poll {
    struct bench *b;
    const char *job;
    int64_t now_ms; /* ahead of the clock, so that it waits for its job alone */
    enum ctw_status status;
};

static void *poll_main(void *arg)
{
    struct waiting_poll *w = arg;
    struct ctw_err err;
    struct ctw_reply reply = {.op = CTW_OP_POLL};
    struct ctw_contact c = {.pipe = contact().pipe, .now_ms = w->now_ms};
    struct ctw_poll poll = {.has = 1u << CTW_POLL_WAIT_MS, .job = id_of(w->job), .wait_ms = 1000};
    w->status = ctw_queue_poll(&w->b->queue, &c, &poll, &reply, &err);
    ctw_reply_close(&reply);
    return NULL;
}

/* However much longer it waits than the job's time without contact; a lost connection ends it. */
static void a_waiting_poll_is_contact(void **state)
{
    (void)state;
    struct bench b;
    struct ctw_err err;
    const char *id = "waited for------";
    struct waiting_poll poll = {&b, id, ctw_now_ms() + 60000, CTW_OK};
    pthread_t thread;
    assert_int_equal(open_bench(&b, &err), CTW_OK);
    assert_int_equal(wait_for_model(&b), CTW_MODEL_READY);
    assert_int_equal(submit(&b, id, 2, 5, 7, false, &err), CTW_OK);
    make_orphan(&b, id, 1000);
    assert_int_equal(pthread_create(&thread, NULL, poll_main, &poll), 0);
    for (bool waits = false; !waits;) {
        pthread_mutex_lock(&b.queue.lock);
        waits = b.queue.n_waiting == 1;
        pthread_mutex_unlock(&b.queue.lock);
    }
    int64_t now_ms = poll.now_ms + 5000;
    ctw_queue_tick(&b.queue, now_ms);
    assert_true(is_there(&b, id));
    ctw_queue_peer_gone(&b.queue, contact().pipe, now_ms);
    for (int i = 1; i < 10; i++)
        ctw_queue_tick(&b.queue, now_ms + (int64_t)i * 100);
    assert_true(is_there(&b, id));
    ctw_queue_tick(&b.queue, now_ms + 1000);
    assert_false(is_there(&b, id));
    pthread_join(thread, NULL);
    assert_int_equal(poll.status, CTW_OK);
    close_bench(&b);
}

/* A minute in which nobody ticks: but for the tenth of a second in which nobody should. */
static void time_in_which_we_did_not_run_does_not_count(void **state)
{
    (void)state;
    struct bench b;
    struct ctw_err err;
    const char *id = "stopped---------";
    assert_int_equal(open_bench(&b, &err), CTW_OK);
    assert_int_equal(wait_for_model(&b), CTW_MODEL_READY);
    assert_int_equal(submit(&b, id, 2, 5, 7, false, &err), CTW_OK);
    make_orphan(&b, id, 1000);
    int64_t now_ms = b.queue.jobs->contact_ms;
    ctw_queue_tick(&b.queue, now_ms);
    now_ms += 60000;
    ctw_queue_tick(&b.queue, now_ms);
    for (int i = 1; i < 9; i++)
        ctw_queue_tick(&b.queue, now_ms + (int64_t)i * 100);
    assert_true(is_there(&b, id));
    ctw_queue_tick(&b.queue, now_ms + 900);
    assert_false(is_there(&b, id));
    close_bench(&b);
}

/* Rates count what was done of a pass that was cancelled. */
static void a_cancelled_pass_is_not_done(void **state)
{
    (void)state;
    struct bench b;
    struct ctw_err err;
    struct ctw_slice job_state;
    const char *id = "cancelled-------";
    fake_engine.us_per_token = 2000;
    fake_engine.pass_tokens = 256;
    assert_int_equal(open_bench(&b, &err), CTW_OK);
    assert_int_equal(wait_for_model(&b), CTW_MODEL_READY);
    assert_int_equal(submit(&b, id, 4, 63, 7, true, &err), CTW_OK);
    struct timespec ts = {.tv_nsec = 100000000}; /* of half a second */
    nanosleep(&ts, NULL);
    struct ctw_contact c = contact();
    assert_int_equal(ctw_queue_cancel(&b.queue, &c, id_of(id), &job_state, &err), CTW_OK);
    assert_int_equal(ctw_queue_release(&b.queue, &c, id_of(id), &job_state, &err), CTW_OK);
    for (int64_t end = ctw_now_ms() + WAIT_MS; ctw_now_ms() < end;) {
        pthread_mutex_lock(&b.queue.lock);
        int n_jobs = b.queue.n_jobs;
        pthread_mutex_unlock(&b.queue.lock);
        if (n_jobs == 0)
            break;
    }
    pthread_mutex_lock(&b.queue.lock);
    assert_int_equal(b.queue.n_jobs, 0);
    assert_true(b.queue.tok_before < 4 * 63);
    assert_true(b.queue.cost_before < 4 * 63);
    pthread_mutex_unlock(&b.queue.lock);
    close_bench(&b);
    fake_engine.us_per_token = 0;
}

static void rates(void **state)
{
    (void)state;
    struct ctw_rate r = {0};
    assert_true(ctw_rate_tokens_per_s(&r) == 0);
    for (int i = 0; i <= 1000; i++)
        ctw_rate_add(&r, 1000 + i * 100, i * 50.0, i * 100.0);
    assert_true(ctw_rate_tokens_per_s(&r) == 500);
    assert_true(ctw_rate_cost_per_s(&r) == 1000);
    for (int i = 1; i <= 1000; i++) /* half a minute later only the new rate counts */
        ctw_rate_add(&r, 101000 + i * 100, 50000 + i * 10.0, 0);
    assert_true(ctw_rate_tokens_per_s(&r) == 100);
    ctw_rate_reset(&r);
    assert_true(ctw_rate_tokens_per_s(&r) == 0);
}

/* Attention's share of the time: 2 * layers * heads * head size pairs against the parameters. */
static void long_sequences_cost_more(void **state)
{
    (void)state;
    struct ctw_layer layers[4] = {{0}};
    layers[1].n_head = layers[2].n_head = 8;
    layers[1].head = layers[2].head = 16;
    struct ctw_model m = {.n_decoders = 2, .n_layers = 4, .layers = layers, .n_params = 51200};
    struct ctw_job j = {.head = {.pair_cost = ctw_model_pair_cost(&m)}};
    assert_true(j.head.pair_cost == 0.01);
    struct ctw_unit one = {.n_tok = 2}, hundred = {.n_tok = 101};
    assert_true(ctw_unit_cost(&j, &one) == 1.01);
    assert_true(ctw_unit_cost(&j, &hundred) == 100 + 0.01 * 5050);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_jobs_share_a_pass),
        cmocka_unit_test(equal_jobs_get_equal_shares),
        cmocka_unit_test(infinity_is_no_score),
        cmocka_unit_test(bytes_are_given_back),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(rates),
        cmocka_unit_test(long_sequences_cost_more),
        cmocka_unit_test(a_request_of_a_lost_connection_saves_no_job),
        cmocka_unit_test(a_poll_is_contact_until_its_end),
        cmocka_unit_test(a_waiting_poll_is_contact),
        cmocka_unit_test(time_in_which_we_did_not_run_does_not_count),
        cmocka_unit_test(a_cancelled_pass_is_not_done),
    };
    ctw_log_set_level(CTW_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
