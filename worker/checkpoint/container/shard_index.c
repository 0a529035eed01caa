#include "worker/checkpoint/container/shard_index.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"

enum { MAX_NAME_BYTES = 255 };

static enum ctw_status check_shard_name(const struct ctw_json_node *node, const char *name,
                                        struct ctw_err *err)
{
    static const char suffix[] = ".safetensors";
    size_t n = strlen(name);
    bool plain = n >= sizeof(suffix) && n <= MAX_NAME_BYTES &&
                 strcmp(name + n - (sizeof(suffix) - 1), suffix) == 0;
    for (const char *p = name; *p != '\0'; p++)
        plain = plain && *p != '/' && *p != '\\' && (unsigned char)*p >= 0x20 && *p != 0x7f;
    if (plain)
        return CTW_OK;
    char found[160];
    ctw_json_describe(node, found, sizeof(found));
    return ctw_json_fail(node, err, CTW_EFORMAT,
                         "expected the plain name of a .safetensors file in this folder, found %s",
                         found);
}

static int by_name(const void *left, const void *right)
{
    return strcmp(*(const char *const *)left, *(const char *const *)right);
}

/* Sorts shards[0 .. n-1] and drops repeated names; returns the number of names left. */
static int sort_unique(const char **shards, int64_t n)
{
    int n_unique = 0;
    qsort(shards, (size_t)n, sizeof(*shards), by_name);
    for (int64_t i = 0; i < n; i++)
        if (n_unique == 0 || strcmp(shards[n_unique - 1], shards[i]) != 0)
            shards[n_unique++] = shards[i];
    return n_unique;
}

static enum ctw_status read_map(struct ctw_shard_index *index, const struct ctw_json_node *map,
                                struct ctw_err *err)
{
    enum ctw_status st;
    int64_t n = ctw_json_count(map), i = 0;
    if (n == 0)
        return ctw_json_fail(map, err, CTW_EFORMAT, "expected at least one tensor, found none");
    index->entries = ctw_calloc((size_t)n, sizeof(*index->entries));
    index->shards = ctw_calloc((size_t)n, sizeof(*index->shards));
    if (index->entries == NULL || index->shards == NULL)
        return ctw_json_fail(map, err, CTW_ENOMEM, "out of memory for %lld tensors", (long long)n);
    for (const struct ctw_json_node *e = ctw_json_first(map); e != NULL; e = ctw_json_next(e)) {
        if ((st = ctw_json_as_string(e, &index->shards[i], err)) != CTW_OK ||
            (st = check_shard_name(e, index->shards[i], err)) != CTW_OK)
            return st;
        index->entries[i++].tensor = ctw_json_key(e);
    }
    index->n_entries = n;
    index->n_shards = sort_unique(index->shards, n);
    i = 0;
    for (const struct ctw_json_node *e = ctw_json_first(map); e != NULL; e = ctw_json_next(e)) {
        const char *name = ctw_json_string(e);
        const char **at =
            bsearch(&name, index->shards, (size_t)index->n_shards, sizeof(*index->shards), by_name);
        index->entries[i++].shard = (int)(at - index->shards);
    }
    return CTW_OK;
}

enum ctw_status ctw_shard_index_parse(struct ctw_shard_index *out, const char *what,
                                      const char *text, size_t bytes, struct ctw_err *err)
{
    const struct ctw_json_node *map = NULL;
    *out = (struct ctw_shard_index){0};
    enum ctw_status st =
        ctw_json_parse(&out->doc, what, text, bytes, CTW_SHARD_INDEX_MAX_BYTES, err);
    if (st == CTW_OK)
        st = ctw_json_read_node(ctw_json_root(out->doc), "weight_map", CTW_JSON_REQUIRED,
                                CTW_JSON_OBJECT, &map, err);
    if (st == CTW_OK)
        st = read_map(out, map, err);
    if (st != CTW_OK)
        ctw_shard_index_fini(out);
    return st;
}

void ctw_shard_index_fini(struct ctw_shard_index *index)
{
    ctw_free(index->shards);
    ctw_free(index->entries);
    ctw_json_close(index->doc);
    *index = (struct ctw_shard_index){0};
}
