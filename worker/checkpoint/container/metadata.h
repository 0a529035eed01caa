/*
 * The key-value metadata of a container's files: named numbers, texts and arrays of them. GGUF has
 * such metadata; safetensors has none (its configuration is a file of its own).
 *
 * Values stay in the bytes of the file's header. Arrays may nest; readers of values accept arrays
 * of numbers or of texts only.
 */
#ifndef CTW_WORKER_METADATA_H
#define CTW_WORKER_METADATA_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

/* As numbered in GGUF. */
enum ctw_meta_type {
    CTW_META_U8,
    CTW_META_I8,
    CTW_META_U16,
    CTW_META_I16,
    CTW_META_U32,
    CTW_META_I32,
    CTW_META_F32,
    CTW_META_BOOL,
    CTW_META_TEXT,
    CTW_META_ARRAY,
    CTW_META_U64,
    CTW_META_I64,
    CTW_META_F64,
    CTW_N_META_TYPES
};

struct ctw_meta {
    const char *key;         /* of printable characters; the metadata's own */
    enum ctw_meta_type type; /* of the value, or of an array's elements */
    bool is_array;
    uint64_t n;                /* elements; 1 if it is no array */
    const unsigned char *data; /* the elements as the file has them, unaligned, little-endian */
};

struct ctw_metadata {
    unsigned char *block; /* the file's header */
    char *keys;           /* all keys, each NUL-terminated */
    struct ctw_meta *items;
    int64_t n_items;
};

void ctw_metadata_free(struct ctw_metadata *m); /* zeroed is fine */

/* NULL: there is no such key. m may be NULL. */
const struct ctw_meta *ctw_meta_find(const struct ctw_metadata *m, const char *key);
/* Bytes of a value of fixed size; 0: a text or an array. */
size_t ctw_meta_type_bytes(enum ctw_meta_type type);
/* Element i as an integer (a bool is 0 or 1), or as any number. False: the element is no such number,
 * or does not fit in an int64_t. */
bool ctw_meta_int(const struct ctw_meta *m, uint64_t i, int64_t *out);
bool ctw_meta_number(const struct ctw_meta *m, uint64_t i, double *out);
/* A value that is a text, without a NUL at its end. False: the value has another type. */
bool ctw_meta_text(const struct ctw_meta *m, const char **text, size_t *bytes);
/* "17", "0.5", "true", "a text", "an array of 3", cut to `cap`, for people. Returns buf. Characters
 * that do not print are replaced by '?'. */
const char *ctw_meta_describe(const struct ctw_meta *m, char *buf, size_t cap);

#endif
