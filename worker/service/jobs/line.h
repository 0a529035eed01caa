/*
 * The line of clients that found no space in the queue, in the order in which they first asked. A
 * client keeps its one place while it asks again in time, even over a new connection (with the same
 * job id). Free space is held for clients that are expected to ask again. A late client is passed
 * over, and loses its place if it stays away. Nothing here locks: the caller holds the queue's
 * lock.
 */
#ifndef CTW_WORKER_LINE_H
#define CTW_WORKER_LINE_H

#include "worker/service/jobs/job.h"

enum { CTW_LINE_PLACES = CTW_IPC_CONNECTIONS };

/* What a client waits for. */
struct ctw_line_want {
    const struct ctw_contact *contact;
    struct ctw_span job; /* its id */
    bool has_slot;       /* a further part of a job */
    bool at_bound;       /* only the client's own jobs block it, so others need not wait */
    size_t bytes;        /* of the part; 0: not known yet, a slot comes first */
};

struct ctw_line_place {
    char owner[CTW_OWNER_MAX];
    uint32_t pipe;
    uint8_t job[CTW_IPC_JOB_ID_BYTES];
    bool has_slot, at_bound;
    size_t bytes;
    int64_t late_ms; /* from then on it is passed over */
};

struct ctw_line {
    struct ctw_line_place places[CTW_LINE_PLACES]; /* first come first */
    int n;
    bool is_known;    /* slot_ms is */
    double slot_ms;   /* between two slots that become free, a moving mean */
    int64_t freed_ms; /* when a slot last became free, or the line began */
};

/* The space for clients that come before this client and are expected. */
struct ctw_ahead {
    int slots;    /* for new jobs */
    int of_owner; /* the same for jobs of the client's own token, those at their bound included */
    size_t bytes;
};

struct ctw_ahead ctw_line_ahead(const struct ctw_line *l, const struct ctw_line_want *w);
/* Gives the client a place, or keeps its place. Returns the time to the client's next request in
 * ms, which is shorter the nearer its turn is. n_free: slots that are held for clients that come
 * first. A full line gives no place. */
int ctw_line_wait(struct ctw_line *l, const struct ctw_line_want *w, int n_free);
void ctw_line_leave(struct ctw_line *l, const struct ctw_line_want *w); /* it found its space */
/* The worker did not run for lost_ms: this time makes no client late. */
void ctw_line_forgive(struct ctw_line *l, int64_t lost_ms);
/* A slot became free; n_free were before. */
void ctw_line_slot_freed(struct ctw_line *l, int n_free, int64_t now_ms);

#endif
