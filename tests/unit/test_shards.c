/* Shards, below the engine: what the end of a stream waits for. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "kernels/backend.h"
#include "tiny_model.h"
#include "worker/weights/shards.h"
#include "worker/weights/stream.h"

enum { N_DEVICES = 2, N_DECODERS = 6 };

static char dir[] = "/tmp/ctw_test_shards_XXXXXX";

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
    assert_int_equal(ctw_model_open(&m, dir, NULL, &err), CTW_OK);
    for (int i = 0; i < N_DEVICES; i++) {
        const struct ctw_backend_options opt = {.n_threads = 1, .device = i};
        assert_int_equal(ctw_backend_open(&be[i], "cuda", &opt, &err), CTW_OK);
    }
    assert_int_equal(ctw_placement_make_parted(&place, m, N_DEVICES, NULL, &err), CTW_OK);
    for (int trial = 0; trial < 8; trial++) {
        struct ctw_shards *shards;
        struct ctw_stream *stream;
        const void *block;
        void *memory;
        assert_int_equal(ctw_shards_open(&shards, m, &place, be, N_DEVICES, &err), CTW_OK);
        assert_int_equal(ctw_device_alloc(be[1], &memory, place.resident + place.ring, &err),
                         CTW_OK);
        assert_int_equal(ctw_stream_open(&stream, m, be[1], &place, shards, memory, &err), CTW_OK);
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
    for (int i = 0; i < N_DEVICES; i++)
        ctw_backend_close(be[i]);
    ctw_model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_closed_stream_copies_no_more)};
    if (mkdtemp(dir) == NULL || setenv("CTWORKER_CUDA_LIBRARY", CTW_FAKE_DEVICE, 1) != 0 ||
        setenv("CTW_FAKE_GPU_COPY_US", "1000,30000", 1) != 0)
        return 1;
    tiny_write(dir, N_DECODERS, -1);
    int failed = cmocka_run_group_tests_name("shards", tests, NULL, NULL);
    tiny_remove(dir);
    return failed;
}
