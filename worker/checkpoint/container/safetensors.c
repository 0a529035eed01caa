#include "worker/checkpoint/container/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/lfs.h"
#include "base/mem.h"

static const int64_t max_dim = (int64_t)1 << 40;

/* Every dtype of the format (safetensors/src/tensor.rs, enum Dtype). */
static const struct known_dtype {
    const char *name;
    int bits;
    enum ctw_dtype dtype; /* CTW_N_DTYPES: not readable */
    const char *unusable;
} known_dtypes[] = {
    {"F32", 32, CTW_F32, NULL},
    {"BF16", 16, CTW_BF16, NULL},
    {"F16", 16, CTW_F16, NULL},
    {"F64", 64, CTW_F64, NULL},
    {"F8_E4M3", 8, CTW_F8_E4M3, NULL},
    {"F8_E5M2", 8, CTW_F8_E5M2, NULL},
    {"F8_E8M0", 8, CTW_F8_E8M0, NULL},
    {"I8", 8, CTW_I8, NULL},
    {"U8", 8, CTW_U8, NULL},
    {"I16", 16, CTW_I16, NULL},
    {"U16", 16, CTW_U16, NULL},
    {"I32", 32, CTW_I32, NULL},
    {"U32", 32, CTW_U32, NULL},
    {"I64", 64, CTW_I64, NULL},
    {"U64", 64, CTW_U64, NULL},
    {"BOOL", 8, CTW_BOOL, NULL},
    {"F4", 4, CTW_N_DTYPES, "its dtype, F4, is not supported"},
    {"F6_E2M3", 6, CTW_N_DTYPES, "its dtype, F6_E2M3, is not supported"},
    {"F6_E3M2", 6, CTW_N_DTYPES, "its dtype, F6_E3M2, is not supported"},
    {"F8_E4M3FNUZ", 8, CTW_N_DTYPES, "its dtype, F8_E4M3FNUZ, is not supported"},
    {"F8_E5M2FNUZ", 8, CTW_N_DTYPES, "its dtype, F8_E5M2FNUZ, is not supported"},
    {"C64", 64, CTW_N_DTYPES, "its dtype, C64, is not supported"},
};

/* ---- the first bytes ---- */

static const uint64_t HEADER_ALONE = (uint64_t)1 << 63; /* in the length; see safetensors.h */

static uint64_t load_le64(const unsigned char *p)
{
    uint64_t v = 0;
    for (int i = 7; i >= 0; i--)
        v = v << 8 | p[i];
    return v;
}

enum ctw_status ctw_safetensors_prelude(const char *what, const void *prelude, size_t bytes,
                                        uint64_t file_bytes, size_t *header_bytes,
                                        struct ctw_err *err)
{
    if (file_bytes == 0)
        return ctw_fail(err, CTW_EFORMAT,
                        "%s: the file is empty: a download failed; fetch it again", what);
    enum ctw_status st = ctw_lfs_refuse(what, prelude, bytes, file_bytes, err);
    if (st != CTW_OK)
        return st;
    if (bytes < 8)
        return ctw_fail(err, CTW_EFORMAT,
                        "%s: not a safetensors file: it has %llu bytes, and the length of the "
                        "header alone takes 8",
                        what, (unsigned long long)file_bytes);
    uint64_t n = load_le64(prelude);
    if ((n & ~HEADER_ALONE) > CTW_SAFETENSORS_MAX_HEADER)
        return ctw_fail(err, CTW_EFORMAT,
                        "%s: not a safetensors file: its first 8 bytes declare a header of %llu "
                        "bytes; at most %d are allowed",
                        what, (unsigned long long)n, (int)CTW_SAFETENSORS_MAX_HEADER);
    n &= ~HEADER_ALONE;
    if (n > file_bytes - 8)
        return ctw_fail(err, CTW_EFORMAT,
                        "%s: the file has %llu bytes, but its header alone needs %llu: a download "
                        "was interrupted; fetch it again",
                        what, (unsigned long long)file_bytes, (unsigned long long)n);
    if (n < 2 || (bytes > 8 && ((const char *)prelude)[8] != '{'))
        return ctw_fail(err, CTW_EFORMAT,
                        "%s: not a safetensors file: its header does not begin with '{'", what);
    *header_bytes = (size_t)n;
    return CTW_OK;
}

/* ---- one tensor ---- */

static enum ctw_status read_metadata(const struct ctw_json_node *node, struct ctw_err *err)
{
    const char *value;
    if (ctw_json_is_null(node))
        return CTW_OK;
    enum ctw_status st = ctw_json_expect(node, CTW_JSON_OBJECT, err);
    for (node = ctw_json_first(node); st == CTW_OK && node != NULL; node = ctw_json_next(node))
        st = ctw_json_as_string(node, &value, err);
    return st;
}

/* *n_elements = the product of the dimensions. The overflow check skips zeros, so that their
 * position does not matter. */
static enum ctw_status read_shape(struct ctw_tensor *t, const struct ctw_json_node *shape,
                                  uint64_t *n_elements, struct ctw_err *err)
{
    uint64_t product = 1;
    bool empty = false;
    int64_t count = ctw_json_count(shape), i = 0;
    for (const struct ctw_json_node *n = ctw_json_first(shape); n != NULL;
         n = ctw_json_next(n), i++) {
        int64_t dim;
        enum ctw_status st = ctw_json_as_int(n, 0, max_dim, &dim, err);
        if (st != CTW_OK)
            return st;
        if (i < CTW_MAX_DIMS)
            t->shape[i] = dim;
        if (dim == 0)
            empty = true;
        else if (__builtin_mul_overflow(product, (uint64_t)dim, &product))
            return ctw_json_fail(shape, err, CTW_EFORMAT,
                                 "the product of the dimensions does not fit in 64 bits");
    }
    *n_elements = empty ? 0 : product;
    t->n_dims = (int)(count <= CTW_MAX_DIMS ? count : 0);
    if (count > CTW_MAX_DIMS)
        t->unusable = "it has more than 4 dimensions";
    return CTW_OK;
}

static enum ctw_status check_bytes(const struct ctw_json_node *node,
                                   const struct known_dtype *known, uint64_t n_elements,
                                   uint64_t bytes, struct ctw_err *err)
{
    uint64_t bits;
    if (__builtin_mul_overflow(n_elements, (uint64_t)known->bits, &bits))
        return ctw_json_fail(node, err, CTW_EFORMAT,
                             "the tensor's size in bits does not fit in 64 bits");
    if (bits % 8 != 0)
        return ctw_json_fail(node, err, CTW_EFORMAT, "%llu elements of %s do not fill whole bytes",
                             (unsigned long long)n_elements, known->name);
    if (bits / 8 != bytes)
        return ctw_json_fail(node, err, CTW_EFORMAT,
                             "data_offsets span %llu bytes, but shape and dtype (%llu x %s) need "
                             "%llu",
                             (unsigned long long)bytes, (unsigned long long)n_elements, known->name,
                             (unsigned long long)(bits / 8));
    return CTW_OK;
}

/* Messages and logs are single lines, and names go into them. */
static enum ctw_status check_name(const struct ctw_json_node *node, struct ctw_err *err)
{
    for (const char *p = ctw_json_key(node); *p != '\0'; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            return ctw_json_fail(node, err, CTW_EFORMAT,
                                 "a tensor's name must not hold control characters");
    return CTW_OK;
}

static enum ctw_status check_keys(const struct ctw_json_node *node, struct ctw_err *err)
{
    for (const struct ctw_json_node *n = ctw_json_first(node); n != NULL; n = ctw_json_next(n)) {
        const char *key = ctw_json_key(n);
        if (strcmp(key, "dtype") != 0 && strcmp(key, "shape") != 0 &&
            strcmp(key, "data_offsets") != 0)
            return ctw_json_fail(n, err, CTW_EFORMAT,
                                 "expected only dtype, shape and data_offsets in a tensor");
    }
    return CTW_OK;
}

/* Fills all of *t but name and file; t->offset is still relative to the data's start. */
static enum ctw_status read_tensor(struct ctw_tensor *t, const struct ctw_json_node *node,
                                   struct ctw_err *err)
{
    const struct ctw_json_node *shape = NULL, *offsets = NULL;
    const char *dtype = NULL;
    int64_t begin, end;
    uint64_t n_elements = 0;
    enum ctw_status st;
    if ((st = ctw_json_read_string(node, "dtype", CTW_JSON_REQUIRED, &dtype, err)) != CTW_OK ||
        (st = ctw_json_read_node(node, "shape", CTW_JSON_REQUIRED, CTW_JSON_ARRAY, &shape, err)) !=
            CTW_OK ||
        (st = ctw_json_read_node(node, "data_offsets", CTW_JSON_REQUIRED, CTW_JSON_ARRAY, &offsets,
                                 err)) != CTW_OK ||
        (st = check_keys(node, err)) != CTW_OK ||
        (st = read_shape(t, shape, &n_elements, err)) != CTW_OK)
        return st;
    if (ctw_json_count(offsets) != 2)
        return ctw_json_fail(offsets, err, CTW_EFORMAT, "expected [begin, end], found %lld values",
                             (long long)ctw_json_count(offsets));
    const struct ctw_json_node *first = ctw_json_first(offsets);
    if ((st = ctw_json_as_int(first, 0, INT64_MAX, &begin, err)) != CTW_OK ||
        (st = ctw_json_as_int(ctw_json_next(first), begin, INT64_MAX, &end, err)) != CTW_OK)
        return st;
    t->offset = (uint64_t)begin;
    t->bytes = (size_t)(end - begin);
    const struct known_dtype *known = NULL;
    for (size_t i = 0; i < CTW_COUNT(known_dtypes) && known == NULL; i++)
        if (strcmp(known_dtypes[i].name, dtype) == 0)
            known = &known_dtypes[i];
    t->dtype = known == NULL ? CTW_N_DTYPES : known->dtype;
    if (t->dtype == CTW_N_DTYPES)
        t->unusable = known == NULL ? "this version does not know its dtype" : known->unusable;
    if (t->unusable != NULL) {
        t->dtype = CTW_N_DTYPES;
        t->n_dims = 0;
    }
    return known == NULL ? CTW_OK : check_bytes(node, known, n_elements, t->bytes, err);
}

/* ---- the header ---- */

static int by_offset(const void *left, const void *right)
{
    const struct ctw_tensor *a = left, *b = right;
    if (a->offset != b->offset)
        return a->offset < b->offset ? -1 : 1;
    if (a->bytes != b->bytes)
        return a->bytes < b->bytes ? -1 : 1;
    return strcmp(a->name, b->name);
}

/* Tensor i does not begin at `at`, where the tensor before it ends. */
static enum ctw_status fail_place(const struct ctw_records *s, const char *what, int64_t i,
                                  uint64_t at, struct ctw_err *err)
{
    const struct ctw_tensor *t = &s->tensors[i];
    if (i == 0)
        return ctw_fail(err, CTW_EFORMAT,
                        "%s: the first tensor, %s, begins at byte %llu of the data, not at 0: a "
                        "gap",
                        what, t->name, (unsigned long long)t->offset);
    return ctw_fail(err, CTW_EFORMAT,
                    "%s: tensor %s begins at byte %llu of the data, but the tensor before it, %s, "
                    "ends at %llu: %s",
                    what, t->name, (unsigned long long)t->offset, t[-1].name,
                    (unsigned long long)at, t->offset > at ? "a gap" : "they overlap");
}

static enum ctw_status check_layout(struct ctw_records *s, const char *what, uint64_t data_start,
                                    uint64_t file_bytes, struct ctw_err *err)
{
    uint64_t at = 0;
    qsort(s->tensors, (size_t)s->n_tensors, sizeof(*s->tensors), by_offset);
    for (int64_t i = 0; i < s->n_tensors; i++) {
        struct ctw_tensor *t = &s->tensors[i];
        if (t->offset != at)
            return fail_place(s, what, i, at, err);
        at += t->bytes; /* begin + bytes was read as an int64, so it fits */
        t->offset += data_start;
    }
    uint64_t data_bytes = file_bytes - data_start;
    if (at > data_bytes)
        return ctw_fail(err, CTW_EFORMAT,
                        "%s: the file has %llu bytes, but its header describes %llu: a download "
                        "was interrupted; fetch it again",
                        what, (unsigned long long)file_bytes,
                        (unsigned long long)(data_start + at));
    if (at < data_bytes)
        return ctw_fail(err, CTW_EFORMAT,
                        "%s: %llu bytes follow the last tensor; the file must end there", what,
                        (unsigned long long)(data_bytes - at));
    return CTW_OK;
}

/* Allocates space for every member, and one block for all names. */
static enum ctw_status allocate(struct ctw_records *s, const char *what,
                                const struct ctw_json_node *root, struct ctw_err *err)
{
    size_t name_bytes = 0;
    for (const struct ctw_json_node *n = ctw_json_first(root); n != NULL; n = ctw_json_next(n))
        name_bytes += strlen(ctw_json_key(n)) + 1;
    s->names = ctw_calloc(name_bytes, 1);
    s->tensors = ctw_calloc((size_t)ctw_json_count(root), sizeof(*s->tensors));
    if (s->names == NULL || s->tensors == NULL)
        return ctw_fail(err, CTW_ENOMEM, "%s: out of memory for %lld tensors", what,
                        (long long)ctw_json_count(root));
    return CTW_OK;
}

static enum ctw_status read_tensors(struct ctw_records *s, const char *what,
                                    const struct ctw_json_node *root, struct ctw_err *err)
{
    enum ctw_status st = ctw_json_expect(root, CTW_JSON_OBJECT, err);
    if (st == CTW_OK)
        st = allocate(s, what, root, err);
    if (st != CTW_OK)
        return st;
    char *name = s->names;
    for (const struct ctw_json_node *n = ctw_json_first(root); n != NULL; n = ctw_json_next(n)) {
        const char *key = ctw_json_key(n);
        if (strcmp(key, "__metadata__") == 0) {
            st = read_metadata(n, err);
        } else {
            struct ctw_tensor *t = &s->tensors[s->n_tensors++];
            size_t name_bytes = strlen(key) + 1;
            memcpy(name, key, name_bytes);
            t->name = name;
            name += name_bytes;
            if ((st = check_name(n, err)) == CTW_OK)
                st = read_tensor(t, n, err);
        }
        if (st != CTW_OK)
            return st;
    }
    return CTW_OK;
}

enum ctw_status ctw_safetensors_parse(struct ctw_records *out, const char *what, const char *header,
                                      size_t header_bytes, uint64_t file_bytes, struct ctw_err *err)
{
    struct ctw_json *doc = NULL;
    char title[300];
    *out = (struct ctw_records){0};
    (void)snprintf(title, sizeof(title), "%s: header", what);
    size_t end = header_bytes;
    while (end > 0 && header[end - 1] == ' ')
        end--;
    if (end == 0 || header[0] != '{' || header[end - 1] != '}')
        return ctw_fail(err, CTW_EFORMAT,
                        "%s: expected one JSON object, from the first byte on, followed only by "
                        "spaces",
                        title);
    enum ctw_status st = ctw_json_parse(&doc, title, header, end, CTW_SAFETENSORS_MAX_HEADER, err);
    if (st == CTW_OK)
        st = read_tensors(out, what, ctw_json_root(doc), err);
    if (st == CTW_OK)
        st = check_layout(out, what, 8 + (uint64_t)header_bytes, file_bytes, err);
    ctw_json_close(doc);
    if (st != CTW_OK)
        ctw_records_free(out);
    return st;
}

enum ctw_status ctw_safetensors_read(struct ctw_records *out, const char *what, int fd,
                                     uint64_t file_bytes, struct ctw_err *err)
{
    unsigned char prelude[CTW_SAFETENSORS_PRELUDE];
    size_t n = file_bytes < sizeof(prelude) ? (size_t)file_bytes : sizeof(prelude), header_bytes;
    *out = (struct ctw_records){0};
    enum ctw_status st = ctw_read_exactly(fd, prelude, n, 0, what, err);
    if (st == CTW_OK)
        st = ctw_safetensors_prelude(what, prelude, n, file_bytes, &header_bytes, err);
    if (st != CTW_OK)
        return st;
    char *header = ctw_calloc(header_bytes, 1);
    if (header == NULL)
        return ctw_fail(err, CTW_ENOMEM, "%s: out of memory for a header of %zu bytes", what,
                        header_bytes);
    st = ctw_read_exactly(fd, header, header_bytes, 8, what, err);
    if (st == CTW_OK)
        st = ctw_safetensors_parse(out, what, header, header_bytes, file_bytes, err);
    out->header_alone = (load_le64(prelude) & HEADER_ALONE) != 0;
    ctw_free(header);
    return st;
}

void ctw_records_free(struct ctw_records *s)
{
    ctw_free(s->tensors);
    ctw_free(s->names);
    ctw_metadata_free(&s->metadata);
    *s = (struct ctw_records){0};
}
