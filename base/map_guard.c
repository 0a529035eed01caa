#include "base/map_guard.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { N_PLACES = 4096, FREE = 0, TAKEN = 1 /* no address */ };

static struct place {
    atomic_uintptr_t first; /* address, FREE or TAKEN */
    atomic_uintptr_t end;
    atomic_bool writable, hit;
} places[N_PLACES];

static struct sigaction before;
static uintptr_t page_bytes;

/* Runs in a signal handler: only atomics and raw system calls. Two handles of a process may have
 * guarded the same map: both are marked. */
static bool heal(uintptr_t at)
{
    uintptr_t page = at & ~(page_bytes - 1), to = 0;
    bool writable = false;
    for (int i = 0; i < N_PLACES; i++) {
        struct place *p = &places[i];
        uintptr_t first = atomic_load(&p->first), end = atomic_load(&p->end);
        /* Read twice: another thread may be assigning the slot to another map. */
        if (first <= TAKEN || at < first || at >= end || atomic_load(&p->first) != first)
            continue;
        atomic_store(&p->hit, true); /* before mapping: no reader may see zeros without the mark */
        writable = writable || atomic_load(&p->writable);
        to = end > to ? end : to;
    }
    return to != 0 &&
           syscall(SYS_mmap, page, to - page, PROT_READ | (writable ? PROT_WRITE : 0),
                   MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) == (long)page;
}

static void on_sigbus(int signal_number, siginfo_t *info, void *context)
{
    int saved = errno;
    (void)context;
    /* BUS_ADRERR: the page is missing from the file or unreadable. Memory errors have other codes.
     */
    if (info->si_code != BUS_ADRERR || !heal((uintptr_t)info->si_addr)) {
        sigaction(signal_number, &before, NULL);
        if (info->si_code <= 0) /* sent by a process; a real fault repeats by itself */
            raise(signal_number);
    }
    errno = saved;
}

void ctw_map_guard_install(void)
{
    struct sigaction action = {.sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO};
    page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
    sigemptyset(&action.sa_mask);
    (void)sigaction(SIGBUS, &action, &before);
}

int ctw_map_guard_add(const void *map, size_t bytes, bool writable)
{
    for (int i = 0; i < N_PLACES; i++) {
        uintptr_t expected = FREE;
        if (!atomic_compare_exchange_strong(&places[i].first, &expected, TAKEN))
            continue;
        atomic_store(&places[i].end, (uintptr_t)map + bytes);
        atomic_store(&places[i].writable, writable);
        atomic_store(&places[i].hit, false);
        atomic_store(&places[i].first, (uintptr_t)map);
        return i;
    }
    return -1;
}

void ctw_map_guard_remove(int place)
{
    if (place >= 0)
        atomic_store(&places[place].first, FREE);
}

bool ctw_map_guard_hit(int place)
{
    return place >= 0 && atomic_load(&places[place].hit);
}
