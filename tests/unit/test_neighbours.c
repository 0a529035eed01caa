/* Devices that take from each other's rings what one of them has read from host memory, on fake
 * GPUs (tests/service/fake_device.c): the files' bytes in any order of the devices, how much each
 * reads, faults, and what happens to bytes that a neighbour still copies. */
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "capture.h"
#include "kernels/backend.h"
#include "same_layer.h"
#include "tiny_model.h"
#include "worker/weights/provider.h"
#include "worker/weights/shards.h"

enum { N_DECODERS = 6, MOST = 8 };

static char dir[] = "/tmp/ctw_test_neighbours_XXXXXX";

static void set(const char *name, const char *value)
{
    char full[64];
    snprintf(full, sizeof(full), "CTW_FAKE_GPU_%s", name);
    setenv(full, value, 1);
}

/* ---- devices that share what is in host memory --------------------------------------------- */

struct device {
    struct ctw_backend *be;
    struct ctw_provider *provider, *mapped;  /* provider NULL: it takes no part */
    int layer;                               /* the next */
    unsigned long long uploaded, from_peers; /* before it began */
    enum ctw_status st;
    unsigned seed;
};

struct rig {
    struct ctw_model *m;
    struct ctw_shards *shards;
    uint64_t streamed; /* bytes in every pass, of a device */
    int n;
    struct device device[MOST];
};

static void count_bytes(const struct device *d, unsigned long long *uploaded,
                        unsigned long long *from_peers)
{
    char text[512];
    ctw_backend_describe(d->be, text, sizeof(text));
    const char *at = strstr(text, "uploaded bytes ");
    assert_non_null(at);
    assert_int_equal(sscanf(at, "uploaded bytes %llu bytes from peers %llu", uploaded, from_peers),
                     2);
}

static void open_rig(struct rig *r, int n, size_t host_room)
{
    struct ctw_err err;
    struct ctw_placement place;
    struct ctw_backend *be[MOST];
    *r = (struct rig){.n = n};
    assert_int_equal(ctw_model_open(&r->m, dir, NULL, &err), CTW_OK);
    assert_int_equal(ctw_placement_make_least(&place, r->m, &err), CTW_OK);
    place.device_room = 0;
    place.host_room = host_room;
    for (int i = 0; i < n; i++) {
        const struct ctw_backend_options opt = {.n_threads = 1, .device = i};
        assert_int_equal(ctw_backend_open(&r->device[i].be, "cuda", &opt, &err), CTW_OK);
        assert_int_equal(ctw_provider_open_mapped(&r->device[i].mapped, r->m, &err), CTW_OK);
        be[i] = r->device[i].be;
        r->device[i].seed = (unsigned)i + 1;
    }
    assert_int_equal(ctw_shards_open(&r->shards, r->m, &place, be, n, &err), CTW_OK);
    struct ctw_slices slices;
    assert_int_equal(ctw_slices_make(&slices, r->m, &place, CTW_DEVICE_SLICE, &err), CTW_OK);
    for (int64_t i = slices.first[1]; i < slices.n_slices;
         i++) /* the embedding is tied: it stays */
        r->streamed += slices.slices[i].bytes;
    ctw_slices_free(&slices);
    ctw_placement_free(&place);
}

static void start(struct rig *r, int i)
{
    struct ctw_err err;
    struct ctw_placement place;
    struct device *d = &r->device[i];
    count_bytes(d, &d->uploaded, &d->from_peers);
    assert_int_equal(ctw_placement_make_least(&place, r->m, &err), CTW_OK);
    place.device_room = 0;
    place.host_room = SIZE_MAX;
    d->st = ctw_provider_open_streamed(&d->provider, r->m, d->be, &place, r->shards, &err);
}

static void close_rig(struct rig *r)
{
    ctw_shards_stop(r->shards);
    for (int i = 0; i < r->n; i++)
        ctw_provider_close(r->device[i].provider);
    ctw_shards_close(r->shards);
    for (int i = 0; i < r->n; i++) {
        ctw_provider_close(r->device[i].mapped);
        ctw_backend_close(r->device[i].be);
    }
    ctw_model_close(r->m);
}

static void acquire(struct rig *r, int i, const struct ctw_layer_data **data)
{
    struct ctw_err err;
    struct device *d = &r->device[i];
    const struct ctw_layer_data *want;
    if (d->st == CTW_OK)
        d->st = ctw_provider_acquire(d->provider, d->layer, data, &err);
    if (d->st == CTW_OK)
        d->st = ctw_backend_sync(d->be, &err);
    if (d->st != CTW_OK)
        return;
    assert_int_equal(ctw_provider_acquire(d->mapped, d->layer, &want, &err), CTW_OK);
    assert_same_layer(&r->m->layers[d->layer], want, *data);
    ctw_provider_release(d->mapped, d->layer);
}

static void release(struct rig *r, int i)
{
    struct device *d = &r->device[i];
    if (d->st == CTW_OK)
        ctw_provider_release(d->provider, d->layer);
    d->layer = (d->layer + 1) % r->m->n_layers;
}

static void step(struct rig *r, int i)
{
    const struct ctw_layer_data *data;
    acquire(r, i, &data);
    release(r, i);
}

/* Bytes that devices have had from the host and from each other since they began. */
static void sum_bytes(const struct rig *r, uint64_t *host, uint64_t *peers)
{
    *host = *peers = 0;
    for (int i = 0; i < r->n; i++) {
        unsigned long long uploaded, from_peers;
        if (r->device[i].provider == NULL)
            continue;
        count_bytes(&r->device[i], &uploaded, &from_peers);
        from_peers -= r->device[i].from_peers;
        *peers += from_peers;
        *host += uploaded - r->device[i].uploaded - from_peers;
    }
}

/* ---- who reads what ------------------------------------------------------------------------ */

/* Passes of devices that are at the same layer. */
static void run_together(struct rig *r, int n_passes)
{
    const struct ctw_layer_data *data;
    for (int i = 0; i < r->n; i++)
        start(r, i);
    for (int k = 0; k < n_passes * r->m->n_layers; k++) {
        for (int i = 0; i < r->n; i++)
            acquire(r, i, &data);
        for (int i = 0; i < r->n; i++)
            release(r, i);
    }
    for (int i = 0; i < r->n; i++)
        assert_int_equal(r->device[i].st, CTW_OK);
}

/* Together they read what they need once, from host memory or, without any, from the files; and
 * the layers that stay, and what is read ahead: less than a pass. */
static void together_each_reads_its_part(void **state)
{
    (void)state;
    enum { PASSES = 10 };
    set("COPY_US", "500");
    for (int n = 2; n <= MOST; n += 3)
        for (int from_files = 0; from_files < 2; from_files++) {
            struct rig r;
            uint64_t host, peers;
            open_rig(&r, n, from_files ? 0 : SIZE_MAX);
            run_together(&r, PASSES);
            sum_bytes(&r, &host, &peers);
            uint64_t all = PASSES * r.streamed, ahead = r.streamed + (uint64_t)n * 4096;
            assert_in_range(host, all, all + ahead);
            assert_in_range(peers, all * (uint64_t)(n - 1), (all + ahead) * (uint64_t)(n - 1));
            close_rig(&r);
        }
    set("COPY_US", "0");
}

/* A device alone at work, and devices without a fast link, read all from host memory. */
static void alone_a_device_reads_all(void **state)
{
    (void)state;
    enum { PASSES = 4 };
    for (int linked = 0; linked < 2; linked++) {
        struct rig r;
        uint64_t host, peers, all;
        set("LINKED", linked ? "1" : "1,0,0");
        open_rig(&r, 3, SIZE_MAX);
        if (linked) {
            start(&r, 1);
            for (int k = 0; k < PASSES * r.m->n_layers; k++)
                step(&r, 1);
            all = PASSES * r.streamed;
        } else {
            run_together(&r, PASSES);
            all = PASSES * r.streamed * 3;
        }
        sum_bytes(&r, &host, &peers);
        assert_int_equal(peers, 0);
        assert_in_range(host, all, all + 3 * r.streamed + 4096);
        close_rig(&r);
    }
    set("LINKED", "1");
}

static double kib_of(double number, const char *unit)
{
    return strcmp(unit, "B") == 0 ? number / 1024 : strcmp(unit, "KiB") == 0 ? number : NAN;
}

/* The counts of the log agree: of two devices that are together, each reads half, and copies half.
 */
static void the_log_counts(void **state)
{
    (void)state;
    struct capture said;
    struct rig r;
    capture_start(&said, CTW_LOG_DEBUG);
    open_rig(&r, 2, SIZE_MAX);
    run_together(&r, 2);
    close_rig(&r);
    capture_stop(&said);
    double host = 0, neighbours = 0, count[2];
    char unit[2][8];
    int n = 0;
    const char *at = said.text;
    for (; (at = strstr(at, "weights of a pass: ")) != NULL; at++, n++) {
        assert_int_equal(sscanf(at,
                                "weights of a pass: %*f %*s from files, %lf %7s from host "
                                "memory, %lf %7s from neighbours",
                                &count[0], unit[0], &count[1], unit[1]),
                         4);
        host += kib_of(count[0], unit[0]);
        neighbours += kib_of(count[1], unit[1]);
    }
    assert_int_equal(n, 4);
    if (!(host >= 10) || host > 1.5 * neighbours || neighbours > 1.5 * host)
        fail_msg("%s", said.text);
}

/* ---- any order ----------------------------------------------------------------------------- */

/* Devices that run ahead, fall behind, end passes early and begin late. */
static void any_order_gives_the_files_bytes(void **state)
{
    (void)state;
    srand(5);
    set("COPY_US", "100,0,300");
    for (int trial = 0; trial < 12; trial++) {
        struct rig r;
        int n_now = 1;
        open_rig(&r, 2 + trial % 4, trial % 3 == 0 ? 20000 : SIZE_MAX);
        start(&r, 0);
        for (int k = 0; k < 120; k++) {
            if (n_now < r.n && rand() % 8 == 0)
                start(&r, n_now++);
            int i = rand() % n_now;
            for (int steps = 1 + rand() % (1 + trial); steps > 0; steps--)
                step(&r, i);
            if (rand() % 10 == 0)
                r.device[i].layer = 0; /* cancelled */
            assert_int_equal(r.device[i].st, CTW_OK);
        }
        close_rig(&r);
    }
    set("COPY_US", "0");
}

struct worker {
    struct rig *r;
    int i;
};

static void *run_passes(void *arg)
{
    const struct worker *w = arg;
    struct device *d = &w->r->device[w->i];
    for (int k = 0; k < 60 && d->st == CTW_OK; k++) {
        const struct timespec nap = {.tv_nsec = rand_r(&d->seed) % 200 * 1000};
        nanosleep(&nap, NULL);
        step(w->r, w->i);
        if (rand_r(&d->seed) % 16 == 0)
            d->layer = 0;
    }
    return NULL;
}

/* A thread for each device. */
static void run_all(struct rig *r)
{
    pthread_t thread[MOST];
    struct worker worker[MOST];
    for (int i = 0; i < r->n; i++)
        start(r, i);
    for (int i = 0; i < r->n; i++) {
        worker[i] = (struct worker){r, i};
        assert_int_equal(pthread_create(&thread[i], NULL, run_passes, &worker[i]), 0);
    }
    for (int i = 0; i < r->n; i++)
        pthread_join(thread[i], NULL);
}

static void threads_of_their_own(void **state)
{
    (void)state;
    for (int trial = 0; trial < 6; trial++) {
        struct rig r;
        set("COPY_US", trial % 2 == 0 ? "50,200,0,400" : "100");
        open_rig(&r, 2 + trial, SIZE_MAX);
        run_all(&r);
        for (int i = 0; i < r.n; i++)
            assert_int_equal(r.device[i].st, CTW_OK);
        close_rig(&r);
    }
    set("COPY_US", "0");
}

/* If a device fails, at most the devices that are copying from it fail too. The others go on. */
static void a_device_that_fails(void **state)
{
    (void)state;
    int n_fine = 0, n_failed = 0;
    set("COPY_US", "100");
    for (int trial = 0; trial < 16; trial++) {
        char list[32];
        struct rig r;
        snprintf(list, sizeof(list), "0,%d,0,0", 2 + 3 * trial);
        set("FAIL_COPY", list);
        open_rig(&r, 4, SIZE_MAX);
        run_all(&r);
        for (int i = 0; i < r.n; i++) {
            assert_true(r.device[i].st == CTW_OK || r.device[i].st == CTW_EDEVICE);
            n_fine += i != 1 && r.device[i].st == CTW_OK;
            n_failed += i == 1 && r.device[i].st != CTW_OK;
        }
        close_rig(&r);
        set("FAIL_COPY", "0");
    }
    set("COPY_US", "0");
    if (n_fine < 16 || n_failed < 8)
        fail_msg("it failed %d times, others went on %d times", n_failed, n_fine);
}

/* ---- pins ---------------------------------------------------------------------------------- */

/* The first device offers a slice, the second copies it, and then the first writes over it. */
static void write_over_an_offer(bool withdraw)
{
    struct rig r;
    struct ctw_err err;
    void *ring[2], *stage;
    uint64_t ticket;
    const size_t bytes = 4096;
    open_rig(&r, 2, 0);
    struct ctw_neighbours *nb = ctw_shards_neighbours(r.shards);
    struct ctw_backend *one = r.device[0].be, *two = r.device[1].be;
    assert_int_equal(ctw_device_alloc(one, &ring[0], bytes, &err), CTW_OK);
    assert_int_equal(ctw_device_alloc(two, &ring[1], bytes, &err), CTW_OK);
    assert_int_equal(ctw_stage_alloc(one, &stage, bytes, &err), CTW_OK);
    assert_false(ctw_neighbours_copy(nb, 0, 1, 1, ring[0], bytes, &ticket));
    assert_int_equal(ctw_upload_begin(one, ring[0], stage, bytes, &ticket, &err), CTW_OK);
    ctw_neighbours_offer(nb, 0, 1, ring[0], ticket);
    assert_true(ctw_neighbours_copy(nb, 1, 1, 1, ring[1], bytes, &ticket));
    if (withdraw)
        ctw_neighbours_withdraw(nb, 0, 1);
    assert_int_equal(ctw_upload_begin(one, ring[0], stage, bytes, &ticket, &err), CTW_OK);
    assert_int_equal(ctw_upload_wait(one, ticket, &err), CTW_OK);
    assert_false(ctw_neighbours_copy(nb, 1, 1, 1, ring[1], bytes, &ticket) && withdraw);
    ctw_stage_free(one, stage);
    ctw_device_free(one, ring[0]);
    ctw_device_free(two, ring[1]);
    close_rig(&r);
}

static void bytes_are_not_reused_while_a_neighbour_copies(void **state)
{
    (void)state;
    set("COPY_US", "1000,30000");
    for (int withdraw = 0; withdraw < 2; withdraw++) {
        int status;
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            if (!withdraw && freopen("/dev/null", "w", stderr) == NULL)
                _exit(1);
            write_over_an_offer(withdraw);
            _exit(0);
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(WIFSIGNALED(status), !withdraw);
        assert_int_equal(withdraw ? WEXITSTATUS(status) : WTERMSIG(status), withdraw ? 0 : SIGABRT);
    }
    set("COPY_US", "0");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        /* It forks, which is before this process has threads. */
        cmocka_unit_test(bytes_are_not_reused_while_a_neighbour_copies),
        cmocka_unit_test(together_each_reads_its_part),
        cmocka_unit_test(alone_a_device_reads_all),
        cmocka_unit_test(the_log_counts),
        cmocka_unit_test(any_order_gives_the_files_bytes),
        cmocka_unit_test(threads_of_their_own),
        cmocka_unit_test(a_device_that_fails),
    };
    if (mkdtemp(dir) == NULL || setenv("CTWORKER_CUDA_LIBRARY", CTW_FAKE_DEVICE, 1) != 0)
        return 1;
    set("COUNT", "8");
    set("JITTER_US", "100");
    set("REPAIR", "1");
    tiny_write(dir, N_DECODERS, -1);
    int failed = cmocka_run_group_tests_name("neighbours", tests, NULL, NULL);
    tiny_remove(dir);
    return failed;
}
