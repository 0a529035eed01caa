/* Shared by the tests of the queue: a queue with a scoring thread on the fake engine, and requests.
 */
#ifndef CTW_TESTS_QUEUE_BENCH_H
#define CTW_TESTS_QUEUE_BENCH_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "ask.h"
#include "base/clock.h"
#include "fake_engine.h"
#include "worker/service/scorer/scorer.h"

enum { WAIT_MS = 60000 };

/* Of benches that are opened from now on; NULL: none. */
static __attribute__((unused)) struct ctw_store *bench_store;

/* The connection that requests come over from now on. */
static __attribute__((unused)) uint32_t bench_pipe = 1;

struct bench {
    struct ctw_queue queue;
    struct ctw_scorer scorer;
    pthread_t thread;
    bool started;
};

static void *scorer_main(void *scorer)
{
    ctw_scorer_run(scorer);
    return NULL;
}

static enum ctw_status open_bench(struct bench *b, struct ctw_err *err)
{
    char name[CTW_MODEL_NAME_MAX];
    memset(b, 0, sizeof(*b));
    enum ctw_status st = ctw_queue_init(&b->queue, 1 << 24, err);
    assert_int_equal(st, CTW_OK);
    int retry_ms;
    st = ctw_queue_load(&b->queue, "/models/fake", NULL, NULL, name, &retry_ms, err);
    if (st != CTW_OK)
        return st;
    assert_string_equal(name, "fake");
    b->scorer.queue = &b->queue;
    b->scorer.store = bench_store;
    b->started = pthread_create(&b->thread, NULL, scorer_main, &b->scorer) == 0;
    assert_true(b->started);
    return CTW_OK;
}

static void close_bench(struct bench *b)
{
    ctw_queue_stop(&b->queue);
    if (b->started)
        pthread_join(b->thread, NULL);
    ctw_scorer_fini(&b->scorer);
    ctw_queue_fini(&b->queue);
    assert_int_equal(fake_engine_n_open(), 0);
}

static enum ctw_model_state wait_for_model(struct bench *b)
{
    enum ctw_model_state state = CTW_MODEL_LOADING;
    for (int64_t end = ctw_now_ms() + WAIT_MS; state == CTW_MODEL_LOADING;) {
        struct timespec ts = {.tv_nsec = 1000000};
        nanosleep(&ts, NULL);
        pthread_mutex_lock(&b->queue.lock);
        state = b->queue.models.slots[0]->state;
        pthread_mutex_unlock(&b->queue.lock);
        assert_true(ctw_now_ms() < end);
    }
    return state;
}

static void open_ready(struct bench *b)
{
    struct ctw_err err;
    assert_int_equal(open_bench(b, &err), CTW_OK);
    assert_int_equal(wait_for_model(b), CTW_MODEL_READY);
}

static struct ctw_contact contact(void)
{
    return (struct ctw_contact){.pipe = bench_pipe, .now_ms = ctw_now_ms()};
}

static struct ctw_span id_of(const char *id)
{
    return (struct ctw_span){.data = id, .n = CTW_IPC_JOB_ID_BYTES};
}

/* Submits n_items pairs of n_context tokens and one target; the last target is `token`. Ids are 16
 * characters. */
static __attribute__((unused)) enum ctw_status submit(struct bench *b, const char *id, int n_items,
                                                      int n_context, int32_t token, bool seal,
                                                      struct ctw_err *err)
{
    int n_tok = n_items * (n_context + 1);
    int32_t *tokens = calloc((size_t)n_tok, 4), *contexts = calloc((size_t)n_items, 4);
    int32_t *continuations = calloc((size_t)n_items, 4);
    assert_true(tokens != NULL);
    assert_true(contexts != NULL);
    assert_true(continuations != NULL);
    for (int i = 0; i < n_tok; i++)
        tokens[i] = i % (n_context + 1) == n_context ? token : i % 500;
    for (int i = 0; i < n_items; i++) {
        contexts[i] = n_context;
        continuations[i] = 1;
    }
    struct ctw_span bins[3] = {{(char *)tokens, (size_t)n_tok * 4},
                               {(char *)contexts, (size_t)n_items * 4},
                               {(char *)continuations, (size_t)n_items * 4}};
    struct ctw_submit s = {.has = {.head = true},
                           .job = id_of(id),
                           .head = {.kind = ctw_span_of("loglikelihood")},
                           .items = {.has = {.n_context = true, .n_continuation = true},
                                     .tokens = bins[0],
                                     .n_context = bins[1],
                                     .n_continuation = bins[2]}};
    struct ctw_submit_reply reply;
    struct ctw_seal_reply sealed;
    struct ctw_seal seal_request = {.job = id_of(id), .parts = 1};
    struct ctw_contact c = contact();
    int64_t bad_item;
    int retry_ms;
    enum ctw_status st = ask_submit(&b->queue, &c, &s, &reply, &bad_item, &retry_ms, err);
    if (st == CTW_OK && seal)
        st = ask_seal(&b->queue, &c, &seal_request, &sealed, err);
    free(tokens);
    free(contexts);
    free(continuations);
    return st;
}

/* Part `part` of a job of texts, over the given connection: one text of n_tok tokens. */
static __attribute__((unused)) enum ctw_status
begin_part(struct bench *b, const char *id, uint32_t pipe, const char *owner, int64_t now_ms,
           uint64_t part, int32_t n_tok, int *retry_ms, struct ctw_err *err)
{
    char *tokens = calloc((size_t)n_tok, 4), n_tokens[4];
    assert_non_null(tokens);
    memcpy(n_tokens, &n_tok, 4);
    struct ctw_contact c = {.pipe = pipe, .now_ms = now_ms, .owner = owner};
    struct ctw_submit s = {.has = {.head = part == 0},
                           .job = id_of(id),
                           .part = part,
                           .head = {.kind = ctw_span_of("loglikelihood_rolling"),
                                    .has = {.prefix_token = true},
                                    .prefix_token = 1},
                           .items = {.has = {.n_tokens = true},
                                     .tokens = {.data = tokens, .n = (size_t)n_tok * 4},
                                     .n_tokens = {.data = n_tokens, .n = 4}}};
    struct ctw_submit_reply reply;
    int64_t bad_item;
    enum ctw_status st = ask_submit(&b->queue, &c, &s, &reply, &bad_item, retry_ms, err);
    free(tokens);
    return st;
}

/* Begins a job of one item. */
static __attribute__((unused)) enum ctw_status begin(struct bench *b, const char *id, uint32_t pipe,
                                                     const char *owner, int64_t now_ms,
                                                     struct ctw_err *err)
{
    int retry_ms;
    return begin_part(b, id, pipe, owner, now_ms, 0, 1, &retry_ms, err);
}

/* The job's final state, as a static string; its error in *err. */
static __attribute__((unused)) const char *wait_for_job(struct bench *b, const char *id,
                                                        struct ctw_err *err)
{
    static const char *const final[] = {"done", "failed", "canceled"};
    for (int64_t end = ctw_now_ms() + WAIT_MS; ctw_now_ms() < end;) {
        struct ctw_reply reply = {.op = CTW_OP_POLL};
        struct ctw_poll poll = {
            .has = {.wait_ms = true}, .job = id_of(id), .wait_ms = CTW_IPC_WAIT_MS};
        struct ctw_contact c = contact();
        struct ctw_wait wait = {.since_ms = c.now_ms, .allowed = true};
        enum ctw_status st = ask_poll(&b->queue, &c, &poll, &wait, &reply, err);
        struct ctw_span state = reply.body.poll.state;
        ctw_reply_close(&reply);
        if (st != CTW_OK)
            return "refused";
        if (wait.until_ms != 0) {
            nanosleep(&(const struct timespec){.tv_nsec = 1000000}, NULL);
            continue;
        }
        for (size_t i = 0; i < CTW_COUNT(final); i++) {
            if (ctw_span_is(state, final[i]))
                return final[i];
        }
    }
    return "late";
}

static __attribute__((unused)) int64_t fetch(struct bench *b, const char *id, double *sum,
                                             struct ctw_err *err)
{
    struct ctw_reply reply = {.op = CTW_OP_FETCH};
    struct ctw_fetch f = {.job = id_of(id)};
    struct ctw_contact c = contact();
    int64_t n = -1;
    if (ask_fetch(&b->queue, &c, &f, &reply, err) == CTW_OK) {
        n = (int64_t)reply.body.fetch.n;
        *sum = 0;
        for (int64_t i = 0; i < n; i++)
            *sum += ((const double *)(const void *)reply.body.fetch.result.sum.data)[i];
    }
    ctw_reply_close(&reply);
    return n;
}

#endif
