/* worker/checkpoint/container/shard_index: an accepted index contains only plain file names. */
#include <string.h>

#include "fuzz.h"
#include "worker/checkpoint/container/shard_index.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct ctw_shard_index index;
    struct ctw_err err = {0};
    enum ctw_status st = ctw_shard_index_parse(&index, "fuzz", (const char *)data, bytes, &err);
    if (st != CTW_OK) {
        fuzz_check(index.doc == NULL && (st == CTW_EFORMAT || st == CTW_ENOMEM));
        fuzz_check(strncmp(err.msg, "fuzz: ", 6) == 0);
        return 0;
    }
    fuzz_check(index.n_shards > 0 && index.n_shards <= index.n_entries);
    for (int i = 0; i < index.n_shards; i++) {
        const char *name = index.shards[i];
        size_t n = strlen(name);
        fuzz_check(n > 12 && n <= 255 && strcmp(name + n - 12, ".safetensors") == 0);
        fuzz_check(strpbrk(name, "/\\\n") == NULL);
        fuzz_check(i == 0 || strcmp(index.shards[i - 1], name) < 0);
    }
    for (int64_t i = 0; i < index.n_entries; i++)
        fuzz_check(index.entries[i].tensor != NULL && index.entries[i].shard >= 0 &&
                   index.entries[i].shard < index.n_shards);
    ctw_shard_index_fini(&index);
    return 0;
}

const struct fuzz_seed fuzz_seeds[] = {
    FUZZ_SEED("{\"metadata\":{\"total_size\":1},\"weight_map\":{\"a\":\"y.safetensors\",\"b\":"
              "\"x.safetensors\",\"c\":\"y.safetensors\"}}"),
    FUZZ_SEED("{\"weight_map\":{\"a\":\"../x.safetensors\"}}"),
    FUZZ_SEED("{\"weight_map\":{}}"),
    {NULL, 0},
};

const char *const fuzz_words[] = {"\"weight_map\":", ".safetensors", "/",  "..", "\\\\", "\\u002f",
                                  "\"a\":",          "\\u0000",      "\"", ",",  NULL};
