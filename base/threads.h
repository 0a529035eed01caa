/*
 * A fixed pool of threads that runs one loop at a time.
 *
 * ctw_threads_for(pool, n, fn, arg) calls fn(arg, i, thread) once for every i in 0..n-1, on the
 * pool's threads and the calling thread, and returns when all calls are done. Threads take items in
 * index order, so put the most expensive items first; the order in which items finish is not fixed.
 * Results must not depend on which thread ran an item: use `thread` (0 .. n_threads-1) only to
 * choose scratch memory. One caller at a time; fn must not call back into the same pool.
 */
#ifndef CTW_BASE_THREADS_H
#define CTW_BASE_THREADS_H

#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ctw_threads;

typedef void ctw_thread_fn(void *arg, int64_t item, int thread);

/* n_threads: 1..1024, or 0: one per CPU that this process may run on. */
enum ctw_status ctw_threads_open(struct ctw_threads **out, int n_threads,
                                 struct ctw_err *err) CTW_MUST_CHECK;
void ctw_threads_close(struct ctw_threads *pool); /* NULL is fine */
int ctw_threads_count(const struct ctw_threads *pool);
void ctw_threads_for(struct ctw_threads *pool, int64_t n, ctw_thread_fn *fn, void *arg);

/* Number of CPUs in this process's affinity mask, reduced by a quota (base/host.h); at least 1. */
int ctw_cpu_count(void);

#ifdef __cplusplus
}
#endif

#endif
