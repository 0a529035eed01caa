#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"
#include "worker/cli/score_reader.h"

enum { MAX_LENGTH = 8, VOCAB = 100 };

static enum ctw_status read_line(struct ctw_score_item *item, const char *text, struct ctw_err *err)
{
    return ctw_score_item_read(item, 7, text, strlen(text), MAX_LENGTH, VOCAB, err);
}

static void reads_both_forms(void **state)
{
    (void)state;
    struct ctw_score_item item;
    struct ctw_err err;
    assert_int_equal(read_line(&item, "{\"id\": {\"a\": [1]}, \"tokens\": [5, 6, 99]}", &err),
                     CTW_OK);
    assert_string_equal(item.id, "{\"a\": [1]}");
    assert_int_equal(item.seq.n_tok, 3);
    assert_int_equal(item.seq.first, 1);
    assert_int_equal(item.seq.tokens[2], 99);
    ctw_score_item_fini(&item);
    assert_int_equal(
        read_line(&item, "\xef\xbb\xbf{\"context\": [5, 6], \"continuation\": [7]}", &err),
        CTW_OK); /* after a byte order mark */
    assert_null(item.id);
    assert_int_equal(item.seq.n_tok, 3);
    assert_int_equal(item.seq.first, 2);
    ctw_score_item_fini(&item);
}

static void accepts_nothing_to_score(void **state)
{
    (void)state;
    struct ctw_score_item item;
    struct ctw_err err;
    assert_int_equal(read_line(&item, "{\"tokens\": [5]}", &err), CTW_OK);
    assert_int_equal(item.seq.first, item.seq.n_tok);
    ctw_score_item_fini(&item);
    assert_int_equal(read_line(&item, "{\"context\": [5], \"continuation\": []}", &err), CTW_OK);
    assert_int_equal(item.seq.first, item.seq.n_tok);
    ctw_score_item_fini(&item);
}

static void refuses_bad_lines(void **state)
{
    (void)state;
    static const struct {
        const char *text, *message;
        enum ctw_status status;
    } cases[] = {
        {"{\"tokens\": [1, 2]", "line 7", CTW_EFORMAT},
        {"[1]", "line 7", CTW_EFORMAT},
        {"{}", "expected either tokens, or context and continuation", CTW_EFORMAT},
        {"{\"tokens\": [1], \"context\": [1]}", "expected either", CTW_EFORMAT},
        {"{\"context\": [1]}", "\"continuation\" is missing", CTW_EFORMAT},
        {"{\"tokens\": []}", "tokens is empty", CTW_EFORMAT},
        {"{\"context\": [], \"continuation\": [1]}", "context is empty", CTW_EFORMAT},
        {"{\"tokens\": [1, 100]}", "tokens[1]", CTW_EFORMAT},
        {"{\"tokens\": [1, -1]}", "tokens[1]", CTW_EFORMAT},
        {"{\"tokens\": [1, 1.5]}", "tokens[1]", CTW_EFORMAT},
        {"{\"tokens\": [1, \"2\"]}", "tokens[1]", CTW_EFORMAT},
        {"{\"tokens\": [1, 2], \"token\": 3}", "unknown key", CTW_EFORMAT},
        {"{\"tokens\": [1,2,3,4,5,6,7,8,9,10]}", "--max-length", CTW_EFORMAT},
    };
    for (size_t i = 0; i < CTW_COUNT(cases); i++) {
        struct ctw_score_item item;
        struct ctw_err err;
        assert_int_equal(read_line(&item, cases[i].text, &err), cases[i].status);
        if (strstr(err.msg, cases[i].message) == NULL || strstr(err.msg, "line 7") == NULL)
            fail_msg("%s: \"%s\" lacks \"%s\" or the line", cases[i].text, err.msg,
                     cases[i].message);
        ctw_score_item_fini(&item);
    }
}

static void survives_failed_allocations(void **state)
{
    (void)state;
    enum ctw_status st = CTW_ENOMEM;
    for (int n = 1; st == CTW_ENOMEM; n++) {
        struct ctw_score_item item;
        struct ctw_err err;
        ctw_mem_fail_at(n);
        st = read_line(&item, "{\"id\": 1, \"tokens\": [5, 6, 99]}", &err);
        ctw_mem_fail_at(0);
        ctw_score_item_fini(&item);
        assert_true(n < 1000);
    }
    assert_int_equal(st, CTW_OK);
}

static void write_line(struct ctw_score_item *item, char *buf, size_t cap, enum ctw_status expected)
{
    struct ctw_json_writer w = {0};
    struct ctw_err err = {0};
    const char *text;
    size_t bytes;
    assert_int_equal(ctw_score_item_write(item, 4, &w, &err), expected);
    assert_int_equal(ctw_json_writer_text(&w, &text, &bytes, NULL), CTW_OK);
    if (expected != CTW_OK)
        assert_int_equal(bytes, 0);
    snprintf(buf, cap, "%s", expected == CTW_OK ? text : err.msg);
    ctw_json_writer_fini(&w);
}

static void writes_results(void **state)
{
    (void)state;
    struct ctw_score_item item;
    struct ctw_err err;
    char buf[CTW_ERR_MSG_MAX];
    assert_int_equal(read_line(&item, "{\"id\": \"x\", \"tokens\": [5, 6, 7]}", &err), CTW_OK);
    item.seq.logprob[0] = -0.1f;
    item.seq.logprob[1] = -2;
    item.seq.greedy[0] = 6;
    item.seq.greedy[1] = 8;
    write_line(&item, buf, sizeof(buf), CTW_OK);
    assert_non_null(strstr(buf, "\"id\":\"x\",\"logprobs\":[-0.1,-2"));
    assert_non_null(strstr(buf, "\"sum\":-2.100000001490116,"));
    assert_non_null(strstr(buf, "\"greedy\":[6,8],\"is_greedy\":false}\n"));
    item.seq.greedy[1] = 7;
    write_line(&item, buf, sizeof(buf), CTW_OK);
    assert_non_null(strstr(buf, "\"is_greedy\":true"));

    item.seq.logprob[1] = NAN;
    item.seq.bad_layer = 2;
    write_line(&item, buf, sizeof(buf), CTW_ENUMERIC);
    assert_non_null(strstr(buf, "line 7"));
    assert_non_null(strstr(buf, "layer 2"));
    item.seq.bad_layer = 4;
    write_line(&item, buf, sizeof(buf), CTW_ENUMERIC);
    assert_non_null(strstr(buf, "head"));
    item.seq.bad_layer = -1;
    item.seq.logprob[1] = -INFINITY;
    write_line(&item, buf, sizeof(buf), CTW_ENUMERIC);
    assert_non_null(strstr(buf, "line 7: the score of token 2 is not finite"));
    ctw_score_item_fini(&item);
}

/* What a file of n lines becomes, read through a file and through a pipe. */
struct reading {
    int64_t n_blocks, n_items, n_tok_most, last_line;
    enum ctw_status st;
    struct ctw_err err;
};

static struct reading read_all(const char *text, bool through_a_pipe, int64_t pass_tokens)
{
    struct reading got = {0};
    struct ctw_score_reader *r;
    struct ctw_score_block *b;
    int stop[2], in[2];
    assert_int_equal(pipe(stop), 0);
    if (through_a_pipe) {
        assert_int_equal(pipe(in), 0);
        assert_int_equal(write(in[1], text, strlen(text)), strlen(text));
        close(in[1]);
    } else {
        char path[] = "/tmp/ctw_test_lines_XXXXXX";
        in[0] = mkstemp(path);
        assert_int_equal(write(in[0], text, strlen(text)), strlen(text));
        lseek(in[0], 0, SEEK_SET);
        unlink(path);
    }
    const struct ctw_score_input input = {.fd = in[0],
                                          .stop_fd = stop[0],
                                          .max_length = MAX_LENGTH,
                                          .vocab = VOCAB,
                                          .pass_tokens = pass_tokens};
    assert_int_equal(ctw_score_reader_open(&r, &input, &got.err), CTW_OK);
    assert_int_equal(ctw_score_reader_bytes(r), through_a_pipe ? 0 : strlen(text));
    while ((got.st = ctw_score_reader_next(r, &b, &got.err)) == CTW_OK && b != NULL) {
        got.n_blocks++;
        got.n_items += b->n_items;
        got.n_tok_most = b->n_tok > got.n_tok_most ? b->n_tok : got.n_tok_most;
        for (int64_t i = 0; i < b->n_items; i++) {
            assert_true(b->items[i].line > got.last_line);
            got.last_line = b->items[i].line;
        }
        ctw_score_block_free(b);
    }
    ctw_score_reader_close(r);
    close(in[0]);
    close(stop[0]);
    close(stop[1]);
    return got;
}

static void reads_blocks_of_a_pass(void **state)
{
    (void)state;
    static const char text[] = "{\"tokens\": [1, 2, 3]}\n\n \r\n{\"tokens\": [1, 2, 3]}\n"
                               "{\"tokens\": [1, 2, 3, 4, 5, 6, 7]}\n{\"tokens\": [1]}\n"
                               "{\"tokens\": [1, 2, 3]}\n{\"tokens\": [1, 2]}";
    for (int pipe = 0; pipe < 2; pipe++) {
        struct reading got = read_all(text, pipe == 1, 4);
        assert_int_equal(got.st, CTW_OK);
        assert_int_equal(got.n_items, 6);
        assert_int_equal(got.n_blocks, 3); /* 2 + 2, 6 alone, 0 + 2 + 1 */
        assert_int_equal(got.n_tok_most, 6);
        assert_int_equal(got.last_line, 8);
    }
    struct reading got =
        read_all("{\"tokens\": [1, 2, 3, 4, 5]}\n{\"tokens\": [1, 2, 3, 4, 5]}\n", false, 5);
    assert_int_equal(got.n_items, 2);
    assert_int_equal(got.n_blocks, 2); /* 4 + 4 inputs are more than 5 */
}

static void hands_out_what_is_before_a_bad_line(void **state)
{
    (void)state;
    struct reading got = read_all("{\"tokens\": [1, 2]}\n{\"tokens\": [1, 3]}\n{\"tokens\": [\n"
                                  "{\"tokens\": [1, 4]}\n",
                                  false, 100);
    assert_int_equal(got.st, CTW_EFORMAT);
    assert_non_null(strstr(got.err.msg, "line 3"));
    assert_int_equal(got.n_items, 2);
}

/* What has nothing to score takes memory all the same. */
static void bounds_items_that_score_nothing(void **state)
{
    (void)state;
    char text[100 * 20 + 1] = "";
    for (int i = 0; i < 100; i++)
        snprintf(text + strlen(text), 20, "{\"tokens\": [%d]}\n", i % 10);
    struct reading got = read_all(text, false, 10);
    assert_int_equal(got.n_items, 100);
    assert_int_equal(got.n_blocks, 5);
}

/* Reading ends when it is told to, although the writer of the pipe is silent. */
static void stops_while_it_waits(void **state)
{
    (void)state;
    struct ctw_score_reader *r;
    struct ctw_score_block *b;
    struct ctw_err err;
    int stop[2], in[2];
    static const char text[] = "{\"tokens\": [1, 2]}\n{\"tokens\": [1,";
    assert_int_equal(pipe(stop), 0);
    assert_int_equal(pipe(in), 0);
    const struct ctw_score_input input = {.fd = in[0],
                                          .stop_fd = stop[0],
                                          .max_length = MAX_LENGTH,
                                          .vocab = VOCAB,
                                          .pass_tokens = 9};
    assert_int_equal(ctw_score_reader_open(&r, &input, &err), CTW_OK);
    assert_int_equal(write(in[1], text, strlen(text)), strlen(text));
    /* It does not wait for a full pass. */
    assert_int_equal(ctw_score_reader_next(r, &b, &err), CTW_OK);
    assert_int_equal(b->n_items, 1);
    ctw_score_block_free(b);
    assert_int_equal(write(stop[1], "", 1), 1);
    /* Half a line is no error then. */
    assert_int_equal(ctw_score_reader_next(r, &b, &err), CTW_OK);
    assert_null(b);
    ctw_score_reader_close(r);
    for (int i = 0; i < 2; i++) {
        close(in[i]);
        close(stop[i]);
    }
}

static void a_line_is_bounded(void **state)
{
    (void)state;
    size_t bytes = CTW_SCORE_LINE_BYTES + (1 << 20);
    char *text = ctw_calloc(bytes + 1, 1);
    assert_non_null(text);
    memset(text, ' ', bytes);
    struct reading got = read_all(text, false, 10);
    assert_int_equal(got.st, CTW_EFORMAT);
    assert_non_null(strstr(got.err.msg, "line 1: longer than 64 MiB"));
    ctw_free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_both_forms),
        cmocka_unit_test(accepts_nothing_to_score),
        cmocka_unit_test(refuses_bad_lines),
        cmocka_unit_test(survives_failed_allocations),
        cmocka_unit_test(writes_results),
        cmocka_unit_test(reads_blocks_of_a_pass),
        cmocka_unit_test(hands_out_what_is_before_a_bad_line),
        cmocka_unit_test(bounds_items_that_score_nothing),
        cmocka_unit_test(stops_while_it_waits),
        cmocka_unit_test(a_line_is_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
