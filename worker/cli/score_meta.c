#include "worker/cli/score_meta.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "worker/cli/version.h"

/* The model's keys have the same names as in `info` in docs/PROTOCOL.md. */
static void write_object(struct ctw_json_writer *w, const struct ctw_engine *engine,
                         const struct ctw_score_counts *counts)
{
    struct ctw_engine_info info;
    ctw_engine_get_info(engine, &info);
    const struct ctw_model *m = info.model;
    ctw_json_write_open(w, '{');
    ctw_json_write_key_bool(w, "complete", counts->complete);
    ctw_json_write_key_int(w, "items", counts->items);
    ctw_json_write_key_int(w, "scored_tokens", counts->scored);
    ctw_json_write_key_string(w, "path", m->dir);
    ctw_json_write_key_string(w, "architecture", m->architecture);
    ctw_json_write_key_string(w, "identity", ctw_engine_identity(engine));
    ctw_json_write_key_string(w, "numerics", info.numerics);
    ctw_json_write_key_string(w, "dtype", ctw_dtype_long_name(info.dtype));
    ctw_json_write_key_string(w, "activations", m->activations != NULL ? m->activations : "");
    ctw_json_write_key_string(w, "activations_mode", ctw_activations_mode(m));
    ctw_json_write_key_int(w, "max_length", info.max_length);
    ctw_json_write_key_string(w, "backend", info.backend.backend);
    ctw_json_write_key_string(w, "variant", info.backend.variant);
    ctw_json_write_key_string(w, "device", info.backend.device);
    ctw_json_write_key_string(w, "version", ctw_version());
    ctw_json_write_key_string(w, "commit", ctw_version_commit());
    ctw_json_write_close(w, '}');
    ctw_json_write_newline(w);
}

enum ctw_status ctw_score_meta_write(struct ctw_output_file *f, const struct ctw_engine *engine,
                                     const struct ctw_score_counts *counts, struct ctw_err *err)
{
    struct ctw_json_writer w = {0};
    const char *text;
    size_t bytes;
    write_object(&w, engine, counts);
    enum ctw_status st = ctw_json_writer_text(&w, &text, &bytes, err);
    /* Overwrite in place: on a full disk, the space of the first record is still available. */
    if (st == CTW_OK && f->regular && lseek(f->fd, 0, SEEK_SET) != 0)
        st = ctw_fail(err, CTW_EIO, "%s: %s", f->path, strerror(errno));
    if (st == CTW_OK)
        st = ctw_output_file_write(f, text, bytes, err);
    if (st == CTW_OK && f->regular && ftruncate(f->fd, (off_t)bytes) != 0)
        st = ctw_fail(err, CTW_EIO, "%s: %s", f->path, strerror(errno));
    ctw_json_writer_fini(&w);
    return st;
}
