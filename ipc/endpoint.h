/*
 * Addresses: what may be listened on, and the files that belong to an ipc address.
 *
 * nng alone would, on Debian 12: delete a regular file that stands where the socket should be;
 * probe a living listener of another worker, which can kill it for good (nng issue 1518); take a
 * path that is too long for "Address invalid". So a worker first takes a lock on PATH.lock, which a
 * killed process leaves behind unlocked, and looks at what is there.
 */
#ifndef CTW_IPC_ENDPOINT_H
#define CTW_IPC_ENDPOINT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum { CTW_URL_MAX = 256 };

struct ctw_endpoint {
    char url[CTW_URL_MAX]; /* as nng takes it; ipc paths absolute, tcp "*" as 0.0.0.0 */
    const char *path;      /* within url; NULL: tcp */
    char host[CTW_URL_MAX];
    int port;    /* tcp */
    int lock_fd; /* -1: not claimed */
};

/*
 * "ipc:///path", "ipc://path" (made absolute) or "tcp://host:port". CTW_EINVAL with the remedy.
 * Also sets lock_fd to -1.
 */
enum ctw_status ctw_endpoint_parse(struct ctw_endpoint *out, const char *url,
                                   struct ctw_err *err) CTW_MUST_CHECK;

/*
 * Before listening. ipc: the folder exists, the path is free or a socket of ours that nobody
 * listens on, and is locked for us until ctw_endpoint_release(). tcp: the host is no wildcard,
 * unless allow_any. CTW_EBUSY: another worker has it.
 */
enum ctw_status ctw_endpoint_claim(struct ctw_endpoint *e, bool allow_any,
                                   struct ctw_err *err) CTW_MUST_CHECK;
void ctw_endpoint_release(struct ctw_endpoint *e); /* removes the lock file; fine twice */

/*
 * Does a process hold the path's lock, as a worker does from before it listens until its end? *pid:
 * which (as its own system counts), 0 when there is none or the file does not say.
 */
bool ctw_endpoint_held(const char *path, int64_t *pid);

/*
 * Removes the socket and the lock of a worker that is gone. False: somebody holds the lock, or a
 * file is not ours.
 */
bool ctw_endpoint_clean(const char *path);

/*
 * The folder that only this user can enter: $XDG_RUNTIME_DIR/ctworker, else /tmp/ctworker-UID; made
 * if it is not there. CTW_EIO: it belongs to someone else or others may enter it.
 */
enum ctw_status ctw_runtime_dir(char *out, size_t capacity, struct ctw_err *err) CTW_MUST_CHECK;
/* Why XDG_RUNTIME_DIR, though set, is not used, as a sentence into buf; NULL: it is used or not
 * set. */
const char *ctw_runtime_dir_passed_over(char *buf, size_t capacity);

#endif
