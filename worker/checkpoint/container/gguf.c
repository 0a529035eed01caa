#include "worker/checkpoint/container/gguf.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/lfs.h"
#include "base/mem.h"
#include "kernels/formats/ggml/ggml_types.h"
#include "worker/checkpoint/container/gguf_cursor.h"

enum {
    DEFAULT_ALIGNMENT = 32,
    MAX_ALIGNMENT = 1 << 20,
    PRELUDE = 512,
    MAX_SHOWN = 200,
    MAX_REASON = 128
};
static const uint64_t MAX_SIZE = (uint64_t)1 << 40; /* of a dimension */

static const uint32_t HEADER_ALONE = 1u << 31; /* in the version */

/* ---- the first bytes ---- */

static uint32_t swapped(uint32_t v)
{
    return v >> 24 | (v >> 8 & 0xff00) | (v << 8 & 0xff0000) | v << 24;
}

static void read_start(struct ctw_gguf_cursor *c, bool *header_alone)
{
    uint64_t n = c->file_bytes < PRELUDE ? c->file_bytes : PRELUDE;
    if (c->file_bytes == 0) {
        c->st = ctw_fail(c->err, CTW_EFORMAT,
                         "%s: the file is empty: a download failed; fetch it again", c->what);
        return;
    }
    if (!ctw_gguf_take(c, n, "the header"))
        return;
    c->at = 0;
    c->st = ctw_lfs_refuse(c->what, c->block, (size_t)n, c->file_bytes, c->err);
    if (c->st == CTW_OK && (n < 4 || memcmp(c->block, "GGUF", 4) != 0))
        c->st = ctw_fail(c->err, CTW_EFORMAT, "%s: not a GGUF file: it does not begin with GGUF",
                         c->what);
    (void)ctw_gguf_take(c, 4, "the header");
    uint32_t version = ctw_gguf_u32(c, "the version");
    *header_alone = (version & HEADER_ALONE) != 0;
    version &= ~HEADER_ALONE;
    uint32_t other = swapped(version);
    if (c->st == CTW_OK && version > 0xffff && other <= 0xffff)
        c->st = ctw_fail(c->err, CTW_EUNSUP,
                         "%s: a big-endian GGUF file (version %u), which is not supported; convert "
                         "the model again without --bigendian",
                         c->what, (unsigned)other);
    else if (c->st == CTW_OK && version != 2 && version != 3)
        c->st = ctw_fail(c->err, CTW_EUNSUP,
                         "%s: GGUF version %u is not supported; supported are 2 and 3: convert the "
                         "model again",
                         c->what, (unsigned)version);
}

/* ---- tensors ---- */

/* A tensor, with the place of its name until the block stays where it is. */
struct found {
    struct ctw_tensor t;
    uint64_t name, name_bytes;
    uint32_t type;
    bool unusable; /* its type cannot be read, so its size is not known */
};

struct list {
    struct found *items;
    int64_t n;
    size_t text_bytes; /* of all names, and the reasons why tensors cannot be read */
};

static void fail_tensor(struct ctw_gguf_cursor *c, const struct found *f, const char *fmt, ...)
    CTW_PRINTF(3, 4);

static void fail_tensor(struct ctw_gguf_cursor *c, const struct found *f, const char *fmt, ...)
{
    char text[400];
    va_list args;
    int shown = f->name_bytes < MAX_SHOWN ? (int)f->name_bytes : MAX_SHOWN;
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    if (c->st == CTW_OK)
        c->st = ctw_fail(c->err, CTW_EFORMAT, "%s: tensor %.*s: %s", c->what, shown,
                         (const char *)c->block + f->name, text);
}

/* Reads the dimensions, and sets the shape, in reverse. *elements: their product; *row: the first
 * that was read, which is contiguous. */
static void read_dims(struct ctw_gguf_cursor *c, struct found *f, const char *where, uint64_t *row,
                      uint64_t *elements)
{
    uint32_t n = ctw_gguf_u32(c, where);
    *row = *elements = 1;
    if (c->st == CTW_OK && n > CTW_MAX_DIMS) {
        fail_tensor(c, f, "%u dimensions; at most %d are allowed", (unsigned)n, (int)CTW_MAX_DIMS);
        return;
    }
    f->t.n_dims = (int)n;
    for (uint32_t d = 0; d < n && c->st == CTW_OK; d++) {
        uint64_t size = ctw_gguf_u64(c, where);
        if (size > MAX_SIZE || __builtin_mul_overflow(*elements, size, elements) ||
            *elements >= (uint64_t)1 << 58)
            fail_tensor(c, f, "dimension %u is %" PRIu64 ": the tensor's size does not fit", d,
                        size);
        f->t.shape[n - 1 - d] = (int64_t)size;
        *row = d == 0 ? size : *row;
    }
}

static void read_type(struct ctw_gguf_cursor *c, struct found *f, const char *where, uint64_t row,
                      uint64_t elements)
{
    f->type = ctw_gguf_u32(c, where);
    const struct ctw_block_type *type = ctw_block_type_find(f->type);
    f->t.offset = ctw_gguf_u64(c, where);
    if (c->st != CTW_OK)
        return;
    if (f->t.offset > INT64_MAX) {
        fail_tensor(c, f, "begins at byte %" PRIu64 " of the data", f->t.offset);
        return;
    }
    if (type == NULL) {
        f->unusable = true;
        f->t.dtype = CTW_N_DTYPES;
        f->t.n_dims = 0;
        return;
    }
    uint64_t bytes = 0;
    if (row % (uint64_t)type->elements != 0 || !ctw_block_bytes(type, elements, &bytes))
        fail_tensor(c, f, "rows of %" PRIu64 " values are not whole blocks of %d, which %s has",
                    row, type->elements, type->name);
    f->t.dtype = type->dtype;
    f->t.block = type->plain ? NULL : type;
    f->t.bytes = (size_t)bytes;
}

static void read_tensor(struct ctw_gguf_cursor *c, struct found *f, int64_t i)
{
    char where[MAX_SHOWN + 32];
    uint64_t row, elements;
    *f = (struct found){0};
    (void)snprintf(where, sizeof(where), "the name of tensor %" PRId64, i);
    f->name = ctw_gguf_name(c, where, &f->name_bytes);
    if (c->st != CTW_OK)
        return;
    int shown = f->name_bytes < MAX_SHOWN ? (int)f->name_bytes : MAX_SHOWN;
    (void)snprintf(where, sizeof(where), "the description of %.*s", shown,
                   (const char *)c->block + f->name);
    read_dims(c, f, where, &row, &elements);
    read_type(c, f, where, row, elements);
}

static void read_tensors(struct ctw_gguf_cursor *c, struct list *list, uint64_t n)
{
    uint64_t cap = 0;
    for (uint64_t i = 0; i < n && c->st == CTW_OK; i++) {
        if (i == cap) { /* the declared count may be a lie */
            cap = cap == 0 ? 64 : 2 * cap;
            struct found *items = ctw_realloc(list->items, cap, sizeof(*items));
            if (items == NULL) {
                c->st = ctw_fail(c->err, CTW_ENOMEM, "%s: out of memory for %" PRIu64 " tensors",
                                 c->what, cap);
                return;
            }
            list->items = items;
        }
        read_tensor(c, &list->items[i], (int64_t)i);
        if (c->st != CTW_OK)
            return;
        list->n++;
        list->text_bytes += (size_t)list->items[i].name_bytes + 1;
        list->text_bytes += list->items[i].unusable ? MAX_REASON : 0;
    }
}

/* ---- the layout ---- */

static int by_offset(const void *left, const void *right)
{
    const struct ctw_tensor *a = left, *b = right;
    if (a->offset != b->offset)
        return a->offset < b->offset ? -1 : 1;
    if (a->bytes != b->bytes)
        return a->bytes < b->bytes ? -1 : 1;
    return strcmp(a->name, b->name);
}

static int by_name(const void *left, const void *right)
{
    const struct ctw_tensor *a = left, *b = right;
    return strcmp(a->name, b->name);
}

/* Moves the tensors to *out, sorted by offset; no two may have one name. */
static void take_tensors(struct ctw_gguf_cursor *c, struct ctw_records *out,
                         const struct list *list)
{
    out->names = ctw_calloc(list->text_bytes, 1);
    out->tensors = ctw_calloc((size_t)list->n, sizeof(*out->tensors));
    if (out->names == NULL || out->tensors == NULL) {
        c->st = ctw_fail(c->err, CTW_ENOMEM, "%s: out of memory for %" PRId64 " tensors", c->what,
                         list->n);
        return;
    }
    char *text = out->names, type[MAX_REASON - 16];
    for (int64_t i = 0; i < list->n; i++) {
        const struct found *f = &list->items[i];
        memcpy(text, c->block + f->name, (size_t)f->name_bytes);
        out->tensors[i] = f->t;
        out->tensors[i].name = text;
        text += f->name_bytes + 1;
        if (!f->unusable)
            continue;
        (void)snprintf(text, MAX_REASON, "its type, %s",
                       ctw_block_type_refused(f->type, type, sizeof(type)));
        out->tensors[i].unusable = text;
        text += MAX_REASON;
    }
    out->n_tensors = list->n;
    qsort(out->tensors, (size_t)list->n, sizeof(*out->tensors), by_name);
    for (int64_t i = 1; i < list->n && c->st == CTW_OK; i++)
        if (strcmp(out->tensors[i - 1].name, out->tensors[i].name) == 0)
            c->st = ctw_fail(c->err, CTW_EFORMAT, "%s: tensor %s stands twice in the file", c->what,
                             out->tensors[i].name);
    qsort(out->tensors, (size_t)list->n, sizeof(*out->tensors), by_offset);
}

/* The end of a tensor that begins at t->offset: padded, or that of the next one if its type, and so
 * its size, is not known. */
static uint64_t padded_end(const struct ctw_tensor *t, uint64_t alignment, uint64_t next)
{
    if (t->unusable != NULL)
        return next;
    return (t->offset + t->bytes + alignment - 1) / alignment * alignment;
}

/* Checks that the tensors fill the data, each padded, and makes offsets count from the file's
 * start. */
static void check_layout(struct ctw_gguf_cursor *c, struct ctw_records *out, uint64_t alignment)
{
    uint64_t start = (c->at + alignment - 1) / alignment * alignment, at = 0;
    uint64_t data = start < c->file_bytes ? c->file_bytes - start : 0;
    if (out->n_tensors > 0 && start > c->file_bytes)
        c->st = ctw_fail(c->err, CTW_EFORMAT,
                         "%s: the file ends with its header: a download was interrupted; fetch it "
                         "again",
                         c->what);
    for (int64_t i = 0; i < out->n_tensors && c->st == CTW_OK; i++) {
        struct ctw_tensor *t = &out->tensors[i];
        bool last = i + 1 == out->n_tensors;
        if (t->offset != at) {
            const char *before = i == 0 ? "the data begin at 0" : "the tensor before it ends at";
            c->st = ctw_fail(c->err, CTW_EFORMAT,
                             "%s: tensor %s begins at byte %" PRIu64 " of the data, but %s%s%s %s "
                             "%" PRIu64 ": %s",
                             c->what, t->name, t->offset, i == 0 ? "" : "tensor ",
                             i == 0 ? "" : t[-1].name, i == 0 ? "" : ",", before, at,
                             t->offset > at ? "a gap, or a type of another size than its number "
                                              "means here"
                                            : "they overlap");
            return;
        }
        if (t->offset + t->bytes > data)
            c->st = ctw_fail(c->err, CTW_EFORMAT,
                             "%s: the file has %" PRIu64 " bytes, but tensor %s ends at %" PRIu64
                             ": a download was interrupted; fetch it again",
                             c->what, c->file_bytes, t->name, start + t->offset + t->bytes);
        at = padded_end(t, alignment, last ? data : t[1].offset);
        t->bytes = t->unusable != NULL ? (size_t)(at - t->offset) : t->bytes;
        t->offset += start;
    }
    if (c->st == CTW_OK && out->n_tensors > 0 && at < data)
        c->st = ctw_fail(c->err, CTW_EFORMAT,
                         "%s: %" PRIu64 " bytes follow the last tensor; the file must end there",
                         c->what, data - at);
}

static uint64_t alignment_of(struct ctw_gguf_cursor *c, const struct ctw_metadata *keys)
{
    const struct ctw_meta *m = ctw_meta_find(keys, "general.alignment");
    int64_t value = DEFAULT_ALIGNMENT;
    char text[64];
    if (m == NULL)
        return DEFAULT_ALIGNMENT;
    struct ctw_meta placed = *m;
    placed.data = c->block + (uintptr_t)m->data;
    bool ok = !m->is_array && ctw_meta_int(&placed, 0, &value) && value >= 1 &&
              value <= MAX_ALIGNMENT && (value & (value - 1)) == 0;
    if (!ok && c->st == CTW_OK)
        c->st = ctw_fail(
            c->err, CTW_EFORMAT, "%s: general.alignment is %s; expected a power of two, at most %d",
            c->what, ctw_meta_describe(&placed, text, sizeof(text)), (int)MAX_ALIGNMENT);
    return ok ? (uint64_t)value : DEFAULT_ALIGNMENT;
}

/* ---- the header ---- */

static enum ctw_status read_header(struct ctw_gguf_cursor *c, struct ctw_records *out)
{
    struct list list = {0};
    *out = (struct ctw_records){0};
    read_start(c, &out->header_alone);
    uint64_t n_tensors = ctw_gguf_u64(c, "the number of tensors");
    uint64_t n_keys = ctw_gguf_u64(c, "the number of keys");
    ctw_gguf_keys(c, &out->metadata, n_keys);
    read_tensors(c, &list, n_tensors);
    uint64_t alignment = c->st == CTW_OK ? alignment_of(c, &out->metadata) : 1;
    if (c->st == CTW_OK)
        take_tensors(c, out, &list);
    if (c->st == CTW_OK)
        check_layout(c, out, alignment);
    if (c->st == CTW_OK)
        ctw_gguf_keys_finish(c, &out->metadata);
    ctw_free(list.items);
    ctw_free(c->block);
    c->block = NULL;
    if (c->st != CTW_OK)
        ctw_records_free(out);
    return c->st;
}

enum ctw_status ctw_gguf_read(struct ctw_records *out, const char *what, int fd,
                              uint64_t file_bytes, struct ctw_err *err)
{
    struct ctw_gguf_cursor c = {.what = what, .fd = fd, .file_bytes = file_bytes, .err = err};
    return read_header(&c, out);
}

enum ctw_status ctw_gguf_parse(struct ctw_records *out, const char *what, const void *start,
                               size_t bytes, uint64_t file_bytes, struct ctw_err *err)
{
    struct ctw_gguf_cursor c = {
        .what = what, .fd = -1, .file_bytes = file_bytes, .loaded = bytes, .err = err};
    *out = (struct ctw_records){0};
    c.block = ctw_calloc(bytes, 1);
    if (c.block == NULL)
        return ctw_fail(err, CTW_ENOMEM, "%s: out of memory", what);
    memcpy(c.block, start, bytes);
    return read_header(&c, out);
}
