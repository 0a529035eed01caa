/*
 * A strict JSON reader, and a writer. Only base/json*.c uses cJSON, which builds the tree. A scan
 * first checks the text against RFC 8259, because cJSON alone accepts more than the RFC allows.
 *
 * Reading: a text is parsed whole into a document. The reader rejects anything but white space
 * after the value, duplicate keys, \u0000, lone surrogates, invalid UTF-8, unescaped control
 * characters, numbers of 64 or more characters, a depth above CTW_JSON_MAX_DEPTH and a text longer
 * than `max_bytes`. Beyond the RFC it accepts Infinity, -Infinity and NaN (type
 * CTW_JSON_NONFINITE), because Python's json module writes them, and skips a byte order mark before
 * the value. A Git LFS pointer is named as such. A document takes about 130 bytes of memory per
 * value, which is 65 times the text's size for [0,0,0,...]; choose max_bytes accordingly.
 *
 * A document and its nodes are read-only after parsing; any number of threads may read them.
 */
#ifndef CTW_BASE_JSON_H
#define CTW_BASE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum { CTW_JSON_MAX_DEPTH = 64 };

struct ctw_json;      /* a parsed text */
struct ctw_json_node; /* a value in a document; valid until the document is closed */

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
 * Parses text[0 .. bytes-1] (no NUL needed). `what` names the text in every message ("config.json",
 * "line 7") and is copied. CTW_EFORMAT: malformed; the message gives the line and column.
 * CTW_ENOMEM.
 */
enum ctw_status ctw_json_parse(struct ctw_json **out, const char *what, const char *text,
                               size_t bytes, size_t max_bytes, struct ctw_err *err) CTW_MUST_CHECK;
/* Reads and parses a regular file of a folder (NULL: of the path `file`). CTW_ENOTFOUND, CTW_EIO,
 * or an error of ctw_json_parse(). */
enum ctw_status ctw_json_parse_file(struct ctw_json **out, const char *dir, const char *file,
                                    size_t max_bytes, struct ctw_err *err) CTW_MUST_CHECK;
void ctw_json_close(struct ctw_json *doc); /* NULL is fine */
const struct ctw_json_node *ctw_json_root(const struct ctw_json *doc);

/* ---- walking ---- */

enum ctw_json_type ctw_json_type(const struct ctw_json_node *node);
/* Number of members or elements; 0 for any other type. */
int64_t ctw_json_count(const struct ctw_json_node *node);
/*
 * Children in the order of the text:
 *   for (n = ctw_json_first(parent); n != NULL; n = ctw_json_next(n)) ...
 */
const struct ctw_json_node *ctw_json_first(const struct ctw_json_node *parent);
const struct ctw_json_node *ctw_json_next(const struct ctw_json_node *node);
const char *ctw_json_key(const struct ctw_json_node *member); /* NULL: not a member */
/* The member with this key (case-sensitive), in constant time. NULL: no such member, or the node
 * is not an object. */
const struct ctw_json_node *ctw_json_get(const struct ctw_json_node *object, const char *key);
/* Does the object have a member with this key that is not null? */
bool ctw_json_has(const struct ctw_json_node *object, const char *key);
bool ctw_json_is_null(const struct ctw_json_node *node);
/* The decoded string, NUL-terminated, with no NUL inside. NULL: the node is not a string. */
const char *ctw_json_string(const struct ctw_json_node *node);
/* The value exactly as written in the text, not NUL-terminated, for copying it unchanged. */
const char *ctw_json_source(const struct ctw_json_node *node, size_t *bytes);

/*
 * ---- values with a check ----
 *
 * On CTW_EFORMAT *out is unchanged, and the message reads
 *   config.json: rope_scaling.factor: expected a number, found the string "8"
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
 * ---- members of a configuration ----
 *
 * CTW_JSON_OPTIONAL: an absent or null member leaves *out unchanged (set the default first).
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

/* Fails with a message that begins with the text's name and the node's path:
 * ctw_json_fail(n, err, CTW_EUNSUP, "...") -> "config.json: rope_scaling.type: ..." */
enum ctw_status ctw_json_fail(const struct ctw_json_node *node, struct ctw_err *err,
                              enum ctw_status status, const char *fmt, ...) CTW_PRINTF(4, 5);
/* Writes "rope_scaling.factor" or "groups[2].weights" (empty for the root), truncated to `cap`. */
void ctw_json_path(const struct ctw_json_node *node, char *buf, size_t cap);
/* Describes the value for a message: `the string "yarn"`, `the number 1.5`, `an array of 3`. */
void ctw_json_describe(const struct ctw_json_node *node, char *buf, size_t cap);

/*
 * ---- writing ----
 *
 *   struct ctw_json_writer w = {0};
 *   ctw_json_write_open(&w, '{');
 *   ctw_json_write_key_int(&w, "n", 3);
 *   ctw_json_write_key(&w, "sum");
 *   ctw_json_write_float(&w, -1.5f);
 *   ctw_json_write_close(&w, '}');
 *   st = ctw_json_writer_text(&w, &text, &bytes, err);
 *   ...
 *   ctw_json_writer_fini(&w);
 *
 * The output is one line without spaces. The writer inserts the commas; the caller balances the
 * brackets. After the first failure later calls are no-ops, and ctw_json_writer_text() reports that
 * failure: out of memory, or a NaN or infinity (CTW_ENUMERIC), which JSON cannot represent.
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
/* A key and its value. */
void ctw_json_write_key_string(struct ctw_json_writer *w, const char *key, const char *s);
void ctw_json_write_key_int(struct ctw_json_writer *w, const char *key, int64_t v);
void ctw_json_write_key_uint(struct ctw_json_writer *w, const char *key, uint64_t v);
void ctw_json_write_key_double(struct ctw_json_writer *w, const char *key, double v);
void ctw_json_write_key_bool(struct ctw_json_writer *w, const char *key, bool v);
/* Writes s escaped; invalid UTF-8 (in a file name, say) becomes U+FFFD, and NULL becomes null. */
void ctw_json_write_string(struct ctw_json_writer *w, const char *s);
void ctw_json_write_int(struct ctw_json_writer *w, int64_t v);
void ctw_json_write_uint(struct ctw_json_writer *w, uint64_t v);
/* The shortest decimal that reads back to the same bits (as float or double), with ".0" or an
 * exponent, so that every reader parses it as a float. */
void ctw_json_write_float(struct ctw_json_writer *w, float v);
void ctw_json_write_double(struct ctw_json_writer *w, double v);
void ctw_json_write_bool(struct ctw_json_writer *w, bool v);
void ctw_json_write_null(struct ctw_json_writer *w);
/* Ends a line of a JSON-lines text: the next value begins a new line. */
void ctw_json_write_newline(struct ctw_json_writer *w);
/* Writes a value that is already JSON. */
void ctw_json_write_source(struct ctw_json_writer *w, const char *json, size_t bytes);

/* The text so far, NUL-terminated; owned by the writer. */
enum ctw_status ctw_json_writer_text(const struct ctw_json_writer *w, const char **text,
                                     size_t *bytes, struct ctw_err *err) CTW_MUST_CHECK;
/* Empties the writer for the next text; keeps its memory. */
void ctw_json_writer_reset(struct ctw_json_writer *w);
void ctw_json_writer_fini(struct ctw_json_writer *w);

#endif
