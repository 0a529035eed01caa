/* Files of hidden states: what is found, damage, the limit, a folder that cannot be written. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "capture.h"
#include "worker/store/hidden.h"

enum { N = 6, N_ROWS = 700, ROW_BYTES = 512, FILE_BYTES = 72 + N_ROWS * ROW_BYTES };

static char dir[] = "/tmp/ctw-hidden-XXXXXX";
static char rows[N][N_ROWS * ROW_BYTES], got[N][N_ROWS * ROW_BYTES];

static struct ctw_hidden_dir *open_dir(uint64_t limit)
{
    struct ctw_hidden_dir *d;
    struct ctw_err err;
    if (ctw_hidden_open(&d, dir, limit, &err) != CTW_OK)
        fail_msg("%s", err.msg);
    return d;
}

static struct ctw_hidden_rows record(int i, void *to)
{
    struct ctw_hidden_rows r = {.n_rows = N_ROWS, .row_bytes = ROW_BYTES, .rows = to};
    memset(r.key.bytes, 17 * i, sizeof(r.key.bytes));
    return r;
}

static void file_of(int i, char path[128])
{
    int n = snprintf(path, 128, "%s/", dir);
    for (int b = 0; b < 32; b++)
        n += snprintf(path + n, 3, "%02x", 17 * i);
    (void)snprintf(path + n, 128 - (size_t)n, ".hidden");
}

static void put(struct ctw_hidden_dir *d, int i)
{
    struct ctw_hidden_rows r = record(i, rows[i]);
    ctw_hidden_write(d, &r);
}

static bool find(struct ctw_hidden_dir *d, int i)
{
    struct ctw_hidden_rows r = record(i, got[i]);
    memset(got[i], 0, sizeof(got[i]));
    bool found = ctw_hidden_read(d, &r, 1);
    assert_true(!found || memcmp(got[i], rows[i], sizeof(rows[i])) == 0);
    return found;
}

static int remove_files(void **state)
{
    (void)state;
    for (int i = 0; i < N; i++) {
        char path[128];
        file_of(i, path);
        unlink(path);
    }
    return 0;
}

static void what_was_written_is_read(void **state)
{
    (void)state;
    struct ctw_hidden_dir *d = open_dir(1 << 30);
    struct ctw_hidden_rows several[3] = {record(2, got[2]), record(0, got[0]), record(1, got[1])};
    assert_false(find(d, 0));
    for (int i = 0; i < 3; i++)
        put(d, i);
    ctw_hidden_close(d);
    d = open_dir(1 << 30);
    assert_true(ctw_hidden_read(d, several, 3));
    assert_memory_equal(got[0], rows[0], sizeof(rows[0]));
    assert_memory_equal(got[1], rows[1], sizeof(rows[1]));
    assert_memory_equal(got[2], rows[2], sizeof(rows[2]));
    several[1] = record(3, got[3]);
    assert_false(ctw_hidden_read(d, several, 3)); /* one is missing */
    struct ctw_hidden_rows other = record(0, got[0]);
    other.n_rows--;
    assert_false(ctw_hidden_read(d, &other, 1)); /* of another shape */
    ctw_hidden_close(d);
}

/* A flipped bit anywhere, a cut file, another file's content: not found, and written anew. */
static void damage_is_seen(void **state)
{
    (void)state;
    static const off_t places[] = {0, 7, 8, 39, 40, 48, 56, 71, 72, FILE_BYTES - 1};
    struct ctw_hidden_dir *d = open_dir(1 << 30);
    char path[128], other[128];
    file_of(0, path);
    file_of(1, other);
    for (size_t i = 0; i < CTW_COUNT(places) + 2; i++) {
        put(d, 0);
        assert_true(find(d, 0));
        if (i < CTW_COUNT(places)) {
            char byte;
            int fd = open(path, O_RDWR);
            assert_true(fd >= 0);
            assert_true(pread(fd, &byte, 1, places[i]) == 1);
            byte ^= 4;
            assert_int_equal(pwrite(fd, &byte, 1, places[i]), 1);
            close(fd);
        } else if (i == CTW_COUNT(places)) {
            assert_int_equal(truncate(path, FILE_BYTES - 1), 0);
        } else {
            put(d, 1);
            assert_int_equal(rename(other, path), 0);
        }
        assert_false(find(d, 0));
    }
    ctw_hidden_close(d);
}

/* The files that were not used for the longest time go; reading counts as use. Files that are not
 * ours stay. */
static void the_limit_holds(void **state)
{
    (void)state;
    char path[128], alien[128];
    (void)snprintf(alien, sizeof(alien), "%s/notes.txt", dir);
    assert_int_equal(close(open(alien, O_CREAT | O_WRONLY, 0600)), 0);
    struct ctw_hidden_dir *d = open_dir(3 * FILE_BYTES + 100);
    for (int i = 0; i < 3; i++) {
        const struct timespec old[2] = {{.tv_sec = 100 + i}, {.tv_sec = 100 + i}};
        put(d, i);
        file_of(i, path);
        assert_int_equal(utimensat(AT_FDCWD, path, old, 0), 0);
    }
    assert_true(find(d, 0)); /* now the oldest is 1 */
    put(d, 3);
    assert_false(find(d, 1));
    assert_true(find(d, 0));
    assert_true(find(d, 2));
    assert_true(find(d, 3));
    ctw_hidden_close(d);
    d = open_dir(FILE_BYTES - 1); /* nothing fits */
    struct capture log;
    capture_start(&log, CTW_LOG_WARN);
    put(d, 4);
    capture_stop(&log);
    capture_expect(&log, "they exceed --hidden-limit");
    assert_false(find(d, 4));
    assert_int_equal(access(alien, F_OK), 0);
    unlink(alien);
    ctw_hidden_close(d);
}

/* A folder has the name of a file: the file cannot be put in place. */
static void a_file_that_cannot_be_named_is_told(void **state)
{
    (void)state;
    char path[128], draft[160];
    struct capture log;
    struct ctw_hidden_dir *d = open_dir(1 << 30);
    file_of(0, path);
    assert_int_equal(mkdir(path, 0700), 0);
    capture_start(&log, CTW_LOG_WARN);
    put(d, 0);
    capture_stop(&log);
    assert_int_equal(rmdir(path), 0);
    capture_expect(&log, "cannot write a file");
    path[strlen(path) - strlen(".hidden")] = '\0';
    (void)snprintf(draft, sizeof(draft), "%s.%ld", path, (long)getpid());
    assert_int_not_equal(access(draft, F_OK), 0);
    ctw_hidden_close(d);
}

static void a_key_tells_sequences_apart(void **state)
{
    (void)state;
    static const int32_t tokens[] = {1, 2, 3}, others[] = {1, 2, 4};
    const struct ctw_hidden_key keys[] = {ctw_hidden_key_of("id", "cpu/1", tokens, 3, 1),
                                          ctw_hidden_key_of("i", "dcpu/1", tokens, 3, 1),
                                          ctw_hidden_key_of("id", "cpu/2", tokens, 3, 1),
                                          ctw_hidden_key_of("id", "cpu/1", others, 3, 1),
                                          ctw_hidden_key_of("id", "cpu/1", tokens, 3, 2),
                                          ctw_hidden_key_of("id", "cpu/1", tokens, 2, 1)};
    const struct ctw_hidden_key again = ctw_hidden_key_of("id", "cpu/1", tokens, 3, 1);
    assert_memory_equal(&again, &keys[0], sizeof(again));
    for (size_t i = 0; i < CTW_COUNT(keys); i++)
        for (size_t k = 0; k < i; k++)
            assert_memory_not_equal(&keys[i], &keys[k], sizeof(keys[0]));
}

/* A full disk, here a limit of file sizes: nothing is kept, and no part of a file is left. */
static void a_full_disk_is_survived(void **state)
{
    (void)state;
    struct rlimit limit, small;
    struct ctw_hidden_dir *d = open_dir(1 << 30);
    put(d, 0);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    small = limit;
    small.rlim_cur = 5000;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    put(d, 1);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    assert_false(find(d, 1));
    assert_true(find(d, 0));
    put(d, 1);
    assert_true(find(d, 1));
    ctw_hidden_close(d);
}

/* A process that was killed while it wrote leaves a draft, which the next one removes. */
static void a_dead_process_leaves_nothing(void **state)
{
    (void)state;
    char path[128], mine[160], dead[160];
    file_of(0, path);
    path[strlen(path) - strlen(".hidden")] = '\0';
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    assert_int_equal(waitpid(child, NULL, 0), child);
    (void)snprintf(mine, sizeof(mine), "%s.%ld", path, (long)getpid());
    (void)snprintf(dead, sizeof(dead), "%s.%ld", path, (long)child);
    assert_int_equal(close(open(mine, O_CREAT | O_WRONLY, 0600)), 0);
    assert_int_equal(close(open(dead, O_CREAT | O_WRONLY, 0600)), 0);
    ctw_hidden_close(open_dir(1 << 30));
    assert_int_not_equal(access(dead, F_OK), 0);
    assert_int_equal(access(mine, F_OK), 0);
    unlink(mine);
}

static void a_wrong_folder_is_refused(void **state)
{
    (void)state;
    struct ctw_hidden_dir *d;
    struct ctw_err err;
    assert_int_equal(ctw_hidden_open(&d, "/nonexistent/folder", 1 << 30, &err), CTW_ENOTFOUND);
    assert_non_null(strstr(err.msg, "/nonexistent/folder"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(what_was_written_is_read, remove_files),
        cmocka_unit_test_teardown(damage_is_seen, remove_files),
        cmocka_unit_test_teardown(the_limit_holds, remove_files),
        cmocka_unit_test_teardown(a_full_disk_is_survived, remove_files),
        cmocka_unit_test(a_file_that_cannot_be_named_is_told),
        cmocka_unit_test(a_key_tells_sequences_apart),
        cmocka_unit_test(a_dead_process_leaves_nothing),
        cmocka_unit_test(a_wrong_folder_is_refused),
    };
    if (mkdtemp(dir) == NULL)
        return 1;
    for (size_t i = 0; i < sizeof(rows); i++)
        ((char *)rows)[i] = (char)(i * 2654435761u >> 13);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    return rmdir(dir) != 0 || failed;
}
