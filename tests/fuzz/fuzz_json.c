/* base/json: any text that parses can be walked, looked up and written, and reads back the same. */
#include <math.h>
#include <string.h>

#include "base/json.h"
#include "fuzz.h"

enum { MAX_BYTES = 1 << 20 };

static void check_getters(const struct ctw_json_node *n)
{
    char path[64], found[64];
    struct ctw_err err;
    int64_t i = 0;
    double d = 0;
    bool b = false;
    const char *s = NULL;
    enum ctw_json_type type = ctw_json_type(n);
    if (ctw_json_as_int(n, -1000, 1000, &i, &err) == CTW_OK)
        fuzz_check(type == CTW_JSON_NUMBER && i >= -1000 && i <= 1000);
    if (ctw_json_as_int(n, INT64_MIN, INT64_MAX, &i, &err) == CTW_OK)
        fuzz_check(type == CTW_JSON_NUMBER);
    fuzz_check((ctw_json_as_double(n, &d, &err) == CTW_OK) == (type == CTW_JSON_NUMBER));
    fuzz_check(isfinite(d));
    fuzz_check((ctw_json_as_bool(n, &b, &err) == CTW_OK) == (type == CTW_JSON_BOOL));
    fuzz_check((ctw_json_as_string(n, &s, &err) == CTW_OK) == (type == CTW_JSON_STRING));
    fuzz_check((ctw_json_string(n) == NULL) == (type != CTW_JSON_STRING));
    ctw_json_path(n, path, sizeof(path));
    ctw_json_describe(n, found, sizeof(found));
    fuzz_check(strlen(path) < sizeof(path) && strlen(found) < sizeof(found));
}

static void write_node(struct ctw_json_writer *w, const struct ctw_json_node *n)
{
    enum ctw_json_type type = ctw_json_type(n);
    size_t bytes;
    int64_t count = 0;
    check_getters(n);
    if (type == CTW_JSON_STRING) {
        ctw_json_write_string(w, ctw_json_string(n));
        return;
    }
    if (type != CTW_JSON_ARRAY && type != CTW_JSON_OBJECT) {
        const char *source = ctw_json_source(n, &bytes);
        ctw_json_write_source(w, source, bytes);
        return;
    }
    ctw_json_write_open(w, type == CTW_JSON_ARRAY ? '[' : '{');
    for (const struct ctw_json_node *c = ctw_json_first(n); c != NULL; c = ctw_json_next(c)) {
        count++;
        fuzz_check((ctw_json_key(c) != NULL) == (type == CTW_JSON_OBJECT));
        if (type == CTW_JSON_OBJECT) {
            fuzz_check(ctw_json_get(n, ctw_json_key(c)) == c);
            ctw_json_write_key(w, ctw_json_key(c));
        }
        write_node(w, c);
    }
    fuzz_check(count == ctw_json_count(n));
    ctw_json_write_close(w, type == CTW_JSON_ARRAY ? ']' : '}');
}

/* The document's contents as text; documents with equal contents give equal texts. */
static enum ctw_status rewrite(struct ctw_json_writer *w, const struct ctw_json *doc,
                               const char **text, size_t *bytes)
{
    write_node(w, ctw_json_root(doc));
    return ctw_json_writer_text(w, text, bytes, NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct ctw_json *doc, *again = NULL;
    struct ctw_json_writer w = {0}, w2 = {0};
    struct ctw_err err = {0};
    const char *text, *text2;
    size_t n, n2;
    enum ctw_status st = ctw_json_parse(&doc, "fuzz", (const char *)data, bytes, MAX_BYTES, &err);
    if (st != CTW_OK) {
        fuzz_check(doc == NULL && (st == CTW_EFORMAT || st == CTW_ENOMEM) && err.msg[0] != '\0');
        return 0;
    }
    if (rewrite(&w, doc, &text, &n) == CTW_OK) {
        st = ctw_json_parse(&again, "again", text, n, 8 * (size_t)MAX_BYTES, &err);
        fuzz_check(st == CTW_OK || st == CTW_ENOMEM);
        if (st == CTW_OK && rewrite(&w2, again, &text2, &n2) == CTW_OK)
            fuzz_check(n == n2 && memcmp(text, text2, n) == 0);
    }
    ctw_json_writer_fini(&w);
    ctw_json_writer_fini(&w2);
    ctw_json_close(again);
    ctw_json_close(doc);
    return 0;
}

const struct fuzz_seed fuzz_seeds[] = {
    FUZZ_SEED("{\"architectures\": [\"LlamaForCausalLM\"], \"hidden_size\": 576, \"rms_norm_eps\": "
              "1e-05, \"rope_scaling\": null, \"tie_word_embeddings\": true}"),
    FUZZ_SEED("{\"time_step_limit\": [0.0, Infinity], \"a\": -Infinity, \"b\": NaN}"),
    FUZZ_SEED("[1, -0, 2.50, 1e+20, 1E-7, 123456789012345678, 9007199254740993, 1e999]"),
    FUZZ_SEED("\"\\u00e9\\ud83d\\ude00\\n\\t\\\\\\/\\\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\""),
    FUZZ_SEED("{\"a\":{\"a\":{\"a\":[[[[[[[[{}]]]]]]]]}},\"b\":[{\"c\":[]},{\"c\":{}}]}"),
    FUZZ_SEED("{\"a\":1,\"a\":2}"),
    FUZZ_SEED("[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[["),
    FUZZ_SEED("[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[["
              "]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]"),
    FUZZ_SEED("\"a\\u0000b\""),
    FUZZ_SEED("\xef\xbb\xbf{}"),
    FUZZ_SEED(" \t\r\nnull \n"),
    {NULL, 0},
};

const char *const fuzz_words[] = {"{",        "}",         "[",      "]",        ":",
                                  ",",        "\"",        "null",   "true",     "false",
                                  "NaN",      "Infinity",  "-",      "\\u",      "\\ud83d",
                                  "\\ude00",  "\\",        "\"a\":", "1e308",    "\\u0000",
                                  "[[[[[[[[", "{\"a\":[{", "0.1e-",  "\xf0\x9f", NULL};
