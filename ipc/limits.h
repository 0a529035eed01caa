/*
 * Bounds of the protocol (docs/PROTOCOL.md). The worker publishes them in `info`; nothing that
 * clients send can make it use more.
 *
 * At worst clients make the server hold 256 MiB of large requests, 256 MiB of large replies and one
 * reply a thread (4 x 64 MiB), and 4 KiB for each of 64 requests on 1024 connections (another
 * 256 MiB): 1 GiB beside the queue's bytes.
 */
#ifndef CTW_IPC_LIMITS_H
#define CTW_IPC_LIMITS_H

#include <stdint.h>

enum {
    CTW_PROTOCOL_VERSION = 1,
    CTW_IPC_MESSAGE_BYTES = 64 << 20,                   /* of one reply */
    CTW_IPC_HEADER_BYTES = 1024,                        /* nng counts its header to a message */
    CTW_IPC_PART_BYTES = 16 << 20,                      /* of the items of one part */
    CTW_IPC_REQUEST_BYTES = CTW_IPC_PART_BYTES + 65536, /* of one request */
    CTW_IPC_FETCH_BYTES = 16 << 20, /* of the columns of one reply, but at least one item */
    CTW_IPC_CONNECTIONS = 1024,
    CTW_IPC_UNANSWERED = 64,           /* requests of a connection; more are not read */
    CTW_IPC_WAITING = 1000,            /* polls that wait */
    CTW_IPC_CONNECTION_WAITING = 32,   /* of one connection */
    CTW_IPC_REQUESTS_PER_S = 100,      /* of a connection, in the long run; more are read late */
    CTW_IPC_REQUESTS_AT_ONCE = 1000,   /* before that */
    CTW_IPC_SMALL_BYTES = 4096,        /* requests and replies up to this one are always taken */
    CTW_IPC_UNHANDLED_BYTES = 1 << 28, /* of all larger requests that are not handled yet */
    CTW_IPC_UNSENT_BYTES = 1 << 28,    /* of larger replies; fetches wait while there are more */
    CTW_IPC_DEPTH = 8,                 /* of maps and arrays in each other */
    CTW_IPC_ELEMENTS = 8192,           /* msgpack objects in one message; bulk data is bin */
    CTW_IPC_STR_BYTES = 4096,          /* of one text */
    CTW_IPC_JOBS = 64,                 /* jobs that a worker knows, finished ones included */
    CTW_IPC_JOB_ITEMS = 1 << 22,       /* items of a job */
    CTW_IPC_QUEUE_BYTES = 1 << 30,     /* of all jobs, with room for their results */
    CTW_IPC_MODELS = 16,
    CTW_IPC_TTL_S = 7 * 24 * 3600,
    CTW_IPC_WAIT_MS = 1000, /* of poll */
    CTW_IPC_POLL_MS = 100,  /* between two polls that do not wait */
    CTW_IPC_JOB_ID_BYTES = 16
};

#endif
