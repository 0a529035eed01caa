#include "worker/checkpoint/container/metadata.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

void ctw_metadata_free(struct ctw_metadata *m)
{
    ctw_free(m->block);
    ctw_free(m->keys);
    ctw_free(m->items);
    *m = (struct ctw_metadata){0};
}

const struct ctw_meta *ctw_meta_find(const struct ctw_metadata *m, const char *key)
{
    for (int64_t i = 0; m != NULL && i < m->n_items; i++)
        if (strcmp(m->items[i].key, key) == 0)
            return &m->items[i];
    return NULL;
}

size_t ctw_meta_type_bytes(enum ctw_meta_type type)
{
    switch (type) {
    case CTW_META_U8:
    case CTW_META_I8:
    case CTW_META_BOOL:
        return 1;
    case CTW_META_U16:
    case CTW_META_I16:
        return 2;
    case CTW_META_U32:
    case CTW_META_I32:
    case CTW_META_F32:
        return 4;
    case CTW_META_U64:
    case CTW_META_I64:
    case CTW_META_F64:
        return 8;
    default:
        return 0;
    }
}

/* The element's bits, of which the type says how many count. */
static uint64_t bits_of(const struct ctw_meta *m, uint64_t i)
{
    size_t bytes = ctw_meta_type_bytes(m->type);
    uint64_t bits = 0;
    for (size_t b = bytes; b-- > 0;)
        bits = bits << 8 | m->data[i * bytes + b];
    return bits;
}

bool ctw_meta_int(const struct ctw_meta *m, uint64_t i, int64_t *out)
{
    uint64_t bits = i < m->n ? bits_of(m, i) : 0;
    switch (i < m->n ? m->type : CTW_META_TEXT) {
    case CTW_META_U8:
    case CTW_META_U16:
    case CTW_META_U32:
    case CTW_META_I64:
        *out = (int64_t)bits;
        return true;
    case CTW_META_I8:
        *out = (int8_t)bits;
        return true;
    case CTW_META_I16:
        *out = (int16_t)bits;
        return true;
    case CTW_META_I32:
        *out = (int32_t)bits;
        return true;
    case CTW_META_BOOL:
        *out = bits != 0;
        return true;
    case CTW_META_U64:
        *out = (int64_t)bits;
        return bits <= INT64_MAX;
    default:
        return false;
    }
}

bool ctw_meta_number(const struct ctw_meta *m, uint64_t i, double *out)
{
    int64_t integer;
    if (i < m->n && m->type == CTW_META_F32) {
        uint32_t bits = (uint32_t)bits_of(m, i);
        float f;
        memcpy(&f, &bits, sizeof(f));
        *out = f;
        return true;
    }
    if (i < m->n && m->type == CTW_META_F64) {
        uint64_t bits = bits_of(m, i);
        memcpy(out, &bits, sizeof(*out));
        return true;
    }
    if (!ctw_meta_int(m, i, &integer))
        return false;
    *out = (double)integer;
    return true;
}

bool ctw_meta_text(const struct ctw_meta *m, const char **text, size_t *bytes)
{
    if (m->type != CTW_META_TEXT || m->is_array)
        return false;
    uint64_t n = 0;
    for (int b = 7; b >= 0; b--)
        n = n << 8 | m->data[b];
    *text = (const char *)m->data + 8;
    *bytes = (size_t)n;
    return true;
}

const char *ctw_meta_describe(const struct ctw_meta *m, char *buf, size_t cap)
{
    const char *text;
    size_t bytes;
    int64_t integer = 0;
    double number = 0;
    if (m->is_array)
        (void)snprintf(buf, cap, "an array of %" PRIu64, m->n);
    else if (ctw_meta_text(m, &text, &bytes))
        (void)snprintf(buf, cap, "%.*s", (int)(bytes < cap ? bytes : cap), text);
    else if (m->type == CTW_META_BOOL && ctw_meta_int(m, 0, &integer))
        (void)snprintf(buf, cap, "%s", integer != 0 ? "true" : "false");
    else if (ctw_meta_int(m, 0, &integer))
        (void)snprintf(buf, cap, "%" PRId64, integer);
    else if (ctw_meta_number(m, 0, &number))
        (void)snprintf(buf, cap, "%.9g", number);
    else
        (void)snprintf(buf, cap, "a number of more than 63 bits");
    for (char *p = buf; *p != '\0'; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            *p = '?';
    return buf;
}
