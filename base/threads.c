#include "base/threads.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "base/host.h"
#include "base/mem.h"

enum {
    MAX_THREADS = 1024,
    /* Iterations that a thread spins before it sleeps: about 50 microseconds, the cost of waking a
     * sleeping thread. The operations of a layer follow each other faster than that. */
    SPINS = 2000
};

/* The gate counts loops, and the pool's threads inside the current loop. The caller opens the gate
 * for a loop and closes it once every item is taken. So the caller waits for threads that work on
 * an item, but never for a thread that the system has not woken yet. */
enum { GATE_OPEN = 1 << 16, GATE_INSIDE = GATE_OPEN - 1, GATE_LOOP = GATE_OPEN << 1 };

struct ctw_threads {
    int n_threads; /* the caller's included */
    int n_started;
    pthread_t *threads; /* n_threads - 1 */
    pthread_mutex_t lock;
    pthread_cond_t wake, done;
    atomic_ullong gate; /* loops, open, threads inside */
    atomic_bool stop;
    int n_spins;       /* 0 if there are more threads than CPUs */
    ctw_thread_fn *fn; /* written while no thread is inside, read inside */
    void *arg;
    int64_t n;
    atomic_llong next;
};

struct start {
    struct ctw_threads *pool;
    int thread;
};

static void run_items(struct ctw_threads *pool, int thread)
{
    for (;;) {
        int64_t i = atomic_fetch_add(&pool->next, 1);
        if (i >= pool->n)
            return;
        pool->fn(pool->arg, i, thread);
    }
}

static void pause_cpu(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static bool is_open(unsigned long long gate, unsigned long long last)
{
    return (gate & GATE_OPEN) != 0 && gate / GATE_LOOP != last;
}

/* Enters the current loop if it is open and not the loop `*last`, which it then becomes. */
static bool enter(struct ctw_threads *pool, unsigned long long *last)
{
    unsigned long long gate = atomic_load(&pool->gate);
    while (is_open(gate, *last)) {
        if (atomic_compare_exchange_weak(&pool->gate, &gate, gate + 1)) {
            *last = gate / GATE_LOOP;
            return true;
        }
    }
    return false;
}

static void leave(struct ctw_threads *pool)
{
    unsigned long long left = atomic_fetch_sub(&pool->gate, 1) - 1;
    if ((left & (GATE_OPEN | GATE_INSIDE)) != 0)
        return;
    pthread_mutex_lock(&pool->lock); /* the caller may be about to sleep */
    pthread_cond_signal(&pool->done);
    pthread_mutex_unlock(&pool->lock);
}

/* Waits for a loop after `last`; false: the pool is being closed. */
static bool wait_for_loop(struct ctw_threads *pool, unsigned long long last)
{
    for (int i = 0; i < pool->n_spins; i++) {
        if (is_open(atomic_load(&pool->gate), last) || atomic_load(&pool->stop))
            return !atomic_load(&pool->stop);
        pause_cpu();
    }
    pthread_mutex_lock(&pool->lock);
    while (!atomic_load(&pool->stop) && !is_open(atomic_load(&pool->gate), last))
        pthread_cond_wait(&pool->wake, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
    return !atomic_load(&pool->stop);
}

static void *thread_main(void *start_arg)
{
    struct start start = *(struct start *)start_arg;
    ctw_free(start_arg);
    struct ctw_threads *pool = start.pool;
    unsigned long long last = 0;
    while (wait_for_loop(pool, last)) {
        if (enter(pool, &last)) {
            run_items(pool, start.thread);
            leave(pool);
        }
    }
    return NULL;
}

static enum ctw_status start_thread(struct ctw_threads *pool, int i, struct ctw_err *err)
{
    struct start *start = ctw_calloc(1, sizeof(*start));
    if (start == NULL)
        return ctw_fail(err, CTW_ENOMEM, "threads: out of memory");
    *start = (struct start){.pool = pool, .thread = i + 1};
    int rc = pthread_create(&pool->threads[i], NULL, thread_main, start);
    if (rc != 0) {
        ctw_free(start);
        return ctw_fail(
            err, CTW_ENOMEM,
            "cannot start thread %d of %d (error %d): lower --threads, or raise ulimit -u or -v",
            i + 2, pool->n_threads, rc);
    }
    pool->n_started++;
    return CTW_OK;
}

enum ctw_status ctw_threads_open(struct ctw_threads **out, int n_threads, struct ctw_err *err)
{
    if (n_threads == 0)
        n_threads = ctw_cpu_count();
    if (n_threads < 1 || n_threads > MAX_THREADS)
        return ctw_fail(err, CTW_EINVAL, "threads: %d is not in 1..%d", n_threads, MAX_THREADS);
    struct ctw_threads *pool = ctw_calloc(1, sizeof(*pool));
    if (pool == NULL)
        return ctw_fail(err, CTW_ENOMEM, "threads: out of memory");
    pool->n_threads = n_threads;
    pool->n_spins = n_threads <= ctw_cpu_count() ? SPINS : 0;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->wake, NULL);
    pthread_cond_init(&pool->done, NULL);
    enum ctw_status st = CTW_OK;
    pool->threads = ctw_calloc((size_t)n_threads, sizeof(*pool->threads));
    if (pool->threads == NULL)
        st = ctw_fail(err, CTW_ENOMEM, "threads: out of memory");
    for (int i = 0; st == CTW_OK && i < n_threads - 1; i++)
        st = start_thread(pool, i, err);
    if (st != CTW_OK) {
        ctw_threads_close(pool);
        return st;
    }
    *out = pool;
    return CTW_OK;
}

void ctw_threads_close(struct ctw_threads *pool)
{
    if (pool == NULL)
        return;
    pthread_mutex_lock(&pool->lock);
    atomic_store(&pool->stop, true);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
    for (int i = 0; i < pool->n_started; i++)
        pthread_join(pool->threads[i], NULL);
    pthread_cond_destroy(&pool->wake);
    pthread_cond_destroy(&pool->done);
    pthread_mutex_destroy(&pool->lock);
    ctw_free(pool->threads);
    ctw_free(pool);
}

int ctw_threads_count(const struct ctw_threads *pool)
{
    return pool->n_threads;
}

static bool is_inside(struct ctw_threads *pool)
{
    return (atomic_load(&pool->gate) & GATE_INSIDE) != 0;
}

void ctw_threads_for(struct ctw_threads *pool, int64_t n, ctw_thread_fn *fn, void *arg)
{
    pool->fn = fn;
    pool->arg = arg;
    pool->n = n;
    atomic_store(&pool->next, 0);
    if (n < 2 || pool->n_threads == 1) {
        run_items(pool, 0);
        return;
    }
    unsigned long long loop = atomic_load(&pool->gate) / GATE_LOOP + 1;
    pthread_mutex_lock(&pool->lock);
    atomic_store(&pool->gate, loop * GATE_LOOP | GATE_OPEN);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
    run_items(pool, 0);
    atomic_fetch_and(&pool->gate, ~(unsigned long long)GATE_OPEN);
    for (int i = 0; i < pool->n_spins && is_inside(pool); i++)
        pause_cpu();
    if (!is_inside(pool))
        return;
    pthread_mutex_lock(&pool->lock);
    while (is_inside(pool))
        pthread_cond_wait(&pool->done, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
}

int ctw_cpu_count(void)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof(set), &set) != 0)
        return 1;
    int n = CPU_COUNT(&set);
    return ctw_host_cpus("", n);
}
