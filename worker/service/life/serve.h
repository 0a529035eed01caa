/*
 * A worker's life: listen, load, answer requests until a stop, clean up. cmd_serve.c turns a
 * command line into the options here.
 */
#ifndef CTW_WORKER_SERVE_H
#define CTW_WORKER_SERVE_H

#include <sys/types.h>

#include "worker/engine/engine.h"

struct ctw_serve_options {
    const char *const *models; /* NAME=DIR, NAME:DTYPE=DIR, or DIR, whose last part is the name */
    int n_models;
    const char *listen; /* NULL: ipc, DIR/NAME.sock in the runtime folder */
    const char *name;   /* NULL: the process id */
    bool insecure_bind_any;
    const char *token_file; /* NULL: no tokens; then tcp needs `insecure` */
    bool insecure;
    const char *allow_load; /* NULL: clients cannot load models */
    const char *ready_file; /* NULL: none. Gets the URL when the models are loaded */
    int ready_fd;           /* -1: none. Gets the URL too, then it is closed */
    pid_t owner_pid;        /* 0: none. The worker ends with this process */
    bool cancel_on_signal;  /* false: running jobs are finished, within grace_ms */
    int64_t grace_ms;
    uint64_t queue_bytes;
    const char *store; /* NULL: no result store */
    uint64_t store_limit;
    const char *hidden; /* NULL: no folder for hidden states */
    uint64_t hidden_limit;
    struct ctw_engine_options engine; /* without model_dir */
    const char *version;
};

/*
 * Returns the exit code:
 *   0         stopped in order after a request (shutdown, SIGTERM, SIGINT, owner gone)
 *   64..75    ctw_status_exit_code() of the failure that kept it from starting, or of the
 *             device that failed later
 *   128 + n   signal n came a second time, or the grace period ended with jobs unfinished
 * SIGHUP stays ignored if it was ignored at the start (nohup).
 * Call it from the main thread before any other thread is started.
 */
int ctw_serve(const struct ctw_serve_options *options);

#endif
