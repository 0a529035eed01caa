/* What a run of `ctworker score` reads and writes: the input, the results, the record beside them.
 */
#ifndef CTW_WORKER_SCORE_FILES_H
#define CTW_WORKER_SCORE_FILES_H

#include "worker/cli/output_file.h"

struct ctw_score_paths {
    const char *in, *out; /* NULL or "-": standard input and output */
    const char *meta;     /* NULL: `out` with ".meta.json" behind it, if that is a regular file */
};

struct ctw_score_files {
    int in;
    struct ctw_output_file out, meta; /* no record is wanted: meta is closed */
    char *meta_path;
};

/*
 * Opens all of them, so that what cannot be read or written is refused before a model is loaded,
 * and changes none. CTW_EINVAL: one file for two purposes; CTW_ENOTFOUND, CTW_EIO. Closed also
 * after a failure.
 */
enum ctw_status ctw_score_files_open(struct ctw_score_files *f, const struct ctw_score_paths *paths,
                                     struct ctw_err *err) CTW_MUST_CHECK;
/* CTW_EIO: what was written may not have arrived. */
enum ctw_status ctw_score_files_close(struct ctw_score_files *f, struct ctw_err *err);

#endif
