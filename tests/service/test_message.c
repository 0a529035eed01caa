#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "base/mem.h"
#include "ipc/limits.h"
#include "ipc/messages.h"

#define BYTES(literal)                                                                             \
    (struct ctw_span)                                                                              \
    {                                                                                              \
        .data = (literal), .n = sizeof(literal) - 1                                                \
    }

static const char job_id[] = "0123456789abcdef";

static void assert_span(struct ctw_span got, const char *want, size_t n)
{
    assert_int_equal(got.n, n);
    assert_memory_equal(got.data, want, n);
}

/* Encodes, decodes and encodes again: the bytes must agree. *out and *w keep the second encoding.
 */
static void round_trip(const struct ctw_request *request, struct ctw_request *out,
                       struct ctw_writer *w)
{
    struct ctw_err err;
    struct ctw_writer again = {0};
    assert_int_equal(ctw_request_encode(request, w, &err), CTW_OK);
    if (ctw_request_decode(out, w->data, w->n, &err) != CTW_OK)
        fail_msg("%s", err.msg);
    assert_int_equal(out->id, request->id);
    assert_int_equal(out->op, request->op);
    assert_int_equal(ctw_request_encode(out, &again, &err), CTW_OK);
    assert_int_equal(again.n, w->n);
    assert_memory_equal(again.data, w->data, w->n);
    ctw_writer_fini(&again);
}

static void submit_goes_round(void **state)
{
    (void)state;
    struct ctw_span columns[] = {BYTES("logprob"), BYTES("greedy")};
    struct ctw_request in = {.id = 77, .op = CTW_OP_SUBMIT}, out;
    struct ctw_writer w = {0};
    struct ctw_submit *s = &in.body.submit;
    s->has.head = true;
    s->job = BYTES("0123456789abcdef");
    s->part = 300;
    s->head = (struct ctw_head_map){.has = {.columns = true, .orphan = true, .prefix_token = true},
                                    .kind = BYTES("loglikelihood_rolling"),
                                    .columns = {.data = columns, .n = 2},
                                    .orphan = {.policy = BYTES("keep"), .ttl_s = 604800},
                                    .prefix_token = 4294967295u};
    s->items = (struct ctw_items_map){.has = {.n_tokens = true},
                                      .tokens = BYTES("\1\0\0\0\2\0\0\0"),
                                      .n_tokens = BYTES("\2\0\0\0")};
    round_trip(&in, &out, &w);
    const struct ctw_submit *d = &out.body.submit;
    assert_span(d->job, job_id, 16);
    assert_int_equal(d->part, 300);
    assert_int_equal(d->head.columns.n, 2);
    assert_span(((struct ctw_span *)d->head.columns.data)[1], "greedy", 6);
    assert_span(d->head.orphan.policy, "keep", 4);
    assert_int_equal(d->head.orphan.ttl_s, 604800);
    assert_int_equal(d->head.prefix_token, 4294967295u);
    assert_false(d->head.has.model);
    assert_int_equal(d->items.n_context.n, 0);
    assert_span(d->items.tokens, "\1\0\0\0\2\0\0\0", 8);
    ctw_request_close(&out);
    ctw_writer_fini(&w);
}

static void a_rule_goes_round(void **state)
{
    (void)state;
    struct ctw_request in = {.id = 78, .op = CTW_OP_SUBMIT}, out;
    struct ctw_writer w = {0};
    in.body.submit =
        (struct ctw_submit){.has = {.head = true},
                            .job = BYTES("0123456789abcdef"),
                            .head = {.has = {.window = true,
                                             .stride = true,
                                             .first = true,
                                             .rows = true,
                                             .new = true,
                                             .bos = true,
                                             .bos_mode = true,
                                             .vocabulary = true},
                                     .kind = BYTES("loglikelihood_windows"),
                                     .window = 2048,
                                     .stride = 512,
                                     .first = 3,
                                     .rows = 100,
                                     .new = true,
                                     .bos = 4294967295u,
                                     .bos_mode = BYTES("replace"),
                                     .vocabulary = 128256},
                            .items = {.has = {.n_tokens = true}, .n_tokens = BYTES("\0\0\0\0")}};
    round_trip(&in, &out, &w);
    const struct ctw_head_map *d = &out.body.submit.head;
    assert_int_equal(d->window, 2048);
    assert_int_equal(d->stride, 512);
    assert_int_equal(d->first, 3);
    assert_int_equal(d->rows, 100);
    assert_true(d->new);
    assert_true(!d->tail);
    assert_false(d->has.tail);
    assert_int_equal(d->bos, 4294967295u);
    assert_span(d->bos_mode, "replace", 7);
    assert_int_equal(d->vocabulary, 128256);
    ctw_request_close(&out);
    ctw_writer_fini(&w);
}

static void every_request_goes_round(void **state)
{
    (void)state;
    struct ctw_span job = BYTES("0123456789abcdef");
    const struct ctw_request all[] = {
        {.id = 0, .op = CTW_OP_INFO},
        {.id = UINT64_MAX, .op = CTW_OP_HEALTH},
        {.id = 1, .op = CTW_OP_SEAL, .body.seal = {.job = job, .parts = 3}},
        {.id = 2, .op = CTW_OP_POLL, .body.poll = {.job = job}},
        {.id = 3,
         .op = CTW_OP_POLL,
         .body.poll =
             {.has = {.wait_ms = true, .seen = true}, .job = job, .wait_ms = 1000, .seen = 5}},
        {.id = 4, .op = CTW_OP_FETCH, .body.fetch = {.job = job, .first = 70000}},
        {.id = 5, .op = CTW_OP_CANCEL, .body.job = {.job = job}},
        {.id = 6, .op = CTW_OP_RELEASE, .body.job = {.job = job}},
        {.id = 7, .op = CTW_OP_LOAD, .body.load = {.path = BYTES("/m")}},
        {.id = 8, .op = CTW_OP_UNLOAD, .body.unload = {.model = BYTES("m\xc3\xb6")}},
        {.id = 9, .op = CTW_OP_DRAIN, .body.mode = {.mode = BYTES("finish")}},
        {.id = 10, .op = CTW_OP_SHUTDOWN, .body.mode = {.mode = BYTES("cancel")}},
    };
    for (size_t i = 0; i < CTW_COUNT(all); i++) {
        struct ctw_request out;
        struct ctw_writer w = {0};
        round_trip(&all[i], &out, &w);
        ctw_request_close(&out);
        ctw_writer_fini(&w);
    }
}

static struct ctw_reply decode_encoded(const struct ctw_reply *reply, struct ctw_writer *w)
{
    struct ctw_reply out;
    struct ctw_err err;
    assert_int_equal(ctw_reply_encode(reply, w, &err), CTW_OK);
    if (ctw_reply_decode(&out, reply->op, w->data, w->n, &err) != CTW_OK)
        fail_msg("%s", err.msg);
    assert_int_equal(out.id, reply->id);
    assert_int_equal(out.ok, reply->ok);
    return out;
}

static void info_goes_round(void **state)
{
    (void)state;
    struct ctw_model_map models[] = {
        {.name = BYTES("a"), .state = BYTES("loading")},
        {.has = {.ready = true, .more = true, .weights = true},
         .name = BYTES("b"),
         .state = BYTES("ready"),
         .numerics = BYTES("cpu-avx2/bfloat16/1"),
         .vocab = 49152,
         .weight_bits = 4.125,
         .memory_limit = 1ull << 40,
         .placement = BYTES("streamed"),
         .weights_streamed = 7ull << 33,
         .weights = {.has = {.files = true}, .kept = 3, .files = BYTES("ab12")}},
    };
    struct ctw_job_map jobs[] = {
        {.job = BYTES("0123456789abcdef"), .state = BYTES("done"), .items = 7}};
    struct ctw_reply in = {.id = 5, .op = CTW_OP_INFO, .ok = true};
    in.body.info = (struct ctw_info_reply){.version = BYTES("0.1.0"),
                                           .boot = BYTES("fedcba9876543210"),
                                           .uptime_s = 1.5,
                                           .models = {.data = models, .n = 2},
                                           .jobs = {.data = jobs, .n = 1},
                                           .limits = {.ttl_s = 604800}};
    struct ctw_writer w = {0};
    struct ctw_reply out = decode_encoded(&in, &w);
    const struct ctw_info_reply *r = &out.body.info;
    const struct ctw_model_map *m = r->models.data;
    assert_int_equal(r->models.n, 2);
    assert_false(m[0].has.ready);
    assert_true(m[1].has.ready);
    assert_span(m[1].numerics, "cpu-avx2/bfloat16/1", 19);
    assert_int_equal(m[1].vocab, 49152);
    assert_true(m[1].weight_bits == 4.125);
    assert_true(r->uptime_s == 1.5);
    assert_int_equal(m[1].memory_limit, 1ull << 40);
    assert_span(m[1].placement, "streamed", 8);
    assert_int_equal(m[1].weights_streamed, 7ull << 33);
    assert_int_equal(m[1].weights.kept, 3);
    assert_span(m[1].weights.files, "ab12", 4);
    assert_int_equal(((const struct ctw_job_map *)r->jobs.data)->items, 7);
    assert_int_equal(r->limits.ttl_s, 604800);
    ctw_reply_close(&out);
    ctw_writer_fini(&w);
}

static void errors_go_round(void **state)
{
    (void)state;
    struct ctw_reply in = {.id = 9, .op = CTW_OP_SUBMIT};
    struct ctw_err err;
    struct ctw_writer w = {0};
    (void)ctw_fail(&err, CTW_EBUSY, "a file name of Latin-1: caf\xe9\n");
    ctw_reply_fail(&in, &err);
    in.error.has.retry_ms = true;
    in.error.retry_ms = 500;
    struct ctw_reply out = decode_encoded(&in, &w);
    assert_span(out.error.code, "busy", 4);
    assert_span(out.error.message, "a file name of Latin-1: caf??", 29);
    assert_int_equal(out.error.retry_ms, 500);
    assert_false(out.error.has.item);
    ctw_reply_close(&in);
    ctw_reply_close(&out);
    ctw_writer_fini(&w);
}

static void poll_and_fetch_replies_go_round(void **state)
{
    (void)state;
    struct ctw_writer w = {0};
    struct ctw_reply in = {.id = 1, .op = CTW_OP_POLL, .ok = true};
    in.body.poll = (struct ctw_poll_reply){
        .has = {.error = true},
        .state = BYTES("failed"),
        .progress = {.tokens_done = 10, .seconds_left = -1},
        .error = {
            .has = {.layer = true}, .code = BYTES("numeric"), .message = BYTES("NaN"), .layer = 3}};
    struct ctw_reply out = decode_encoded(&in, &w);
    assert_true(out.body.poll.progress.seconds_left == -1);
    assert_int_equal(out.body.poll.error.layer, 3);
    ctw_reply_close(&out);
    ctw_writer_fini(&w);
    in = (struct ctw_reply){.id = 2, .op = CTW_OP_FETCH, .ok = true};
    in.body.fetch = (struct ctw_fetch_reply){.n = 1,
                                             .result = {.has = {.greedy = true},
                                                        .item = BYTES("\5\0\0\0"),
                                                        .greedy = BYTES("\6\0\0\0")}};
    in.body.fetch.result.has.windows = true;
    in.body.fetch.result.windows = BYTES("\1\0\0\0");
    in.body.fetch.result.window_count = BYTES("\2\0\0\0");
    out = decode_encoded(&in, &w);
    assert_span(out.body.fetch.result.greedy, "\6\0\0\0", 4);
    assert_false(out.body.fetch.result.has.logprob);
    assert_span(out.body.fetch.result.windows, "\1\0\0\0", 4);
    assert_span(out.body.fetch.result.window_count, "\2\0\0\0", 4);
    assert_int_equal(out.body.fetch.result.window_sum.n, 0);
    ctw_reply_close(&out);
    ctw_writer_fini(&w);
}

/* Fields 3n and 3n + 1 share a flag, 3n + 2 has its own. */
static void a_table_may_have_many_fields(void **state)
{
    (void)state;
    enum { N = 120 };
    struct {
        bool has[N];
        uint64_t v[N];
    } in = {0}, out;
    struct ctw_field fields[N];
    char keys[N][8];
    const struct ctw_schema schema = {"wide", sizeof(in), fields, N};
    struct ctw_writer w = {0};
    struct ctw_reader r;
    struct ctw_err err;
    for (int i = 0; i < N; i++) {
        snprintf(keys[i], sizeof(keys[i]), "k%d", i);
        fields[i] = (struct ctw_field){.key = keys[i],
                                       .type = CTW_FIELD_UINT,
                                       .offset = (size_t)((char *)&in.v[i] - (char *)&in),
                                       .has = (size_t)(i - (i % 3 == 1))};
        in.v[i] = (uint64_t)i;
        in.has[i] = i % 2 == 0;
    }
    ctw_write_map(&w, ctw_count_pairs(&schema, &in));
    ctw_write_struct(&w, &schema, &in);
    for (int cut = 0; cut < 2; cut++) { /* the second time without k0, whose flag k1 has, too */
        fields[0].key = cut ? "other" : "k0";
        assert_int_equal(ctw_reader_open(&r, w.data, w.n, &err), CTW_OK);
        assert_int_equal(ctw_reader_read(&r, &schema, NULL, true, &out, &err), CTW_OK);
        for (int i = 0; i < N; i++) {
            bool there = in.has[fields[i].has] && !(cut && i == 0);
            assert_int_equal(out.v[i], there ? i : 0);
            assert_int_equal(out.has[i], i % 3 != 1 && there);
        }
        ctw_reader_close(&r);
    }
    ctw_writer_fini(&w);
}

static void replies_may_hold_unknown_keys(void **state)
{
    (void)state;
    static const char later[] = "\x85\xa1v\x01\xa2id\x07\xa2ok\xc3\xa5state\xa8released"
                                "\xa4more\x81\xa1x\x93\x01\xc0\xcb\0\0\0\0\0\0\0\0";
    struct ctw_reply out;
    struct ctw_err err;
    assert_int_equal(ctw_reply_decode(&out, CTW_OP_RELEASE, later, sizeof(later) - 1, &err),
                     CTW_OK);
    assert_span(out.body.state.state, "released", 8);
    ctw_reply_close(&out);
}

static void large_columns_go_round(void **state)
{
    (void)state;
    size_t n = CTW_IPC_FETCH_BYTES + 1000;
    char *data = ctw_calloc(n, 1);
    struct ctw_writer w = {0};
    struct ctw_reply in = {.op = CTW_OP_FETCH, .ok = true};
    struct ctw_err err;
    assert_non_null(data);
    data[n - 1] = 'x';
    in.body.fetch.result.item = (struct ctw_span){.data = data, .n = n};
    struct ctw_reply out = decode_encoded(&in, &w);
    assert_int_equal(out.body.fetch.result.item.n, n);
    assert_int_equal(out.body.fetch.result.item.data[n - 1], 'x');
    ctw_reply_close(&out);
    ctw_writer_fini(&w);
    ctw_free(data);
    /* the encoder refuses a message above the bound */
    n = CTW_IPC_MESSAGE_BYTES;
    data = ctw_calloc(n, 1);
    assert_non_null(data);
    in.body.fetch.result.item = (struct ctw_span){.data = data, .n = n};
    assert_int_equal(ctw_reply_encode(&in, &w, &err), CTW_EINVAL);
    ctw_writer_fini(&w);
    ctw_free(data);
}

static enum ctw_status scan(struct ctw_span s, struct ctw_err *err)
{
    return ctw_wire_scan(s.data, s.n, err);
}

static void the_scan_knows_every_type(void **state)
{
    (void)state;
    const struct ctw_span good[] = {
        BYTES("\xc0"),
        BYTES("\xc2"),
        BYTES("\x7f"),
        BYTES("\xff"),
        BYTES("\xcc\x01"),
        BYTES("\xcd\0\1"),
        BYTES("\xce\0\0\0\1"),
        BYTES("\xcf\0\0\0\0\0\0\0\1"),
        BYTES("\xd0\1"),
        BYTES("\xd1\0\1"),
        BYTES("\xd2\0\0\0\1"),
        BYTES("\xd3\0\0\0\0\0\0\0\1"),
        BYTES("\xca\0\0\0\0"),
        BYTES("\xcb\0\0\0\0\0\0\0\0"),
        BYTES("\xa0"),
        BYTES("\xa3"
              "abc"),
        BYTES("\xd9\1x"),
        BYTES("\xda\0\1x"),
        BYTES("\xdb\0\0\0\1x"),
        BYTES("\xc4\1x"),
        BYTES("\xc5\0\1x"),
        BYTES("\xc6\0\0\0\1x"),
        BYTES("\x90"),
        BYTES("\x91\1"),
        BYTES("\xdc\0\1\1"),
        BYTES("\xdd\0\0\0\1\1"),
        BYTES("\x80"),
        BYTES("\x81\1\1"),
        BYTES("\xde\0\1\1\1"),
        BYTES("\xdf\0\0\0\1\1\1"),
        BYTES("\x91\x91\x91\x91\x91\x91\x91\x90"),
    };
    struct ctw_err err;
    for (size_t i = 0; i < CTW_COUNT(good); i++) {
        if (scan(good[i], &err) != CTW_OK)
            fail_msg("case %zu: %s", i, err.msg);
        for (size_t n = 0; n < good[i].n; n++) /* truncated anywhere, the message is refused */
            assert_int_equal(ctw_wire_scan(good[i].data, n, &err), CTW_EFORMAT);
    }
    const struct ctw_span bad[] = {
        BYTES("\xc1"),
        BYTES("\xc7\1\1x"),
        BYTES("\xd4\1x"),
        BYTES("\xd8\1xxxxxxxxxxxxxxxx"),
        BYTES("\xc0\xc0"),
        BYTES("\x91\x91\x91\x91\x91\x91\x91\x91\x90"),
        BYTES("\xdd\xff\xff\xff\xff"),
        BYTES("\xc6\xff\xff\xff\xff"),
        BYTES("\xdf\x80\0\0\0"),
    };
    for (size_t i = 0; i < CTW_COUNT(bad); i++)
        assert_int_equal(scan(bad[i], &err), CTW_EFORMAT);
}

static void out_of_memory_is_told(void **state)
{
    (void)state;
    struct ctw_span path = BYTES("/models/x");
    struct ctw_request in = {.op = CTW_OP_LOAD, .body.load = {.path = path}}, out;
    struct ctw_writer w = {0};
    struct ctw_err err;
    ctw_mem_fail_at(1);
    assert_int_equal(ctw_request_encode(&in, &w, &err), CTW_ENOMEM);
    ctw_mem_fail_at(0);
    ctw_writer_fini(&w);
    assert_int_equal(ctw_request_encode(&in, &w, &err), CTW_OK);
    ctw_mem_fail_at(1);
    assert_int_equal(ctw_request_decode(&out, w.data, w.n, &err), CTW_ENOMEM);
    ctw_mem_fail_at(0);
    ctw_request_close(&out);
    ctw_writer_fini(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(submit_goes_round),
        cmocka_unit_test(a_rule_goes_round),
        cmocka_unit_test(every_request_goes_round),
        cmocka_unit_test(info_goes_round),
        cmocka_unit_test(errors_go_round),
        cmocka_unit_test(poll_and_fetch_replies_go_round),
        cmocka_unit_test(a_table_may_have_many_fields),
        cmocka_unit_test(replies_may_hold_unknown_keys),
        cmocka_unit_test(large_columns_go_round),
        cmocka_unit_test(the_scan_knows_every_type),
        cmocka_unit_test(out_of_memory_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
