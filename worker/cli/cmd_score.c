#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "worker/cli/commands.h"
#include "worker/cli/engine_options.h"
#include "worker/cli/progress.h"
#include "worker/cli/score_files.h"
#include "worker/cli/score_meta.h"
#include "worker/cli/score_reader.h"
#include "worker/cli/score_writer.h"

static const char about[] =
    "Scores token sequences without Python or a socket. Reads one JSON object per line,\n"
    "\n"
    "  {\"id\": any, \"tokens\": [1, 2, 3]}\n"
    "  {\"id\": any, \"context\": [1, 2], \"continuation\": [3]}\n"
    "\n"
    "and writes one JSON object per line, in the same order:\n"
    "\n"
    "  {\"id\": any, \"logprobs\": [..], \"sum\": -1.5, \"greedy\": [..], \"is_greedy\": true}\n"
    "\n"
    "logprobs holds natural-log probabilities, each given all tokens before it: for \"tokens\" of\n"
    "every token but the first, for the second form of every token of the continuation. greedy\n"
    "holds the model's most likely token ids at the same positions. Numbers read back to the\n"
    "same bits.\n"
    "\n"
    "The command reads, scores and writes one pass at a time: an input may have any length, and\n"
    "results appear as soon as they are final. Each line is checked before it is scored. A bad\n"
    "line ends the command with code 65 and an error that names the line, after the results of\n"
    "all lines before it. A result file always ends with a whole line, even after a full disk\n"
    "or Ctrl-C.\n"
    "\n"
    "The --meta file holds one JSON object: identity and numerics (if both are equal, scores are\n"
    "bit-equal), path, dtype, backend, version, the counts of items and scored tokens in the\n"
    "results, and \"complete\", which is false until the command has succeeded.\n"
    "\n"
    "Exit codes: 0 success; 64 wrong command line; 65 bad line, bad checkpoint or a score that\n"
    "is not finite; 66 no such file or folder; 69 GPU failed; 71 out of memory; 74 input/output\n"
    "error; 128 + n ended by signal n.\n";

static volatile sig_atomic_t interrupted;
static atomic_bool stop;       /* set by a signal; ends the opening of the engine */
static int wake[2] = {-1, -1}; /* a pipe: a byte written to it ends the wait for input */

static void on_signal(int signal_number)
{
    int saved = errno;
    interrupted = signal_number;
    atomic_store(&stop, true);
    (void)!write(wake[1], "", 1);
    errno = saved;
}

/* The command's state, shared with the engine's hooks. */
struct score {
    struct ctw_engine *engine;
    struct ctw_engine_info info;
    struct ctw_score_files files;
    struct ctw_score_reader *reader;
    struct ctw_score_writer *writer;
    struct ctw_score_block *block; /* being scored; owned by the writer */
    struct ctw_progress whole;     /* of all blocks; tok_total: an estimate, or 0 */
    struct ctw_progress before;    /* of earlier blocks: tokens */
    int64_t pass_tokens;
    bool shares;
    struct ctw_progress_line line;
    struct ctw_score_counts counts;
    bool begun; /* the outputs have been emptied */
    bool bad;   /* an item has no finite result: the writer names it */
};

/* ---- one block ---- */

static void on_done(void *arg, int64_t first, int64_t n)
{
    struct score *s = arg;
    struct ctw_score_block *b = s->block;
    for (int64_t i = first; i < first + n; i++) {
        b->items[b->item_of[i]].seq.bad_layer = b->seqs[i].bad_layer;
        b->is_scored[b->item_of[i]] = true;
    }
    s->whole.pass++;
    int64_t before = b->n_scored;
    for (; b->n_scored < b->n_items && b->is_scored[b->n_scored]; b->n_scored++)
        s->bad = s->bad || b->items[b->n_scored].seq.bad_layer >= 0;
    if (b->n_scored > before)
        ctw_score_writer_advance(s->writer, b->n_scored);
}

static void on_progress(void *arg, const struct ctw_progress *p)
{
    struct score *s = arg;
    s->whole.tok_done = s->before.tok_done + p->tok_done;
    s->whole.tok_computed = s->before.tok_computed + p->tok_computed;
    s->whole.layer = p->layer;
    s->whole.n_layers = p->n_layers;
    ctw_progress_line_show(&s->line, &s->whole);
}

static bool is_cancelled(void *arg)
{
    const struct score *s = arg;
    return interrupted != 0 || s->bad || ctw_score_writer_failed(s->writer);
}

/* All tokens, extrapolated from the part of the file that has been read; 0: unknown. */
static int64_t estimate_total(const struct score *s, const struct ctw_score_block *b)
{
    double bytes = (double)ctw_score_reader_bytes(s->reader), read = (double)b->input_bytes;
    return bytes < read ? 0 : (int64_t)((double)b->input_tok * (bytes / read));
}

static enum ctw_status score_block(struct score *s, struct ctw_score_block *b, struct ctw_err *err)
{
    const struct ctw_hooks hooks = {
        .arg = s, .progress = on_progress, .cancelled = is_cancelled, .done = on_done};
    int pass = s->whole.pass;
    enum ctw_status st = ctw_score_block_collect(b, err);
    if (st != CTW_OK) {
        ctw_score_block_free(b);
        return st;
    }
    s->block = b;
    s->whole.tok_total = estimate_total(s, b);
    ctw_score_writer_begin(s->writer, b);
    st = ctw_engine_score(s->engine, b->seqs, b->n_seqs, &hooks, err);
    if (st == CTW_ENOMEM)
        (void)ctw_fail_prefix(err, "lines %lld to %lld", (long long)b->items[0].line,
                              (long long)b->items[b->n_items - 1].line);
    if (st != CTW_OK)
        return st;
    s->whole.tok_done = s->before.tok_done + b->n_tok;
    s->before = s->whole;
    /* The planner halves a pass that does not fit into memory; halve the blocks as well. */
    if (b->n_new == b->n_tok && s->info.n_devices == 1 && s->whole.pass > pass + 1 &&
        s->pass_tokens > 1) {
        s->pass_tokens /= 2;
        ctw_score_reader_set_pass(s->reader, s->pass_tokens);
    }
    ctw_score_writer_finish(s->writer);
    return CTW_OK;
}

/* ---- all blocks ---- */

static enum ctw_status write_meta(struct score *s, struct ctw_err *err)
{
    if (s->files.meta.fd < 0)
        return CTW_OK;
    return ctw_score_meta_write(&s->files.meta, s->engine, &s->counts, err);
}

static enum ctw_status begin_outputs(struct score *s, struct ctw_err *err)
{
    enum ctw_status st = ctw_output_file_begin(&s->files.out, err);
    if (st == CTW_OK && s->files.meta.fd >= 0)
        st = ctw_output_file_begin(&s->files.meta, err);
    return st == CTW_OK ? write_meta(s, err) : st;
}

static enum ctw_status score_blocks(struct score *s, struct ctw_err *err)
{
    for (;;) {
        struct ctw_score_block *b;
        enum ctw_status st = ctw_score_reader_next(s->reader, &b, err);
        if (st == CTW_OK && !s->begun && interrupted == 0) {
            st = begin_outputs(s, err);
            ctw_progress_line_start(&s->line);
            s->begun = st == CTW_OK;
        }
        if (st == CTW_OK && interrupted != 0)
            st = CTW_ECANCELED;
        if (st != CTW_OK || b == NULL) {
            ctw_score_block_free(b);
            return st;
        }
        st = score_block(s, b, err);
        if (st != CTW_OK)
            return st;
    }
}

/* Ends the writer. A write error takes precedence over the cancellation that it caused. */
static enum ctw_status close_writer(struct score *s, enum ctw_status st, struct ctw_err *err)
{
    struct ctw_err write_err;
    enum ctw_status written = ctw_score_writer_close(s->writer, &s->counts.scored, &write_err);
    s->counts.items = s->files.out.n_lines;
    ctw_progress_line_end(&s->line, &s->whole);
    if (written != CTW_OK) {
        *err = write_err;
        return written;
    }
    return st;
}

static enum ctw_status score(struct score *s, struct ctw_err *err)
{
    const struct ctw_score_input input = {.fd = s->files.in,
                                          .stop_fd = wake[0],
                                          .max_length = s->info.max_length,
                                          .vocab = s->info.vocab,
                                          .shares = s->shares,
                                          .pass_tokens = s->info.call_tokens};
    s->pass_tokens = s->info.call_tokens;
    enum ctw_status st = ctw_score_reader_open(&s->reader, &input, err);
    if (st != CTW_OK)
        return st;
    st = ctw_score_writer_open(&s->writer, s->info.model->n_decoders, &s->files.out, wake[1], err);
    if (st == CTW_OK) {
        st = score_blocks(s, err);
        st = close_writer(s, st, err);
    }
    (void)!write(wake[1], "", 1); /* the reader may be waiting for input */
    ctw_score_reader_close(s->reader);
    return st;
}

static enum ctw_status run(struct score *s, const struct ctw_engine_options *opt,
                           const struct ctw_score_paths *paths, struct ctw_err *err)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
    struct ctw_err late;
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    enum ctw_status st = ctw_score_files_open(&s->files, paths, err);
    if (st == CTW_OK && pipe2(wake, O_CLOEXEC | O_NONBLOCK) != 0)
        st = ctw_fail(err, CTW_EIO, "cannot open a pipe: %s", strerror(errno));
    if (st == CTW_OK) {
        st = ctw_engine_open(&s->engine, opt, err);
        if (st != CTW_OK)
            (void)ctw_fail_prefix(err, "%s", opt->model_dir);
    }
    if (st == CTW_OK) {
        ctw_engine_get_info(s->engine, &s->info);
        ctw_progress_announce(&s->info);
        st = score(s, err);
    }
    s->counts.complete = st == CTW_OK;
    enum ctw_status ended = s->begun ? write_meta(s, &late) : CTW_OK;
    if (ended == CTW_OK)
        ended = ctw_score_files_close(&s->files, &late);
    else
        ctw_score_files_close(&s->files, NULL);
    if (st == CTW_OK && ended != CTW_OK) {
        *err = late;
        st = ended;
    }
    if (s->begun)
        ctw_info("numerics %s, identity %s", s->info.numerics, ctw_engine_identity(s->engine));
    return st;
}

/* States which results are kept, and how to go on. */
static void report_interruption(const struct score *s)
{
    long long n = s->counts.items;
    const char *out = s->files.out.path;
    if (!s->begun)
        ctw_error("score: interrupted before the first item: nothing was written; the same command "
                  "starts again");
    else if (out != NULL && strcmp(out, "-") != 0)
        ctw_error("score: interrupted after %lld items: %s keeps them; to go on, run the same "
                  "command on the input from item %lld on, with another --out",
                  n, out, n + 1);
    else
        ctw_error("score: interrupted after %lld items, which were written; to go on, run the same "
                  "command on the input from item %lld on",
                  n, n + 1);
}

int ctw_cmd_score(int argc, char **argv)
{
    const char *model = NULL;
    struct ctw_score_paths paths = {0};
    struct ctw_engine_option_values values = {0};
    struct ctw_option options[4 + CTW_N_ENGINE_OPTIONS] = {
        ctw_opt_required(ctw_opt_string("model", &model, "DIR",
                                        "the checkpoint: its folder or its file")),
        ctw_opt_string("in", &paths.in, "FILE", "input, JSON lines (default: -, standard input)"),
        ctw_opt_string("out", &paths.out, "FILE",
                       "results, JSON lines (default: -, standard output)"),
        ctw_opt_string(
            "meta", &paths.meta, "FILE",
            "record of how the results were made (default: OUT.meta.json with --out OUT, "
            "else no record)"),
    };
    ctw_engine_option_rows(options + 4, &values);
    const struct ctw_command_line line = {
        .name = "score",
        .synopsis = "--model DIR [--in FILE] [--out FILE] [--meta FILE]",
        .about = about,
        .options = options,
        .n_options = (int)CTW_COUNT(options),
    };
    int exit_code;
    ctw_options_parse(&line, argc, argv, &exit_code);
    if (exit_code >= 0)
        return exit_code;
    struct ctw_engine_options opt = ctw_engine_options_from(&values, model);
    opt.stop = &stop;
    struct score s = {.shares = !opt.no_share};
    struct ctw_err err = {0};
    enum ctw_status st = run(&s, &opt, &paths, &err);
    if (interrupted != 0 && st == CTW_ECANCELED)
        report_interruption(&s);
    else if (st != CTW_OK)
        ctw_error("score: %s", err.msg);
    ctw_engine_close(s.engine);
    return interrupted != 0 ? 128 + interrupted : ctw_status_exit_code(st);
}
