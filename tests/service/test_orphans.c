/* Whose silence ends a job, and what is none. */
#include "queue_bench.h"

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
    open_ready(&b);
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
    open_ready(&b);
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

/* Of a job that is not sealed, with a ttl of 1 s; returns when the poll waits. */
static pthread_t start_poll(struct waiting_poll *w)
{
    pthread_t thread;
    struct ctw_err err;
    open_ready(w->b);
    assert_int_equal(submit(w->b, w->job, 2, 5, 7, false, &err), CTW_OK);
    make_orphan(w->b, w->job, 1000);
    w->now_ms = ctw_now_ms() + 60000;
    assert_int_equal(pthread_create(&thread, NULL, poll_main, w), 0);
    for (bool waits = false; !waits;) {
        pthread_mutex_lock(&w->b->queue.lock);
        waits = w->b->queue.n_waiting == 1;
        pthread_mutex_unlock(&w->b->queue.lock);
    }
    return thread;
}

static void assert_woken(const struct waiting_poll *w, pthread_t thread)
{
    pthread_join(thread, NULL);
    assert_int_equal(w->status, CTW_OK);
    assert_true(ctw_now_ms() < w->now_ms);
}

static void a_cancel_wakes_who_waits(void **state)
{
    (void)state;
    struct bench b;
    struct ctw_err err;
    struct ctw_slice job_state;
    struct waiting_poll poll = {.b = &b, .job = "cancelled-------"};
    pthread_t thread = start_poll(&poll);
    struct ctw_contact c = contact();
    assert_int_equal(ctw_queue_cancel(&b.queue, &c, id_of(poll.job), &job_state, &err), CTW_OK);
    assert_woken(&poll, thread);
    close_bench(&b);
}

/* However much longer it waits than the job's time without contact; a lost connection ends it. */
static void a_waiting_poll_is_contact(void **state)
{
    (void)state;
    struct bench b;
    const char *id = "waited for------";
    struct waiting_poll poll = {.b = &b, .job = id};
    pthread_t thread = start_poll(&poll);
    int64_t now_ms = poll.now_ms + 5000;
    ctw_queue_tick(&b.queue, now_ms);
    assert_true(is_there(&b, id));
    ctw_queue_peer_gone(&b.queue, contact().pipe, now_ms);
    for (int i = 1; i < 10; i++)
        ctw_queue_tick(&b.queue, now_ms + (int64_t)i * 100);
    assert_true(is_there(&b, id));
    ctw_queue_tick(&b.queue, now_ms + 1000);
    assert_false(is_there(&b, id));
    assert_woken(&poll, thread);
    close_bench(&b);
}

/* A minute in which nobody ticks: but for the tenth of a second in which nobody should. */
static void time_in_which_we_did_not_run_does_not_count(void **state)
{
    (void)state;
    struct bench b;
    struct ctw_err err;
    const char *id = "stopped---------";
    open_ready(&b);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_of_a_lost_connection_saves_no_job),
        cmocka_unit_test(a_poll_is_contact_until_its_end),
        cmocka_unit_test(a_cancel_wakes_who_waits),
        cmocka_unit_test(a_waiting_poll_is_contact),
        cmocka_unit_test(time_in_which_we_did_not_run_does_not_count),
    };
    ctw_log_set_level(CTW_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
