/* Between the files of worker/store/: the open database, and how SQLite's errors become ours. */
#ifndef CTW_WORKER_STORE_DATABASE_H
#define CTW_WORKER_STORE_DATABASE_H

#include <pthread.h>
#include <sqlite3.h>

#include "worker/store/files.h"
#include "worker/store/store.h"

enum ctw_store_statement {
    CTW_STORE_BEGIN_READ,
    CTW_STORE_BEGIN_WRITE,
    CTW_STORE_COMMIT,
    CTW_STORE_ROLLBACK,
    CTW_STORE_FIND,
    CTW_STORE_PUT_SOURCE,
    CTW_STORE_SOURCE,
    CTW_STORE_OUTLINE,
    CTW_STORE_PUT,
    CTW_STORE_RANGE,
    CTW_STORE_EVICT,
    CTW_STORE_DROP_SOURCES,
    CTW_STORE_PAGES,
    CTW_STORE_FREE_PAGES,
    CTW_STORE_N_STATEMENTS
};

enum { CTW_STORE_RETRY_MS = 10000 }; /* between attempts to write while writing fails */

struct ctw_store {
    char *dir, *path;
    uint64_t limit; /* 0: none */
    uint64_t page_bytes;
    pthread_mutex_t lock; /* of everything below, except `stats` */
    sqlite3 *db;          /* NULL: its files are gone, and could not be opened anew so far */
    struct ctw_store_files *files;
    sqlite3_stmt *statements[CTW_STORE_N_STATEMENTS];
    unsigned char *buffer; /* a value that is written */
    size_t buffer_bytes;
    bool read_failed;        /* the log has said so */
    int64_t write_failed_ms; /* the last attempt; 0: writing works */
    uint64_t lost;           /* since writing fails */
    pthread_mutex_t stats_lock;
    struct ctw_store_stats stats;
};

/* "STORE: what: why", with the status that fits SQLite's result code. */
enum ctw_status ctw_store_fail(const struct ctw_store *s, int rc, const char *what,
                               struct ctw_err *err);
/* Are the files still those that were opened? If not, says so and opens the store anew: what others
 * removed is made again. False: that failed, or did so less than CTW_STORE_RETRY_MS ago. */
bool ctw_store_ready(struct ctw_store *s);
/* Runs a statement that returns at most one row of up to two integers; out may be NULL. */
int ctw_store_run(struct ctw_store *s, enum ctw_store_statement which, int64_t out[2]);
/* The buffer, with at least so many bytes; NULL: no memory. */
unsigned char *ctw_store_buffer(struct ctw_store *s, size_t bytes);
/* Counts entries and bytes anew. In a transaction, or not. */
int ctw_store_count(struct ctw_store *s);
/* Removes the oldest records until the rest fits the limit, `step` or more at a time. */
int ctw_store_evict(struct ctw_store *s, int64_t step);

/* ---- the value of a record: its columns, and the digest ---- */

enum { CTW_STORE_KEY_BYTES = 32, CTW_STORE_DIGEST_BYTES = 16 };

/* Is it the value that was written with the key? */
bool ctw_store_value_ok(const void *key, const void *value, int bytes);

#endif
