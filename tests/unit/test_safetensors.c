/* Every rule of the header, each broken once. The data is never looked at, so files are described
 * by their header and a number of data bytes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "worker/checkpoint/container/safetensors.h"
#include "worker/checkpoint/container/shard_index.h"

static enum ctw_status parse_n(struct ctw_records *s, const char *header, size_t bytes,
                               uint64_t data_bytes, struct ctw_err *err)
{
    return ctw_safetensors_parse(s, "m.safetensors", header, bytes, 8 + bytes + data_bytes, err);
}

static void accepted(struct ctw_records *s, const char *header, uint64_t data_bytes)
{
    struct ctw_err err;
    if (parse_n(s, header, strlen(header), data_bytes, &err) != CTW_OK)
        fail_msg("%s: %s", header, err.msg);
}

static void refused(const char *header, uint64_t data_bytes, const char *piece)
{
    struct ctw_records s;
    struct ctw_err err = {0};
    enum ctw_status st = parse_n(&s, header, strlen(header), data_bytes, &err);
    if (st != CTW_EFORMAT || strstr(err.msg, piece) == NULL ||
        strncmp(err.msg, "m.safetensors: ", 15) != 0)
        fail_msg("%s: status %d, \"%s\", expected \"%s\"", header, st, err.msg, piece);
    assert_null(s.tensors);
}

/* A header of one tensor named t. */
#define ONE(dtype, shape, offsets)                                                                 \
    "{\"t\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}}"

static void records_are_as_written(void **state)
{
    (void)state;
    struct ctw_records s;
    static const char header[] =
        "{\"__metadata__\":{\"format\":\"pt\"},"
        "\"second\":{\"shape\":[3],\"dtype\":\"BF16\",\"data_offsets\":[24,30]},"
        "\"empty\":{\"dtype\":\"F32\",\"shape\":[5,0],\"data_offsets\":[24,24]},"
        "\"first\":{\"dtype\":\"F32\",\"shape\":[2,1,3],\"data_offsets\":[0,24]},"
        "\"scalar\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[30,38]}}   ";
    accepted(&s, header, 38);
    assert_int_equal(s.n_tensors, 4);
    static const char *const names[] = {"first", "empty", "second", "scalar"};
    static const enum ctw_dtype dtypes[] = {CTW_F32, CTW_F32, CTW_BF16, CTW_I64};
    static const uint64_t offsets[] = {0, 24, 24, 30}, bytes[] = {24, 0, 6, 8};
    static const int n_dims[] = {3, 2, 1, 0};
    for (int i = 0; i < 4; i++) {
        assert_string_equal(s.tensors[i].name, names[i]);
        assert_null(s.tensors[i].unusable);
        assert_int_equal(s.tensors[i].dtype, dtypes[i]);
        assert_int_equal(s.tensors[i].n_dims, n_dims[i]);
        assert_int_equal(s.tensors[i].offset, offsets[i] + 8 + sizeof(header) - 1);
        assert_int_equal(s.tensors[i].bytes, bytes[i]);
    }
    assert_int_equal(s.tensors[0].shape[2], 3);
    assert_int_equal(s.tensors[1].shape[1], 0);
    ctw_records_free(&s);
    accepted(&s, "{}", 0);
    assert_int_equal(s.n_tensors, 0);
    ctw_records_free(&s);
    accepted(&s, "{\"__metadata__\":null}", 0);
    ctw_records_free(&s);
    ctw_records_free(&s);
}

static void every_dtype_of_the_format(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int bits;
        bool readable;
    } all[] = {
        {"BOOL", 8, true},         {"F4", 4, false},          {"F6_E2M3", 6, false},
        {"F6_E3M2", 6, false},     {"U8", 8, true},           {"I8", 8, true},
        {"F8_E5M2", 8, true},      {"F8_E4M3", 8, true},      {"F8_E8M0", 8, true},
        {"F8_E4M3FNUZ", 8, false}, {"F8_E5M2FNUZ", 8, false}, {"I16", 16, true},
        {"U16", 16, true},         {"F16", 16, true},         {"BF16", 16, true},
        {"I32", 32, true},         {"U32", 32, true},         {"F32", 32, true},
        {"C64", 64, false},        {"F64", 64, true},         {"I64", 64, true},
        {"U64", 64, true},
    };
    for (size_t i = 0; i < CTW_COUNT(all); i++) {
        struct ctw_records s;
        char header[128], wrong[128];
        (void)snprintf(header, sizeof(header), ONE("%s", "[8,1]", "[0,%d]"), all[i].name,
                       all[i].bits);
        (void)snprintf(wrong, sizeof(wrong), ONE("%s", "[8,1]", "[0,%d]"), all[i].name,
                       all[i].bits + 1);
        accepted(&s, header, (uint64_t)all[i].bits);
        const struct ctw_tensor *t = &s.tensors[0];
        assert_int_equal(t->unusable == NULL, all[i].readable);
        assert_int_equal(t->bytes, all[i].bits);
        if (all[i].readable) {
            assert_string_equal(ctw_dtype_name(t->dtype), all[i].name);
            assert_int_equal(ctw_dtype_bytes(t->dtype) * 8, all[i].bits);
        } else {
            assert_int_equal(t->dtype, CTW_N_DTYPES);
            assert_int_equal(t->n_dims, 0);
            assert_non_null(strstr(t->unusable, all[i].name));
        }
        ctw_records_free(&s);
        refused(wrong, (uint64_t)all[i].bits + 1, "t: data_offsets span");
    }
    refused(ONE("F4", "[3]", "[0,1]"), 1, "3 elements of F4 do not fill whole bytes");
}

static void what_we_cannot_read_is_recorded(void **state)
{
    (void)state;
    struct ctw_records s;
    accepted(&s, ONE("F3_FUTURE", "[8]", "[0,3]"), 3);
    assert_string_equal(s.tensors[0].unusable, "this version does not know its dtype");
    assert_int_equal(s.tensors[0].bytes, 3);
    ctw_records_free(&s);
    accepted(&s, ONE("U8", "[1,2,1,2]", "[0,4]"), 4);
    assert_int_equal(s.tensors[0].n_dims, 4);
    ctw_records_free(&s);
    accepted(&s, ONE("U8", "[1,2,1,2,1]", "[0,4]"), 4);
    assert_string_equal(s.tensors[0].unusable, "it has more than 4 dimensions");
    assert_int_equal(s.tensors[0].n_dims, 0);
    assert_int_equal(s.tensors[0].dtype, CTW_N_DTYPES);
    ctw_records_free(&s);
    refused(ONE("U8", "[1,2,1,2,2]", "[0,4]"), 4, "need 8");
}

static void shapes_cannot_overflow(void **state)
{
    (void)state;
    struct ctw_records s;
    refused(ONE("U8", "[4294967296,4294967296]", "[0,0]"), 0, "t.shape: the product");
    refused(ONE("U8", "[0,1099511627776,1099511627776]", "[0,0]"), 0, "t.shape: the product");
    refused(ONE("U8", "[1099511627776,1099511627776,0]", "[0,0]"), 0, "t.shape: the product");
    refused(ONE("U64", "[1073741824,1073741824]", "[0,0]"), 0, "size in bits does not fit");
    refused(ONE("U8", "[1099511627777,0]", "[0,0]"), 0, "t.shape[0]: expected a whole number");
    refused(ONE("U8", "[-1]", "[0,0]"), 0, "t.shape[0]: expected a whole number");
    refused(ONE("U8", "[1.5]", "[0,1]"), 1, "t.shape[0]: expected a whole number");
    refused(ONE("U8", "[\"1\"]", "[0,1]"), 1, "t.shape[0]: expected a whole number");
    accepted(&s, ONE("F64", "[1099511627776,0]", "[0,0]"), 0);
    ctw_records_free(&s);
}

static void entries_have_their_fields_and_no_others(void **state)
{
    (void)state;
    refused("{\"t\":{\"shape\":[],\"data_offsets\":[0,1]}}", 1, "t: \"dtype\" is missing");
    refused("{\"t\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1, "t: \"shape\" is missing");
    refused("{\"t\":{\"dtype\":\"U8\",\"shape\":[]}}", 0, "t: \"data_offsets\" is missing");
    refused("{\"t\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1],\"strides\":[1]}}", 1,
            "t.strides: expected only dtype, shape and data_offsets in a tensor");
    refused("{\"t\":{\"dtype\":1,\"shape\":[],\"data_offsets\":[0,1]}}", 1,
            "t.dtype: expected a string, found the number 1");
    refused("{\"t\":{\"dtype\":\"U8\",\"shape\":1,\"data_offsets\":[0,1]}}", 1,
            "t.shape: expected an array");
    refused("{\"t\":[]}", 0, "t: expected an object");
    refused(ONE("U8", "[1]", "[0]"), 1, "t.data_offsets: expected [begin, end], found 1 values");
    refused(ONE("U8", "[1]", "[0,1,2]"), 1, "expected [begin, end], found 3");
    refused(ONE("U8", "[1]", "[1,0]"), 1, "t.data_offsets[1]: expected a whole number of at least");
    refused(ONE("U8", "[1]", "[-1,0]"), 1, "t.data_offsets[0]: expected a whole number");
    refused(ONE("U8", "[1]", "[0,18446744073709551616]"), 1, "t.data_offsets[1]");
    refused("{\"__metadata__\":[]}", 0, "__metadata__: expected an object");
    refused("{\"__metadata__\":{\"a\":1}}", 0, "__metadata__.a: expected a string");
    refused("{\"a\\nb\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}}", 1,
            "a?b: a tensor's name must not hold control characters");
    refused("{\"a\\u0000b\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}}", 1,
            "\\u0000 is not accepted");
}

#define U8(name, begin, end)                                                                       \
    "\"" name "\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[" #begin "," #end "]}"

static void ranges_follow_each_other(void **state)
{
    (void)state;
    struct ctw_records s;
    accepted(&s, "{" U8("b", 4, 8) "," U8("a", 0, 4) "}", 8);
    assert_string_equal(s.tensors[0].name, "a");
    ctw_records_free(&s);
    refused("{" U8("a", 0, 4) "," U8("b", 5, 9) "}", 9,
            "tensor b begins at byte 5 of the data, but the tensor before it, a, ends at 4: a gap");
    refused("{" U8("a", 0, 4) "," U8("b", 3, 7) "}", 7,
            "tensor b begins at byte 3 of the data, but the tensor before it, a, ends at 4: they "
            "overlap");
    refused("{" U8("a", 0, 4) "," U8("b", 0, 4) "}", 4, "they overlap");
    refused("{" U8("a", 4, 8) "}", 8,
            "the first tensor, a, begins at byte 4 of the data, not at 0: a gap");
    refused("{" U8("a", 0, 4) "," U8("a", 4, 8) "}", 8, "a: the key occurs twice");
    refused("{" U8("a", 0, 4) "}", 3, "bytes, but its header describes");
    refused("{" U8("a", 0, 4) "}", 3, "a download was interrupted");
    refused("{" U8("a", 0, 4) "}", 5, "1 bytes follow the last tensor");
    refused("{}", 1, "1 bytes follow the last tensor");
}

static void header_is_one_object(void **state)
{
    (void)state;
    struct ctw_records s;
    struct ctw_err err;
    refused("", 0, "expected one JSON object");
    refused("[]", 0, "expected one JSON object");
    refused(" {}", 0, "expected one JSON object");
    refused("{}\n", 0, "followed only by spaces");
    refused("{}\t ", 0, "followed only by spaces");
    refused("{} {}", 0, "expected nothing after the value");
    refused("{\"a\":}", 0, "header: not valid JSON at line 1, column 6 ('}')");
    refused("{\"\xff\":1}", 0, "not UTF-8");
    assert_int_equal(parse_n(&s, "{}\0", 3, 0, &err), CTW_EFORMAT);
}

static enum ctw_status prelude(const char *first, size_t bytes, uint64_t file_bytes, size_t *n,
                               struct ctw_err *err)
{
    return ctw_safetensors_prelude("m.safetensors", first, bytes, file_bytes, n, err);
}

static void first_bytes(void **state)
{
    (void)state;
    struct ctw_err err;
    size_t n = 77;
    assert_int_equal(prelude("\x02\0\0\0\0\0\0\0{}", 10, 10, &n, &err), CTW_OK);
    assert_int_equal(n, 2);
    assert_int_equal(prelude("\x02\0\0\0\0\0\0\x80{}", 10, 10, &n, &err), CTW_OK); /* alone */
    assert_int_equal(n, 2);
    static const struct {
        const char *first;
        size_t bytes;
        uint64_t file_bytes;
        const char *piece;
    } bad[] = {
        {"", 0, 0, "m.safetensors: the file is empty"},
        {"\x02\0\0", 3, 3, "it has 3 bytes, and the length of the header alone takes 8"},
        {"\x02\0\0\0\0\0\0\0", 8, 8, "has 8 bytes, but its header alone needs 2: a download was"},
        {"\x01\xe1\xf5\x05\0\0\0\0{", 9, 1 << 30, "a header of 100000001 bytes; at most 100000000"},
        {"\xff\xff\xff\xff\xff\xff\xff\xff{", 9, 1 << 30, "a header of 18446744073709551615 bytes"},
        {"\x02\0\0\0\0\0\0\0[]", 10, 10, "does not begin with '{'"},
        {"\0\0\0\0\0\0\0\0", 8, 8, "does not begin with '{'"},
        {"\x01\0\0\0\0\0\0\0{", 9, 9, "does not begin with '{'"},
        {"GGUF\x03\0\0\0\0\0", 10, 1 << 30, "not a safetensors file"},
        {"<!DOCTYPE html>", 15, 1 << 20, "not a safetensors file"},
    };
    for (size_t i = 0; i < CTW_COUNT(bad); i++) {
        assert_int_equal(prelude(bad[i].first, bad[i].bytes, bad[i].file_bytes, &n, &err),
                         CTW_EFORMAT);
        if (strstr(err.msg, bad[i].piece) == NULL)
            fail_msg("%zu: \"%s\", expected \"%s\"", i, err.msg, bad[i].piece);
    }
    static const char lfs[] = "version https://git-lfs.github.com/spec/v1\noid sha256:ab12\n"
                              "size 269060552\n";
    assert_int_equal(prelude(lfs, sizeof(lfs) - 1, sizeof(lfs) - 1, &n, &err), CTW_EFORMAT);
    assert_string_equal(err.msg, "m.safetensors: this is a Git LFS pointer of 74 bytes, not the "
                                 "file itself, which has 269060552 bytes; fetch it with: git lfs "
                                 "pull");
    assert_int_equal(prelude(lfs, 60, 60, &n, &err), CTW_EFORMAT);
    assert_non_null(strstr(err.msg, "which has an unknown number of bytes"));
}

static void index_lists_plain_names(void **state)
{
    (void)state;
    struct ctw_shard_index index;
    struct ctw_err err;
    static const char good[] =
        "{\"metadata\":{\"total_size\":1},\"weight_map\":{\"a\":\"y.safetensors\","
        "\"b\":\"x.safetensors\",\"c\":\"y.safetensors\"}}";
    assert_int_equal(ctw_shard_index_parse(&index, "i.json", good, sizeof(good) - 1, &err), CTW_OK);
    assert_int_equal(index.n_shards, 2);
    assert_string_equal(index.shards[0], "x.safetensors");
    assert_int_equal(index.n_entries, 3);
    assert_string_equal(index.entries[2].tensor, "c");
    assert_int_equal(index.entries[0].shard, 1);
    assert_int_equal(index.entries[1].shard, 0);
    ctw_shard_index_fini(&index);
    static const struct {
        const char *text, *piece;
    } bad[] = {
        {"{}", "i.json: \"weight_map\" is missing"},
        {"[]", "i.json: expected an object, found an array of 0"},
        {"{\"weight_map\":[]}", "i.json: weight_map: expected an object"},
        {"{\"weight_map\":{}}", "i.json: weight_map: expected at least one tensor, found none"},
        {"{\"weight_map\":{\"a\":1}}", "i.json: weight_map.a: expected a string"},
        {"{\"weight_map\":{\"a\":\"x.safetensors\",\"a\":\"y.safetensors\"}}", "twice"},
        {"{\"weight_map\":{\"a\":\"../x.safetensors\"}}",
         "i.json: weight_map.a: expected the plain name of a .safetensors file in this folder, "
         "found the string \"../x.safetensors\""},
        {"{\"weight_map\":{\"a\":\"/etc/x.safetensors\"}}", "expected the plain name"},
        {"{\"weight_map\":{\"a\":\"..\\\\x.safetensors\"}}", "expected the plain name"},
        {"{\"weight_map\":{\"a\":\"\"}}", "expected the plain name"},
        {"{\"weight_map\":{\"a\":\".\"}}", "expected the plain name"},
        {"{\"weight_map\":{\"a\":\"..\"}}", "expected the plain name"},
        {"{\"weight_map\":{\"a\":\".safetensors\"}}", "expected the plain name"},
        {"{\"weight_map\":{\"a\":\"x.bin\"}}", "expected the plain name"},
        {"{\"weight_map\":{\"a\":\"x\\n.safetensors\"}}", "expected the plain name"},
    };
    for (size_t i = 0; i < CTW_COUNT(bad); i++) {
        assert_int_equal(
            ctw_shard_index_parse(&index, "i.json", bad[i].text, strlen(bad[i].text), &err),
            CTW_EFORMAT);
        if (strstr(err.msg, bad[i].piece) == NULL)
            fail_msg("%s: \"%s\", expected \"%s\"", bad[i].text, err.msg, bad[i].piece);
    }
    char text[512], name[300];
    memset(name, 'n', sizeof(name));
    for (size_t n = 255; n <= 256; n++) {
        memcpy(name + n - 12, ".safetensors", 13);
        int bytes = snprintf(text, sizeof(text), "{\"weight_map\":{\"a\":\"%s\"}}", name);
        assert_int_equal(ctw_shard_index_parse(&index, "i.json", text, (size_t)bytes, &err),
                         n == 255 ? CTW_OK : CTW_EFORMAT);
        ctw_shard_index_fini(&index);
        memset(name, 'n', sizeof(name));
    }
}

static void out_of_memory_is_reported(void **state)
{
    (void)state;
    static const char header[] =
        "{\"__metadata__\":{\"a\":\"b\"}," U8("a", 0, 4) "," U8("b", 4, 8) "}";
    for (int n = 1;; n++) {
        struct ctw_records s;
        struct ctw_err err;
        ctw_mem_fail_at(n);
        enum ctw_status st = parse_n(&s, header, sizeof(header) - 1, 8, &err);
        ctw_mem_fail_at(0);
        if (st == CTW_OK) {
            assert_true(n > 10);
            ctw_records_free(&s);
            return;
        }
        assert_int_equal(st, CTW_ENOMEM);
        assert_null(s.tensors);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(records_are_as_written),
        cmocka_unit_test(every_dtype_of_the_format),
        cmocka_unit_test(what_we_cannot_read_is_recorded),
        cmocka_unit_test(shapes_cannot_overflow),
        cmocka_unit_test(entries_have_their_fields_and_no_others),
        cmocka_unit_test(ranges_follow_each_other),
        cmocka_unit_test(header_is_one_object),
        cmocka_unit_test(first_bytes),
        cmocka_unit_test(index_lists_plain_names),
        cmocka_unit_test(out_of_memory_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
