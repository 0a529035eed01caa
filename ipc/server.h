/*
 * The listening side: one nng REP socket, and threads that each take a request, call the handler
 * and send its reply. A handler may wait (poll: at most CTW_IPC_WAIT_MS), since every thread
 * has a context of its own; that enough of them stay free is the handler's business.
 *
 * Over ipc only processes of the same user are let in. The server dials itself now and then, and
 * listens anew where twice nothing is accepted: Debian 12's nng stops accepting for good after a
 * client that connects and closes at once (nng issue 1518, fixed in 1.6). The connections of the old
 * listener are closed with it; clients dial again.
 *
 * Do not fork after ctw_server_open(): nng does not survive it.
 */
#ifndef CTW_IPC_SERVER_H
#define CTW_IPC_SERVER_H

#include "ipc/messages.h"

struct ctw_server;

/* Who sent a request. */
struct ctw_peer {
    uint32_t pipe; /* the connection; never 0 */
    bool local;    /* over ipc: a process of this user */
    bool self;     /* the server's own probe */
};

struct ctw_server_options {
    const char *url; /* "ipc:///path" or "tcp://host:port" (port 0: any free one) */
    bool allow_any;  /* --insecure-bind-any */
    int n_threads;   /* 0: 16 */
    int send_ms;     /* until a reply that the client does not take is dropped; 0: 30000 */
    int probe_ms;    /* between self-probes; 0: 1000 for nng before 1.6, else 30000 */
    int answer_ms;   /* that a self-probe waits; 0: 1500 */
    void *arg;
    /*
     * reply comes zeroed but for id and op: fill body and set ok, or ctw_reply_fail(). Called from
     * several threads at once.
     */
    void (*handle)(void *arg, const struct ctw_peer *peer, const struct ctw_request *request,
                   struct ctw_reply *reply);
    void (*peer_gone)(void *arg, uint32_t pipe); /* must not wait; may be NULL */
};

/* CTW_EINVAL, CTW_EBUSY (another listens there), CTW_EIO. */
enum ctw_status ctw_server_open(struct ctw_server **out, const struct ctw_server_options *options,
                                struct ctw_err *err) CTW_MUST_CHECK;

/* Takes no more requests, waits for the handlers, removes socket and lock. NULL is fine. */
void ctw_server_close(struct ctw_server *s);

/* The address to dial, with the real port. */
const char *ctw_server_url(const struct ctw_server *s);

#endif
