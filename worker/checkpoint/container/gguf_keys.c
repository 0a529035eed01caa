/* The keys and values at the beginning of a GGUF file. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "worker/checkpoint/container/gguf.h"
#include "worker/checkpoint/container/gguf_cursor.h"

enum { MAX_SHOWN = 200 };

/* The key's place in the block, until the block stays where it is. */
struct place {
    uint64_t key, key_bytes, data;
};

static void check_type(struct ctw_gguf_cursor *c, uint32_t type, const char *where)
{
    if (c->st == CTW_OK && type >= CTW_N_META_TYPES)
        c->st = ctw_fail(c->err, CTW_EFORMAT, "%s: %s: found type %u of a value; types are 0 to %d",
                         c->what, where, (unsigned)type, (int)CTW_N_META_TYPES - 1);
}

static void skip_array(struct ctw_gguf_cursor *c, const char *where, int depth, uint32_t *type,
                       uint64_t *n);

/* Goes past n values of a type. */
static void skip(struct ctw_gguf_cursor *c, const char *where, uint32_t type, uint64_t n, int depth)
{
    uint32_t inner;
    uint64_t bytes = ctw_meta_type_bytes((enum ctw_meta_type)type), count;
    if (c->st != CTW_OK)
        return;
    if (bytes > 0 && n > (UINT64_MAX - c->at) / bytes) {
        c->st = ctw_fail(c->err, CTW_EFORMAT,
                         "%s: %s: an array of %llu values does not fit in a file of %llu bytes",
                         c->what, where, (unsigned long long)n, (unsigned long long)c->file_bytes);
        return;
    }
    if (bytes > 0) {
        (void)ctw_gguf_take(c, n * bytes, where);
        return;
    }
    for (uint64_t i = 0; i < n && c->st == CTW_OK; i++)
        if (type == CTW_META_TEXT)
            (void)ctw_gguf_text(c, where, &count);
        else
            skip_array(c, where, depth, &inner, &count);
}

/* Goes past an array whose type and count come first. */
static void skip_array(struct ctw_gguf_cursor *c, const char *where, int depth, uint32_t *type,
                       uint64_t *n)
{
    if (depth == CTW_GGUF_MAX_NESTING && c->st == CTW_OK)
        c->st = ctw_fail(c->err, CTW_EFORMAT, "%s: %s: arrays within arrays, more than %d deep",
                         c->what, where, (int)CTW_GGUF_MAX_NESTING);
    *type = ctw_gguf_u32(c, where);
    check_type(c, *type, where);
    *n = ctw_gguf_u64(c, where);
    skip(c, where, *type, *n, depth + 1);
}

/* Reads the value of a key of this type; its data are still an offset. */
static void read_value(struct ctw_gguf_cursor *c, const char *where, uint32_t type,
                       struct ctw_meta *m, uint64_t *data)
{
    uint32_t inner = type;
    m->n = 1;
    m->is_array = type == CTW_META_ARRAY;
    *data = c->at + (m->is_array ? 12 : 0); /* after type and count */
    if (m->is_array)
        skip_array(c, where, 0, &inner, &m->n);
    else
        skip(c, where, type, 1, 0);
    m->type = (enum ctw_meta_type)inner;
}

static bool grow(struct ctw_gguf_cursor *c, struct ctw_metadata *out, struct place **places)
{
    size_t n = (size_t)out->n_items, cap = n == 0 ? 32 : 2 * n;
    if (n != 0 && (n < 32 || (n & (n - 1)) != 0)) /* a power of two is full */
        return true;
    struct ctw_meta *items = ctw_realloc(out->items, cap, sizeof(*items));
    out->items = items != NULL ? items : out->items;
    struct place *p = items != NULL ? ctw_realloc(*places, cap, sizeof(*p)) : NULL;
    *places = p != NULL ? p : *places;
    if (p == NULL)
        c->st = ctw_fail(c->err, CTW_ENOMEM, "%s: out of memory for its metadata", c->what);
    return p != NULL;
}

/* Copies the keys, which must differ, and makes offsets pointers. */
static void name_items(struct ctw_gguf_cursor *c, struct ctw_metadata *out,
                       const struct place *places)
{
    size_t bytes = 1;
    for (int64_t i = 0; i < out->n_items; i++)
        bytes += (size_t)places[i].key_bytes + 1;
    out->keys = ctw_calloc(bytes, 1);
    if (out->keys == NULL) {
        c->st = ctw_fail(c->err, CTW_ENOMEM, "%s: out of memory for its metadata", c->what);
        return;
    }
    char *key = out->keys;
    for (int64_t i = 0; i < out->n_items && c->st == CTW_OK; i++) {
        struct ctw_metadata before = {.items = out->items, .n_items = i};
        memcpy(key, c->block + places[i].key, (size_t)places[i].key_bytes);
        out->items[i].key = key;
        out->items[i].data = (const unsigned char *)(uintptr_t)places[i].data;
        if (ctw_meta_find(&before, key) != NULL)
            c->st = ctw_fail(c->err, CTW_EFORMAT, "%s: the key %s stands twice in its metadata",
                             c->what, key);
        key += places[i].key_bytes + 1;
    }
}

void ctw_gguf_keys(struct ctw_gguf_cursor *c, struct ctw_metadata *out, uint64_t n)
{
    enum { MAX_KEYS = 4096 };
    struct place *places = NULL;
    if (c->st == CTW_OK && n > MAX_KEYS)
        c->st = ctw_fail(c->err, CTW_EFORMAT, "%s: declares %llu keys; at most %d are supported",
                         c->what, (unsigned long long)n, (int)MAX_KEYS);
    for (uint64_t i = 0; i < n && c->st == CTW_OK && grow(c, out, &places); i++) {
        struct place *p = &places[i];
        struct ctw_meta *m = &out->items[i];
        char where[MAX_SHOWN + 16];
        (void)snprintf(where, sizeof(where), "key %llu", (unsigned long long)i);
        *m = (struct ctw_meta){0};
        p->key = ctw_gguf_name(c, where, &p->key_bytes);
        if (c->st != CTW_OK)
            break;
        int shown = p->key_bytes < MAX_SHOWN ? (int)p->key_bytes : MAX_SHOWN;
        (void)snprintf(where, sizeof(where), "the value of %.*s", shown,
                       (const char *)c->block + p->key);
        uint32_t type = ctw_gguf_u32(c, where);
        check_type(c, type, where);
        read_value(c, where, type, m, &p->data);
        out->n_items++;
    }
    if (c->st == CTW_OK)
        name_items(c, out, places);
    ctw_free(places);
}

void ctw_gguf_keys_finish(struct ctw_gguf_cursor *c, struct ctw_metadata *out)
{
    for (int64_t i = 0; i < out->n_items; i++)
        out->items[i].data = c->block + (uintptr_t)out->items[i].data;
    out->block = c->block;
    c->block = NULL;
}
