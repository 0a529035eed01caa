/*
 * Reads units into memory ahead of their use, with threads of its own. Units that stay are read
 * once; the others are read in every pass, into a ring of bytes. Resident weights are a stream
 * whose units all stay. Where the bytes come from is slice_source.h's matter:
 *
 *     files -------- stages ------.
 *     host memory ----------------+--> memory of the device: | units that stay | ring |
 *     other devices' memory ------'                                  |
 *     files --> memory of the host (CPU)                 acquire, release of units, in a pass's
 * order
 *
 * Passes use units in their order, and the next pass begins again with the first. If a pass does
 * not (the one before was cancelled), what was read ahead is dropped.
 *
 * The bytes of a released unit are not reused before the fence that its release recorded. Every
 * block is digested as it is read and compared with what the identity has, so a pass never computes
 * with other bytes than the identity describes.
 */
#ifndef CTW_WORKER_STREAM_H
#define CTW_WORKER_STREAM_H

#include "worker/weights/arena.h"
#include "worker/weights/placement.h"
#include "worker/weights/shards.h"

struct ctw_stream;

/*
 * Starts reading. `shards` (NULL: none): where the units that do not stay come from, instead of the
 * files. All arguments must outlive the stream.
 */
enum ctw_status ctw_stream_open(struct ctw_stream **out, const struct ctw_model *model,
                                struct ctw_backend *be, const struct ctw_placement *place,
                                struct ctw_shards *shards, struct ctw_err *err) CTW_MUST_CHECK;
/* Where all goes: place->resident bytes of the backend, which hold the units that stay, one after
 * another, then place->ring bytes. Stages are filled before. */
void ctw_stream_set_memory(struct ctw_stream *s, void *memory);
/* Waits for reads and uploads in flight. NULL is fine. */
void ctw_stream_close(struct ctw_stream *s);

/* Waits until the unit's uploads have begun, or its bytes are in host memory, at *block. If reading
 * fails, returns that failure. The thread that uses the backend calls this and the next.
 */
enum ctw_status ctw_stream_acquire(struct ctw_stream *s, int unit, const void **block,
                                   struct ctw_err *err) CTW_MUST_CHECK;
/* The rows of the head come n times in every pass, one round after another. Not reading them
 * otherwise costs time alone. */
void ctw_stream_repeat(struct ctw_stream *s, int64_t n);
/* `fence` covers the last operation on the unit's bytes; NULL: nothing reads them any more. */
void ctw_stream_release(struct ctw_stream *s, int unit, const uint64_t *fence);

/* Will files be read again? */
bool ctw_stream_needs_files(struct ctw_stream *s);

#endif
