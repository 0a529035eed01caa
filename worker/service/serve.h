/*
 * A worker's life: listen, load, answer until told to stop, clean up. cmd_serve.c turns a command
 * line into the options here.
 */
#ifndef CTW_WORKER_SERVE_H
#define CTW_WORKER_SERVE_H

#include <sys/types.h>

#include "worker/engine/engine.h"

struct ctw_serve_options {
    const char *const *models; /* DIR or NAME=DIR; else the folder's last part is the name */
    int n_models;
    const char *listen; /* NULL: ipc, DIR/NAME.sock in the runtime folder */
    const char *name;   /* NULL: the process id */
    bool insecure_bind_any;
    const char *token_file; /* NULL: no tokens; then tcp needs `insecure` */
    bool insecure;
    const char *allow_load; /* NULL: clients cannot load models */
    const char *ready_file; /* NULL: none. Gets the URL when the models are loaded */
    int ready_fd;           /* -1: none. Likewise, then it is closed */
    pid_t owner_pid;        /* 0: none. The worker ends with this process */
    bool cancel_on_signal;  /* else running jobs are finished, for at most grace_ms */
    int64_t grace_ms;
    uint64_t queue_bytes;
    struct ctw_engine_options engine; /* without model_dir */
    const char *version;
};

/*
 * Returns the exit code:
 *   0         asked to stop (shutdown, SIGTERM, SIGINT, owner gone), and did so in order
 *   64..75    what ctw_status_exit_code() says of the failure that kept it from starting, or of
 *             the device that failed later
 *   128 + n   signal n came a second time, or the grace was over with jobs unfinished
 * SIGHUP is left alone when it is ignored (nohup).
 * Call it from the main thread before any other was started.
 */
int ctw_serve(const struct ctw_serve_options *options);

#endif
