/*
 * Git LFS pointers: the short texts that stand in a clone's files until `git lfs pull` fetches the
 * contents.
 */
#ifndef CTW_BASE_LFS_H
#define CTW_BASE_LFS_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/*
 * CTW_EFORMAT with the remedy, if the first `bytes` bytes of a file of `file_bytes` bytes are those
 * of a pointer. `what` names the file in the message.
 */
enum ctw_status ctw_lfs_refuse(const char *what, const void *start, size_t bytes,
                               uint64_t file_bytes, struct ctw_err *err) CTW_MUST_CHECK;

#endif
