/*
 * A file of lines that a command writes. Opening the file checks that it is writable and leaves its
 * content alone, so that a command can open its outputs before long work and truncate them only
 * when it begins to write.
 */
#ifndef CTW_WORKER_OUTPUT_FILE_H
#define CTW_WORKER_OUTPUT_FILE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

struct ctw_output_file {
    const char *path; /* for messages; owned by the caller */
    int fd;           /* -1: not open */
    bool standard;    /* standard output; never closed */
    bool regular;     /* a regular file, which can be truncated */
    bool created;     /* the file is new; it is removed on close unless begun */
    int64_t n_lines;  /* whole lines written */
};

#define CTW_OUTPUT_FILE_CLOSED ((struct ctw_output_file){.fd = -1})

/* path NULL or "-": standard output. CTW_ENOTFOUND: no such folder; CTW_EIO. */
enum ctw_status ctw_output_file_open(struct ctw_output_file *f, const char *path,
                                     struct ctw_err *err) CTW_MUST_CHECK;
/* Truncates a regular file that was opened by name. */
enum ctw_status ctw_output_file_begin(struct ctw_output_file *f,
                                      struct ctw_err *err) CTW_MUST_CHECK;
/*
 * Writes whole lines, each with its newline. CTW_EIO: the disk is full, the reader has gone, ...; a
 * regular file is then truncated after its last whole line.
 */
enum ctw_status ctw_output_file_write(struct ctw_output_file *f, const char *lines, size_t bytes,
                                      struct ctw_err *err) CTW_MUST_CHECK;
/* CTW_EIO: written data may be lost. A closed file is a no-op. */
enum ctw_status ctw_output_file_close(struct ctw_output_file *f, struct ctw_err *err);

#endif
