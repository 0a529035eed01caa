#include "worker/checkpoint/identity.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/sha256.h"

enum { N_PLACES = 16, PLACE_BYTES = 64 };

/* The place's bytes in the map; 0: the tensor has no such place. A small tensor is covered whole.
 */
static size_t place(const struct ctw_container *c, const struct ctw_tensor *t, int i,
                    const char **data)
{
    size_t at = (size_t)i * (t->bytes / N_PLACES + 1);
    if (at >= t->bytes)
        return 0;
    *data = (const char *)ctw_container_data(c, t) + at;
    return t->bytes - at < PLACE_BYTES ? t->bytes - at : PLACE_BYTES;
}

/*
 * Asks for all places at once. Read one by one, pages that are not in memory would take a disk's
 * latency each, and the kernel's read-ahead would read much around every one of them.
 */
static void read_ahead(const struct ctw_container *c)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), done = 0;
    const char *data = NULL;
    for (int64_t i = 0; i < ctw_container_count(c); i++)
        for (int p = 0; p < N_PLACES; p++) {
            size_t bytes = place(c, ctw_container_at(c, i), p, &data);
            uintptr_t start = (uintptr_t)data & ~(page - 1), end = (uintptr_t)data + bytes;
            if (bytes == 0 || start == done) /* many small tensors share a page */
                continue;
            (void)madvise((void *)start, end - start, MADV_WILLNEED); /* only a hint */
            done = end - start <= page ? start : 0;
        }
}

static void hash_tensor(struct ctw_sha256 *sha, const struct ctw_container *c,
                        const struct ctw_tensor *t)
{
    const char *file = ctw_container_file(c, t->file), *data = NULL;
    char where[256];
    int n = snprintf(where, sizeof(where), "%s %d", ctw_dtype_name(t->dtype), t->n_dims);
    for (int d = 0; d < t->n_dims; d++)
        n += snprintf(where + n, sizeof(where) - (size_t)n, " %" PRId64, t->shape[d]);
    n += snprintf(where + n, sizeof(where) - (size_t)n, " %" PRIu64 " %zu", t->offset, t->bytes);
    ctw_sha256_update(sha, t->name, strlen(t->name) + 1);
    ctw_sha256_update(sha, where, (size_t)n + 1);
    ctw_sha256_update(sha, file, strlen(file) + 1);
    for (int p = 0; p < N_PLACES; p++) {
        size_t bytes = place(c, t, p, &data);
        ctw_sha256_update(sha, data, bytes);
    }
}

void ctw_identify(char hex[65], const struct ctw_json *config, const struct ctw_container *c)
{
    struct ctw_sha256 sha;
    size_t bytes = 0;
    const char *source = ctw_json_source(ctw_json_root(config), &bytes);
    ctw_sha256_init(&sha);
    ctw_sha256_update(&sha, source, bytes);
    read_ahead(c);
    for (int64_t i = 0; i < ctw_container_count(c); i++)
        hash_tensor(&sha, c, ctw_container_at(c, i));
    ctw_sha256_final_hex(&sha, hex);
}
