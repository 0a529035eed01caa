/*
 * SHA-256 (FIPS 180-4), incremental. It allocates nothing and cannot fail. One thread per state.
 */
#ifndef CTW_BASE_SHA256_H
#define CTW_BASE_SHA256_H

#include <stddef.h>
#include <stdint.h>

struct ctw_sha256 {
    uint32_t state[8];
    uint64_t bytes;          /* fed so far */
    unsigned char block[64]; /* the last bytes % 64 bytes fed */
};

void ctw_sha256_init(struct ctw_sha256 *s);
void ctw_sha256_update(struct ctw_sha256 *s, const void *data, size_t bytes);
/* Writes the digest; s must then be initialised again. */
void ctw_sha256_final(struct ctw_sha256 *s, unsigned char digest[32]);
/* Writes the digest as 64 lower-case hex digits and a NUL. */
void ctw_sha256_final_hex(struct ctw_sha256 *s, char hex[65]);

#endif
