/*
 * The keys of config.json that nothing reads, for `inspect`. What transformers' own class does not
 * read cannot change its numbers, so it does not change ours: it is listed and otherwise ignored.
 */
#ifndef CTW_WORKER_UNREAD_H
#define CTW_WORKER_UNREAD_H

#include "base/json.h"

struct ctw_unread {
    char *text; /* "seq_length, rope_scaling.mrope_section"; NULL: none */
    size_t bytes;
    int64_t n;
};

/* Appends a member's path; past a few hundred, "..." once. CTW_ENOMEM. Close *u also after a
 * failure. */
enum ctw_status ctw_unread_add(struct ctw_unread *u, const struct ctw_json_node *member,
                               struct ctw_err *err) CTW_MUST_CHECK;
void ctw_unread_close(struct ctw_unread *u);

#endif
