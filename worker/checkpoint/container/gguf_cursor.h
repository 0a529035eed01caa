/* Private to gguf*.c: reads a GGUF header from its start, value by value. Errors are sticky. */
#ifndef CTW_WORKER_GGUF_CURSOR_H
#define CTW_WORKER_GGUF_CURSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "worker/checkpoint/container/metadata.h"

struct ctw_gguf_cursor {
    const char *what; /* the file's name, for messages */
    int fd;           /* -1: all that there is has been loaded */
    uint64_t file_bytes;
    unsigned char *block; /* [loaded], the file's first bytes; moves if more are loaded */
    size_t loaded;
    uint64_t at; /* the next byte to read */
    enum ctw_status st;
    struct ctw_err *err; /* may be NULL */
};

/* Loads the next n bytes, and goes past them; `where` says in messages what they are. False: an
 * error, also an earlier one. */
bool ctw_gguf_take(struct ctw_gguf_cursor *c, uint64_t n, const char *where);
/* Little-endian numbers; 0 after an error. */
uint32_t ctw_gguf_u32(struct ctw_gguf_cursor *c, const char *where);
uint64_t ctw_gguf_u64(struct ctw_gguf_cursor *c, const char *where);
/* A text's place in the block, and its length. */
uint64_t ctw_gguf_text(struct ctw_gguf_cursor *c, const char *where, uint64_t *bytes);
/* The same for the name of a key or a tensor: 1 to 65535 printable characters. */
uint64_t ctw_gguf_name(struct ctw_gguf_cursor *c, const char *where, uint64_t *bytes);

/* gguf_keys.c: reads n keys and their values into *out, whose data are offsets in the block until
 * ctw_gguf_keys_finish() makes them pointers. */
void ctw_gguf_keys(struct ctw_gguf_cursor *c, struct ctw_metadata *out, uint64_t n);
/* Once the block does not move any more: hands it over, with the names in `*out`. */
void ctw_gguf_keys_finish(struct ctw_gguf_cursor *c, struct ctw_metadata *out);

#endif
