/* Machines with several nodes, as a folder describes them; and which threads go where. */
#include <errno.h>
#include <ftw.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/numa.h"
#include "kernels/backend.h"
#include "tiny_model.h"
#include "worker/weights/provider.h"
#include "worker/weights/shards.h"

enum { N_DECODERS = 4, NEAR = 7 };

static char root[] = "/tmp/ctw_test_numa_XXXXXX";
static char dir[] = "/tmp/ctw_test_numa_XXXXXX";

/* test_numa is linked so that callers elsewhere have this file's __wrap_ functions. */
int __real_ctw_numa_of_pci(const char *at, const char *pci);
int __real_ctw_numa_node(const char *at, int k);
void __real_ctw_numa_run_on(const char *at, int node);
int __wrap_ctw_numa_of_pci(const char *at, const char *pci);
int __wrap_ctw_numa_node(const char *at, int k);
void __wrap_ctw_numa_run_on(const char *at, int node);

/* ---- a folder that describes a machine ----------------------------------------------------- */

/* Writes root/name, with its folders. */
static void describe(const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof(path), "%s%s", root, name);
    for (char *at = strchr(path + 1, '/'); at != NULL; at = strchr(at + 1, '/')) {
        *at = '\0';
        assert_true(mkdir(path, 0700) == 0 || errno == EEXIST);
        *at = '/';
    }
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static void nodes(void **state)
{
    (void)state;
    assert_int_equal(ctw_numa_nodes(root), 1);
    assert_int_equal(__real_ctw_numa_node(root, 0), -1);
    describe("/sys/devices/system/node/has_cpu", "many\n");
    assert_int_equal(ctw_numa_nodes(root), 1);
    describe("/sys/devices/system/node/has_cpu", "0,2-3\n");
    assert_int_equal(ctw_numa_nodes(root), 3);
    static const int want[] = {0, 2, 3, 0, 2};
    for (int k = 0; k < 5; k++)
        assert_int_equal(__real_ctw_numa_node(root, k), want[k]);
}

static void devices(void **state)
{
    (void)state;
    describe("/sys/bus/pci/devices/0000:18:00.0/numa_node", "0\n");
    describe("/sys/bus/pci/devices/0001:af:00.0/numa_node", "1\n");
    describe("/sys/bus/pci/devices/0000:b0:00.0/numa_node", "-1\n");
    assert_int_equal(__real_ctw_numa_of_pci(root, "00000000:18:00.0"), 0);
    assert_int_equal(__real_ctw_numa_of_pci(root, "00000001:AF:00.0"), 1);
    assert_int_equal(__real_ctw_numa_of_pci(root, "00000000:B0:00.0"), -1); /* not known */
    assert_int_equal(__real_ctw_numa_of_pci(root, "00000000:C0:00.0"), -1);
    assert_int_equal(__real_ctw_numa_of_pci(root, ""), -1);
}

/* Where a thread may run after it has gone to the node. */
static void *go_to(void *arg)
{
    static cpu_set_t set;
    __real_ctw_numa_run_on(root, *(const int *)arg);
    assert_int_equal(sched_getaffinity(0, sizeof(set), &set), 0);
    return &set;
}

static cpu_set_t gone_to(int node)
{
    pthread_t thread;
    void *set;
    assert_int_equal(pthread_create(&thread, NULL, go_to, &node), 0);
    assert_int_equal(pthread_join(thread, &set), 0);
    return *(cpu_set_t *)set;
}

/* One node has this process's first processor, another one the others, a third none of them. */
static void threads(void **state)
{
    (void)state;
    cpu_set_t mine, first, others, at;
    char text[64];
    assert_int_equal(sched_getaffinity(0, sizeof(mine), &mine), 0);
    int cpu = 0;
    while (!CPU_ISSET((size_t)cpu, &mine))
        cpu++;
    CPU_ZERO(&first);
    CPU_SET((size_t)cpu, &first);
    others = mine;
    CPU_CLR((size_t)cpu, &others);
    describe("/sys/devices/system/node/has_cpu", "0-2\n");
    snprintf(text, sizeof(text), "%d\n", cpu);
    describe("/sys/devices/system/node/node0/cpulist", text);
    snprintf(text, sizeof(text), "%d-%d\n", cpu + 1, CPU_SETSIZE - 1);
    describe("/sys/devices/system/node/node1/cpulist", text);
    describe("/sys/devices/system/node/node2/cpulist", "\n");
    bool are_few = 2 * 3 < CPU_COUNT(&mine);
    at = gone_to(0);
    assert_true(CPU_EQUAL(&at, are_few ? &mine : &first));
    at = gone_to(1);
    assert_true(CPU_EQUAL(&at, CPU_COUNT(&others) > 0 ? &others : &mine));
    static const int stays[] = {2, 5, -1};
    for (int i = 0; i < 3; i++) {
        at = gone_to(stays[i]);
        assert_true(CPU_EQUAL(&at, &mine));
    }
    describe("/sys/devices/system/node/has_cpu", "0\n"); /* of a machine with one node */
    at = gone_to(0);
    assert_true(CPU_EQUAL(&at, &mine));
}

/* ---- the threads that read weights --------------------------------------------------------- */

static atomic_int n_near, n_spread, n_elsewhere;

/* In place of the functions of base/numa.h: GPU 1 is at node NEAR, and block k of host memory
 * belongs to node 20 + k. */
int __wrap_ctw_numa_of_pci(const char *at, const char *pci)
{
    assert_string_equal(at, "");
    return strcmp(pci, "00000000:11:00.0") == 0 ? NEAR : -1;
}

int __wrap_ctw_numa_node(const char *at, int k)
{
    assert_string_equal(at, "");
    return 20 + k;
}

void __wrap_ctw_numa_run_on(const char *at, int node)
{
    assert_string_equal(at, "");
    atomic_fetch_add(node == NEAR ? &n_near : node >= 20 ? &n_spread : &n_elsewhere, 1);
}

static void read_all(struct ctw_model *m, struct ctw_provider *p)
{
    struct ctw_err err;
    const struct ctw_layer_data *data;
    for (int layer = 0; layer < m->n_layers; layer++) {
        assert_int_equal(ctw_provider_acquire(p, layer, &data, &err), CTW_OK);
        ctw_provider_release(p, layer);
    }
    ctw_provider_close(p);
}

/* Whoever reads for a device runs at its node; blocks of host memory are spread over all nodes. */
static void readers_run_near_their_device(void **state)
{
    (void)state;
    struct ctw_err err;
    struct ctw_model *m;
    struct ctw_backend *be;
    struct ctw_provider *p;
    struct ctw_placement place;
    struct ctw_shards *shards;
    const struct ctw_backend_options opt = {.n_threads = 1, .device = 1};
    assert_int_equal(ctw_model_open(&m, dir, NULL, &err), CTW_OK);
    assert_int_equal(ctw_backend_open(&be, "cuda", &opt, &err), CTW_OK);
    assert_int_equal(ctw_provider_open_resident(&p, m, be, &err), CTW_OK);
    read_all(m, p);
    assert_true(atomic_exchange(&n_near, 0) > 0);
    assert_int_equal(ctw_placement_make_least(&place, m, &err), CTW_OK);
    assert_int_equal(ctw_provider_open_streamed(&p, m, be, &place, NULL, &err), CTW_OK);
    read_all(m, p);
    assert_true(atomic_exchange(&n_near, 0) > 0);
    for (int hosted = 0; hosted < 2; hosted++) {
        assert_int_equal(ctw_placement_make_least(&place, m, &err), CTW_OK);
        place.device_room = hosted ? 0 : SIZE_MAX;
        place.host_room = hosted ? SIZE_MAX : 0;
        assert_int_equal(ctw_shards_open(&shards, m, &place, &be, 1, &err), CTW_OK);
        while (!ctw_shards_all_in(shards))
            usleep(1000);
        ctw_shards_close(shards);
        ctw_placement_free(&place);
        assert_int_equal(atomic_exchange(&n_spread, 0), hosted ? 1 : 0);
        assert_true((atomic_exchange(&n_near, 0) > 0) == !hosted);
    }
    assert_int_equal(n_elsewhere, 0);
    ctw_backend_close(be);
    ctw_model_close(m);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)st;
    (void)type;
    (void)at;
    return remove(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nodes),
        cmocka_unit_test(devices),
        cmocka_unit_test(threads),
        cmocka_unit_test(readers_run_near_their_device),
    };
    if (mkdtemp(root) == NULL || mkdtemp(dir) == NULL ||
        setenv("CTWORKER_CUDA_LIBRARY", CTW_FAKE_DEVICE, 1) != 0)
        return 1;
    tiny_write(dir, N_DECODERS, -1);
    int failed = cmocka_run_group_tests_name("nodes", tests, NULL, NULL);
    tiny_remove(dir);
    (void)nftw(root, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    return failed;
}
