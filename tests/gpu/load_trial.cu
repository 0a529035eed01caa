/*
 * The parts of a warm load (worker/weights/stages.c): allocating host memory that the GPU reads
 * fast, allocating device memory, reading from the page cache, copying, and all steps together. For
 * choosing between ways to load.
 *
 *   load_trial FILE      a checkpoint's file, of a few GB; it is read first, so that it is cached
 *
 * Prints one table: step, method, milliseconds of the first time and of the fastest, GB/s. 40
 * seconds with 6 GB.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "kernels/cuda/cuda.h"

enum { MAX_THREADS = 16, MAX_STAGE = 8 << 20, N_STAGES = 2, N_BLOCKS = 33, REPEAT = 3 };
enum { STAGE = 4 << 20, READERS = 12, ALL_STAGES = READERS * N_STAGES * STAGE };

static int fd;
static int64_t file_bytes;
static const char *mapped;

static void must(cudaError_t e, const char *what)
{
    if (e != cudaSuccess) {
        printf("FAILED %s: %s\n", what, cudaGetErrorString(e));
        exit(1);
    }
}

static void need(bool ok, const char *what)
{
    if (!ok) {
        printf("FAILED %s: %s\n", what, strerror(errno));
        exit(1);
    }
}

static double now_s(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The time of a step: the first time, and the fastest. */
struct taken {
    double first, best;
    int n;
};

static void count(struct taken *t, double seconds)
{
    if (t->n++ == 0)
        t->first = t->best = seconds;
    t->best = seconds < t->best ? seconds : t->best;
}

/* bytes 0: only the time. */
static void row(const char *what, const char *how, const struct taken *t, double bytes)
{
    printf("| %-36s | %-32s | %8.2f | %8.2f |", what, how, 1e3 * t->first, 1e3 * t->best);
    if (bytes > 0)
        printf(" %6.1f |\n", bytes / t->best / 1e9);
    else
        printf("        |\n");
    fflush(stdout);
}

/* ---- threads ------------------------------------------------------------------------------ */

/* Runs work(i) for i = 0 .. n-1, one thread per i; returns seconds until the last has ended. */
static double in_threads(int n, void *(*work)(void *))
{
    pthread_t thread[MAX_THREADS];
    double from = now_s();
    for (intptr_t i = 0; i < n; i++)
        need(pthread_create(&thread[i], NULL, work, (void *)i) == 0, "a thread");
    for (int i = 0; i < n; i++)
        pthread_join(thread[i], NULL);
    return now_s() - from;
}

/* ---- host memory -------------------------------------------------------------------------- */

enum way { HOST_ALLOC, MAPPED, HUGE_PAGES, N_WAYS };
static const char *const way_names[] = {"cudaHostAlloc", "mmap, populated; cudaHostRegister",
                                        "mmap, huge pages; cudaHostRegister"};

static struct {
    enum way way;
    int n_threads, n_pieces; /* of all stages together */
    void *piece[READERS * N_STAGES];
} want;

static void *get_piece(size_t bytes)
{
    void *p = NULL;
    if (want.way == HOST_ALLOC) {
        must(cudaHostAlloc(&p, bytes, cudaHostAllocDefault), "cudaHostAlloc");
        return p;
    }
    int now = want.way == MAPPED ? MAP_POPULATE : 0;
    p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | now, -1, 0);
    need(p != MAP_FAILED, "mmap");
    if (want.way == HUGE_PAGES) {
        (void)madvise(p, bytes, MADV_HUGEPAGE); /* refused: small pages, as the time shows */
        for (size_t i = 0; i < bytes; i += 4096)
            ((volatile char *)p)[i] = 0;
    }
    must(cudaHostRegister(p, bytes, cudaHostRegisterDefault), "cudaHostRegister");
    return p;
}

static void drop_piece(void *p, size_t bytes)
{
    if (want.way == HOST_ALLOC) {
        must(cudaFreeHost(p), "cudaFreeHost");
        return;
    }
    must(cudaHostUnregister(p), "cudaHostUnregister");
    munmap(p, bytes);
}

static void *get_pieces(void *arg)
{
    for (int i = (int)(intptr_t)arg; i < want.n_pieces; i += want.n_threads)
        want.piece[i] = get_piece((size_t)ALL_STAGES / (size_t)want.n_pieces);
    return NULL;
}

static void host_memory(void)
{
    static const int ways[][2] = {{1, 1}, {1, READERS * N_STAGES}, {4, READERS * N_STAGES},
                                  {READERS, READERS}, {READERS, READERS * N_STAGES}};
    for (int w = 0; w < N_WAYS; w++) {
        for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
            struct taken took = {};
            char how[64];
            want.way = (enum way)w;
            want.n_threads = ways[i][0];
            want.n_pieces = ways[i][1];
            for (int r = 0; r < REPEAT; r++) {
                count(&took, in_threads(want.n_threads, get_pieces));
                for (int k = 0; k < want.n_pieces; k++)
                    drop_piece(want.piece[k], (size_t)ALL_STAGES / (size_t)want.n_pieces);
            }
            snprintf(how, sizeof(how), "%d MiB in %d piece%s, %d thread%s", ALL_STAGES >> 20,
                     want.n_pieces, want.n_pieces == 1 ? "" : "s", want.n_threads,
                     want.n_threads == 1 ? "" : "s");
            row(way_names[w], how, &took, ALL_STAGES);
        }
    }
}

/* ---- device memory ------------------------------------------------------------------------ */

static void device_memory(void)
{
    for (int n = N_BLOCKS; n > 0; n = n == 1 ? 0 : 1) {
        struct taken took = {};
        char how[64];
        for (int r = 0; r < REPEAT; r++) {
            void *block[N_BLOCKS];
            double from = now_s();
            for (int i = 0; i < n; i++)
                must(cudaMalloc(&block[i], (size_t)(file_bytes / n)), "cudaMalloc");
            count(&took, now_s() - from);
            for (int i = 0; i < n; i++)
                must(cudaFree(block[i]), "cudaFree");
        }
        snprintf(how, sizeof(how), "the file's size in %d block%s", n, n == 1 ? "" : "s");
        row("cudaMalloc", how, &took, 0);
    }
}

/* ---- reading and copying ------------------------------------------------------------------ */

/* How the file is read into the stages, by pread() or from a mapping, and whether it is copied
 * to the GPU. */
static struct {
    bool from_mapping, upload;
    bool fresh; /* each thread gets a stage when it first needs it */
    size_t stage_bytes;
    int64_t next; /* position in the file, shared by all threads */
    char *to;     /* device */
    cudaStream_t stream;
    char *stages; /* [MAX_THREADS][N_STAGES][MAX_STAGE] */
    char *own[MAX_THREADS][N_STAGES]; /* the fresh ones */
} job;

static void read_piece(char *stage, int64_t at, size_t n)
{
    if (job.from_mapping) {
        memcpy(stage, mapped + at, n);
        return;
    }
    for (size_t done = 0; done < n;) {
        ssize_t got = pread(fd, stage + done, n - done, (off_t)(at + (int64_t)done));
        need(got > 0, "reading");
        done += (size_t)got;
    }
}

static void *read_file(void *arg)
{
    intptr_t me = (intptr_t)arg;
    char *stage[N_STAGES];
    cudaEvent_t copied[N_STAGES];
    for (int s = 0; s < N_STAGES; s++) {
        stage[s] = job.stages + (size_t)(me * N_STAGES + s) * MAX_STAGE;
        must(cudaEventCreateWithFlags(&copied[s], cudaEventDisableTiming | cudaEventBlockingSync),
             "an event");
    }
    for (int64_t i = 0;; i++) {
        int64_t at = __atomic_fetch_add(&job.next, (int64_t)job.stage_bytes, __ATOMIC_RELAXED);
        if (at >= file_bytes)
            break;
        int s = (int)(i % N_STAGES);
        int64_t left = file_bytes - at;
        size_t n = left < (int64_t)job.stage_bytes ? (size_t)left : job.stage_bytes;
        if (job.fresh && i < N_STAGES) {
            must(cudaHostAlloc((void **)&job.own[me][s], job.stage_bytes, cudaHostAllocDefault),
                 "cudaHostAlloc");
            stage[s] = job.own[me][s];
        }
        if (job.upload && i >= N_STAGES)
            must(cudaEventSynchronize(copied[s]), "copying");
        read_piece(stage[s], at, n);
        if (!job.upload)
            continue;
        must(cudaMemcpyAsync(job.to + at, stage[s], n, cudaMemcpyHostToDevice, job.stream), "copying");
        must(cudaEventRecord(copied[s], job.stream), "copying");
    }
    for (int s = 0; s < N_STAGES; s++) {
        must(cudaEventSynchronize(copied[s]), "copying");
        must(cudaEventDestroy(copied[s]), "event");
    }
    return NULL;
}

static void map_file(void)
{
    if (mapped != NULL)
        munmap((void *)mapped, (size_t)file_bytes);
    mapped = (const char *)mmap(NULL, (size_t)file_bytes, PROT_READ, MAP_SHARED, fd, 0);
    need(mapped != MAP_FAILED, "mmap");
}

static struct taken read_all(int n_threads, size_t stage_bytes)
{
    struct taken took = {};
    job.stage_bytes = stage_bytes;
    for (int r = 0; r < REPEAT; r++) {
        job.next = 0;
        if (job.from_mapping)
            map_file(); /* its pages are touched for the first time, as in a load */
        count(&took, in_threads(n_threads, read_file));
        for (int i = 0; i < MAX_THREADS * N_STAGES; i++) {
            must(cudaFreeHost(job.own[i / N_STAGES][i % N_STAGES]), "cudaFreeHost");
            job.own[i / N_STAGES][i % N_STAGES] = NULL;
        }
    }
    return took;
}

static void reading(const char *what, bool from_mapping, bool upload, bool fresh)
{
    static const int threads[] = {4, 8, 12, 16};
    static const size_t stages[] = {1 << 20, 2 << 20, 4 << 20, 8 << 20};
    job.from_mapping = from_mapping;
    job.upload = upload;
    job.fresh = fresh;
    for (int t = 0; t < 4; t++) {
        for (int s = 0; s < (upload ? 4 : 3); s++) {
            char how[64];
            snprintf(how, sizeof(how), "%d threads, stages of %zu MiB", threads[t], stages[s] >> 20);
            struct taken took = read_all(threads[t], stages[s]);
            row(what, how, &took, (double)file_bytes);
        }
    }
}

/* Copies alone, from one thread and one stream: the limit of a load. */
static void copying(void)
{
    for (size_t bytes = 1 << 20; bytes <= MAX_STAGE; bytes *= 2) {
        struct taken took = {};
        char how[64];
        for (int r = 0; r < REPEAT; r++) {
            double from = now_s();
            for (int64_t at = 0; at + (int64_t)bytes <= file_bytes; at += (int64_t)bytes)
                must(cudaMemcpyAsync(job.to + at, job.stages + at % ((int64_t)MAX_STAGE * MAX_THREADS),
                                     bytes, cudaMemcpyHostToDevice, job.stream),
                     "copying");
            must(cudaStreamSynchronize(job.stream), "copying");
            count(&took, now_s() - from);
        }
        snprintf(how, sizeof(how), "%zu MiB at a time", bytes >> 20);
        row("copy to the GPU", how, &took, (double)(file_bytes / (int64_t)bytes * (int64_t)bytes));
    }
}

/* ---- all ---------------------------------------------------------------------------------- */

static void open_file(const char *path)
{
    struct stat st;
    fd = open(path, O_RDONLY | O_CLOEXEC);
    need(fd >= 0, path);
    need(fstat(fd, &st) == 0, path);
    file_bytes = (int64_t)st.st_size;
    if (file_bytes < MAX_STAGE) {
        printf("FAILED %s: a file of at least %d MiB is needed\n", path, MAX_STAGE >> 20);
        exit(1);
    }
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "load_trial FILE: a checkpoint's file, of a few GB\n");
        return 64;
    }
    open_file(argv[1]);
    double from = now_s();
    must(cudaSetDevice(0), "opening the GPU");
    must(cudaFree(NULL), "opening the GPU");
    struct taken took = {};
    count(&took, now_s() - from);
    cudaDeviceProp p;
    must(cudaGetDeviceProperties(&p, 0), "asking the GPU");
    printf("%s; %s, %.2f GB; %ld processors; each %d times\n\n", p.name, argv[1],
           (double)file_bytes / 1e9, sysconf(_SC_NPROCESSORS_ONLN), REPEAT);
    printf("| %-36s | %-32s | %8s | %8s | %6s |\n| --- | --- | ---: | ---: | ---: |\n", "what", "how",
           "first ms", "least ms", "GB/s");
    row("opening the GPU", "", &took, 0);
    host_memory();
    device_memory();
    must(cudaHostAlloc((void **)&job.stages, (size_t)MAX_THREADS * N_STAGES * MAX_STAGE,
                       cudaHostAllocDefault),
         "cudaHostAlloc");
    must(cudaMalloc((void **)&job.to, (size_t)file_bytes), "cudaMalloc");
    must(cudaStreamCreateWithFlags(&job.stream, cudaStreamNonBlocking), "a stream");
    (void)read_all(MAX_THREADS, STAGE); /* into the page cache */
    copying();
    reading("pread into stages", false, false, false);
    reading("memcpy from a mapping into stages", true, false, false);
    reading("pread and copy, stages there", false, true, false);
    reading("pread and copy, stages got meanwhile", false, true, true);
    return 0;
}
