/* GGUF files: headers that the test writes, and what a folder of them opens as. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/log.h"
#include "base/mem.h"
#include "kernels/formats/ggml/ggml_types.h"
#include "worker/checkpoint/container/container.h"
#include "worker/checkpoint/container/files_stamp.h"
#include "worker/checkpoint/container/gguf.h"

enum { Q4_0 = 2, F32 = 0, UNKNOWN = 99, Q4_0_BYTES = 18 };

struct bytes {
    unsigned char b[4096];
    size_t n;
};

static void put(struct bytes *f, const void *data, size_t n)
{
    assert_true(f->n + n <= sizeof(f->b));
    memcpy(f->b + f->n, data, n);
    f->n += n;
}

static void put_number(struct bytes *f, uint64_t v, int n)
{
    for (int i = 0; i < n; i++)
        put(f, &(unsigned char){(unsigned char)(v >> (8 * i))}, 1);
}

static void put_text(struct bytes *f, const char *text)
{
    put_number(f, strlen(text), 8);
    put(f, text, strlen(text));
}

static void put_key(struct bytes *f, const char *key, enum ctw_meta_type type, uint64_t value,
                    int n)
{
    put_text(f, key);
    put_number(f, type, 4);
    put_number(f, value, n);
}

/* A file, and what may be wrong with it. */
struct made {
    const char *magic;
    uint32_t version;
    uint64_t n_tensors, n_keys;
    uint64_t alignment;
    uint64_t text_bytes;       /* of the key `t`; 0: as it is */
    uint32_t value_type;       /* of the key `t`; 0: a text */
    const char *key, *name;    /* of the last key and the last tensor */
    uint32_t n_dims, type;     /* of the last tensor */
    uint64_t rows, row;        /* of the last tensor */
    uint64_t offset;           /* of the last tensor */
    uint64_t array_n, nesting; /* of the key `array` */
    int more;                  /* bytes at the end */
    int64_t split_no, split_count, split_tensors;
};

/* Tensors a: F32 [3], b: Q4_0 [2, 32]. */
static const struct made good = {.magic = "GGUF",
                                 .version = 3,
                                 .n_tensors = 2,
                                 .n_keys = 4,
                                 .alignment = 32,
                                 .key = "last",
                                 .name = "b",
                                 .n_dims = 2,
                                 .type = Q4_0,
                                 .rows = 2,
                                 .row = 32,
                                 .offset = 32,
                                 .array_n = 2};

static void make(struct bytes *f, const struct made *m)
{
    f->n = 0;
    put(f, m->magic, 4);
    put_number(f, m->version, 4);
    put_number(f, m->n_tensors, 8);
    put_number(f, m->n_keys + (m->split_count > 0 ? 3 : 0), 8);
    put_key(f, "general.alignment", CTW_META_U32, m->alignment, 4);
    put_text(f, "t");
    put_number(f, m->value_type != 0 ? m->value_type : CTW_META_TEXT, 4);
    put_number(f, m->text_bytes != 0 ? m->text_bytes : 2, 8);
    put(f, "ok", 2);
    put_text(f, "array");
    put_number(f, CTW_META_ARRAY, 4);
    for (uint64_t i = 0; i < m->nesting; i++) {
        put_number(f, CTW_META_ARRAY, 4);
        put_number(f, 1, 8);
    }
    put_number(f, CTW_META_I16, 4);
    put_number(f, m->array_n, 8);
    put_number(f, 0xfffe0001, 4);
    put_key(f, m->key, CTW_META_F32, 0x3fc00000, 4);
    if (m->split_count > 0) {
        put_key(f, "split.no", CTW_META_U16, (uint64_t)m->split_no, 2);
        put_key(f, "split.count", CTW_META_U16, (uint64_t)m->split_count, 2);
        put_key(f, "split.tensors.count", CTW_META_I32, (uint64_t)m->split_tensors, 4);
    }
    put_text(f, "a");
    put_number(f, 1, 4);
    put_number(f, 3, 8);
    put_number(f, F32, 4);
    put_number(f, 0, 8);
    put_text(f, m->name);
    put_number(f, m->n_dims, 4);
    put_number(f, m->row, 8);
    put_number(f, m->rows, 8);
    put_number(f, m->type, 4);
    put_number(f, m->offset, 8);
    while (f->n % 32 != 0)
        put_number(f, 0, 1);
    for (int i = 0; i < 64 + 32 + m->more; i++) /* a, padded, and b, padded */
        put_number(f, (uint64_t)i, 1);
}

static void a_good_file(void **state)
{
    (void)state;
    struct bytes f;
    struct ctw_records r;
    struct ctw_err err;
    int64_t integer;
    double number;
    char text[64];
    for (uint32_t version = 2; version <= 3; version++)
        for (int padding = 0; padding < 2; padding++) {
            struct made m = good;
            m.version = version;
            m.more = padding - 1 == 0 ? 0 : -28; /* the last tensor's padding may be missing */
            make(&f, &m);
            if (ctw_gguf_parse(&r, "f", f.b, f.n, f.n, &err) != CTW_OK)
                fail_msg("%s", err.msg);
            assert_int_equal(r.n_tensors, 2);
            assert_string_equal(r.tensors[0].name, "a");
            assert_null(r.tensors[0].block);
            assert_int_equal(r.tensors[0].dtype, CTW_F32);
            assert_int_equal(r.tensors[0].bytes, 12);
            assert_string_equal(r.tensors[1].name, "b");
            assert_string_equal(r.tensors[1].block->name, "Q4_0");
            assert_int_equal(r.tensors[1].n_dims, 2);
            assert_int_equal(r.tensors[1].shape[0], 2);
            assert_int_equal(r.tensors[1].shape[1], 32);
            assert_int_equal(r.tensors[1].bytes, 2 * Q4_0_BYTES);
            assert_int_equal(r.tensors[1].offset - r.tensors[0].offset, 32);
            const struct ctw_metadata *keys = &r.metadata;
            assert_int_equal(keys->n_items, 4);
            assert_null(ctw_meta_find(keys, "las"));
            assert_true(ctw_meta_number(ctw_meta_find(keys, "last"), 0, &number));
            assert_true(number == 1.5);
            assert_false(ctw_meta_int(ctw_meta_find(keys, "last"), 0, &integer));
            assert_true(ctw_meta_int(ctw_meta_find(keys, "array"), 1, &integer));
            assert_int_equal(integer, -2);
            assert_false(ctw_meta_int(ctw_meta_find(keys, "array"), 2, &integer));
            assert_string_equal(ctw_meta_describe(ctw_meta_find(keys, "t"), text, 64), "ok");
            assert_string_equal(ctw_meta_describe(ctw_meta_find(keys, "array"), text, 64),
                                "an array of 2");
            ctw_records_free(&r);
        }
}

/* Every prefix of a file is refused, as truncated from the first key on. */
static void truncated_files(void **state)
{
    (void)state;
    struct bytes f;
    make(&f, &good);
    for (size_t n = 0; n < f.n - 28; n++) { /* 28: the last padding */
        struct ctw_records r;
        struct ctw_err err;
        assert_int_equal(ctw_gguf_parse(&r, "f", f.b, n, n, &err), CTW_EFORMAT);
        assert_non_null(strstr(err.msg, n == 0  ? "the file is empty"
                                        : n < 4 ? "not a GGUF file"
                                                : "a download was interrupted"));
    }
}

#define HUGE_NUMBER ((uint64_t)1 << 63)
static const struct {
    /* the message has this piece; fields of `m` that are not 0 differ from the good file's */
    const char *piece;
    enum ctw_status status;
    struct made m;
} bad_ones[] = {
    {"f: not a GGUF file: it does not begin with GGUF", CTW_EFORMAT, {.magic = "GGML"}},
    {"f: a big-endian GGUF file (version 3), which is not supported",
     CTW_EUNSUP,
     {.version = 0x03000000}},
    {"f: GGUF version 1 is not supported; supported are 2 and 3", CTW_EUNSUP, {.version = 1}},
    {"f: GGUF version 4 is not supported", CTW_EUNSUP, {.version = 4}},
    {"f: declares 9223372036854775808 keys; at most 4096", CTW_EFORMAT, {.n_keys = HUGE_NUMBER}},
    {"f: the name of tensor 2 is a name of 0 bytes; expected 1 to 65535",
     CTW_EFORMAT,
     {.n_tensors = HUGE_NUMBER}},
    {"f: the value of t needs 9223372036854775808 bytes from byte",
     CTW_EFORMAT,
     {.text_bytes = HUGE_NUMBER}},
    {"f: the value of t: found type 13 of a value; types are 0 to 12",
     CTW_EFORMAT,
     {.value_type = 13}},
    {"f: the value of array: an array of 9223372036854775808 values does not fit",
     CTW_EFORMAT,
     {.array_n = HUGE_NUMBER}},
    {"f: the value of array needs 8000000000 bytes from byte",
     CTW_EFORMAT,
     {.array_n = 4000000000}},
    {"f: the value of array: arrays within arrays, more than 4 deep", CTW_EFORMAT, {.nesting = 5}},
    {"f: the key t stands twice in its metadata", CTW_EFORMAT, {.key = "t"}},
    {"f: key 3: a name must not hold control characters", CTW_EFORMAT, {.key = "la\nst"}},
    {"f: key 3 is a name of 0 bytes", CTW_EFORMAT, {.key = ""}},
    {"f: general.alignment is 48; expected a power of two", CTW_EFORMAT, {.alignment = 48}},
    {"f: general.alignment is 4194304; expected a power of two",
     CTW_EFORMAT,
     {.alignment = 4 << 20}},
    {"f: tensor a stands twice in the file", CTW_EFORMAT, {.name = "a"}},
    {"f: the name of tensor 1: a name must not hold control", CTW_EFORMAT, {.name = "\x7f"}},
    {"f: tensor b: 5 dimensions; at most 4 are allowed", CTW_EFORMAT, {.n_dims = 5}},
    {"f: tensor b: rows of 33 values are not whole blocks of 32, which Q4_0 has",
     CTW_EFORMAT,
     {.row = 33}},
    {"f: tensor b: dimension 0 is 9223372036854775808: the tensor's size does not fit",
     CTW_EFORMAT,
     {.row = HUGE_NUMBER}},
    {"f: tensor b: dimension 1 is 1099511627776: the tensor's size does not fit",
     CTW_EFORMAT,
     {.row = 1 << 20, .rows = (uint64_t)1 << 40}},
    {"f: tensor b: begins at byte 9223372036854775808 of the data",
     CTW_EFORMAT,
     {.offset = HUGE_NUMBER}},
    {"f: tensor b begins at byte 64 of the data, but tensor a, the tensor before it ends at "
     "32: a gap",
     CTW_EFORMAT,
     {.offset = 64}},
    {"f: tensor b begins at byte 16 of the data", CTW_EFORMAT, {.offset = 16}},
    {"but tensor b ends at", CTW_EFORMAT, {.rows = 8}},
    {"f: 64 bytes follow the last tensor; the file must end there", CTW_EFORMAT, {.more = 64}},
};

static void bad_files(void **state)
{
    (void)state;
    for (size_t i = 0; i < CTW_COUNT(bad_ones); i++) {
        const struct made *bad = &bad_ones[i].m;
        struct made m = good;
#define TAKE(field) m.field = bad->field != 0 ? bad->field : m.field
        TAKE(magic), TAKE(version), TAKE(n_tensors), TAKE(n_keys), TAKE(alignment);
        TAKE(text_bytes), TAKE(value_type), TAKE(key), TAKE(name), TAKE(n_dims), TAKE(type);
        TAKE(rows), TAKE(row), TAKE(offset), TAKE(array_n), TAKE(nesting), TAKE(more);
#undef TAKE
        struct bytes f;
        struct ctw_records r;
        struct ctw_err err = {0};
        make(&f, &m);
        enum ctw_status st = ctw_gguf_parse(&r, "f", f.b, f.n, f.n, &err);
        if (st != bad_ones[i].status || strstr(err.msg, bad_ones[i].piece) == NULL)
            fail_msg("%zu: status %d, \"%s\", expected \"%s\"", i, st, err.msg, bad_ones[i].piece);
        assert_null(r.tensors);
        assert_null(r.metadata.items);
    }
}

/* A type of a fork is named, and harmless unless the model needs the tensor. */
static void unknown_types(void **state)
{
    (void)state;
    struct made m = good;
    struct bytes f;
    struct ctw_records r;
    struct ctw_err err;
    m.type = UNKNOWN;
    make(&f, &m);
    assert_int_equal(ctw_gguf_parse(&r, "f", f.b, f.n, f.n, &err), CTW_OK);
    assert_string_equal(r.tensors[1].unusable, "its type, id 99, which ggml does not define");
    assert_int_equal(r.tensors[1].n_dims, 0);
    assert_int_equal(r.tensors[1].bytes, 64); /* up to the end */
    ctw_records_free(&r);
}

static void every_allocation_can_fail(void **state)
{
    (void)state;
    struct bytes f;
    make(&f, &good);
    for (int n = 1;; n++) {
        struct ctw_records r;
        struct ctw_err err;
        ctw_mem_fail_at(n);
        enum ctw_status st = ctw_gguf_parse(&r, "f", f.b, f.n, f.n, &err);
        ctw_mem_fail_at(0);
        ctw_records_free(&r);
        if (st == CTW_OK) {
            assert_true(n > 5);
            return;
        }
        assert_int_equal(st, CTW_ENOMEM);
    }
}

/* ---- folders ---- */

struct folder {
    char dir[64];
    char names[8][64];
    int n_names;
};

static int set_up(void **state)
{
    struct folder *f = calloc(1, sizeof(*f));
    (void)snprintf(f->dir, sizeof(f->dir), "/tmp/ctw-gguf-XXXXXX");
    *state = f;
    return mkdtemp(f->dir) == NULL ? -1 : 0;
}

static const char *path_of(const struct folder *f, const char *name)
{
    static char path[160];
    (void)snprintf(path, sizeof(path), "%s/%s", f->dir, name);
    return path;
}

static int tear_down(void **state)
{
    struct folder *f = *state;
    while (f->n_names > 0)
        (void)remove(path_of(f, f->names[--f->n_names]));
    int st = rmdir(f->dir);
    free(f);
    return st;
}

static void put_file(struct folder *f, const char *name, const struct made *m)
{
    struct bytes b;
    make(&b, m);
    (void)snprintf(f->names[f->n_names++], sizeof(f->names[0]), "%s", name);
    FILE *to = fopen(path_of(f, name), "wb");
    assert_non_null(to);
    assert_int_equal(fwrite(b.b, 1, b.n, to), b.n);
    assert_int_equal(fclose(to), 0);
}

static struct ctw_container *opened(const char *path)
{
    struct ctw_container *c;
    struct ctw_err err;
    if (ctw_container_open(&c, path, &err) != CTW_OK)
        fail_msg("%s", err.msg);
    return c;
}

static void refused(const char *path, enum ctw_status want, const char *piece)
{
    struct ctw_container *c;
    struct ctw_err err = {0};
    enum ctw_status st = ctw_container_open(&c, path, &err);
    if (st != want || strstr(err.msg, piece) == NULL)
        fail_msg("status %d, \"%s\", expected \"%s\"", st, err.msg, piece);
}

static void a_file_or_its_folder(void **state)
{
    struct folder *f = *state;
    char stamp[65], other[65];
    put_file(f, "m-Q4_0.gguf", &good);
    put_file(f, "mmproj-m.gguf", &good); /* is no model */
    struct ctw_container *c = opened(f->dir);
    assert_string_equal(ctw_container_file(c, 0), "m-Q4_0.gguf");
    assert_string_equal(ctw_container_method(c), "ggml");
    const struct ctw_tensor *b = ctw_container_find(c, "b");
    const unsigned char *data = ctw_container_data(c, b);
    assert_int_equal(data[0], 32);
    assert_int_equal(ctw_container_metadata(c)->n_items, 4);
    ctw_container_close(c);
    put_file(f, "m-Q8_0.GGUF", &good);
    refused(f->dir, CTW_EINVAL,
            "the folder holds several GGUF models (m-Q4_0.gguf, m-Q8_0.GGUF); "
            "give the path of one, such as /tmp/ctw-gguf-");
    c = opened(path_of(f, "m-Q8_0.GGUF"));
    assert_string_equal(ctw_container_file(c, 0), "m-Q8_0.GGUF");
    ctw_container_close(c);
    refused(path_of(f, "n.gguf"), CTW_ENOTFOUND, "n.gguf: no such file");
    ctw_files_stamp(path_of(f, "m-Q8_0.GGUF"), (int64_t)1 << 40, stamp);
    ctw_files_stamp(path_of(f, "m-Q4_0.gguf"), (int64_t)1 << 40, other);
    assert_true(stamp[0] == '\0' || strcmp(stamp, other) != 0);
}

static void split_files(void **state)
{
    struct folder *f = *state;
    struct made part = good;
    const char first[] = "m-00001-of-00002.gguf", second[] = "m-00002-of-00002.gguf";
    part.split_count = 2;
    part.split_tensors = 4;
    put_file(f, first, &part);
    refused(f->dir, CTW_ENOTFOUND, "m-00002-of-00002.gguf: part 2 of 2 is missing; fetch it");
    part.split_no = 1;
    part.name = "d";
    put_file(f, second, &part); /* `a` of both parts is equal */
    ctw_log_set_level(CTW_LOG_ERROR);
    struct ctw_container *c = opened(path_of(f, second));
    ctw_log_set_level(CTW_LOG_INFO);
    assert_int_equal(ctw_container_n_files(c), 2);
    assert_string_equal(ctw_container_file(c, ctw_container_find(c, "d")->file), second);
    ctw_container_close(c);
    put_file(f, "renamed.gguf", &part);
    refused(path_of(f, "renamed.gguf"), CTW_EFORMAT,
            "renamed.gguf: part 2 of 2 of a split model, under another name");
    part.split_no = 0;
    put_file(f, second, &part);
    refused(path_of(f, first), CTW_EFORMAT,
            "m-00002-of-00002.gguf: its name says part 2 of 2, but its split.no is 0");
    part.split_no = 1;
    put_file(f, second, &part);
    part.split_no = 0;
    part.name = "b";
    part.split_tensors = 5;
    put_file(f, first, &part);
    refused(path_of(f, first), CTW_EFORMAT, "split.tensors.count is 5, but the parts have 4");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_good_file),
        cmocka_unit_test(truncated_files),
        cmocka_unit_test(bad_files),
        cmocka_unit_test(unknown_types),
        cmocka_unit_test(every_allocation_can_fail),
        cmocka_unit_test_setup_teardown(a_file_or_its_folder, set_up, tear_down),
        cmocka_unit_test_setup_teardown(split_files, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
