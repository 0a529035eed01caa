/*
 * Descriptors 0 to 2 of a process that was started with some of them closed. Without this, the next
 * file that the process opens gets such a number, and standard output or standard error goes into
 * that file.
 */
#ifndef CTW_BASE_STANDARD_FDS_H
#define CTW_BASE_STANDARD_FDS_H

#include <stdbool.h>

/*
 * Opens those of descriptors 0 to 2 that are closed, in a way that makes their use fail with EBADF:
 * reading standard input, writing to standard output and to standard error. Call first in main().
 * False: no device could be opened; errno says why.
 */
bool ctw_standard_fds_open(void);

#endif
