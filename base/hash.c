#include "base/hash.h"

#include <pthread.h>
#include <sys/random.h>
#include <time.h>

static uint64_t process_key[2];
static pthread_once_t key_once = PTHREAD_ONCE_INIT;

static uint64_t rotl(uint64_t x, int n)
{
    return (x << n) | (x >> (64 - n));
}

static void rounds(uint64_t v[4], int n)
{
    for (; n > 0; n--) {
        v[0] += v[1];
        v[2] += v[3];
        v[1] = rotl(v[1], 13) ^ v[0];
        v[3] = rotl(v[3], 16) ^ v[2];
        v[0] = rotl(v[0], 32);
        v[2] += v[1];
        v[0] += v[3];
        v[1] = rotl(v[1], 17) ^ v[2];
        v[3] = rotl(v[3], 21) ^ v[0];
        v[2] = rotl(v[2], 32);
    }
}

/* Loads up to 8 bytes, little-endian. */
static uint64_t load(const unsigned char *p, size_t bytes)
{
    uint64_t x = 0;
    for (size_t i = 0; i < bytes; i++)
        x |= (uint64_t)p[i] << (8 * i);
    return x;
}

uint64_t ctw_siphash(const uint64_t key[2], const void *data, size_t bytes)
{
    const unsigned char *p = data;
    uint64_t v[4] = {key[0] ^ 0x736f6d6570736575u, key[1] ^ 0x646f72616e646f6du,
                     key[0] ^ 0x6c7967656e657261u, key[1] ^ 0x7465646279746573u};
    size_t left = bytes;
    for (; left >= 8; left -= 8, p += 8) {
        uint64_t m = load(p, 8);
        v[3] ^= m;
        rounds(v, 2);
        v[0] ^= m;
    }
    uint64_t last = load(p, left) | (uint64_t)(bytes & 0xff) << 56;
    v[3] ^= last;
    rounds(v, 2);
    v[0] ^= last;
    v[2] ^= 0xff;
    rounds(v, 4);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

static void draw_key(void)
{
    if (getrandom(process_key, sizeof(process_key), GRND_NONBLOCK) == sizeof(process_key))
        return;
    /* No entropy yet (very early in boot): the clock and an address still differ between runs. */
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    process_key[0] = (uint64_t)now.tv_nsec * 0x9e3779b97f4a7c15u;
    process_key[1] = (uint64_t)(uintptr_t)&now ^ (uint64_t)now.tv_sec;
}

uint64_t ctw_hash(uint64_t domain, const void *data, size_t bytes)
{
    (void)pthread_once(&key_once, draw_key);
    uint64_t key[2] = {process_key[0] ^ domain, process_key[1]};
    return ctw_siphash(key, data, bytes);
}
