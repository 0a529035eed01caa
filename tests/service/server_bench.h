/* Shared by the tests of the server: a server with a handler that does as the test says, and
 * clients that write nng's protocol by hand. */
#ifndef CTW_TESTS_SERVER_BENCH_H
#define CTW_TESTS_SERVER_BENCH_H

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
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "ipc/client.h"
#include "ipc/limits.h"
#include "ipc/server.h"

#define BENCH __attribute__((unused)) static

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
        reply->body.fetch.result.sum = (struct ctw_span){.data = b->large, .n = b->bytes};
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

static const char *bench_token = "a token"; /* that send_submit() sends */

enum { ADMIN = 'A' };
static char bench_names[128][8]; /* the tokens by their first letter: "A token", ... */

static bool admits(void *arg, struct ctw_peer *peer, const struct ctw_request *request)
{
    (void)arg;
    for (int letter = ADMIN; letter <= 'z'; letter++) {
        if (ctw_span_is(request->token, bench_names[letter]))
            peer->token = bench_names[letter];
    }
    peer->admin = peer->token == bench_names[ADMIN];
    return peer->token != NULL;
}

static void open_server(struct bench *b, int stall_ms, bool asks)
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
                                         .admits = asks ? admits : NULL,
                                         .peer_gone = peer_gone};
    assert_int_equal(ctw_server_open(&b->server, &options, &err), CTW_OK);
}

BENCH void open_bench(struct bench *b, int stall_ms)
{
    open_server(b, stall_ms, false);
}

/* The server asks for a token, which send_submit() and ask_as() send. */
BENCH void open_asking_bench(struct bench *b)
{
    open_server(b, 0, true);
}

BENCH void close_bench(struct bench *b)
{
    ctw_server_close(b->server);
    free(b->large);
    assert_int_equal(rmdir(b->dir), 0); /* the folder is empty */
}

/* ---- clients by hand ---- */

BENCH int connect_to(const struct bench *b)
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

/* Sends n requests of this operation in one go; returns when all are in the socket. token: NULL:
 * none. */
BENCH void ask_as(int fd, const char *token, enum ctw_op op, int n)
{
    unsigned char bytes[64 * 1024];
    size_t at = 0;
    struct ctw_request request = {.id = 1, .op = op};
    struct ctw_writer w = {0};
    struct ctw_err err;
    if (op != CTW_OP_HEALTH) /* all other requests here begin with the job */
        request.body.fetch.job = (struct ctw_span){.data = "0123456789abcdef", .n = 16};
    if (token != NULL)
        request.token = ctw_span_of(token);
    if (op == CTW_OP_POLL) {
        request.body.poll.has.wait_ms = true;
        request.body.poll.wait_ms = 60000;
    }
    assert_int_equal(ctw_request_encode(&request, &w, &err), CTW_OK);
    for (int i = 0; i < n; i++) {
        assert_true(4 + w.n < 256);
        assert_true(at + 13 + w.n <= sizeof(bytes));
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

BENCH void ask(int fd, enum ctw_op op, int n)
{
    ask_as(fd, NULL, op, n);
}

/* Reads and drops one reply; false: no reply in time, or the connection is closed. */
BENCH bool take_reply(int fd, int timeout_ms)
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

BENCH enum ctw_status call(struct bench *b, enum ctw_op op, int timeout_ms, struct ctw_err *err)
{
    struct ctw_client *c = NULL;
    struct ctw_request request = {.op = op};
    struct ctw_reply reply = {0};
    request.body.fetch.job = (struct ctw_span){.data = "0123456789abcdef", .n = 16};
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

/* Writes the frame of a request of n bytes. */
BENCH void begin_request(int fd, size_t n)
{
    unsigned char head[9] = {1};
    for (int i = 1; i < 9; i++)
        head[i] = (unsigned char)(n >> (8 * (8 - i)));
    assert_int_equal(write(fd, head, sizeof(head)), sizeof(head));
}

/* A submit of n bytes in all, which begin_request() has announced. */
BENCH void send_submit(int fd, size_t n)
{
    static char tokens[CTW_IPC_REQUEST_BYTES];
    struct ctw_submit *s;
    struct ctw_request request = {.id = 1, .op = CTW_OP_SUBMIT};
    struct ctw_err err;
    struct ctw_writer w = {0};
    s = &request.body.submit;
    s->job = (struct ctw_span){.data = "0123456789abcdef", .n = 16};
    s->items.tokens = (struct ctw_span){.data = tokens, .n = n / 2};
    request.token = ctw_span_of(bench_token);
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

BENCH void assert_others_are_served(struct bench *b, int n)
{
    struct ctw_err err;
    for (int i = 0; i < n; i++) {
        if (call(b, CTW_OP_HEALTH, 4 * patience_ms, &err) != CTW_OK)
            fail_msg("%s", err.msg);
    }
}

/* Call first in main(). */
BENCH void init_bench(void)
{
    const char *patience = getenv("CTW_TEST_PATIENCE");
    if (patience != NULL && atoi(patience) > 1)
        patience_ms *= atoi(patience);
    (void)signal(SIGPIPE, SIG_IGN);
    for (int letter = ADMIN; letter <= 'z'; letter++)
        snprintf(bench_names[letter], sizeof(bench_names[letter]), "%c token", letter);
    ctw_log_set_level(CTW_LOG_ERROR);
}

#endif
