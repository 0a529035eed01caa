/*
 * SipHash-2-4 (Aumasson, Bernstein: "SipHash: a fast short-input PRF", 2012) for hash tables keyed
 * by names from files. The process draws a random key, so that nobody can craft a file whose names
 * all collide. No result depends on a hash value.
 */
#ifndef CTW_BASE_HASH_H
#define CTW_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

/* The function itself; key = {k0, k1}. */
uint64_t ctw_siphash(const uint64_t key[2], const void *data, size_t bytes);

/* The hash under the process's key, for one table or sub-table (`domain`). */
uint64_t ctw_hash(uint64_t domain, const void *data, size_t bytes);

#endif
