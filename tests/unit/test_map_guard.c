#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/map_guard.h"

enum { PAGE = 4096, N_PAGES = 64 };

/* In each test: cmocka has just put its own handler there. */
static void install(void)
{
    (void)signal(SIGBUS, SIG_DFL);
    ctw_map_guard_install();
}

/* A file of ones, mapped. */
static int map_ones(const volatile char **map)
{
    char name[] = "/tmp/ctw-guard-XXXXXX", page[PAGE];
    int fd = mkstemp(name);
    assert_true(fd >= 0);
    assert_int_equal(unlink(name), 0);
    memset(page, 1, sizeof(page));
    for (int i = 0; i < N_PAGES; i++)
        assert_int_equal(write(fd, page, sizeof(page)), PAGE);
    void *p = mmap(NULL, N_PAGES * PAGE, PROT_READ, MAP_SHARED, fd, 0);
    assert_ptr_not_equal(p, MAP_FAILED);
    *map = p;
    return fd;
}

static void unmap(int fd, const volatile char *map, int place)
{
    ctw_map_guard_remove(place);
    assert_int_equal(munmap((void *)(uintptr_t)map, N_PAGES * PAGE), 0);
    assert_int_equal(close(fd), 0);
}

static void what_is_missing_reads_as_zeros(void **state)
{
    const volatile char *map, *other;
    (void)state;
    install();
    int fd = map_ones(&map), other_fd = map_ones(&other);
    int place = ctw_map_guard_add((const void *)(uintptr_t)map, N_PAGES * PAGE - 5, false);
    int other_place = ctw_map_guard_add((const void *)(uintptr_t)other, N_PAGES * PAGE, false);
    assert_int_equal(map[10 * PAGE], 1);
    assert_int_equal(ftruncate(fd, 4 * PAGE), 0);
    assert_false(ctw_map_guard_hit(place));
    assert_int_equal(map[10 * PAGE + 7], 0);
    assert_true(ctw_map_guard_hit(place));
    assert_int_equal(map[N_PAGES * PAGE - 6], 0);
    assert_int_equal(map[5 * PAGE], 0); /* before the first that was touched */
    assert_int_equal(map[3 * PAGE], 1);
    assert_false(ctw_map_guard_hit(other_place));
    assert_int_equal(other[10 * PAGE], 1);
    unmap(fd, map, place);
    unmap(other_fd, other, other_place);
    assert_false(ctw_map_guard_hit(-1));
    ctw_map_guard_remove(-1);
}

/* Whichever of the two lies lower, and has the earlier place. */
static void other_maps_are_left_alone(void **state)
{
    (void)state;
    install();
    for (int intact = 0; intact < 2; intact++) {
        const volatile char *map[2];
        int fd[2], place[2], cut = 1 - intact;
        for (int i = 0; i < 2; i++)
            fd[i] = map_ones(&map[i]);
        place[intact] =
            ctw_map_guard_add((const void *)(uintptr_t)map[intact], N_PAGES * PAGE, false);
        place[cut] = ctw_map_guard_add((const void *)(uintptr_t)map[cut], N_PAGES * PAGE, false);
        assert_int_equal(ftruncate(fd[cut], PAGE), 0);
        assert_int_equal(map[cut][2 * PAGE], 0);
        assert_true(ctw_map_guard_hit(place[cut]));
        assert_false(ctw_map_guard_hit(place[intact]));
        for (int i = 0; i < N_PAGES; i++)
            assert_int_equal(map[intact][i * PAGE], 1);
        for (int i = 0; i < 2; i++)
            unmap(fd[i], map[i], place[i]);
    }
}

/* Two guards of one map, as two handles of a file have them, of which one writes. */
static void a_writable_map_of_two(void **state)
{
    (void)state;
    install();
    const volatile char *map;
    int fd = map_ones(&map);
    const void *start = (const void *)(uintptr_t)map;
    volatile char *to = (volatile char *)(uintptr_t)map;
    assert_int_equal(mprotect((void *)(uintptr_t)map, N_PAGES * PAGE, PROT_READ | PROT_WRITE), 0);
    int place[] = {ctw_map_guard_add(start, N_PAGES * PAGE, false),
                   ctw_map_guard_add(start, N_PAGES * PAGE, true)};
    assert_int_equal(ftruncate(fd, PAGE), 0);
    to[2 * PAGE] = 7; /* the first touch writes */
    assert_true(ctw_map_guard_hit(place[0]));
    assert_true(ctw_map_guard_hit(place[1]));
    assert_int_equal(map[2 * PAGE], 7);
    assert_int_equal(map[3 * PAGE], 0);
    assert_int_equal(map[0], 1);
    ctw_map_guard_remove(place[0]);
    unmap(fd, map, place[1]);
}

static void *read_all(void *map)
{
    int sum = 0;
    for (int i = 0; i < N_PAGES; i++)
        sum += ((const volatile char *)map)[i * PAGE];
    return (void *)(intptr_t)sum;
}

static void by_many_threads(void **state)
{
    (void)state;
    install();
    for (int round = 0; round < 50; round++) {
        enum { N = 4 };
        const volatile char *map;
        pthread_t thread[N];
        int fd = map_ones(&map);
        int place = ctw_map_guard_add((const void *)(uintptr_t)map, N_PAGES * PAGE, false);
        assert_false(ctw_map_guard_hit(place)); /* the place was another map's */
        assert_int_equal(ftruncate(fd, PAGE), 0);
        for (int i = 0; i < N; i++)
            assert_int_equal(pthread_create(&thread[i], NULL, read_all, (void *)(uintptr_t)map), 0);
        for (int i = 0; i < N; i++) {
            void *sum;
            assert_int_equal(pthread_join(thread[i], &sum), 0);
            assert_int_equal((intptr_t)sum, 1);
        }
        assert_true(ctw_map_guard_hit(place));
        unmap(fd, map, place);
    }
}

/* Ends in a child by SIGBUS. */
static void expect_death(void (*act)(void))
{
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        act();
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status));
    assert_true(WTERMSIG(status) == SIGBUS);
}

static void touch_an_unguarded_map(void)
{
    const volatile char *map;
    int fd = map_ones(&map);
    int place = ctw_map_guard_add((const void *)(uintptr_t)map, N_PAGES * PAGE, false);
    ctw_map_guard_remove(place);
    if (ftruncate(fd, PAGE) == 0)
        (void)map[10 * PAGE];
}

static void raise_it(void)
{
    (void)raise(SIGBUS);
}

static void others_are_fatal(void **state)
{
    (void)state;
    install();
    expect_death(touch_an_unguarded_map);
    expect_death(raise_it);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_missing_reads_as_zeros),
        cmocka_unit_test(other_maps_are_left_alone),
        cmocka_unit_test(a_writable_map_of_two),
        cmocka_unit_test(by_many_threads),
        cmocka_unit_test(others_are_fatal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
