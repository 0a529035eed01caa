/*
 * XXH3-128 (Yann Collet's xxHash 0.8, seed 0): detects differences between bytes at memory
 * bandwidth. Not cryptographic: an attacker can construct collisions.
 */
#ifndef CTW_BASE_DIGEST_H
#define CTW_BASE_DIGEST_H

#include <stddef.h>

struct ctw_digest {
    unsigned char bytes[16]; /* the canonical form: the same on every machine */
};

struct ctw_digest ctw_digest_of(const void *data, size_t bytes);
/* The digest of both, one after the other. */
struct ctw_digest ctw_digest_of_pair(const void *a, size_t a_bytes, const void *b, size_t b_bytes);

#endif
