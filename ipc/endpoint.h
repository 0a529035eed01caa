/*
 * Addresses: parsing, checks before listening, and the files that belong to an ipc address.
 *
 * nng alone, on Debian 12, would delete a regular file at the socket's path, would probe a live
 * listener of another worker, which can disable that listener permanently (nng issue 1518), and
 * would report a path that is too long as "Address invalid". A worker therefore first locks
 * PATH.lock and checks what exists at PATH. A killed process leaves PATH.lock behind, unlocked.
 */
#ifndef CTW_IPC_ENDPOINT_H
#define CTW_IPC_ENDPOINT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum { CTW_URL_MAX = 256 };

struct ctw_endpoint {
    char url[CTW_URL_MAX]; /* in nng's form: ipc paths absolute, tcp "*" as 0.0.0.0 */
    const char *path;      /* points into url; NULL: tcp */
    char host[CTW_URL_MAX];
    int port;    /* tcp */
    int lock_fd; /* -1: not claimed */
};

/*
 * Parses "ipc:///path", "ipc://path" (made absolute) or "tcp://host:port". Sets lock_fd to -1.
 * CTW_EINVAL: not an address; the message gives the remedy.
 */
enum ctw_status ctw_endpoint_parse(struct ctw_endpoint *out, const char *url,
                                   struct ctw_err *err) CTW_MUST_CHECK;

/*
 * Call before listening. ipc: checks that the folder exists and that the path is free or a stale
 * socket of this user, and locks the path until ctw_endpoint_release(). tcp: checks that the host
 * is not a wildcard, unless allow_any is set. CTW_EBUSY: another worker listens on the path.
 */
enum ctw_status ctw_endpoint_claim(struct ctw_endpoint *e, bool allow_any,
                                   struct ctw_err *err) CTW_MUST_CHECK;
void ctw_endpoint_release(struct ctw_endpoint *e); /* removes the lock file; idempotent */

/*
 * Does a process hold the path's lock? A worker holds the lock from before it listens until it
 * exits. *pid is the id of that process in its own pid namespace; 0: no process, or no id in the
 * file.
 */
bool ctw_endpoint_held(const char *path, int64_t *pid);

/*
 * Removes the socket and the lock file of a dead worker. False: a process holds the lock, or a file
 * belongs to another user.
 */
bool ctw_endpoint_clean(const char *path);

/*
 * The private folder of this user: $XDG_RUNTIME_DIR/ctworker, else /tmp/ctworker-UID. Creates the
 * folder if it does not exist. CTW_EIO: it belongs to another user, or other users can enter it.
 */
enum ctw_status ctw_runtime_dir(char *out, size_t capacity, struct ctw_err *err) CTW_MUST_CHECK;
/* If XDG_RUNTIME_DIR is set but ignored, writes a sentence with the reason to buf and returns buf;
 * otherwise returns NULL. */
const char *ctw_runtime_dir_passed_over(char *buf, size_t capacity);

#endif
