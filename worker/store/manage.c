/* Lists, verifies and empties a store, for the command `store`. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "worker/store/database.h"

/* What was read while others changed the files is not the store's. */
static enum ctw_status check_unchanged(struct ctw_store *s, struct ctw_err *err)
{
    const char *end, *how = ctw_store_files_changed(s->files, s->db, s->path, &end);
    return how == NULL ? CTW_OK
                       : ctw_fail(err, CTW_EIO, "%s%s was %s while it was read: try again", s->path,
                                  end, how);
}

enum ctw_status ctw_store_list(struct ctw_store *s,
                               void (*fn)(void *arg, const struct ctw_store_listed *source),
                               void *arg, struct ctw_err *err)
{
    static const char text[] =
        "SELECT identity, numerics, ref_identity, ref_numerics, changed_s, count(*), "
        "sum(targets), sum(length(value) + 32) FROM results JOIN sources ON sources.id = "
        "results.source "
        "GROUP BY results.source ORDER BY changed_s DESC, sources.id";
    sqlite3_stmt *q = NULL;
    pthread_mutex_lock(&s->lock);
    int rc = sqlite3_prepare_v2(s->db, text, -1, &q, NULL);
    while (rc == SQLITE_OK && (rc = sqlite3_step(q)) == SQLITE_ROW) {
        fn(arg, &(struct ctw_store_listed){
                    .identity = (const char *)sqlite3_column_text(q, 0),
                    .numerics = (const char *)sqlite3_column_text(q, 1),
                    .ref_identity = (const char *)sqlite3_column_text(q, 2),
                    .ref_numerics = (const char *)sqlite3_column_text(q, 3),
                    .changed_s = sqlite3_column_int64(q, 4),
                    .entries = (uint64_t)sqlite3_column_int64(q, 5),
                    .targets = (uint64_t)sqlite3_column_int64(q, 6),
                    .bytes = (uint64_t)sqlite3_column_int64(q, 7),
                });
        rc = SQLITE_OK;
    }
    sqlite3_finalize(q);
    enum ctw_status st = check_unchanged(s, err);
    if (st == CTW_OK && rc != SQLITE_OK && rc != SQLITE_DONE)
        st = ctw_store_fail(s, rc, "cannot list it", err);
    pthread_mutex_unlock(&s->lock);
    return st;
}

/* ---- verify ---- */

/* Every page, index and cell, as SQLite checks them. */
static enum ctw_status check_structure(struct ctw_store *s, struct ctw_err *err)
{
    sqlite3_stmt *q = NULL;
    enum ctw_status st = CTW_OK;
    int rc = sqlite3_prepare_v2(s->db, "PRAGMA integrity_check(1)", -1, &q, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_step(q);
    const char *said = rc == SQLITE_ROW ? (const char *)sqlite3_column_text(q, 0) : NULL;
    if (rc != SQLITE_ROW)
        st = ctw_store_fail(s, rc, "cannot check it", err);
    else if (said == NULL || strcmp(said, "ok") != 0)
        st = ctw_fail(err, CTW_EFORMAT,
                      "%s: the database is damaged: %.300s; `ctworker store clear %s` empties the "
                      "store",
                      s->path, said != NULL ? said : "no answer", s->dir);
    sqlite3_finalize(q);
    return st;
}

static enum ctw_status check_records(struct ctw_store *s, uint64_t *n_good, uint64_t *n_bad,
                                     struct ctw_err *err)
{
    sqlite3_stmt *q = NULL;
    int rc = sqlite3_prepare_v2(s->db, "SELECT key, value FROM results", -1, &q, NULL);
    while (rc == SQLITE_OK && (rc = sqlite3_step(q)) == SQLITE_ROW) {
        const void *key = sqlite3_column_blob(q, 0);
        bool ok = key != NULL && sqlite3_column_bytes(q, 0) == CTW_STORE_KEY_BYTES &&
                  ctw_store_value_ok(key, sqlite3_column_blob(q, 1), sqlite3_column_bytes(q, 1));
        ++*(ok ? n_good : n_bad);
        rc = SQLITE_OK;
    }
    sqlite3_finalize(q);
    return rc == SQLITE_OK || rc == SQLITE_DONE ? CTW_OK
                                                : ctw_store_fail(s, rc, "cannot read it", err);
}

enum ctw_status ctw_store_verify(struct ctw_store *s, uint64_t *n_good, uint64_t *n_bad,
                                 struct ctw_err *err)
{
    *n_good = 0;
    *n_bad = 0;
    pthread_mutex_lock(&s->lock);
    enum ctw_status st = check_structure(s, err);
    if (st == CTW_OK)
        st = check_records(s, n_good, n_bad, err);
    if (check_unchanged(s, err) != CTW_OK) /* then the damage that was found is none */
        st = err->status;
    pthread_mutex_unlock(&s->lock);
    return st;
}

/* ---- clear ---- */

/*
 * A process that has the database open holds a lock of SQLite's on these bytes (its file format,
 * "The Pending Byte"), and would later remove the journal of a new database in this place.
 */
static enum ctw_status check_unused(const char *path, struct ctw_err *err)
{
    struct flock lock = {
        .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0x40000000, .l_len = 512};
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT ? CTW_OK : ctw_fail(err, CTW_EIO, "%s: %s", path, strerror(errno));
    bool used = fcntl(fd, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
    close(fd);
    return used ? ctw_fail(err, CTW_EBUSY,
                           "%s: process %ld uses the store, so the file cannot be removed: stop "
                           "the process, then clear the store again",
                           path, (long)lock.l_pid)
                : CTW_OK;
}

static enum ctw_status remove_files(const char *dir, struct ctw_err *err)
{
    static const char *const ends[] = {"", "-wal", "-shm"};
    for (size_t i = 0; i < CTW_COUNT(ends); i++) {
        char path[4096];
        int n = snprintf(path, sizeof(path), "%s/results.sqlite%s", dir, ends[i]);
        if (n < 0 || n >= (int)sizeof(path))
            return ctw_fail(err, CTW_EINVAL, "%s: the path is too long", dir);
        if (i == 0 && check_unused(path, err) != CTW_OK)
            return err->status;
        if (unlink(path) != 0 && errno != ENOENT)
            return ctw_fail(err, CTW_EIO, "%s: cannot remove it: %s", path, strerror(errno));
    }
    return CTW_OK;
}

static int delete_all(struct ctw_store *s)
{
    static const char text[] = "BEGIN IMMEDIATE; DELETE FROM results; DELETE FROM sources; COMMIT; "
                               "PRAGMA incremental_vacuum; PRAGMA wal_checkpoint(TRUNCATE)";
    return sqlite3_exec(s->db, text, NULL, NULL, NULL);
}

enum ctw_status ctw_store_clear(const char *dir, uint64_t *n, struct ctw_err *err)
{
    struct ctw_store *s = NULL;
    bool full = false;
    *n = 0;
    enum ctw_status st = ctw_store_open_existing(&s, dir, err);
    if (st == CTW_OK) {
        int rc = delete_all(s);
        *n = s->stats.entries;
        full = rc == SQLITE_FULL; /* even emptying it takes some space */
        st = rc == SQLITE_OK ? CTW_OK : ctw_store_fail(s, rc, "cannot empty it", err);
    }
    ctw_store_close(s);
    if (st != CTW_EFORMAT && !full) /* that is: damaged */
        return st;
    if (!full)
        *n = 0;
    return remove_files(dir, err);
}
