/*
 * The hardware under the fake GPU backend (fake_device.c): memory that is counted and checked, a
 * copy engine with its own thread, and faults. A process has up to FAKE_GPUS of them, each of which
 * may be open as several backends. If the caller makes a mistake that real hardware would not
 * report, or would show only as wrong numbers, the process ends with a line on standard error.
 *
 * Environment variables control the GPUs; only tests set them. A number holds for all GPUs, or for
 * GPU 0, 1, .. in their order if there are commas ("0,0,7"; GPUs behind the last take 0):
 *
 *   CTW_FAKE_GPU_OPEN       "none": there is no GPU (CTW_EUNSUP); "broken": CTW_EDEVICE
 *   CTW_FAKE_GPU_COUNT      the number of GPUs (2)
 *   CTW_FAKE_GPU_KIND       a number in the numerics id; GPUs of equal kind have equal bits (0)
 *   CTW_FAKE_GPU_LINKED     1: its link to other GPUs that have one is faster than the host's (1)
 *   CTW_FAKE_GPU_MEMORY     size of the memory in bytes (256 MiB)
 *   CTW_FAKE_GPU_LOCKED     larger stages cannot be allocated (0: all can)
 *   CTW_FAKE_GPU_ALLOC_US   duration of an allocation (0)
 *   CTW_FAKE_GPU_COPY_US    duration of an upload by another thread (1000)
 *   CTW_FAKE_GPU_NO_PATH    1: no path to other GPUs; copies take twice as long (0)
 *   CTW_FAKE_GPU_JITTER_US  at most this longer, by chance, and the bytes' second half first (0)
 *   CTW_FAKE_GPU_OP_US      duration of an operation (0)
 *
 *   CTW_FAKE_GPU_FAIL_OP    the n-th operation faults: the GPU takes no more calls, also as a peer,
 *                           but other GPUs' copies from its memory that have begun end well
 *   CTW_FAKE_GPU_FAIL_COPY  the GPU is lost in the n-th upload by another thread, and with it GPUs
 *                           that copy from it at that moment
 *   CTW_FAKE_GPU_FAIL_FILE  the GPU is lost as soon as this file exists, or this file with .N
 *                           appended, for GPU N
 *   CTW_FAKE_GPU_NOMEM_OP   the n-th operation, and only that operation, runs out of memory
 */
#ifndef CTW_TESTS_FAKE_DEVICE_GPU_H
#define CTW_TESTS_FAKE_DEVICE_GPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "kernels/backend.h"

enum { FAKE_GPUS = 8 };

struct gpu;

/* The number of GPUs; CTW_EUNSUP, CTW_EDEVICE as gpu_open(). */
enum ctw_status gpu_count(int *n, struct ctw_err *err) CTW_MUST_CHECK;
/* Reads the environment and starts the copy engine on the first call. Each gpu_open() needs a
 * gpu_close(); a GPU's last gpu_close() checks that all memory was freed. */
enum ctw_status gpu_open(struct gpu **out, int device, struct ctw_err *err) CTW_MUST_CHECK;
void gpu_close(struct gpu *g);
int gpu_kind(const struct gpu *g);

/* Waits for the uploads before ticket `joined`. CTW_EDEVICE: the GPU has failed. */
enum ctw_status gpu_sync(struct gpu *g, uint64_t joined, struct ctw_err *err) CTW_MUST_CHECK;

/*
 * Begins an operation, after the uploads before ticket `joined`. *lost: the operation is queued but
 * never runs, as on a GPU that reports its failure only later; the caller must then compute
 * nothing.
 */
enum ctw_status gpu_begin(struct gpu *g, uint64_t joined, bool *lost,
                          struct ctw_err *err) CTW_MUST_CHECK;

uint64_t gpu_memory_total(const struct gpu *g);
uint64_t gpu_memory_free(struct gpu *g); /* 0 if the GPU has failed */
/* New memory holds 0xff everywhere, which is NaN in every dtype. */
enum ctw_status gpu_alloc(struct gpu *g, void **out, size_t bytes,
                          struct ctw_err *err) CTW_MUST_CHECK;
void gpu_free(struct gpu *g, void *p); /* waits for the copy engine, as cudaFree() does */
/* Counts memory that operations allocate internally, without allocating it. */
enum ctw_status gpu_take(struct gpu *g, uint64_t bytes, struct ctw_err *err) CTW_MUST_CHECK;
void gpu_give(struct gpu *g, uint64_t bytes);

/* Ends the process unless bytes p .. p+bytes-1 lie within one allocation. */
void gpu_check(struct gpu *g, const void *p, size_t bytes, const char *what);
void gpu_check_any(struct gpu *g, const void *p, size_t bytes, const char *what); /* or p is NULL */
/*
 * Records that an operation reads p .. p+bytes-1. The read lasts until a fence that was recorded
 * after it has been waited for. Until then, writing or freeing this memory ends the process,
 * because the operation could read other bytes.
 */
void gpu_read(struct gpu *g, const void *p, size_t bytes, const char *what);
/* gpu_check(), and checks that no read of this memory is in flight. */
void gpu_check_write(struct gpu *g, const void *p, size_t bytes, const char *what);
enum ctw_status gpu_fence_record(struct gpu *g, uint64_t *fence,
                                 struct ctw_err *err) CTW_MUST_CHECK;
enum ctw_status gpu_fence_wait(struct gpu *g, uint64_t fence, struct ctw_err *err) CTW_MUST_CHECK;

/* Ends the process if p points to the GPU's memory. */
void gpu_check_host(struct gpu *g, const void *p, const char *what);

enum ctw_status gpu_stage_alloc(struct gpu *g, void **out, size_t bytes,
                                struct ctw_err *err) CTW_MUST_CHECK;
void gpu_stage_free(struct gpu *g, void *p);
/* Queues a copy. The copy engine reads the stage only when the copy runs. */
enum ctw_status gpu_upload_begin(struct gpu *g, void *dst, const void *stage, size_t bytes,
                                 uint64_t *ticket, struct ctw_err *err) CTW_MUST_CHECK;
/* The same from another GPU's memory, which no copy may still be writing. */
enum ctw_status gpu_peer_begin(struct gpu *g, void *dst, struct gpu *from, const void *src,
                               size_t bytes, uint64_t *ticket, struct ctw_err *err) CTW_MUST_CHECK;
enum ctw_status gpu_upload_wait(struct gpu *g, uint64_t ticket, struct ctw_err *err) CTW_MUST_CHECK;
uint64_t gpu_uploads_begun(struct gpu *g);
/* Uploads and copies begun so far: their number, their bytes, and the bytes from other GPUs. */
void gpu_describe(struct gpu *g, char *buf, size_t cap);
enum ctw_link gpu_link(const struct gpu *a, const struct gpu *b);

/* Prints "fake GPU: WHAT" to standard error and ends the process. */
void gpu_die(const char *what) __attribute__((noreturn));

#endif
