/* When a process counts as ended: `ctworker stop` then returns, and its files are removed. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "worker/service/life/registry.h"

static void *sleep_on(void *arg)
{
    while (pause() < 0) /* always */
        ;
    return arg;
}

/* The state of the process's first thread, as /proc shows it. */
static char state_of(pid_t pid)
{
    char path[64], text[512] = "";
    snprintf(path, sizeof(path), "/proc/%ld/stat", (long)pid);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    size_t n = fread(text, 1, sizeof(text) - 1, f);
    fclose(f);
    text[n] = '\0';
    const char *at = strrchr(text, ')');
    assert_non_null(at);
    return at[2];
}

/* As while a worker ends: its first thread is done, another is still in a driver's call. */
static void a_process_runs_until_its_last_thread_has_ended(void **state)
{
    (void)state;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        pthread_t other;
        if (pthread_create(&other, NULL, sleep_on, NULL) != 0)
            _exit(1);
        pthread_exit(NULL);
    }
    for (int i = 0; i < 20000 && state_of(child) != 'Z'; i++)
        usleep(1000);
    char first = state_of(child);
    int64_t started = ctw_process_started(child);
    kill(child, SIGKILL); /* before anything may fail: it would stay */
    for (int i = 0; i < 20000 && ctw_process_started(child) != -1; i++)
        usleep(1000);
    int64_t then = ctw_process_started(child); /* nobody has waited for it */
    int status = 0;
    pid_t reaped = waitpid(child, &status, WNOHANG);
    assert_int_equal(first, 'Z');
    assert_true(started > 0);
    assert_int_equal(then, -1);
    assert_int_equal(reaped, child);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(ctw_process_started(child), -1);
}

static void this_process_runs(void **state)
{
    (void)state;
    assert_true(ctw_process_started(getpid()) > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(this_process_runs),
        cmocka_unit_test(a_process_runs_until_its_last_thread_has_ended),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
