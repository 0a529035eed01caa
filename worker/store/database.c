/* Opens and closes the store's database: see worker/store/store.h. */
#include "worker/store/database.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

/* A change that an older worker would misread raises the version. */
enum { VERSION = 1, APPLICATION_ID = 0x63747773 /* "ctws" */ };

enum { BUSY_MS = 5000 }; /* how long to wait for another process's transaction */

/* Records are appended, so a lower id is an older record. */
static const char schema[] =
    "CREATE TABLE sources(id INTEGER PRIMARY KEY, identity TEXT NOT NULL, numerics TEXT NOT NULL,"
    " ref_identity TEXT NOT NULL, ref_numerics TEXT NOT NULL, outline TEXT NOT NULL,"
    " ref_outline TEXT NOT NULL, changed_s INTEGER NOT NULL,"
    " UNIQUE(identity, numerics, ref_identity, ref_numerics));"
    "CREATE TABLE results(id INTEGER PRIMARY KEY, source INTEGER NOT NULL,"
    " targets INTEGER NOT NULL, key BLOB NOT NULL UNIQUE, value BLOB NOT NULL);"
    "PRAGMA application_id = 1668577139;"
    "PRAGMA user_version = 1;";
_Static_assert(APPLICATION_ID == 1668577139 && VERSION == 1, "as in the schema");

static const char *const texts[CTW_STORE_N_STATEMENTS] = {
    [CTW_STORE_BEGIN_READ] = "BEGIN",
    [CTW_STORE_BEGIN_WRITE] = "BEGIN IMMEDIATE",
    [CTW_STORE_COMMIT] = "COMMIT",
    [CTW_STORE_ROLLBACK] = "ROLLBACK",
    [CTW_STORE_FIND] = "SELECT value FROM results WHERE key = ?",
    [CTW_STORE_PUT_SOURCE] =
        "INSERT INTO sources(identity, numerics, ref_identity, ref_numerics, outline, ref_outline, "
        "changed_s) VALUES(?, ?, ?, ?, ?, ?, ?) "
        "ON CONFLICT(identity, numerics, ref_identity, ref_numerics) "
        "DO UPDATE SET changed_s = excluded.changed_s",
    /* SQLite before 3.35 has no RETURNING. */
    [CTW_STORE_SOURCE] = "SELECT id FROM sources WHERE identity = ? AND numerics = ? "
                         "AND ref_identity = ? AND ref_numerics = ?",
    [CTW_STORE_OUTLINE] = "SELECT count(*) FROM sources WHERE numerics = ? AND ref_numerics = ? "
                          "AND outline = ? AND ref_outline = ?",
    /* A record of this key whose value differs is damaged: the new one replaces it. */
    [CTW_STORE_PUT] = "INSERT INTO results(source, targets, key, value) VALUES(?, ?, ?, ?) "
                      "ON CONFLICT(key) DO UPDATE SET value = excluded.value "
                      "WHERE value <> excluded.value",
    [CTW_STORE_RANGE] = "SELECT (SELECT id FROM results ORDER BY id LIMIT 1), "
                        "(SELECT id FROM results ORDER BY id DESC LIMIT 1)",
    [CTW_STORE_EVICT] = "DELETE FROM results WHERE id < ?",
    [CTW_STORE_DROP_SOURCES] =
        "DELETE FROM sources WHERE id NOT IN (SELECT DISTINCT source FROM results)",
    [CTW_STORE_PAGES] = "PRAGMA page_count",
    [CTW_STORE_FREE_PAGES] = "PRAGMA freelist_count",
};

/* ---- errors ---- */

enum ctw_status ctw_store_fail(const struct ctw_store *s, int rc, const char *what,
                               struct ctw_err *err)
{
    int system = s->db != NULL ? sqlite3_system_errno(s->db) : 0;
    switch (rc & 0xff) {
    case SQLITE_NOTADB:
    case SQLITE_CORRUPT:
    case SQLITE_ERROR: /* a table is missing, or not as its version says */
        return ctw_fail(err, CTW_EFORMAT,
                        "%s: %s: the file is damaged (%s); `ctworker store clear %s` empties the "
                        "store",
                        s->path, what, sqlite3_errstr(rc), s->dir);
    case SQLITE_FULL:
        return ctw_fail(err, CTW_EIO, "%s: %s: no space left on the disk", s->path, what);
    case SQLITE_BUSY:
        return ctw_fail(err, CTW_EBUSY, "%s: %s: another process has held the file for %d s",
                        s->path, what, BUSY_MS / 1000);
    case SQLITE_NOMEM:
        return ctw_fail(err, CTW_ENOMEM, "%s: %s: out of memory", s->path, what);
    default:
        if (rc == SQLITE_IOERR_WRITE || rc == SQLITE_IOERR_SHMSIZE)
            return ctw_fail(err, CTW_EIO,
                            "%s: %s: the write failed%s%s (is the disk full, or a limit on the "
                            "size of files reached?)",
                            s->path, what, system != 0 ? ": " : "",
                            system != 0 ? strerror(system) : "");
        return ctw_fail(err, CTW_EIO, "%s: %s: %s%s%s", s->path, what, sqlite3_errstr(rc),
                        system != 0 ? ": " : "", system != 0 ? strerror(system) : "");
    }
}

/* ---- statements ---- */

int ctw_store_run(struct ctw_store *s, enum ctw_store_statement which, int64_t out[2])
{
    sqlite3_stmt *q = s->statements[which];
    int rc = sqlite3_step(q);
    if (rc == SQLITE_ROW && out != NULL) {
        for (int i = 0; i < 2 && i < sqlite3_column_count(q); i++)
            out[i] = sqlite3_column_int64(q, i);
    }
    int end = sqlite3_reset(q);
    return rc == SQLITE_ROW || rc == SQLITE_DONE ? SQLITE_OK : end;
}

static int prepare(struct ctw_store *s)
{
    int rc = SQLITE_OK;
    for (int i = 0; rc == SQLITE_OK && i < CTW_STORE_N_STATEMENTS; i++)
        rc = sqlite3_prepare_v3(s->db, texts[i], -1, SQLITE_PREPARE_PERSISTENT, &s->statements[i],
                                NULL);
    return rc;
}

static int pragma_int(struct ctw_store *s, const char *text, int64_t *out)
{
    sqlite3_stmt *q = NULL;
    int rc = sqlite3_prepare_v2(s->db, text, -1, &q, NULL);
    if (rc == SQLITE_OK && (rc = sqlite3_step(q)) == SQLITE_ROW) {
        *out = sqlite3_column_int64(q, 0);
        rc = SQLITE_OK;
    }
    sqlite3_finalize(q);
    return rc;
}

unsigned char *ctw_store_buffer(struct ctw_store *s, size_t bytes)
{
    if (bytes > s->buffer_bytes) {
        unsigned char *larger = ctw_realloc(s->buffer, bytes, 1);
        if (larger == NULL)
            return NULL;
        s->buffer = larger;
        s->buffer_bytes = bytes;
    }
    return s->buffer;
}

/* ---- opening ---- */

/* *is_new: the file holds nothing yet. Reads only, so that no foreign file is changed. */
static enum ctw_status check_version(struct ctw_store *s, bool *is_new, struct ctw_err *err)
{
    int64_t application = 0, version = 0, tables = 0;
    int rc = sqlite3_exec(s->db, "BEGIN", NULL, NULL, NULL); /* one state, not three */
    if (rc == SQLITE_OK)
        rc = pragma_int(s, "SELECT count(*) FROM sqlite_schema", &tables);
    if (rc == SQLITE_OK)
        rc = pragma_int(s, "PRAGMA application_id", &application);
    if (rc == SQLITE_OK)
        rc = pragma_int(s, "PRAGMA user_version", &version);
    (void)sqlite3_exec(s->db, "COMMIT", NULL, NULL, NULL);
    if (rc != SQLITE_OK)
        return ctw_store_fail(s, rc, "cannot read it", err);
    *is_new = tables == 0 && application == 0 && version == 0;
    if (!*is_new && application != APPLICATION_ID)
        return ctw_fail(err, CTW_EINVAL,
                        "%s: another program's database, not a result store: give another folder",
                        s->path);
    if (version > VERSION)
        return ctw_fail(err, CTW_EUNSUP,
                        "%s: a newer ctworker wrote it (version %" PRId64 " of the store; this "
                        "ctworker reads up to %d): use the newer ctworker, or another folder",
                        s->path, version, VERSION);
    return CTW_OK;
}

/* Another process may be doing the same: then its tables are there when the lock is ours. */
static int create(struct ctw_store *s)
{
    int64_t tables = 0;
    int rc = sqlite3_exec(s->db, "BEGIN IMMEDIATE", NULL, NULL, NULL);
    if (rc != SQLITE_OK)
        return rc;
    rc = pragma_int(s, "SELECT count(*) FROM sqlite_schema", &tables);
    if (rc == SQLITE_OK && tables == 0)
        rc = sqlite3_exec(s->db, schema, NULL, NULL, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_exec(s->db, "COMMIT", NULL, NULL, NULL);
    if (rc != SQLITE_OK)
        (void)sqlite3_exec(s->db, "ROLLBACK", NULL, NULL, NULL);
    return rc;
}

/* SQLite waits for no lock here, so this does. */
static int use_wal(struct ctw_store *s)
{
    const struct timespec pause = {.tv_nsec = 10000000};
    int64_t end_ms = ctw_now_ms() + BUSY_MS;
    for (;;) {
        int rc = sqlite3_exec(s->db, "PRAGMA journal_mode = WAL", NULL, NULL, NULL);
        if ((rc & 0xff) != SQLITE_BUSY || ctw_now_ms() > end_ms)
            return rc;
        nanosleep(&pause, NULL);
    }
}

static enum ctw_status open_database(struct ctw_store *s, bool may_create, struct ctw_err *err)
{
    bool is_new;
    int64_t page_bytes = 0;
    int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX | (may_create ? SQLITE_OPEN_CREATE : 0);
    int rc = sqlite3_open_v2(s->path, &s->db, flags, NULL);
    if (rc != SQLITE_OK)
        return ctw_store_fail(s, sqlite3_extended_errcode(s->db), "cannot open it", err);
    sqlite3_extended_result_codes(s->db, 1); /* SQLite before 3.37 has no flag for this */
    s->files = ctw_store_files_open(s->db);
    if (s->files == NULL)
        return ctw_fail(err, CTW_ENOMEM, "%s: out of memory for the store", s->dir);
    sqlite3_busy_timeout(s->db, BUSY_MS);
    enum ctw_status st = check_version(s, &is_new, err);
    if (st != CTW_OK)
        return st;
    /* Counts only in a file without tables; in any other it would be written again. */
    if (is_new)
        rc = sqlite3_exec(s->db, "PRAGMA auto_vacuum = INCREMENTAL", NULL, NULL, NULL);
    if (rc == SQLITE_OK)
        rc = use_wal(s);
    if (rc == SQLITE_OK)
        rc = sqlite3_exec(
            s->db,
            "PRAGMA mmap_size = 0; PRAGMA synchronous = NORMAL; PRAGMA cache_size = -16384; "
            "PRAGMA journal_size_limit = 16777216",
            NULL, NULL, NULL);
    if (rc == SQLITE_OK && is_new)
        rc = create(s);
    if (rc == SQLITE_OK)
        rc = prepare(s);
    if (rc == SQLITE_OK)
        rc = pragma_int(s, "PRAGMA page_size", &page_bytes);
    s->page_bytes = (uint64_t)page_bytes;
    ctw_store_files_note(s->files, s->path);
    return rc == SQLITE_OK ? CTW_OK : ctw_store_fail(s, rc, "cannot open it", err);
}

/* A lower limit than before takes effect at once, and the file becomes smaller. */
static enum ctw_status apply_limit(struct ctw_store *s, struct ctw_err *err)
{
    enum { STEP = 4096 };
    int rc = ctw_store_count(s);
    if (rc == SQLITE_OK && s->limit != 0 && s->stats.bytes > s->limit) {
        rc = ctw_store_run(s, CTW_STORE_BEGIN_WRITE, NULL);
        if (rc == SQLITE_OK)
            rc = ctw_store_evict(s, STEP);
        if (rc == SQLITE_OK)
            rc = ctw_store_run(s, CTW_STORE_COMMIT, NULL);
        if (rc == SQLITE_OK)
            rc = sqlite3_exec(s->db, "PRAGMA incremental_vacuum", NULL, NULL, NULL);
        if (rc == SQLITE_OK)
            rc = ctw_store_count(s);
    }
    return rc == SQLITE_OK ? CTW_OK : ctw_store_fail(s, rc, "cannot apply the limit", err);
}

enum ctw_status ctw_store_make_folder(const char *dir, struct ctw_err *err)
{
    struct stat st;
    if (mkdir(dir, 0700) == 0)
        return CTW_OK;
    int why = errno;
    if (why == EEXIST && stat(dir, &st) == 0 && S_ISDIR(st.st_mode))
        return CTW_OK;
    return ctw_fail(err, why == ENOENT ? CTW_ENOTFOUND : CTW_EIO, "%s: cannot make the folder: %s",
                    dir, why == EEXIST ? "a file has its name" : strerror(why));
}

static enum ctw_status open_at(struct ctw_store **out, const char *dir, uint64_t limit,
                               bool may_create, struct ctw_err *err)
{
    enum ctw_status st = CTW_OK;
    struct ctw_store *s = ctw_calloc(1, sizeof(*s));
    if (s == NULL)
        return ctw_fail(err, CTW_ENOMEM, "%s: out of memory for the store", dir);
    size_t bytes = strlen(dir) + sizeof("/results.sqlite");
    s->limit = limit;
    s->stats.limit = limit;
    pthread_mutex_init(&s->lock, NULL);
    pthread_mutex_init(&s->stats_lock, NULL);
    s->dir = ctw_strdup(dir);
    s->path = ctw_calloc(bytes, 1);
    if (s->dir == NULL || s->path == NULL) {
        st = ctw_fail(err, CTW_ENOMEM, "%s: out of memory for the store", dir);
        goto fail;
    }
    (void)snprintf(s->path, bytes, "%s/results.sqlite", dir);
    if (!may_create && access(s->path, F_OK) != 0)
        st = ctw_fail(err, CTW_ENOTFOUND, "%s: no result store (results.sqlite) in this folder",
                      dir);
    if (st == CTW_OK)
        st = open_database(s, may_create, err);
    if (st == CTW_OK)
        st = apply_limit(s, err);
    if (st != CTW_OK)
        goto fail;
    *out = s;
    return CTW_OK;
fail:
    ctw_store_close(s);
    return st;
}

enum ctw_status ctw_store_open(struct ctw_store **out, const char *dir, uint64_t limit,
                               struct ctw_err *err)
{
    return open_at(out, dir, limit, true, err);
}

enum ctw_status ctw_store_open_existing(struct ctw_store **out, const char *dir,
                                        struct ctw_err *err)
{
    return open_at(out, dir, 0, false, err);
}

static void close_database(struct ctw_store *s)
{
    for (int i = 0; i < CTW_STORE_N_STATEMENTS; i++) {
        sqlite3_finalize(s->statements[i]);
        s->statements[i] = NULL;
    }
    sqlite3_close(s->db);
    s->db = NULL;
    ctw_store_files_close(s->files);
    s->files = NULL;
}

/* Opens the files that are there now. is_log: the log's name is another file's, or nobody's.
 * Another state of them must not be written into them. */
static enum ctw_status reopen(struct ctw_store *s, bool is_log, struct ctw_err *err)
{
    const char *end, *how;
    if (s->db != NULL && is_log) /* the open one is intact, and nobody else will find it */
        (void)sqlite3_wal_checkpoint_v2(s->db, NULL, SQLITE_CHECKPOINT_PASSIVE, NULL, NULL);
    if (s->db != NULL)
        (void)sqlite3_db_config(s->db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
    close_database(s);
    enum ctw_status st = ctw_store_make_folder(s->dir, err);
    if (st == CTW_OK)
        st = open_database(s, true, err);
    if (st == CTW_OK && (how = ctw_store_files_changed(s->files, s->db, s->path, &end)) != NULL)
        st = ctw_fail(err, CTW_EFORMAT,
                      "%s%s: %s while it is opened; stop all workers that use the store, then "
                      "`ctworker store clear %s` empties it",
                      s->path, end, how, s->dir);
    if (st == CTW_OK)
        st = apply_limit(s, err);
    if (st != CTW_OK)
        close_database(s);
    return st;
}

bool ctw_store_ready(struct ctw_store *s)
{
    struct ctw_err err;
    const char *end = "", *how = NULL;
    if (s->db != NULL) {
        how = ctw_store_files_changed(s->files, s->db, s->path, &end);
        if (how == NULL)
            return true;
        ctw_warn(
            "%s%s was %s while in use; results that were kept may be gone. The store is opened "
            "anew (stop the worker before you change its files, or use `ctworker store clear`)",
            s->path, end, how);
    } else if (ctw_now_ms() - s->write_failed_ms < CTW_STORE_RETRY_MS) {
        return false;
    }
    bool is_log = how != NULL && strcmp(end, "-wal") == 0 && strcmp(how, "truncated") != 0;
    if (reopen(s, is_log, &err) == CTW_OK) {
        s->read_failed = false;
        return true;
    }
    if (s->write_failed_ms == 0)
        ctw_warn("%s. Scoring goes on without keeping results", err.msg);
    s->write_failed_ms = ctw_now_ms();
    return false;
}

void ctw_store_close(struct ctw_store *s)
{
    const char *end;
    if (s == NULL)
        return;
    if (s->files != NULL && ctw_store_files_changed(s->files, s->db, s->path, &end) != NULL)
        (void)sqlite3_db_config(s->db, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
    close_database(s);
    pthread_mutex_destroy(&s->lock);
    pthread_mutex_destroy(&s->stats_lock);
    ctw_free(s->buffer);
    ctw_free(s->path);
    ctw_free(s->dir);
    ctw_free(s);
}

/* ---- counts ---- */

const char *ctw_store_dir(const struct ctw_store *s)
{
    return s->dir;
}

void ctw_store_get_stats(struct ctw_store *s, struct ctw_store_stats *out)
{
    if (pthread_mutex_trylock(&s->lock) == 0) { /* other processes add records, too */
        if (s->db != NULL)
            (void)ctw_store_count(s);
        pthread_mutex_unlock(&s->lock);
    }
    pthread_mutex_lock(&s->stats_lock);
    *out = s->stats;
    pthread_mutex_unlock(&s->stats_lock);
}

static int bytes_in_use(struct ctw_store *s, uint64_t *out)
{
    int64_t pages[2] = {0}, unused[2] = {0};
    int rc = ctw_store_run(s, CTW_STORE_PAGES, pages);
    if (rc == SQLITE_OK)
        rc = ctw_store_run(s, CTW_STORE_FREE_PAGES, unused);
    *out = (uint64_t)(pages[0] - unused[0]) * s->page_bytes;
    return rc;
}

int ctw_store_count(struct ctw_store *s)
{
    uint64_t bytes = 0;
    int64_t range[2] = {0}; /* only the oldest records go, so ids have no gaps */
    int rc = bytes_in_use(s, &bytes);
    if (rc == SQLITE_OK)
        rc = ctw_store_run(s, CTW_STORE_RANGE, range);
    if (rc != SQLITE_OK)
        return rc;
    pthread_mutex_lock(&s->stats_lock);
    s->stats.bytes = bytes;
    s->stats.entries = range[1] == 0 ? 0 : (uint64_t)(range[1] - range[0] + 1);
    pthread_mutex_unlock(&s->stats_lock);
    return SQLITE_OK;
}

int ctw_store_evict(struct ctw_store *s, int64_t step)
{
    uint64_t bytes = 0;
    int64_t range[2] = {0};
    bool any = false;
    int rc = s->limit == 0 ? SQLITE_OK : bytes_in_use(s, &bytes);
    while (rc == SQLITE_OK && bytes > s->limit) {
        range[1] = 0;
        rc = ctw_store_run(s, CTW_STORE_RANGE, range);
        if (rc != SQLITE_OK || range[1] == 0)
            break;
        any = true;
        sqlite3_bind_int64(s->statements[CTW_STORE_EVICT], 1, range[0] + step);
        rc = ctw_store_run(s, CTW_STORE_EVICT, NULL);
        if (rc == SQLITE_OK)
            rc = bytes_in_use(s, &bytes);
    }
    return rc == SQLITE_OK && any ? ctw_store_run(s, CTW_STORE_DROP_SOURCES, NULL) : rc;
}
