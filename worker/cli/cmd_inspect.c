#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/lines.h"
#include "base/log.h"
#include "base/text.h"
#include "worker/checkpoint/identity.h"
#include "worker/cli/commands.h"
#include "worker/cli/engine_options.h"
#include "worker/cli/inspect_formats.h"
#include "worker/cli/inspect_hashes.h"
#include "worker/cli/inspect_json.h"
#include "worker/cli/machine_options.h"
#include "worker/engine/pass/plan.h"
#include "worker/model/recipe/kinds.h"

static const char about[] =
    "Describes the checkpoint in the folder DIR without scoring: family, shape, weight formats\n"
    "and their bits per weight, size, keys of config.json that are not read, and the memory\n"
    "that scoring needs in addition to the mapped weights.\n"
    "\n"
    "With the Python package, DIR may also be a name on the Hugging Face hub, ORG/NAME or\n"
    "ORG/NAME@REVISION: only the configuration and the headers of the weights' files are fetched.\n"
    "\n"
    "--hashes prints one line per linear layer instead, including a tied lm_head and quantised\n"
    "embeddings: NAME  N  K  DTYPE  SHA-256. The hash covers the decoded values, row by row, in\n"
    "the checkpoint's dtype: equal lines mean equal weights.\n"
    "\n"
    "--device-memory plans for GPUs that need not be here: `inspect DIR --devices 2 "
    "--device-memory\n"
    "48GiB` shows the place of the weights, the cost of a pass, and what limits its rate.\n"
    "\n"
    "--json prints one JSON object instead: path, architecture, params, bytes (of all files),\n"
    "weight_bits (bits per weight of the quantised matrices, with scales; 0: none is quantised),\n"
    "formats (format, matrices, params, bytes, bits), identity (with --identity), and more.\n"
    "\n"
    "Exit codes: 0 success; 64 wrong command line; 65 damaged or unsupported checkpoint (one\n"
    "line says what was found, where and why); 66 no such folder or file; 69 GPU failed; 71\n"
    "out of memory; 74 input/output error.\n";

static void print_formats(const struct ctw_model *m)
{
    struct ctw_inspect_kind kinds[CTW_INSPECT_KINDS];
    int n_kinds = ctw_inspect_formats(m, kinds);
    char size[32];
    printf("\n%-58s %8s %15s %8s %10s\n", "format", "matrices", "parameters", "bits", "size");
    for (int i = 0; i < n_kinds; i++)
        printf("%-58s %8" PRId64 " %15" PRId64 " %8.3f %10s\n", kinds[i].text, kinds[i].n_matrices,
               kinds[i].n_params, 8.0 * kinds[i].bytes / (double)kinds[i].n_params,
               ctw_format_bytes(size, sizeof(size), kinds[i].bytes));
    if (m->weight_bits > 0)
        printf("bits per weight of the quantised matrices, scales and zero points included: %.3f\n",
               m->weight_bits);
}

static void print_tensors(const struct ctw_model *m)
{
    char text[96];
    printf("\n");
    for (int l = 0; l < m->n_layers; l++)
        for (int i = 0; i < ctw_layer_n_matrices(&m->layers[l]); i++) {
            const struct ctw_matrix *matrix = ctw_layer_matrix_of(&m->layers[l], i);
            if (matrix->name == NULL || ctw_is_repeated_matrix(m, l, i))
                continue;
            ctw_inspect_describe(&matrix->weight, text, sizeof(text));
            printf("%s  %" PRId64 "  %" PRId64 "  %.3f bits  %s%s\n", matrix->name,
                   matrix->weight.n, matrix->weight.k,
                   8.0 * (double)ctw_weight_bytes(&matrix->weight) /
                       ((double)matrix->weight.n * (double)matrix->weight.k),
                   text, ctw_is_tied_head(m, l, i) ? " (tied)" : "");
        }
}

/* ---- the model and the memory plan ---- */

static void print_windows(const struct ctw_model *m)
{
    int n_window = 0;
    int64_t window = 0;
    for (int l = 1; l <= m->n_decoders; l++) {
        int64_t of_layer = ctw_layer_facts(&m->layers[l]).window;
        n_window += of_layer != 0;
        window = of_layer != 0 ? of_layer : window;
    }
    if (n_window > 0)
        printf("window        %" PRId64 " tokens in %d of %d layers\n", window, n_window,
               m->n_decoders);
}

/* "128", or "128 to 256" if the layers differ. */
static void print_range(const struct ctw_model *m, size_t fact)
{
    int64_t least = INT64_MAX, most = 0;
    for (int i = 1; i <= m->n_decoders; i++) {
        const struct ctw_facts facts = ctw_layer_facts(&m->layers[i]);
        int64_t v;
        memcpy(&v, (const char *)&facts + fact, sizeof(v));
        least = v < least ? v : least;
        most = v > most ? v : most;
    }
    printf("%" PRId64, least);
    if (most > least)
        printf(" to %" PRId64, most);
}

/* What the files say of themselves: who made them, from what, with which importance matrix. */
static void print_metadata(const struct ctw_metadata *metadata)
{
    static const char *const shown[] = {"general.", "quantize."};
    char text[128];
    bool first = true;
    for (int64_t i = 0; metadata != NULL && i < metadata->n_items; i++)
        for (size_t s = 0; s < CTW_COUNT(shown); s++)
            if (strncmp(metadata->items[i].key, shown[s], strlen(shown[s])) == 0) {
                printf("%-13s %s: %s\n", first ? "metadata" : "", metadata->items[i].key,
                       ctw_meta_describe(&metadata->items[i], text, sizeof(text)));
                first = false;
            }
}

static void print_model(const struct ctw_model *m)
{
    char size[32];
    printf("checkpoint    %s\n", m->dir);
    printf("family        %s (model_type %s)\n", m->architecture, m->model_type);
    printf("layers        %d, hidden %" PRId64 ", inner ", m->n_decoders, m->hidden);
    print_range(m, offsetof(struct ctw_facts, inner));
    printf("\nheads         ");
    print_range(m, offsetof(struct ctw_facts, n_head));
    printf(", key-value heads ");
    print_range(m, offsetof(struct ctw_facts, n_kv));
    printf(", of ");
    print_range(m, offsetof(struct ctw_facts, head));
    printf(" elements\n");
    print_windows(m);
    printf("vocabulary    %" PRId64 "%s\n", m->vocab, m->tied ? ", tied to the head" : "");
    printf("max length    %" PRId64, m->max_length);
    if (m->own_length > m->max_length)
        printf(", with its scaled RoPE %" PRId64, m->own_length);
    if (m->length_limit != 0)
        printf(", a hard limit (%s)", m->limited_by);
    printf("\n");
    printf("dtype         %s\n", ctw_dtype_long_name(m->dtype));
    printf("parameters    %" PRId64 "\n", m->n_params);
    printf("size on disk  %s in %d file%s%s\n",
           ctw_format_bytes(size, sizeof(size), (double)ctw_container_bytes(m->container)),
           ctw_container_n_files(m->container), ctw_container_n_files(m->container) == 1 ? "" : "s",
           ctw_container_is_headers_alone(m->container) ? ", of which only the headers are here"
                                                        : "");
    print_metadata(ctw_container_metadata(m->container));
    if (m->n_apart > 0)
        printf("not text      %s in %" PRId64 " tensors, which scores do not need\n",
               ctw_format_bytes(size, sizeof(size), (double)m->apart_bytes), m->n_apart);
    if (m->n_scales > 0)
        printf("not used      %" PRId64 " scale%s of activations, attention or K/V caches, which "
               "these scores do not need\n",
               m->n_scales, m->n_scales == 1 ? "" : "s");
    if (ctw_identity_text(m->identity)[0] != '\0')
        printf("identity      %s\n", ctw_identity_text(m->identity));
    if (m->activations != NULL)
        printf("activations   %s declared in the checkpoint: %s\n", m->activations,
               m->quantises_activations ? "simulated (--activations=checkpoint)"
                                        : "not simulated, only weights are quantised");
    if (m->n_rotations > 0 && ctw_container_is_headers_alone(m->container))
        printf("rotations     of activations\n");
    else if (m->n_rotations > 0)
        printf("rotations     of activations, by %d %s\n", m->n_rotations,
               m->n_rotations == 1 ? "matrix" : "different matrices");
}

/* Prints lines of at most 100 columns, broken after commas. */
static void print_unread(const char *keys)
{
    enum { MAX_COLUMNS = 98 };
    printf("\nkeys of config.json that are not read, because they cannot change a score:\n");
    for (const char *next; *keys != '\0'; keys = next) {
        next = keys + strlen(keys);
        if (next - keys > MAX_COLUMNS) {
            const char *cut = keys + MAX_COLUMNS;
            while (cut > keys && cut[-1] != ' ')
                cut--;
            next = cut > keys ? cut : next;
        }
        printf("  %.*s\n", (int)(next - keys) - (next[-1] == ' '), keys);
    }
}

/* Memory that scoring takes in addition to the mapped weights, with these options, on this machine.
 * Takes over the model. */
static enum ctw_status print_memory_plan(struct ctw_model *m, const struct ctw_engine_options *opt,
                                         struct ctw_err *err)
{
    struct ctw_engine *engine = NULL;
    struct ctw_engine_info info;
    char planned[32], limit[32], threads[32] = ""; /* "" on a GPU */
    struct ctw_engine_options plan = *opt;
    plan.model = m;
    plan.plan_only = true;
    enum ctw_status st = ctw_engine_open(&engine, &plan, err);
    if (st != CTW_OK)
        return st;
    ctw_engine_get_info(engine, &info);
    if (info.backend.n_threads > 0)
        snprintf(threads, sizeof(threads), ", %d threads", info.backend.n_threads);
    printf("\nmemory beyond the weights: %s planned (limit %s) with backend %s-%s, dtype %s%s:\n"
           "passes of %" PRId64 " tokens in chunks of %" PRId64 "\n",
           ctw_format_bytes(planned, sizeof(planned), (double)info.memory_planned),
           ctw_format_bytes(limit, sizeof(limit), (double)info.memory_limit), info.backend.backend,
           info.backend.variant, ctw_dtype_long_name(info.dtype), threads, info.pass_tokens,
           info.chunk_tokens);
    struct ctw_lines lines = ctw_lines_of(info.place_note, strlen(info.place_note));
    while (ctw_lines_next(&lines))
        printf("weights: %.*s\n", lines.n, lines.line);
    ctw_engine_close(engine);
    return CTW_OK;
}

struct flags {
    bool identity, hashes, tensors, json;
};

static enum ctw_status inspect(const struct ctw_engine_options *opt, const struct flags *flags,
                               struct ctw_err *err)
{
    struct ctw_model *m = NULL;
    const struct ctw_model_options model_opt = ctw_engine_model_options(opt);
    enum ctw_status st = ctw_model_open(&m, opt->model_dir, &model_opt, err);
    if (st == CTW_OK && (flags->identity || flags->hashes))
        st = ctw_container_check_weights(m->container, err);
    if (st == CTW_OK && flags->identity)
        st = ctw_identity_read(m->identity, m->container, opt->n_threads, NULL, err);
    if (st != CTW_OK) {
        ctw_model_close(m);
        return st;
    }
    if (flags->hashes) {
        st = ctw_inspect_hashes(m, opt, err);
        ctw_model_close(m);
    } else if (flags->json) {
        st = ctw_inspect_json(m, err);
        ctw_model_close(m);
    } else {
        print_model(m);
        print_formats(m);
        if (flags->tensors)
            print_tensors(m);
        if (m->unread != NULL)
            print_unread(m->unread);
        st = print_memory_plan(m, opt, err);
    }
    return st;
}

int ctw_cmd_inspect(int argc, char **argv)
{
    const char *dir = NULL;
    struct flags flags = {0};
    struct ctw_engine_option_values values = {0};
    struct ctw_machine_values described = {0};
    struct ctw_machine machine;
    struct ctw_option options[4 + CTW_N_ENGINE_OPTIONS + CTW_N_MACHINE_OPTIONS] = {
        ctw_opt_flag("identity", &flags.identity,
                     "also print the checkpoint's identity, as in results; reads all weights"),
        ctw_opt_flag("hashes", &flags.hashes,
                     "print only the hash of every linear layer's decoded weight"),
        ctw_opt_flag("tensors", &flags.tensors,
                     "also print one line per matrix: shape, bits per weight, format"),
        ctw_opt_flag("json", &flags.json,
                     "print one JSON object for programs, without the memory plan"),
    };
    ctw_engine_option_rows(options + 4, &values);
    ctw_machine_option_rows(options + 4 + CTW_N_ENGINE_OPTIONS, &described);
    const struct ctw_command_line line = {
        .name = "inspect",
        .synopsis = "[--identity] [--tensors | --json] DIR | --hashes DIR",
        .about = about,
        .options = options,
        .n_options = (int)CTW_COUNT(options),
        .positional = "DIR",
        .n_positional_min = 1,
        .n_positional_max = 1,
        .positionals = &dir,
    };
    int exit_code;
    ctw_options_parse(&line, argc, argv, &exit_code);
    if (exit_code >= 0)
        return exit_code;
    if (flags.hashes && (flags.identity || flags.tensors || flags.json)) {
        ctw_error("inspect: --hashes prints only the hashes; remove --%s",
                  flags.identity  ? "identity"
                  : flags.tensors ? "tensors"
                                  : "json");
        return 64;
    }
    if (flags.json && flags.tensors) {
        ctw_error("inspect: --json has no list of matrices; remove --tensors");
        return 64;
    }
    if (described.device_memory > 0 && values.backend != NULL &&
        strcmp(values.backend, "cpu") == 0) {
        ctw_error("inspect: --device-memory describes GPUs: leave it or --backend cpu out");
        return 64;
    }
    struct ctw_engine_options opt = ctw_engine_options_from(&values, dir);
    struct ctw_err err = {0};
    enum ctw_status st = ctw_machine_from(&machine, &described, values.devices, &err);
    opt.machine = &machine;
    opt.device_list = machine.n_devices > 0 ? NULL : opt.device_list;
    if (st == CTW_OK)
        st = inspect(&opt, &flags, &err);
    if (st != CTW_OK)
        ctw_error("inspect: %s: %s", dir, err.msg);
    return ctw_status_exit_code(st);
}
