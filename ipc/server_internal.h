/*
 * Shared by server.c (opening, closing), accept.c (new connections), connection.c (bytes) and
 * dispatch.c (requests).
 *
 * One lock guards all of it. nng calls back on threads of its own; a callback takes the lock, moves
 * one connection a step and starts nng's next operation. Nothing of nng's calls back at once, and
 * nothing waits with the lock held. Functions below are called with the lock held unless they say
 * otherwise.
 *
 * A request is an exchange. It is, in this order: received (connection->receiving), pending (its
 * connection's list), active (in the server's ready list, then a thread's), perhaps waiting (the
 * server's list, then pending again), answered (active still, until its reply is sent). A
 * connection has one active exchange at most, so its client is sent one reply at a time.
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
    CTW_NOTES = 8, /* for the log, until the timer writes them; more are lost */
    CTW_NOTE_BYTES = 200,
    /* A message that is slower than this for so long makes room, if others wait for it. */
    CTW_SLOW_BYTES_PER_S = 65536,
    CTW_SLOW_S = 5
};

struct ctw_exchange {
    struct ctw_connection *conn;
    struct ctw_exchange *next; /* in the list that holds it */
    size_t n, n_trace;         /* bytes; of these, nng's header in front of the message */
    size_t charge;             /* of the request: in unhandled; of the reply: in unsent */
    bool counted;              /* in n_exchanges */
    unsigned char *data;       /* the request; NULL: handled */
    unsigned char head[CTW_FRAME_BYTES + CTW_TRACE_BYTES]; /* of the reply */
    size_t n_head;
    struct ctw_writer reply;
    int64_t since_ms; /* first handled; 0: not yet */
    int64_t until_ms; /* waiting */
    uint64_t key;
};

struct ctw_exchanges {
    struct ctw_exchange *first, **end; /* end: where the next one goes */
};

enum ctw_receiving { CTW_RECEIVING_HELLO, CTW_RECEIVING_FRAME, CTW_RECEIVING_BODY };

/* How a message moves, while others wait for its room: a look each second. */
struct ctw_pace {
    size_t seen; /* bytes at the last look */
    int n_slow;  /* looks in a row that found it slow */
};

struct ctw_connection {
    struct ctw_server *server;
    struct ctw_connection *next;      /* of all */
    struct ctw_connection *next_room; /* of those that wait for room */
    uint32_t id;
    char address[64];
    nng_stream *stream;
    nng_aio *rx, *tx;
    bool rx_busy, tx_busy; /* nng has them */
    bool closing;          /* its stream is closed; freed when nothing is busy */
    bool waits_for_room;
    bool hello_sent;

    enum ctw_receiving state;
    unsigned char in[CTW_FRAME_BYTES];
    size_t got, want; /* of the hello, frame or body */
    struct ctw_exchange *receiving;

    struct ctw_exchanges pending;
    struct ctw_exchange *active;
    int n_exchanges; /* unanswered */
    int n_waiting;   /* of these */

    size_t sent; /* of the hello or the active exchange's reply */
    struct ctw_pace receiving_pace, sending_pace;
    double allowance;   /* requests that may come at once */
    int64_t allowed_ms; /* when that was */
    int64_t resume_ms;  /* reading pauses until then; 0: it does not */
};

struct ctw_server {
    struct ctw_server_options options;
    struct ctw_endpoint endpoint;
    char url[CTW_URL_MAX]; /* with the real port */
    nng_stream_listener *listener;
    nng_aio *accept;
    int n_threads; /* started */
    pthread_t threads[CTW_SERVER_MAX_THREADS];
    pthread_t timer;
    bool timer_started;

    pthread_mutex_t lock;
    pthread_cond_t work;  /* for the threads: ready, or ended */
    pthread_cond_t timed; /* for the timer: an earlier time, a connection to free */
    pthread_cond_t idle;  /* for the closing: something ended */
    bool ending;          /* reads no more */
    bool ended;           /* the threads leave */
    bool accepting;       /* nng has accept */
    int64_t accept_ms;    /* when accepting is tried again; 0: it is accepting */
    int64_t refused_ms;   /* before then the log tells of no more connections that failed */

    struct ctw_connection *connections;
    int n_connections, max_connections;
    uint32_t next_id;
    struct ctw_connection *room_first, **room_end; /* waiting for room, oldest first */
    size_t unhandled, unsent;                      /* bytes of large requests and replies */
    int64_t hurry_ms;                              /* of the next look at paces */
    bool fetch_waits;                              /* for replies to leave */
    struct ctw_exchanges ready, waiting;
    int n_waiting;
    unsigned n_wakes;
    char notes[CTW_NOTES][CTW_NOTE_BYTES];
    int n_notes;
    int64_t timer_ms; /* when the timer looks again; INT64_MAX: when told */
};

/* ---- connection.c ---- */

/* Says hello. False: there is no memory for it. */
bool ctw_connection_start(struct ctw_connection *c) CTW_MUST_CHECK;
/* Reads on, if there is room for one more request. */
void ctw_connection_receive(struct ctw_connection *c);
/* Sends the active exchange's reply, as soon as nothing else is being sent. */
void ctw_connection_send(struct ctw_connection *c);
/* Ends it; why: for the log, NULL: not worth a line. The timer frees it. */
void ctw_connection_drop(struct ctw_connection *c, const char *why);
/* Reads on what waited for room, as far as there is room now. */
void ctw_connections_admit(struct ctw_server *s);
/* Drops connections that are slow with a message while others wait for its room. */
void ctw_connections_hurry(struct ctw_server *s);
bool ctw_connection_is_free(const struct ctw_connection *c);
/* Without the lock, out of the server's list. */
void ctw_connection_free(struct ctw_connection *c);

/* ---- dispatch.c ---- */

void ctw_exchanges_init(struct ctw_exchanges *list);
/* Gives a request's bytes back, and lets connections read that waited for room. */
void ctw_exchange_handled(struct ctw_exchange *e);
void ctw_exchange_free(struct ctw_exchange *e);
/* A request is complete. */
void ctw_dispatch_add(struct ctw_exchange *e);
/* Makes the connection's next request active, if none is. */
void ctw_dispatch_next(struct ctw_connection *c);
/* Forgets what waits of a connection that is closing. */
void ctw_dispatch_forget(struct ctw_connection *c);
/* A warning for the log, which nobody writes with the lock held: standard error may be a full pipe.
 */
void ctw_dispatch_note(struct ctw_server *s, const char *fmt, ...) CTW_PRINTF(2, 3);
/* Writes the notes; lets go of the lock meanwhile. */
void ctw_dispatch_write_notes(struct ctw_server *s);
/* Calls all that wait again. */
void ctw_dispatch_wake(struct ctw_server *s, uint64_t key);
/* The timer is to look at `ms` at the latest. */
void ctw_dispatch_look_at(struct ctw_server *s, int64_t ms);
void *ctw_dispatch_main(void *server);
void *ctw_dispatch_timer_main(void *server);

/* ---- accept.c ---- */

void ctw_server_accept(struct ctw_server *s);
void ctw_server_on_accepted(void *server); /* nng's callback, without the lock */

#endif
