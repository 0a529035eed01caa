/*
 * Files that become shorter while they are mapped. Touching a page that is gone raises SIGBUS,
 * which would end the process without a word. Here the rest of that map becomes zeros instead, and
 * the map is marked: whoever reads through it asks for the mark before handing out what came of it.
 *
 * Process-wide, as signal handlers are. Without ctw_map_guard_install() nothing is guarded.
 */
#ifndef CTW_BASE_MAP_GUARD_H
#define CTW_BASE_MAP_GUARD_H

#include <stdbool.h>
#include <stddef.h>

/* For main() only, once. Any other SIGBUS does what it did before. */
void ctw_map_guard_install(void);

/* Guards a map; returns its place in the table, -1 when that is full. */
int ctw_map_guard_add(const void *map, size_t bytes);
/* When nobody reads through it any more. -1 is fine. */
void ctw_map_guard_remove(int place);
/* Has a part of the map become zeros? false for -1. Any thread. */
bool ctw_map_guard_hit(int place);

#endif
