/* The resident provider: weights in a GPU's memory. On the fake GPU (tests/service/fake_device.c)
 * and on the CPU, whose "device" memory is the host's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tiny_model.h"
#include "worker/weights/provider.h"

enum { N_TENSORS = 11 };

static const char *backend;
static char dir[] = "/tmp/ctw_test_resident_XXXXXX";

/* Every tensor's bytes, as the mapped provider has them; either "device" is the host. */
static void resident_layers_hold_the_files_bytes(void **state)
{
    (void)state;
    struct ctw_model *m;
    struct ctw_backend *be;
    struct ctw_provider *mapped, *resident;
    struct ctw_err err;
    tiny_write(dir, 1, -1);
    assert_int_equal(ctw_model_open(&m, dir, NULL, &err), CTW_OK);
    assert_int_equal(ctw_backend_open(&be, backend, NULL, &err), CTW_OK);
    assert_int_equal(ctw_provider_open_mapped(&mapped, m, &err), CTW_OK);
    assert_int_equal(ctw_provider_open_resident(&resident, m, be, &err), CTW_OK);
    int n_tensors = 0;
    for (int layer = 0; layer < m->n_layers; layer++) {
        const struct ctw_layer_data *a, *b;
        const struct ctw_layer *l = &m->layers[layer];
        assert_int_equal(ctw_provider_acquire(mapped, layer, &a, &err), CTW_OK);
        assert_int_equal(ctw_provider_acquire(resident, layer, &b, &err), CTW_OK);
        assert_int_equal(ctw_backend_sync(be, &err), CTW_OK);
        for (int i = 0; i < CTW_N_MATRICES; i++) {
            const struct ctw_tensor *t = l->matrix[i].part[CTW_PART_VALUES];
            const void *x = a->matrix[i].part[CTW_PART_VALUES];
            const void *y = b->matrix[i].part[CTW_PART_VALUES];
            assert_int_equal(x == NULL, y == NULL);
            if (t == NULL)
                continue;
            n_tensors++;
            assert_true(x != y);
            assert_true((uintptr_t)y % 64 == 0);
            assert_memory_equal(x, y, t->bytes);
        }
        for (int i = 0; i < CTW_N_VECTORS; i++) {
            assert_int_equal(a->vector[i] == NULL, b->vector[i] == NULL);
            if (a->vector[i] == NULL)
                continue;
            n_tensors++;
            assert_memory_equal(a->vector[i], b->vector[i], l->vector[i]->bytes);
        }
        ctw_provider_release(mapped, layer);
        ctw_provider_release(resident, layer);
    }
    assert_int_equal(n_tensors, N_TENSORS + 1); /* the tied head is the table once more */
    assert_false(ctw_provider_needs_files(resident));
    assert_true(ctw_provider_needs_files(mapped));
    ctw_provider_close(resident);
    ctw_provider_close(mapped);
    ctw_backend_close(be);
    ctw_model_close(m);
}

enum { FAKE_ALIGN = 4096 }; /* of what the fake GPU allocates */

static size_t round_up(size_t bytes, size_t to)
{
    return (bytes + to - 1) / to * to;
}

/* The memory that all layers take: each tensor aligned to 256 bytes. */
static size_t layers_take(const struct ctw_model *m)
{
    size_t bytes = 0;
    for (int layer = 0; layer < m->n_layers; layer++) {
        const struct ctw_layer *l = &m->layers[layer];
        for (int i = 0; i < CTW_N_MATRICES; i++)
            if (l->matrix[i].name != NULL && !ctw_is_tied_head(m, layer, i))
                bytes += round_up(l->matrix[i].part[CTW_PART_VALUES]->bytes, 256);
        for (int i = 0; i < CTW_N_VECTORS; i++)
            bytes += l->vector[i] == NULL ? 0 : round_up(l->vector[i]->bytes, 256);
    }
    return bytes;
}

static void a_tied_head_is_uploaded_once(void **state)
{
    (void)state;
    struct ctw_model *m;
    struct ctw_backend *be;
    struct ctw_provider *resident;
    struct ctw_err err;
    const struct ctw_layer_data *table, *head;
    tiny_write(dir, 1, -1);
    assert_int_equal(ctw_model_open(&m, dir, NULL, &err), CTW_OK);
    assert_true(m->tied);
    assert_int_equal(ctw_backend_open(&be, "cuda", NULL, &err), CTW_OK);
    uint64_t before = ctw_backend_memory_free(be);
    assert_int_equal(ctw_provider_open_resident(&resident, m, be, &err), CTW_OK);
    assert_int_equal(before - ctw_backend_memory_free(be), round_up(layers_take(m), FAKE_ALIGN));
    assert_int_equal(ctw_provider_acquire(resident, 0, &table, &err), CTW_OK);
    assert_int_equal(ctw_provider_acquire(resident, m->n_layers - 1, &head, &err), CTW_OK);
    assert_non_null(head->matrix[CTW_M_HEAD].part[CTW_PART_VALUES]);
    assert_ptr_equal(head->matrix[CTW_M_HEAD].part[CTW_PART_VALUES],
                     table->matrix[CTW_M_EMBED].part[CTW_PART_VALUES]);
    ctw_provider_close(resident);
    assert_int_equal(ctw_backend_memory_free(be), before);
    ctw_backend_close(be);
    ctw_model_close(m);
}

/* All bytes fit, but not what the driver makes of them: readers are waiting for memory by then. */
static void memory_that_there_is_not_is_an_error(void **state)
{
    (void)state;
    struct ctw_model *m;
    struct ctw_backend *be;
    struct ctw_provider *resident;
    struct ctw_err err;
    char bytes[32];
    tiny_write(dir, 1, -1);
    assert_int_equal(ctw_model_open(&m, dir, NULL, &err), CTW_OK);
    assert_int_not_equal(layers_take(m) % FAKE_ALIGN, 0);
    snprintf(bytes, sizeof(bytes), "%zu", layers_take(m));
    setenv("CTW_FAKE_GPU_MEMORY", bytes, 1);
    setenv("CTW_FAKE_GPU_ALLOC_US", "30000", 1);
    assert_int_equal(ctw_backend_open(&be, "cuda", NULL, &err), CTW_OK);
    uint64_t before = ctw_backend_memory_free(be);
    assert_int_equal(ctw_provider_open_resident(&resident, m, be, &err), CTW_ENOMEM);
    assert_non_null(strstr(err.msg, "no memory for "));
    assert_int_equal(ctw_backend_memory_free(be), before);
    ctw_backend_close(be);
    ctw_model_close(m);
    unsetenv("CTW_FAKE_GPU_ALLOC_US");
    unsetenv("CTW_FAKE_GPU_MEMORY");
}

static void a_layer_that_cannot_be_read_is_an_error(void **state)
{
    (void)state;
    struct ctw_model *m;
    struct ctw_backend *be;
    struct ctw_provider *resident;
    struct ctw_err err = {0};
    char path[256];
    tiny_write(dir, 1, -1);
    tiny_path(path, sizeof(path), dir, "model.safetensors");
    assert_int_equal(ctw_model_open(&m, dir, NULL, &err), CTW_OK);
    assert_int_equal(ctw_backend_open(&be, backend, NULL, &err), CTW_OK);
    assert_int_equal(truncate(path, 2000), 0);
    assert_int_equal(ctw_provider_open_resident(&resident, m, be, &err), CTW_OK);
    enum ctw_status st = CTW_OK;
    const struct ctw_layer_data *data;
    for (int layer = 0; st == CTW_OK && layer < m->n_layers; layer++)
        st = ctw_provider_acquire(resident, layer, &data, &err);
    assert_int_equal(st, CTW_EIO);
    assert_non_null(strstr(err.msg, "became shorter"));
    ctw_provider_close(resident);
    ctw_backend_close(be);
    ctw_model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(resident_layers_hold_the_files_bytes),
        cmocka_unit_test(a_layer_that_cannot_be_read_is_an_error),
    };
    const struct CMUnitTest on_a_gpu[] = {cmocka_unit_test(a_tied_head_is_uploaded_once),
                                          cmocka_unit_test(memory_that_there_is_not_is_an_error)};
    if (mkdtemp(dir) == NULL || setenv("CTWORKER_CUDA_LIBRARY", CTW_FAKE_DEVICE, 1) != 0)
        return 1;
    backend = "cpu";
    int failed = cmocka_run_group_tests_name("resident layers on the CPU", tests, NULL, NULL);
    backend = "cuda";
    failed += cmocka_run_group_tests_name("resident layers on a GPU", tests, NULL, NULL);
    failed += cmocka_run_group_tests(on_a_gpu, NULL, NULL);
    tiny_remove(dir);
    return failed;
}
