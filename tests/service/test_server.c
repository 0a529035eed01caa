#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "ipc/client.h"
#include "ipc/endpoint.h"
#include "ipc/limits.h"
#include "ipc/server.h"

enum { LARGE = 8 << 20, NEVER_MS = 1 << 30 };

struct bench {
    char dir[32], url[64];
    struct ctw_server *server;
    char *large;
    size_t bytes; /* of a fetch's column */
    atomic_int n_self, n_other;
    atomic_int late_ms;  /* that answers to probes are */
    atomic_uint client;  /* the last one's pipe */
    atomic_bool is_lost; /* that client's connection */
};

static void sleep_ms(int ms)
{
    const struct timespec ts = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L};
    nanosleep(&ts, NULL);
}

/* health: an empty one; fetch: one large column */
static void handle(void *arg, const struct ctw_peer *peer, const struct ctw_request *request,
                   struct ctw_reply *reply)
{
    struct bench *b = arg;
    atomic_fetch_add(peer->self ? &b->n_self : &b->n_other, 1);
    reply->ok = true;
    if (peer->self)
        sleep_ms(atomic_load(&b->late_ms));
    else
        atomic_store(&b->client, peer->pipe);
    if (request->op == CTW_OP_FETCH)
        reply->body.fetch.result.sum = (struct ctw_slice){.data = b->large, .n = b->bytes};
}

static void peer_gone(void *arg, uint32_t pipe)
{
    struct bench *b = arg;
    if (pipe == atomic_load(&b->client))
        atomic_store(&b->is_lost, true);
}

static void open_bench(struct bench *b, int send_ms, int probe_ms, int answer_ms)
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
                                         .send_ms = send_ms,
                                         .probe_ms = probe_ms,
                                         .answer_ms = answer_ms,
                                         .arg = b,
                                         .handle = handle,
                                         .peer_gone = peer_gone};
    assert_int_equal(ctw_server_open(&b->server, &options, &err), CTW_OK);
}

static void close_bench(struct bench *b)
{
    ctw_server_close(b->server);
    free(b->large);
    assert_int_equal(rmdir(b->dir), 0); /* nothing is left there */
}

/* A client by hand: nng's handshake, then requests, whose replies it does not read. */
static int ask_without_reading(struct bench *b, int n)
{
    static const unsigned char hello[8] = {0, 'S', 'P', 0, 0, 0x30, 0, 0};
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    unsigned char theirs[8], head[13] = {1};
    char job[16] = "0123456789abcdef";
    struct ctw_request request = {.id = 1, .op = CTW_OP_FETCH};
    struct ctw_writer w = {0};
    struct ctw_err err;
    request.body.fetch.job = (struct ctw_slice){.data = job, .n = sizeof(job)};
    assert_int_equal(ctw_request_encode(&request, &w, &err), CTW_OK);
    snprintf(to.sun_path, sizeof(to.sun_path), "%s/s", b->dir);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)&to, sizeof(to)), 0);
    assert_int_equal(write(fd, hello, 8), 8);
    assert_int_equal(recv(fd, theirs, 8, MSG_WAITALL), 8);
    for (int i = 0; i < n; i++) {
        head[8] = (unsigned char)(4 + w.n); /* the last byte of the length: request id and body */
        head[9] = 0x80;
        head[12] = (unsigned char)(i + 1);
        assert_true(4 + w.n < 256);
        assert_int_equal(write(fd, head, sizeof(head)), sizeof(head));
        assert_int_equal(write(fd, w.data, w.n), (ssize_t)w.n);
    }
    ctw_writer_fini(&w);
    return fd;
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

/* Both threads have a reply for it; they drop it after a while, and answer others. */
static void a_client_that_reads_nothing_keeps_no_thread(void **state)
{
    (void)state;
    struct bench b;
    struct ctw_err err;
    open_bench(&b, 300, NEVER_MS, 0);
    int fd = ask_without_reading(&b, 6);
    while (atomic_load(&b.n_other) < 3) { /* the first reply is nng's, two wait behind it */
        sleep_ms(1);
    }
    if (call(&b, CTW_OP_HEALTH, 8000, &err) != CTW_OK)
        fail_msg("%s", err.msg);
    close(fd);
    close_bench(&b);
}

static void too_large_a_reply_is_told(void **state)
{
    (void)state;
    struct bench b;
    struct ctw_err err;
    open_bench(&b, 0, NEVER_MS, 0);
    b.bytes = CTW_IPC_MESSAGE_BYTES;
    assert_int_equal(call(&b, CTW_OP_FETCH, 8000, &err), CTW_EINVAL);
    assert_non_null(strstr(err.msg, "the reply: the message has 671"));
    b.bytes = LARGE;
    assert_int_equal(call(&b, CTW_OP_FETCH, 8000, &err), CTW_OK);
    close_bench(&b);
}

static void probes_are_told_from_clients(void **state)
{
    (void)state;
    struct bench b;
    struct ctw_err err;
    open_bench(&b, 0, 20, 0);
    for (int i = 0; i < 3; i++)
        assert_int_equal(call(&b, CTW_OP_HEALTH, 8000, &err), CTW_OK);
    while (atomic_load(&b.n_self) < 2) {
        sleep_ms(1);
    }
    assert_int_equal(atomic_load(&b.n_other), 3);
    close_bench(&b);
}

/* A server whose threads are all busy is not deaf: nobody is thrown out. */
static void late_answers_cost_no_connection(void **state)
{
    (void)state;
    struct bench b;
    struct ctw_err err;
    struct ctw_client *c;
    struct ctw_request request = {.op = CTW_OP_HEALTH};
    struct ctw_reply reply;
    open_bench(&b, 0, 20, 300);
    assert_int_equal(ctw_client_open(&c, b.url, &err), CTW_OK);
    assert_int_equal(ctw_client_call(c, &request, 8000, &reply, &err), CTW_OK);
    ctw_reply_close(&reply);
    atomic_store(&b.late_ms, 700);
    for (int before = atomic_load(&b.n_self); atomic_load(&b.n_self) < before + 5;)
        sleep_ms(1);
    assert_false(atomic_load(&b.is_lost));
    ctw_client_close(c);
    while (!atomic_load(&b.is_lost)) /* it would have been told */
        sleep_ms(1);
    close_bench(&b);
}

static void wildcards_become_addresses(void **state)
{
    (void)state;
    struct ctw_endpoint e;
    struct ctw_err err;
    assert_int_equal(ctw_endpoint_parse(&e, "tcp://*:5555", &err), CTW_OK);
    assert_string_equal(e.url, "tcp://0.0.0.0:5555");
    assert_int_equal(ctw_endpoint_claim(&e, false, &err), CTW_EINVAL);
    assert_int_equal(ctw_endpoint_parse(&e, "tcp://:5555", &err), CTW_OK);
    assert_string_equal(e.url, "tcp://0.0.0.0:5555");
    assert_int_equal(ctw_endpoint_parse(&e, "tcp://[::1]:7", &err), CTW_OK);
    assert_string_equal(e.url, "tcp://[::1]:7");
    assert_string_equal(e.host, "::1");
}

static void a_held_lock_is_seen(void **state)
{
    (void)state;
    struct bench b;
    char path[64];
    int64_t pid;
    open_bench(&b, 0, NEVER_MS, 0);
    snprintf(path, sizeof(path), "%s/s", b.dir);
    assert_true(ctw_endpoint_held(path, &pid));
    assert_int_equal(pid, getpid());
    ctw_server_close(b.server);
    b.server = NULL;
    assert_false(ctw_endpoint_held(path, &pid));
    assert_int_equal(pid, 0);
    close_bench(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_client_that_reads_nothing_keeps_no_thread),
        cmocka_unit_test(too_large_a_reply_is_told),
        cmocka_unit_test(probes_are_told_from_clients),
        cmocka_unit_test(late_answers_cost_no_connection),
        cmocka_unit_test(wildcards_become_addresses),
        cmocka_unit_test(a_held_lock_is_seen),
    };
    ctw_log_set_level(CTW_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
