/*
 * Regular expressions in the syntax of Python's re, run by PCRE2, for module names. A match begins
 * at the start of the name and may end anywhere, as with re.match. If PCRE2 reads a construct
 * differently from Python, the pattern is rewritten (\Z, {,n}, braces that do not repeat) or
 * refused by name: Perl's classes ([:alpha:], \h, \p), Perl's groups and verbs ((?<n>...), (?R),
 * (*...)), conditions, flags behind the start, octal escapes.
 */
#ifndef CTW_BASE_REGEX_H
#define CTW_BASE_REGEX_H

#include <stdbool.h>

#include "base/status.h"

struct ctw_regex;

/* CTW_EUNSUP: names an unsupported construct and its position; CTW_EFORMAT: malformed; CTW_ENOMEM.
 * `pattern` is UTF-8, at most 8 KiB. */
enum ctw_status ctw_regex_compile(struct ctw_regex **out, const char *pattern,
                                  struct ctw_err *err) CTW_MUST_CHECK;
void ctw_regex_close(struct ctw_regex *re); /* NULL is fine */

/* Does a match begin at the start of `name`? Thread-safe. CTW_EUNSUP: the pattern takes too many
 * steps on this name; CTW_ENOMEM. */
enum ctw_status ctw_regex_match(const struct ctw_regex *re, const char *name, bool *out,
                                struct ctw_err *err) CTW_MUST_CHECK;

#endif
