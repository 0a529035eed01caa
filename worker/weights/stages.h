/*
 * Stages: host memory from which a device copies fast (kernels/backend.h), shared by the threads
 * that read for the device. A stage holds a batch of adjacent slices, which one upload brings to
 * the device. Several threads can read the slices of a batch. The first of these threads takes the
 * stage; the last one begins the upload and gives the stage back.
 *
 * The first batches can be read before the device's memory is allocated: the allocation takes as
 * long as reading some batches.
 */
#ifndef CTW_WORKER_STAGES_H
#define CTW_WORKER_STAGES_H

#include <pthread.h>

#include "kernels/backend.h"

enum { CTW_STAGES_MAX = 24 };

struct ctw_stage {
    char *p;         /* NULL: not allocated */
    uint64_t ticket; /* of the last upload from the stage, if one has begun */
    bool begun;
    size_t to, bytes; /* the batch's place in the device's memory */
    int n_slices;
    /* under the pool's lock */
    bool is_taken, is_ready; /* is_ready: slices may be read into the stage */
    int n_unread;            /* slices of the batch that are not read yet */
};

struct ctw_stages {
    struct ctw_backend *be;
    size_t bytes; /* of a stage */
    int n;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* under lock */
    struct ctw_stage stage[CTW_STAGES_MAX];
    char *memory; /* the device's memory; NULL: not allocated yet */
    bool stop;
    double memory_s, begun_s; /* times at which the memory was set and the first upload began */
};

/* Lets the calling thread run at the device's node (base/numa.h). Stages that the thread allocates
 * then lie at this node, from which a device copies faster. */
void ctw_run_near(struct ctw_backend *be);

/* n stages of so many bytes, each allocated at its first use. */
void ctw_stages_init(struct ctw_stages *s, struct ctw_backend *be, size_t bytes, int n);
/* Call it when no thread uses the stages any more. A stage whose upload failed is not freed,
 * because the driver may still read it. */
void ctw_stages_fini(struct ctw_stages *s);
/* Frees the stages that no thread has taken, after their uploads. */
void ctw_stages_trim(struct ctw_stages *s);
void ctw_stages_set_memory(struct ctw_stages *s, void *memory);
/* Ends all waits with CTW_ECANCELED. This function and all below: any thread. */
void ctw_stages_stop(struct ctw_stages *s);

/* Allocates one more stage, if one is left. Threads call it at once, before they read. */
enum ctw_status ctw_stages_allocate(struct ctw_stages *s, struct ctw_err *err) CTW_MUST_CHECK;
/* Takes a stage for a batch of n slices: preferably a stage without an upload, else the stage whose
 * upload began first. NULL: all stages are taken. */
struct ctw_stage *ctw_stages_take(struct ctw_stages *s, size_t to, size_t bytes, int n);
/* Waits until slices may be read into the stage. is_taker: this thread took the stage, so it makes
 * the stage ready for all threads: it waits for the stage's last upload, or allocates the stage. */
enum ctw_status ctw_stages_ready(struct ctw_stages *s, struct ctw_stage *stage, bool is_taker,
                                 struct ctw_err *err) CTW_MUST_CHECK;
/* Ends the reading of one slice of the batch. The last slice begins the upload and gives the stage
 * back. *n_in: the slices that have come in by this call. */
enum ctw_status ctw_stages_read(struct ctw_stages *s, struct ctw_stage *stage, int *n_in,
                                struct ctw_err *err) CTW_MUST_CHECK;
/* Uploads the batch from `from`, which may be memory outside the stage, and gives the stage
 * back. */
enum ctw_status ctw_stages_upload(struct ctw_stages *s, struct ctw_stage *stage, const void *from,
                                  uint64_t *ticket, struct ctw_err *err) CTW_MUST_CHECK;
/* Gives back all stages whose batch was not completely read. No other thread may read meanwhile. */
void ctw_stages_drop(struct ctw_stages *s);

#endif
