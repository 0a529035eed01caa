#include "ipc/codec.h"

#include <msgpack.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "ipc/limits.h"

static const char *const type_names[] = {
    [CTW_FIELD_UINT] = "an unsigned integer",
    [CTW_FIELD_FLOAT] = "a float",
    [CTW_FIELD_BOOL] = "a boolean",
    [CTW_FIELD_STR] = "a str",
    [CTW_FIELD_BIN] = "a bin",
    [CTW_FIELD_STRS] = "an array of str",
    [CTW_FIELD_MAP] = "a map",
    [CTW_FIELD_MAPS] = "an array of maps",
};

/* ---- reading ---- */

enum ctw_status ctw_reader_open(struct ctw_reader *r, const void *data, size_t bytes,
                                struct ctw_err *err)
{
    r->parsed = NULL;
    if (bytes > CTW_IPC_MESSAGE_BYTES)
        return ctw_fail(err, CTW_EFORMAT, "the message has %zu bytes, at most %d are allowed",
                        bytes, CTW_IPC_MESSAGE_BYTES);
    enum ctw_status st = ctw_wire_scan(data, bytes, err);
    if (st != CTW_OK)
        return st;
    msgpack_unpacked *u = ctw_calloc(1, sizeof(*u));
    if (u == NULL)
        return ctw_fail(err, CTW_ENOMEM, "message: out of memory");
    msgpack_unpacked_init(u);
    size_t at = 0;
    msgpack_unpack_return rc = msgpack_unpack_next(u, data, bytes, &at);
    r->parsed = u;
    if (rc == MSGPACK_UNPACK_NOMEM_ERROR)
        st = ctw_fail(err, CTW_ENOMEM, "message: out of memory");
    else if (rc != MSGPACK_UNPACK_SUCCESS || at != bytes)
        st = ctw_fail(err, CTW_EFORMAT, "the message is not one msgpack value");
    else if (u->data.type != MSGPACK_OBJECT_MAP)
        st = ctw_fail(err, CTW_EFORMAT, "the message is not a msgpack map");
    if (st != CTW_OK)
        ctw_reader_close(r);
    return st;
}

void ctw_reader_close(struct ctw_reader *r)
{
    if (r->parsed == NULL)
        return;
    msgpack_unpacked_destroy(r->parsed);
    ctw_free(r->parsed);
    r->parsed = NULL;
}

static const msgpack_object_map *root(const struct ctw_reader *r)
{
    return &((const msgpack_unpacked *)r->parsed)->data.via.map;
}

static bool key_is(const msgpack_object *key, const char *text)
{
    return key->type == MSGPACK_OBJECT_STR && key->via.str.size == strlen(text) &&
           memcmp(key->via.str.ptr, text, key->via.str.size) == 0;
}

/* The value of the first such key; NULL if no key matches. */
static const msgpack_object *find_in(const msgpack_object_map *map, const char *key)
{
    for (uint32_t i = 0; i < map->size; i++) {
        if (key_is(&map->ptr[i].key, key))
            return &map->ptr[i].val;
    }
    return NULL;
}

/* NULL: the key is absent or repeated. */
static const msgpack_object *find(const struct ctw_reader *r, const char *key)
{
    const msgpack_object_map *map = root(r);
    const msgpack_object *found = find_in(map, key);
    for (uint32_t i = 0; found != NULL && i < map->size; i++) {
        if (&map->ptr[i].val != found && key_is(&map->ptr[i].key, key))
            return NULL;
    }
    return found;
}

bool ctw_reader_has(const struct ctw_reader *r, const char *key)
{
    return find_in(root(r), key) != NULL;
}

bool ctw_reader_uint(const struct ctw_reader *r, const char *key, uint64_t *out)
{
    const msgpack_object *o = find(r, key);
    if (o == NULL || o->type != MSGPACK_OBJECT_POSITIVE_INTEGER)
        return false;
    *out = o->via.u64;
    return true;
}

bool ctw_reader_bool(const struct ctw_reader *r, const char *key, bool *out)
{
    const msgpack_object *o = find(r, key);
    if (o == NULL || o->type != MSGPACK_OBJECT_BOOLEAN)
        return false;
    *out = o->via.boolean;
    return true;
}

/* Text ends up in logs, tables and paths, so control characters are not allowed. */
static bool is_text(const char *data, size_t n)
{
    const uint8_t *p = (const uint8_t *)data;
    for (size_t at = 0, step; at < n; at += step) {
        step = ctw_utf8_step(p + at, n - at);
        if (step == 0 || (step == 1 && (p[at] < 0x20 || p[at] == 0x7f)))
            return false;
    }
    return true;
}

void ctw_text_clean(char *text, size_t n)
{
    for (size_t at = 0, step; at < n; at += step) {
        const uint8_t *p = (const uint8_t *)text + at;
        step = ctw_utf8_step(p, n - at);
        if (step == 0 || (step == 1 && (*p < 0x20 || *p == 0x7f))) {
            text[at] = '?';
            step = 1;
        }
    }
}

static enum ctw_status read_text(const msgpack_object *o, const char *where, const char *key,
                                 struct ctw_span *out, struct ctw_err *err)
{
    if (o->type != MSGPACK_OBJECT_STR)
        return ctw_fail(err, CTW_EFORMAT, "%s: \"%s\" must be text (str)", where, key);
    if (o->via.str.size > CTW_IPC_STR_BYTES)
        return ctw_fail(err, CTW_EFORMAT, "%s: \"%s\" is longer than %d bytes", where, key,
                        CTW_IPC_STR_BYTES);
    if (!is_text(o->via.str.ptr, o->via.str.size))
        return ctw_fail(err, CTW_EFORMAT,
                        "%s: \"%s\" is not valid UTF-8 without control characters", where, key);
    *out = (struct ctw_span){.data = o->via.str.ptr, .n = o->via.str.size};
    return CTW_OK;
}

bool ctw_reader_str(const struct ctw_reader *r, const char *key, struct ctw_span *out)
{
    const msgpack_object *o = find(r, key);
    return o != NULL && read_text(o, "", key, out, NULL) == CTW_OK;
}

static enum ctw_status read_map(msgpack_zone *zone, const msgpack_object_map *map,
                                const struct ctw_schema *schema, const char *const *envelope,
                                bool lenient, void *out, struct ctw_err *err);

static enum ctw_status read_list(msgpack_zone *zone, const msgpack_object *o,
                                 const struct ctw_schema *in, const struct ctw_field *f,
                                 bool lenient, struct ctw_list *list, struct ctw_err *err)
{
    size_t n = o->via.array.size;
    size_t size = f->type == CTW_FIELD_STRS ? sizeof(struct ctw_span) : f->map->size;
    list->n = n;
    /* n is at most CTW_IPC_ELEMENTS, so the product cannot wrap. */
    list->data = msgpack_zone_malloc(zone, n * size + 1);
    if (list->data == NULL)
        return ctw_fail(err, CTW_ENOMEM, "message: out of memory");
    for (size_t i = 0; i < n; i++) {
        const msgpack_object *e = &o->via.array.ptr[i];
        char *to = (char *)list->data + i * size;
        enum ctw_status st;
        if (f->type == CTW_FIELD_STRS)
            st = read_text(e, in->name, f->key, (struct ctw_span *)(void *)to, err);
        else if (e->type != MSGPACK_OBJECT_MAP)
            st = ctw_fail(err, CTW_EFORMAT, "%s: \"%s\" must be %s", in->name, f->key,
                          type_names[f->type]);
        else
            st = read_map(zone, &e->via.map, f->map, NULL, lenient, to, err);
        if (st != CTW_OK)
            return st;
    }
    return CTW_OK;
}

static bool type_fits(const msgpack_object *o, enum ctw_field_type type)
{
    switch (type) {
    case CTW_FIELD_UINT:
        return o->type == MSGPACK_OBJECT_POSITIVE_INTEGER;
    case CTW_FIELD_FLOAT:
        return o->type == MSGPACK_OBJECT_FLOAT64 || o->type == MSGPACK_OBJECT_FLOAT32;
    case CTW_FIELD_BOOL:
        return o->type == MSGPACK_OBJECT_BOOLEAN;
    case CTW_FIELD_STR:
        return o->type == MSGPACK_OBJECT_STR;
    case CTW_FIELD_BIN:
        return o->type == MSGPACK_OBJECT_BIN;
    case CTW_FIELD_STRS:
    case CTW_FIELD_MAPS:
        return o->type == MSGPACK_OBJECT_ARRAY;
    case CTW_FIELD_MAP:
        return o->type == MSGPACK_OBJECT_MAP;
    }
    return false;
}

static enum ctw_status read_value(msgpack_zone *zone, const msgpack_object *o,
                                  const struct ctw_schema *in, const struct ctw_field *f,
                                  bool lenient, void *to, struct ctw_err *err)
{
    if (!type_fits(o, f->type))
        return ctw_fail(err, CTW_EFORMAT, "%s: \"%s\" must be %s", in->name, f->key,
                        type_names[f->type]);
    switch (f->type) {
    case CTW_FIELD_UINT:
        *(uint64_t *)to = o->via.u64;
        return CTW_OK;
    case CTW_FIELD_FLOAT:
        *(double *)to = o->via.f64;
        return CTW_OK;
    case CTW_FIELD_BOOL:
        *(bool *)to = o->via.boolean;
        return CTW_OK;
    case CTW_FIELD_STR:
        return read_text(o, in->name, f->key, to, err);
    case CTW_FIELD_BIN:
        *(struct ctw_span *)to = (struct ctw_span){.data = o->via.bin.ptr, .n = o->via.bin.size};
        return CTW_OK;
    case CTW_FIELD_STRS:
    case CTW_FIELD_MAPS:
        return read_list(zone, o, in, f, lenient, to, err);
    case CTW_FIELD_MAP:
        return read_map(zone, &o->via.map, f->map, NULL, lenient, to, err);
    }
    return ctw_fail(err, CTW_EINTERNAL, "%s: \"%s\" has no type", in->name, f->key);
}

/* A client's key for an error message: truncated, without terminal control characters. */
static void printable_key(const msgpack_object *key, char out[49])
{
    size_t n = 0;
    if (key->type == MSGPACK_OBJECT_STR) {
        for (; n < key->via.str.size && n < 48; n++) {
            char c = key->via.str.ptr[n];
            out[n] = c >= 0x20 && c < 0x7f ? c : '?';
        }
    }
    out[n] = '\0';
}

static bool in_envelope(const msgpack_object *key, const char *const *envelope)
{
    for (; envelope != NULL && *envelope != NULL; envelope++) {
        if (key_is(key, *envelope))
            return true;
    }
    return false;
}

static enum ctw_status check_repeats(const msgpack_object_map *map, uint32_t i,
                                     const struct ctw_schema *schema, struct ctw_err *err)
{
    char name[49];
    printable_key(&map->ptr[i].key, name);
    if (map->ptr[i].key.type != MSGPACK_OBJECT_STR)
        return ctw_fail(err, CTW_EFORMAT, "%s: a key is not text (str)", schema->name);
    for (uint32_t j = 0; j < i; j++) {
        if (msgpack_object_equal(map->ptr[i].key, map->ptr[j].key))
            return ctw_fail(err, CTW_EFORMAT, "%s: the key \"%s\" occurs twice", schema->name,
                            name);
    }
    return CTW_OK;
}

static const struct ctw_field *field_of(const msgpack_object *key, const struct ctw_schema *schema)
{
    for (int f = 0; f < schema->n_fields; f++) {
        if (key_is(key, schema->fields[f].key))
            return &schema->fields[f];
    }
    return NULL;
}

/* Sets the flags of the fields that the map has. A flag of several fields is set only if the map
 * has all of them. */
static enum ctw_status set_flags(const msgpack_object_map *map, const struct ctw_schema *schema,
                                 void *out, struct ctw_err *err)
{
    bool *flags = out;
    for (int f = 0; f < schema->n_fields; f++) {
        const struct ctw_field *field = &schema->fields[f];
        bool there = find_in(map, field->key) != NULL;
        if (field->has == CTW_ALWAYS && !there)
            return ctw_fail(err, CTW_EFORMAT, "%s: \"%s\" (%s) is missing", schema->name,
                            field->key, type_names[field->type]);
        bool first = f == 0 || field[-1].has != field->has;
        if (field->has != CTW_ALWAYS)
            flags[field->has] = there && (first || flags[field->has]);
    }
    return CTW_OK;
}

static enum ctw_status read_map(msgpack_zone *zone, const msgpack_object_map *map,
                                const struct ctw_schema *schema, const char *const *envelope,
                                bool lenient, void *out, struct ctw_err *err)
{
    enum { MORE_KEYS = 64 }; /* beyond the table: keys of the envelope and of newer peers */
    memset(out, 0, schema->size);
    if (map->size > (uint32_t)schema->n_fields + MORE_KEYS)
        return ctw_fail(err, CTW_EFORMAT, "%s: %u keys, but at most %d are allowed", schema->name,
                        map->size, schema->n_fields + MORE_KEYS);
    for (uint32_t i = 0; i < map->size; i++) {
        enum ctw_status st = check_repeats(map, i, schema, err);
        if (st != CTW_OK)
            return st;
        const struct ctw_field *field = field_of(&map->ptr[i].key, schema);
        if (field == NULL && (lenient || in_envelope(&map->ptr[i].key, envelope)))
            continue;
        if (field == NULL) {
            char name[49];
            printable_key(&map->ptr[i].key, name);
            return ctw_fail(err, CTW_EFORMAT, "%s: unknown key \"%s\"", schema->name, name);
        }
        st = read_value(zone, &map->ptr[i].val, schema, field, lenient, (char *)out + field->offset,
                        err);
        if (st != CTW_OK)
            return st;
    }
    return set_flags(map, schema, out, err);
}

enum ctw_status ctw_reader_read(struct ctw_reader *r, const struct ctw_schema *schema,
                                const char *const *envelope, bool lenient, void *out,
                                struct ctw_err *err)
{
    msgpack_unpacked *u = r->parsed;
    return read_map(u->zone, root(r), schema, envelope, lenient, out, err);
}

/* ---- spans ---- */

bool ctw_span_copy(struct ctw_span s, char *out, size_t capacity)
{
    bool fits = s.n < capacity;
    if (fits && s.n > 0)
        memcpy(out, s.data, s.n);
    out[fits ? s.n : 0] = '\0';
    return fits;
}

bool ctw_span_is(struct ctw_span s, const char *text)
{
    return s.n == strlen(text) && memcmp(s.data, text, s.n) == 0;
}

struct ctw_span ctw_span_of(const char *text)
{
    return (struct ctw_span){.data = text, .n = text == NULL ? 0 : strlen(text)};
}
