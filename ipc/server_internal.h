/* Shared by server.c and probe.c. */
#ifndef CTW_IPC_SERVER_INTERNAL_H
#define CTW_IPC_SERVER_INTERNAL_H

#include <nng/nng.h>
#include <pthread.h>
#include <stdatomic.h>

#include "ipc/endpoint.h"
#include "ipc/server.h"

enum { CTW_SERVER_MAX_THREADS = 64 };

struct ctw_server_thread {
    struct ctw_server *server;
    pthread_t thread;
    nng_ctx ctx;
    nng_aio *aio;
    atomic_bool receiving; /* waits for a request: may be cancelled at once */
};

struct ctw_server {
    struct ctw_server_options options;
    struct ctw_endpoint endpoint;
    char url[CTW_URL_MAX]; /* with the real port */
    nng_socket socket;
    bool socket_open;
    nng_listener listener; /* of the opening thread, then of the probe's */
    int n_threads;         /* started */
    struct ctw_server_thread threads[CTW_SERVER_MAX_THREADS];
    pthread_t probe;
    bool probe_started;
    pthread_mutex_t lock;
    pthread_cond_t wake; /* the probe, to stop */
    bool stop;           /* under lock */
    atomic_bool ending;  /* threads take no more requests */
    uint64_t probe_id;   /* of the probe's requests: a random number */
    atomic_uint n_accepted; /* connections, ever */
};

/* Makes a listener and starts it. */
enum ctw_status ctw_server_listen(struct ctw_server *s, struct ctw_err *err) CTW_MUST_CHECK;
void *ctw_server_probe_main(void *server);

#endif
