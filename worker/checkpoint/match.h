/*
 * Lists of module names as quantization_config's targets and ignore have them. An entry is
 * "re:PATTERN" (a regular expression that must match from the name's start), or else a module's
 * whole name, or the class of modules ("Linear").
 */
#ifndef CTW_WORKER_MATCH_H
#define CTW_WORKER_MATCH_H

#include <stdint.h>

#include "base/json.h"
#include "worker/checkpoint/regex.h"

struct ctw_pattern {
    const char *text;        /* the entry; the JSON document's */
    struct ctw_regex *regex; /* NULL: a name or a class */
};

struct ctw_patterns {
    struct ctw_pattern *items;
    int64_t n;
};

/* node: NULL, null, or an array of strings; at most 65,536, 1,024 of them expressions. Close *out
 * also after a failure. */
enum ctw_status ctw_patterns_read(struct ctw_patterns *out, const struct ctw_json_node *node,
                                  struct ctw_err *err) CTW_MUST_CHECK;
void ctw_patterns_close(struct ctw_patterns *patterns);

/*
 * How an entry fits the module `name` of class `class_name`. The smaller the number, the more
 * particular; of several entries that fit, compressed-tensors takes the most particular, and among
 * equals the first by the order of their texts (strcmp).
 */
enum ctw_match { CTW_MATCH_NAME, CTW_MATCH_REGEX, CTW_MATCH_CLASS, CTW_MATCH_NONE };

enum ctw_status ctw_pattern_match(const struct ctw_pattern *pattern, const char *name,
                                  const char *class_name, enum ctw_match *out,
                                  struct ctw_err *err) CTW_MUST_CHECK;

/* Does any entry fit? */
enum ctw_status ctw_patterns_match(const struct ctw_patterns *patterns, const char *name,
                                   const char *class_name, bool *out,
                                   struct ctw_err *err) CTW_MUST_CHECK;

#endif
