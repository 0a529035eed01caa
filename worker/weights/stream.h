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
 * Starts reading. `shards` (NULL: none): the source of units that do not stay, in place of the
 * files. All arguments must outlive the stream.
 */
enum ctw_status ctw_stream_open(struct ctw_stream **out, const struct ctw_model *model,
                                struct ctw_backend *be, const struct ctw_placement *place,
                                struct ctw_shards *shards, struct ctw_err *err) CTW_MUST_CHECK;
/* Sets the memory that units are read into: place->resident bytes of the backend for the units that
 * stay, one after another, then place->ring bytes. The stages are filled before this call. */
void ctw_stream_set_memory(struct ctw_stream *s, void *memory);
/* Waits for reads and uploads in flight. NULL is fine. */
void ctw_stream_close(struct ctw_stream *s);

/* Waits until the unit's uploads have begun, or its bytes are in host memory at *block. Returns the
 * error if reading failed. Only the thread that uses the backend calls this function and the
 * next. */
enum ctw_status ctw_stream_acquire(struct ctw_stream *s, int unit, const void **block,
                                   struct ctw_err *err) CTW_MUST_CHECK;
/* Announces that the rows of the head are used n times in every pass, one round after another. A
 * wrong announcement costs only time. */
void ctw_stream_repeat(struct ctw_stream *s, int64_t n);
/* `fence` covers the last operation on the unit's bytes. NULL: no operation reads the bytes any
 * more. */
void ctw_stream_release(struct ctw_stream *s, int unit, const uint64_t *fence);

/* Will files be read again? */
bool ctw_stream_needs_files(struct ctw_stream *s);

#endif
