/*
 * Shared by info, health, ps and stop: finding the worker, and one call to it.
 */
#ifndef CTW_WORKER_CLIENT_COMMAND_H
#define CTW_WORKER_CLIENT_COMMAND_H

#include "base/json.h"
#include "ipc/client.h"
#include "ipc/endpoint.h"
#include "worker/cli/options.h"
#include "worker/service/auth.h"

/*
 * `which`: a URL, the name of a worker of this user, or NULL for the only worker that runs, not
 * counting private workers (see worker/service/registry.h). CTW_ENOTFOUND: no such worker;
 * CTW_EINVAL: several workers run, and the message names them.
 */
enum ctw_status ctw_find_worker(const char *which, char url[CTW_URL_MAX],
                                struct ctw_err *err) CTW_MUST_CHECK;

/* The option --token-file of a client command; see ctw_auth_client_token(). */
struct ctw_option ctw_token_option(const char **file);

/*
 * Sends one request to the worker at url. *reply is valid while *client is open. Close the
 * reply, then the client, also after a failure. A refusal (CTW_EREFUSED) is a failure.
 */
enum ctw_status ctw_call_worker(struct ctw_client **client, const char *url,
                                struct ctw_request *request, int timeout_ms,
                                struct ctw_reply *reply, struct ctw_err *err) CTW_MUST_CHECK;

/* JSON output: a key with a slice as a string, a slice as hex, or a number. */
void ctw_json_write_slice(struct ctw_json_writer *w, const char *key, struct ctw_slice s);
void ctw_json_write_hex(struct ctw_json_writer *w, const char *key, struct ctw_slice s);
void ctw_json_write_key_uint(struct ctw_json_writer *w, const char *key, uint64_t v);
void ctw_json_write_key_double(struct ctw_json_writer *w, const char *key, double v);
/* Prints the JSON as one line to standard output and frees the writer. */
enum ctw_status ctw_json_print(struct ctw_json_writer *w, struct ctw_err *err) CTW_MUST_CHECK;

#endif
