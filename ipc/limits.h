/*
 * Bounds of the protocol (docs/PROTOCOL.md). The worker publishes them in `info`; nothing that a
 * client sends can make it use more.
 */
#ifndef CTW_IPC_LIMITS_H
#define CTW_IPC_LIMITS_H

#include <stdint.h>

enum {
    CTW_PROTOCOL_VERSION = 1,
    CTW_IPC_MESSAGE_BYTES = 64 << 20, /* of one message, both directions */
    CTW_IPC_HEADER_BYTES = 1024,      /* nng counts its own header to a message */
    CTW_IPC_PART_BYTES = 16 << 20,    /* of the items of one part */
    CTW_IPC_FETCH_BYTES = 16 << 20,   /* of the columns of one reply, but at least one item */
    CTW_IPC_DEPTH = 8,                /* of maps and arrays in each other */
    CTW_IPC_ELEMENTS = 8192,          /* msgpack objects in one message; bulk data is bin */
    CTW_IPC_STR_BYTES = 4096,         /* of one text */
    CTW_IPC_JOBS = 64,                /* jobs that a worker knows, finished ones included */
    CTW_IPC_JOB_ITEMS = 1 << 22,      /* items of a job */
    CTW_IPC_QUEUE_BYTES = 1 << 30,    /* of all jobs, with room for their results */
    CTW_IPC_MODELS = 16,
    CTW_IPC_TTL_S = 7 * 24 * 3600,
    CTW_IPC_WAIT_MS = 1000, /* of poll */
    CTW_IPC_JOB_ID_BYTES = 16
};

#endif
