#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/log.h"
#include "base/mem.h"
#include "worker/engine_options.h"
#include "worker/main.h"
#include "worker/progress.h"
#include "worker/score_lines.h"
#include "worker/score_writer.h"

static const char about[] =
    "Scores token sequences without Python or a socket. Reads one JSON object a line,\n"
    "\n"
    "  {\"id\": any, \"tokens\": [1, 2, 3]}\n"
    "  {\"id\": any, \"context\": [1, 2], \"continuation\": [3]}\n"
    "\n"
    "and writes one a line, in the same order:\n"
    "\n"
    "  {\"id\": any, \"logprobs\": [..], \"sum\": -1.5, \"greedy\": [..], \"is_greedy\": true}\n"
    "\n"
    "For tokens: the natural-log probability of each token but the first, given all before it; "
    "for\n"
    "the other form, of the continuation's. greedy holds the ids the model would have chosen.\n"
    "Numbers read back to the same bits. All lines are checked before anything is scored.\n";

static volatile sig_atomic_t interrupted;

static void on_signal(int signal_number)
{
    interrupted = signal_number;
}

/* The command's state, for the engine's hooks. */
struct score {
    struct ctw_engine *engine;
    int n_decoders;
    struct ctw_score_item *items;
    int64_t n_items, cap_items;
    struct ctw_seq *seqs; /* of the items that have something to score */
    int64_t *item_of;     /* [n_seqs] */
    int64_t n_seqs;
    FILE *out;
    struct ctw_score_writer *writer;
    struct ctw_progress_line line;
    bool bad; /* some item has no finite result: the writer will say which */
};

static enum ctw_status read_items(struct score *s, FILE *in, const struct ctw_engine_info *info,
                                  struct ctw_err *err)
{
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    enum ctw_status st = CTW_OK;
    for (int64_t number = 1; st == CTW_OK && (n = getline(&line, &cap, in)) >= 0; number++) {
        if (strspn(line, " \t\r\n") == (size_t)n)
            continue;
        if (s->n_items == s->cap_items) {
            int64_t grown = s->cap_items == 0 ? 64 : 2 * s->cap_items;
            struct ctw_score_item *items = ctw_realloc(s->items, (size_t)grown, sizeof(*items));
            if (items == NULL) {
                st = ctw_fail(err, CTW_ENOMEM, "line %lld: out of memory", (long long)number);
                break;
            }
            s->items = items;
            s->cap_items = grown;
        }
        st = ctw_score_item_read(&s->items[s->n_items++], number, line, (size_t)n, info->max_length,
                                 info->vocab, err);
    }
    if (st == CTW_OK && ferror(in))
        st = ctw_fail(err, CTW_EIO, "cannot read the input: %s", strerror(errno));
    free(line);
    return st;
}

static enum ctw_status collect_seqs(struct score *s, struct ctw_err *err)
{
    s->seqs = ctw_calloc((size_t)s->n_items, sizeof(*s->seqs));
    s->item_of = ctw_calloc((size_t)s->n_items, sizeof(*s->item_of));
    if (s->seqs == NULL || s->item_of == NULL)
        return ctw_fail(err, CTW_ENOMEM, "out of memory for %lld items", (long long)s->n_items);
    for (int64_t i = 0; i < s->n_items; i++) {
        if (s->items[i].seq.first == s->items[i].seq.n_tok)
            continue;
        s->item_of[s->n_seqs] = i;
        s->seqs[s->n_seqs++] = s->items[i].seq;
    }
    return CTW_OK;
}

static void on_done(void *arg, int64_t first, int64_t n)
{
    struct score *s = arg;
    for (int64_t i = first; i < first + n; i++) {
        s->items[s->item_of[i]].seq.bad_layer = s->seqs[i].bad_layer;
        s->bad = s->bad || s->seqs[i].bad_layer >= 0;
    }
    ctw_score_writer_advance(s->writer, s->item_of[first + n - 1] + 1);
}

static void on_progress(void *arg, const struct ctw_progress *p)
{
    struct score *s = arg;
    ctw_progress_line_show(&s->line, p);
}

static bool is_cancelled(void *arg)
{
    const struct score *s = arg;
    return interrupted != 0 || s->bad || ctw_score_writer_failed(s->writer);
}

static enum ctw_status score_items(struct score *s, struct ctw_err *err)
{
    const struct ctw_hooks hooks = {
        .arg = s, .progress = on_progress, .cancelled = is_cancelled, .done = on_done};
    int64_t n_written;
    struct ctw_err write_err;
    enum ctw_status st =
        ctw_score_writer_open(&s->writer, s->items, s->n_decoders, s->out, err);
    if (st != CTW_OK)
        return st;
    ctw_progress_line_start(&s->line);
    st = ctw_engine_score(s->engine, s->seqs, s->n_seqs, &hooks, err);
    if (st == CTW_OK)
        ctw_score_writer_advance(s->writer, s->n_items);
    /* Why writing failed goes before what it led to: that the rest was cancelled. */
    enum ctw_status written = ctw_score_writer_close(s->writer, &n_written, &write_err);
    ctw_progress_line_end(&s->line, st == CTW_OK && written == CTW_OK);
    if (written != CTW_OK) {
        *err = write_err;
        return written;
    }
    if (st == CTW_ECANCELED)
        return ctw_fail(err, CTW_ECANCELED, "interrupted after %lld of %lld items",
                        (long long)n_written, (long long)s->n_items);
    return st;
}

static enum ctw_status open_stream(FILE **f, const char *path, const char *mode, FILE *standard,
                                   struct ctw_err *err)
{
    *f = standard;
    if (path == NULL || strcmp(path, "-") == 0)
        return CTW_OK;
    *f = fopen(path, mode);
    if (*f == NULL)
        return ctw_fail(err, errno == ENOENT ? CTW_ENOTFOUND : CTW_EIO, "%s: %s", path,
                        strerror(errno));
    return CTW_OK;
}

static enum ctw_status close_stream(FILE *f, const char *path, FILE *standard, struct ctw_err *err)
{
    if (f == NULL || f == standard || fclose(f) == 0)
        return CTW_OK;
    return ctw_fail(err, CTW_EIO, "%s: %s", path, strerror(errno));
}

static enum ctw_status run(struct score *s, const struct ctw_engine_options *opt,
                           const char *in_path, const char *out_path, struct ctw_err *err)
{
    FILE *in = NULL;
    struct ctw_engine_info info;
    enum ctw_status st = open_stream(&in, in_path, "re", stdin, err);
    if (st != CTW_OK)
        return st;
    st = ctw_engine_open(&s->engine, opt, err);
    if (st != CTW_OK)
        goto done;
    ctw_engine_get_info(s->engine, &info);
    s->n_decoders = info.model->n_decoders;
    ctw_progress_announce(&info);
    st = read_items(s, in, &info, err);
    if (st == CTW_OK)
        st = collect_seqs(s, err);
    if (st == CTW_OK)
        st = open_stream(&s->out, out_path, "we", stdout, err);
    if (st == CTW_OK)
        st = score_items(s, err);
done:
    if (in != NULL && in != stdin)
        fclose(in);
    if (st == CTW_OK)
        st = close_stream(s->out, out_path, stdout, err);
    else if (s->out != NULL && s->out != stdout)
        fclose(s->out);
    return st;
}

int ctw_cmd_score(int argc, char **argv)
{
    const char *model = NULL, *in_path = NULL, *out_path = NULL;
    struct ctw_engine_option_values values = {0};
    struct ctw_option options[3 + CTW_N_ENGINE_OPTIONS] = {
        {.name = "model",
         .type = CTW_OPT_STRING,
         .value = &model,
         .meta = "DIR",
         .help = "the checkpoint folder (required)"},
        {.name = "in",
         .type = CTW_OPT_STRING,
         .value = &in_path,
         .meta = "FILE",
         .help = "JSON lines to read (default: -, standard input)"},
        {.name = "out",
         .type = CTW_OPT_STRING,
         .value = &out_path,
         .meta = "FILE",
         .help = "where results go (default: -, standard output)"},
    };
    ctw_engine_option_rows(options + 3, &values);
    const struct ctw_command_line line = {
        .name = "score",
        .synopsis = "--model DIR [--in FILE] [--out FILE]",
        .about = about,
        .options = options,
        .n_options = (int)CTW_COUNT(options),
    };
    int exit_code;
    ctw_options_parse(&line, argc, argv, &exit_code);
    if (exit_code >= 0)
        return exit_code;
    if (model == NULL) {
        ctw_error("score: --model DIR is missing: name the checkpoint folder");
        return 64;
    }
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);

    struct ctw_engine_options opt = ctw_engine_options_from(&values, model);
    struct score s = {0};
    struct ctw_err err = {0};
    enum ctw_status st = run(&s, &opt, in_path, out_path, &err);
    if (st != CTW_OK)
        ctw_error("score: %s", err.msg);
    ctw_engine_close(s.engine);
    for (int64_t i = 0; i < s.n_items; i++)
        ctw_score_item_fini(&s.items[i]);
    ctw_free(s.items);
    ctw_free(s.seqs);
    ctw_free(s.item_of);
    return interrupted != 0 ? 128 + interrupted : ctw_status_exit_code(st);
}
