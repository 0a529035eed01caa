#include "worker/checkpoint/container/gguf_cursor.h"

#include "base/file.h"
#include "base/mem.h"
#include "worker/checkpoint/container/gguf.h"

enum { FIRST_BYTES = 1 << 16, MAX_NAME = 65535 };

/* Makes the file's first `end` bytes, or more, part of the block. */
static void load(struct ctw_gguf_cursor *c, uint64_t end)
{
    uint64_t more = c->loaded < FIRST_BYTES ? FIRST_BYTES : 2 * (uint64_t)c->loaded;
    more = more < end ? end : more > c->file_bytes ? c->file_bytes : more;
    unsigned char *block = ctw_realloc(c->block, (size_t)more, 1);
    if (block == NULL) {
        c->st = ctw_fail(c->err, CTW_ENOMEM, "%s: out of memory for a header of %llu bytes",
                         c->what, (unsigned long long)more);
        return;
    }
    c->block = block;
    c->st = ctw_read_exactly(c->fd, block + c->loaded, (size_t)(more - c->loaded), c->loaded,
                             c->what, c->err);
    if (c->st == CTW_OK)
        c->loaded = (size_t)more;
}

bool ctw_gguf_take(struct ctw_gguf_cursor *c, uint64_t n, const char *where)
{
    if (c->st != CTW_OK)
        return false;
    if (n > c->file_bytes - c->at)
        c->st = ctw_fail(c->err, CTW_EFORMAT,
                         "%s: %s needs %llu bytes from byte %llu on, but the file has %llu: a "
                         "download was interrupted, or the file is damaged; fetch it again",
                         c->what, where, (unsigned long long)n, (unsigned long long)c->at,
                         (unsigned long long)c->file_bytes);
    else if (c->at + n > CTW_GGUF_MAX_HEADER)
        c->st = ctw_fail(c->err, CTW_EFORMAT,
                         "%s: %s needs %llu bytes from byte %llu on; a header of at most %d bytes "
                         "is supported",
                         c->what, where, (unsigned long long)n, (unsigned long long)c->at,
                         (int)CTW_GGUF_MAX_HEADER);
    else if (c->at + n > c->loaded)
        load(c, c->at + n);
    if (c->st != CTW_OK)
        return false;
    c->at += n;
    return true;
}

static uint64_t number(struct ctw_gguf_cursor *c, int bytes, const char *where)
{
    uint64_t v = 0;
    if (!ctw_gguf_take(c, (uint64_t)bytes, where))
        return 0;
    for (int i = 1; i <= bytes; i++)
        v = v << 8 | c->block[c->at - (uint64_t)i];
    return v;
}

uint32_t ctw_gguf_u32(struct ctw_gguf_cursor *c, const char *where)
{
    return (uint32_t)number(c, 4, where);
}

uint64_t ctw_gguf_u64(struct ctw_gguf_cursor *c, const char *where)
{
    return number(c, 8, where);
}

uint64_t ctw_gguf_text(struct ctw_gguf_cursor *c, const char *where, uint64_t *bytes)
{
    *bytes = ctw_gguf_u64(c, where);
    uint64_t at = c->at;
    return ctw_gguf_take(c, *bytes, where) ? at : 0;
}

uint64_t ctw_gguf_name(struct ctw_gguf_cursor *c, const char *where, uint64_t *bytes)
{
    uint64_t at = ctw_gguf_text(c, where, bytes);
    if (c->st == CTW_OK && (*bytes == 0 || *bytes > MAX_NAME))
        c->st = ctw_fail(c->err, CTW_EFORMAT, "%s: %s is a name of %llu bytes; expected 1 to %d",
                         c->what, where, (unsigned long long)*bytes, (int)MAX_NAME);
    for (uint64_t i = 0; c->st == CTW_OK && i < *bytes; i++)
        if (c->block[at + i] < 0x20 || c->block[at + i] == 0x7f)
            c->st = ctw_fail(c->err, CTW_EFORMAT, "%s: %s: a name must not hold control characters",
                             c->what, where);
    return c->st == CTW_OK ? at : 0;
}
