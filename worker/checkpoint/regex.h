/*
 * The regular expressions of quantization_config's targets and ignore lists: the subset of Python's
 * syntax that such lists use. The matcher only finds whether a match begins at the start of the
 * name (like Python's re.match), which needs no backtracking: time is bounded by pattern length
 * times name length for every pattern, and once more by name length if it looks ahead.
 *
 * Supported: literals, \. and other escaped punctuation, . [a-z] [^a-z] \d \D \w \W \s \S \b \B \A
 * \Z ^ $ ( ) (?: ) (?P<name> ) (?= ) (?! ) | * + ? {m} {m,} {m,n} and their lazy forms. Refused by
 * name: look-ahead within look-ahead, look-behind, back references, inline flags, and anything
 * else.
 */
#ifndef CTW_WORKER_REGEX_H
#define CTW_WORKER_REGEX_H

#include <stdbool.h>

#include "base/status.h"

struct ctw_regex;

/* CTW_EUNSUP: names an unsupported construct and its position; CTW_EFORMAT: malformed; CTW_ENOMEM.
 * */
enum ctw_status ctw_regex_compile(struct ctw_regex **out, const char *pattern,
                                  struct ctw_err *err) CTW_MUST_CHECK;
void ctw_regex_close(struct ctw_regex *re); /* NULL is fine */

/* Does a match begin at the start of `name`? CTW_ENOMEM. */
enum ctw_status ctw_regex_match(const struct ctw_regex *re, const char *name, bool *out,
                                struct ctw_err *err) CTW_MUST_CHECK;

#endif
