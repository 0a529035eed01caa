/*
 * The listening side: the reply half of nng's request/reply protocol, on nng's streams. Every nng
 * REQ socket can talk to the server.
 *
 * The server does the framing itself, without an nng REP socket, because it must control when it
 * reads. This gives back-pressure: the bytes of all requests together are bounded
 * (CTW_IPC_UNHANDLED_BYTES), and so is the number of unanswered requests per connection. A client
 * that reads no replies, or sends half a message, blocks only its own connection, which the server
 * closes after send_ms or receive_ms with a line in the log.
 *
 * A few threads call the handler. A handler never blocks: if the reply is not ready, the handler
 * says what it waits for, and the server calls it again with the same request.
 *
 * Over ipc only processes of the same user are accepted. Do not fork after ctw_server_open(): nng
 * does not support it.
 */
#ifndef CTW_IPC_SERVER_H
#define CTW_IPC_SERVER_H

#include "ipc/messages.h"

struct ctw_server;

/* The sender of a request. */
struct ctw_peer {
    uint32_t pipe;       /* id of the connection: never 0, never reused */
    bool local;          /* over ipc, from a process of this user */
    const char *address; /* for people: "process 4711", "10.0.0.2:51234" */
    const void *who;   /* for the handler: the client that admits() found; NULL without admits() */
    const char *token; /* name of the peer's token, set by admits(), never freed; NULL: none */
    bool admin;        /* an administrator, who always gets in; set by admits() */
};

/* How a handler defers its reply. Times are on the clock of ctw_now_ms(). */
struct ctw_wait {
    bool allowed;     /* in: false: too many requests wait already, so reply at once */
    int64_t since_ms; /* in: when the handler was first called with this request */
    int64_t until_ms; /* out: 0: the reply is complete; else the latest time of the next call */
    uint64_t key;     /* out: ctw_server_wake() with this key also causes the next call */
};

struct ctw_server_options {
    const char *url; /* "ipc:///path" or "tcp://host:port" (port 0: any free one) */
    bool allow_any;  /* --insecure-bind-any */
    int n_threads;   /* threads that call the handler; 0: 4 */
    int send_ms;     /* timeout without progress while sending a reply; 0: 30000 */
    int receive_ms;  /* timeout without progress while receiving a request; 0: 30000 */
    void *arg;
    /*
     * reply is zeroed except for id and op. Fill body and set ok, or call ctw_reply_fail(), or set
     * wait->until_ms. Several threads call this at once, but for one connection only one request at
     * a time.
     */
    void (*handle)(void *arg, const struct ctw_peer *peer, const struct ctw_request *request,
                   struct ctw_wait *wait, struct ctw_reply *reply);
    /*
     * Is the peer authorised to make this request? If so, may set peer->who; if not, the reply is
     * `refused` and nothing else. Also called for a request that could not be fully decoded, with
     * the fields decoded so far. Must not block. NULL: every peer is authorised.
     */
    bool (*admits)(void *arg, struct ctw_peer *peer, const struct ctw_request *request);
    /* A connection is lost and none of its requests is in flight. Must not block; may be NULL. */
    void (*peer_gone)(void *arg, uint32_t pipe);
};

/* CTW_EINVAL, CTW_EBUSY (the address is in use), CTW_ENOMEM, CTW_EIO. */
enum ctw_status ctw_server_open(struct ctw_server **out, const struct ctw_server_options *options,
                                struct ctw_err *err) CTW_MUST_CHECK;

/*
 * Stops reading requests, waits for the handlers, gives clients at most a second to take their
 * replies, and removes the socket and the lock file. NULL is a no-op.
 */
void ctw_server_close(struct ctw_server *s);

/* Calls the handler again for requests that wait for `key` (0: for all waiting requests).
 * Thread-safe; does not block. */
void ctw_server_wake(struct ctw_server *s, uint64_t key);

/* The number of connections for which file descriptors remain after those for other uses, at most
 * CTW_IPC_CONNECTIONS. Raises the process's soft limit on open files as far as necessary. */
int ctw_server_max_connections(void);

/* The address to dial, with the actual port. */
const char *ctw_server_url(const struct ctw_server *s);

#endif
