#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "ipc/client.h"
#include "ipc/limits.h"
#include "ipc/server.h"

enum { LARGE = 8 << 20, KEY = 7 };

static int patience_ms = 1000; /* times CTW_TEST_PATIENCE */

struct bench {
    char dir[32], url[64];
    struct ctw_server *server;
    char *large;
    size_t bytes; /* of a fetch's column */
    atomic_int n_handled, n_waiting;
    atomic_bool woken, wakes_early; /* by the handler itself, before its request waits */
    atomic_bool held;               /* submits are not handled yet */
    atomic_uint reader;             /* the pipe of the last fetch */
    atomic_bool is_lost;            /* that connection */
    atomic_int n_lost;              /* connections */
};

static void sleep_ms(int ms)
{
    const struct timespec ts = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L};
    nanosleep(&ts, NULL);
}

/* health: an empty reply; fetch: one large column; poll: after a wake or wait_ms; submit: once it
 * is not held */
static void handle(void *arg, const struct ctw_peer *peer, const struct ctw_request *request,
                   struct ctw_wait *wait, struct ctw_reply *reply)
{
    struct bench *b = arg;
    atomic_fetch_add(&b->n_handled, 1);
    assert_non_null(strstr(peer->address, "process "));
    reply->ok = true;
    if (request->op == CTW_OP_FETCH) {
        atomic_store(&b->reader, peer->pipe);
        reply->body.fetch.result.sum = (struct ctw_slice){.data = b->large, .n = b->bytes};
    }
    while (request->op == CTW_OP_SUBMIT && atomic_load(&b->held))
        sleep_ms(1);
    int64_t until_ms = wait->since_ms + (int64_t)request->body.poll.wait_ms;
    if (request->op != CTW_OP_POLL || atomic_load(&b->woken) || ctw_now_ms() >= until_ms)
        return;
    reply->body.poll.again_ms = 1;
    if (!wait->allowed)
        return;
    wait->until_ms = until_ms;
    wait->key = KEY;
    atomic_fetch_add(&b->n_waiting, 1);
    if (atomic_load(&b->wakes_early)) {
        atomic_store(&b->woken, true);
        ctw_server_wake(b->server, KEY);
    }
}

static void peer_gone(void *arg, uint32_t pipe)
{
    struct bench *b = arg;
    atomic_fetch_add(&b->n_lost, 1);
    if (pipe == atomic_load(&b->reader))
        atomic_store(&b->is_lost, true);
}

static void open_bench(struct bench *b, int stall_ms)
{
    struct ctw_err err;
    memset(b, 0, sizeof(*b));
    snprintf(b->dir, sizeof(b->dir), "/tmp/ctw-server-XXXXXX");
    assert_non_null(mkdtemp(b->dir));
    snprintf(b->url, sizeof(b->url), "ipc://%s/s", b->dir);
    b->bytes = LARGE;
    b->large = calloc(CTW_IPC_MESSAGE_BYTES + 1, 1);
    assert_non_null(b->large);
    struct ctw_server_options options = {.url = b->url,
                                         .n_threads = 2,
                                         .send_ms = stall_ms,
                                         .receive_ms = stall_ms,
                                         .arg = b,
                                         .handle = handle,
                                         .peer_gone = peer_gone};
    assert_int_equal(ctw_server_open(&b->server, &options, &err), CTW_OK);
}

static void close_bench(struct bench *b)
{
    ctw_server_close(b->server);
    free(b->large);
    assert_int_equal(rmdir(b->dir), 0); /* the folder is empty */
}

/* ---- clients by hand ---- */

static int connect_to(const struct bench *b)
{
    static const unsigned char hello[8] = {0, 'S', 'P', 0, 0, 0x30, 0, 0};
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    unsigned char theirs[8];
    snprintf(to.sun_path, sizeof(to.sun_path), "%s/s", b->dir);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)&to, sizeof(to)), 0);
    assert_int_equal(write(fd, hello, 8), 8);
    assert_int_equal(recv(fd, theirs, 8, MSG_WAITALL), 8);
    return fd;
}

/* Sends n requests of this operation in one go; returns when all are in the socket. */
static void ask(int fd, enum ctw_op op, int n)
{
    unsigned char bytes[64 * 1024];
    size_t at = 0;
    struct ctw_request request = {.id = 1, .op = op};
    struct ctw_writer w = {0};
    struct ctw_err err;
    if (op != CTW_OP_HEALTH) /* all other requests here begin with the job */
        request.body.fetch.job = (struct ctw_slice){.data = "0123456789abcdef", .n = 16};
    if (op == CTW_OP_POLL) {
        request.body.poll.has = 1u << CTW_POLL_WAIT_MS;
        request.body.poll.wait_ms = 60000;
    }
    assert_int_equal(ctw_request_encode(&request, &w, &err), CTW_OK);
    for (int i = 0; i < n; i++) {
        assert_true(4 + w.n < 256 && at + 13 + w.n <= sizeof(bytes));
        const unsigned char head[13] = {1,
                                        0,
                                        0,
                                        0,
                                        0,
                                        0,
                                        0,
                                        0,
                                        (unsigned char)(4 + w.n),
                                        0x80,
                                        0,
                                        (unsigned char)(i >> 8),
                                        (unsigned char)i};
        memcpy(bytes + at, head, sizeof(head));
        memcpy(bytes + at + sizeof(head), w.data, w.n);
        at += sizeof(head) + w.n;
    }
    ctw_writer_fini(&w);
    assert_int_equal(write(fd, bytes, at), (ssize_t)at);
}

/* Reads and drops one reply; false: no reply in time, or the connection is closed. */
static bool take_reply(int fd, int timeout_ms)
{
    static char bytes[64 * 1024];
    unsigned char head[9];
    struct pollfd p = {.fd = fd, .events = POLLIN};
    if (poll(&p, 1, timeout_ms) != 1 || recv(fd, head, 9, MSG_WAITALL) != 9)
        return false;
    size_t left = (size_t)head[5] << 24 | (size_t)head[6] << 16 | (size_t)head[7] << 8 | head[8];
    while (left > 0) {
        ssize_t n = recv(fd, bytes, left < sizeof(bytes) ? left : sizeof(bytes), 0);
        if (n <= 0)
            return false;
        left -= (size_t)n;
    }
    return true;
}

static enum ctw_status call(struct bench *b, enum ctw_op op, int timeout_ms, struct ctw_err *err)
{
    struct ctw_client *c = NULL;
    struct ctw_request request = {.op = op};
    struct ctw_reply reply = {0};
    request.body.fetch.job = (struct ctw_slice){.data = "0123456789abcdef", .n = 16};
    if (op == CTW_OP_HEALTH)
        memset(&request.body, 0, sizeof(request.body));
    enum ctw_status st = ctw_client_open(&c, b->url, err);
    if (st == CTW_OK)
        st = ctw_client_call(c, &request, timeout_ms, &reply, err);
    if (st == CTW_OK)
        st = ctw_reply_status(&reply, err);
    ctw_reply_close(&reply);
    ctw_client_close(c);
    return st;
}

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

static void assert_others_are_served(struct bench *b, int n)
{
    struct ctw_err err;
    for (int i = 0; i < n; i++) {
        if (call(b, CTW_OP_HEALTH, patience_ms, &err) != CTW_OK)
            fail_msg("%s", err.msg);
    }
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

/* Writes the frame of a request of n bytes. */
static void begin_request(int fd, size_t n)
{
    unsigned char head[9] = {1};
    for (int i = 1; i < 9; i++)
        head[i] = (unsigned char)(n >> (8 * (8 - i)));
    assert_int_equal(write(fd, head, sizeof(head)), sizeof(head));
}

/* Requests that stall halfway: their connections are closed and their memory is freed. Until then
 * large requests wait in their order, and small ones do not. */
static void half_a_request_is_given_up(void **state)
{
    (void)state;
    struct bench b;
    static const char body[1 << 16] = {(char)0x80};
    enum { N = 20, FULL = 17, MIB = 1 << 20 };
    int fds[N];
    open_bench(&b, 2 * patience_ms);
    int64_t since_ms = ctw_now_ms();
    for (int i = 0; i < N; i++) { /* 2 of 8 and 15 of 16 MiB are the bound, 256 MiB */
        fds[i] = connect_to(&b);
        begin_request(fds[i], i == 0 || i == FULL - 1 ? 8 * MIB : 16 * MIB);
        assert_int_equal(write(fds[i], body, sizeof(body)), sizeof(body));
    }
    assert_others_are_served(&b, 5);
    close(fds[0]); /* too little for the next one in the row */
    while (atomic_load(&b.n_lost) < 6)
        sleep_ms(1);
    int fd = connect_to(&b);
    begin_request(fd, sizeof(body));
    assert_int_equal(write(fd, body, sizeof(body)), sizeof(body));
    assert_true(take_reply(fd, 8 * patience_ms)); /* "format" */
    assert_true(ctw_now_ms() - since_ms >= 2 * patience_ms);
    while (atomic_load(&b.n_lost) < 5 + N)
        sleep_ms(1);
    for (int i = 1; i < N; i++)
        close(fds[i]);
    close(fd);
    close_bench(&b);
}

/* A submit of n bytes in all, which begin_request() has announced. */
static void send_submit(int fd, size_t n)
{
    static char tokens[CTW_IPC_REQUEST_BYTES];
    struct ctw_submit *s;
    struct ctw_request request = {.id = 1, .op = CTW_OP_SUBMIT};
    struct ctw_err err;
    struct ctw_writer w = {0};
    s = &request.body.submit;
    s->job = (struct ctw_slice){.data = "0123456789abcdef", .n = 16};
    s->items.tokens = (struct ctw_slice){.data = tokens, .n = 5000};
    assert_int_equal(ctw_request_encode(&request, &w, &err), CTW_OK);
    s->items.tokens.n += n - 4 - w.n;
    ctw_writer_fini(&w);
    assert_int_equal(ctw_request_encode(&request, &w, &err), CTW_OK);
    assert_int_equal(w.n, n - 4);
    assert_int_equal(write(fd, "\x80\0\0\1", 4), 4);
    for (size_t at = 0; at < w.n;) {
        ssize_t done = write(fd, w.data + at, w.n - at);
        assert_true(done > 0);
        at += (size_t)done;
    }
    ctw_writer_fini(&w);
}

/* While its reply is being sent off, a connection's next request finds no memory. */
static void out_of_memory_between_two_requests(void **state)
{
    (void)state;
    struct bench b;
    enum { N = 16, BYTES = 8192 };
    int fds[N];
    for (int nth = 2; nth <= 3; nth++) { /* 1: the reply; 2, 3: the request that waits */
        open_bench(&b, 0);
        atomic_store(&b.held, true);
        int fd = connect_to(&b);
        begin_request(fd, BYTES);
        send_submit(fd, BYTES);
        while (atomic_load(&b.n_handled) < 1)
            sleep_ms(1);
        for (int i = 0; i < N; i++)
            fds[i] = connect_to(&b);
        int64_t n_allocated = ctw_mem_count();
        for (int i = 0; i < N; i++) /* use up the bound */
            begin_request(fds[i], CTW_IPC_UNHANDLED_BYTES / N - (i == 0 ? BYTES : 0));
        while (ctw_mem_count() < n_allocated + 2 * N)
            sleep_ms(1);
        begin_request(fd, BYTES);
        sleep_ms(100); /* this frame is read meanwhile */
        ctw_mem_fail_at(nth);
        atomic_store(&b.held, false);
        while (take_reply(fd, patience_ms)) /* until it is closed */
            ;
        ctw_mem_fail_at(0);
        assert_others_are_served(&b, 1);
        for (int i = 0; i < N; i++)
            close(fds[i]);
        close(fd);
        while (atomic_load(&b.n_lost) < 2 + N)
            sleep_ms(1);
        close_bench(&b);
    }
}

static void too_large_a_request_is_refused(void **state)
{
    (void)state;
    struct bench b;
    char log[4096];
    int saved;
    static const unsigned char head[9] = {1, 0, 0, 0, 0, 0x40, 0, 0, 0};
    open_bench(&b, 0);
    FILE *f = begin_log(&saved);
    int fd = connect_to(&b);
    assert_int_equal(write(fd, head, 9), 9);
    assert_false(take_reply(fd, 8 * patience_ms));
    end_log(f, saved, log, sizeof(log));
    assert_non_null(strstr(log, "its request has 1073741824 bytes, at most 16842752 are allowed"));
    close(fd);
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

/* A tight loop: after the first thousand its requests are read later. Silence before saves none up.
 */
static void requests_a_second_are_bounded(void **state)
{
    (void)state;
    struct bench b;
    enum { MORE = 50 };
    open_bench(&b, 0);
    int fd = connect_to(&b);
    sleep_ms(300);
    int64_t since_ms = ctw_now_ms();
    for (int i = 0; i < CTW_IPC_REQUESTS_AT_ONCE + MORE; i++) {
        ask(fd, CTW_OP_HEALTH, 1);
        assert_true(take_reply(fd, patience_ms));
    }
    assert_true(ctw_now_ms() - since_ms >= (MORE - 1) * 1000 / CTW_IPC_REQUESTS_PER_S - 20);
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
        if (i % 3 == 1)
            assert_int_equal(write(fd, "\0SP", 3), 3);
        close(fd);
    }
    assert_others_are_served(&b, 3);
    close_bench(&b);
}

static void more_connections_than_the_bound_are_refused(void **state)
{
    (void)state;
    struct bench b;
    static int fds[CTW_IPC_CONNECTIONS];
    struct rlimit most;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &most), 0);
    most.rlim_cur = most.rlim_max;
    if (most.rlim_max < 3 * CTW_IPC_CONNECTIONS || setrlimit(RLIMIT_NOFILE, &most) != 0)
        skip();
    open_bench(&b, 0);
    for (int i = 0; i < CTW_IPC_CONNECTIONS; i++)
        fds[i] = connect_to(&b);
    ask(fds[CTW_IPC_CONNECTIONS - 1], CTW_OP_HEALTH, 1);
    assert_true(take_reply(fds[CTW_IPC_CONNECTIONS - 1], 8 * patience_ms));
    assert_int_equal(call(&b, CTW_OP_HEALTH, 300, NULL) == CTW_OK, false);
    for (int i = 0; i < CTW_IPC_CONNECTIONS; i++)
        close(fds[i]);
    while (atomic_load(&b.n_lost) < CTW_IPC_CONNECTIONS)
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
        cmocka_unit_test(requests_without_end_are_not_read),
        cmocka_unit_test(replies_that_nobody_takes_make_room),
        cmocka_unit_test(half_a_request_is_given_up),
        cmocka_unit_test(out_of_memory_between_two_requests),
        cmocka_unit_test(too_large_a_request_is_refused),
        cmocka_unit_test(a_hundred_that_wait_wake_at_once),
        cmocka_unit_test(an_early_wake_is_not_lost),
        cmocka_unit_test(one_connection_does_not_take_all_places),
        cmocka_unit_test(all_connections_share_the_places),
        cmocka_unit_test(closing_wakes_those_that_wait),
        cmocka_unit_test(requests_a_second_are_bounded),
        cmocka_unit_test(connections_that_end_at_once_do_no_harm),
        cmocka_unit_test(more_connections_than_the_bound_are_refused),
        cmocka_unit_test(too_large_a_reply_is_told),
    };
    const char *patience = getenv("CTW_TEST_PATIENCE");
    if (patience != NULL && atoi(patience) > 1)
        patience_ms *= atoi(patience);
    (void)signal(SIGPIPE, SIG_IGN);
    ctw_log_set_level(CTW_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
