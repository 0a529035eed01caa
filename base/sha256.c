#include "base/sha256.h"

#include <string.h>

/* First 32 bits of the fractional parts of the cube roots of the first 64 primes (4.2.2). */
static const uint32_t k[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t rotr(uint32_t x, int n)
{
    return (x >> n) | (x << (32 - n));
}

static uint32_t load_be32(const unsigned char *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static void store_be32(unsigned char *p, uint32_t x)
{
    for (int i = 0; i < 4; i++)
        p[i] = (unsigned char)(x >> (24 - 8 * i));
}

/* One round (6.2.2, step 3). The caller rotates the names of the working variables instead of
 * moving their values. */
static inline void round_step(uint32_t a, uint32_t b, uint32_t c, uint32_t *d, uint32_t e,
                              uint32_t f, uint32_t g, uint32_t *h, uint32_t kw)
{
    uint32_t t1 = *h + (rotr(e, 6) ^ rotr(e, 11) ^ rotr(e, 25)) + (g ^ (e & (f ^ g))) + kw;
    *d += t1;
    *h = t1 + (rotr(a, 2) ^ rotr(a, 13) ^ rotr(a, 22)) + ((a & b) | (c & (a | b)));
}

/* One block of 64 bytes (6.2.2). */
static void compress(uint32_t state[8], const unsigned char *block)
{
    uint32_t w[64];
    for (int t = 0; t < 16; t++)
        w[t] = load_be32(block + 4 * t);
    for (int t = 16; t < 64; t++) {
        uint32_t s0 = rotr(w[t - 15], 7) ^ rotr(w[t - 15], 18) ^ (w[t - 15] >> 3);
        uint32_t s1 = rotr(w[t - 2], 17) ^ rotr(w[t - 2], 19) ^ (w[t - 2] >> 10);
        w[t] = w[t - 16] + s0 + w[t - 7] + s1;
    }
    uint32_t a = state[0], b = state[1], c = state[2], d = state[3];
    uint32_t e = state[4], f = state[5], g = state[6], h = state[7];
    for (int t = 0; t < 64; t += 8) {
        round_step(a, b, c, &d, e, f, g, &h, k[t] + w[t]);
        round_step(h, a, b, &c, d, e, f, &g, k[t + 1] + w[t + 1]);
        round_step(g, h, a, &b, c, d, e, &f, k[t + 2] + w[t + 2]);
        round_step(f, g, h, &a, b, c, d, &e, k[t + 3] + w[t + 3]);
        round_step(e, f, g, &h, a, b, c, &d, k[t + 4] + w[t + 4]);
        round_step(d, e, f, &g, h, a, b, &c, k[t + 5] + w[t + 5]);
        round_step(c, d, e, &f, g, h, a, &b, k[t + 6] + w[t + 6]);
        round_step(b, c, d, &e, f, g, h, &a, k[t + 7] + w[t + 7]);
    }
    state[0] += a;
    state[1] += b;
    state[2] += c;
    state[3] += d;
    state[4] += e;
    state[5] += f;
    state[6] += g;
    state[7] += h;
}

void ctw_sha256_init(struct ctw_sha256 *s)
{
    static const uint32_t initial[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                        0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    memcpy(s->state, initial, sizeof(initial));
    s->bytes = 0;
}

void ctw_sha256_update(struct ctw_sha256 *s, const void *data, size_t bytes)
{
    const unsigned char *p = data;
    size_t held = s->bytes % 64;
    if (bytes == 0)
        return;
    s->bytes += bytes;
    if (held > 0) {
        size_t take = 64 - held < bytes ? 64 - held : bytes;
        memcpy(s->block + held, p, take);
        if (held + take < 64)
            return;
        compress(s->state, s->block);
        p += take;
        bytes -= take;
    }
    for (; bytes >= 64; bytes -= 64, p += 64)
        compress(s->state, p);
    memcpy(s->block, p, bytes);
}

void ctw_sha256_final(struct ctw_sha256 *s, unsigned char digest[32])
{
    static const unsigned char padding[64] = {0x80};
    unsigned char length[8];
    uint64_t bits = s->bytes * 8;
    store_be32(length, (uint32_t)(bits >> 32));
    store_be32(length + 4, (uint32_t)bits);
    ctw_sha256_update(s, padding, 1 + (119 - s->bytes % 64) % 64);
    ctw_sha256_update(s, length, sizeof(length));
    for (int i = 0; i < 8; i++)
        store_be32(digest + 4 * i, s->state[i]);
}

void ctw_sha256_final_hex(struct ctw_sha256 *s, char hex[65])
{
    static const char digits[] = "0123456789abcdef";
    unsigned char digest[32];
    ctw_sha256_final(s, digest);
    for (int i = 0; i < 32; i++) {
        hex[2 * i] = digits[digest[i] >> 4];
        hex[2 * i + 1] = digits[digest[i] & 15];
    }
    hex[64] = '\0';
}
