/*
 * The hardware under the fake GPU backend (fake_device.c): memory that is counted and checked, a copy
 * engine with its own thread, and faults. There is one GPU per process, regardless of the number of
 * open backends. If the caller makes a mistake that real hardware would not report, or would show
 * only as wrong numbers, the process ends with a line on standard error.
 *
 * Environment variables control the GPU; only tests set them:
 *
 *   CTW_FAKE_GPU_OPEN       "none": there is no GPU (CTW_EUNSUP); "broken": CTW_EDEVICE
 *   CTW_FAKE_GPU_MEMORY     size of the memory in bytes (256 MiB)
 *   CTW_FAKE_GPU_ALLOC_US   duration of an allocation (0)
 *   CTW_FAKE_GPU_COPY_US    duration of an upload by another thread (1000)
 *   CTW_FAKE_GPU_OP_US      duration of an operation (0)
 *   CTW_FAKE_GPU_FAIL_OP    the GPU fails permanently in its n-th operation
 *   CTW_FAKE_GPU_FAIL_COPY  the GPU fails permanently in the n-th upload by another thread
 *   CTW_FAKE_GPU_FAIL_FILE  the GPU fails permanently as soon as this file exists
 *   CTW_FAKE_GPU_NOMEM_OP   the n-th operation, and only that operation, runs out of memory
 */
#ifndef CTW_TESTS_FAKE_DEVICE_GPU_H
#define CTW_TESTS_FAKE_DEVICE_GPU_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

/* Reads the environment and starts the copy engine on the first call. Each gpu_open() needs a
 * gpu_close(); the last gpu_close() checks that all memory was freed. */
enum ctw_status gpu_open(struct ctw_err *err) CTW_MUST_CHECK;
void gpu_close(void);

/* Waits for the uploads before ticket `joined`. CTW_EDEVICE: the GPU has failed. */
enum ctw_status gpu_sync(uint64_t joined, struct ctw_err *err) CTW_MUST_CHECK;

/*
 * Begins an operation, after the uploads before ticket `joined`. *lost: the operation is queued but
 * never runs, as on a GPU that reports its failure only later; the caller must then compute nothing.
 */
enum ctw_status gpu_begin(uint64_t joined, bool *lost, struct ctw_err *err) CTW_MUST_CHECK;

uint64_t gpu_memory_total(void);
uint64_t gpu_memory_free(void); /* 0 if the GPU has failed */
/* New memory holds 0xff everywhere, which is NaN in every dtype. */
enum ctw_status gpu_alloc(void **out, size_t bytes, struct ctw_err *err) CTW_MUST_CHECK;
void gpu_free(void *p); /* waits for the copy engine, as cudaFree() does */
/* Counts memory that operations allocate internally, without allocating it. */
enum ctw_status gpu_take(uint64_t bytes, struct ctw_err *err) CTW_MUST_CHECK;
void gpu_give(uint64_t bytes);

/* Ends the process unless bytes p .. p+bytes-1 lie within one allocation. */
void gpu_check(const void *p, size_t bytes, const char *what);
/*
 * Records that an operation reads p .. p+bytes-1. The read lasts until a fence that was recorded after
 * it has been waited for. Until then, writing or freeing this memory ends the process, because the
 * operation could read other bytes.
 */
void gpu_read(const void *p, size_t bytes, const char *what);
/* gpu_check(), and checks that no read of this memory is in flight. */
void gpu_check_write(const void *p, size_t bytes, const char *what);
enum ctw_status gpu_fence_record(uint64_t *fence, struct ctw_err *err) CTW_MUST_CHECK;
enum ctw_status gpu_fence_wait(uint64_t fence, struct ctw_err *err) CTW_MUST_CHECK;

/* Ends the process if p points to the GPU's memory. */
void gpu_check_host(const void *p, const char *what);

enum ctw_status gpu_stage_alloc(void **out, size_t bytes, struct ctw_err *err) CTW_MUST_CHECK;
void gpu_stage_free(void *p);
/* Queues a copy. The copy engine reads the stage only when the copy runs. */
enum ctw_status gpu_upload_begin(void *dst, const void *stage, size_t bytes, uint64_t *ticket,
                                 struct ctw_err *err) CTW_MUST_CHECK;
enum ctw_status gpu_upload_wait(uint64_t ticket, struct ctw_err *err) CTW_MUST_CHECK;
uint64_t gpu_uploads_begun(void);
uint64_t gpu_bytes_uploaded(void); /* by all uploads begun so far */

/* Prints "fake GPU: WHAT" to standard error and ends the process. */
void gpu_die(const char *what) __attribute__((noreturn));

#endif
