/* The line of clients that found no space in the queue: first come, first served. */
#include <stdio.h>

#include "queue_bench.h"
#include "worker/service/jobs/space.h"

/* A full queue: job i over connection 1000 + i. */
static void fill(struct bench *b, int64_t now)
{
    struct ctw_err err;
    char id[17];
    for (int i = 0; i < CTW_IPC_JOBS; i++) {
        snprintf(id, sizeof(id), "full------%06d", i);
        assert_int_equal(begin(b, id, 1000 + (uint32_t)i, NULL, now, &err), CTW_OK);
    }
}

/* Ends the oldest job at this time. */
static void free_slot(struct bench *b, int64_t now)
{
    pthread_mutex_lock(&b->queue.lock);
    ctw_line_slot_freed(&b->queue.line, CTW_IPC_JOBS - b->queue.jobs.n, now);
    ctw_jobs_remove(&b->queue.jobs, b->queue.jobs.first);
    pthread_mutex_unlock(&b->queue.lock);
}

static void assert_waits(struct bench *b, const char *id, uint32_t pipe, int64_t now)
{
    struct ctw_err err;
    assert_int_equal(begin(b, id, pipe, NULL, now, &err), CTW_EBUSY);
}

static void assert_served(struct bench *b, const char *id, uint32_t pipe, int64_t now)
{
    struct ctw_err err;
    assert_int_equal(begin(b, id, pipe, NULL, now, &err), CTW_OK);
}

static void first_come_first_served(void **state)
{
    (void)state;
    struct bench b;
    int64_t now = ctw_now_ms();
    open_ready(&b);
    fill(&b, now);
    assert_waits(&b, "first-----------", 1, now);
    assert_waits(&b, "second----------", 2, now);
    free_slot(&b, now);
    assert_waits(&b, "second----------", 2, now + 50);
    assert_waits(&b, "newcomer--------", 3, now + 50);
    assert_served(&b, "first-----------", 1, now + 60);
    assert_waits(&b, "second----------", 2, now + 70);
    free_slot(&b, now + 80);
    assert_waits(&b, "first again-----", 1, now + 90); /* behind the newcomer */
    assert_served(&b, "second----------", 2, now + 100);
    free_slot(&b, now + 110);
    assert_waits(&b, "first again-----", 1, now + 120);
    assert_served(&b, "newcomer--------", 3, now + 130);
    free_slot(&b, now + 140);
    assert_served(&b, "first again-----", 1, now + 150);
    assert_int_equal(b.queue.line.n, 0);
    close_bench(&b);
}

/* A slot is not held for long; who comes late still has the place, but who stays away loses it. */
static void a_late_client_is_passed_over(void **state)
{
    (void)state;
    struct bench b;
    struct ctw_err err;
    int retry_ms;
    int64_t now = ctw_now_ms();
    open_ready(&b);
    fill(&b, now);
    assert_int_equal(begin_part(&b, "late------------", 1, NULL, now, 0, 1, &retry_ms, &err),
                     CTW_EBUSY);
    int64_t late = now + retry_ms + retry_ms / 2 + 250;
    assert_waits(&b, "second----------", 2, late - 100);
    free_slot(&b, late - 50);
    assert_waits(&b, "second----------", 2, late);
    assert_served(&b, "second----------", 2, late + 1);
    assert_waits(&b, "third-----------", 3, late + 2);
    free_slot(&b, late + 3);
    assert_served(&b, "late------------", 1, late + 4); /* before the third */
    assert_waits(&b, "away------------", 1, late + 5);
    assert_int_equal(b.queue.line.n, 2);
    assert_waits(&b, "third-----------", 3, late + 40000);
    assert_int_equal(b.queue.line.n, 1);
    close_bench(&b);
}

/* A place belongs to a connection, whatever job it asks for; and to a job, over any connection. */
static void a_client_has_one_place(void **state)
{
    (void)state;
    struct bench b;
    char id[17];
    int64_t now = ctw_now_ms();
    open_ready(&b);
    fill(&b, now);
    for (int i = 0; i < 50; i++) {
        snprintf(id, sizeof(id), "greedy----%06d", i);
        assert_waits(&b, id, 1, now);
    }
    assert_waits(&b, "other-----------", 2, now);
    assert_int_equal(b.queue.line.n, 2);
    free_slot(&b, now + 10);
    assert_waits(&b, "other-----------", 3, now + 20); /* over a new connection */
    assert_int_equal(b.queue.line.n, 2);
    assert_served(&b, "new id----------", 1, now + 30);
    assert_waits(&b, id, 1, now + 40);
    free_slot(&b, now + 50);
    assert_waits(&b, id, 1, now + 60);
    assert_served(&b, "other-----------", 4, now + 70);
    close_bench(&b);
}

/* The log names each client that made room once, also if its name begins as another's does. */
static void dropped_clients_are_named(void **state)
{
    (void)state;
    struct bench b;
    struct ctw_err err;
    int64_t now = ctw_now_ms();
    struct ctw_contact later = {.pipe = 1, .now_ms = now + 3600000};
    int retry_ms;
    struct ctw_space_request r = {
        .contact = &later, .job = id_of("late------------"), .retry_ms = &retry_ms};
    open_ready(&b);
    fill(&b, now);
    struct ctw_job *j = b.queue.jobs.first;
    const char *const clients[] = {"process 17", "process 1", "process 7", "process 17"};
    for (size_t i = 0; i < CTW_COUNT(clients); i++, j = j->next)
        (void)snprintf(j->contact.address, sizeof(j->contact.address), "%s", clients[i]);
    pthread_mutex_lock(&b.queue.lock);
    assert_int_equal(ctw_space_for_job(&b.queue, &r, &err), CTW_OK);
    pthread_mutex_unlock(&b.queue.lock);
    assert_string_equal(r.dropped.clients, "process 17, process 1, process 7, this user");
    close_bench(&b);
}

/* An administrator who names no owner is given the owners that have a job with the id. */
static void owners_of_one_id_are_named(void **state)
{
    (void)state;
    struct bench b;
    struct ctw_err err;
    struct ctw_job *found;
    struct ctw_contact root = {.pipe = 9, .owner = "root", .admin = true};
    const struct ctw_span none = {0};
    const char *const id = "one id----------", *const owners[] = {"alice", NULL, "bob"};
    open_ready(&b);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(begin(&b, id, 1 + i, owners[i], ctw_now_ms(), &err), CTW_OK);
    pthread_mutex_lock(&b.queue.lock);
    assert_int_equal(ctw_jobs_find(&b.queue.jobs, &root, id_of(id), &none, &found, &err),
                     CTW_EINVAL);
    assert_non_null(strstr(err.msg, "the token alice and the worker's user each have a job"));
    ctw_jobs_remove(&b.queue.jobs, b.queue.jobs.first);
    assert_int_equal(ctw_jobs_find(&b.queue.jobs, &root, id_of(id), &none, &found, &err),
                     CTW_EINVAL);
    assert_non_null(strstr(err.msg, "the token bob and the worker's user each have a job"));
    ctw_jobs_remove(&b.queue.jobs, b.queue.jobs.first);
    assert_int_equal(ctw_jobs_find(&b.queue.jobs, &root, id_of(id), &none, &found, &err), CTW_OK);
    pthread_mutex_unlock(&b.queue.lock);
    close_bench(&b);
}

/* Clients of a token that has all it may have do not hold up others. */
static void a_token_at_its_bound_waits_beside_the_line(void **state)
{
    (void)state;
    struct bench b;
    struct ctw_err err;
    char id[17];
    int64_t now = ctw_now_ms();
    open_ready(&b);
    for (int i = 0; i < CTW_IPC_JOBS / 4 * 3; i++) {
        struct ctw_contact c = {.pipe = 100 + (uint32_t)i, .now_ms = now, .owner = "alice"};
        snprintf(id, sizeof(id), "alice-----%06d", i);
        struct ctw_seal seal = {.job = id_of(id), .parts = 1};
        struct ctw_seal_reply sealed;
        assert_int_equal(begin(&b, id, c.pipe, "alice", now, &err), CTW_OK);
        assert_int_equal(ask_seal(&b.queue, &c, &seal, &sealed, &err), CTW_OK);
    }
    for (uint32_t i = 0; i < 30; i++) {
        snprintf(id, sizeof(id), "alice waits-%04u", i);
        assert_int_equal(begin(&b, id, 200 + i, "alice", now, &err), CTW_EBUSY);
        assert_non_null(strstr(err.msg, "the maximum for one token is 48"));
    }
    assert_int_equal(begin(&b, "bob-------------", 300, "bob", now, &err), CTW_OK);
    free_slot(&b, now); /* of alice: her clients, too, come in their order */
    assert_int_equal(begin(&b, "alice waits-0001", 201, "alice", now + 10, &err), CTW_EBUSY);
    assert_int_equal(begin(&b, "alice waits-0000", 200, "alice", now + 20, &err), CTW_OK);
    close_bench(&b);
}

/* Bytes are held as slots are: small jobs do not take them from under a large one that waits. */
static void a_large_job_is_not_overtaken_for_ever(void **state)
{
    (void)state;
    struct bench b;
    struct ctw_err err;
    enum { N_TOK = 400000 }; /* with its results, 0.3 of the queue */
    int retry_ms;
    int64_t now = ctw_now_ms();
    open_ready(&b);
    assert_int_equal(begin_part(&b, "large-0---------", 1, NULL, now, 0, N_TOK, &retry_ms, &err),
                     CTW_OK);
    assert_int_equal(begin_part(&b, "large-1---------", 2, NULL, now, 0, N_TOK, &retry_ms, &err),
                     CTW_OK);
    int n_small = N_TOK / 4;
    assert_int_equal(
        begin_part(&b, "large-2---------", 3, NULL, now, 0, N_TOK * 3 / 2, &retry_ms, &err),
        CTW_EBUSY);
    assert_non_null(strstr(err.msg, "bytes"));
    assert_int_equal(
        begin_part(&b, "small-----------", 4, NULL, now + 10, 0, n_small, &retry_ms, &err),
        CTW_EBUSY);
    assert_int_equal(
        begin_part(&b, "large-0---------", 1, NULL, now + 20, 1, n_small, &retry_ms, &err), CTW_OK);
    free_slot(&b, now + 30);
    assert_int_equal(
        begin_part(&b, "large-2---------", 3, NULL, now + 40, 0, N_TOK * 3 / 2, &retry_ms, &err),
        CTW_OK);
    close_bench(&b);
}

/* More clients than places; and who comes first is asked to come back first. */
static void the_line_is_bounded(void **state)
{
    (void)state;
    struct bench b;
    struct ctw_err err;
    char id[17];
    int first_ms = 0, retry_ms = 0;
    int64_t now = ctw_now_ms();
    open_ready(&b);
    fill(&b, now);
    for (int i = 0; i < 20; i++) { /* a slot in 10 ms, most recently */
        snprintf(id, sizeof(id), "refilled--%06d", i);
        assert_waits(&b, id, 2000 + (uint32_t)i, now + (int64_t)i * 10);
        free_slot(&b, now + (int64_t)i * 10 + 10);
        assert_served(&b, id, 2000 + (uint32_t)i, now + (int64_t)i * 10 + 10);
    }
    for (int i = 0; i < CTW_LINE_PLACES + 10; i++) {
        snprintf(id, sizeof(id), "waits-----%06d", i);
        assert_int_equal(
            begin_part(&b, id, 10000 + (uint32_t)i, NULL, now + 210, 0, 1, &retry_ms, &err),
            CTW_EBUSY);
        first_ms = i == 0 ? retry_ms : first_ms;
        assert_in_range(retry_ms, i < 100 ? first_ms : first_ms + 1, 5000);
    }
    assert_int_equal(b.queue.line.n, CTW_LINE_PLACES);
    close_bench(&b);
}

/*
 * 200 clients, each of which submits its next job as soon as its last one is done, and asks again
 * exactly when the worker says, or up to 60 ms later; simulated, with a job done every 7 ms.
 */
static void a_crowd_is_served_evenly(void **state)
{
    (void)state;
    struct bench b;
    struct ctw_err err;
    enum { N = 200, JOB_MS = 7, END_MS = 40000 };
    int n_served[N] = {0}, holder[CTW_IPC_JOBS] = {0}, n_held = 0;
    int64_t due[N], base = ctw_now_ms();
    unsigned seed = 1;
    open_ready(&b);
    memset(due, 0, sizeof(due));
    for (int64_t t = 0; t < END_MS; t++) {
        for (int k = 0; k < N; k++) {
            int i = (k * 77 + (int)t) % N, retry_ms;
            char id[17];
            if (due[i] > t)
                continue;
            snprintf(id, sizeof(id), "crowd-%03d-%06d", i, n_served[i]);
            seed = seed * 1103515245 + 12345;
            if (begin_part(&b, id, 10 + (uint32_t)i, NULL, base + t, 0, 1, &retry_ms, &err) ==
                CTW_OK) {
                holder[n_held++] = i;
                due[i] = INT64_MAX;
            } else {
                due[i] = t + retry_ms + (seed >> 16) % 60;
            }
        }
        if (t % JOB_MS == 0 && n_held > 0) {
            free_slot(&b, base + t);
            n_served[holder[0]]++;
            due[holder[0]] = t + 1;
            memmove(holder, holder + 1, (size_t)--n_held * sizeof(holder[0]));
        }
    }
    int least = INT32_MAX, most = 0, all = 0;
    for (int i = 0; i < N; i++) {
        least = n_served[i] < least ? n_served[i] : least;
        most = n_served[i] > most ? n_served[i] : most;
        all += n_served[i];
    }
    print_message("served %d to %d times\n", least, most);
    assert_true(least > 0);
    assert_true(most <= least + 4);
    assert_true(all >= END_MS / JOB_MS * 95 / 100); /* held slots cost little */
    close_bench(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_come_first_served),
        cmocka_unit_test(a_late_client_is_passed_over),
        cmocka_unit_test(a_client_has_one_place),
        cmocka_unit_test(dropped_clients_are_named),
        cmocka_unit_test(owners_of_one_id_are_named),
        cmocka_unit_test(a_token_at_its_bound_waits_beside_the_line),
        cmocka_unit_test(a_large_job_is_not_overtaken_for_ever),
        cmocka_unit_test(the_line_is_bounded),
        cmocka_unit_test(a_crowd_is_served_evenly),
    };
    ctw_log_set_level(CTW_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
