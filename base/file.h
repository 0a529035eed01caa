/* Whole reads and writes: the system's calls may transfer less, or be interrupted. */
#ifndef CTW_BASE_FILE_H
#define CTW_BASE_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* Reads bytes offset .. offset+bytes-1 of a file. Returns the number of bytes read. If it is less
 * than `bytes`, the file ends earlier (errno is 0), or errno states the error. */
size_t ctw_read_at(int fd, void *to, size_t bytes, uint64_t offset);
/* The same for a file that must have these bytes: CTW_EIO if they cannot be read. `what` names the
 * file in the message. */
enum ctw_status ctw_read_exactly(int fd, void *to, size_t bytes, uint64_t offset, const char *what,
                                 struct ctw_err *err) CTW_MUST_CHECK;
/* Writes to a file, a pipe or a terminal. Returns the number of bytes written. If it is less than
 * `bytes`, errno states the error. */
size_t ctw_write_all(int fd, const void *from, size_t bytes);

#endif
