/*
 * Checked sizes and allocation. Every heap allocation goes through these functions, so that tests
 * can make the n-th allocation fail (ctw_mem_fail_at) and sizes cannot wrap.
 */
#ifndef CTW_BASE_MEM_H
#define CTW_BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* *out = a * b (or a + b). False, with *out unchanged: the result does not fit in size_t. */
bool ctw_size_mul(size_t a, size_t b, size_t *out) CTW_MUST_CHECK;
bool ctw_size_add(size_t a, size_t b, size_t *out) CTW_MUST_CHECK;

/* count * size zeroed bytes; NULL if memory is exhausted or the product overflows.
 * A count of 0 gives a valid pointer. Free with ctw_free (NULL is a no-op). */
void *ctw_calloc(size_t count, size_t size) CTW_MUST_CHECK;

/* Grows or shrinks a block of ctw_calloc or ctw_realloc; new bytes are not zeroed. On failure the
 * old block stays valid. */
void *ctw_realloc(void *p, size_t count, size_t size) CTW_MUST_CHECK;
char *ctw_strdup(const char *s) CTW_MUST_CHECK;
void ctw_free(void *p);

/* `bytes` of zeroed memory aligned to 64 (and to 2 MiB, with a huge-page hint, from 4 MiB on);
 * free with ctw_free_aligned. */
void *ctw_alloc_aligned(size_t bytes) CTW_MUST_CHECK;
void ctw_free_aligned(void *p);

/* Tests only: the n-th allocation from now on (1 = the next) and all later ones fail; 0: none. */
void ctw_mem_fail_at(int64_t n);
/* Allocations made since the start of the process. */
int64_t ctw_mem_count(void);

#ifdef __cplusplus
}
#endif

#endif
