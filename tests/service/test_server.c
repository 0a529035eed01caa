/* The server: replies that nobody takes, waiting, connections. */
#include "server_bench.h"

#include <errno.h>
#include <sys/resource.h>

/* Captures the log from here on; end_log() returns it. */
static FILE *begin_log(int *saved)
{
    FILE *f = tmpfile();
    assert_non_null(f);
    fflush(stderr);
    *saved = dup(2);
    dup2(fileno(f), 2);
    ctw_log_set_level(CTW_LOG_WARN);
    return f;
}

static void end_log(FILE *f, int saved, char *out, size_t capacity)
{
    for (int i = 0; i < 8 * patience_ms && lseek(fileno(f), 0, SEEK_END) == 0; i++)
        sleep_ms(1); /* the log line comes slightly later */
    fflush(stderr);
    dup2(saved, 2);
    close(saved);
    ctw_log_set_level(CTW_LOG_ERROR);
    rewind(f);
    size_t n = fread(out, 1, capacity - 1, f);
    out[n] = '\0';
    fclose(f);
}

/* Three hundred large replies that nobody reads: one is in flight, and few requests are read. */
static void a_client_that_reads_nothing_costs_only_itself(void **state)
{
    (void)state;
    struct bench b;
    char log[4096], unanswered[64];
    int saved;
    open_bench(&b, patience_ms);
    FILE *f = begin_log(&saved);
    int fd = connect_to(&b);
    ask(fd, CTW_OP_FETCH, 300);
    while (atomic_load(&b.n_handled) < 1)
        sleep_ms(1);
    assert_others_are_served(&b, 25);
    while (!atomic_load(&b.is_lost))
        sleep_ms(1);
    end_log(f, saved, log, sizeof(log));
    assert_int_equal(atomic_load(&b.n_handled), 1 + 25);
    assert_non_null(strstr(log, "it has taken no byte of its replies for "));
    snprintf(unanswered, sizeof(unanswered), "(%d requests are unanswered)", CTW_IPC_UNANSWERED);
    assert_non_null(strstr(log, unanswered));
    assert_non_null(strstr(log, "process "));
    assert_null(strchr(strchr(log, '\n') + 1, '\n')); /* one line */
    close(fd);
    close_bench(&b);
}

/* A client that stalls in the middle of its request is named, even if it stalls in the frame. */
static void who_stalls_is_told(void **state)
{
    (void)state;
    struct bench b;
    static const char *const arrived[] = {"(3 arrived)", "(0 arrived)"}; /* of frame and body */
    char log[4096];
    int saved;
    open_bench(&b, patience_ms);
    for (int i = 0; i < 2; i++) {
        FILE *f = begin_log(&saved);
        int fd = connect_to(&b);
        if (i == 0)
            assert_int_equal(write(fd, "\1\0\0", 3), 3);
        else
            begin_request(fd, 100);
        while (atomic_load(&b.n_lost) < i + 1)
            sleep_ms(1);
        end_log(f, saved, log, sizeof(log));
        assert_non_null(strstr(log, "it has sent no byte of its request for "));
        assert_non_null(strstr(log, arrived[i]));
        close(fd);
    }
    close_bench(&b);
}

/* Small replies too: eventually the socket's buffers are full. */
static void requests_without_end_are_not_read(void **state)
{
    (void)state;
    struct bench b;
    open_bench(&b, patience_ms);
    b.bytes = 16384;
    int fd = connect_to(&b);
    ask(fd, CTW_OP_FETCH, 900);
    assert_others_are_served(&b, 5);
    while (!atomic_load(&b.is_lost))
        sleep_ms(1);
    assert_true(atomic_load(&b.n_handled) < 200);
    close(fd);
    close_bench(&b);
}

/* A fetch waits for their memory; slow readers lose their connections after five seconds, long
 * before they would for a reply that stalls, and free it. */
static void replies_that_nobody_takes_make_room(void **state)
{
    (void)state;
    struct bench b;
    struct ctw_err err;
    enum { N = 5, MIB = 1 << 20 };
    int fds[N];
    open_bench(&b, 600 * 1000);
    b.bytes = 60 * MIB;
    for (int i = 0; i < N; i++) {
        fds[i] = connect_to(&b);
        ask(fds[i], CTW_OP_FETCH, 1);
    }
    for (int i = 0; i < N; i++) {
        struct pollfd begun = {.fd = fds[i], .events = POLLIN};
        assert_int_equal(poll(&begun, 1, -1), 1);
    }
    assert_others_are_served(&b, 5);
    int64_t since_ms = ctw_now_ms();
    assert_int_equal(call(&b, CTW_OP_FETCH, 60 * patience_ms, &err), CTW_OK);
    assert_true(ctw_now_ms() - since_ms >= 4000);
    while (atomic_load(&b.n_lost) < N + 6)
        sleep_ms(1);
    for (int i = 0; i < N; i++)
        close(fds[i]);
    close_bench(&b);
}

static void a_request_of_a_wrong_size_is_refused(void **state)
{
    (void)state;
    struct bench b;
    char log[4096];
    int saved;
    static const struct {
        unsigned char head[9];
        const char *why;
    } rows[] = {
        {{1, 0, 0, 0, 0, 0x40, 0, 0, 0},
         "its request has 1073741824 bytes, at most 16842752 are allowed"},
        {{1, 0, 0, 0, 0, 0, 0, 0, 2},
         "its message has 2 bytes, too few for nng's header of at least 4"},
    };
    open_bench(&b, 0);
    for (size_t i = 0; i < CTW_COUNT(rows); i++) {
        FILE *f = begin_log(&saved);
        int fd = connect_to(&b);
        assert_int_equal(write(fd, rows[i].head, 9), 9);
        assert_false(take_reply(fd, 8 * patience_ms));
        end_log(f, saved, log, sizeof(log));
        assert_non_null(strstr(log, rows[i].why));
        close(fd);
    }
    close_bench(&b);
}

/* ---- waiting ---- */

static void a_hundred_that_wait_wake_at_once(void **state)
{
    (void)state;
    struct bench b;
    enum { N = 100 };
    int fds[N];
    open_bench(&b, 0);
    for (int i = 0; i < N; i++) {
        fds[i] = connect_to(&b);
        ask(fds[i], CTW_OP_POLL, 1);
    }
    while (atomic_load(&b.n_waiting) < N)
        sleep_ms(1);
    assert_others_are_served(&b, 3); /* no thread waits */
    ctw_server_wake(b.server, KEY + 1);
    assert_false(take_reply(fds[0], 50));
    assert_int_equal(atomic_load(&b.n_waiting), N);
    atomic_store(&b.woken, true);
    int64_t since_ms = ctw_now_ms();
    ctw_server_wake(b.server, KEY);
    for (int i = 0; i < N; i++)
        assert_true(take_reply(fds[i], patience_ms));
    assert_true(ctw_now_ms() - since_ms < patience_ms);
    for (int i = 0; i < N; i++)
        close(fds[i]);
    close_bench(&b);
}

/* Only some polls of a connection may wait; the others are answered at once. Other requests pass.
 */
static void one_connection_does_not_take_all_places(void **state)
{
    (void)state;
    struct bench b;
    open_bench(&b, 0);
    int fd = connect_to(&b);
    ask(fd, CTW_OP_POLL, 200);
    for (int i = 0; i < 200 - CTW_IPC_CONNECTION_WAITING; i++)
        assert_true(take_reply(fd, patience_ms));
    assert_false(take_reply(fd, 50));
    assert_int_equal(atomic_load(&b.n_waiting), CTW_IPC_CONNECTION_WAITING);
    ask(fd, CTW_OP_HEALTH, 1);
    assert_true(take_reply(fd, patience_ms));
    close(fd);
    while (atomic_load(&b.n_lost) < 1) /* the loss is detected while its polls wait */
        sleep_ms(1);
    close_bench(&b);
}

/* A wake between the handler's look and the wait it asks for. */
static void an_early_wake_is_not_lost(void **state)
{
    (void)state;
    struct bench b;
    open_bench(&b, 0);
    atomic_store(&b.wakes_early, true);
    int fd = connect_to(&b);
    ask(fd, CTW_OP_POLL, 1);
    assert_true(take_reply(fd, 8 * patience_ms));
    close(fd);
    close_bench(&b);
}

enum { CROWD = 40, CROWD_POLLS = CROWD * CTW_IPC_CONNECTION_WAITING };

/* More polls than there are places; returns when all places are taken and the others answered. */
static void take_all_places(struct bench *b, const int fds[CROWD])
{
    atomic_store(&b->n_handled, 0);
    atomic_store(&b->n_waiting, 0);
    for (int i = 0; i < CROWD; i++)
        ask(fds[i], CTW_OP_POLL, CTW_IPC_CONNECTION_WAITING);
    while (atomic_load(&b->n_handled) < CROWD_POLLS || atomic_load(&b->n_waiting) < CTW_IPC_WAITING)
        sleep_ms(1);
    assert_in_range(atomic_load(&b->n_waiting), CTW_IPC_WAITING, CTW_IPC_WAITING + 1); /* threads */
}

/* Places of polls that were woken, and of connections that were closed, are free again. */
static void all_connections_share_the_places(void **state)
{
    (void)state;
    struct bench b;
    int fds[CROWD];
    open_bench(&b, 0);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < CROWD; i++)
            fds[i] = connect_to(&b);
        take_all_places(&b, fds);
        atomic_store(&b.woken, true);
        ctw_server_wake(b.server, KEY);
        for (int i = 0; i < CROWD_POLLS; i++)
            assert_true(take_reply(fds[i % CROWD], 8 * patience_ms));
        atomic_store(&b.woken, false);
        take_all_places(&b, fds);
        for (int i = 0; i < CROWD; i++)
            close(fds[i]);
        while (atomic_load(&b.n_lost) < (round + 1) * CROWD)
            sleep_ms(1);
    }
    close_bench(&b);
}

/* All waiting polls get their replies before the socket is removed. */
static void closing_wakes_those_that_wait(void **state)
{
    (void)state;
    struct bench b;
    open_bench(&b, 0);
    int fd = connect_to(&b);
    ask(fd, CTW_OP_POLL, 1);
    while (atomic_load(&b.n_waiting) < 1)
        sleep_ms(1);
    ctw_server_close(b.server);
    b.server = NULL;
    assert_true(take_reply(fd, patience_ms));
    close(fd);
    close_bench(&b);
}

/* ---- connections ---- */

/* nng's own listener on Debian 12 stops accepting after one of these (nng issue 1518). */
static void connections_that_end_at_once_do_no_harm(void **state)
{
    (void)state;
    struct bench b;
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    open_bench(&b, 0);
    snprintf(to.sun_path, sizeof(to.sun_path), "%s/s", b.dir);
    for (int i = 0; i < 2000; i++) {
        int fd = socket(AF_UNIX, SOCK_STREAM, 0);
        assert_int_equal(connect(fd, (const struct sockaddr *)&to, sizeof(to)), 0);
        /* The server may have refused it: ends that it has not noticed yet take up its places. */
        if (i % 3 == 1 && write(fd, "\0SP", 3) != 3)
            assert_int_equal(errno, EPIPE);
        close(fd);
    }
    assert_others_are_served(&b, 3);
    close_bench(&b);
}

/* A process has three quarters of the places at most. */
static void more_connections_than_the_bound_are_refused(void **state)
{
    (void)state;
    struct bench b;
    char log[4096], bound[64];
    int saved;
    enum { MOST = CTW_IPC_CONNECTIONS / 4 * 3 };
    static int fds[MOST];
    struct rlimit most;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &most), 0);
    most.rlim_cur = most.rlim_max;
    if (most.rlim_max < 3 * CTW_IPC_CONNECTIONS || setrlimit(RLIMIT_NOFILE, &most) != 0)
        skip();
    open_bench(&b, 0);
    for (int i = 0; i < MOST; i++)
        fds[i] = connect_to(&b);
    ask(fds[MOST - 1], CTW_OP_HEALTH, 1);
    assert_true(take_reply(fds[MOST - 1], 8 * patience_ms));
    FILE *f = begin_log(&saved);
    assert_int_equal(call(&b, CTW_OP_HEALTH, 300, NULL) == CTW_OK, false);
    end_log(f, saved, log, sizeof(log));
    snprintf(bound, sizeof(bound), "process %d has %d connections, the maximum for one client",
             (int)getpid(), MOST);
    assert_non_null(strstr(log, bound));
    for (int i = 0; i < MOST; i++)
        close(fds[i]);
    while (atomic_load(&b.n_lost) < MOST)
        sleep_ms(1);
    assert_others_are_served(&b, 1);
    close_bench(&b);
}

static void too_large_a_reply_is_told(void **state)
{
    (void)state;
    struct bench b;
    struct ctw_err err;
    open_bench(&b, 0);
    b.bytes = CTW_IPC_MESSAGE_BYTES;
    assert_int_equal(call(&b, CTW_OP_FETCH, 8000, &err), CTW_EINVAL);
    assert_non_null(strstr(err.msg, "the reply: the message has 671"));
    b.bytes = LARGE;
    assert_int_equal(call(&b, CTW_OP_FETCH, 8000, &err), CTW_OK);
    close_bench(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_client_that_reads_nothing_costs_only_itself),
        cmocka_unit_test(who_stalls_is_told),
        cmocka_unit_test(requests_without_end_are_not_read),
        cmocka_unit_test(replies_that_nobody_takes_make_room),
        cmocka_unit_test(a_request_of_a_wrong_size_is_refused),
        cmocka_unit_test(a_hundred_that_wait_wake_at_once),
        cmocka_unit_test(an_early_wake_is_not_lost),
        cmocka_unit_test(one_connection_does_not_take_all_places),
        cmocka_unit_test(all_connections_share_the_places),
        cmocka_unit_test(closing_wakes_those_that_wait),
        cmocka_unit_test(connections_that_end_at_once_do_no_harm),
        cmocka_unit_test(more_connections_than_the_bound_are_refused),
        cmocka_unit_test(too_large_a_reply_is_told),
    };
    init_bench();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
