/*
 * Bounds of the protocol (docs/PROTOCOL.md). The worker publishes them in `info`; no client can
 * make the worker exceed them.
 *
 * In the worst case the server holds 256 MiB of large requests, 256 MiB of large replies, one reply
 * per thread (4 x 64 MiB), and 4 KiB for each of 64 requests on 1024 connections (another 256 MiB):
 * 1 GiB in addition to the queue's bytes.
 */
#ifndef CTW_IPC_LIMITS_H
#define CTW_IPC_LIMITS_H

#include <stdint.h>

enum {
    CTW_PROTOCOL_VERSION = 1,
    CTW_IPC_MESSAGE_BYTES = 64 << 20,                   /* one reply */
    CTW_IPC_HEADER_BYTES = 1024,                        /* nng counts its header too */
    CTW_IPC_PART_BYTES = 16 << 20,                      /* the items of one part */
    CTW_IPC_REQUEST_BYTES = CTW_IPC_PART_BYTES + 65536, /* one request */
    CTW_IPC_FETCH_BYTES = 16 << 20, /* the columns of one reply; one item may exceed it */
    CTW_IPC_ITEM_BYTES = CTW_IPC_MESSAGE_BYTES - 65536, /* the columns of one item */
    CTW_IPC_CONNECTIONS = 1024,
    CTW_IPC_UNANSWERED = 64, /* unanswered requests per connection; further requests are not read */
    CTW_IPC_WAITING = 1000,  /* waiting polls, all connections */
    CTW_IPC_CONNECTION_WAITING = 32, /* waiting polls per connection */
    CTW_IPC_REQUESTS_PER_S = 100, /* per connection, sustained; further requests are read later */
    CTW_IPC_REQUESTS_AT_ONCE = 1000,   /* per connection, in one burst */
    CTW_IPC_SMALL_BYTES = 4096,        /* messages up to this size are always accepted */
    CTW_IPC_UNHANDLED_BYTES = 1 << 28, /* larger requests that are not handled yet, together */
    CTW_IPC_STRANGERS_BYTES = 1 << 25, /* of these, from peers without a valid token so far */
    CTW_IPC_MEDIUM_BYTES = 1 << 20,    /* larger requests up to this size have separate memory: */
    CTW_IPC_ALL_MEDIUM_BYTES = 1 << 26,
    CTW_IPC_UNSENT_BYTES = 1 << 28, /* larger replies not sent yet; above this, fetches wait */
    CTW_IPC_DEPTH = 8,              /* nesting of maps and arrays */
    CTW_IPC_ELEMENTS = 8192,        /* msgpack objects in one message; bulk data is bin */
    CTW_IPC_STR_BYTES = 8192,       /* one text */
    CTW_IPC_JOBS = 64,              /* jobs that a worker holds, finished jobs included */
    CTW_IPC_JOB_ITEMS = 1 << 22,    /* items per job */
    CTW_IPC_QUEUE_BYTES = 1 << 30,  /* all jobs, with space for their results */
    CTW_IPC_MODELS = 16,
    CTW_IPC_TTL_S = 7 * 24 * 3600,
    CTW_IPC_WAIT_MS = 1000, /* longest wait of a poll */
    CTW_IPC_POLL_MS = 100,  /* between two polls without wait */
    CTW_IPC_JOB_ID_BYTES = 16
};

#endif
