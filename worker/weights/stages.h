/*
 * Stages: host memory that a device copies from fast (kernels/backend.h), shared by the threads
 * that read for the device. One stage holds a batch of adjacent slices, which one upload brings to
 * the device; several threads can read the slices of a batch. The first of them takes the stage,
 * and the last begins the upload and gives the stage back.
 *
 * The device's memory need not be there before the first batch is read: allocating it takes as long
 * as reading some batches.
 */
#ifndef CTW_WORKER_STAGES_H
#define CTW_WORKER_STAGES_H

#include <pthread.h>

#include "kernels/backend.h"

enum { CTW_STAGES_MAX = 24 };

struct ctw_stage {
    char *p;         /* NULL: not allocated */
    uint64_t ticket; /* of the last upload that began from the stage, if one has begun */
    bool begun;
    size_t to, bytes; /* the batch: where it goes in the device's memory */
    int n_slices;
    /* under the pool's lock */
    bool is_taken, is_ready; /* ready: slices may be read into it */
    int n_unread;            /* slices of the batch */
};

struct ctw_stages {
    struct ctw_backend *be;
    size_t bytes; /* of a stage */
    int n;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* under lock */
    struct ctw_stage stage[CTW_STAGES_MAX];
    char *memory; /* the device's; NULL: not there yet */
    bool stop;
    double memory_s, begun_s; /* when the memory was set, and when the first upload began */
};

/* From now on, the calling thread runs at the device's node (base/numa.h), where the stages that it
 * allocates then lie: a device copies faster from there. */
void ctw_run_near(struct ctw_backend *be);

/* n stages of so many bytes, which are allocated when they are needed. */
void ctw_stages_init(struct ctw_stages *s, struct ctw_backend *be, size_t bytes, int n);
/* No thread uses the stages any more. A stage whose upload failed is not freed: the driver may
 * still read it. */
void ctw_stages_fini(struct ctw_stages *s);
/* Frees the stages that are not taken, after their uploads. */
void ctw_stages_trim(struct ctw_stages *s);
void ctw_stages_set_memory(struct ctw_stages *s, void *memory);
/* All waits end with CTW_ECANCELED. Any thread, as all below. */
void ctw_stages_stop(struct ctw_stages *s);

/* Allocates one more stage, if one is left: the threads do so at once, before they read. */
enum ctw_status ctw_stages_allocate(struct ctw_stages *s, struct ctw_err *err) CTW_MUST_CHECK;
/* A stage for a batch of n slices; preferably one without an upload, else that whose upload began
 * first. NULL: all are taken. */
struct ctw_stage *ctw_stages_take(struct ctw_stages *s, size_t to, size_t bytes, int n);
/* Waits until slices may be read into the stage. is_taker: this thread took the stage, and makes it
 * ready for all: waits for its last upload, or allocates it. */
enum ctw_status ctw_stages_ready(struct ctw_stages *s, struct ctw_stage *stage, bool is_taker,
                                 struct ctw_err *err) CTW_MUST_CHECK;
/* A slice of the batch has been read; the last one begins the upload and gives the stage back.
 * *n_in: the slices that have come in by this call. */
enum ctw_status ctw_stages_read(struct ctw_stages *s, struct ctw_stage *stage, int *n_in,
                                struct ctw_err *err) CTW_MUST_CHECK;
/* Uploads the batch from `from`, which may be other memory than the stage's, and gives the stage
 * back. */
enum ctw_status ctw_stages_upload(struct ctw_stages *s, struct ctw_stage *stage, const void *from,
                                  uint64_t *ticket, struct ctw_err *err) CTW_MUST_CHECK;
/* Gives back all stages whose batch was not read to its end. No thread reads meanwhile. */
void ctw_stages_drop(struct ctw_stages *s);

#endif
