#include "base/lfs.h"

#include <stdio.h>
#include <string.h>

/* Copies the digits after "\nsize " of a pointer file; "an unknown number of" if there are none. */
static void pointed_size(const char *text, size_t bytes, char *out, size_t cap)
{
    static const char key[] = "\nsize ";
    const char *at = memmem(text, bytes, key, sizeof(key) - 1);
    size_t n = 0;
    (void)snprintf(out, cap, "an unknown number of");
    if (at == NULL)
        return;
    for (at += sizeof(key) - 1; at < text + bytes && *at >= '0' && *at <= '9' && n + 1 < cap; at++)
        out[n++] = *at;
    if (n > 0)
        out[n] = '\0';
}

enum ctw_status ctw_lfs_refuse(const char *what, const void *start, size_t bytes,
                               uint64_t file_bytes, struct ctw_err *err)
{
    static const char first[] = "version https://git-lfs.github.com/spec/";
    char size[24];
    if (bytes < sizeof(first) - 1 || memcmp(start, first, sizeof(first) - 1) != 0)
        return CTW_OK;
    pointed_size(start, bytes, size, sizeof(size));
    return ctw_fail(err, CTW_EFORMAT,
                    "%s: this is a Git LFS pointer of %llu bytes, not the file itself, which "
                    "has %s bytes; fetch it with: git lfs pull",
                    what, (unsigned long long)file_bytes, size);
}
