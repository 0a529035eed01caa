/* The `ctworker` program: looks up the command in a table and runs it. */
#include "worker/cli/commands.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/closest.h"
#include "base/map_guard.h"
#include "base/standard_fds.h"
#include "base/status.h"
#include "ipc/messages.h"
#include "worker/cli/options.h"
#include "worker/cli/version.h"

enum { EXIT_USAGE = 64, EXIT_CANNOT_WRITE = 74 };

static const struct command {
    const char *name;
    ctw_command_fn *run;
    const char *about;
} commands[] = {
    {"serve", ctw_cmd_serve, "loads models and scores the jobs that clients send"},
    {"info", ctw_cmd_info, "shows the version, models, jobs and limits of a running worker"},
    {"health", ctw_cmd_health,
     "reports whether a running worker is healthy; for scripts and probes"},
    {"ps", ctw_cmd_ps, "lists the running workers of this user"},
    {"stop", ctw_cmd_stop, "stops a running worker"},
    {"inspect", ctw_cmd_inspect,
     "describes a checkpoint: formats, sizes, memory, hashes of weights"},
    {"store", ctw_cmd_store, "lists, verifies or empties a result store (serve --store)"},
    {"score", ctw_cmd_score, "reads token sequences and writes log-probabilities, as JSON lines"},
};

static void print_help(void)
{
    puts("ctworker scores language models exactly: log-probabilities of compressed-tensors "
         "checkpoints.\n"
         "\n"
         "Usage: ctworker COMMAND [OPTIONS]\n"
         "\n"
         "Commands:");
    for (size_t i = 0; i < CTW_COUNT(commands); i++)
        printf("  %-10s %s\n", commands[i].name, commands[i].about);
    puts("\n"
         "  ctworker COMMAND --help   options, defaults and environment variables of a command\n"
         "  ctworker --version        version, commit, compiler and libraries\n"
         "\n"
         "Commands of the Python package (pip install 'ctworker[lm-eval,ppl,compare,sweep]'):\n"
         "  lm_eval --model ctworker   tasks of lm-evaluation-harness (ctworker-lm-eval where Python\n"
         "                             reads no .pth files)\n"
         "  ctworker-ppl               one perplexity by a named method, with its standard error\n"
         "  ctworker-compare           what a quantised model lost: divergence from its original\n"
         "  ctworker-sweep             models x tasks, methods and comparisons, and their report\n"
         "\n"
         "Examples:\n"
         "  ctworker inspect ./SmolLM2-135M\n"
         "  echo '{\"id\": 1, \"tokens\": [1, 15, 27]}' | ctworker score --model ./SmolLM2-135M\n"
         "  lm_eval --model ctworker --model_args pretrained=./SmolLM2-135M --tasks wikitext\n"
         "\n"
         "CTW_LOG=debug|info|warn|error sets the log level on standard error (default: info).");
}

static int print_version(void)
{
    printf("ctworker %s\n"
           "commit   %s\n"
           "compiler %s, %s\n"
           "nng      %s\n"
           "msgpack  %s\n",
           ctw_version(), ctw_version_commit(), ctw_version_compiler(), ctw_version_build(),
           ctw_ipc_nng_version(), ctw_ipc_msgpack_version());
    return 0;
}

static int run_unknown(const char *word)
{
    const char *names[CTW_COUNT(commands)];
    for (size_t i = 0; i < CTW_COUNT(commands); i++)
        names[i] = commands[i].name;
    const char *best = ctw_closest(word, names, (int)CTW_COUNT(names));
    fprintf(stderr, "ctworker: no command \"%s\"%s%s%s; ctworker --help lists the commands\n", word,
            best != NULL ? "; did you mean \"" : "", best != NULL ? best : "",
            best != NULL ? "\"" : "");
    return EXIT_USAGE;
}

static int run(int argc, char **argv)
{
    if (argc < 2) {
        fputs("ctworker: a command is missing; ctworker --help lists the commands\n", stderr);
        return EXIT_USAGE;
    }
    const char *word = argv[1];
    for (size_t i = 0; i < CTW_COUNT(commands); i++) {
        if (strcmp(word, commands[i].name) != 0)
            continue;
        if (argc == 3 && strcmp(argv[2], "--version") == 0)
            return print_version();
        return commands[i].run(argc - 1, argv + 1);
    }
    if (strcmp(word, "--version") == 0 || strcmp(word, "-V") == 0)
        return print_version();
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 || strcmp(word, "help") == 0) {
        print_help();
        return 0;
    }
    return run_unknown(word);
}

/* Has all of standard output been written? If an earlier write failed, stdio no longer knows why.
 */
static int close_output(int exit_code)
{
    int why = fflush(stdout) != 0 ? errno : ferror(stdout) ? EIO : 0;
    if (why == 0 || exit_code != 0)
        return exit_code;
    fprintf(stderr, "ctworker: cannot write to standard output: %s\n", strerror(why));
    return EXIT_CANNOT_WRITE;
}

int main(int argc, char **argv)
{
    if (!ctw_standard_fds_open()) { /* before any file is opened */
        fprintf(stderr,
                "ctworker: cannot open /dev/null in place of a closed standard stream: %s\n",
                strerror(errno));
        return EXIT_CANNOT_WRITE;
    }
    /* With these signals ignored, a closed pipe or a file at its size limit makes write() fail, and
     * the failure gets a message. */
    (void)signal(SIGPIPE, SIG_IGN);
    (void)signal(SIGXFSZ, SIG_IGN);
    ctw_map_guard_install();
    return close_output(run(argc, argv));
}
