/*
 * Table-driven conversion between msgpack maps and C structs. Each message has a struct and a table
 * of its fields. Encoding and decoding use the same table, so they cannot disagree.
 *
 * Decoding checks the input against the table: every key is known and occurs at most once, every
 * required key is present, types match, text is valid UTF-8 without control characters. Before
 * msgpack-c sees the bytes, a scan checks the nesting depth and compares all counts with the number
 * of bytes present (msgpack-c would allocate what a header claims: 96 GB for 5 bytes).
 */
#ifndef CTW_IPC_CODEC_H
#define CTW_IPC_CODEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* Bytes or text, not owned by the span; text is not NUL-terminated. */
struct ctw_span {
    const char *data;
    size_t n;
};

/* A list of structs; for CTW_FIELD_STRS, a list of struct ctw_span. */
struct ctw_list {
    void *data;
    size_t n;
};

enum ctw_field_type {
    CTW_FIELD_UINT,  /* uint64_t */
    CTW_FIELD_FLOAT, /* double */
    CTW_FIELD_BOOL,  /* bool */
    CTW_FIELD_STR,   /* struct ctw_span */
    CTW_FIELD_BIN,   /* struct ctw_span */
    CTW_FIELD_STRS,  /* struct ctw_list of struct ctw_span */
    CTW_FIELD_MAP,   /* a struct in place */
    CTW_FIELD_MAPS   /* struct ctw_list of structs */
};

/* has: offset of the bool that is true if the field is present. Fields that are present together
 * may share one bool. CTW_ALWAYS: the field is required. */
struct ctw_field {
    const char *key;
    enum ctw_field_type type;
    size_t offset, has;
    const struct ctw_schema *map; /* CTW_FIELD_MAP, CTW_FIELD_MAPS */
};
#define CTW_ALWAYS SIZE_MAX

struct ctw_schema {
    const char *name; /* for messages: "submit.head" */
    size_t size;      /* of the struct */
    const struct ctw_field *fields;
    int n_fields;
};

#define CTW_FIELD_AT(type_, struct_, member_, has_, map_)                                          \
    {                                                                                              \
#member_, CTW_FIELD_##type_, offsetof(struct_, member_), has_, map_                        \
    }
#define CTW_FIELD(type_, struct_, member_) CTW_FIELD_AT(type_, struct_, member_, CTW_ALWAYS, NULL)
#define CTW_FIELD_OF(type_, struct_, member_, schema_)                                             \
    CTW_FIELD_AT(type_, struct_, member_, CTW_ALWAYS, schema_)
/* An optional field: struct_ has the bool has.flag_. */
#define CTW_FIELD_IF(flag_, type_, struct_, member_)                                               \
    CTW_FIELD_AT(type_, struct_, member_, offsetof(struct_, has.flag_), NULL)
#define CTW_FIELD_OF_IF(flag_, type_, struct_, member_, schema_)                                   \
    CTW_FIELD_AT(type_, struct_, member_, offsetof(struct_, has.flag_), schema_)
#define CTW_SCHEMA(name_, struct_, fields_)                                                        \
    {                                                                                              \
        name_, sizeof(struct_), fields_, CTW_COUNT(fields_)                                        \
    }

/* ---- writing ---- */

/* A growing message. After the first failure (out of memory) later writes are no-ops. */
struct ctw_writer {
    uint8_t *data;
    size_t n, capacity;
    bool failed;
};

void ctw_writer_fini(struct ctw_writer *w);

void ctw_write_map(struct ctw_writer *w, uint32_t n_pairs);
void ctw_write_key_uint(struct ctw_writer *w, const char *key, uint64_t v);
void ctw_write_key_str(struct ctw_writer *w, const char *key, struct ctw_span v);
void ctw_write_key_bool(struct ctw_writer *w, const char *key, bool v);
void ctw_write_key(struct ctw_writer *w, const char *key);

/* Is the field required, or is its flag set? */
bool ctw_field_is_there(const struct ctw_field *f, const void *from);
/* Number of pairs that ctw_write_struct() will write. */
uint32_t ctw_count_pairs(const struct ctw_schema *schema, const void *from);
/* Writes the key-value pairs of a struct, without the map's header. */
void ctw_write_struct(struct ctw_writer *w, const struct ctw_schema *schema, const void *from);

/* ---- reading ---- */

/* A parsed message. The bytes must outlive the reader, and the reader must outlive all spans and
 * lists read from it. */
struct ctw_reader {
    void *parsed;
};

/* CTW_EFORMAT: not exactly one msgpack map, or a bound of ipc/limits.h is exceeded. */
enum ctw_status ctw_reader_open(struct ctw_reader *r, const void *data, size_t bytes,
                                struct ctw_err *err) CTW_MUST_CHECK;
void ctw_reader_close(struct ctw_reader *r); /* idempotent */

/* The scan alone: checks for one complete value within the bounds on depth and elements. */
enum ctw_status ctw_wire_scan(const void *data, size_t bytes, struct ctw_err *err) CTW_MUST_CHECK;

/* Does the top-level map have this key? */
bool ctw_reader_has(const struct ctw_reader *r, const char *key) CTW_MUST_CHECK;
/* Reads a top-level value. False: the key is absent or repeated, or the value has another type. */
bool ctw_reader_uint(const struct ctw_reader *r, const char *key, uint64_t *out) CTW_MUST_CHECK;
bool ctw_reader_str(const struct ctw_reader *r, const char *key,
                    struct ctw_span *out) CTW_MUST_CHECK;
bool ctw_reader_bool(const struct ctw_reader *r, const char *key, bool *out) CTW_MUST_CHECK;

/*
 * Reads the top-level map into *out (schema->size bytes, zeroed first), ignoring the keys listed in
 * `envelope` (NULL-terminated). With `lenient`, as for replies, unknown keys are ignored too.
 */
enum ctw_status ctw_reader_read(struct ctw_reader *r, const struct ctw_schema *schema,
                                const char *const *envelope, bool lenient, void *out,
                                struct ctw_err *err) CTW_MUST_CHECK;

/* Copies text into a NUL-terminated buffer. False, with an empty string: it does not fit. */
bool ctw_span_copy(struct ctw_span s, char *out, size_t capacity);
bool ctw_span_is(struct ctw_span s, const char *text);
struct ctw_span ctw_span_of(const char *text); /* NULL: an empty span */
/* Replaces bytes that a str must not hold (invalid UTF-8, control characters) with '?'. */
void ctw_text_clean(char *text, size_t n);

#endif
