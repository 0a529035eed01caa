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

#include "base/hash.h"
#include "base/json.h"
#include "base/mem.h"

enum { LIMIT = 1 << 24 };

static struct ctw_json *parse(const char *text)
{
    struct ctw_json *doc;
    struct ctw_err err;
    if (ctw_json_parse(&doc, "t", text, strlen(text), LIMIT, &err) != CTW_OK)
        fail_msg("%s: %s", text, err.msg);
    return doc;
}

/* Parsing must fail with this status and this piece of the message. */
static void refused_n(const char *text, size_t bytes, size_t max_bytes, const char *piece)
{
    struct ctw_json *doc;
    struct ctw_err err = {0};
    enum ctw_status st = ctw_json_parse(&doc, "t.json", text, bytes, max_bytes, &err);
    assert_null(doc);
    if (st != CTW_EFORMAT || strstr(err.msg, piece) == NULL || strstr(err.msg, "t.json: ") == NULL)
        fail_msg("%.40s: status %d, \"%s\", expected \"%s\"", text, st, err.msg, piece);
}

static void refused(const char *text, const char *piece)
{
    refused_n(text, strlen(text), LIMIT, piece);
}

static void says(enum ctw_status st, enum ctw_status want, const struct ctw_err *err,
                 const char *message)
{
    assert_int_equal(st, want);
    assert_string_equal(err->msg, message);
}

static void values_of_every_type(void **state)
{
    (void)state;
    struct ctw_json *doc =
        parse(" {\"n\": null, \"t\": true, \"f\": false, \"i\": -7, \"d\": 1.5e3,"
              "\"s\": \"a\\u00e9\\ud83d\\ude00\\n\", \"a\": [1, [], {}],"
              " \"o\": {\"x\": 0}}\r\n\t ");
    const struct ctw_json_node *root = ctw_json_root(doc), *n;
    struct ctw_err err;
    static const char *const keys[] = {"n", "t", "f", "i", "d", "s", "a", "o"};
    int i = 0;
    for (n = ctw_json_first(root); n != NULL; n = ctw_json_next(n)) {
        assert_string_equal(ctw_json_key(n), keys[i++]);
        assert_ptr_equal(ctw_json_get(root, ctw_json_key(n)), n);
    }
    assert_int_equal(i, 8);
    assert_int_equal(ctw_json_count(root), 8);
    assert_true(ctw_json_is_null(ctw_json_get(root, "n")));
    assert_false(ctw_json_has(root, "n"));
    assert_true(ctw_json_has(root, "t"));
    assert_null(ctw_json_get(root, "T"));
    bool b = false;
    int64_t v = 0;
    double d = 0;
    assert_int_equal(ctw_json_as_bool(ctw_json_get(root, "t"), &b, &err), CTW_OK);
    assert_true(b);
    assert_int_equal(ctw_json_as_bool(ctw_json_get(root, "f"), &b, &err), CTW_OK);
    assert_false(b);
    assert_int_equal(ctw_json_as_int(ctw_json_get(root, "i"), -7, -7, &v, &err), CTW_OK);
    assert_int_equal(v, -7);
    assert_int_equal(ctw_json_as_int(ctw_json_get(root, "d"), 0, 2000, &v, &err), CTW_OK);
    assert_int_equal(v, 1500);
    assert_int_equal(ctw_json_as_double(ctw_json_get(root, "d"), &d, &err), CTW_OK);
    assert_true(d == 1500.0);
    assert_string_equal(ctw_json_string(ctw_json_get(root, "s")), "a\xc3\xa9\xf0\x9f\x98\x80\n");
    assert_null(ctw_json_string(root));
    n = ctw_json_get(root, "a");
    assert_int_equal(ctw_json_count(n), 3);
    n = ctw_json_first(n);
    assert_null(ctw_json_key(n));
    assert_int_equal(ctw_json_type(ctw_json_next(n)), CTW_JSON_ARRAY);
    assert_null(ctw_json_first(ctw_json_next(n)));
    assert_null(ctw_json_get(n, "x"));
    size_t bytes;
    const char *source = ctw_json_source(ctw_json_get(root, "a"), &bytes);
    assert_int_equal(bytes, strlen("[1, [], {}]"));
    assert_memory_equal(source, "[1, [], {}]", bytes);
    ctw_json_close(doc);
    ctw_json_close(NULL);
}

static void integers_are_exact(void **state)
{
    (void)state;
    struct ctw_err err;
    int64_t v = 1;
    struct ctw_json *doc = parse("[9223372036854775807, -9223372036854775808, 9007199254740993,"
                                 " 9223372036854775808, 1.5, 1e300, 1e-3, -0, 2.0]");
    const struct ctw_json_node *n = ctw_json_first(ctw_json_root(doc));
    assert_int_equal(ctw_json_as_int(n, 0, INT64_MAX, &v, &err), CTW_OK);
    assert_true(v == INT64_MAX);
    n = ctw_json_next(n);
    assert_int_equal(ctw_json_as_int(n, INT64_MIN, 0, &v, &err), CTW_OK);
    assert_true(v == INT64_MIN);
    n = ctw_json_next(n);
    assert_int_equal(ctw_json_as_int(n, 0, INT64_MAX, &v, &err), CTW_OK);
    assert_true(v == 9007199254740993);
    for (int i = 3; i < 7; i++) {
        n = ctw_json_next(n);
        assert_int_equal(ctw_json_as_int(n, 0, INT64_MAX, &v, &err), CTW_EFORMAT);
    }
    assert_string_equal(err.msg,
                        "t: [6]: expected a whole number of at least 0, found the number 1e-3");
    assert_true(v == 9007199254740993);
    n = ctw_json_next(n);
    assert_int_equal(ctw_json_as_int(n, 0, 0, &v, &err), CTW_OK);
    assert_int_equal(ctw_json_as_int(ctw_json_next(n), 2, 2, &v, &err), CTW_OK);
    assert_int_equal(v, 2);
    ctw_json_close(doc);
}

static void non_finite_is_remembered(void **state)
{
    (void)state;
    struct ctw_err err;
    double d = 3;
    struct ctw_json *doc =
        parse("{\"limit\": [0.0, Infinity], \"m\": -Infinity,\"n\":NaN,\"big\":1e999,"
              "\"s\":\"Infinity NaN\"}");
    const struct ctw_json_node *root = ctw_json_root(doc);
    const struct ctw_json_node *inf = ctw_json_next(ctw_json_first(ctw_json_get(root, "limit")));
    assert_int_equal(ctw_json_type(inf), CTW_JSON_NONFINITE);
    says(ctw_json_as_double(inf, &d, &err), CTW_EFORMAT, &err,
         "t: limit[1]: expected a finite number, found Infinity");
    assert_true(d == 3);
    assert_int_equal(ctw_json_type(ctw_json_get(root, "m")), CTW_JSON_NONFINITE);
    assert_int_equal(ctw_json_type(ctw_json_get(root, "n")), CTW_JSON_NONFINITE);
    assert_int_equal(ctw_json_type(ctw_json_get(root, "big")), CTW_JSON_NONFINITE);
    assert_string_equal(ctw_json_string(ctw_json_get(root, "s")), "Infinity NaN");
    size_t bytes;
    static const char begin[] = "{\"limit\": [0.0, Infinity], \"m\": -Infinity,\"n\":NaN,";
    const char *source = ctw_json_source(root, &bytes);
    assert_memory_equal(source, begin, sizeof(begin) - 1);
    ctw_json_close(doc);
}

static void what_is_not_json_is_refused(void **state)
{
    (void)state;
    refused("", "the text ends at line 1, column 1; expected a value");
    refused("{} x", "line 1, column 4 ('x'): expected nothing after the value");
    refused("{}{}", "expected nothing after the value");
    refused("[1,\n 2\n 3]", "line 3, column 2 ('3'): expected ',' or ']'");
    refused("[1,]", "expected a value");
    refused("[1", "the text ends at line 1, column 3; expected ',' or ']'");
    refused("{\"a\":1,}", "expected a key in double quotes");
    refused("{a:1}", "expected a key in double quotes");
    refused("{\"a\" 1}", "expected ':' after a key");
    refused("{\"a\":1 \"b\":2}", "expected ',' or '}'");
    refused("[1}", "expected ',' or ']'");
    refused("'a'", "expected a value");
    refused("nul", "expected a value");
    refused("nullx", "expected nothing after the value");
    refused("True", "expected a value");
    refused("+1", "expected a value");
    refused(".5", "expected a value");
    refused("01", "must not begin with a zero");
    refused("-", "expected a digit");
    refused("-Inf", "expected a digit");
    refused("1.", "expected a digit after the decimal point");
    refused("1e", "expected a digit in the exponent");
    refused("1e+", "expected a digit in the exponent");
    refused("0x10", "expected nothing after the value");
    refused("infinity", "expected a value");
    refused("// c\n1", "expected a value");
    refused("\xef\xbb\xbf\xef\xbb\xbf{}", "column 1 (byte 0xef)"); /* one is skipped */
    refused("\xef\xbb{}", "(byte 0xef): expected a value");
    refused("{}\xef\xbb\xbf", "expected nothing after the value");
    refused("version https://git-lfs.github.com/spec/v1\noid sha256:ab12\nsize 17209\n",
            ": this is a Git LFS pointer of 70 bytes, not the file itself, which has 17209 bytes; "
            "fetch it with: git lfs pull");
    refused("[1, 1111111111222222222233333333334444444444555555555566666666667777]",
            "more than 63 characters");
}

static void bad_strings_are_refused(void **state)
{
    (void)state;
    refused("[\"abc", "line 1, column 2 ('\"'): the string that begins here is not terminated");
    refused("\"abc\\", "invalid escape");
    refused("\"a\nb\"", "must be escaped");
    refused("\"\\x41\"", "invalid escape");
    refused("\"\\u00g0\"", "four hexadecimal digits");
    refused("\"\\u00", "four hexadecimal digits");
    refused("\"a\\u0000b\"", "\\u0000 is not accepted");
    refused("{\"a\\u0000\": 1}", "\\u0000 is not accepted");
    refused("\"\\ud800\"", "lone surrogate");
    refused("\"\\ud800\\u0041\"", "lone surrogate");
    refused("\"\\udc00\"", "lone surrogate");
    refused("\"\x80\"", "not UTF-8");
    refused("\"\xc0\x80\"", "not UTF-8");
    refused("\"\xc3\"", "not UTF-8");
    refused("\"\xe0\x80\x80\"", "not UTF-8");
    refused("\"\xed\xa0\x80\"", "not UTF-8");
    refused("\"\xf0\x80\x80\x80\"", "not UTF-8");
    refused("\"\xf4\x90\x80\x80\"", "not UTF-8");
    refused("\"\xff\"", "not UTF-8");
    refused_n("\"a\0b\"", 5, LIMIT, "must be escaped");
    refused_n("1\0", 2, LIMIT, "expected nothing after the value");
}

static void duplicate_keys_are_refused(void **state)
{
    (void)state;
    refused("{\"a\":1,\"b\":{\"a\":1},\"a\":2}", "t.json: a: the key occurs twice");
    refused("{\"o\":[0,{\"k\":1,\"\\u006b\":2}]}", "t.json: o[1].k: the key occurs twice");
    ctw_json_close(parse("{\"a\":1,\"A\":2,\"b\":{\"a\":1}}"));
}

static void depth_and_size_are_bounded(void **state)
{
    (void)state;
    char text[4 * CTW_JSON_MAX_DEPTH];
    for (int depth = CTW_JSON_MAX_DEPTH; depth <= CTW_JSON_MAX_DEPTH + 1; depth++) {
        memset(text, '[', (size_t)depth);
        memset(text + depth, ']', (size_t)depth);
        text[2 * depth] = '\0';
        if (depth == CTW_JSON_MAX_DEPTH)
            ctw_json_close(parse(text));
        else
            refused(text, "nested too deeply");
    }
    size_t n = 20 << 20;
    char *deep = test_malloc(n);
    memset(deep, '[', n);
    refused_n(deep, n, n, "nested too deeply");
    test_free(deep);
    refused_n("[1,2,3]", 7, 6, "7 bytes of JSON; at most 6 are accepted");
}

static void messages_name_the_path(void **state)
{
    (void)state;
    struct ctw_err err;
    struct ctw_json *doc;
    static const char text[] =
        "{\"rope_scaling\": {\"factor\": \"8\", \"low\": null},"
        "\"layer_types\": [\"full\", 3], \"hidden_size\": -1, \"k\\ney\": 1}";
    assert_int_equal(ctw_json_parse(&doc, "config.json", text, sizeof(text) - 1, LIMIT, &err),
                     CTW_OK);
    const struct ctw_json_node *root = ctw_json_root(doc), *rope = NULL, *types = NULL;
    double d = 4;
    int64_t v = 4;
    const char *s = "default";
    bool b = true;
    assert_int_equal(
        ctw_json_read_node(root, "rope_scaling", CTW_JSON_REQUIRED, CTW_JSON_OBJECT, &rope, &err),
        CTW_OK);
    says(ctw_json_read_double(rope, "factor", CTW_JSON_OPTIONAL, &d, &err), CTW_EFORMAT, &err,
         "config.json: rope_scaling.factor: expected a number, found the string \"8\"");
    says(ctw_json_read_double(rope, "low", CTW_JSON_REQUIRED, &d, &err), CTW_EFORMAT, &err,
         "config.json: rope_scaling: \"low\" is null, but is required");
    says(ctw_json_read_bool(root, "tied", CTW_JSON_REQUIRED, &b, &err), CTW_EFORMAT, &err,
         "config.json: \"tied\" is missing");
    assert_int_equal(ctw_json_read_double(rope, "low", CTW_JSON_OPTIONAL, &d, &err), CTW_OK);
    assert_int_equal(ctw_json_read_string(root, "none", CTW_JSON_OPTIONAL, &s, &err), CTW_OK);
    assert_string_equal(s, "default");
    assert_true(d == 4);
    says(ctw_json_read_int(root, "hidden_size", CTW_JSON_REQUIRED, 1, 100, &v, &err), CTW_EFORMAT,
         &err,
         "config.json: hidden_size: expected a whole number from 1 to 100, found the number -1");
    assert_int_equal(
        ctw_json_read_node(root, "layer_types", CTW_JSON_OPTIONAL, CTW_JSON_ARRAY, &types, &err),
        CTW_OK);
    says(ctw_json_as_string(ctw_json_next(ctw_json_first(types)), &s, &err), CTW_EFORMAT, &err,
         "config.json: layer_types[1]: expected a string, found the number 3");
    says(ctw_json_read_node(root, "layer_types", CTW_JSON_OPTIONAL, CTW_JSON_OBJECT, &rope, &err),
         CTW_EFORMAT, &err, "config.json: layer_types: expected an object, found an array of 2");
    says(ctw_json_read_int(types, "x", CTW_JSON_OPTIONAL, 0, 1, &v, &err), CTW_EFORMAT, &err,
         "config.json: layer_types: expected an object, found an array of 2");
    says(ctw_json_fail(ctw_json_get(root, "k\ney"), &err, CTW_EUNSUP, "not %s", "known"),
         CTW_EUNSUP, &err, "config.json: k?ey: not known");
    says(ctw_json_read_bool(root, "hidden_size", CTW_JSON_REQUIRED, &b, &err), CTW_EFORMAT, &err,
         "config.json: hidden_size: expected true or false, found the number -1");
    ctw_json_close(doc);
}

static void large_objects_are_not_quadratic(void **state)
{
    (void)state;
    enum { N_KEYS = 200000 };
    char *text = test_malloc(32 * N_KEYS), key[32];
    size_t at = 0;
    text[at++] = '{';
    for (int i = 0; i < N_KEYS; i++)
        at += (size_t)sprintf(text + at, "%s\"layer.%d.w\":%d", i > 0 ? "," : "", i, i);
    text[at++] = '}';
    text[at] = '\0';
    struct ctw_json *doc = parse(text);
    struct ctw_err err;
    for (int i = 0; i < N_KEYS; i++) { /* a linear search would take an hour here */
        int64_t v = -1;
        (void)sprintf(key, "layer.%d.w", i);
        assert_int_equal(
            ctw_json_read_int(ctw_json_root(doc), key, CTW_JSON_REQUIRED, 0, N_KEYS, &v, &err),
            CTW_OK);
        assert_int_equal(v, i);
    }
    ctw_json_close(doc);
    test_free(text);
}

static void out_of_memory_is_reported(void **state)
{
    (void)state;
    static const char text[] = "{\"a\": [1, 2, {\"b\": \"c\"}], \"d\": Infinity}";
    struct ctw_err err;
    for (int n = 1;; n++) {
        struct ctw_json *doc;
        ctw_mem_fail_at(n);
        enum ctw_status st = ctw_json_parse(&doc, "t", text, sizeof(text) - 1, LIMIT, &err);
        ctw_mem_fail_at(0);
        if (st == CTW_OK) {
            assert_true(n > 10);
            ctw_json_close(doc);
            break;
        }
        assert_int_equal(st, CTW_ENOMEM);
        assert_null(doc);
        assert_non_null(strstr(err.msg, "t: out of memory"));
    }
}

static void files_are_read(void **state)
{
    (void)state;
    char dir[] = "/tmp/ctw-json-XXXXXX", path[64];
    struct ctw_json *doc;
    struct ctw_err err;
    assert_non_null(mkdtemp(dir));
    (void)snprintf(path, sizeof(path), "%s/a.json", dir);
    assert_int_equal(ctw_json_parse_file(&doc, dir, "a.json", LIMIT, &err), CTW_ENOTFOUND);
    assert_non_null(strstr(err.msg, "a.json: cannot be opened"));
    assert_int_equal(ctw_json_parse_file(&doc, NULL, dir, LIMIT, &err), CTW_EIO);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    (void)fputs("[1, 2]", f);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(ctw_json_parse_file(&doc, dir, "a.json", 5, &err), CTW_EFORMAT);
    assert_int_equal(ctw_json_parse_file(&doc, dir, "a.json", 6, &err), CTW_OK);
    assert_int_equal(ctw_json_count(ctw_json_root(doc)), 2);
    ctw_json_close(doc);
    (void)unlink(path);
    (void)rmdir(dir);
}

static void written_text_is_as_meant(void **state)
{
    (void)state;
    struct ctw_json_writer w = {0};
    struct ctw_err err;
    const char *text;
    size_t bytes;
    ctw_json_write_open(&w, '{');
    ctw_json_write_key(&w, "a\"b");
    ctw_json_write_open(&w, '[');
    ctw_json_write_int(&w, INT64_MIN);
    ctw_json_write_uint(&w, UINT64_MAX);
    ctw_json_write_float(&w, 0.1f);
    ctw_json_write_float(&w, -0.0f);
    ctw_json_write_double(&w, 0.1);
    ctw_json_write_double(&w, 1e20);
    ctw_json_write_double(&w, 3);
    ctw_json_write_open(&w, '{');
    ctw_json_write_close(&w, '}');
    ctw_json_write_close(&w, ']');
    ctw_json_write_key(&w, "s");
    ctw_json_write_string(&w, "\\\n\t\x01\xc3\xa9\xff/\x7f");
    ctw_json_write_key(&w, "n");
    ctw_json_write_string(&w, NULL);
    ctw_json_write_key(&w, "raw");
    ctw_json_write_source(&w, "[1,2]xx", 5);
    ctw_json_write_key(&w, "b");
    ctw_json_write_bool(&w, false);
    ctw_json_write_close(&w, '}');
    assert_int_equal(ctw_json_writer_text(&w, &text, &bytes, &err), CTW_OK);
    assert_string_equal(
        text, "{\"a\\\"b\":[-9223372036854775808,18446744073709551615,0.1,-0.0,0.1,1e+20,3.0,{}],"
              "\"s\":\"\\\\\\n\\t\\u0001\xc3\xa9\xef\xbf\xbd/\\u007f\",\"n\":null,\"raw\":[1,2],"
              "\"b\":false}");
    assert_int_equal(bytes, strlen(text));
    ctw_json_close(parse(text));
    ctw_json_writer_reset(&w);
    ctw_json_write_null(&w);
    assert_int_equal(ctw_json_writer_text(&w, &text, &bytes, &err), CTW_OK);
    assert_string_equal(text, "null");
    ctw_json_writer_fini(&w);
}

static void written_floats_read_back(void **state)
{
    (void)state;
    struct ctw_json_writer w = {0};
    struct ctw_err err;
    const char *text;
    size_t bytes;
    uint64_t x = 1;
    for (int i = 0; i < 200000; i++) {
        float f;
        double d;
        x = x * 6364136223846793005u + 1442695040888963407u;
        uint32_t low = (uint32_t)(x >> 32);
        uint64_t wide = x ^ (x << 29);
        memcpy(&f, &low, sizeof(f));
        memcpy(&d, &wide, sizeof(d));
        if (!isfinite(f) || !isfinite(d))
            continue;
        ctw_json_writer_reset(&w);
        ctw_json_write_float(&w, f);
        assert_int_equal(ctw_json_writer_text(&w, &text, &bytes, &err), CTW_OK);
        float back = strtof(text, NULL), wide_back = (float)strtod(text, NULL);
        assert_memory_equal(&back, &f, sizeof(f));
        assert_memory_equal(&wide_back, &f, sizeof(f));
        ctw_json_writer_reset(&w);
        ctw_json_write_double(&w, d);
        assert_int_equal(ctw_json_writer_text(&w, &text, &bytes, &err), CTW_OK);
        double dback = strtod(text, NULL);
        assert_memory_equal(&dback, &d, sizeof(d));
    }
    ctw_json_writer_fini(&w);
}

static void writer_keeps_its_first_failure(void **state)
{
    (void)state;
    struct ctw_json_writer w = {0};
    struct ctw_err err;
    const char *text;
    size_t bytes;
    ctw_json_write_open(&w, '[');
    ctw_json_write_float(&w, NAN);
    ctw_json_write_double(&w, INFINITY);
    ctw_json_write_close(&w, ']');
    assert_int_equal(ctw_json_writer_text(&w, &text, &bytes, &err), CTW_ENUMERIC);
    ctw_json_writer_fini(&w);
    ctw_mem_fail_at(1);
    ctw_json_write_open(&w, '[');
    ctw_mem_fail_at(0);
    ctw_json_write_close(&w, ']');
    assert_int_equal(ctw_json_writer_text(&w, &text, &bytes, &err), CTW_ENOMEM);
    ctw_json_writer_fini(&w);
}

/* The vector of the paper's appendix: key 00..0f, input 00..0e. */
static void siphash_is_siphash(void **state)
{
    (void)state;
    static const uint64_t key[2] = {0x0706050403020100u, 0x0f0e0d0c0b0a0908u};
    unsigned char in[16];
    for (int i = 0; i < 16; i++)
        in[i] = (unsigned char)i;
    assert_true(ctw_siphash(key, in, 15) == 0xa129ca6149be45e5u);
    assert_true(ctw_siphash(key, in, 0) == 0x726fdb47dd0e0e31u);
    assert_true(ctw_hash(1, in, 16) == ctw_hash(1, in, 16));
    assert_true(ctw_hash(1, in, 16) != ctw_hash(2, in, 16));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_of_every_type),
        cmocka_unit_test(integers_are_exact),
        cmocka_unit_test(non_finite_is_remembered),
        cmocka_unit_test(what_is_not_json_is_refused),
        cmocka_unit_test(bad_strings_are_refused),
        cmocka_unit_test(duplicate_keys_are_refused),
        cmocka_unit_test(depth_and_size_are_bounded),
        cmocka_unit_test(messages_name_the_path),
        cmocka_unit_test(large_objects_are_not_quadratic),
        cmocka_unit_test(out_of_memory_is_reported),
        cmocka_unit_test(files_are_read),
        cmocka_unit_test(written_text_is_as_meant),
        cmocka_unit_test(written_floats_read_back),
        cmocka_unit_test(writer_keeps_its_first_failure),
        cmocka_unit_test(siphash_is_siphash),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
