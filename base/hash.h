/*
 * SipHash-2-4 (Aumasson, Bernstein: "SipHash: a fast short-input PRF", 2012) for hash tables over
 * names that come from files: keyed with a random key of the process, so that no file can be made
 * whose names all collide. Never used where a result could depend on it.
 */
#ifndef CTW_BASE_HASH_H
#define CTW_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

/* The function itself; key = {k0, k1}. */
uint64_t ctw_siphash(const uint64_t key[2], const void *data, size_t bytes);

/* Under the process's key, for one table or sub-table (`domain`). */
uint64_t ctw_hash(uint64_t domain, const void *data, size_t bytes);

#endif
