#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/closest.h"
#include "worker/cli/options.h"
#include "worker/cli/options_help.h"

enum { MAX_ARGS = 16 };

/* One of each type, as a command would have them. */
struct values {
    bool quiet;
    const char *model, *out;
    int64_t n_threads;
    uint64_t memory;
    const char *dtype;
    const char *dirs[2];
};

static const char about[] = "About this command.";

/* Parses argv (after the command's name), up to a NULL. */
static enum ctw_status read_line(struct values *v, int *n_positional, bool *help,
                                 struct ctw_err *err, char **argv)
{
    const struct ctw_option options[] = {
        {.name = "quiet", .type = CTW_OPT_FLAG, .value = &v->quiet, .help = "say nothing"},
        {.name = "model",
         .type = CTW_OPT_STRING,
         .value = &v->model,
         .meta = "DIR",
         .help = "the checkpoint folder",
         .required = true},
        {.name = "out",
         .type = CTW_OPT_STRING,
         .value = &v->out,
         .meta = "FILE",
         .help = "results"},
        {.name = "n-threads",
         .type = CTW_OPT_INT,
         .value = &v->n_threads,
         .min = -2,
         .max = 64,
         .help = "threads"},
        {.name = "memory-limit", .type = CTW_OPT_BYTES, .value = &v->memory, .help = "bytes"},
        {.name = "dtype",
         .type = CTW_OPT_CHOICE,
         .value = &v->dtype,
         .choices = "auto|float32|bfloat16",
         .help = "numbers"},
    };
    const struct ctw_command_line line = {
        .name = "test",
        .synopsis = "--model DIR [NAME [NAME]]",
        .about = about,
        .options = options,
        .n_options = (int)CTW_COUNT(options),
        .positional = "NAME",
        .n_positional_max = 2,
        .positionals = v->dirs,
    };
    int argc = 0;
    while (argv[argc] != NULL)
        argc++;
    return ctw_options_read(&line, argc, argv, n_positional, help, err);
}

static void fresh(struct values *v)
{
    *v = (struct values){.n_threads = 3, .memory = 7, .dtype = "auto"};
}

static void accepts(struct values *v, int want_positional, char **argv)
{
    struct ctw_err err = {0};
    int n;
    bool help;
    fresh(v);
    if (read_line(v, &n, &help, &err, argv) != CTW_OK)
        fail_msg("%s", err.msg);
    assert_int_equal(n, want_positional);
    assert_false(help);
}

static void refuses(const char *message, char **argv)
{
    struct values v;
    struct ctw_err err = {0};
    int n;
    bool help;
    fresh(&v);
    assert_int_equal(read_line(&v, &n, &help, &err, argv), CTW_EINVAL);
    assert_string_equal(err.msg, message);
}

#define ARGS(...) ((char *[MAX_ARGS]){(char[]){"test"}, __VA_ARGS__})
#define W(word) ((char[]){word})

static void both_forms_of_every_type(void **state)
{
    (void)state;
    struct values v;
    accepts(&v, 0,
            ARGS(W("--model"), W("d"), W("--quiet"), W("--n-threads"), W("-2"), W("--memory-limit"),
                 W("2GiB"), W("--dtype"), W("float32"), W("--out"), W("-")));
    assert_true(v.quiet);
    assert_string_equal(v.model, "d");
    assert_string_equal(v.out, "-");
    assert_int_equal(v.n_threads, -2);
    assert_true(v.memory == (uint64_t)2 << 30);
    assert_string_equal(v.dtype, "float32");
    accepts(&v, 0,
            ARGS(W("--model=a=b"), W("--quiet=no"), W("--n-threads=64"), W("--memory-limit=1.5GB"),
                 W("--dtype=bfloat16"), W("--out=--x")));
    assert_false(v.quiet);
    assert_string_equal(v.model, "a=b");
    assert_int_equal(v.n_threads, 64);
    assert_true(v.memory == 1500000000);
    assert_string_equal(v.dtype, "bfloat16");
    assert_string_equal(v.out, "--x");
    accepts(&v, 0, ARGS(W("--model"), W("a"), W("--model"), W("b")));
    assert_string_equal(v.model, "b");
    assert_int_equal(v.n_threads, 3);
    assert_string_equal(v.dtype, "auto");
}

static void positionals_and_the_double_dash(void **state)
{
    (void)state;
    struct values v;
    accepts(&v, 2, ARGS(W("x"), W("--model"), W("d"), W("-")));
    assert_string_equal(v.dirs[0], "x");
    assert_string_equal(v.dirs[1], "-");
    accepts(&v, 2, ARGS(W("--model=d"), W("--"), W("--quiet"), W("-h")));
    assert_string_equal(v.dirs[0], "--quiet");
    assert_string_equal(v.dirs[1], "-h");
    assert_false(v.quiet);
    refuses("unexpected argument \"c\"; ctworker test --help shows the usage",
            ARGS(W("--model=d"), W("a"), W("b"), W("c")));
}

static void wrong_lines_get_one_clear_message(void **state)
{
    (void)state;
    refuses("--model DIR is missing (or set CTW_MODEL): the checkpoint folder", ARGS(NULL));
    refuses("unknown option --modle; did you mean --model; ctworker test --help lists the options",
            ARGS(W("--modle"), W("x")));
    refuses("unknown option --memroy-limit; did you mean --memory-limit; ctworker test --help "
            "lists the options",
            ARGS(W("--memroy-limit=1")));
    refuses("unknown option -model; did you mean --model; ctworker test --help lists the options",
            ARGS(W("-model"), W("x")));
    refuses("unknown option --frobnicate; ctworker test --help lists the options",
            ARGS(W("--frobnicate")));
    refuses("unknown option -x; ctworker test --help lists the options", ARGS(W("-x")));
    refuses("--model needs a value: --model DIR", ARGS(W("--model")));
    refuses("--model needs a value: --model DIR", ARGS(W("--model"), W("--quiet")));
    refuses("--dtype needs a value: --dtype auto|float32|bfloat16", ARGS(W("--dtype")));
    refuses("--n-threads: expected a whole number from -2 to 64, found \"65\"",
            ARGS(W("--n-threads"), W("65")));
    refuses("--n-threads: expected a whole number from -2 to 64, found \"4x\"",
            ARGS(W("--n-threads=4x")));
    refuses("--n-threads: expected a whole number from -2 to 64, found \"\"",
            ARGS(W("--n-threads=")));
    refuses("--n-threads: expected a whole number from -2 to 64, found \"99999999999999999999\"",
            ARGS(W("--n-threads=99999999999999999999")));
    refuses("--memory-limit: expected a size such as 512MiB, 20GiB or 1.5GB, found \"20G\"",
            ARGS(W("--memory-limit=20G")));
    refuses("--dtype: expected one of auto|float32|bfloat16, found \"float\"",
            ARGS(W("--dtype=float")));
    refuses("--dtype: expected one of auto|float32|bfloat16, found \"auto|float32\"",
            ARGS(W("--dtype=auto|float32")));
    refuses("--dtype: expected one of auto|float32|bfloat16, found \"\"", ARGS(W("--dtype=")));
    refuses("--quiet: expected yes or no, found \"maybe\"", ARGS(W("--quiet=maybe")));
    refuses("--out: expected FILE, found \"\" (is a variable of the shell empty?)",
            ARGS(W("--out="), W("--model=x")));
}

static void environment_sets_and_is_named(void **state)
{
    (void)state;
    struct values v;
    assert_int_equal(setenv("CTW_MODEL", "from-env", 1), 0);
    assert_int_equal(setenv("CTW_N_THREADS", "5", 1), 0);
    assert_int_equal(setenv("CTW_QUIET", "1", 1), 0);
    assert_int_equal(setenv("CTW_DTYPE", "", 1), 0);
    accepts(&v, 0, ARGS(NULL));
    assert_string_equal(v.model, "from-env");
    assert_int_equal(v.n_threads, 5);
    assert_true(v.quiet);
    assert_string_equal(v.dtype, "auto");
    accepts(&v, 0, ARGS(W("--model=cli"), W("--quiet=off"), W("--n-threads=6")));
    assert_string_equal(v.model, "cli");
    assert_int_equal(v.n_threads, 6);
    assert_false(v.quiet);
    assert_int_equal(setenv("CTW_MEMORY_LIMIT", "lots", 1), 0);
    refuses("CTW_MEMORY_LIMIT: expected a size such as 512MiB, 20GiB or 1.5GB, found \"lots\"",
            ARGS(NULL));
    static const char *const names[] = {"CTW_MODEL", "CTW_N_THREADS", "CTW_QUIET", "CTW_DTYPE",
                                        "CTW_MEMORY_LIMIT"};
    for (size_t i = 0; i < CTW_COUNT(names); i++)
        assert_int_equal(unsetenv(names[i]), 0);
}

/* Each time a list is given counts; the environment's value only where it is not given at all. */
static void lists_take_every_value(void **state)
{
    (void)state;
    const char *values[3];
    struct {
        const char *env;
        char *argv[8];
        int n; /* -1: refused */
        const char *first, *last;
    } cases[] = {
        {NULL, {W("test"), W("--dir"), W("a=A"), W("--dir=b=B")}, 2, "a=A", "b=B"},
        {"e", {W("test"), W("--dir"), W("a")}, 1, "a", "a"},
        {"e", {W("test")}, 1, "e", "e"},
        {"", {W("test")}, -1, "--dir DIR is missing (or set CTW_DIR): folders", ""},
        {NULL,
         {W("test"), W("--dir=1"), W("--dir=2"), W("--dir=3"), W("--dir=4")},
         -1,
         "--dir: at most 3 are allowed",
         ""},
    };
    for (size_t i = 0; i < CTW_COUNT(cases); i++) {
        struct ctw_option_list list = {.values = values, .max = 3};
        const struct ctw_option option = {.name = "dir",
                                          .type = CTW_OPT_LIST,
                                          .value = &list,
                                          .meta = "DIR",
                                          .help = "folders",
                                          .required = true};
        const struct ctw_command_line line = {.name = "test", .options = &option, .n_options = 1};
        struct ctw_err err = {0};
        int n_positional, argc = 0;
        bool help;
        while (cases[i].argv[argc] != NULL)
            argc++;
        if (cases[i].env != NULL)
            assert_int_equal(setenv("CTW_DIR", cases[i].env, 1), 0);
        enum ctw_status st =
            ctw_options_read(&line, argc, cases[i].argv, &n_positional, &help, &err);
        assert_int_equal(unsetenv("CTW_DIR"), 0);
        assert_int_equal(st, cases[i].n < 0 ? CTW_EINVAL : CTW_OK);
        if (cases[i].n < 0) {
            assert_string_equal(err.msg, cases[i].first);
            continue;
        }
        assert_int_equal(list.n, cases[i].n);
        assert_string_equal(list.values[0], cases[i].first);
        assert_string_equal(list.values[list.n - 1], cases[i].last);
    }
}

static void sizes(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {
        {"0", 0},
        {"4096", 4096},
        {"4096B", 4096},
        {"1KB", 1000},
        {"1 KiB", 1024},
        {"512MiB", 512u << 20},
        {"512mib", 512u << 20},
        {"1.5GB", 1500000000},
        {"0.5KiB", 512},
        {"3TiB", (uint64_t)3 << 40},
        {"18446744073709551615", UINT64_MAX},
    };
    static const char *const bad[] = {"",
                                      "x",
                                      "-1",
                                      "1.",
                                      ".5",
                                      "1GiBB",
                                      "1  GB",
                                      "1G",
                                      "1e3",
                                      "18446744073709551616",
                                      "99999999999TiB",
                                      "1.5.5",
                                      "GiB",
                                      " 1"};
    for (size_t i = 0; i < CTW_COUNT(good); i++) {
        uint64_t bytes = 1;
        if (!ctw_bytes_parse(good[i].text, &bytes) || bytes != good[i].bytes)
            fail_msg("%s: %llu", good[i].text, (unsigned long long)bytes);
    }
    for (size_t i = 0; i < CTW_COUNT(bad); i++) {
        uint64_t bytes = 1;
        if (ctw_bytes_parse(bad[i], &bytes))
            fail_msg("\"%s\" was accepted", bad[i]);
        assert_int_equal(bytes, 1);
    }
}

static void nearest_word(void **state)
{
    (void)state;
    static const char *const words[] = {"serve", "score", "stop", "inspect", "ps"};
    assert_string_equal(ctw_closest("sevre", words, 5), "serve");
    assert_string_equal(ctw_closest("scor", words, 5), "score");
    assert_string_equal(ctw_closest("inpsect", words, 5), "inspect");
    assert_null(ctw_closest("benchmark", words, 5));
    assert_null(ctw_closest("", words, 0));
    assert_null(ctw_closest("a-word-that-is-much-longer-than-any-option-could-be", words, 5));
}

static void help_is_whole_and_fits(void **state)
{
    (void)state;
    bool flag = false;
    const char *choice = "b", *folder = NULL, *nothing = NULL;
    int64_t n = 42;
    uint64_t size = 3 << 20;
    const struct ctw_option options[] = {
        {.name = "dry-run", .type = CTW_OPT_FLAG, .value = &flag, .help = "only plan"},
        {.name = "mode", .type = CTW_OPT_CHOICE, .value = &choice, .choices = "a|b", .help = "how"},
        {.name = "model",
         .type = CTW_OPT_STRING,
         .value = &folder,
         .meta = "DIR",
         .required = true,
         .help = "the folder"},
        {.name = "count", .type = CTW_OPT_INT, .value = &n, .help = "how many"},
        {.name = "limit", .type = CTW_OPT_BYTES, .value = &size, .help = "how much"},
        {.name = "a-rather-long-option-name",
         .type = CTW_OPT_STRING,
         .value = &nothing,
         .meta = "SOMETHING",
         .help = "a long text that goes on and on, so that it must be broken into several lines, "
                 "each of which begins at the same column (default: none)"},
    };
    const struct ctw_command_line line = {.name = "test",
                                          .synopsis = "--model DIR",
                                          .about = about,
                                          .options = options,
                                          .n_options = (int)CTW_COUNT(options)};
    char *text = NULL;
    size_t bytes;
    FILE *to = open_memstream(&text, &bytes);
    assert_non_null(to);
    ctw_options_print_help(&line, to);
    assert_int_equal(fclose(to), 0);
    assert_string_equal(
        text,
        "Usage: ctworker test --model DIR\n"
        "\n"
        "About this command.\n"
        "\n"
        "Options:\n"
        "  --dry-run                   only plan [CTW_DRY_RUN]\n"
        "  --mode a|b                  how (default: b) [CTW_MODE]\n"
        "  --model DIR                 the folder (required) [CTW_MODEL]\n"
        "  --count N                   how many (default: 42) [CTW_COUNT]\n"
        "  --limit SIZE                how much (default: 3MiB) [CTW_LIMIT]\n"
        "  --a-rather-long-option-name SOMETHING\n"
        "                              a long text that goes on and on, so that it must be "
        "broken into\n"
        "                              several lines, each of which begins at the same column "
        "(default: none)\n"
        "                              [CTW_A_RATHER_LONG_OPTION_NAME]\n"
        "  -h, --help                  print this help\n"
        "\n"
        "The environment variable in brackets also sets the option; the command line takes "
        "precedence.\n");
    free(text);
}

static void help_goes_before_errors(void **state)
{
    (void)state;
    struct values v;
    struct ctw_err err;
    int n;
    bool help;
    fresh(&v);
    assert_int_equal(read_line(&v, &n, &help, &err, ARGS(W("--nonsense"), W("-h"))), CTW_OK);
    assert_true(help);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_forms_of_every_type),
        cmocka_unit_test(positionals_and_the_double_dash),
        cmocka_unit_test(wrong_lines_get_one_clear_message),
        cmocka_unit_test(environment_sets_and_is_named),
        cmocka_unit_test(lists_take_every_value),
        cmocka_unit_test(sizes),
        cmocka_unit_test(nearest_word),
        cmocka_unit_test(help_is_whole_and_fits),
        cmocka_unit_test(help_goes_before_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
