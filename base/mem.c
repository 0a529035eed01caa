#include "base/mem.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { ALIGNMENT = 64, HUGE_PAGE = 2 << 20 };

static atomic_llong n_allocs;
static atomic_llong fail_from = 0; /* fail when n_allocs reaches this; 0 = never */

static bool may_allocate(void)
{
    long long n = atomic_fetch_add(&n_allocs, 1) + 1;
    long long from = atomic_load(&fail_from);
    return from == 0 || n < from;
}

bool ctw_size_mul(size_t a, size_t b, size_t *out)
{
    size_t r;
    if (__builtin_mul_overflow(a, b, &r))
        return false;
    *out = r;
    return true;
}

bool ctw_size_add(size_t a, size_t b, size_t *out)
{
    size_t r;
    if (__builtin_add_overflow(a, b, &r))
        return false;
    *out = r;
    return true;
}

void *ctw_calloc(size_t count, size_t size)
{
    size_t bytes;
    if (!ctw_size_mul(count, size, &bytes) || !may_allocate())
        return NULL;
    return calloc(bytes == 0 ? 1 : bytes, 1);
}

void *ctw_realloc(void *p, size_t count, size_t size)
{
    size_t bytes;
    if (!ctw_size_mul(count, size, &bytes) || !may_allocate())
        return NULL;
    return realloc(p, bytes == 0 ? 1 : bytes);
}

char *ctw_strdup(const char *s)
{
    size_t n = strlen(s) + 1;
    char *copy = ctw_calloc(n, 1);
    if (copy != NULL)
        memcpy(copy, s, n);
    return copy;
}

void ctw_free(void *p)
{
    free(p);
}

static size_t alignment(size_t bytes)
{
    return bytes >= 2 * (size_t)HUGE_PAGE ? HUGE_PAGE : ALIGNMENT;
}

#ifdef __SANITIZE_ADDRESS__

/* posix_memalign() lets the sanitizer see accesses outside the block. */
void *ctw_alloc_aligned(size_t bytes)
{
    void *p = NULL;
    if (bytes > PTRDIFF_MAX || !may_allocate() ||
        posix_memalign(&p, alignment(bytes), bytes == 0 ? 1 : bytes) != 0)
        return NULL;
    return memset(p, 0, bytes);
}

void ctw_free_aligned(void *p)
{
    free(p);
}

#else

/* calloc() does not touch memory that the system has already zeroed, so such pages become resident
 * only on first use. The block of calloc() begins before p; its address is stored just before p. */
void *ctw_alloc_aligned(size_t bytes)
{
    size_t align = alignment(bytes);
    if (bytes > PTRDIFF_MAX || !may_allocate())
        return NULL;
    char *given = calloc(bytes + align, 1);
    if (given == NULL)
        return NULL;
    char *p = given + align - (uintptr_t)given % align;
    if (align == HUGE_PAGE)
        (void)madvise(p, bytes, MADV_HUGEPAGE);
    memcpy(p - sizeof(given), &given, sizeof(given));
    return p;
}

void ctw_free_aligned(void *p)
{
    char *given = NULL;
    if (p != NULL)
        memcpy(&given, (char *)p - sizeof(given), sizeof(given));
    free(given);
}

#endif

void ctw_mem_fail_at(int64_t n)
{
    atomic_store(&fail_from, n == 0 ? 0 : atomic_load(&n_allocs) + n);
}

int64_t ctw_mem_count(void)
{
    return atomic_load(&n_allocs);
}
