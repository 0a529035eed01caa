/*
 * JSON, read strictly, and written. The only user of cJSON (which builds the tree; a scan before it
 * holds the text to RFC 8259, since cJSON itself accepts rather more).
 *
 * Reading: a text is parsed whole into a document. Refused: anything but white space after the
 * value, duplicate keys, \u0000, lone surrogates, invalid UTF-8, unescaped control characters,
 * numbers of 64 or more characters, a depth above CTW_JSON_MAX_DEPTH, a text above `max_bytes`.
 * Accepted beyond the RFC, because Python's json module writes them: Infinity, -Infinity, NaN
 * (type CTW_JSON_NONFINITE). A document takes about 130 bytes of memory a value: 65 times the
 * text's size for [0,0,0,...]; choose max_bytes accordingly.
 *
 * A document and its nodes are read-only after parsing; any number of threads may read one.
 */
#ifndef CTW_BASE_JSON_H
#define CTW_BASE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum { CTW_JSON_MAX_DEPTH = 64 };

struct ctw_json;      /* a parsed text */
struct ctw_json_node; /* a value in it; valid until the document is closed */

enum ctw_json_type {
    CTW_JSON_NULL,
    CTW_JSON_BOOL,
    CTW_JSON_NUMBER,    /* finite */
    CTW_JSON_NONFINITE, /* Infinity, -Infinity, NaN, or a number too large for a double */
    CTW_JSON_STRING,
    CTW_JSON_ARRAY,
    CTW_JSON_OBJECT
};

/*
 * Parses text[0 .. bytes-1] (no NUL needed). `what` names the text in every message about it and
 * is copied: "config.json", "line 7". CTW_EFORMAT: malformed, the message has line and column;
 * CTW_ENOMEM.
 */
enum ctw_status ctw_json_parse(struct ctw_json **out, const char *what, const char *text,
                               size_t bytes, size_t max_bytes, struct ctw_err *err) CTW_MUST_CHECK;
/* Reads and parses the regular file at `path`. CTW_ENOTFOUND, CTW_EIO, and as above. */
enum ctw_status ctw_json_parse_file(struct ctw_json **out, const char *what, const char *path,
                                    size_t max_bytes, struct ctw_err *err) CTW_MUST_CHECK;
void ctw_json_close(struct ctw_json *doc); /* NULL is fine */
const struct ctw_json_node *ctw_json_root(const struct ctw_json *doc);

/* ---- walking ---- */

enum ctw_json_type ctw_json_type(const struct ctw_json_node *node);
/* Members or elements; 0 for anything else. */
int64_t ctw_json_count(const struct ctw_json_node *node);
/*
 * In the text's order:
 *   for (n = ctw_json_first(parent); n != NULL; n = ctw_json_next(n)) ...
 */
const struct ctw_json_node *ctw_json_first(const struct ctw_json_node *parent);
const struct ctw_json_node *ctw_json_next(const struct ctw_json_node *node);
const char *ctw_json_key(const struct ctw_json_node *member); /* NULL: not a member */
/* The member with this key, case-sensitive, in constant time; NULL: none, or not an object. */
const struct ctw_json_node *ctw_json_get(const struct ctw_json_node *object, const char *key);
/* Is there such a member, and is it something other than null? */
bool ctw_json_has(const struct ctw_json_node *object, const char *key);
bool ctw_json_is_null(const struct ctw_json_node *node);
/* Decoded, NUL-terminated, without NUL inside; NULL: not a string. */
const char *ctw_json_string(const struct ctw_json_node *node);
/* The value as it stands in the text, not NUL-terminated: to repeat it unchanged. */
const char *ctw_json_source(const struct ctw_json_node *node, size_t *bytes);

/*
 * ---- values with a check ----
 *
 * CTW_EFORMAT with "config.json: rope_scaling.factor: expected a number, found the string "8""
 * and *out untouched.
 */

/* A number with an integral value (8, 8.0, 8e0) in min..max. Exact over all of int64_t. */
enum ctw_status ctw_json_as_int(const struct ctw_json_node *node, int64_t min, int64_t max,
                                int64_t *out, struct ctw_err *err) CTW_MUST_CHECK;
/* A finite number. */
enum ctw_status ctw_json_as_double(const struct ctw_json_node *node, double *out,
                                   struct ctw_err *err) CTW_MUST_CHECK;
enum ctw_status ctw_json_as_bool(const struct ctw_json_node *node, bool *out,
                                 struct ctw_err *err) CTW_MUST_CHECK;
enum ctw_status ctw_json_as_string(const struct ctw_json_node *node, const char **out,
                                   struct ctw_err *err) CTW_MUST_CHECK;
/* CTW_OK if the node has the type. */
enum ctw_status ctw_json_expect(const struct ctw_json_node *node, enum ctw_json_type type,
                                struct ctw_err *err) CTW_MUST_CHECK;

/*
 * ---- members, as configurations are read ----
 *
 * CTW_JSON_OPTIONAL: an absent or null member leaves *out as it is (put the default there).
 * CTW_JSON_REQUIRED: an absent or null member is CTW_EFORMAT ("config.json: hidden_size is
 * missing").
 */
enum ctw_json_need { CTW_JSON_OPTIONAL, CTW_JSON_REQUIRED };

enum ctw_status ctw_json_read_int(const struct ctw_json_node *object, const char *key,
                                  enum ctw_json_need need, int64_t min, int64_t max, int64_t *out,
                                  struct ctw_err *err) CTW_MUST_CHECK;
enum ctw_status ctw_json_read_double(const struct ctw_json_node *object, const char *key,
                                     enum ctw_json_need need, double *out,
                                     struct ctw_err *err) CTW_MUST_CHECK;
enum ctw_status ctw_json_read_bool(const struct ctw_json_node *object, const char *key,
                                   enum ctw_json_need need, bool *out,
                                   struct ctw_err *err) CTW_MUST_CHECK;
enum ctw_status ctw_json_read_string(const struct ctw_json_node *object, const char *key,
                                     enum ctw_json_need need, const char **out,
                                     struct ctw_err *err) CTW_MUST_CHECK;
/* A member of type CTW_JSON_OBJECT or CTW_JSON_ARRAY. */
enum ctw_status ctw_json_read_node(const struct ctw_json_node *object, const char *key,
                                   enum ctw_json_need need, enum ctw_json_type type,
                                   const struct ctw_json_node **out,
                                   struct ctw_err *err) CTW_MUST_CHECK;

/* Fails with the text's name and the node's path before the message:
 * ctw_json_fail(n, err, CTW_EUNSUP, "...") -> "config.json: rope_scaling.type: ..." */
enum ctw_status ctw_json_fail(const struct ctw_json_node *node, struct ctw_err *err,
                              enum ctw_status status, const char *fmt, ...) CTW_PRINTF(4, 5);
/* Writes "rope_scaling.factor" or "groups[2].weights" (empty for the root), cut to `cap`. */
void ctw_json_path(const struct ctw_json_node *node, char *buf, size_t cap);
/* Writes the value for a message: `the string "yarn"`, `the number 1.5`, `an array of 3`. */
void ctw_json_describe(const struct ctw_json_node *node, char *buf, size_t cap);

/*
 * ---- writing ----
 *
 *   struct ctw_json_writer w = {0};
 *   ctw_json_write_open(&w, '{');
 *   ctw_json_write_key(&w, "sum");
 *   ctw_json_write_float(&w, -1.5f);
 *   ctw_json_write_close(&w, '}');
 *   st = ctw_json_writer_text(&w, &text, &bytes, err);
 *   ...
 *   ctw_json_writer_fini(&w);
 *
 * On one line, without spaces. Commas come by themselves; balance of brackets is the caller's. The
 * first failure is kept, later calls do nothing, and ctw_json_writer_text() reports it: out of
 * memory, or a NaN or infinity (CTW_ENUMERIC), for which JSON has no form.
 */
struct ctw_json_writer {
    char *text;
    size_t bytes, capacity;
    bool comma; /* a value has been written in the innermost bracket */
    enum ctw_status status;
};

void ctw_json_write_open(struct ctw_json_writer *w, char bracket);  /* '{' or '[' */
void ctw_json_write_close(struct ctw_json_writer *w, char bracket); /* '}' or ']' */
void ctw_json_write_key(struct ctw_json_writer *w, const char *key);
/* Escaped; invalid UTF-8 (a file name, say) becomes U+FFFD. NULL is written as null. */
void ctw_json_write_string(struct ctw_json_writer *w, const char *s);
void ctw_json_write_int(struct ctw_json_writer *w, int64_t v);
void ctw_json_write_uint(struct ctw_json_writer *w, uint64_t v);
/* Shortest decimal that reads back to the same bits (as float, as double), with ".0" or an
 * exponent, so that every reader takes it for a float. */
void ctw_json_write_float(struct ctw_json_writer *w, float v);
void ctw_json_write_double(struct ctw_json_writer *w, double v);
void ctw_json_write_bool(struct ctw_json_writer *w, bool v);
void ctw_json_write_null(struct ctw_json_writer *w);
/* Ends a line of JSON lines: the next value begins a line of its own. */
void ctw_json_write_newline(struct ctw_json_writer *w);
/* A value that is JSON already. */
void ctw_json_write_source(struct ctw_json_writer *w, const char *json, size_t bytes);

/* The text so far, NUL-terminated, the writer's. */
enum ctw_status ctw_json_writer_text(const struct ctw_json_writer *w, const char **text,
                                     size_t *bytes, struct ctw_err *err) CTW_MUST_CHECK;
/* Empties it for the next text; keeps the memory. */
void ctw_json_writer_reset(struct ctw_json_writer *w);
void ctw_json_writer_fini(struct ctw_json_writer *w);

#endif
