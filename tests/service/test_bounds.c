/* What a connection may take of the server: memory for requests, requests per second. */
#include "server_bench.h"

#include "base/mem.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(half_a_request_is_given_up),
        cmocka_unit_test(strangers_leave_memory_to_clients),
        cmocka_unit_test(out_of_memory_between_two_requests),
        cmocka_unit_test(requests_a_second_are_bounded),
        cmocka_unit_test(a_new_connection_brings_no_new_burst),
    };
    init_bench();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
