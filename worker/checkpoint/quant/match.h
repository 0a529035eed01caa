/*
 * Lists of modules, as in quantization_config's targets and ignore. An entry is "re:PATTERN" (a
 * regular expression that must match from the name's start), or else a module's whole name, or a
 * class of modules ("Linear").
 */
#ifndef CTW_WORKER_MATCH_H
#define CTW_WORKER_MATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/json.h"
#include "base/regex.h"

struct ctw_pattern {
    const char *text;        /* the entry; owned by the JSON document, or static */
    struct ctw_regex *regex; /* NULL: a name or a class */
    bool part;               /* see ctw_patterns_read_parts() */
    size_t literal, bytes;   /* of the text of a part: up to the first wildcard, and whole */
};

struct ctw_patterns {
    struct ctw_pattern *items;
    int64_t n;
};

/* node: NULL, null, or an array of at most 65,536 strings, of which at most 1,024 are regular
 * expressions. The caller closes *out, also after a failure. */
enum ctw_status ctw_patterns_read(struct ctw_patterns *out, const struct ctw_json_node *node,
                                  struct ctw_err *err) CTW_MUST_CHECK;
/*
 * The same by the rules of other methods' lists: an entry is the name of a module or of its
 * container, or the last components of either, with or without wildcards (fnmatch(3)).
 */
enum ctw_status ctw_patterns_read_parts(struct ctw_patterns *out, const struct ctw_json_node *node,
                                        struct ctw_err *err) CTW_MUST_CHECK;
/* Appends an entry. */
enum ctw_status ctw_patterns_add(struct ctw_patterns *patterns, const struct ctw_pattern *entry,
                                 struct ctw_err *err) CTW_MUST_CHECK;
void ctw_patterns_close(struct ctw_patterns *patterns);

/*
 * How an entry matches the module `name` of class `class_name`. A smaller number is more specific.
 * If several entries match, compressed-tensors takes the most specific, and among equals the first
 * in strcmp order.
 */
enum ctw_match { CTW_MATCH_NAME, CTW_MATCH_REGEX, CTW_MATCH_CLASS, CTW_MATCH_NONE };

/*
 * The class_name of every stack of experts. A class matches by its ending: Qwen3MoeExperts, say, of
 * transformers 5, GraniteMoeParallelExperts of version 4, llm-compressor's
 * GraniteMoeHybridParallelExpertsLinear, MoELinear of Step's own code. A model has one such class,
 * and files name it by the code that wrote them.
 */
#define CTW_CLASS_EXPERTS "Experts"

enum ctw_status ctw_pattern_match(const struct ctw_pattern *pattern, const char *name,
                                  const char *class_name, enum ctw_match *out,
                                  struct ctw_err *err) CTW_MUST_CHECK;

/* Does any entry match? */
enum ctw_status ctw_patterns_match(const struct ctw_patterns *patterns, const char *name,
                                   const char *class_name, bool *out,
                                   struct ctw_err *err) CTW_MUST_CHECK;

#endif
