/* Regular expressions and lists of module names. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "worker/checkpoint/quant/match.h"

static bool matches(const char *pattern, const char *name)
{
    struct ctw_regex *re = NULL;
    struct ctw_err err = {0};
    bool matched = false;
    if (ctw_regex_compile(&re, pattern, &err) != CTW_OK ||
        ctw_regex_match(re, name, &matched, &err) != CTW_OK)
        fail_msg("%s", err.msg);
    ctw_regex_close(re);
    return matched;
}

/* Every row was also put to Python's re.match. */
static const struct {
    const char *pattern, *name;
    bool matched;
} in_python[] = {
    {".*self_attn.*", "model.layers.0.self_attn.q_proj", true},
    {"self_attn", "model.layers.0.self_attn.q_proj", false}, /* anchored at the start */
    {"model", "model.layers", true},                         /* and not at the end */
    {"model$", "model.layers", false},
    {".*mlp\\.(gate|up|gate_up|down)_proj.*", "model.layers.7.mlp.gate_up_proj", true},
    {".*mlp\\.(gate|up|gate_up|down)_proj.*", "model.layers.7.mlpxgate_proj", false},
    {"model\\.layers\\.\\d+\\.self_attn\\.[qkv]_proj$", "model.layers.12.self_attn.k_proj", true},
    {"model\\.layers\\.\\d+\\.self_attn\\.[qkv]_proj$", "model.layers.12.self_attn.o_proj", false},
    {"model.layers.(0|1[0-9]|2).mlp", "model.layers.15.mlp", true},
    {"model.layers.(0|1[0-9]|2).mlp", "model.layers.1.mlp", false},
    {"(?:a|b)+?c", "ababc", true},
    {"(?P<n>ab){2,3}$", "abab", true},
    {"(?P<n>ab){2,3}$", "abababab", false},
    {"a{2}", "aa", true},
    {"a{3,}", "aa", false},
    {"a{,1}b", "b", true},
    {"a{0}b", "b", true},
    {"a{x}", "a{x}", true}, /* not a repetition: plain text */
    {"[^.]+$", "lm_head", true},
    {"[^.]+$", "model.norm", false},
    {"[]a]b", "]b", true},
    {"\\w+\\.\\D", "a_1.x", true},
    {"\\w+\\.\\D", "a_1.2", false},
    {"^lm_head\\Z", "lm_head", true},
    {".*\\bup\\b", "mlp.up.x", true},
    {".*\\bup\\b", "mlp.up_proj", false},
    {"(a*)*b", "aaab", true},
    {"(a|)+$", "aa", true},
    {"", "anything", true},
    {"|x", "y", true},
    {"((a)|(b))*\\.((c|d)e)?f", "abba.def", true},
    {"((a)|(b))*\\.((c|d)e)?f", "abba.dcf", false},
    {"^(?!.*experts).*$", "model.layers.0.mlp.gate", true},
    {"^(?!.*experts).*$", "model.layers.0.mlp.experts.0.up_proj", false},
    {"(?!lm_head)", "lm_head", false},
    {"(?!lm_head)", "model.norm", true},
    {"^(?!.*self_attn.(o_proj|q_a_proj)$).*$", "a.self_attn.q_a_proj", false},
    {"^(?!.*self_attn.(o_proj|q_a_proj)$).*$", "a.self_attn.q_a_proj.x", true},
    {"(?=.*up).*\\.1\\.", "model.1.up_proj", true},
    {"(?=.*up).*\\.1\\.", "model.1.down_proj", false},
    {"((?!mlp|attn).)*$", "model.norm", true},
    {"((?!mlp|attn).)*$", "model.mlp.up", false},
    {"(?:a(?!b)|ab)c?", "abc", true},
    {"a(?!b){2}c", "ac", true},
    {".*\\.(?=\\d+$)\\d", "layers.12", true},
    {".*\\.(?=\\d+$)\\d", "layers.12.x", false},
    {"a{,1}b", "aab", false},
    {"a{,}b$", "aaab", true},
    {"a{ 1}", "a{ 1}", true},
    {"a{,", "a{,", true},
    {"{}", "{}", true},
    {"lm_head\\Z", "lm_head\n", false},
    {"lm_head$", "lm_head\n", true},
    {"lm_head$", "lm_head\n\n", false},
    {"a.b", "a\nb", false},
    {".b",
     "\xc3\xa4"
     "b",
     true}, /* a character, not a byte */
    {"\\w+$", "\xc3\xa4\xc3\xb6", true},
    {"\\d$", "\xd9\xa3", true}, /* Arabic-Indic three */
    {"[^a]$", "\xc3\xa4", true},
    {"\\w\\b", "\xc3\xa4-", true},
    {"\\x61\\.[\\x62]", "a.b", true},
    {"[[a]b", "[b", true},
    {"[^]]b", "ab", true},
    {"[\\]\\-a]+$", "]-a", true},
    {"[a-]+$", "a-", true},
    {"(?i)LM_HEAD", "lm_head", true},
    {"(?i:LM)_HEAD", "lm_head", false},
    {"(?s).*x", "a\nx", true},
    {"(?#note)a", "a", true},
    {"(a)\\1", "aa", true},
    {"(?P<n>a|b)(?P=n)", "ab", false},
    {"(?>a*)a", "aaa", false},
    {"a*+a", "aaa", false},
    {"(?<!lm_).*head", "lm_head", true},
    {".*(?<!lm_)head", "lm_head", false},
    {".*(?<=lm_)head", "lm_head", true},
    {"(?!a(?=b))a", "ab", false},
    {"(?!a(?=b))a", "ac", true},
    {"model\\.layers\\.(?:[0-9]|1[0-9])\\..*", "model.layers.17.mlp.up_proj", true},
    {"model\\.layers\\.(?:[0-9]|1[0-9])\\..*", "model.layers.20.mlp.up_proj", false},
    {"(.*)", "", true},
    {".+", "", false},
    {"a(?=^)", "ab", false},
    {"(?=^a\\b)a", "a.b", true},
};

static void expressions_match_as_python_does(void **state)
{
    (void)state;
    for (size_t i = 0; i < CTW_COUNT(in_python); i++)
        if (matches(in_python[i].pattern, in_python[i].name) != in_python[i].matched)
            fail_msg("\"%s\" on \"%s\": expected %s", in_python[i].pattern, in_python[i].name,
                     in_python[i].matched ? "a match" : "none");
}

static void unknown_constructs_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *pattern;
        enum ctw_status status;
        const char *words;
    } rows[] = {
        {"[[:alpha:]]", CTW_EUNSUP, "class of characters in a set at character 2"},
        {"a\\h", CTW_EUNSUP, "escape at character 2"},
        {"\\p{L}", CTW_EUNSUP, "escape"},
        {"\\v", CTW_EUNSUP, "escape"}, /* in Python a character, in Perl a class */
        {"[\\N]", CTW_EUNSUP, "escape"},
        {"\\Qa\\E", CTW_EUNSUP, "escape"},
        {"\\K", CTW_EUNSUP, "escape"},
        {"\\101", CTW_EUNSUP, "escape"},
        {"\\0", CTW_EUNSUP, "escape"},
        {"\\x{61}", CTW_EUNSUP, "escape"},
        {"(?<n>a)", CTW_EUNSUP, "(?...) construct at character 1"},
        {"(?R)", CTW_EUNSUP, "(?...)"},
        {"(?P>n)", CTW_EUNSUP, "(?...)"},
        {"(?|a)", CTW_EUNSUP, "(?...)"},
        {"(?(1)a|b)", CTW_EUNSUP, "(?...)"},
        {"(?C1)a", CTW_EUNSUP, "(?...)"},
        {"a(?i)b", CTW_EUNSUP, "(?...)"},
        {"(?U)a", CTW_EUNSUP, "(?...)"},
        {"(*LIMIT_MATCH=9)a", CTW_EUNSUP, "(*...)"},
        {"a{9999999}", CTW_EUNSUP, "number too big"},
        {"((a{255}){255}){255}", CTW_EUNSUP, "too large"},
        {"(?!lm_head", CTW_EFORMAT, "closing parenthesis"},
        {"(ab", CTW_EFORMAT, "closing parenthesis"},
        {"ab)", CTW_EFORMAT, "unmatched closing parenthesis"},
        {"[ab", CTW_EFORMAT, "missing terminating ]"},
        {"[b-a]", CTW_EFORMAT, "range out of order"},
        {"*a", CTW_EFORMAT, "quantifier does not follow"},
        {"a**", CTW_EFORMAT, "quantifier does not follow"},
        {"a{5,2}", CTW_EFORMAT, "numbers out of order"},
        {"(?P<name", CTW_EFORMAT, "syntax error in subpattern name"},
        {"\\", CTW_EFORMAT, "\\ at end of pattern"},
        {"(a)\\2", CTW_EFORMAT, "non-existent"},
        {"(?<=a*)b", CTW_EFORMAT, "lookbehind"},
    };
    for (size_t i = 0; i < CTW_COUNT(rows); i++) {
        struct ctw_regex *re = NULL;
        struct ctw_err err = {0};
        enum ctw_status st = ctw_regex_compile(&re, rows[i].pattern, &err);
        if (st != rows[i].status || strstr(err.msg, rows[i].words) == NULL)
            fail_msg("\"%s\": %s \"%s\", expected \"%s\"", rows[i].pattern, ctw_status_name(st),
                     err.msg, rows[i].words);
    }
}

/* Patterns at which a backtracking matcher takes 2^60 steps: an error, not a wait. */
static void no_pattern_takes_long(void **state)
{
    (void)state;
    static const char *const patterns[] = {
        "(a*)*(a*)*(a|aa)+(.*.*)*[!?]", "(?:(?=(a*)*(a|aa)+)(?!(.*.*)*[!?])a*)*[!?]", "(a|a)*[!?]",
        "(?:a?){60}a{60}[!?]", "(.*)(.*)(.*)(.*)(.*)(.*)(.*)(.*)[!?]\\Z"};
    char name[62];
    memset(name, 'a', sizeof(name) - 1);
    name[sizeof(name) - 1] = '\0';
    for (size_t i = 0; i < CTW_COUNT(patterns); i++) {
        struct ctw_regex *re = NULL;
        struct ctw_err err = {0};
        bool matched;
        assert_int_equal(ctw_regex_compile(&re, patterns[i], &err), CTW_OK);
        if (ctw_regex_match(re, name, &matched, &err) != CTW_EUNSUP)
            fail_msg("\"%s\": expected too many steps", patterns[i]);
        assert_non_null(strstr(err.msg, "takes too many steps on \"aaaa"));
        ctw_regex_close(re);
    }
    char *long_pattern = ctw_calloc(10000, 1);
    struct ctw_regex *re = NULL;
    struct ctw_err err = {0};
    assert_non_null(long_pattern);
    memset(long_pattern, 'a', 9999);
    assert_int_equal(ctw_regex_compile(&re, long_pattern, &err), CTW_EUNSUP);
    assert_non_null(strstr(err.msg, "of 9999 bytes"));
    ctw_free(long_pattern);
}

static void any_allocation_may_fail(void **state)
{
    (void)state;
    for (int64_t n = 1;; n++) {
        struct ctw_regex *re = NULL;
        struct ctw_err err = {0};
        bool matched = false;
        ctw_mem_fail_at(n);
        enum ctw_status st = ctw_regex_compile(&re, "(a|b)*(?=c)", &err);
        if (st == CTW_OK)
            st = ctw_regex_match(re, "abc", &matched, &err);
        ctw_mem_fail_at(0);
        ctw_regex_close(re);
        if (st == CTW_OK) {
            assert_true(matched);
            assert_true(n > 5);
            return;
        }
        assert_int_equal(st, CTW_ENOMEM);
    }
}

static void lists_match_names_expressions_and_classes(void **state)
{
    (void)state;
    static const char text[] = "[\"lm_head\", \"re:.*gate$\", \"Embedding\", \"LlamaExperts\"]";
    struct ctw_patterns list;
    struct ctw_json *doc;
    struct ctw_err err = {0};
    bool matched = true;
    assert_int_equal(ctw_json_parse(&doc, "x", text, sizeof(text) - 1, 4096, &err), CTW_OK);
    assert_int_equal(ctw_patterns_read(&list, ctw_json_root(doc), &err), CTW_OK);
    assert_int_equal(list.n, 4);
    static const struct {
        const char *name, *class_name;
        bool matched;
    } rows[] = {{"lm_head", "Linear", true},          {"lm_head.x", "Linear", false},
                {"model.lm_head", "Linear", false},   {"model.mlp.gate", "Linear", true},
                {"model.embed", "Embedding", true},   {"Embedding", "Linear", true},
                {"model.mlp.gates", "Linear", false}, {"mlp.experts", CTW_CLASS_EXPERTS, true},
                {"mlp.experts", "Linear", false}};
    for (size_t i = 0; i < CTW_COUNT(rows); i++) {
        assert_int_equal(
            ctw_patterns_match(&list, rows[i].name, rows[i].class_name, &matched, &err), CTW_OK);
        assert_int_equal(matched, rows[i].matched);
    }
    ctw_patterns_close(&list);
    ctw_json_close(doc);
}

static void bad_lists_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text, *words;
    } rows[] = {
        {"[\"a\", 1]", "[1]: expected a string"},
        {"\"lm_head\"", "expected an array"},
        {"[\"re:(\"]", "[0]: regular expression \"(\""},
    };
    for (size_t i = 0; i < CTW_COUNT(rows); i++) {
        struct ctw_patterns list;
        struct ctw_json *doc;
        struct ctw_err err = {0};
        assert_int_equal(ctw_json_parse(&doc, "x", rows[i].text, strlen(rows[i].text), 4096, &err),
                         CTW_OK);
        assert_int_not_equal(ctw_patterns_read(&list, ctw_json_root(doc), &err), CTW_OK);
        if (strstr(err.msg, rows[i].words) == NULL)
            fail_msg("\"%s\" does not say \"%s\"", err.msg, rows[i].words);
        ctw_patterns_close(&list);
        ctw_json_close(doc);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(expressions_match_as_python_does),
        cmocka_unit_test(unknown_constructs_are_named),
        cmocka_unit_test(no_pattern_takes_long),
        cmocka_unit_test(any_allocation_may_fail),
        cmocka_unit_test(lists_match_names_expressions_and_classes),
        cmocka_unit_test(bad_lists_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
