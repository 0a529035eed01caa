/*
 * A stamp of the files that say what a checkpoint is, from their metadata alone: as long as it
 * stays the same, the folder holds the bytes that were opened. Clients compare it before they have
 * the folder's identity computed (docs/PROTOCOL.md, "Identity").
 */
#ifndef CTW_WORKER_FILES_STAMP_H
#define CTW_WORKER_FILES_STAMP_H

#include <stdint.h>

/* A file is at rest if it last changed this many seconds ago: longer than the ticks of a file
 * system's clock, and than a page stays dirty, which a mapping can write to without a new time. */
enum { CTW_FILES_REST_S = 60 };

/*
 * 64 hex digits over the name, device, inode, size and times of each regular file in the
 * checkpoint's folder that is a .json file or the container's (ctw_checkpoint_has_file()). "" if
 * the metadata cannot vouch for the bytes: a file was not at rest at `now_s` (of the system's
 * clock), or its times do not show every write; or if the folder cannot be read.
 */
void ctw_files_stamp(const char *path, int64_t now_s, char out[65]);

#endif
