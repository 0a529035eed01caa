#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/lines.h"
#include "base/log.h"
#include "base/text.h"
#include "worker/cli/client_command.h"
#include "worker/cli/commands.h"
#include "worker/cli/options.h"

static const char about[] =
    "Shows a running worker: its version, devices, models, jobs and limits. For a device: its\n"
    "memory, the part that was free when the worker last worked on it, the part that the worker\n"
    "uses, and the plan for weights and passes.\n"
    "URL is the worker's address or name; the default is the only worker of this user.\n"
    "--json prints the keys of docs/PROTOCOL.md, the url, and the percentage of each job.\n"
    "\n"
    "Exit codes: 0 success; 64 wrong command line, or several workers run; 66 no such worker;\n"
    "74 no answer; 75 the worker's connections are all in use; 77 token refused.\n";

#define TEXT(s) (int)(s).n, (s).data

/* ---- json ---- */

/* Percentage of the job's tokens; a job without tokens is at 100 once its state is done. */
static double percent_of(const struct ctw_job_map *j)
{
    if (j->tokens == 0)
        return ctw_span_is(j->state, "done") ? 100 : 0;
    return 100 * (double)j->tokens_done / (double)j->tokens;
}

static void write_job(struct ctw_json_writer *w, const struct ctw_schema *schema,
                      const struct ctw_job_map *j)
{
    ctw_json_write_open(w, '{');
    ctw_json_write_members(w, schema, j);
    if (j->has.progress) {
        ctw_json_write_key_double(w, "percent", percent_of(j));
    }
    ctw_json_write_close(w, '}');
}

/* The reply with its own keys; the worker's URL and each job's percentage are added. */
static enum ctw_status print_json(const struct ctw_info_reply *r, const char *url,
                                  struct ctw_err *err)
{
    const struct ctw_schema *reply = ctw_op_messages(CTW_OP_INFO)->reply;
    struct ctw_json_writer w = {0};
    ctw_json_write_open(&w, '{');
    ctw_json_write_key_string(&w, "url", url);
    for (int i = 0; i < reply->n_fields; i++) {
        const struct ctw_field *f = &reply->fields[i];
        if (f->offset != offsetof(struct ctw_info_reply, jobs)) {
            ctw_json_write_member(&w, reply, i, r);
            continue;
        }
        ctw_json_write_key(&w, f->key);
        ctw_json_write_open(&w, '[');
        for (size_t k = 0; k < r->jobs.n; k++)
            write_job(&w, f->map, (const struct ctw_job_map *)r->jobs.data + k);
        ctw_json_write_close(&w, ']');
    }
    ctw_json_write_close(&w, '}');
    return ctw_json_print(&w, err);
}

/* ---- table ---- */

static void print_lines(const char *name, struct ctw_span text)
{
    struct ctw_lines lines = ctw_lines_of(text.data, text.n);
    for (; ctw_lines_next(&lines); name = "              ")
        printf("%s%.*s\n", name, lines.n, lines.line);
}

static void print_model(const struct ctw_model_map *m)
{
    const double mib = 1024 * 1024;
    printf("\nmodel      %.*s: %.*s\n", TEXT(m->name), TEXT(m->state));
    if (m->path.n > 0)
        printf("  path        %.*s\n", TEXT(m->path));
    if (m->message.n > 0)
        printf("  message     %.*s\n", TEXT(m->message));
    if (!m->has.ready)
        return;
    printf("  family      %.*s (%.*s)\n", TEXT(m->architecture), TEXT(m->model_type));
    printf("  parameters  %" PRIu64, m->params);
    if (m->weight_bits > 0)
        printf(", %.3f bits per weight", m->weight_bits);
    putchar('\n');
    if (m->activations.n > 0)
        printf("  activations %.*s declared in the checkpoint, %s\n", TEXT(m->activations),
               ctw_span_is(m->activations_mode, "checkpoint") ? "simulated" : "not simulated");
    printf("  runs on     %.*s-%.*s, %.*s", TEXT(m->backend), TEXT(m->variant), TEXT(m->device));
    if (m->threads > 0)
        printf(", %" PRIu64 " threads", m->threads);
    printf(" (%.*s)\n", TEXT(m->reason));
    printf("  dtype       %.*s\n", TEXT(m->dtype));
    printf("  max length  %" PRIu64 " tokens", m->max_length);
    if (m->has.own_length && m->own_length < m->max_length)
        printf(", beyond the model's own %" PRIu64, m->own_length);
    printf(", vocabulary %" PRIu64 "\n", m->vocab);
    printf("  passes      up to %" PRIu64 " tokens in chunks of %" PRIu64 "\n", m->pass_tokens,
           m->chunk_tokens);
    printf("  memory      %.1f MiB beyond the weights, limit %.1f MiB",
           (double)m->memory_planned / mib, (double)m->memory_limit / mib);
    if (m->has.more && m->fit_length < m->max_length)
        printf(", enough for inputs of %" PRIu64 " tokens", m->fit_length);
    putchar('\n');
    if (m->has.more)
        print_lines("  weights     ", m->weights_note);
    printf("  numerics    %.*s\n", TEXT(m->numerics));
    if (m->identity.n > 0)
        printf("  identity    %.*s\n", TEXT(m->identity));
    else
        printf("  identity    (known once all weights have been read)\n");
    print_lines("  products    ", m->products);
}

/* "  12.3 GiB", or nothing if it is not known. */
static void print_size(uint64_t bytes)
{
    char text[32];
    printf("%11s", bytes == 0 ? "" : ctw_format_bytes(text, sizeof(text), (double)bytes));
}

/* Prints the state of a device, and its share of the work of all devices. */
static void print_doing(const struct ctw_device_map *d, uint64_t tokens)
{
    bool works = ctw_span_is(d->state, "computing") || ctw_span_is(d->state, "waiting for weights");
    printf("      %.*s", TEXT(d->state));
    if (ctw_span_is(d->state, "failed"))
        printf(": %.*s", TEXT(d->message));
    else if (works)
        printf(", layer %" PRIu64 " of %" PRIu64 " of %.*s", d->layer, d->layers, TEXT(d->model));
    else if (ctw_span_is(d->state, "loading"))
        printf(" %.*s", TEXT(d->model));
    if (d->weights_read < 1)
        printf(", %.0f %% of the weights read", 100 * d->weights_read);
    if (d->tokens_done > 0)
        printf("; %.0f %% of the work so far: %" PRIu64 " tokens, %.0f tokens/s",
               100 * (double)d->tokens_done / (double)tokens, d->tokens_done, d->tokens_per_s);
    putchar('\n');
}

static void print_devices(const struct ctw_device_map *devices, size_t n)
{
    uint64_t tokens = 0;
    for (size_t i = 0; i < n; i++)
        tokens += devices[i].tokens_done;
    if (n > 0)
        printf("\n%-11s%11s%11s%11s%11s%11s\n", "devices", "memory", "free", "used", "weights",
               "passes");
    for (size_t i = 0; i < n; i++) {
        const struct ctw_device_map *d = &devices[i];
        printf("  %-9" PRIu64, d->device);
        print_size(d->memory_total);
        print_size(d->memory_free);
        print_size(d->memory_used);
        print_size(d->weights);
        print_size(d->passes_planned);
        printf("\n      %.*s", TEXT(d->name));
        if (d->threads > 0)
            printf(", %" PRIu64 " threads", d->threads);
        if (d->uuid.n > 0)
            printf(", %.*s, %.*s", TEXT(d->pci), TEXT(d->uuid));
        putchar('\n');
        print_doing(d, tokens);
    }
}

static void print_job(const struct ctw_job_map *j)
{
    char left[32];
    printf("  %-9.*s %" PRIu64 " of %" PRIu64 " items", TEXT(j->state), j->items_done, j->items);
    if (j->has.progress)
        printf(", %.0f %% of %" PRIu64 " tokens", percent_of(j), j->tokens);
    if (j->has.progress && j->seconds_left > 0)
        printf(", %s left", ctw_format_duration(left, sizeof(left), j->seconds_left));
    printf(", %.*s, %.*s\n", TEXT(j->kind), TEXT(j->model));
}

static void print_store(const struct ctw_store_map *s)
{
    char bytes[32], limit[32];
    printf("store      %" PRIu64 " sequences, %s of %s%s%.*s\n", s->entries,
           ctw_format_bytes(bytes, sizeof(bytes), (double)s->bytes),
           ctw_format_bytes(limit, sizeof(limit), (double)s->limit), s->path.n > 0 ? ", in " : "",
           TEXT(s->path));
    printf("           this worker found %" PRIu64 " sequences, kept %" PRIu64, s->hits, s->kept);
    if (s->lost > 0)
        printf(", could not keep %" PRIu64, s->lost);
    putchar('\n');
}

static void print_table(const struct ctw_info_reply *r, const char *url)
{
    char uptime[32];
    const struct ctw_job_map *jobs = r->jobs.data;
    printf("worker     %s\n", url);
    printf("state      %.*s%s%.*s\n", TEXT(r->state), r->message.n > 0 ? ": " : "",
           TEXT(r->message));
    if (r->insecure)
        puts(
            "access     anyone who can reach the address can use and stop the worker (--insecure)");
    printf("version    %.*s, protocol %" PRIu64 ", nng %.*s, msgpack %.*s\n", TEXT(r->version),
           r->protocol, TEXT(r->libraries.nng), TEXT(r->libraries.msgpack));
    printf("process    %" PRIu64 ", up for %s\n", r->pid,
           ctw_format_duration(uptime, sizeof(uptime), r->uptime_s));
    if (r->has.store)
        print_store(&r->store);
    print_devices(r->devices.data, r->devices.n);
    for (size_t i = 0; i < r->models.n; i++)
        print_model((const struct ctw_model_map *)r->models.data + i);
    printf("\njobs       %zu\n", r->jobs.n);
    for (size_t i = 0; i < r->jobs.n; i++)
        print_job(&jobs[i]);
}

int ctw_cmd_info(int argc, char **argv)
{
    bool json = false;
    int64_t timeout_s = 5;
    const char *which = NULL, *token_file = NULL;
    const struct ctw_option options[] = {
        ctw_opt_flag("json", &json, "print one JSON object"),
        ctw_answer_timeout_option(&timeout_s),
        ctw_token_option(&token_file),
    };
    const struct ctw_command_line line = ctw_client_command_line(
        "info", "[URL] [--json]", about, options, (int)CTW_COUNT(options), &which);
    int exit_code;
    ctw_options_parse(&line, argc, argv, &exit_code);
    if (exit_code >= 0)
        return exit_code;
    struct ctw_worker_address worker;
    struct ctw_worker_call call = {.request.op = CTW_OP_INFO};
    struct ctw_err err;
    enum ctw_status st = ctw_find_worker(which, token_file, &worker, &err);
    if (st == CTW_OK)
        st = ctw_call_worker(&call, &worker, (int)timeout_s * 1000, &err);
    if (st == CTW_OK && json)
        st = print_json(&call.reply.body.info, worker.url, &err);
    else if (st == CTW_OK)
        print_table(&call.reply.body.info, worker.url);
    if (st != CTW_OK)
        ctw_error("info: %s", err.msg);
    ctw_worker_call_close(&call);
    return ctw_status_exit_code(st);
}
