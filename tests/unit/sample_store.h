/* A store in a folder of its own, and records whose values follow from their number. */
#ifndef CTW_TESTS_SAMPLE_STORE_H
#define CTW_TESTS_SAMPLE_STORE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

#define EACH(test) cmocka_unit_test_setup_teardown(test, make_dir, remove_dir)

#endif
