/* The files of a run of `ctworker score`: the input, the results, and the record of the run. */
#ifndef CTW_WORKER_SCORE_FILES_H
#define CTW_WORKER_SCORE_FILES_H

#include "worker/cli/output_file.h"

struct ctw_score_paths {
    const char *in, *out; /* NULL or "-": standard input and output */
    const char *meta;     /* NULL: `out` with ".meta.json" appended, if `out` is a regular file */
};

struct ctw_score_files {
    int in;
    struct ctw_output_file out, meta; /* meta is closed if no record is wanted */
    char *meta_path;
};

/*
 * Opens all files without changing them, so that unreadable or unwritable files are refused before
 * a model is loaded. CTW_EINVAL: one file for two purposes; CTW_ENOTFOUND, CTW_EIO. Call
 * ctw_score_files_close() also after a failure.
 */
enum ctw_status ctw_score_files_open(struct ctw_score_files *f, const struct ctw_score_paths *paths,
                                     struct ctw_err *err) CTW_MUST_CHECK;
/* CTW_EIO: written data may be lost. */
enum ctw_status ctw_score_files_close(struct ctw_score_files *f, struct ctw_err *err);

#endif
