/*
 * Shared by the files of the server. Each file calls only functions of the files after it: server.c
 * (opening, closing), dispatch.c (threads), accept.c (new connections), evict.c (connections that
 * make room), connection.c (bytes), calls.c (lists of requests), bounds.c (limits of a connection),
 * holders.c (limits of all connections of a client), notes.c (work for the timer).
 *
 * One lock guards the whole server. nng runs its callbacks on its own threads. A callback takes the
 * lock, advances one connection by a step and starts nng's next operation. nng never calls back
 * from within the call that starts an operation, and no code blocks with the lock held. Call the
 * functions below with the lock held unless their comment says otherwise.
 *
 * A call is a request and its reply. A call is, in this order: received (connection->receiving),
 * pending (its connection's list), active (in the server's ready list, then with a thread), perhaps
 * waiting (the server's list, then pending again), answered (still active until its reply is sent).
 * A connection has at most one active call, so its client gets one reply at a time.
 */
#ifndef CTW_IPC_SERVER_INTERNAL_H
#define CTW_IPC_SERVER_INTERNAL_H

#include <nng/nng.h>
#include <pthread.h>

#include "ipc/endpoint.h"
#include "ipc/limits.h"
#include "ipc/server.h"

enum {
    CTW_SERVER_MAX_THREADS = 64,
    CTW_TRACE_BYTES = 4 * 16, /* request id and the hops before it: nng allows 15 */
    CTW_FRAME_BYTES = 9,      /* ipc: 1 and the length; tcp: the length */
    CTW_HELLO_BYTES = 8,
    CTW_KEPT_CONNECTIONS = 16,  /* above the maximum, for administrators */
    CTW_SPARE_CONNECTIONS = 16, /* above these, while the server closes dropped connections */
    CTW_MOST_CONNECTIONS = CTW_IPC_CONNECTIONS + CTW_KEPT_CONNECTIONS + CTW_SPARE_CONNECTIONS,
    CTW_NOTES = 8, /* log lines until the timer writes them; further lines are dropped */
    CTW_NOTE_BYTES = 200,
    /* A message slower than this for CTW_SLOW_S loses its connection if others wait for memory. */
    CTW_SLOW_BYTES_PER_S = 65536,
    CTW_SLOW_S = 5
};

/* Kinds of memory for requests that are not handled yet: see struct ctw_room. */
enum ctw_room_kind { CTW_ROOM_STRANGERS, CTW_ROOM_MEDIUM, CTW_ROOM_LARGE, CTW_N_ROOMS };

/* The owner of connections: a process, a token, or a host without a token. */
struct ctw_holder {
    struct ctw_holder *next; /* in the server's list */
    char name[96];           /* "process 17", "token NAME", "10.0.0.7" */
    int n;                   /* connections */
    size_t used[CTW_N_ROOMS];
    unsigned passed_over; /* the scan in which an earlier request of this holder must wait */
};

struct ctw_call {
    struct ctw_connection *conn;
    struct ctw_call *next;     /* in the list that holds the call */
    size_t n, n_trace;         /* bytes of the request, and of nng's header before the message */
    enum ctw_room_kind room;   /* the room that `charge` of a request was taken from, ... */
    struct ctw_holder *holder; /* ... and its holder; NULL: nothing was taken */
    size_t charge;             /* bytes of the room (request) or of server->unsent (reply) */
    bool refused;              /* the request had no valid token */
    bool counted;              /* counted in conn->n_calls */
    unsigned char *data;       /* the request; NULL: handled and freed */
    unsigned char head[CTW_FRAME_BYTES + CTW_TRACE_BYTES]; /* frame and header of the reply */
    size_t n_head;
    struct ctw_writer reply;
    int64_t since_ms; /* time of the first handling; 0: not handled yet */
    int64_t until_ms; /* end of the wait */
    uint64_t key;
};

struct ctw_calls {
    struct ctw_call *first, **end; /* end: the link to the next call */
};

enum ctw_receiving { CTW_RECEIVING_HELLO, CTW_RECEIVING_FRAME, CTW_RECEIVING_BODY };

/* The pace of a message while others wait for memory, checked every second. */
struct ctw_pace {
    size_t seen; /* bytes at the last check */
    int n_slow;  /* consecutive checks at which the message was too slow */
};

/* The number of requests that may come without delay at the time `ms`. */
struct ctw_allowance {
    double n;
    int64_t ms;
};

/*
 * Memory for requests above CTW_IPC_SMALL_BYTES that are not handled yet, and the connections that
 * wait for this memory. Strangers have a separate room, and so have requests up to
 * CTW_IPC_MEDIUM_BYTES, which therefore never wait for the upload of a larger request.
 */
struct ctw_room {
    size_t bytes, used;
    size_t share;                        /* the most that one holder may take */
    struct ctw_connection *first, **end; /* oldest first */
};

struct ctw_connection {
    struct ctw_server *server;
    struct ctw_connection *next;      /* in the server's list */
    struct ctw_connection *next_room; /* in the list of its room */
    struct ctw_room *waits_in; /* the room whose memory the next request waits for; NULL: none */
    struct ctw_holder *holder;
    int64_t active_ms; /* last request or reply */
    uint32_t id;
    char address[64];
    nng_stream *stream;
    nng_aio *rx, *tx;
    bool rx_busy, tx_busy; /* an nng operation is in flight */
    bool admitted;         /* a request of it was not refused, or the server refuses none */
    bool kept;             /* its place is kept for administrators */
    bool closing;          /* the stream is closed; freed when no operation is in flight */
    bool hello_sent;

    enum ctw_receiving state;
    unsigned char in[CTW_FRAME_BYTES];
    size_t got, want; /* bytes of the hello, frame or body */
    struct ctw_call *receiving;

    struct ctw_calls pending;
    struct ctw_call *active;
    int n_calls;   /* unanswered calls */
    int n_waiting; /* waiting calls among them */

    size_t sent; /* bytes of the hello or the active call's reply */
    struct ctw_pace receiving_pace, sending_pace;
    struct ctw_allowance allowance;
    int64_t resume_ms; /* reading pauses until this time; 0: no pause */
};

struct ctw_server {
    struct ctw_server_options options;
    struct ctw_endpoint endpoint;
    char url[CTW_URL_MAX]; /* with the actual port */
    nng_stream_listener *listener;
    nng_aio *accept;
    int n_threads; /* started */
    pthread_t threads[CTW_SERVER_MAX_THREADS];
    pthread_t timer;
    bool timer_started;

    pthread_mutex_t lock;
    pthread_cond_t work;  /* signals the threads: ready or ended changed */
    pthread_cond_t timed; /* signals the timer: timer_ms is now earlier, or ended */
    pthread_cond_t idle;  /* signals ctw_server_close(): a connection or accept ended */
    bool ending;          /* no more requests are read */
    bool ended;           /* the threads must return */
    bool accepting;       /* an accept is in flight */
    int64_t accept_ms;    /* when to retry accepting; 0: not paused */
    int64_t refused_ms;   /* until then no further refused connections are logged */

    struct ctw_connection *connections;
    int n_connections, max_connections;
    uint32_t next_id;
    /* Allowances of closed connections, the latest last: at most as many as were ever open at
     * once. */
    struct ctw_allowance left[CTW_MOST_CONNECTIONS];
    int n_left;
    struct ctw_holder *holders;
    struct ctw_room rooms[CTW_N_ROOMS];
    unsigned n_scans; /* scans of a room's waiting connections */
    bool may_resume;  /* memory was given back since the last scan */
    size_t unsent;    /* bytes of large replies */
    int64_t hurry_ms; /* time of the next check of paces */
    bool fetch_waits; /* a fetch waits for replies to be sent */
    struct ctw_calls ready, waiting;
    int n_waiting;
    unsigned n_wakes;
    char notes[CTW_NOTES][CTW_NOTE_BYTES];
    int n_notes;
    int64_t timer_ms; /* time of the timer's next run; INT64_MAX: when signalled */
};

/* ---- connection.c ---- */

/* Starts the SP handshake. False: out of memory. */
bool ctw_connection_start(struct ctw_connection *c) CTW_MUST_CHECK;
/* Continues reading unless a bound forbids it. */
void ctw_connection_receive(struct ctw_connection *c);
/* Sends the active call's reply unless another send is in flight. */
void ctw_connection_send(struct ctw_connection *c);
/* Closes the connection; the timer frees it. why: the reason for the log; NULL: no log line. */
void ctw_connection_drop(struct ctw_connection *c, const char *why);
/* Resumes connections that wait for memory, as far as memory is free. Code that may have freed a
 * request calls this function at the end of its step. */
void ctw_connections_resume(struct ctw_server *s);
bool ctw_connection_is_free(const struct ctw_connection *c);
/* Call without the lock, after removing the connection from the server's list. */
void ctw_connection_free(struct ctw_connection *c);

/* ---- bounds.c ---- */

void ctw_rooms_init(struct ctw_server *s);
/* Is there memory for a request of c->want bytes? If not, the connection waits for it. */
bool ctw_room_take(struct ctw_connection *c) CTW_MUST_CHECK;
void ctw_room_leave(struct ctw_connection *c); /* the connection waits no more */
void ctw_room_charge(struct ctw_connection *c, struct ctw_call *e);
/* Gives back the memory of a request whose bytes are freed. */
void ctw_room_give_back(struct ctw_call *e);
/* Moves a waiting connection that is no longer a stranger to another room. */
void ctw_room_change(struct ctw_connection *c);
/* A waiting connection for which there is memory now; NULL: none. */
struct ctw_connection *ctw_rooms_next(struct ctw_server *s);
/* Gives a new connection the allowance of the last closed one, so that reconnecting does not renew
 * a burst. */
void ctw_allowance_take_over(struct ctw_connection *c);
void ctw_allowance_use(struct ctw_connection *c); /* uses one request; reading may pause */
void ctw_allowance_leave(struct ctw_connection *c);
/* Does any connection or fetch wait for the memory of other messages? */
bool ctw_connections_wait(const struct ctw_server *s);
/* Why the connection is too slow with a large message while others wait for its memory; NULL: it is
 * fast enough. Call once a second. */
const char *ctw_connection_is_slow(struct ctw_connection *c);

/* ---- holders.c ---- */

/* Makes this holder the only holder of the connection. False: out of memory. */
bool ctw_holder_join(struct ctw_connection *c, const char *name) CTW_MUST_CHECK;
void ctw_holder_leave(struct ctw_connection *c);
void ctw_holder_take(struct ctw_server *s, struct ctw_holder *h, int room, size_t bytes);
void ctw_holder_give_back(struct ctw_server *s, struct ctw_holder *h, int room, size_t bytes);
/* The most connections that one holder may have. */
int ctw_holder_most_connections(const struct ctw_server *s);
/* The holder of the most connections; NULL if nobody has a connection. */
const struct ctw_holder *ctw_holder_of_most(const struct ctw_server *s);
/* ---- calls.c ---- */

void ctw_calls_init(struct ctw_calls *list);
void ctw_calls_append(struct ctw_calls *list, struct ctw_call *e);
/* Unlinks and returns the call *at. */
struct ctw_call *ctw_calls_take(struct ctw_calls *list, struct ctw_call **at);
/* Frees the request's bytes. */
void ctw_call_handled(struct ctw_call *e);
void ctw_call_free(struct ctw_call *e);
/* Queues a completely received request. */
void ctw_call_add(struct ctw_call *e);
/* Activates the connection's next request if none is active. */
void ctw_call_next(struct ctw_connection *c);
/* Frees the pending and waiting requests of a connection that is closing. */
void ctw_calls_forget(struct ctw_connection *c);
/* Makes requests that wait for `key` (0: all waiting requests) pending again. */
void ctw_calls_wake(struct ctw_server *s, uint64_t key);
/* The same for requests that are due: by time if now_ms is not 0, else by `key` (0: any). */
void ctw_calls_wake_due(struct ctw_server *s, uint64_t key, int64_t now_ms);

/* ---- notes.c ---- */

/* Stores a warning for the log. The timer writes it without the lock, because standard error may be
 * a full pipe. */
void ctw_server_note(struct ctw_server *s, const char *fmt, ...) CTW_PRINTF(2, 3);
/* Writes the stored warnings; releases the lock while writing. */
void ctw_server_write_notes(struct ctw_server *s);
/* Makes the timer run at `ms` at the latest. */
void ctw_server_look_at(struct ctw_server *s, int64_t ms);

/* ---- evict.c ---- */

/*
 * Drops the oldest connection without an admitted request, of the host that has most such
 * connections, so that strangers cannot keep clients out by doing nothing. The newcomer takes over
 * its place. `of`: only of this host; NULL: of any. False: there is no such connection.
 */
bool ctw_evict_stranger(struct ctw_connection *newcomer,
                        const struct ctw_holder *of) CTW_MUST_CHECK;
/* Closes a connection to make room for the newcomer, which takes over its place: an idle one of the
 * largest holder, or one that has been idle for long, or else a busy one of a holder with very
 * many. `own`: only one of the same holder that has been idle for long. False: there is no such
 * connection. */
bool ctw_evict_of_holder(struct ctw_connection *newcomer, bool own) CTW_MUST_CHECK;

/* Call it when a request of the connection was not refused. From now on its requests take the
 * memory for clients, and the connection counts as one of the peer's token. */
void ctw_connection_admitted(struct ctw_connection *c, const struct ctw_peer *peer);

/* ---- dispatch.c: threads ---- */

void *ctw_dispatch_main(void *server);
void *ctw_dispatch_timer_main(void *server);

/* ---- accept.c ---- */

void ctw_server_accept(struct ctw_server *s);
void ctw_server_on_accepted(void *server); /* nng's callback; called without the lock */

#endif
