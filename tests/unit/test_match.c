/* Regular expressions and lists of module names. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "worker/checkpoint/match.h"

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
static void expressions_match_as_python_does(void **state)
{
    (void)state;
    static const struct {
        const char *pattern, *name;
        bool matched;
    } rows[] = {
        {".*self_attn.*", "model.layers.0.self_attn.q_proj", true},
        {"self_attn", "model.layers.0.self_attn.q_proj", false}, /* anchored at the start */
        {"model", "model.layers", true},                         /* and not at the end */
        {"model$", "model.layers", false},
        {".*mlp\\.(gate|up|gate_up|down)_proj.*", "model.layers.7.mlp.gate_up_proj", true},
        {".*mlp\\.(gate|up|gate_up|down)_proj.*", "model.layers.7.mlpxgate_proj", false},
        {"model\\.layers\\.\\d+\\.self_attn\\.[qkv]_proj$", "model.layers.12.self_attn.k_proj",
         true},
        {"model\\.layers\\.\\d+\\.self_attn\\.[qkv]_proj$", "model.layers.12.self_attn.o_proj",
         false},
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
        {"a(?=^)", "ab", false},
        {"(?=^a\\b)a", "a.b", true},
    };
    for (size_t i = 0; i < CTW_COUNT(rows); i++)
        if (matches(rows[i].pattern, rows[i].name) != rows[i].matched)
            fail_msg("\"%s\" on \"%s\": expected %s", rows[i].pattern, rows[i].name,
                     rows[i].matched ? "a match" : "none");
}

static void unknown_constructs_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *pattern;
        enum ctw_status status;
        const char *words;
    } rows[] = {
        {"(?<!lm_head).*", CTW_EUNSUP, "unsupported (?...) construct"},
        {"(?!a(?=b))", CTW_EUNSUP, "look-ahead within look-ahead at character 6"},
        {"(?!lm_head", CTW_EFORMAT, "closing parenthesis"},
        {"(?i)LM", CTW_EUNSUP, "(?...)"},
        {"(a)\\1", CTW_EUNSUP, "unsupported escape at character 5"},
        {"a++", CTW_EUNSUP, "possessive"},
        {"(ab", CTW_EFORMAT, "closing parenthesis"},
        {"ab)", CTW_EFORMAT, "unmatched closing parenthesis"},
        {"[ab", CTW_EFORMAT, "closing bracket"},
        {"[b-a]", CTW_EFORMAT, "reversed range"},
        {"*a", CTW_EFORMAT, "repetition of nothing"},
        {"a**", CTW_EFORMAT, "repetition of a repetition"},
        {"a{5,2}", CTW_EFORMAT, "reversed bounds"},
        {"a{9999999}", CTW_EUNSUP, "above 255"},
        {"((a{255}){255}){255}", CTW_EUNSUP, "too large"},
        {"(?P<name", CTW_EFORMAT, "unterminated group name"},
        {"\\", CTW_EUNSUP, "escape"},
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

/* A pattern at which a backtracking matcher takes 2^60 steps. */
static void no_pattern_takes_long(void **state)
{
    (void)state;
    char name[62];
    clock_t start = clock();
    memset(name, 'a', sizeof(name) - 1);
    name[sizeof(name) - 1] = '\0';
    assert_false(matches("(a*)*(a*)*(a|aa)+(.*.*)*!", name));
    assert_false(matches("(?:(?=(a*)*(a|aa)+)(?!(.*.*)*!)a*)*!", name));
    assert_true(clock() - start < CLOCKS_PER_SEC);
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
        cmocka_unit_test(lists_match_names_expressions_and_classes),
        cmocka_unit_test(bad_lists_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
