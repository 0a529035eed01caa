/*
 * Small tables (ctw_cuda_table()): uploaded beside the operations' stream, they are there before the
 * next operation, and stay until the operations before it have read them. One of the two streams is
 * held back, so that an upload is late, or operations are. Seconds.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/cuda/cuda.h"

enum { RING = 64 << 10, TABLES = 200, MOST = RING / 4, HELD_US = 50000 };

static struct ctw_cuda cu;
static struct ctw_err err;
static unsigned char table[MOST], read_back[TABLES][MOST], *device_copy;
static int n_failed;

static void must(bool ok, const char *what)
{
    if (ok)
        return;
    printf("FAILED %s: %s\n", what, err.msg[0] != 0 ? err.msg : cudaGetErrorString(cudaGetLastError()));
    exit(1);
}

static void hold_back(void *ignored)
{
    (void)ignored;
    usleep(HELD_US);
}

/* Bytes of table i; sizes vary, so that tables begin anywhere in a quarter. */
static size_t make(int i)
{
    size_t bytes = 1 + (size_t)i * 7919 % MOST;
    for (size_t at = 0; at < bytes; at++)
        table[at] = (unsigned char)(31 * i + (int)at);
    return bytes;
}

/* Uploads tables, each read by a copy on the operations' stream. Before every `each`-th one, `held`
 * waits. */
static void check(cudaStream_t held, int each, const char *what)
{
    void *at = NULL;
    int n_wrong = 0;
    for (int i = 0; i < TABLES; i++) {
        if (i % each == 0)
            must(cudaLaunchHostFunc(held, hold_back, NULL) == cudaSuccess, "holding a stream back");
        size_t bytes = make(i);
        must(ctw_cuda_table(&cu, table, bytes, &at, &err) == CTW_OK, "a table");
        must(cudaMemcpyAsync(device_copy + (size_t)i * MOST, at, bytes, cudaMemcpyDeviceToDevice,
                             cu.stream) == cudaSuccess,
             "reading a table");
    }
    must(cudaStreamSynchronize(cu.stream) == cudaSuccess, "reading tables");
    must(cudaMemcpy(read_back, device_copy, sizeof(read_back), cudaMemcpyDeviceToHost) == cudaSuccess,
         "copying tables");
    for (int i = 0; i < TABLES; i++) {
        size_t bytes = make(i);
        n_wrong += memcmp(read_back[i], table, bytes) != 0;
    }
    printf("%s %s: %d of %d tables were read with other bytes\n", n_wrong ? "FAILED" : "ok    ", what,
           n_wrong, TABLES);
    n_failed += n_wrong > 0;
}

int main(void)
{
    must(ctw_cuda_make_streams(&cu, &err) == CTW_OK, "streams");
    cu.ring.bytes = RING;
    must(cudaMallocHost((void **)&cu.ring.host, RING) == cudaSuccess, "pinned memory");
    must(cudaMalloc((void **)&cu.ring.device, RING) == cudaSuccess, "memory");
    must(cudaMalloc((void **)&device_copy, sizeof(read_back)) == cudaSuccess, "memory");
    check(cu.tables, 10, "late uploads");
    check(cu.stream, 10, "late operations");
    printf("%s\n", n_failed ? "FAILED" : "all ok");
    return n_failed > 0;
}
