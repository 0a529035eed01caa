/*
 * The listening side: the reply half of nng's request/reply protocol, on nng's streams. Every nng
 * REQ socket can talk to it.
 *
 * The framing is done here and not by an nng REP socket because a server must decide when it reads.
 * What a client sends is read only if there is room for it: the bytes of all requests together are
 * bounded (CTW_IPC_UNHANDLED_BYTES), and so are a connection's unanswered requests. A client that
 * reads no replies, or sends half a message, holds up its own connection, and loses it after
 * send_ms or receive_ms; the log then names it.
 *
 * A few threads call the handler. A handler never waits: if it has nothing to say yet, it says what
 * it waits for, and is called again with the same request.
 *
 * Over ipc only processes of the same user are let in. Do not fork after ctw_server_open(): nng
 * does not survive it.
 */
#ifndef CTW_IPC_SERVER_H
#define CTW_IPC_SERVER_H

#include "ipc/messages.h"

struct ctw_server;

/* Who sent a request. */
struct ctw_peer {
    uint32_t pipe;       /* the connection: never 0, never used again */
    bool local;          /* over ipc: a process of this user */
    const char *address; /* for people: "process 4711", "10.0.0.2:51234" */
};

/* How a handler puts its reply off. Times are ctw_now_ms()'s. */
struct ctw_wait {
    bool allowed;     /* in: false: there is no room for one more that waits, so reply */
    int64_t since_ms; /* in: when the handler was called with this request for the first time */
    int64_t until_ms; /* out: 0: the reply is filled; else call again at this time at the latest */
    uint64_t key;     /* out: ... and after ctw_server_wake() with this key */
};

struct ctw_server_options {
    const char *url; /* "ipc:///path" or "tcp://host:port" (port 0: any free one) */
    bool allow_any;  /* --insecure-bind-any */
    int n_threads;   /* that call the handler; 0: 4 */
    int send_ms;     /* without a byte taken of a reply, until its client is dropped; 0: 30000 */
    int receive_ms;  /* without a byte of a begun request, likewise; 0: 30000 */
    void *arg;
    /*
     * reply comes zeroed but for id and op: fill body and set ok, or ctw_reply_fail(), or set
     * wait->until_ms. Called from several threads at once, one request of a connection at a time.
     */
    void (*handle)(void *arg, const struct ctw_peer *peer, const struct ctw_request *request,
                   struct ctw_wait *wait, struct ctw_reply *reply);
    /*
     * May the peer ask this at all? Else the answer is `refused` and nothing else. Called also for
     * a request that cannot be decoded, as far as it was. Must not wait. NULL: everybody may.
     */
    bool (*admits)(void *arg, const struct ctw_peer *peer, const struct ctw_request *request);
    /* A connection is lost; none of its requests is handled any more. Must not wait; may be NULL.
     */
    void (*peer_gone)(void *arg, uint32_t pipe);
};

/* CTW_EINVAL, CTW_EBUSY (another listens there), CTW_EIO. */
enum ctw_status ctw_server_open(struct ctw_server **out, const struct ctw_server_options *options,
                                struct ctw_err *err) CTW_MUST_CHECK;

/*
 * Takes no more requests, waits for the handlers and for a second at most until replies are taken,
 * removes socket and lock. NULL is fine.
 */
void ctw_server_close(struct ctw_server *s);

/* Calls the handlers that wait for `key` again; 0: all that wait. From any thread; does not wait.
 */
void ctw_server_wake(struct ctw_server *s, uint64_t key);

/* The address to dial, with the real port. */
const char *ctw_server_url(const struct ctw_server *s);

#endif
