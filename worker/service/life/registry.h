/*
 * The files that `ctworker ps` reads: one small JSON file per worker in the runtime folder
 * (ipc/endpoint.h), written when the worker listens, removed when it ends. A killed worker leaves
 * its file behind; ctw_registry_list() recognises it by the process's start time.
 */
#ifndef CTW_WORKER_REGISTRY_H
#define CTW_WORKER_REGISTRY_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/status.h"

enum { CTW_REGISTRY_PATH_MAX = 512 };

struct ctw_registry_entry {
    char name[80];
    char url[256];
    char models[1024]; /* names, separated by ", " */
    char boot[33];     /* hex */
    pid_t pid;
    int64_t started; /* of the process, in clock ticks since the machine's boot */
    int64_t started_unix_s;
    bool is_private; /* owned by a program (--owner-pid): chosen only by name */
};

/*
 * Writes DIR/NAME.json atomically; pid, started and started_unix_s are filled in. *path is set to
 * the file's path, "" after a failure. CTW_EBUSY: a running worker has the name.
 */
enum ctw_status ctw_registry_add(const char *dir, struct ctw_registry_entry *entry,
                                 char path[CTW_REGISTRY_PATH_MAX],
                                 struct ctw_err *err) CTW_MUST_CHECK;
void ctw_registry_remove(const char *path); /* "" is fine */

/*
 * Running workers, by name; the caller frees *out with ctw_free(). `sweep`: removes the files and
 * sockets of dead workers, unless a process holds their address, and reports files that cannot be
 * read; they are kept.
 */
enum ctw_status ctw_registry_list(const char *dir, bool sweep, struct ctw_registry_entry **out,
                                  int *n, struct ctw_err *err) CTW_MUST_CHECK;

/* Start time of a process in clock ticks since boot; -1: no such process, or it has ended. */
int64_t ctw_process_started(pid_t pid);

/* Writes a temporary file next to PATH and renames it, so that no reader sees a part of the text.
 */
enum ctw_status ctw_write_file_atomically(const char *path, const char *text, size_t bytes,
                                          struct ctw_err *err) CTW_MUST_CHECK;

#endif
