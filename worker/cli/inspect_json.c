#include "worker/cli/inspect_json.h"

#include "worker/checkpoint/identity.h"
#include "worker/cli/client_command.h"
#include "worker/cli/inspect_formats.h"

static void write_pair(struct ctw_json_writer *w, const char *key, const char *value)
{
    ctw_json_write_key(w, key);
    ctw_json_write_string(w, value);
}

static void write_int(struct ctw_json_writer *w, const char *key, int64_t value)
{
    ctw_json_write_key(w, key);
    ctw_json_write_int(w, value);
}

static void write_formats(struct ctw_json_writer *w, const struct ctw_model *m)
{
    struct ctw_inspect_kind kinds[CTW_INSPECT_KINDS];
    int n_kinds = ctw_inspect_formats(m, kinds);
    ctw_json_write_key(w, "formats");
    ctw_json_write_open(w, '[');
    for (int i = 0; i < n_kinds; i++) {
        ctw_json_write_open(w, '{');
        write_pair(w, "format", kinds[i].text);
        write_int(w, "matrices", kinds[i].n_matrices);
        write_int(w, "params", kinds[i].n_params);
        write_int(w, "bytes", (int64_t)kinds[i].bytes);
        ctw_json_write_key(w, "bits");
        ctw_json_write_double(w, 8.0 * kinds[i].bytes / (double)kinds[i].n_params);
        ctw_json_write_close(w, '}');
    }
    ctw_json_write_close(w, ']');
}

static void write_object(struct ctw_json_writer *w, const struct ctw_model *m)
{
    ctw_json_write_open(w, '{');
    write_pair(w, "path", m->dir);
    write_pair(w, "architecture", m->architecture);
    write_pair(w, "model_type", m->model_type);
    write_int(w, "layers", m->n_decoders);
    write_int(w, "hidden", m->hidden);
    write_int(w, "vocab", m->vocab);
    ctw_json_write_key(w, "tied");
    ctw_json_write_bool(w, m->tied);
    write_int(w, "max_length", m->max_length);
    write_int(w, "own_length", m->own_length); /* as in the protocol; 0: none */
    write_pair(w, "dtype", ctw_dtype_long_name(m->dtype));
    write_int(w, "params", m->n_params);
    write_int(w, "bytes", (int64_t)ctw_container_bytes(m->container));
    write_int(w, "bytes_not_text", m->apart_bytes);
    write_int(w, "scales_not_used", m->n_scales);
    write_int(w, "files", ctw_container_n_files(m->container));
    ctw_json_write_key(w, "headers_alone"); /* true: the weights are not here */
    ctw_json_write_bool(w, ctw_container_is_headers_alone(m->container));
    ctw_json_write_key(w, "weight_bits"); /* as in the protocol: 0 if nothing is quantised */
    ctw_json_write_double(w, m->weight_bits);
    write_pair(w, "activations", m->activations != NULL ? m->activations : "");
    write_pair(w, "activations_mode", ctw_activations_mode(m));
    write_pair(w, "identity", ctw_identity_text(m->identity));
    write_formats(w, m);
    ctw_json_write_close(w, '}');
}

enum ctw_status ctw_inspect_json(const struct ctw_model *m, struct ctw_err *err)
{
    struct ctw_json_writer w = {0};
    write_object(&w, m);
    return ctw_json_print(&w, err);
}
