/*
 * One function per operation, in files by subject: handle_submit.c (submit, seal), handle_results.c
 * (poll, fetch, cancel, release), handle_info.c, handle_admin.c (the rest); the table by operation
 * is in handlers.c.
 */
#ifndef CTW_WORKER_HANDLERS_H
#define CTW_WORKER_HANDLERS_H

#include "ipc/server.h"
#include "worker/service/jobs/queue.h"
#include "worker/service/requests/auth.h"
#include "worker/store/store.h"

enum { CTW_BOOT_BYTES = 16 };

/* The state that handlers answer from. Only the queue and the atomics change after the start. */
struct ctw_service {
    struct ctw_queue *queue;
    const char *version;
    uint8_t boot[CTW_BOOT_BYTES];
    int64_t started_ms;
    const char *allow_load;      /* clients may load models below this folder; NULL: no models */
    const struct ctw_auth *auth; /* tokens that clients need; NULL: they need none */
    int max_connections;         /* open at the same time */
    bool insecure;               /* listens on tcp without tokens */
    struct ctw_store *store;     /* NULL: none */
    const struct ctw_devices *devices;
    atomic_llong n_requests;
    atomic_llong refused_ms; /* when a refusal was last logged */
};

struct ctw_handler_call {
    struct ctw_service *service;
    const struct ctw_peer *peer;
    struct ctw_contact contact;
    const struct ctw_request *request;
    struct ctw_wait *wait;
    struct ctw_reply *reply;
    int64_t bad_item; /* -1 */
    int retry_ms;     /* 0: no retry */
};

/* "10.0.0.7:41234 (token NAME)", for logs. */
enum { CTW_CALLER_MAX = 160 };
const char *ctw_caller_name(const struct ctw_handler_call *call, char buf[CTW_CALLER_MAX]);
/* As ctw_reply_copy(), but in the reply to a tcp client, names of models replace their paths. The
 * caller holds the queue's lock. */
bool ctw_copy_message(const struct ctw_handler_call *call, const char *text, struct ctw_span *out);

/* Names of models replace their paths in a text of at most cap - 1 bytes. */
void ctw_hide_paths(const struct ctw_service *service, char *text, size_t cap);

typedef enum ctw_status ctw_handler_fn(struct ctw_handler_call *call, struct ctw_err *err);

ctw_handler_fn ctw_handle_info, ctw_handle_health, ctw_handle_submit, ctw_handle_seal,
    ctw_handle_poll, ctw_handle_fetch, ctw_handle_cancel, ctw_handle_release, ctw_handle_load,
    ctw_handle_unload, ctw_handle_drain, ctw_handle_shutdown;

/* For struct ctw_server_options; arg is the service. */
void ctw_handle(void *arg, const struct ctw_peer *peer, const struct ctw_request *request,
                struct ctw_wait *wait, struct ctw_reply *reply);
bool ctw_handle_admits(void *arg, struct ctw_peer *peer, const struct ctw_request *request);
void ctw_handle_peer_gone(void *arg, uint32_t pipe);

/*
 * The state of the whole worker; the caller holds the lock. *message is valid while the lock is
 * held. "ready" only if some job can succeed: a model is ready, and new jobs are accepted.
 */
const char *ctw_service_state(const struct ctw_service *service, const char **message);

#endif
