/*
 * The keys of config.json that are not read, for `inspect`. A key that transformers' own class does
 * not read cannot change transformers' numbers, so it must not change ours. Such keys are listed
 * and ignored.
 */
#ifndef CTW_WORKER_UNREAD_H
#define CTW_WORKER_UNREAD_H

#include "base/json.h"

struct ctw_unread {
    char *text; /* "seq_length, rope_scaling.mrope_section"; NULL: none */
    size_t bytes;
    int64_t n;
};

/* Appends a member's path; beyond 256 paths, appends "..." once. CTW_ENOMEM. The caller closes *u,
 * also after a failure. */
enum ctw_status ctw_unread_add(struct ctw_unread *u, const struct ctw_json_node *member,
                               struct ctw_err *err) CTW_MUST_CHECK;
void ctw_unread_close(struct ctw_unread *u);

#endif
