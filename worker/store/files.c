/* Are the store's files still those that were opened? Others remove, replace and truncate files. */
#include "worker/store/files.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/map_guard.h"
#include "base/mem.h"
#include "worker/store/database.h"

/* SQLite's file formats: the start of a database, and of a write-ahead log. */
enum { WAL_HEADER_BYTES = 32, SALT_AT = 16, SALT_BYTES = 8, MAX_REGIONS = 1024 };
static const char db_magic[16] = "SQLite format 3";
static const unsigned char wal_magic[] = {0x37, 0x7f, 0x06}; /* then 0x82 or 0x83 */

static const char *const ends[] = {"", "-wal", "-shm"};
enum { DB, WAL, SHM, N_FILES };
_Static_assert(CTW_COUNT(ends) == N_FILES, "an end for each file");

struct ctw_store_files {
    sqlite3_io_methods methods; /* first: a file's methods are cast back to this struct */
    const sqlite3_io_methods *original;
    sqlite3_file *db;
    struct {
        dev_t device;
        ino_t inode; /* 0: the file was not there */
    } opened[N_FILES];
    int64_t wal_bytes; /* when it was looked at last, */
    unsigned char wal_salt[SALT_BYTES];
    int place[MAX_REGIONS]; /* guards of the regions of -shm that are mapped */
    int n_regions;
    size_t region_bytes;
};

/* ---- the map of -shm ---------------------------------------------------------------------- */

static int map_region(sqlite3_file *file, int i, int bytes, int extend, void volatile **map)
{
    struct ctw_store_files *f = (struct ctw_store_files *)(uintptr_t)file->pMethods;
    int rc = f->original->xShmMap(file, i, bytes, extend, map);
    if (rc == SQLITE_OK && *map != NULL && i == f->n_regions && i < MAX_REGIONS) {
        f->place[f->n_regions++] =
            ctw_map_guard_add((const void *)(uintptr_t)*map, (size_t)bytes, true);
        f->region_bytes = (size_t)bytes;
    }
    return rc;
}

static int unmap_regions(sqlite3_file *file, int delete_flag)
{
    struct ctw_store_files *f = (struct ctw_store_files *)(uintptr_t)file->pMethods;
    while (f->n_regions > 0)
        ctw_map_guard_remove(f->place[--f->n_regions]);
    return f->original->xShmUnmap(file, delete_flag);
}

struct ctw_store_files *ctw_store_files_open(sqlite3 *db)
{
    struct ctw_store_files *f = ctw_calloc(1, sizeof(*f));
    if (f == NULL || sqlite3_file_control(db, "main", SQLITE_FCNTL_FILE_POINTER, &f->db) != 0) {
        ctw_free(f);
        return NULL;
    }
    f->original = f->db->pMethods;
    f->methods = *f->original;
    f->methods.xShmMap = map_region;
    f->methods.xShmUnmap = unmap_regions;
    f->db->pMethods = &f->methods;
    return f;
}

void ctw_store_files_close(struct ctw_store_files *f)
{
    ctw_free(f);
}

/* ---- what has become of them -------------------------------------------------------------- */

static bool look(const char *path, int i, struct stat *st)
{
    char name[4096];
    int n = snprintf(name, sizeof(name), "%s%s", path, ends[i]);
    return n > 0 && n < (int)sizeof(name) && stat(name, st) == 0;
}

void ctw_store_files_note(struct ctw_store_files *f, const char *path)
{
    struct stat st;
    for (int i = 0; i < N_FILES; i++) {
        bool there = look(path, i, &st);
        f->opened[i].device = there ? st.st_dev : 0;
        f->opened[i].inode = there ? st.st_ino : 0;
    }
}

static bool starts_with(sqlite3_file *file, void *start, int bytes)
{
    return file->pMethods->xRead(file, start, bytes, 0) == SQLITE_OK;
}

/* Has the log lost its start, or become shorter? It is written from its start again with another
 * salt, and may be emptied: neither is a loss. */
static bool log_is_whole(struct ctw_store_files *f, sqlite3 *db)
{
    sqlite3_file *wal = NULL;
    sqlite3_int64 bytes = 0;
    unsigned char header[WAL_HEADER_BYTES] = {0};
    if (sqlite3_file_control(db, "main", SQLITE_FCNTL_JOURNAL_POINTER, &wal) != SQLITE_OK ||
        wal == NULL || wal->pMethods == NULL || wal->pMethods->xFileSize(wal, &bytes) != SQLITE_OK)
        return true; /* it is not open */
    if (bytes > 0 && (!starts_with(wal, header, sizeof(header)) ||
                      memcmp(header, wal_magic, sizeof(wal_magic)) != 0))
        return false;
    bool same = memcmp(header + SALT_AT, f->wal_salt, SALT_BYTES) == 0;
    if (same && bytes < f->wal_bytes)
        return false;
    memcpy(f->wal_salt, header + SALT_AT, SALT_BYTES);
    f->wal_bytes = bytes;
    return true;
}

bool ctw_store_files_hit(const struct ctw_store_files *f)
{
    for (int i = 0; i < f->n_regions; i++)
        if (ctw_map_guard_hit(f->place[i]))
            return true;
    return false;
}

const char *ctw_store_files_changed(struct ctw_store_files *f, sqlite3 *db, const char *path,
                                    const char **end)
{
    struct stat st;
    char start[sizeof(db_magic)];
    for (int i = 0; i < N_FILES; i++) {
        *end = ends[i];
        if (f->opened[i].inode == 0)
            continue;
        if (!look(path, i, &st))
            return "removed";
        if (st.st_ino != f->opened[i].inode || st.st_dev != f->opened[i].device)
            return "replaced";
        if (i == SHM && (uint64_t)st.st_size < (uint64_t)f->n_regions * f->region_bytes)
            return "truncated";
    }
    if (ctw_store_files_hit(f))
        return "truncated";
    *end = ends[WAL];
    if (!log_is_whole(f, db))
        return "truncated";
    *end = ends[DB];
    if (!starts_with(f->db, start, sizeof(start)) || memcmp(start, db_magic, sizeof(start)) != 0)
        return "overwritten";
    return NULL;
}
