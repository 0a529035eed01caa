/* Which silent clients end a job, and what counts as contact. */
#include <stdio.h>

#include "queue_bench.h"

static bool is_there(struct bench *b, const char *id)
{
    bool there = false;
    pthread_mutex_lock(&b->queue.lock);
    for (const struct ctw_job *j = b->queue.jobs.first; j != NULL; j = j->next)
        there = there || (!j->removed && memcmp(j->id, id, CTW_IPC_JOB_ID_BYTES) == 0);
    pthread_mutex_unlock(&b->queue.lock);
    return there;
}

/* Sets policy cancel with this ttl on a job that takes no more parts. */
static void make_orphan(struct bench *b, const char *id, int64_t ttl_ms)
{
    pthread_mutex_lock(&b->queue.lock);
    for (struct ctw_job *j = b->queue.jobs.first; j != NULL; j = j->next) {
        if (memcmp(j->id, id, CTW_IPC_JOB_ID_BYTES) != 0)
            continue;
        j->head.keep = false;
        j->head.ttl_ms = ttl_ms;
    }
    pthread_mutex_unlock(&b->queue.lock);
}

/* Polls like the server; returns the reply's again_ms, or -1 if the poll waits. */
static int64_t poll_job(struct bench *b, const char *id, int64_t since_ms, uint64_t wait_ms,
                        bool allowed)
{
    struct ctw_err err;
    struct ctw_contact c = contact();
    struct ctw_reply reply = {.op = CTW_OP_POLL};
    struct ctw_wait wait = {.since_ms = since_ms, .allowed = allowed};
    struct ctw_poll poll = {.has = {.wait_ms = true}, .job = id_of(id), .wait_ms = wait_ms};
    assert_int_equal(ask_poll(&b->queue, &c, &poll, &wait, &reply, &err), CTW_OK);
    ctw_reply_close(&reply);
    assert_true(wait.until_ms == 0 || wait.until_ms == since_ms + (int64_t)wait_ms);
    return wait.until_ms != 0 ? -1 : (int64_t)reply.body.poll.again_ms;
}

/* The reply says when to poll again: at once only if the worker held the poll. */
static void a_poll_is_told_when_to_ask_again(void **state)
{
    (void)state;
    struct bench b;
    struct ctw_err err;
    const char *id = "again-----------";
    int64_t now_ms = ctw_now_ms();
    open_ready(&b);
    assert_int_equal(submit(&b, id, 2, 5, 7, false, &err), CTW_OK);
    assert_int_equal(poll_job(&b, id, now_ms + 1000, 500, true), -1);
    assert_int_equal(poll_job(&b, id, now_ms - 1000, 500, true), 0);
    assert_int_equal(poll_job(&b, id, now_ms + 1000, 500, false), CTW_IPC_WAIT_MS);
    assert_int_equal(poll_job(&b, id, now_ms, 0, true), CTW_IPC_POLL_MS);
    close_bench(&b);
}

static void on_wake(void *arg, uint64_t key)
{
    *(uint64_t *)arg = key;
}

static void a_cancel_wakes_who_waits(void **state)
{
    (void)state;
    struct bench b;
    struct ctw_err err;
    const char *id = "cancelled-------";
    uint64_t woken = 0;
    struct ctw_contact c = contact();
    open_ready(&b);
    b.queue.wake = on_wake;
    b.queue.wake_arg = &woken;
    assert_int_equal(submit(&b, id, 2, 5, 7, false, &err), CTW_OK);
    assert_int_equal(poll_job(&b, id, c.now_ms + 1000, 1000, true), -1);
    assert_int_equal(woken, 0);
    assert_int_equal(ask_job(ctw_handle_cancel, &b.queue, &c, id_of(id), &err), CTW_OK);
    assert_true(woken == ctw_job_key((const uint8_t *)id));
    assert_int_equal(poll_job(&b, id, c.now_ms + 1000, 1000, true), 0);
    close_bench(&b);
}

/* A waiting poll is contact even if it waits longer than the ttl; a lost connection ends it. */
static void a_waiting_poll_is_contact(void **state)
{
    (void)state;
    struct bench b;
    struct ctw_err err;
    const char *id = "waited for------";
    int64_t now_ms = ctw_now_ms();
    open_ready(&b);
    assert_int_equal(submit(&b, id, 2, 5, 7, false, &err), CTW_OK);
    make_orphan(&b, id, 100);
    assert_int_equal(poll_job(&b, id, now_ms, 1000, true), -1);
    ctw_queue_tick(&b.queue, now_ms + 990);
    assert_true(is_there(&b, id));
    ctw_queue_tick(&b.queue, now_ms + 1090);
    assert_true(is_there(&b, id));
    ctw_queue_tick(&b.queue, now_ms + 1100);
    assert_false(is_there(&b, id));
    assert_int_equal(submit(&b, id, 2, 5, 7, false, &err), CTW_OK);
    make_orphan(&b, id, 100);
    now_ms = ctw_now_ms();
    b.queue.life.tick_ms = 0;
    assert_int_equal(poll_job(&b, id, now_ms, 1000, true), -1);
    ctw_queue_peer_gone(&b.queue, contact().pipe, now_ms + 10);
    ctw_queue_tick(&b.queue, now_ms + 109);
    assert_true(is_there(&b, id));
    ctw_queue_tick(&b.queue, now_ms + 110);
    assert_false(is_there(&b, id));
    close_bench(&b);
}

/* A minute without a tick does not count, except for the tenth of a second between ticks. */
static void time_in_which_we_did_not_run_does_not_count(void **state)
{
    (void)state;
    struct bench b;
    struct ctw_err err;
    const char *id = "stopped---------";
    open_ready(&b);
    assert_int_equal(submit(&b, id, 2, 5, 7, false, &err), CTW_OK);
    make_orphan(&b, id, 1000);
    int64_t now_ms = b.queue.jobs.first->contact.last_ms;
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

/* Abandoned jobs do not block other clients for long, and one client cannot take all slots. */
static void forgotten_jobs_make_room(void **state)
{
    (void)state;
    struct bench b;
    struct ctw_err err;
    char id[17] = "forgotten-000000";
    int64_t now = ctw_now_ms();
    open_ready(&b);
    for (int i = 0; i < CTW_IPC_JOBS; i++) {
        snprintf(id, sizeof(id), "forgotten-%06d", i);
        uint32_t pipe = 10 + (uint32_t)i / 16;
        assert_int_equal(begin(&b, id, pipe, NULL, now, &err), CTW_OK);
        if (i == 15) { /* this connection is at its limit; another one without a token is not */
            assert_int_equal(begin(&b, "seventeenth-----", pipe, NULL, now, &err), CTW_EBUSY);
            assert_non_null(strstr(err.msg, "this client has 16 jobs"));
        }
    }
    assert_int_equal(begin(&b, "early-----------", 99, NULL, now + 59000, &err), CTW_EBUSY);
    assert_int_equal(b.queue.jobs.n, CTW_IPC_JOBS);
    struct ctw_contact c = {.pipe = 10, .now_ms = now + 30000}; /* one of the jobs continues */
    struct ctw_seal seal = {.job = id_of("forgotten-000003"), .parts = 2};
    struct ctw_seal_reply sealed;
    assert_int_equal(ask_seal(&b.queue, &c, &seal, &sealed, &err), CTW_EINVAL);
    seal.parts = 1;
    seal.job = id_of("forgotten-000005"); /* a sealed job was not forgotten */
    c.now_ms = now;
    assert_int_equal(ask_seal(&b.queue, &c, &seal, &sealed, &err), CTW_OK);
    assert_int_equal(begin(&b, "late------------", 99, NULL, now + 61000, &err), CTW_OK);
    assert_int_equal(b.queue.jobs.n, 3);
    assert_true(is_there(&b, "forgotten-000005"));
    for (int i = 0; i < 16; i++) { /* all connections of one token count together */
        snprintf(id, sizeof(id), "token-0000000%03d", i);
        assert_int_equal(begin(&b, id, 200 + (uint32_t)i, "alice", now + 61000, &err), CTW_OK);
    }
    assert_int_equal(begin(&b, "token-more------", 300, "alice", now + 61000, &err), CTW_EBUSY);
    assert_int_equal(begin(&b, "token-other-----", 300, "bob", now + 61000, &err), CTW_OK);
    close_bench(&b);
}

/* One item that is scored at once, over the given connection. */
static void finish(struct bench *b, const char *id, uint32_t pipe, const char *owner)
{
    struct ctw_err err;
    struct ctw_seal_reply sealed;
    struct ctw_contact c = {.pipe = pipe, .now_ms = ctw_now_ms(), .owner = owner};
    struct ctw_seal seal = {.job = id_of(id), .parts = 1};
    bool done = false;
    assert_int_equal(begin(b, id, pipe, owner, c.now_ms, &err), CTW_OK);
    assert_int_equal(ask_seal(&b->queue, &c, &seal, &sealed, &err), CTW_OK);
    while (!done) {
        nanosleep(&(const struct timespec){.tv_nsec = 100000}, NULL);
        pthread_mutex_lock(&b->queue.lock);
        for (const struct ctw_job *j = b->queue.jobs.first; j != NULL; j = j->next)
            done = done || (memcmp(j->id, id, 16) == 0 && j->state == CTW_JOB_DONE);
        pthread_mutex_unlock(&b->queue.lock);
    }
}

/* Finished jobs of clients that went away keep nobody out: the longest silent goes, one for each
 * job that needs a slot, and never a job whose client polls. */
static void finished_jobs_of_absent_clients_make_room(void **state)
{
    (void)state;
    struct bench b;
    struct ctw_err err;
    char id[17];
    open_ready(&b);
    for (int i = 0; i < CTW_IPC_JOBS; i++) {
        snprintf(id, sizeof(id), "finished--%06d", i);
        finish(&b, id, 10 + (uint32_t)i, NULL);
    }
    int64_t now = ctw_now_ms();
    assert_int_equal(begin(&b, "early-----------", 99, NULL, now + 59000, &err), CTW_EBUSY);
    ctw_queue_peer_gone(&b.queue, 12, now); /* this client's connection is lost, too */
    assert_int_equal(begin(&b, "early-----------", 99, NULL, now + 4900, &err), CTW_EBUSY);
    assert_int_equal(begin(&b, "after-the-lost--", 99, NULL, now + 5000, &err), CTW_OK);
    assert_false(is_there(&b, "finished--000002"));
    struct ctw_contact c = {.pipe = 10, .now_ms = now + 30000}; /* the oldest one's client polls */
    struct ctw_poll poll = {.job = id_of("finished--000000")};
    struct ctw_wait wait = {.since_ms = c.now_ms, .allowed = true};
    struct ctw_reply reply = {.op = CTW_OP_POLL};
    assert_int_equal(ask_poll(&b.queue, &c, &poll, &wait, &reply, &err), CTW_OK);
    ctw_reply_close(&reply);
    assert_int_equal(begin(&b, "late------------", 99, NULL, now + 61000, &err), CTW_OK);
    assert_int_equal(b.queue.jobs.n, CTW_IPC_JOBS); /* as many as were needed */
    assert_true(is_there(&b, "finished--000000"));
    assert_false(is_there(&b, "finished--000001"));
    assert_true(is_there(&b, "finished--000003"));
    close_bench(&b);
}

/* A token whose jobs reach its bound drops its own finished jobs, no other token's. */
static void a_token_makes_room_for_itself(void **state)
{
    (void)state;
    struct bench b;
    struct ctw_err err;
    char id[17];
    open_ready(&b);
    finish(&b, "of bob----------", 9, "bob");
    for (int i = 0; i < CTW_IPC_JOBS / 4 * 3; i++) {
        snprintf(id, sizeof(id), "of alice--%06d", i);
        finish(&b, id, 10, "alice");
    }
    int64_t now = ctw_now_ms();
    assert_int_equal(begin(&b, "early-----------", 10, "alice", now + 59000, &err), CTW_EBUSY);
    assert_int_equal(begin(&b, "late------------", 10, "alice", now + 61000, &err), CTW_OK);
    assert_true(is_there(&b, "of bob----------"));
    assert_false(is_there(&b, "of alice--000000"));
    assert_true(is_there(&b, "of alice--000001"));
    close_bench(&b);
}

/* A job that was released while the scorer or a reply still reads it takes no slot. */
static void released_jobs_take_no_slot(void **state)
{
    (void)state;
    struct bench b;
    struct ctw_err err;
    char id[17] = "released--------";
    int64_t now = ctw_now_ms();
    open_ready(&b);
    assert_int_equal(begin(&b, id, 9, NULL, now, &err), CTW_OK);
    struct ctw_job *read = b.queue.jobs.first;
    ctw_jobs_pin(read);
    ctw_jobs_remove(&b.queue.jobs, read);
    ctw_jobs_remove(&b.queue.jobs, read); /* a second release changes nothing */
    for (int i = 0; i < CTW_IPC_JOBS; i++) {
        snprintf(id, sizeof(id), "held------%06d", i);
        assert_int_equal(begin(&b, id, 10 + (uint32_t)i / 16, NULL, now, &err), CTW_OK);
    }
    assert_int_equal(begin(&b, "one-more--------", 99, NULL, now, &err), CTW_EBUSY);
    assert_int_equal(b.queue.jobs.n, CTW_IPC_JOBS);
    ctw_jobs_unpin(&b.queue.jobs, read);
    assert_int_equal(b.queue.jobs.n, CTW_IPC_JOBS);
    close_bench(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_poll_is_told_when_to_ask_again),
        cmocka_unit_test(a_cancel_wakes_who_waits),
        cmocka_unit_test(a_waiting_poll_is_contact),
        cmocka_unit_test(time_in_which_we_did_not_run_does_not_count),
        cmocka_unit_test(forgotten_jobs_make_room),
        cmocka_unit_test(finished_jobs_of_absent_clients_make_room),
        cmocka_unit_test(a_token_makes_room_for_itself),
        cmocka_unit_test(released_jobs_take_no_slot),
    };
    ctw_log_set_level(CTW_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
