/*
 * worker/checkpoint/container/safetensors. The input's first byte selects the form of the rest. 0:
 * a two-byte number of data bytes, then a header; else: a whole file. The tensors of an accepted
 * file must lie in the file without gaps or overlaps, with the sizes that their shapes and dtypes
 * require.
 */
#include <string.h>

#include "fuzz.h"
#include "worker/checkpoint/container/safetensors.h"

static void check_tensors(const struct ctw_records *s, uint64_t data_start, uint64_t file_bytes)
{
    uint64_t at = data_start;
    for (int64_t i = 0; i < s->n_tensors; i++) {
        const struct ctw_tensor *t = &s->tensors[i];
        fuzz_check(t->name != NULL && t->offset == at);
        at += t->bytes;
        fuzz_check(at <= file_bytes);
        if (t->unusable != NULL) {
            fuzz_check(t->dtype == CTW_N_DTYPES && t->n_dims == 0);
            continue;
        }
        fuzz_check(t->n_dims >= 0 && t->n_dims <= CTW_MAX_DIMS && t->dtype < CTW_N_DTYPES);
        uint64_t bytes = ctw_dtype_bytes(t->dtype);
        for (int d = 0; d < t->n_dims; d++) {
            fuzz_check(t->shape[d] >= 0);
            bytes *= (uint64_t)t->shape[d];
        }
        fuzz_check(bytes == t->bytes);
    }
    fuzz_check(at == file_bytes);
}

static void run_header(const char *header, size_t bytes, uint64_t data_bytes)
{
    struct ctw_records s;
    struct ctw_err err = {0};
    uint64_t file_bytes = 8 + bytes + data_bytes;
    enum ctw_status st = ctw_safetensors_parse(&s, "fuzz", header, bytes, file_bytes, &err);
    if (st == CTW_OK)
        check_tensors(&s, 8 + bytes, file_bytes);
    else
        fuzz_check(s.tensors == NULL && (st == CTW_EFORMAT || st == CTW_ENOMEM) &&
                   strncmp(err.msg, "fuzz: ", 6) == 0);
    ctw_records_free(&s);
}

static void run_file(const char *file, size_t bytes)
{
    struct ctw_records s;
    struct ctw_err err;
    size_t header_bytes;
    size_t n = bytes < CTW_SAFETENSORS_PRELUDE ? bytes : CTW_SAFETENSORS_PRELUDE;
    if (ctw_safetensors_prelude("fuzz", file, n, bytes, &header_bytes, &err) != CTW_OK)
        return;
    fuzz_check(header_bytes <= bytes - 8);
    if (ctw_safetensors_parse(&s, "fuzz", file + 8, header_bytes, bytes, &err) == CTW_OK)
        check_tensors(&s, 8 + header_bytes, bytes);
    ctw_records_free(&s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (bytes >= 3 && data[0] == 0)
        run_header((const char *)data + 3, bytes - 3, data[1] + 256u * data[2]);
    else if (bytes >= 1 && data[0] != 0)
        run_file((const char *)data + 1, bytes - 1);
    return 0;
}

const struct fuzz_seed fuzz_seeds[] = {
    FUZZ_SEED("\0\x26\0{\"__metadata__\":{\"format\":\"pt\"},"
              "\"second\":{\"shape\":[3],\"dtype\":\"BF16\",\"data_offsets\":[24,30]},"
              "\"empty\":{\"dtype\":\"F32\",\"shape\":[5,0],\"data_offsets\":[24,24]},"
              "\"first\":{\"dtype\":\"F32\",\"shape\":[2,1,3],\"data_offsets\":[0,24]},"
              "\"scalar\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[30,38]}}   "),
    FUZZ_SEED("\0\x04\0{\"a\":{\"dtype\":\"F4\",\"shape\":[8],\"data_offsets\":[0,4]}}"),
    FUZZ_SEED("\0\x04\0{\"a\":{\"dtype\":\"X\",\"shape\":[8,1,1,1,1],\"data_offsets\":[0,4]}}"),
    FUZZ_SEED(
        "\0\0\0{\"a\":{\"dtype\":\"U8\",\"shape\":[1099511627776,0],\"data_offsets\":[0,0]}}"),
    FUZZ_SEED("\0\0\0{}"),
    FUZZ_SEED("\1\x02\0\0\0\0\0\0\0{}"),
    FUZZ_SEED(
        "\1\x38\0\0\0\0\0\0\0{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}    "
        "\1\2\3\4"),
    FUZZ_SEED("\1version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 269060552\n"),
    FUZZ_SEED("\1\xff\xff\xff\xff\xff\xff\xff\xff{}"),
    /* an overlap and a gap; the total size is right */
    FUZZ_SEED("\0\x08\0{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
              "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[2,6]}}"),
    FUZZ_SEED("\0\x08\0{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
              "\"b\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[5,8]}}"),
    {NULL, 0},
};

const char *const fuzz_words[] = {"\"dtype\":",
                                  "\"shape\":",
                                  "\"data_offsets\":",
                                  "\"U8\"",
                                  "\"F32\"",
                                  "\"F4\"",
                                  "[0,4]",
                                  "[]",
                                  "{}",
                                  "}",
                                  ",",
                                  "[",
                                  "\"__metadata__\":",
                                  "0,",
                                  " ",
                                  "size ",
                                  NULL};
