#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "worker/score_lines.h"

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
    assert_int_equal(read_line(&item, "{\"context\": [5, 6], \"continuation\": [7]}", &err),
                     CTW_OK);
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
        {"{}", "needs either tokens, or context and continuation", CTW_EFORMAT},
        {"{\"tokens\": [1], \"context\": [1]}", "needs either", CTW_EFORMAT},
        {"{\"context\": [1]}", "\"continuation\" is missing", CTW_EFORMAT},
        {"{\"tokens\": []}", "tokens is empty", CTW_EFORMAT},
        {"{\"context\": [], \"continuation\": [1]}", "context is empty", CTW_EFORMAT},
        {"{\"tokens\": [1, 100]}", "tokens[1]", CTW_EFORMAT},
        {"{\"tokens\": [1, -1]}", "tokens[1]", CTW_EFORMAT},
        {"{\"tokens\": [1, 1.5]}", "tokens[1]", CTW_EFORMAT},
        {"{\"tokens\": [1, \"2\"]}", "tokens[1]", CTW_EFORMAT},
        {"{\"tokens\": [1, 2], \"token\": 3}", "unknown key", CTW_EFORMAT},
        {"{\"tokens\": [1,2,3,4,5,6,7,8,9,10]}", "--max-length", CTW_EINVAL},
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
    memset(buf, 0, cap);
    FILE *out = fmemopen(buf, cap, "w");
    assert_non_null(out);
    assert_int_equal(ctw_score_item_write(item, 4, out, &w, &err), expected);
    fclose(out);
    ctw_json_writer_fini(&w);
    if (expected != CTW_OK)
        snprintf(buf, cap, "%s", err.msg);
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
    ctw_score_item_fini(&item);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_both_forms),  cmocka_unit_test(accepts_nothing_to_score),
        cmocka_unit_test(refuses_bad_lines), cmocka_unit_test(survives_failed_allocations),
        cmocka_unit_test(writes_results),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
