/*
 * What info, health and stop share: which worker is meant, and one call to it.
 */
#ifndef CTW_WORKER_CLIENT_COMMAND_H
#define CTW_WORKER_CLIENT_COMMAND_H

#include "base/json.h"
#include "ipc/client.h"
#include "ipc/endpoint.h"
#include "worker/cli/options.h"
#include "worker/service/auth.h"

/*
 * A URL, the name of a worker of this user, or NULL for the only one that runs, private ones (see
 * worker/service/registry.h) left aside. CTW_ENOTFOUND: there is none; CTW_EINVAL: there are several, and
 * the message names them.
 */
enum ctw_status ctw_find_worker(const char *which, char url[CTW_URL_MAX],
                                struct ctw_err *err) CTW_MUST_CHECK;

/* The option --token-file of a client's command; see ctw_auth_client_token(). */
struct ctw_option ctw_token_option(const char **file);

/*
 * One request to the worker at url. The client stays open for as long as *reply is used; close
 * both in either case. A refusal is an error here.
 */
enum ctw_status ctw_call_worker(struct ctw_client **client, const char *url,
                                struct ctw_request *request, int timeout_ms,
                                struct ctw_reply *reply, struct ctw_err *err) CTW_MUST_CHECK;

/* For output: a slice as a JSON string, as hex, as text for printf's "%.*s". */
void ctw_json_write_slice(struct ctw_json_writer *w, const char *key, struct ctw_slice s);
void ctw_json_write_hex(struct ctw_json_writer *w, const char *key, struct ctw_slice s);
void ctw_json_write_key_uint(struct ctw_json_writer *w, const char *key, uint64_t v);
void ctw_json_write_key_double(struct ctw_json_writer *w, const char *key, double v);
/* Prints the line and frees the writer. */
enum ctw_status ctw_json_print(struct ctw_json_writer *w, struct ctw_err *err) CTW_MUST_CHECK;

#endif
