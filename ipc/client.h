/*
 * A client of a worker, for the worker's own commands and its self-probe. One call at a time.
 */
#ifndef CTW_IPC_CLIENT_H
#define CTW_IPC_CLIENT_H

#include "ipc/messages.h"

struct ctw_client;

/* Does not wait for the connection; ctw_client_call() does. CTW_ENOTFOUND: no such socket. */
enum ctw_status ctw_client_open(struct ctw_client **out, const char *url,
                                struct ctw_err *err) CTW_MUST_CHECK;
void ctw_client_close(struct ctw_client *c); /* NULL is fine */
/* Of the next request; from there on they are counted. 1 at first. */
void ctw_client_set_next_id(struct ctw_client *c, uint64_t id);

/*
 * One request and its reply. CTW_EIO: no answer within timeout_ms, or the connection was lost. A
 * worker's refusal is no failure of the call: look at reply->ok. Close *reply, after a failure too.
 */
enum ctw_status ctw_client_call(struct ctw_client *c, struct ctw_request *request, int timeout_ms,
                                struct ctw_reply *reply, struct ctw_err *err) CTW_MUST_CHECK;

/* The call's failure or the worker's refusal as a status; fills err from the refusal. */
enum ctw_status ctw_reply_status(const struct ctw_reply *reply, struct ctw_err *err);

#endif
