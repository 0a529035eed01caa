/* The result store: what is found, limits, damage, killed and concurrent processes, a full disk. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "worker/store/database.h"

enum { N_TARGETS = 5, LIMIT = 64 << 20 };

static const char identity[] = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
static char dir[64], file[80];

static int make_dir(void **state)
{
    (void)state;
    snprintf(dir, sizeof(dir), "/tmp/ctw-store-XXXXXX");
    assert_non_null(mkdtemp(dir));
    snprintf(file, sizeof(file), "%s/results.sqlite", dir);
    return 0;
}

static void remove_file(void)
{
    const char *const ends[] = {"", "-wal", "-shm", "-journal"};
    for (size_t i = 0; i < CTW_COUNT(ends); i++) {
        char path[96];
        snprintf(path, sizeof(path), "%s%s", file, ends[i]);
        unlink(path);
    }
}

static int remove_dir(void **state)
{
    (void)state;
    remove_file();
    return rmdir(dir);
}

static struct ctw_store *open_store(uint64_t limit)
{
    struct ctw_store *s = NULL;
    struct ctw_err err;
    if (ctw_store_open(&s, dir, limit, &err) != CTW_OK)
        fail_msg("%s", err.msg);
    return s;
}

/* Record i: n targets, whose values follow from i. */
struct sample {
    struct ctw_store_record record;
    float logprob[N_TARGETS];
    int32_t greedy[N_TARGETS];
};

static void fill(struct sample *s, int i)
{
    int32_t tokens[8] = {i, i >> 8, i * 7, 4, 5, 6, 7, 8};
    s->record = (struct ctw_store_record){.key = ctw_store_key_of(tokens, 8, 8 - N_TARGETS, 0),
                                          .n = N_TARGETS};
    ctw_store_add_column(&s->record, s->logprob, sizeof(s->logprob));
    ctw_store_add_column(&s->record, s->greedy, sizeof(s->greedy));
    for (int k = 0; k < N_TARGETS; k++) {
        s->logprob[k] = -0.001f * (float)(i + k);
        s->greedy[k] = i * 10 + k;
    }
}

static const struct ctw_store_source source_a = {{identity, "cpu-c/float32/3", "outline"},
                                                 {"", "", ""}};

static bool put_range(struct ctw_store *s, int first, int n)
{
    struct sample *samples = calloc((size_t)n, sizeof(*samples));
    struct ctw_store_record *records = calloc((size_t)n, sizeof(*records));
    for (int i = 0; i < n; i++) {
        fill(&samples[i], first + i);
        records[i] = samples[i].record;
    }
    bool kept = ctw_store_put(s, &source_a, records, n);
    free(records);
    free(samples);
    return kept;
}

static bool has(struct ctw_store *s, int i)
{
    struct sample expected, got;
    fill(&expected, i);
    fill(&got, i);
    memset(got.logprob, 0, sizeof(got.logprob));
    memset(got.greedy, 0, sizeof(got.greedy));
    int64_t n = ctw_store_find(s, &source_a, &got.record, 1);
    assert_int_equal(n, got.record.found);
    if (n == 0)
        return false;
    /* Whatever is found is right. */
    assert_memory_equal(got.logprob, expected.logprob, sizeof(got.logprob));
    assert_memory_equal(got.greedy, expected.greedy, sizeof(got.greedy));
    return true;
}

static int count_found(struct ctw_store *s, int first, int n)
{
    int found = 0;
    for (int i = first; i < first + n; i++)
        found += has(s, i);
    return found;
}

/* ---- keys and records ---- */

static void kept_results_are_found(void **state)
{
    (void)state;
    struct ctw_store_stats stats;
    struct ctw_store *s = open_store(LIMIT);
    assert_int_equal(count_found(s, 0, 10), 0);
    assert_true(put_range(s, 0, 100));
    assert_true(put_range(s, 50, 100)); /* half of them again */
    assert_int_equal(count_found(s, 0, 160), 150);
    ctw_store_get_stats(s, &stats);
    assert_int_equal(stats.entries, 150);
    assert_int_equal(stats.hits, 150);
    assert_int_equal(stats.kept, 200);
    assert_int_equal(stats.lost, 0);
    ctw_store_close(s);
    s = open_store(LIMIT);
    assert_int_equal(count_found(s, 0, 160), 150);
    ctw_store_close(s);
}

static void a_key_covers_all_that_a_score_depends_on(void **state)
{
    (void)state;
    const int32_t tokens[6] = {1, 2, 3, 4, 5, 6}, others[6] = {1, 2, 3, 4, 5, 7};
    const struct ctw_store_key keys[] = {
        ctw_store_key_of(tokens, 5, 2, 0),     ctw_store_key_of(tokens, 5, 3, 0),
        ctw_store_key_of(tokens, 6, 2, 0),     ctw_store_key_of(others, 6, 2, 0),
        ctw_store_key_of(tokens + 1, 5, 2, 0), ctw_store_key_of(tokens, 2, 5, 0),
        ctw_store_key_of(tokens, 5, 2, 7)};
    for (size_t i = 0; i < CTW_COUNT(keys); i++) {
        for (size_t k = 0; k < i; k++)
            assert_memory_not_equal(&keys[i], &keys[k], sizeof(keys[0]));
    }
    struct ctw_store_key again = ctw_store_key_of(tokens, 5, 2, 0);
    assert_memory_equal(&again, &keys[0], sizeof(again));

    /* Equal sequences of sources that differ in one part; the outline only says what may be there.
     */
    const struct ctw_store_source sources[] = {{{"ab", "c", "o"}, {"", "", ""}},
                                               {{"a", "bc", "o"}, {"", "", ""}},
                                               {{"ab", "d", "o"}, {"", "", ""}},
                                               {{"ab", "c", "o"}, {"ab", "c", "o"}},
                                               {{"ab", "c", "o"}, {"ab", "d", "o"}}};
    struct ctw_store *s = open_store(LIMIT);
    struct sample sample;
    for (size_t i = 0; i < CTW_COUNT(sources); i++) {
        fill(&sample, 1);
        assert_false(ctw_store_may_have(s, &sources[i]));
        assert_int_equal(ctw_store_find(s, &sources[i], &sample.record, 1), 0);
        assert_true(ctw_store_put(s, &sources[i], &sample.record, 1));
        assert_int_equal(ctw_store_find(s, &sources[i], &sample.record, 1), 1);
        assert_true(ctw_store_may_have(s, &sources[i]));
    }
    const struct ctw_store_source unknown = {{"", "c", "o"}, {"", "", ""}};
    const struct ctw_store_source different = {{"", "c", "p"}, {"", "", ""}};
    assert_true(ctw_store_may_have(s, &unknown));
    assert_false(ctw_store_may_have(s, &different));
    ctw_store_close(s);
}

/* ---- the limit ---- */

static void the_oldest_go_first(void **state)
{
    (void)state;
    enum { SMALL = CTW_STORE_MIN_BYTES };
    struct ctw_store_stats stats;
    struct ctw_store *s = open_store(SMALL);
    struct sample sample;
    const struct ctw_store_source first = {{"b", "c", "o"}, {"", "", ""}};
    int n = 0;
    fill(&sample, 1);
    assert_true(ctw_store_put(s, &first, &sample.record, 1));
    for (; n < 30000; n += 500) {
        assert_true(put_range(s, n, 500));
        ctw_store_get_stats(s, &stats);
        assert_true(stats.bytes <= SMALL);
        assert_true(has(s, n + 499));
    }
    assert_true(stats.entries > 2000 && stats.entries < 15000);
    /* What is there is one range of the last. */
    int oldest = n - (int)stats.entries;
    assert_int_equal(count_found(s, oldest, (int)stats.entries), (int)stats.entries);
    assert_int_equal(count_found(s, 0, oldest), 0);
    assert_false(ctw_store_may_have(s, &first)); /* it went with its last record */
    ctw_store_close(s);
    struct stat st;
    assert_int_equal(stat(file, &st), 0);
    assert_true(st.st_size <= SMALL + (256 << 10));
}

static void a_lower_limit_shrinks_the_file(void **state)
{
    (void)state;
    struct ctw_store_stats stats;
    struct stat st;
    struct ctw_store *s = open_store(LIMIT);
    assert_true(put_range(s, 0, 30000));
    ctw_store_close(s);
    assert_int_equal(stat(file, &st), 0);
    assert_true(st.st_size > 3 << 20);
    s = open_store(CTW_STORE_MIN_BYTES);
    ctw_store_get_stats(s, &stats);
    assert_true(stats.bytes <= CTW_STORE_MIN_BYTES && stats.entries > 1000);
    assert_int_equal(count_found(s, 30000 - 1000, 1000), 1000);
    ctw_store_close(s);
    assert_int_equal(stat(file, &st), 0);
    assert_true(st.st_size <= CTW_STORE_MIN_BYTES + (256 << 10));
}

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
    enum { N = 300, ROUNDS = 150 };
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
    assert_true(n_missing > ROUNDS / 20 && n_replaced > n_missing / 2);
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
    assert_true(n_good == 50 && n_bad == 0);
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
    assert_true(n_good == 49 && n_bad == 1);
    assert_int_equal(count_found(s, 0, 50), 49);
    assert_true(put_range(s, 17, 1)); /* computed again */
    assert_int_equal(count_found(s, 0, 50), 50);
    assert_int_equal(ctw_store_verify(s, &n_good, &n_bad, &err), CTW_OK);
    assert_true(n_good == 50 && n_bad == 0);
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
    enum { ROUNDS = 40, BATCH = 40 };
    struct ctw_store *s = NULL;
    struct ctw_err err;
    uint64_t n_good, n_bad;
    int n_kept = 0;
    for (int round = 0; round < ROUNDS; round++) {
        int ends[2], acknowledged = 0;
        assert_int_equal(pipe(ends), 0);
        pid_t child = fork();
        if (child == 0) {
            if (ctw_store_open(&s, dir, LIMIT, &err) != CTW_OK)
                _exit(1);
            for (int at = n_kept;; at += BATCH) {
                if (!put_range(s, at, BATCH) || write(ends[1], &at, sizeof(at)) != sizeof(at))
                    _exit(1);
            }
        }
        close(ends[1]);
        pause_us(300L * (round * round % 97)); /* from before it opens the store */
        assert_int_equal(kill(child, SIGKILL), 0);
        int status, at;
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
    assert_true(n_kept > ROUNDS * BATCH / 2);
    s = open_store(LIMIT);
    assert_int_equal(ctw_store_verify(s, &n_good, &n_bad, &err), CTW_OK);
    assert_true(n_bad == 0 && n_good >= (uint64_t)n_kept && n_good % BATCH == 0);
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
    assert_true(n_good == (uint64_t)n && n_bad == 0);
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
    assert_true(n_good == (uint64_t)n + 1000 && n_bad == 0);
    ctw_store_close(s);
}

/* ---- list, clear, memory ---- */

static void add_up(void *sums, const struct ctw_store_listed *l)
{
    uint64_t *sum = sums;
    assert_string_equal(l->identity, identity);
    assert_true(strncmp(l->numerics, "cpu-", 4) == 0 && l->changed_s > 1700000000);
    sum[0]++;
    sum[1] += l->entries;
    sum[2] += l->targets;
}

static void list_and_clear(void **state)
{
    (void)state;
    struct ctw_err err;
    struct sample sample;
    uint64_t sums[3] = {0}, n;
    const struct ctw_store_source other = {{identity, "cpu-avx2/float32/3", "outline"},
                                           {"", "", ""}};
    struct ctw_store *s = open_store(LIMIT);
    assert_true(put_range(s, 0, 20));
    fill(&sample, 3);
    assert_true(ctw_store_put(s, &other, &sample.record, 1));
    assert_int_equal(ctw_store_list(s, add_up, sums, &err), CTW_OK);
    assert_true(sums[0] == 2 && sums[1] == 21 && sums[2] == 21 * N_TARGETS);
    assert_int_equal(ctw_store_clear(dir, &n, &err), CTW_OK); /* while s is open */
    assert_int_equal(n, 21);
    assert_int_equal(count_found(s, 0, 20), 0);
    assert_true(put_range(s, 0, 20));
    assert_int_equal(count_found(s, 0, 20), 20);
    memset(sums, 0, sizeof(sums));
    assert_int_equal(ctw_store_list(s, add_up, sums, &err), CTW_OK);
    assert_true(sums[0] == 1 && sums[1] == 20);
    ctw_store_close(s);
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    struct ctw_store *s = NULL;
    struct ctw_err err;
    for (int64_t n = 1;; n++) {
        int64_t before = ctw_mem_count();
        ctw_mem_fail_at(n);
        enum ctw_status st = ctw_store_open(&s, dir, LIMIT, &err);
        bool kept = st == CTW_OK && put_range(s, 0, 5);
        int found = st == CTW_OK ? count_found(s, 0, 5) : 0;
        ctw_mem_fail_at(0);
        assert_true(st == CTW_OK || st == CTW_ENOMEM);
        assert_true(!kept || found == 5);
        if (st == CTW_OK)
            ctw_store_close(s);
        if (ctw_mem_count() - before < n) {
            assert_true(kept);
            return;
        }
        remove_file();
    }
}

int main(void)
{
#define EACH(test) cmocka_unit_test_setup_teardown(test, make_dir, remove_dir)
    const struct CMUnitTest tests[] = {
        EACH(kept_results_are_found),
        EACH(a_key_covers_all_that_a_score_depends_on),
        EACH(the_oldest_go_first),
        EACH(a_lower_limit_shrinks_the_file),
        EACH(a_flipped_bit_is_never_returned),
        EACH(verify_counts_damaged_records),
        EACH(what_is_no_store_is_refused),
        EACH(a_killed_process_loses_nothing),
        EACH(processes_share_a_store),
        EACH(a_store_that_is_held_is_given_up),
        EACH(a_full_disk_loses_only_new_results),
        EACH(list_and_clear),
        EACH(every_allocation_may_fail),
    };
    ctw_log_set_level(CTW_LOG_ERROR); /* each flipped bit has a warning */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
