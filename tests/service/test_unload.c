/* Unloads a model, loads another model in its place, or puts another job in the place of a job,
 * while a part is being read, which happens without the queue's lock. ctw_job_part_create() is
 * wrapped (see CMakeLists.txt) to do this at exactly that time, and ctw_job_part_digest() to count
 * its calls. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "ask.h"
#include "base/clock.h"
#include "fake_engine.h"
#include "worker/service/scorer/scorer.h"

static struct ctw_queue queue;
static struct ctw_scorer scorer;
static pthread_t thread;
static void (*meanwhile)(void);
static int n_digests;

enum ctw_status __real_ctw_job_part_create(struct ctw_job_part **out,
                                           const struct ctw_items_map *items,
                                           const struct ctw_job_head *head, int64_t first_item,
                                           int64_t *bad_item, struct ctw_err *err);
enum ctw_status __wrap_ctw_job_part_create(struct ctw_job_part **out,
                                           const struct ctw_items_map *items,
                                           const struct ctw_job_head *head, int64_t first_item,
                                           int64_t *bad_item, struct ctw_err *err);

enum ctw_status __wrap_ctw_job_part_create(struct ctw_job_part **out,
                                           const struct ctw_items_map *items,
                                           const struct ctw_job_head *head, int64_t first_item,
                                           int64_t *bad_item, struct ctw_err *err)
{
    void (*act)(void) = meanwhile;
    meanwhile = NULL;
    if (act != NULL)
        act();
    return __real_ctw_job_part_create(out, items, head, first_item, bad_item, err);
}

uint64_t __real_ctw_job_part_digest(const struct ctw_submit *submit);
uint64_t __wrap_ctw_job_part_digest(const struct ctw_submit *submit);

uint64_t __wrap_ctw_job_part_digest(const struct ctw_submit *submit)
{
    n_digests++;
    return __real_ctw_job_part_digest(submit);
}

static void *scorer_main(void *arg)
{
    ctw_scorer_run(arg);
    return NULL;
}

/* Waits until there are n models and none is loading. */
static void wait_for_models(int n)
{
    for (int64_t end = ctw_now_ms() + 60000;;) {
        const struct timespec ts = {.tv_nsec = 1000000};
        pthread_mutex_lock(&queue.lock);
        bool settled = queue.models.n == n;
        for (int i = 0; i < queue.models.n; i++)
            settled = settled && queue.models.slots[i]->state == CTW_MODEL_READY;
        pthread_mutex_unlock(&queue.lock);
        if (settled)
            return;
        assert_true(ctw_now_ms() < end);
        nanosleep(&ts, NULL);
    }
}

static void load(void)
{
    char name[CTW_MODEL_NAME_MAX];
    int retry_ms;
    struct ctw_err err;
    assert_int_equal(ctw_queue_load(&queue, "/models/fake", NULL, NULL, name, &retry_ms, &err),
                     CTW_OK);
    wait_for_models(1);
}

static void unload(void)
{
    int retry_ms;
    struct ctw_err err;
    assert_int_equal(ctw_queue_unload(&queue, "fake", &retry_ms, &err), CTW_OK);
    wait_for_models(0);
}

static void load_again(void)
{
    unload();
    load();
}

static void load_another(void)
{
    load_again();
    pthread_mutex_lock(&queue.lock);
    queue.models.slots[0]->info.numerics = "fake-c/bfloat16/1";
    pthread_mutex_unlock(&queue.lock);
}

static struct ctw_contact contact(void)
{
    return (struct ctw_contact){.pipe = 1, .now_ms = ctw_now_ms()};
}

static struct ctw_span id_of(const char id[CTW_IPC_JOB_ID_BYTES + 1])
{
    return (struct ctw_span){.data = id, .n = CTW_IPC_JOB_ID_BYTES};
}

static enum ctw_status submit_part(const char id[CTW_IPC_JOB_ID_BYTES + 1], uint64_t part,
                                   int *retry_ms, struct ctw_err *err)
{
    static const int32_t tokens[] = {1, 2, 3}, n_context[] = {2}, n_continuation[] = {1};
    const struct ctw_contact c = contact();
    const struct ctw_submit s = {
        .has = {.head = part == 0},
        .job = id_of(id),
        .part = part,
        .head = {.kind = ctw_span_of("loglikelihood"), .model = ctw_span_of("fake")},
        .items = {.has = {.n_context = true, .n_continuation = true},
                  .tokens = {(const char *)tokens, sizeof(tokens)},
                  .n_context = {(const char *)n_context, sizeof(n_context)},
                  .n_continuation = {(const char *)n_continuation, sizeof(n_continuation)}}};
    struct ctw_submit_reply reply;
    int64_t bad_item;
    return ask_submit(&queue, &c, &s, &reply, &bad_item, retry_ms, err);
}

static enum ctw_status submit(const char id[CTW_IPC_JOB_ID_BYTES + 1], int *retry_ms,
                              struct ctw_err *err)
{
    return submit_part(id, 0, retry_ms, err);
}

static void no_job_came_of_it(void)
{
    pthread_mutex_lock(&queue.lock);
    assert_int_equal(queue.jobs.n, 0);
    assert_int_equal(queue.jobs.bytes, 0);
    pthread_mutex_unlock(&queue.lock);
}

static void unloaded(void **state)
{
    (void)state;
    struct ctw_err err;
    int retry_ms;
    load();
    meanwhile = unload;
    assert_int_equal(submit("unloaded--------", &retry_ms, &err), CTW_EBUSY);
    assert_null(meanwhile);
    assert_non_null(strstr(err.msg, "model fake was unloaded"));
    assert_true(retry_ms > 0);
    no_job_came_of_it();
    assert_int_equal(submit("unloaded--------", &retry_ms, &err), CTW_ENOTFOUND);
    assert_int_equal(retry_ms, 0);
}

static void another_in_its_place(void **state)
{
    (void)state;
    struct ctw_err err;
    int retry_ms;
    load();
    meanwhile = load_another;
    assert_int_equal(submit("another---------", &retry_ms, &err), CTW_EBUSY);
    assert_null(meanwhile);
    assert_true(retry_ms > 0);
    no_job_came_of_it();
    assert_int_equal(submit("another---------", &retry_ms, &err), CTW_OK);
}

static void the_same_again(void **state)
{
    (void)state;
    struct ctw_err err;
    int retry_ms;
    load();
    meanwhile = load_again;
    assert_int_equal(submit("same------------", &retry_ms, &err), CTW_OK);
    assert_null(meanwhile);
}

static const char replaced[] = "replaced--------";

/* By the same client, over another connection; the new job's tokens may belong to another model. */
static void replace_job(void)
{
    static const int32_t tokens[] = {1, 2, 3}, n_tokens[] = {3};
    const struct ctw_contact c = contact();
    const struct ctw_submit s = {.has = {.head = true},
                                 .job = id_of(replaced),
                                 .head = {.has = {.prefix_token = true},
                                          .kind = ctw_span_of("loglikelihood_rolling"),
                                          .prefix_token = 1},
                                 .items = {.has = {.n_tokens = true},
                                           .tokens = {(const char *)tokens, sizeof(tokens)},
                                           .n_tokens = {(const char *)n_tokens, sizeof(n_tokens)}}};
    struct ctw_submit_reply reply;
    struct ctw_err err;
    int64_t bad_item;
    int retry_ms;
    assert_int_equal(ask_job(ctw_handle_cancel, &queue, &c, id_of(replaced), &err), CTW_OK);
    assert_int_equal(ask_job(ctw_handle_release, &queue, &c, id_of(replaced), &err), CTW_OK);
    assert_int_equal(ask_submit(&queue, &c, &s, &reply, &bad_item, &retry_ms, &err), CTW_OK);
}

/* The part was checked against the head of the job that is gone, and does not fit the new one. */
static void another_job_in_its_place(void **state)
{
    (void)state;
    struct ctw_err err;
    int retry_ms;
    load();
    assert_int_equal(submit(replaced, &retry_ms, &err), CTW_OK);
    meanwhile = replace_job;
    assert_int_equal(submit_part(replaced, 1, &retry_ms, &err), CTW_ENOTFOUND);
    assert_null(meanwhile);
    pthread_mutex_lock(&queue.lock);
    assert_int_equal(queue.jobs.n, 1);
    assert_int_equal(queue.jobs.first->input.n_parts, 1);
    assert_int_equal(queue.jobs.first->pins, 0);
    pthread_mutex_unlock(&queue.lock);
}

/* Hashing a large part takes milliseconds: whoever sends parts in vain must not cost that. */
static void what_is_refused_is_not_hashed(void **state)
{
    (void)state;
    struct ctw_err err;
    int retry_ms;
    n_digests = 0;
    assert_int_equal(submit("no model--------", &retry_ms, &err), CTW_ENOTFOUND);
    assert_int_equal(n_digests, 0);
    load();
    assert_int_equal(submit("one-------------", &retry_ms, &err), CTW_OK);
    assert_int_equal(n_digests, 1);
    assert_int_equal(submit("one-------------", &retry_ms, &err), CTW_OK); /* repeated */
    assert_int_equal(n_digests, 2);
    assert_int_equal(ctw_queue_drain(&queue, false, false), 0);
    assert_int_equal(submit("two-------------", &retry_ms, &err), CTW_EBUSY);
    assert_int_equal(n_digests, 2);
}

static int setup(void **state)
{
    struct ctw_err err;
    (void)state;
    if (ctw_queue_init(&queue, 1 << 20, &err) != CTW_OK)
        return -1;
    scorer = (struct ctw_scorer){.queue = &queue};
    return pthread_create(&thread, NULL, scorer_main, &scorer);
}

static int teardown(void **state)
{
    (void)state;
    ctw_queue_stop(&queue);
    pthread_join(thread, NULL);
    ctw_scorer_fini(&scorer);
    ctw_queue_fini(&queue);
    return fake_engine_n_open();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(unloaded, setup, teardown),
        cmocka_unit_test_setup_teardown(another_in_its_place, setup, teardown),
        cmocka_unit_test_setup_teardown(the_same_again, setup, teardown),
        cmocka_unit_test_setup_teardown(another_job_in_its_place, setup, teardown),
        cmocka_unit_test_setup_teardown(what_is_refused_is_not_hashed, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
