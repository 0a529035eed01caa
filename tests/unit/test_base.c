#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/status.h"
#include "base/threads.h"

static void fail_keeps_message_and_prefix(void **state)
{
    (void)state;
    struct ctw_err err;
    assert_int_equal(ctw_fail(&err, CTW_EFORMAT, "bad %d", 7), CTW_EFORMAT);
    assert_int_equal(ctw_fail_prefix(&err, "file %s", "x"), CTW_EFORMAT);
    assert_string_equal(err.msg, "file x: bad 7");
    assert_int_equal(ctw_fail(NULL, CTW_EIO, "nobody listens"), CTW_EIO);
}

static void long_message_is_cut(void **state)
{
    (void)state;
    struct ctw_err err;
    char big[2 * CTW_ERR_MSG_MAX];
    memset(big, 'a', sizeof(big) - 1);
    big[sizeof(big) - 1] = '\0';
    (void)ctw_fail(&err, CTW_EIO, "%s", big);
    assert_int_equal(strlen(err.msg), CTW_ERR_MSG_MAX - 1);
    assert_string_equal(err.msg + CTW_ERR_MSG_MAX - 4, "...");
    (void)ctw_fail_prefix(&err, "p");
    assert_string_equal(err.msg + CTW_ERR_MSG_MAX - 4, "...");
    assert_memory_equal(err.msg, "p: aaa", 6);
}

static void sizes_do_not_wrap(void **state)
{
    (void)state;
    size_t r = 1;
    assert_false(ctw_size_mul(SIZE_MAX / 2, 3, &r));
    assert_false(ctw_size_add(SIZE_MAX, 1, &r));
    assert_int_equal(r, 1);
    assert_true(ctw_size_mul(6, 7, &r));
    assert_int_equal(r, 42);
    assert_null(ctw_calloc(SIZE_MAX / 2, 3));
    assert_null(ctw_realloc(NULL, SIZE_MAX / 2, 3));
}

/* Of new memory, and of memory that was used before. */
static void aligned_memory_is_zeroed(void **state)
{
    (void)state;
    static const size_t sizes[] = {
        0, 1, 63, 64, 1000, 1 << 20, (4 << 20) - 1, 4 << 20, (9 << 20) + 5};
    for (size_t i = 0; i < 3 * CTW_COUNT(sizes); i++) {
        size_t bytes = sizes[i % CTW_COUNT(sizes)];
        char *p = ctw_alloc_aligned(bytes), *beside = ctw_alloc_aligned(bytes);
        assert_non_null(p);
        assert_non_null(beside);
        assert_int_equal((uintptr_t)p % (bytes >= 4 << 20 ? 2 << 20 : 64), 0);
        for (size_t b = 0; b < bytes; b++)
            assert_true(p[b] == 0);
        memset(p, 1, bytes);
        for (size_t b = 0; b < bytes; b++)
            assert_true(beside[b] == 0);
        ctw_free_aligned(p);
        ctw_free_aligned(beside);
    }
    ctw_free_aligned(NULL);
    assert_null(ctw_alloc_aligned(SIZE_MAX));
    assert_null(ctw_alloc_aligned(SIZE_MAX - 64));
    ctw_mem_fail_at(1);
    void *none = ctw_alloc_aligned(8);
    ctw_mem_fail_at(0);
    assert_null(none);
}

static void allocations_can_be_made_to_fail(void **state)
{
    (void)state;
    ctw_mem_fail_at(2);
    void *a = ctw_calloc(1, 8), *b = ctw_calloc(1, 8);
    ctw_mem_fail_at(0);
    assert_non_null(a);
    assert_null(b);
    ctw_free(a);
}

struct loop {
    int hits[1000];
    int per_thread[8];
};

static void hit(void *arg, int64_t i, int thread)
{
    struct loop *l = arg;
    l->hits[i]++;
    l->per_thread[thread]++;
}

static void every_item_runs_once(void **state)
{
    (void)state;
    struct ctw_threads *pool;
    struct ctw_err err;
    assert_int_equal(ctw_threads_open(&pool, 8, &err), CTW_OK);
    for (int round = 0; round < 50; round++) {
        struct loop l = {0};
        int n = round * 20;
        ctw_threads_for(pool, n, hit, &l);
        int total = 0;
        for (int i = 0; i < n; i++)
            assert_int_equal(l.hits[i], 1);
        for (int t = 0; t < 8; t++)
            total += l.per_thread[t];
        assert_int_equal(total, n);
    }
    ctw_threads_close(pool);
    ctw_threads_close(NULL);
    assert_int_equal(ctw_threads_open(&pool, -1, &err), CTW_EINVAL);
}

/* Loops that end before most threads have woken: a late thread joins a later loop, never an old
 * one. */
static void short_loops_follow_one_another(void **state)
{
    (void)state;
    enum { N_LOOPS = 20000 };
    struct ctw_threads *pool;
    struct ctw_err err;
    static struct loop two[2];
    assert_int_equal(ctw_threads_open(&pool, 8, &err), CTW_OK);
    for (int round = 0; round < N_LOOPS; round++) {
        int n = 2 + round % 3;
        struct loop *l = &two[round % 2];
        *l = (struct loop){0};
        ctw_threads_for(pool, n, hit, l);
        for (int i = 0; i < 5; i++)
            assert_int_equal(l->hits[i], i < n);
    }
    ctw_threads_close(pool);
}

/* Standard error is a pipe with room for PIPE_BUF bytes: a longer line is cut there, and the line
 * after it does not continue the first. A log that blocks is ended by the alarm. */
static void a_line_longer_than_the_room_in_a_pipe(void **state)
{
    (void)state;
    enum { ROOM = 4096, LINE = 4500 };
    static char line[LINE + 1], read_back[3 * ROOM];
    memset(line, 'a', LINE);
    int ends[2], before = dup(STDERR_FILENO);
    assert_true(before >= 0);
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(fcntl(ends[1], F_SETPIPE_SZ, 2 * ROOM), 2 * ROOM);
    assert_int_equal(write(ends[1], read_back, ROOM), ROOM);
    alarm(60);
    assert_true(dup2(ends[1], STDERR_FILENO) >= 0);
    ctw_error("%s", line);
    ctw_error("lost");
    ssize_t full = read(ends[0], read_back, sizeof(read_back));
    ctw_error("%s", line);
    assert_true(dup2(before, STDERR_FILENO) >= 0);
    alarm(0);
    assert_int_equal(full, 2 * ROOM);
    static const char said[] =
        "\nctworker: warn: 2 lines are missing here: nobody read them\nctworker: error: aaa";
    ssize_t n = read(ends[0], read_back, sizeof(read_back));
    assert_true(n > ROOM);
    assert_memory_equal(read_back, said, sizeof(said) - 1);
    close(ends[0]);
    close(ends[1]);
    close(before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fail_keeps_message_and_prefix),
        cmocka_unit_test(long_message_is_cut),
        cmocka_unit_test(sizes_do_not_wrap),
        cmocka_unit_test(aligned_memory_is_zeroed),
        cmocka_unit_test(allocations_can_be_made_to_fail),
        cmocka_unit_test(every_item_runs_once),
        cmocka_unit_test(short_loops_follow_one_another),
        cmocka_unit_test(a_line_longer_than_the_room_in_a_pipe),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
