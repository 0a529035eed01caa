/*
 * The files of an open database: results.sqlite, and its -wal and -shm. While they are in use,
 * others may remove, replace or truncate them, which SQLite does not notice. SQLite maps -shm: with
 * a guard (base/map_guard.h), touching what is missing does not end the process.
 *
 * A process has one handle for a file: a second one would share the map that the first one's guard
 * has replaced.
 */
#ifndef CTW_WORKER_STORE_FILES_H
#define CTW_WORKER_STORE_FILES_H

#include <sqlite3.h>
#include <stdbool.h>

struct ctw_store_files;

/* Before the first statement. NULL: out of memory. */
struct ctw_store_files *ctw_store_files_open(sqlite3 *db);
/* After the database is closed. NULL is fine. */
void ctw_store_files_close(struct ctw_store_files *f);
/* Notes which files are in use, once all of them are open. `path`: the database's. */
void ctw_store_files_note(struct ctw_store_files *f, const char *path);
/* What happened to the file `path` with the end *end: "removed", say; NULL: nothing. */
const char *ctw_store_files_changed(struct ctw_store_files *f, sqlite3 *db, const char *path,
                                    const char **end);
/* Has a part of -shm been replaced by zeros? Nothing may then be committed: other processes do not
 * see what is written there. */
bool ctw_store_files_hit(const struct ctw_store_files *f);

#endif
