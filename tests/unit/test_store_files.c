/* The result store whose files are removed, replaced, truncated or overwritten while it is in use:
 * the process lives, what is kept afterwards survives, and no wrong number is found. */
#include "sample_store.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#include "base/log.h"
#include "base/map_guard.h"

enum { N = 200 };

static char wal[96], shm[96], copy[96];

/* cmocka has just put its own handler there. */
static void begin(void)
{
    (void)signal(SIGBUS, SIG_DFL);
    ctw_map_guard_install();
    snprintf(wal, sizeof(wal), "%s-wal", file);
    snprintf(shm, sizeof(shm), "%s-shm", file);
    snprintf(copy, sizeof(copy), "%s-journal", file); /* remove_dir() removes it */
}

static void cut(const char *path, off_t bytes)
{
    assert_int_equal(truncate(path, bytes), 0);
}

static off_t size_of(const char *path)
{
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    return st.st_size;
}

static void write_over(const char *path, off_t at, size_t bytes)
{
    char text[4096];
    memset(text, 'x', sizeof(text));
    int fd = open(path, O_WRONLY | O_CREAT, 0600);
    assert_true(fd >= 0);
    for (size_t done = 0; done < bytes; done += sizeof(text))
        assert_int_equal(pwrite(fd, text, sizeof(text), at + (off_t)done), sizeof(text));
    assert_int_equal(close(fd), 0);
}

static void remove_db(void)
{
    assert_int_equal(unlink(file), 0);
}

static void remove_wal(void)
{
    assert_int_equal(unlink(wal), 0);
}

static void remove_shm(void)
{
    assert_int_equal(unlink(shm), 0);
}

static void remove_folder(void)
{
    remove_file();
    assert_int_equal(rmdir(dir), 0);
}

static void move_db(void)
{
    assert_int_equal(rename(file, copy), 0);
}

static void replace_db(void)
{
    write_over(copy, 0, 4096);
    assert_int_equal(truncate(copy, 0), 0); /* an empty file is a new database */
    assert_int_equal(rename(copy, file), 0);
}

static void empty_db(void)
{
    cut(file, 0);
}

static void empty_wal(void)
{
    cut(wal, 0);
}

static void halve_wal(void)
{
    cut(wal, size_of(wal) / 2);
}

static void empty_shm(void)
{
    cut(shm, 0);
}

static void cut_shm(void)
{
    cut(shm, 4096);
}

static const struct harm {
    const char *name;
    void (*act)(void);
    const char *says;
    int n_survive; /* of the N records before it, at least */
} harms[] = {
    {"remove the database", remove_db, "results.sqlite was removed while in use", 0},
    {"remove the log", remove_wal, "results.sqlite-wal was removed while in use", N},
    {"remove -shm", remove_shm, "results.sqlite-shm was removed while in use", N},
    {"remove the folder", remove_folder, "results.sqlite was removed while in use", 0},
    {"move the database", move_db, "results.sqlite was removed while in use", 0},
    {"replace the database", replace_db, "results.sqlite was replaced while in use", 0},
    {"empty the database", empty_db, "results.sqlite was overwritten while in use", 0},
    {"empty the log", empty_wal, "results.sqlite-wal was truncated while in use", 0},
    {"halve the log", halve_wal, "results.sqlite-wal was truncated while in use", 0},
    {"empty -shm", empty_shm, "results.sqlite-shm was truncated while in use", N},
    {"cut -shm", cut_shm, "results.sqlite-shm was truncated while in use", N},
};

/* The log of what fn does. */
static char *logged(void (*fn)(void *), void *arg)
{
    static char text[4096];
    int saved = dup(STDERR_FILENO), pair[2];
    assert_int_equal(pipe(pair), 0);
    assert_int_equal(dup2(pair[1], STDERR_FILENO), STDERR_FILENO);
    fn(arg);
    assert_int_equal(dup2(saved, STDERR_FILENO), STDERR_FILENO);
    close(pair[1]);
    close(saved);
    ssize_t n = read(pair[0], text, sizeof(text) - 1);
    close(pair[0]);
    text[n > 0 ? n : 0] = '\0';
    return text;
}

static int count_lines(const char *text)
{
    int n = 0;
    for (; (text = strchr(text, '\n')) != NULL; text++)
        n++;
    return n;
}

struct use {
    struct ctw_store *store;
    bool finds_first, kept;
};

static void use(void *arg)
{
    struct use *u = arg;
    if (u->finds_first)
        (void)count_found(u->store, 0, 5);
    u->kept = put_range(u->store, N, N);
    u->kept = put_range(u->store, 2 * N, N) && u->kept;
}

/* What is kept afterwards is in the files that the next process opens, also after a kill. */
static void kept_is_found(const struct harm *h, bool finds_first, bool is_killed)
{
    struct ctw_store_stats stats;
    struct ctw_err err;
    uint64_t n_good, n_bad;
    struct use u = {.store = open_store(LIMIT), .finds_first = finds_first};
    assert_true(put_range(u.store, 0, N));
    h->act();
    const char *text = logged(use, &u);
    if (strstr(text, h->says) == NULL || count_lines(text) != 1)
        fail_msg("%s: \"%s\", expected \"%s\"", h->name, text, h->says);
    ctw_store_get_stats(u.store, &stats);
    assert_true(u.kept);
    assert_true(stats.kept == 3 * N);
    assert_true(stats.lost == 0);
    pid_t pid = is_killed ? fork() : -1;
    if (pid == 0) { /* another process finds it while this one has it open */
        struct ctw_store *other = open_store(LIMIT);
        _exit(count_found(other, N, 2 * N) == 2 * N ? 0 : 1);
    }
    int status = 0;
    if (is_killed)
        assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    ctw_store_close(u.store);
    struct ctw_store *s = open_store(LIMIT);
    if (count_found(s, N, 2 * N) != 2 * N)
        fail_msg("%s: %d of %d are found", h->name, count_found(s, N, 2 * N), 2 * N);
    assert_in_range(count_found(s, 0, N), h->n_survive, N);
    assert_int_equal(ctw_store_verify(s, &n_good, &n_bad, &err), CTW_OK);
    assert_int_equal(n_bad, 0);
    ctw_store_close(s);
    remove_file();
}

static void what_is_kept_afterwards_survives(void **state)
{
    (void)state;
    begin();
    for (size_t i = 0; i < CTW_COUNT(harms); i++)
        for (int how = 0; how < 4; how++)
            kept_is_found(&harms[i], (how & 1) != 0, (how & 2) != 0);
}

/* A store that cannot be made again: results are lost, counted, and said once; then it can. */
static void what_cannot_be_kept_is_lost(void **state)
{
    (void)state;
    begin();
    struct ctw_store_stats stats;
    struct use u = {.store = open_store(LIMIT)};
    assert_true(put_range(u.store, 0, N));
    remove_folder();
    int fd = open(dir, O_WRONLY | O_CREAT, 0600); /* a file has the folder's name */
    assert_true(fd >= 0);
    const char *text = logged(use, &u);
    assert_false(u.kept);
    assert_non_null(strstr(text, "was removed while in use"));
    assert_non_null(strstr(text, "a file has its name. Scoring goes on without keeping results"));
    assert_int_equal(count_lines(text), 2);
    assert_int_equal(count_found(u.store, 0, 3 * N), 0);
    ctw_store_get_stats(u.store, &stats);
    assert_true(stats.kept == N);
    assert_true(stats.lost == 2 * N);
    assert_int_equal(close(fd) + unlink(dir), 0);
    assert_int_equal(count_found(u.store, 0, 3 * N), 0);
    assert_false(put_range(u.store, 0, N)); /* not tried again at once */
    u.store->write_failed_ms = 1;
    assert_true(put_range(u.store, 0, N));
    assert_int_equal(count_found(u.store, 0, 2 * N), N);
    ctw_store_close(u.store);
}

/* Garbage over the database: refused by name, and never a wrong number. */
static void an_overwritten_database_is_given_up(void **state)
{
    (void)state;
    begin();
    struct use u = {.store = open_store(LIMIT)};
    assert_true(put_range(u.store, 0, N));
    write_over(file, 0, (size_t)size_of(file));
    const char *text = logged(use, &u);
    assert_false(u.kept);
    assert_non_null(strstr(text, "results.sqlite was overwritten while in use"));
    assert_non_null(strstr(text, "store clear"));
    ctw_store_close(u.store);
}

/* What a command reads while the files change is neither the store nor damage. */
static void a_command_says_to_try_again(void **state)
{
    (void)state;
    begin();
    struct ctw_err err = {0};
    uint64_t n_good, n_bad;
    struct ctw_store *s = open_store(LIMIT);
    assert_true(put_range(s, 0, N));
    empty_shm();
    assert_int_equal(ctw_store_verify(s, &n_good, &n_bad, &err), CTW_EIO);
    assert_non_null(
        strstr(err.msg, "results.sqlite-shm was truncated while it was read: try again"));
    ctw_store_close(s);
    s = open_store(LIMIT);
    assert_int_equal(ctw_store_verify(s, &n_good, &n_bad, &err), CTW_OK);
    assert_true(n_good == N);
    assert_true(n_bad == 0);
    ctw_store_close(s);
}

/* Several processes write while -shm is truncated again and again: none dies, nothing is wrong, and
 * what was kept after the last time is found. */
static void processes_that_share_it_live(void **state)
{
    (void)state;
    begin();
    enum { PROCESSES = 3, BATCHES = 60, BATCH = 20 };
    const struct timespec pause = {.tv_nsec = 7000000};
    pid_t children[PROCESSES];
    ctw_store_close(open_store(LIMIT));
    for (int p = 0; p < PROCESSES; p++) {
        children[p] = fork();
        if (children[p] != 0)
            continue;
        ctw_log_set_level(CTW_LOG_ERROR);
        struct ctw_store *s = open_store(LIMIT);
        int first = p * BATCHES * BATCH;
        for (int i = 0; i < BATCHES; i++) {
            (void)put_range(s, first + i * BATCH, BATCH);
            (void)count_found(s, first, BATCH);
            nanosleep(&pause, NULL);
        }
        s->write_failed_ms = s->write_failed_ms != 0; /* tried again at once */
        bool kept = put_range(s, 100000 + p * BATCH, BATCH);
        ctw_store_close(s);
        _exit(kept ? 0 : 1);
    }
    for (int i = 0; i < 20; i++) {
        nanosleep(&pause, NULL);
        (void)!truncate(shm, 0);
    }
    for (int p = 0; p < PROCESSES; p++) {
        int status;
        assert_int_equal(waitpid(children[p], &status, 0), children[p]);
        assert_int_equal(status, 0);
    }
    struct ctw_err err;
    uint64_t n_good, n_bad;
    struct ctw_store *s = open_store(LIMIT);
    assert_int_equal(count_found(s, 100000, PROCESSES * BATCH), PROCESSES * BATCH);
    (void)count_found(s, 0, PROCESSES * BATCHES * BATCH); /* checks what it finds */
    if (ctw_store_verify(s, &n_good, &n_bad, &err) != CTW_OK)
        fail_msg("%s", err.msg);
    assert_int_equal(n_bad, 0);
    ctw_store_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        EACH(what_is_kept_afterwards_survives),    EACH(what_cannot_be_kept_is_lost),
        EACH(an_overwritten_database_is_given_up), EACH(a_command_says_to_try_again),
        EACH(processes_that_share_it_live),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
