/*
 * Guards against files that are truncated while they are mapped. Touching a missing page raises
 * SIGBUS, which would end the process without a message. With the guard, the rest of the map reads
 * as zeros and the map is marked. A reader must check the mark before it hands out results that it
 * computed from the map.
 *
 * Process-wide, as signal handlers are. Before ctw_map_guard_install() no map is guarded.
 */
#ifndef CTW_BASE_MAP_GUARD_H
#define CTW_BASE_MAP_GUARD_H

#include <stdbool.h>
#include <stddef.h>

/* Call once, from main(). Any other SIGBUS goes to the previous handler. */
void ctw_map_guard_install(void);

/* Guards a map; returns its slot in the table, or -1 if the table is full. The zeros of a writable
 * map can be written, too, and are private to the process. */
int ctw_map_guard_add(const void *map, size_t bytes, bool writable);
/* Call after the last read of the map. -1 is a no-op. */
void ctw_map_guard_remove(int place);
/* Has a part of the map been replaced by zeros? False for -1. Thread-safe. */
bool ctw_map_guard_hit(int place);

#endif
