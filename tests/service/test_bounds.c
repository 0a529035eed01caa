/* What a connection may take of the server: a place, memory for requests, requests per second. */
#include "server_bench.h"

#include <sys/resource.h>

#include "base/mem.h"

enum {
    MIB = 1 << 20,
    /* What one process may send of large and medium requests, if no token is needed. */
    LARGE_SHARE = (CTW_IPC_UNHANDLED_BYTES - CTW_IPC_ALL_MEDIUM_BYTES) / 4,
    MEDIUM_SHARE = CTW_IPC_ALL_MEDIUM_BYTES / 4
};

/* Requests that stall halfway: their connections are closed and their memory is freed. Until then
 * large requests wait in their order, and smaller ones do not. */
static void half_a_request_is_given_up(void **state)
{
    (void)state;
    struct bench b;
    static const char body[1 << 16] = {(char)0x80};
    enum { N = 8, FULL = LARGE_SHARE / (16 * MIB) };
    int fds[N];
    open_bench(&b, 2 * patience_ms);
    int64_t since_ms = ctw_now_ms();
    for (int i = 0; i < N; i++) {
        fds[i] = connect_to(&b);
        begin_request(fds[i], 16 * MIB);
        assert_int_equal(write(fds[i], body, sizeof(body)), sizeof(body));
    }
    assert_others_are_served(&b, 5);
    int medium = connect_to(&b), fd = connect_to(&b);
    begin_request(medium, sizeof(body));
    assert_int_equal(write(medium, body, sizeof(body)), sizeof(body));
    assert_true(take_reply(medium, 8 * patience_ms)); /* "format" */
    assert_true(atomic_load(&b.n_lost) <= 5);         /* nobody was closed for it */
    begin_request(fd, 2 * MIB);
    for (int i = 0; i < 2 * MIB / (int)sizeof(body); i++)
        assert_int_equal(write(fd, body, sizeof(body)), sizeof(body));
    assert_true(take_reply(fd, 30 * patience_ms));
    assert_true(ctw_now_ms() - since_ms >= 2 * patience_ms);
    while (atomic_load(&b.n_lost) < 5 + N)
        sleep_ms(1);
    for (int i = 0; i < N; i++)
        close(fds[i]);
    close(fd);
    close(medium);
    close_bench(&b);
}

/* A connection of this token, which is known from now on. */
static int connect_as(const struct bench *b, const char *token)
{
    int fd = connect_to(b);
    bench_token = token;
    begin_request(fd, 600);
    send_submit(fd, 600);
    assert_true(take_reply(fd, 8 * patience_ms));
    return fd;
}

/* Twenty slow uploads of one token: another token's requests of any size, and the same token's
 * requests of ordinary size, are answered at once, and no connection is closed for it. */
static void slow_uploads_cost_their_token_only(void **state)
{
    (void)state;
    struct bench b;
    static const char some[1 << 16];
    enum { N = 20, LARGEST = 16 * MIB, ORDINARY = 30000 };
    int fds[N];
    open_asking_bench(&b);
    int same = connect_as(&b, "a token"), other = connect_as(&b, "b token");
    for (int i = 0; i < N; i++) {
        fds[i] = connect_as(&b, "a token");
        begin_request(fds[i], LARGEST);
        assert_int_equal(write(fds[i], some, sizeof(some)), sizeof(some));
    }
    bench_token = "b token";
    begin_request(other, ORDINARY);
    send_submit(other, ORDINARY);
    assert_true(take_reply(other, 4 * patience_ms));
    begin_request(other, LARGEST);
    send_submit(other, LARGEST);
    assert_true(take_reply(other, 4 * patience_ms));
    bench_token = "a token";
    begin_request(same, ORDINARY);
    send_submit(same, ORDINARY);
    assert_true(take_reply(same, 4 * patience_ms));
    assert_int_equal(atomic_load(&b.n_lost), 0);
    for (int i = 0; i < N; i++)
        close(fds[i]);
    close(same);
    close(other);
    close_bench(&b);
}

/* Strangers hold an eighth of the memory at most, and a client that shows its token leaves them. */
static void strangers_leave_memory_to_clients(void **state)
{
    (void)state;
    struct bench b;
    static char some[1 << 16];
    enum { N = 20, SMALL = 600, LARGEST = 16 << 20 };
    int fds[N];
    open_asking_bench(&b);
    int known = connect_to(&b), later = connect_to(&b);
    begin_request(known, SMALL);
    send_submit(known, SMALL);
    assert_true(take_reply(known, patience_ms));
    for (int i = 0; i < N; i++) { /* 320 MiB: more than the bound */
        fds[i] = connect_to(&b);
        begin_request(fds[i], LARGEST);
        assert_int_equal(write(fds[i], some, sizeof(some)), sizeof(some));
    }
    begin_request(known, LARGEST);
    send_submit(known, LARGEST);
    assert_true(take_reply(known, patience_ms));
    atomic_store(&b.held, true);
    begin_request(later, SMALL);
    send_submit(later, SMALL);
    begin_request(later, LARGEST);
    sleep_ms(100); /* it waits with the strangers meanwhile */
    atomic_store(&b.held, false);
    assert_true(take_reply(later, patience_ms));
    send_submit(later, LARGEST);
    assert_true(take_reply(later, patience_ms));
    assert_int_equal(atomic_load(&b.n_lost), 0);
    for (int i = 0; i < N; i++)
        close(fds[i]);
    close(known);
    close(later);
    close_bench(&b);
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
        for (int i = 0; i < N; i++) /* use up the share */
            begin_request(fds[i], MEDIUM_SHARE / N - (i == 0 ? BYTES : 0));
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

/* The same from many connections, one after another. */
static void a_new_connection_brings_no_new_burst(void **state)
{
    (void)state;
    struct bench b;
    enum { N = 22, EACH = 50 };
    open_bench(&b, 0);
    int64_t since_ms = ctw_now_ms();
    for (int i = 0; i < N; i++) {
        int fd = connect_to(&b);
        for (int k = 0; k < EACH; k++) {
            ask(fd, CTW_OP_HEALTH, 1);
            assert_true(take_reply(fd, patience_ms));
        }
        close(fd);
        while (atomic_load(&b.n_lost) < i + 1)
            sleep_ms(1);
    }
    int over = N * EACH - CTW_IPC_REQUESTS_AT_ONCE;
    assert_true(ctw_now_ms() - since_ms >= (over - 1) * 1000 / CTW_IPC_REQUESTS_PER_S - 20);
    close_bench(&b);
}

/* ---- places ---- */

/*
 * Connections that together take all places. Most have a poll that waits, so that they are not
 * idle. As fewer polls may wait, the rest are idle connections of tokens that have no others, which
 * give way to nobody within the test.
 */
struct crowd {
    struct bench b;
    int fds[CTW_IPC_CONNECTIONS + 64], n, n_wait;
    char single; /* the first letter of the next token without other connections */
};

/* False: this process cannot open both ends of so many connections. */
static bool open_crowd(struct crowd *c)
{
    struct rlimit files;
    enum { NEEDED = 2 * CTW_COUNT(c->fds) + 100 };
    memset(c, 0, sizeof(*c));
    c->single = ADMIN + 1;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &files), 0);
    if (files.rlim_max < NEEDED)
        return false;
    files.rlim_cur = files.rlim_cur < NEEDED ? NEEDED : files.rlim_cur;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &files), 0);
    assert_int_equal(ctw_server_max_connections(), CTW_IPC_CONNECTIONS);
    open_asking_bench(&c->b);
    return true;
}

static void close_crowd(struct crowd *c)
{
    for (int i = 0; i < c->n; i++)
        close(c->fds[i]);
    close_bench(&c->b);
}

/* Is the first request of a new connection with this token answered? The connection stays open. */
static bool gets_in(struct crowd *c, const char *token)
{
    int fd = c->fds[c->n++] = connect_to(&c->b);
    ask_as(fd, token, CTW_OP_HEALTH, 1);
    return take_reply(fd, 8 * patience_ms);
}

/* Adds n connections of the token, each with a poll that waits. */
static void wait_as(struct crowd *c, const char *token, int n)
{
    for (int i = 0; i < n; i++) {
        c->fds[c->n] = connect_to(&c->b);
        ask_as(c->fds[c->n++], token, CTW_OP_POLL, 1);
    }
    c->n_wait += n;
    while (atomic_load(&c->b.n_waiting) < c->n_wait)
        sleep_ms(1);
}

static void take_the_rest(struct crowd *c)
{
    while (c->n < CTW_IPC_CONNECTIONS)
        assert_true(gets_in(c, bench_names[(int)c->single++]));
    assert_true(c->single <= 'a');
    assert_int_equal(atomic_load(&c->b.n_lost), 0);
}

/* How many of these connections has the server closed? */
static int n_closed(const int *fds, int n)
{
    int closed = 0;
    char byte;
    for (int i = 0; i < n; i++)
        closed += recv(fds[i], &byte, 1, MSG_DONTWAIT) == 0;
    return closed;
}

/* A token has three quarters of all connections: its next one is closed. Everybody else gets in,
 * and so does an administrator with as many. */
static void a_token_keeps_within_its_bound(void **state)
{
    (void)state;
    static struct crowd c;
    enum { BOUND = CTW_IPC_CONNECTIONS - CTW_IPC_CONNECTIONS / 4 };
    if (!open_crowd(&c))
        skip();
    wait_as(&c, "a token", BOUND);
    assert_false(gets_in(&c, "a token"));
    assert_true(gets_in(&c, "b token"));
    assert_true(gets_in(&c, "A token"));
    assert_int_equal(n_closed(c.fds, BOUND), 0);
    close_crowd(&c);
    assert_true(open_crowd(&c));
    wait_as(&c, "A token", BOUND);
    assert_true(gets_in(&c, "A token"));
    assert_int_equal(n_closed(c.fds, BOUND), 0);
    close_crowd(&c);
}

/* All places are taken and busy: newcomers take those of the holder of most. */
static void the_holder_of_most_makes_room(void **state)
{
    (void)state;
    static struct crowd c;
    enum { B = CTW_IPC_WAITING / 4, A = CTW_IPC_WAITING - B, NEW = 20 };
    if (!open_crowd(&c))
        skip();
    wait_as(&c, "a token", A);
    wait_as(&c, "b token", B);
    take_the_rest(&c);
    for (int i = 0; i < NEW; i++)
        assert_true(gets_in(&c, bench_names['c' + i]));
    assert_int_equal(n_closed(c.fds, A), NEW);
    assert_int_equal(n_closed(c.fds + A, c.n - A), 0);
    close_crowd(&c);
}

static void wait_until_lost(const struct crowd *c, int n)
{
    while (atomic_load(&c->b.n_lost) < n)
        sleep_ms(1);
}

/* All places are taken and busy, and nobody has more than an eighth of them: a newcomer is turned
 * away, but an administrator gets in. Both also if a stranger has one of the kept places, which a
 * newcomer takes over. */
static void an_administrator_gets_in(void **state)
{
    (void)state;
    static struct crowd c;
    enum { HOLDERS = 8, EACH = CTW_IPC_WAITING / HOLDERS };
    if (!open_crowd(&c))
        skip();
    for (int i = 0; i < HOLDERS; i++)
        wait_as(&c, bench_names['a' + i], EACH);
    take_the_rest(&c);
    int n_lost = 0;
    for (int with_stranger = 0; with_stranger < 2; with_stranger++) {
        for (int admin = 0; admin < 2; admin++) {
            if (with_stranger)
                c.fds[c.n++] = connect_to(&c.b);
            assert_int_equal(gets_in(&c, bench_names[admin ? ADMIN : 'i']), admin);
            n_lost += with_stranger + !admin;
            wait_until_lost(&c, n_lost);
        }
    }
    assert_int_equal(n_closed(c.fds, CTW_IPC_CONNECTIONS), 0);
    close_crowd(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(half_a_request_is_given_up),
        cmocka_unit_test(slow_uploads_cost_their_token_only),
        cmocka_unit_test(strangers_leave_memory_to_clients),
        cmocka_unit_test(out_of_memory_between_two_requests),
        cmocka_unit_test(a_token_keeps_within_its_bound),
        cmocka_unit_test(the_holder_of_most_makes_room),
        cmocka_unit_test(an_administrator_gets_in),
        cmocka_unit_test(requests_a_second_are_bounded),
        cmocka_unit_test(a_new_connection_brings_no_new_burst),
    };
    init_bench();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
