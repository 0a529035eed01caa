#include "worker/cli/inspect_json.h"

#include "worker/checkpoint/identity.h"
#include "worker/cli/client_command.h"
#include "worker/cli/inspect_formats.h"

static void write_formats(struct ctw_json_writer *w, const struct ctw_model *m)
{
    struct ctw_inspect_kind kinds[CTW_INSPECT_KINDS];
    int n_kinds = ctw_inspect_formats(m, kinds);
    ctw_json_write_key(w, "formats");
    ctw_json_write_open(w, '[');
    for (int i = 0; i < n_kinds; i++) {
        ctw_json_write_open(w, '{');
        ctw_json_write_key_string(w, "format", kinds[i].text);
        ctw_json_write_key_int(w, "matrices", kinds[i].n_matrices);
        ctw_json_write_key_int(w, "params", kinds[i].n_params);
        ctw_json_write_key_int(w, "bytes", (int64_t)kinds[i].bytes);
        ctw_json_write_key_double(w, "bits", 8.0 * kinds[i].bytes / (double)kinds[i].n_params);
        ctw_json_write_close(w, '}');
    }
    ctw_json_write_close(w, ']');
}

static void write_object(struct ctw_json_writer *w, const struct ctw_model *m)
{
    ctw_json_write_open(w, '{');
    ctw_json_write_key_string(w, "path", m->dir);
    ctw_json_write_key_string(w, "architecture", m->architecture);
    ctw_json_write_key_string(w, "model_type", m->model_type);
    ctw_json_write_key_int(w, "layers", m->n_decoders);
    ctw_json_write_key_int(w, "hidden", m->hidden);
    ctw_json_write_key_int(w, "vocab", m->vocab);
    ctw_json_write_key_bool(w, "tied", m->tied);
    ctw_json_write_key_int(w, "max_length", m->max_length);
    ctw_json_write_key_int(w, "own_length", m->own_length); /* as in the protocol; 0: none */
    ctw_json_write_key_string(w, "dtype", ctw_dtype_long_name(m->dtype));
    ctw_json_write_key_int(w, "params", m->n_params);
    ctw_json_write_key_int(w, "bytes", (int64_t)ctw_container_bytes(m->container));
    ctw_json_write_key_int(w, "bytes_not_text", m->apart_bytes);
    ctw_json_write_key_int(w, "scales_not_used", m->n_scales);
    ctw_json_write_key_int(w, "files", ctw_container_n_files(m->container));
    ctw_json_write_key_bool(
        w, "headers_alone",
        ctw_container_is_headers_alone(m->container)); /* true: the weights are not here */
    ctw_json_write_key_double(w, "weight_bits",
                              m->weight_bits); /* as in the protocol: 0 if nothing is quantised */
    ctw_json_write_key_string(w, "activations", m->activations != NULL ? m->activations : "");
    ctw_json_write_key_string(w, "activations_mode", ctw_activations_mode(m));
    ctw_json_write_key_string(w, "identity", ctw_identity_text(m->identity));
    write_formats(w, m);
    ctw_json_write_close(w, '}');
}

enum ctw_status ctw_inspect_json(const struct ctw_model *m, struct ctw_err *err)
{
    struct ctw_json_writer w = {0};
    write_object(&w, m);
    return ctw_json_print(&w, err);
}
