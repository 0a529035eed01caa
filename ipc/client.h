/*
 * A client for the worker's own commands and its self-probe. Not thread-safe: one call at a time.
 */
#ifndef CTW_IPC_CLIENT_H
#define CTW_IPC_CLIENT_H

#include "ipc/messages.h"

struct ctw_client;

/* Does not wait for the connection; ctw_client_call() waits. CTW_ENOTFOUND: no such socket. */
enum ctw_status ctw_client_open(struct ctw_client **out, const char *url,
                                struct ctw_err *err) CTW_MUST_CHECK;
void ctw_client_close(struct ctw_client *c); /* NULL is fine */

/*
 * Sends one request and receives its reply. CTW_EIO: no reply within timeout_ms, or the connection
 * was lost. If the worker answers with an error, the call still succeeds: check reply->ok. Close
 * *reply in every case, also after a failure.
 */
enum ctw_status ctw_client_call(struct ctw_client *c, struct ctw_request *request, int timeout_ms,
                                struct ctw_reply *reply, struct ctw_err *err) CTW_MUST_CHECK;

/* Converts a reply to a status: CTW_OK, or the worker's error, with its message in *err. */
enum ctw_status ctw_reply_status(const struct ctw_reply *reply, struct ctw_err *err);

#endif
