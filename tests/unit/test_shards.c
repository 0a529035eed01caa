/* Shards, below the engine: which device has what, that units come whole, and what the end of a
 * stream waits for. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "kernels/backend.h"

/* An embedding and a head of 7 slices each. */
enum { WIDE = 210000 };
#define TINY_FLOATS (2 * WIDE * 16 + 16384)
#include "tiny_model.h"
#include "worker/weights/shards.h"
#include "worker/weights/stream.h"

enum { N_DEVICES = 2, MOST_DEVICES = 3, N_DECODERS = 6 };

static char dir[] = "/tmp/ctw_test_shards_XXXXXX", wide_dir[] = "/tmp/ctw_test_shards_XXXXXX";
static struct tiny_writer wide;

static void open_all(struct ctw_model **m, const char *path, struct ctw_backend *be[], int n)
{
    struct ctw_err err;
    assert_int_equal(ctw_model_open(m, path, NULL, &err), CTW_OK);
    for (int i = 0; i < n; i++) {
        const struct ctw_backend_options opt = {.n_threads = 1, .device = i};
        assert_int_equal(ctw_backend_open(&be[i], "cuda", &opt, &err), CTW_OK);
    }
}

static void close_all(struct ctw_model *m, struct ctw_backend *be[], int n)
{
    for (int i = 0; i < n; i++)
        ctw_backend_close(be[i]);
    ctw_model_close(m);
}

/* Of a unit, each device has one run of slices in the order of the devices, one after another in
 * its memory; a device gathers its own run last. bytes: adds what each device has. */
static void check_unit(struct ctw_shards *shards, struct ctw_backend *const be[], int n,
                       const struct ctw_slices *slices, int unit, uint64_t bytes[])
{
    struct ctw_err err;
    int64_t first = slices->first[unit], end = slices->first[unit + 1], behind[MOST_DEVICES];
    int device = 0;
    const char *expected = NULL;
    for (int d = 0; d < n; d++)
        behind[d] = first;
    for (int64_t i = first; i < end; i++) {
        struct ctw_backend *from;
        const void *at;
        assert_int_equal(ctw_shards_find(shards, i, &from, &at, &err), CTW_OK);
        if (from != be[device])
            expected = NULL;
        while (device < n - 1 && from != be[device])
            device++;
        assert_ptr_equal(from, be[device]);
        if (expected != NULL)
            assert_ptr_equal(at, expected);
        expected =
            (const char *)at + (i + 1 < end ? slices->slices[i + 1].at : 0) - slices->slices[i].at;
        bytes[device] += slices->slices[i].bytes;
        for (int d = device; d < n; d++)
            behind[d] = i + 1;
    }
    for (int d = 0; d < n; d++) {
        int64_t start = -1;
        assert_true(ctw_shards_order(shards, d, unit, &start));
        assert_int_equal(start, behind[d] < end ? behind[d] : first);
    }
}

static void runs_of_slices(void **state)
{
    (void)state;
    struct ctw_err err;
    struct ctw_model *m;
    struct ctw_backend *be[MOST_DEVICES];
    open_all(&m, wide_dir, be, MOST_DEVICES);
    for (int n = 2; n <= MOST_DEVICES; n++) {
        struct ctw_placement place;
        struct ctw_slices slices;
        struct ctw_shards *shards;
        uint64_t bytes[MOST_DEVICES] = {0}, all = 0;
        assert_int_equal(ctw_placement_make_parted(&place, m, n, NULL, &err), CTW_OK);
        assert_int_equal(ctw_slices_make(&slices, m, &place, CTW_DEVICE_SLICE, &err), CTW_OK);
        assert_int_equal(slices.first[1], 7);
        assert_int_equal(ctw_shards_open(&shards, m, &place, be, n, &err), CTW_OK);
        for (int unit = 0; unit < place.n_units; unit++) {
            int64_t start;
            if (!place.unit[unit].stays)
                check_unit(shards, be, n, &slices, unit, bytes);
            else
                assert_false(ctw_shards_order(shards, 0, unit, &start));
        }
        for (int d = 0; d < n; d++)
            all += bytes[d];
        for (int d = 0; d < n; d++) {
            assert_true(bytes[d] * (uint64_t)n < all + (uint64_t)n * CTW_DEVICE_SLICE);
            assert_true(all < bytes[d] * (uint64_t)n + (uint64_t)n * CTW_DEVICE_SLICE);
        }
        ctw_shards_stop(shards);
        ctw_shards_close(shards);
        ctw_slices_free(&slices);
        ctw_placement_free(&place);
    }
    close_all(m, be, MOST_DEVICES);
}

/* On each of three devices, an embedding and a head of several slices have the file's bytes,
 * whether they come from devices, from host memory, or from the files. */
static void units_come_whole(void **state)
{
    (void)state;
    static const struct {
        size_t device_room, host_room;
    } rooms[] = {{SIZE_MAX, 0}, {0, 1 << 28}, {0, 0}};
    struct ctw_err err;
    struct ctw_model *m;
    struct ctw_backend *be[MOST_DEVICES];
    const size_t bytes = (size_t)WIDE * HIDDEN * sizeof(float);
    char *got = malloc(bytes);
    assert_non_null(got);
    open_all(&m, wide_dir, be, MOST_DEVICES);
    for (size_t r = 0; r < CTW_COUNT(rooms); r++) {
        struct ctw_placement place;
        struct ctw_shards *shards;
        assert_int_equal(ctw_placement_make_parted(&place, m, MOST_DEVICES, NULL, &err), CTW_OK);
        place.device_room = rooms[r].device_room;
        place.host_room = rooms[r].host_room;
        assert_int_equal(ctw_shards_open(&shards, m, &place, be, MOST_DEVICES, &err), CTW_OK);
        for (int d = 0; d < MOST_DEVICES; d++) {
            struct ctw_stream *stream;
            const void *block;
            void *memory;
            assert_int_equal(ctw_device_alloc(be[d], &memory, place.resident + place.ring, &err),
                             CTW_OK);
            assert_int_equal(ctw_stream_open(&stream, m, be[d], &place, shards, &err), CTW_OK);
            ctw_stream_set_memory(stream, memory);
            for (int unit = 0; unit < place.n_units; unit++) {
                assert_int_equal(ctw_stream_acquire(stream, unit, &block, &err), CTW_OK);
                assert_int_equal(ctw_upload_join(be[d], &err), CTW_OK);
                if (unit == 0 || unit == place.n_units - 1) { /* the head, behind the last norm */
                    const char *at = (const char *)block + place.unit[unit].bytes - bytes;
                    const float *matrix =
                        wide.data + (unit == 0 ? 0 : wide.n - (size_t)WIDE * HIDDEN);
                    assert_int_equal(ctw_device_download(be[d], got, at, bytes, &err), CTW_OK);
                    assert_memory_equal(got, matrix, bytes);
                }
                ctw_stream_release(stream, unit, NULL);
            }
            ctw_stream_close(stream);
            ctw_device_free(be[d], memory);
        }
        ctw_shards_stop(shards);
        ctw_shards_close(shards);
        ctw_placement_free(&place);
    }
    close_all(m, be, MOST_DEVICES);
    free(got);
}

/* Closing a stream waits for its copies from other devices: their memory may then be freed, while
 * its own is not. If it did not wait, the fake GPU would end this process. (The second device
 * copies from the first, whose shard is freed first; freeing the second's own would wait, too.) */
static void a_closed_stream_copies_no_more(void **state)
{
    (void)state;
    struct ctw_err err;
    struct ctw_model *m;
    struct ctw_backend *be[N_DEVICES];
    struct ctw_placement place;
    open_all(&m, dir, be, N_DEVICES);
    assert_int_equal(ctw_placement_make_parted(&place, m, N_DEVICES, NULL, &err), CTW_OK);
    for (int trial = 0; trial < 8; trial++) {
        struct ctw_shards *shards;
        struct ctw_stream *stream;
        const void *block;
        void *memory;
        assert_int_equal(ctw_shards_open(&shards, m, &place, be, N_DEVICES, &err), CTW_OK);
        assert_int_equal(ctw_device_alloc(be[1], &memory, place.resident + place.ring, &err),
                         CTW_OK);
        assert_int_equal(ctw_stream_open(&stream, m, be[1], &place, shards, &err), CTW_OK);
        ctw_stream_set_memory(stream, memory);
        for (int layer = 0; layer <= trial / 2; layer++) {
            assert_int_equal(ctw_stream_acquire(stream, layer, &block, &err), CTW_OK);
            ctw_stream_release(stream, layer, NULL);
        }
        ctw_shards_stop(shards);
        ctw_stream_close(stream);
        ctw_shards_close(shards);
        ctw_device_free(be[1], memory);
    }
    ctw_placement_free(&place);
    close_all(m, be, N_DEVICES);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(runs_of_slices),
                                       cmocka_unit_test(units_come_whole),
                                       cmocka_unit_test(a_closed_stream_copies_no_more)};
    if (mkdtemp(dir) == NULL || mkdtemp(wide_dir) == NULL ||
        setenv("CTWORKER_CUDA_LIBRARY", CTW_FAKE_DEVICE, 1) != 0 ||
        setenv("CTW_FAKE_GPU_COUNT", "3", 1) != 0 ||
        setenv("CTW_FAKE_GPU_COPY_US", "1000,30000,1000", 1) != 0)
        return 1;
    tiny_write(dir, N_DECODERS, -1);
    wide.vocab = WIDE;
    tiny_write_with(&wide, wide_dir, N_DECODERS, -1);
    int failed = cmocka_run_group_tests_name("shards", tests, NULL, NULL);
    tiny_remove(dir);
    tiny_remove(wide_dir);
    return failed;
}
