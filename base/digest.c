#include "base/digest.h"

#include <string.h>

/* Compiles xxHash into this file; no library is linked. */
#define XXH_INLINE_ALL
#include <xxhash.h>

struct ctw_digest ctw_digest_of(const void *data, size_t bytes)
{
    XXH128_canonical_t canonical;
    struct ctw_digest digest;
    _Static_assert(sizeof(canonical.digest) == sizeof(digest.bytes), "128 bits");
    XXH128_canonicalFromHash(&canonical, XXH3_128bits(data, bytes));
    memcpy(digest.bytes, canonical.digest, sizeof(digest.bytes));
    return digest;
}
