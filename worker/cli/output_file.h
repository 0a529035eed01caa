/*
 * A file of lines that a command writes. Opening it checks that it can be written and changes
 * nothing in it, so that a command opens its outputs before long work and empties them only when it
 * begins to write.
 */
#ifndef CTW_WORKER_OUTPUT_FILE_H
#define CTW_WORKER_OUTPUT_FILE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

struct ctw_output_file {
    const char *path; /* the caller's; for messages */
    int fd;           /* -1: not open */
    bool standard;    /* standard output, which is not closed */
    bool regular;     /* it can be truncated */
    bool created;     /* it was not there before, and is removed unless it is begun */
    int64_t n_lines;  /* written whole */
};

#define CTW_OUTPUT_FILE_CLOSED ((struct ctw_output_file){.fd = -1})

/* path NULL or "-": standard output. CTW_ENOTFOUND: no such folder; CTW_EIO. */
enum ctw_status ctw_output_file_open(struct ctw_output_file *f, const char *path,
                                     struct ctw_err *err) CTW_MUST_CHECK;
/* Empties a regular file that was opened by name. */
enum ctw_status ctw_output_file_begin(struct ctw_output_file *f,
                                      struct ctw_err *err) CTW_MUST_CHECK;
/*
 * Writes whole lines, each with its newline. CTW_EIO: the disk is full, the reader has gone, ...; a
 * regular file is then truncated to its last whole line.
 */
enum ctw_status ctw_output_file_write(struct ctw_output_file *f, const char *lines, size_t bytes,
                                      struct ctw_err *err) CTW_MUST_CHECK;
/* CTW_EIO: what was written may not have arrived. A closed file is fine. */
enum ctw_status ctw_output_file_close(struct ctw_output_file *f, struct ctw_err *err);

#endif
