/* The result store under faults: damage, killed, concurrent and stopped processes, a full disk. */
#include "sample_store.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>

#include "base/log.h"

/* SQLite, which reads what was damaged, is not sanitized: fewer rounds show the same. */
#ifdef __SANITIZE_ADDRESS__
enum { N_FLIPS = 50, N_KILLS = 15 };
#else
enum { N_FLIPS = 150, N_KILLS = 40 };
#endif

/* ---- damage ---- */

static size_t read_file(unsigned char **bytes)
{
    FILE *f = fopen(file, "rb");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    size_t n = (size_t)ftell(f);
    rewind(f);
    *bytes = malloc(n);
    assert_int_equal(fread(*bytes, 1, n, f), n);
    fclose(f);
    return n;
}

static void write_file(const void *bytes, size_t n)
{
    remove_file();
    FILE *f = fopen(file, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    fclose(f);
}

/* A flipped bit anywhere: no wrong result, no crash; without other damage, what is lost is
 * replaced.
 */
static void a_flipped_bit_is_never_returned(void **state)
{
    (void)state;
    enum { N = 300, ROUNDS = N_FLIPS };
    unsigned char *bytes;
    struct ctw_store *s = open_store(LIMIT);
    assert_true(put_range(s, 0, N));
    ctw_store_close(s);
    size_t n = read_file(&bytes);
    int n_refused = 0, n_missing = 0, n_replaced = 0;
    unsigned seed = 12345;
    for (int i = 0; i < ROUNDS; i++) {
        seed = seed * 1103515245u + 12345u;
        size_t at = (size_t)(seed >> 4) % n;
        bytes[at] ^= (unsigned char)(1u << (i % 8));
        write_file(bytes, n);
        bytes[at] ^= (unsigned char)(1u << (i % 8));
        struct ctw_err err;
        if (ctw_store_open(&s, dir, LIMIT, &err) != CTW_OK) {
            assert_true(err.status == CTW_EFORMAT || err.status == CTW_EUNSUP ||
                        err.status == CTW_EINVAL || err.status == CTW_EIO);
            n_refused++;
            continue;
        }
        int found = count_found(s, 0, N);
        n_missing += found < N;
        if (put_range(s, 0, N) && count_found(s, 0, N) == N && found < N)
            n_replaced++;
        ctw_store_close(s);
    }
    free(bytes);
    print_message("of %d flips: %d refused, %d lost results, %d replaced\n", ROUNDS, n_refused,
                  n_missing, n_replaced);
    assert_true(n_missing > ROUNDS / 20);
    assert_true(n_replaced > n_missing / 2);
    assert_true(n_refused < ROUNDS / 4);
}

static void verify_counts_damaged_records(void **state)
{
    (void)state;
    struct ctw_err err;
    uint64_t n_good, n_bad;
    unsigned char *bytes, wanted[8];
    struct sample sample;
    struct ctw_store *s = open_store(LIMIT);
    assert_true(put_range(s, 0, 50));
    assert_int_equal(ctw_store_verify(s, &n_good, &n_bad, &err), CTW_OK);
    assert_true(n_good == 50);
    assert_true(n_bad == 0);
    ctw_store_close(s);
    fill(&sample, 17);
    memcpy(wanted, sample.logprob, sizeof(wanted));
    size_t n = read_file(&bytes);
    unsigned char *at = memmem(bytes, n, wanted, sizeof(wanted));
    assert_non_null(at);
    at[2] ^= 1;
    write_file(bytes, n);
    free(bytes);
    s = open_store(LIMIT);
    ctw_mem_fail_at(1); /* what is intact is not called damaged for want of memory */
    assert_int_equal(ctw_store_verify(s, &n_good, &n_bad, &err), CTW_OK);
    ctw_mem_fail_at(0);
    assert_true(n_good == 49);
    assert_true(n_bad == 1);
    assert_int_equal(count_found(s, 0, 50), 49);
    assert_true(put_range(s, 17, 1)); /* computed again */
    assert_int_equal(count_found(s, 0, 50), 50);
    assert_int_equal(ctw_store_verify(s, &n_good, &n_bad, &err), CTW_OK);
    assert_true(n_good == 50);
    assert_true(n_bad == 0);
    ctw_store_close(s);
}

static void expect_refused(enum ctw_status status, const char *part)
{
    struct ctw_err err;
    struct ctw_store *s = NULL;
    uint64_t n;
    assert_int_equal(ctw_store_open(&s, dir, LIMIT, &err), status);
    if (strstr(err.msg, part) == NULL)
        fail_msg("%s", err.msg);
    assert_int_equal(ctw_store_open_existing(&s, dir, &err), status);
    /* A damaged file may be removed, any other must not be touched. */
    assert_int_equal(ctw_store_clear(dir, &n, &err), status == CTW_EFORMAT ? CTW_OK : status);
    assert_int_equal(access(file, F_OK), status == CTW_EFORMAT ? -1 : 0);
}

static void what_is_no_store_is_refused(void **state)
{
    (void)state;
    unsigned char *bytes;
    struct ctw_err err;
    struct ctw_store *s = NULL;
    assert_int_equal(ctw_store_open_existing(&s, dir, &err), CTW_ENOTFOUND);
    assert_non_null(strstr(err.msg, "no result store"));
    assert_int_equal(ctw_store_open(&s, "/proc/nowhere", LIMIT, &err), CTW_EIO);
    s = open_store(LIMIT);
    assert_true(put_range(s, 0, 5));
    ctw_store_close(s);
    size_t n = read_file(&bytes);
    bytes[63] = 2; /* the header's user_version, big-endian */
    write_file(bytes, n);
    expect_refused(CTW_EUNSUP, "a newer ctworker wrote it (version 2 ");
    bytes[63] = 1;
    bytes[68] ^= 1; /* application_id */
    write_file(bytes, n);
    expect_refused(CTW_EINVAL, "another program's database");
    bytes[68] ^= 1;
    bytes[0] ^= 1;
    write_file(bytes, n);
    expect_refused(CTW_EFORMAT, "ctworker store clear");
    write_file(bytes, 0); /* as a process that was killed early leaves it */
    s = open_store(LIMIT);
    assert_true(put_range(s, 0, 5));
    assert_int_equal(count_found(s, 0, 5), 5);
    ctw_store_close(s);
    free(bytes);
}

/* ---- processes ---- */

static void pause_us(long us)
{
    struct timespec ts = {.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000};
    nanosleep(&ts, NULL);
}

/* What a process was told to be kept is found after it was killed at any instant. */
static void a_killed_process_loses_nothing(void **state)
{
    (void)state;
    enum { ROUNDS = N_KILLS, BATCH = 40 };
    struct ctw_store *s = NULL;
    struct ctw_err err;
    uint64_t n_good, n_bad;
    int n_kept = 0;
    for (int round = 0; round < ROUNDS; round++) {
        int ends[2], status, at, acknowledged = 0;
        assert_int_equal(pipe(ends), 0);
        pid_t child = fork();
        if (child == 0) {
            if (ctw_store_open(&s, dir, LIMIT, &err) != CTW_OK)
                _exit(1);
            for (at = n_kept;; at += BATCH) {
                if (!put_range(s, at, BATCH) || write(ends[1], &at, sizeof(at)) != sizeof(at))
                    _exit(1);
            }
        }
        close(ends[1]);
        /* From before it opens the store to after a few batches, however slow the machine is. */
        for (int i = 0; i < round % 3 && read(ends[0], &at, sizeof(at)) == sizeof(at); i++)
            acknowledged = at + BATCH;
        pause_us(300L * (round * round % 97));
        assert_int_equal(kill(child, SIGKILL), 0);
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status));
        while (read(ends[0], &at, sizeof(at)) == sizeof(at))
            acknowledged = at + BATCH;
        close(ends[0]);
        n_kept = acknowledged > n_kept ? acknowledged : n_kept;
        s = open_store(LIMIT);
        assert_int_equal(count_found(s, 0, n_kept), n_kept);
        ctw_store_close(s);
    }
    assert_true(n_kept >= (ROUNDS - 1) * BATCH); /* round % 3 batches a round */
    s = open_store(LIMIT);
    assert_int_equal(ctw_store_verify(s, &n_good, &n_bad, &err), CTW_OK);
    assert_true(n_bad == 0);
    assert_true(n_good >= (uint64_t)n_kept);
    assert_true(n_good % BATCH == 0);
    ctw_store_close(s);
}

/* Processes that make the same new store at the same time, and keep records that overlap. */
static void processes_share_a_store(void **state)
{
    (void)state;
    enum { PROCESSES = 4, BATCHES = 25, BATCH = 40 };
    pid_t children[PROCESSES];
    struct ctw_err err;
    uint64_t n_good, n_bad;
    for (int p = 0; p < PROCESSES; p++) {
        children[p] = fork();
        if (children[p] == 0) {
            struct ctw_store *s = NULL;
            bool ok = ctw_store_open(&s, dir, LIMIT, &err) == CTW_OK;
            for (int i = 0; ok && i < BATCHES; i++)
                ok = put_range(s, (i + p * 5) * BATCH, BATCH);
            if (!ok)
                fputs(err.msg, stderr);
            ctw_store_close(s);
            _exit(ok ? 0 : 1);
        }
    }
    for (int p = 0; p < PROCESSES; p++) {
        int status;
        assert_int_equal(waitpid(children[p], &status, 0), children[p]);
        assert_int_equal(status, 0);
    }
    int n = (BATCHES + (PROCESSES - 1) * 5) * BATCH;
    struct ctw_store_stats stats;
    struct ctw_store *s = open_store(LIMIT);
    assert_int_equal(count_found(s, 0, n + 10), n);
    ctw_store_get_stats(s, &stats);
    assert_int_equal(stats.entries, n);
    assert_int_equal(ctw_store_verify(s, &n_good, &n_bad, &err), CTW_OK);
    assert_true(n_good == (uint64_t)n);
    assert_true(n_bad == 0);
    ctw_store_close(s);
}

/* A process that stopped while it was writing is waited for, but not for ever. */
static void a_store_that_is_held_is_given_up(void **state)
{
    (void)state;
    struct ctw_store *a = open_store(LIMIT), *b = open_store(LIMIT);
    assert_true(put_range(b, 0, 5));
    sqlite3_busy_timeout(b->db, 50);
    assert_int_equal(ctw_store_run(a, CTW_STORE_BEGIN_WRITE, NULL), SQLITE_OK);
    assert_false(put_range(b, 5, 5));
    assert_int_equal(count_found(b, 0, 10), 5);
    assert_int_equal(ctw_store_run(a, CTW_STORE_ROLLBACK, NULL), SQLITE_OK);
    assert_false(put_range(b, 5, 5)); /* not tried again at once */
    b->write_failed_ms = 1;
    assert_true(put_range(b, 5, 5));
    assert_int_equal(count_found(b, 0, 10), 10);
    ctw_store_close(a);
    ctw_store_close(b);
}

/* ---- a full disk ---- */

/* A limit on the size of files: what cannot be written is not kept, all else is found. */
static void a_full_disk_loses_only_new_results(void **state)
{
    (void)state;
    struct ctw_store_stats stats;
    struct ctw_err err;
    uint64_t n_good, n_bad;
    struct rlimit before, full = {.rlim_cur = 1 << 20};
    struct ctw_store *s = open_store(LIMIT);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    full.rlim_max = before.rlim_max;
    assert_true(put_range(s, 0, 1000));
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &full), 0);
    int n = 1000;
    for (; put_range(s, n, 1000); n += 1000)
        assert_true(n < 100000);
    int64_t failed_ms = s->write_failed_ms;
    assert_true(failed_ms != 0);
    assert_false(put_range(s, n, 1000)); /* not tried again at once */
    assert_int_equal(s->write_failed_ms, failed_ms);
    assert_int_equal(count_found(s, 0, n + 1000), n);
    s->write_failed_ms = 1;
    assert_false(put_range(s, n, 1000)); /* tried again */
    assert_int_equal(count_found(s, 0, n + 1000), n);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    s->write_failed_ms = 1;
    assert_true(put_range(s, n, 1000));
    assert_int_equal(count_found(s, 0, n + 1000), n + 1000);
    ctw_store_get_stats(s, &stats);
    assert_int_equal(stats.lost, 3000);
    assert_int_equal(ctw_store_verify(s, &n_good, &n_bad, &err), CTW_OK);
    assert_true(n_good == (uint64_t)n + 1000);
    assert_true(n_bad == 0);
    ctw_store_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        EACH(a_flipped_bit_is_never_returned),
        EACH(verify_counts_damaged_records),
        EACH(what_is_no_store_is_refused),
        EACH(a_killed_process_loses_nothing),
        EACH(processes_share_a_store),
        EACH(a_store_that_is_held_is_given_up),
        EACH(a_full_disk_loses_only_new_results),
    };
    ctw_log_set_level(CTW_LOG_ERROR); /* each flipped bit has a warning */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
