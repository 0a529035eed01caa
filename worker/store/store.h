/*
 * The result store: the scores of sequences, kept in a file so that no worker computes them again.
 *
 * A record's key is a SHA-256 over all that a score depends on: the checkpoint's identity, the
 * numerics id (both also of the reference, if two models are compared), the tokens, and where the
 * targets begin. Its value is the columns of results, a value for every target, with a digest of
 * key and value: a record whose digest differs is never returned.
 *
 * The file is DIR/results.sqlite, an SQLite database in WAL mode. Several workers of one machine
 * may use it at once, and a process may end at any instant. After a power failure the last
 * transactions may be missing, never half there.
 *
 * ctw_store_find() and ctw_store_put() never fail: if the file cannot be read or written, nothing
 * is found or kept, and the log says so once. Thread-safe.
 */
#ifndef CTW_WORKER_STORE_H
#define CTW_WORKER_STORE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

struct ctw_store;

enum { CTW_STORE_MIN_BYTES = 1 << 20 };

/* Makes the folder unless it is there. */
enum ctw_status ctw_store_make_folder(const char *dir, struct ctw_err *err) CTW_MUST_CHECK;
/*
 * Opens the store in the folder `dir`, or makes it there. `limit`: bytes of records; if a new
 * record exceeds them, the oldest records go. CTW_EUNSUP: a newer version wrote it.
 */
enum ctw_status ctw_store_open(struct ctw_store **out, const char *dir, uint64_t limit,
                               struct ctw_err *err) CTW_MUST_CHECK;
/* As above, without a limit; CTW_ENOTFOUND: there is no store in `dir`. */
enum ctw_status ctw_store_open_existing(struct ctw_store **out, const char *dir,
                                        struct ctw_err *err) CTW_MUST_CHECK;
void ctw_store_close(struct ctw_store *s); /* NULL is fine */

/* ---- records ---- */

/* A model that scores come from. Strings are not copied; "": there is no such model. */
struct ctw_store_model {
    const char *identity, *numerics;
    const char *outline; /* of the identity: equal identities have equal outlines */
};

/* What scores come from: a model, and the reference that it is compared with. */
struct ctw_store_source {
    struct ctw_store_model model, reference;
};

/* A sequence; with its source, it is a record's key. */
struct ctw_store_key {
    unsigned char bytes[32];
};

enum { CTW_STORE_MAX_COLUMNS = 10 };

struct ctw_store_record {
    struct ctw_store_key key;
    int64_t n; /* targets */
    struct {
        void *data; /* find: filled, put: read */
        size_t bytes;
    } columns[CTW_STORE_MAX_COLUMNS];
    int n_columns;
    bool found;
};

void ctw_store_add_column(struct ctw_store_record *r, void *data, size_t bytes);
/* The key of tokens[0 .. n_tok-1] whose targets begin at `first`. n_layers: after so many layers
 * two models are compared; 0: not asked. */
struct ctw_store_key ctw_store_key_of(const int32_t *tokens, int64_t n_tok, int64_t first,
                                      int64_t n_layers);

/* False: the store has nothing of a source with these outlines and numerics ids. */
bool ctw_store_may_have(struct ctw_store *s, const struct ctw_store_source *source);
/* Fills the records that are stored and sets their `found`; returns their number. */
int64_t ctw_store_find(struct ctw_store *s, const struct ctw_store_source *source,
                       struct ctw_store_record *records, int64_t n);
/*
 * Keeps the records, in one transaction: once this returns true, they survive the end of the
 * process. False: they are not kept.
 */
bool ctw_store_put(struct ctw_store *s, const struct ctw_store_source *source,
                   const struct ctw_store_record *records, int64_t n);

/* ---- for people ---- */

struct ctw_store_stats {
    uint64_t entries, bytes, limit; /* of the file; bytes are those in use */
    /* of this process: sequences found, kept, and not kept because of an error */
    uint64_t hits, kept, lost;
};

const char *ctw_store_dir(const struct ctw_store *s);
void ctw_store_get_stats(struct ctw_store *s, struct ctw_store_stats *out); /* does not wait */

struct ctw_store_listed {
    /* valid during the call; "": no reference */
    const char *identity, *numerics, *ref_identity, *ref_numerics;
    uint64_t entries, targets, bytes;
    int64_t changed_s; /* last addition, seconds since 1970 */
};

/* Calls fn for every source, the one that was added to last first. */
enum ctw_status ctw_store_list(struct ctw_store *s,
                               void (*fn)(void *arg, const struct ctw_store_listed *source),
                               void *arg, struct ctw_err *err) CTW_MUST_CHECK;

/*
 * Reads every byte. *n_good and *n_bad: records with and without a right digest. CTW_EFORMAT: the
 * database itself is damaged; the message says where.
 */
enum ctw_status ctw_store_verify(struct ctw_store *s, uint64_t *n_good, uint64_t *n_bad,
                                 struct ctw_err *err) CTW_MUST_CHECK;

/*
 * Removes all records; *n is their number. Workers may use the store meanwhile. A damaged file is
 * removed as a whole (*n is then 0), and so is any file if the disk is full; CTW_EBUSY: a process
 * has it open.
 */
enum ctw_status ctw_store_clear(const char *dir, uint64_t *n, struct ctw_err *err) CTW_MUST_CHECK;

#endif
