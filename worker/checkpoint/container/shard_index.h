/*
 * model.safetensors.index.json: which shard holds which tensor. A shard's name must be a plain
 * file name ending in .safetensors: the index is untrusted, and must not point outside the folder.
 */
#ifndef CTW_WORKER_SHARD_INDEX_H
#define CTW_WORKER_SHARD_INDEX_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum { CTW_SHARD_INDEX_MAX_BYTES = 100000000 };

struct ctw_shard_entry {
    const char *tensor;
    int shard; /* index into shards[] */
};

struct ctw_shard_index {
    const char **shards; /* [n_shards], sorted */
    int n_shards;
    struct ctw_shard_entry *entries; /* [n_entries], in the file's order */
    int64_t n_entries;
    struct ctw_json *doc; /* owns the strings */
};

/* `what` names the text in messages. CTW_EFORMAT, CTW_ENOMEM. */
enum ctw_status ctw_shard_index_parse(struct ctw_shard_index *out, const char *what,
                                      const char *text, size_t bytes,
                                      struct ctw_err *err) CTW_MUST_CHECK;
void ctw_shard_index_fini(struct ctw_shard_index *index); /* zeroed is fine */

#endif
