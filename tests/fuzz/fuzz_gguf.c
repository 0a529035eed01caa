/*
 * worker/checkpoint/container/gguf. The input's first byte: 0: a two-byte number of data bytes,
 * then a header; else: a whole file. The tensors of an accepted file must lie in the file without
 * overlaps, with the sizes that their shapes and types require, and all its values must be
 * readable.
 */
#include <string.h>

#include "base/mem.h"
#include "fuzz.h"
#include "kernels/formats/ggml/ggml_types.h"
#include "worker/checkpoint/container/gguf.h"

static void check_tensors(const struct ctw_records *r, uint64_t file_bytes)
{
    uint64_t at = 0;
    for (int64_t i = 0; i < r->n_tensors; i++) {
        const struct ctw_tensor *t = &r->tensors[i];
        fuzz_check(t->name[0] != '\0' && t->offset >= at && t->offset <= file_bytes);
        at = t->offset + t->bytes;
        fuzz_check(at <= file_bytes);
        if (t->unusable != NULL) {
            fuzz_check(t->dtype == CTW_N_DTYPES && t->n_dims == 0);
            continue;
        }
        uint64_t elements = 1, bytes = 0;
        fuzz_check(t->n_dims >= 0 && t->n_dims <= CTW_MAX_DIMS && t->dtype < CTW_N_DTYPES);
        for (int d = 0; d < t->n_dims; d++) {
            fuzz_check(t->shape[d] >= 0);
            elements *= (uint64_t)t->shape[d];
        }
        if (t->block != NULL)
            fuzz_check(ctw_block_bytes(t->block, elements, &bytes));
        else
            bytes = elements * ctw_dtype_bytes(t->dtype);
        fuzz_check(bytes == t->bytes);
    }
}

static void read_values(const struct ctw_metadata *keys)
{
    char text[64];
    for (int64_t i = 0; i < keys->n_items; i++) {
        const struct ctw_meta *m = &keys->items[i];
        int64_t integer;
        double number;
        fuzz_check(strlen(ctw_meta_describe(m, text, sizeof(text))) < sizeof(text));
        fuzz_check(ctw_meta_find(keys, m->key) == m);
        for (uint64_t e = 0; e < m->n && e < 100; e++) {
            bool is_int = ctw_meta_int(m, e, &integer);
            bool is_number = ctw_meta_number(m, e, &number);
            fuzz_check(is_number || !is_int);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct ctw_records r;
    struct ctw_err err = {0};
    size_t skip = bytes >= 3 && data[0] == 0 ? 3 : 1;
    if (bytes < skip)
        return 0;
    uint64_t file_bytes = bytes - skip + (skip == 3 ? data[1] + 256u * data[2] : 0);
    /* What is not there reads as zeros: the header may be followed by data only. */
    uint8_t *file = ctw_calloc(file_bytes, 1);
    if (file == NULL)
        return 0;
    memcpy(file, data + skip, bytes - skip);
    enum ctw_status st = ctw_gguf_parse(&r, "fuzz", file, (size_t)file_bytes, file_bytes, &err);
    if (st == CTW_OK) {
        check_tensors(&r, file_bytes);
        read_values(&r.metadata);
    } else {
        fuzz_check(r.tensors == NULL && r.metadata.items == NULL);
        fuzz_check(st == CTW_EFORMAT || st == CTW_EUNSUP || st == CTW_ENOMEM);
        fuzz_check(strncmp(err.msg, "fuzz: ", 6) == 0);
    }
    ctw_records_free(&r);
    ctw_free(file);
    return 0;
}

/* clang-format off */
#define N4(n) n "\0\0\0"
#define N8(n) n "\0\0\0\0\0\0\0"
#define START(version, tensors, keys) "GGUF" N4(version) N8(tensors) N8(keys)

const struct fuzz_seed fuzz_seeds[] = {
    /* every type of value, and arrays of texts and of arrays */
    FUZZ_SEED("\0\0\0" START("\3", "\0", "\xd") N8("\1") "a" N4("\0") "\xff" N8("\1") "b" N4(
        "\1") "\xff" N8("\1") "c" N4("\2") "\1\2" N8("\1") "d" N4("\3") "\1\2" N8("\1") "e"
              N4("\4") "\1\2\3\4" N8("\1") "f" N4("\5") "\1\2\3\4" N8("\1") "g" N4(
                  "\6") "\0\0\x80\x3f" N8("\1") "h" N4("\7") "\1" N8("\1") "i" N4("\x8") N8("\3")
                  "abc" N8("\1") "j" N4("\x9") N4("\x8") N8("\2") N8("\1") "a" N8("\0") N8("\1")
                  "k" N4("\xa") N8("\7") N8("\1") "l" N4("\xc") N8("\0") N8("\1") "m" N4("\x9")
                  N4("\x9") N8("\1") N4("\3") N8("\1") "\1\2"),
    /* an F32 vector and Q4_0 rows, with an alignment of 8 */
    FUZZ_SEED("\0\x40\0" START("\2", "\2", "\1") N8("\x11") "general.alignment" N4("\4") N4("\x8")
              N8("\1") "a" N4("\1") N8("\3") N4("\0") N8("\0") N8("\1") "b" N4("\2") N8("\x20")
              N8("\2") N4("\2") N8("\x10")),
    /* a type of a fork */
    FUZZ_SEED("\0\x20\0" START("\3", "\1", "\0") N8("\1") "a" N4("\1") N8("\x20") N4("\x8b")
              N8("\0")),
    FUZZ_SEED("\0\0\0" START("\3", "\0", "\0")),
    FUZZ_SEED("\1GGUF\0\0\0\3"),
    FUZZ_SEED("\1version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 269060552\n"),
    {NULL, 0},
};

const char *const fuzz_words[] = {"GGUF", "general.alignment", "\xff\xff\xff\xff\xff\xff\xff\xff",
                                  "\x7f", "\x09", "\x08", "\x20", NULL};
