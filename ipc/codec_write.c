#include <msgpack.h>
#include <string.h>

#include "base/mem.h"
#include "ipc/codec.h"

static int append(void *arg, const char *bytes, size_t n)
{
    struct ctw_writer *w = arg;
    size_t need;
    if (w->failed || !ctw_size_add(w->n, n, &need))
        return -1;
    if (need > w->capacity) {
        size_t capacity = w->capacity < 256 ? 256 : w->capacity;
        while (capacity < need)
            capacity = capacity > SIZE_MAX / 2 ? need : capacity * 2;
        uint8_t *data = ctw_realloc(w->data, capacity, 1);
        if (data == NULL) {
            w->failed = true;
            return -1;
        }
        w->data = data;
        w->capacity = capacity;
    }
    if (n > 0)
        memcpy(w->data + w->n, bytes, n);
    w->n = need;
    return 0;
}

void ctw_writer_fini(struct ctw_writer *w)
{
    ctw_free(w->data);
    *w = (struct ctw_writer){0};
}

static msgpack_packer packer(struct ctw_writer *w)
{
    msgpack_packer pk;
    msgpack_packer_init(&pk, w, append);
    return pk;
}

static void write_str(struct ctw_writer *w, struct ctw_span s)
{
    msgpack_packer pk = packer(w);
    msgpack_pack_str(&pk, s.n);
    msgpack_pack_str_body(&pk, s.data, s.n);
}

static void write_bin(struct ctw_writer *w, struct ctw_span s)
{
    msgpack_packer pk = packer(w);
    msgpack_pack_bin(&pk, s.n);
    msgpack_pack_bin_body(&pk, s.data, s.n);
}

void ctw_write_map(struct ctw_writer *w, uint32_t n_pairs)
{
    msgpack_packer pk = packer(w);
    msgpack_pack_map(&pk, n_pairs);
}

void ctw_write_key(struct ctw_writer *w, const char *key)
{
    write_str(w, ctw_span_of(key));
}

void ctw_write_key_uint(struct ctw_writer *w, const char *key, uint64_t v)
{
    ctw_write_key(w, key);
    msgpack_packer pk = packer(w);
    msgpack_pack_uint64(&pk, v);
}

void ctw_write_key_str(struct ctw_writer *w, const char *key, struct ctw_span v)
{
    ctw_write_key(w, key);
    write_str(w, v);
}

void ctw_write_key_bool(struct ctw_writer *w, const char *key, bool v)
{
    ctw_write_key(w, key);
    msgpack_packer pk = packer(w);
    if (v)
        msgpack_pack_true(&pk);
    else
        msgpack_pack_false(&pk);
}

bool ctw_field_is_there(const struct ctw_field *f, const void *from)
{
    return f->has == CTW_ALWAYS || *((const bool *)from + f->has);
}

uint32_t ctw_count_pairs(const struct ctw_schema *schema, const void *from)
{
    uint32_t n = 0;
    for (int f = 0; f < schema->n_fields; f++)
        n += ctw_field_is_there(&schema->fields[f], from);
    return n;
}

static void write_map_of(struct ctw_writer *w, const struct ctw_schema *schema, const void *from)
{
    ctw_write_map(w, ctw_count_pairs(schema, from));
    ctw_write_struct(w, schema, from);
}

static void write_list(struct ctw_writer *w, const struct ctw_field *f, const struct ctw_list *list)
{
    msgpack_packer pk = packer(w);
    msgpack_pack_array(&pk, list->n);
    const char *data = list->data;
    for (size_t i = 0; i < list->n; i++) {
        if (f->type == CTW_FIELD_STRS)
            write_str(w, ((const struct ctw_span *)list->data)[i]);
        else
            write_map_of(w, f->map, data + i * f->map->size);
    }
}

static void write_value(struct ctw_writer *w, const struct ctw_field *f, const void *v)
{
    msgpack_packer pk = packer(w);
    switch (f->type) {
    case CTW_FIELD_UINT:
        msgpack_pack_uint64(&pk, *(const uint64_t *)v);
        break;
    case CTW_FIELD_FLOAT:
        msgpack_pack_double(&pk, *(const double *)v);
        break;
    case CTW_FIELD_BOOL:
        if (*(const bool *)v)
            msgpack_pack_true(&pk);
        else
            msgpack_pack_false(&pk);
        break;
    case CTW_FIELD_STR:
        write_str(w, *(const struct ctw_span *)v);
        break;
    case CTW_FIELD_BIN:
        write_bin(w, *(const struct ctw_span *)v);
        break;
    case CTW_FIELD_STRS:
    case CTW_FIELD_MAPS:
        write_list(w, f, v);
        break;
    case CTW_FIELD_MAP:
        write_map_of(w, f->map, v);
        break;
    }
}

void ctw_write_struct(struct ctw_writer *w, const struct ctw_schema *schema, const void *from)
{
    for (int f = 0; f < schema->n_fields; f++) {
        if (!ctw_field_is_there(&schema->fields[f], from))
            continue;
        ctw_write_key(w, schema->fields[f].key);
        write_value(w, &schema->fields[f], (const char *)from + schema->fields[f].offset);
    }
}
