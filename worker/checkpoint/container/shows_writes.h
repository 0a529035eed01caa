/* File systems whose times vouch for the bytes of their files. */
#ifndef CTW_WORKER_SHOWS_WRITES_H
#define CTW_WORKER_SHOWS_WRITES_H

#include <stdbool.h>

/*
 * Whether the open file's times show every write. True on file systems that give a file new times
 * when a mapping makes a clean page dirty, and on those that are never written to. The files of an
 * overlay lie in another file system, which is a disk's unless the overlay itself is in memory.
 * False on all others (in memory, on a network, unknown).
 */
bool ctw_file_shows_writes(int fd);

#endif
