/*
 * Shared by info, health, ps and stop: they find a worker and make one call to it.
 */
#ifndef CTW_WORKER_CLIENT_COMMAND_H
#define CTW_WORKER_CLIENT_COMMAND_H

#include "base/json.h"
#include "ipc/client.h"
#include "ipc/endpoint.h"
#include "worker/cli/options.h"
#include "worker/service/life/registry.h"
#include "worker/service/requests/auth.h"

/* The worker that a command calls, and the token for it. */
struct ctw_worker_address {
    char url[CTW_URL_MAX];
    char token[CTW_TOKEN_MAX]; /* "": none */
};

/* One request and its reply: set request.op and request.body. Start from {0}. */
struct ctw_worker_call {
    struct ctw_request request;
    struct ctw_reply reply; /* valid until the call is closed */
    struct ctw_client *client;
};

/* The options --timeout, for a command that waits for one answer, and --token-file. */
struct ctw_option ctw_answer_timeout_option(int64_t *seconds);
struct ctw_option ctw_token_option(const char **file);
/* The command line of a command that takes one worker, [URL], which goes to *which. */
struct ctw_command_line ctw_client_command_line(const char *name, const char *synopsis,
                                                const char *about, const struct ctw_option *options,
                                                int n_options, const char **which);

/* The workers of this user, by name (ctw_registry_list()). A runtime folder that is ignored is
 * logged. */
enum ctw_status ctw_list_workers(bool sweep, struct ctw_registry_entry **out, int *n,
                                 struct ctw_err *err) CTW_MUST_CHECK;
/*
 * `which`: a URL, the name of a worker of this user, or NULL for the only worker that runs, not
 * counting private workers (see worker/service/life/registry.h). `token_file`: of --token-file, see
 * ctw_auth_client_token(). CTW_ENOTFOUND: no such worker; CTW_EINVAL: several workers run, and the
 * message names them.
 */
enum ctw_status ctw_find_worker(const char *which, const char *token_file,
                                struct ctw_worker_address *out, struct ctw_err *err) CTW_MUST_CHECK;

/* Sends the call's request. A refusal (CTW_EREFUSED) is a failure. Close the call in any case. */
enum ctw_status ctw_call_worker(struct ctw_worker_call *call, const struct ctw_worker_address *to,
                                int timeout_ms, struct ctw_err *err) CTW_MUST_CHECK;
void ctw_worker_call_close(struct ctw_worker_call *call);

/* Writes the members of a protocol map as JSON, without the brackets, or only member i. bin becomes
 * hex. */
void ctw_json_write_members(struct ctw_json_writer *w, const struct ctw_schema *schema,
                            const void *from);
void ctw_json_write_member(struct ctw_json_writer *w, const struct ctw_schema *schema, int i,
                           const void *from);
/* Prints the JSON as one line to standard output and frees the writer. */
enum ctw_status ctw_json_print(struct ctw_json_writer *w, struct ctw_err *err) CTW_MUST_CHECK;

#endif
