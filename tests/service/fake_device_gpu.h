/*
 * The machine under the fake GPU backend (fake_device.c): memory that is counted and checked, a copy
 * engine with a thread of its own, and faults. One a process, whatever number of backends is open, as
 * a GPU is. A mistake of the caller that real hardware would not report, or only by wrong numbers,
 * ends the process here with a line on standard error.
 *
 * The environment says how it behaves; nothing but the tests sets these:
 *
 *   CTW_FAKE_GPU_OPEN       "none": there is no GPU (CTW_EUNSUP); "broken": CTW_EDEVICE
 *   CTW_FAKE_GPU_MEMORY     bytes of it (256 MiB)
 *   CTW_FAKE_GPU_ALLOC_US   to allocate of it takes so long (0)
 *   CTW_FAKE_GPU_COPY_US    an upload by another thread takes so long (1000)
 *   CTW_FAKE_GPU_OP_US      an operation takes so long (0)
 *   CTW_FAKE_GPU_FAIL_OP    it falls over in its n-th operation, for good
 *   CTW_FAKE_GPU_FAIL_COPY  likewise, in the n-th upload by another thread
 *   CTW_FAKE_GPU_FAIL_FILE  likewise, as soon as this file exists
 *   CTW_FAKE_GPU_NOMEM_OP   its n-th operation finds no memory; that one only
 */
#ifndef CTW_TESTS_FAKE_DEVICE_GPU_H
#define CTW_TESTS_FAKE_DEVICE_GPU_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

/* Reads the environment and starts the copy engine, once. Each open needs its close; the last one
 * sees to it that all memory was given back. */
enum ctw_status gpu_open(struct ctw_err *err) CTW_MUST_CHECK;
void gpu_close(void);

/* Waits for the uploads before ticket `joined`. CTW_EDEVICE when it has fallen over. */
enum ctw_status gpu_sync(uint64_t joined, struct ctw_err *err) CTW_MUST_CHECK;

/*
 * An operation begins, after the uploads before ticket `joined`. *lost: it is queued and will never
 * run, as on a GPU whose failure is told only later. Its caller then computes nothing.
 */
enum ctw_status gpu_begin(uint64_t joined, bool *lost, struct ctw_err *err) CTW_MUST_CHECK;

uint64_t gpu_memory_total(void);
uint64_t gpu_memory_free(void); /* 0 when it has fallen over */
/* New memory holds 0xff everywhere, which is NaN in every dtype. */
enum ctw_status gpu_alloc(void **out, size_t bytes, struct ctw_err *err) CTW_MUST_CHECK;
void gpu_free(void *p); /* waits for the copy engine, as cudaFree() does */
/* Memory that is only counted: what operations allocate for themselves. */
enum ctw_status gpu_take(uint64_t bytes, struct ctw_err *err) CTW_MUST_CHECK;
void gpu_give(uint64_t bytes);

/* Ends the process unless bytes p .. p+bytes-1 lie within one allocation. */
void gpu_check(const void *p, size_t bytes, const char *what);
/*
 * An operation reads p .. p+bytes-1, and takes until a fence that was recorded after it has been waited
 * for: until then, writing there or freeing it ends the process, as the operation would get other bytes.
 */
void gpu_read(const void *p, size_t bytes, const char *what);
void gpu_check_write(const void *p, size_t bytes, const char *what); /* as gpu_check(), and that */
enum ctw_status gpu_fence_record(uint64_t *fence, struct ctw_err *err) CTW_MUST_CHECK;
enum ctw_status gpu_fence_wait(uint64_t fence, struct ctw_err *err) CTW_MUST_CHECK;

/* Ends the process if p is the GPU's memory. */
void gpu_check_host(const void *p, const char *what);

enum ctw_status gpu_stage_alloc(void **out, size_t bytes, struct ctw_err *err) CTW_MUST_CHECK;
void gpu_stage_free(void *p);
/* Queues a copy. It reads the stage when its time has come. */
enum ctw_status gpu_upload_begin(void *dst, const void *stage, size_t bytes, uint64_t *ticket,
                                 struct ctw_err *err) CTW_MUST_CHECK;
enum ctw_status gpu_upload_wait(uint64_t ticket, struct ctw_err *err) CTW_MUST_CHECK;
uint64_t gpu_uploads_begun(void);
uint64_t gpu_bytes_uploaded(void); /* by uploads that were begun */

/* "fake GPU: WHAT" on standard error, and the end of the process. */
void gpu_die(const char *what) __attribute__((noreturn));

#endif
