#include "base/digest.h"

#include <string.h>

/* Compiles xxHash into this file; no library is linked. */
#define XXH_INLINE_ALL
#include <xxhash.h>

static struct ctw_digest digest_from(XXH128_hash_t hash)
{
    XXH128_canonical_t canonical;
    struct ctw_digest digest;
    _Static_assert(sizeof(canonical.digest) == sizeof(digest.bytes), "128 bits");
    XXH128_canonicalFromHash(&canonical, hash);
    memcpy(digest.bytes, canonical.digest, sizeof(digest.bytes));
    return digest;
}

struct ctw_digest ctw_digest_of(const void *data, size_t bytes)
{
    return digest_from(XXH3_128bits(data, bytes));
}

struct ctw_digest ctw_digest_of_pair(const void *a, size_t a_bytes, const void *b, size_t b_bytes)
{
    XXH3_state_t state;
    (void)XXH3_128bits_reset(&state);
    (void)XXH3_128bits_update(&state, a, a_bytes);
    (void)XXH3_128bits_update(&state, b, b_bytes);
    return digest_from(XXH3_128bits_digest(&state));
}
