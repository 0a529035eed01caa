/*
 * Products on sm_90a (kernels/cuda/gemm/gemm_hopper.cu): correctness, equal bits regardless of the other
 * rows, and speed relative to cuBLASLt. From the repository's root, alone:
 *
 *   nvcc -std=c++17 -O3 --expt-relaxed-constexpr -gencode arch=compute_90a,code=sm_90a -I. -DALONE
 *     -o test_gemm tests/gpu/test_gemm.cu -lcublasLt && ./test_gemm
 *
 * which leaves out the product that finishes queries, keys and values.
 *
 * test_gemm rates | head | tune: instead of the checks, the rates (a minute); those of the LM head
 * (20 s); those of other tile orders.
 */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/cuda/cuda.h"
#ifdef ALONE
#include "kernels/cuda/gemm/gemm_hopper.cu"

enum ctw_status ctw_fail(struct ctw_err *err, enum ctw_status status, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(err->msg, sizeof(err->msg), fmt, ap);
    va_end(ap);
    return status;
}

enum ctw_status ctw_cuda_check(cudaError_t e, const char *what, struct ctw_err *err)
{
    return e == cudaSuccess ? CTW_OK
                            : ctw_fail(err, CTW_EDEVICE, "%s: %s", what, cudaGetErrorString(e));
}

enum ctw_status ctw_cuda_launched(const char *what, struct ctw_err *err)
{
    return ctw_cuda_check(cudaGetLastError(), what, err);
}
#else
extern int ctw_hopper_group, ctw_hopper_lead;
#endif

enum { STORED, ADDED, GATED, HEADED, SPLIT, FUSED }; /* SPLIT, FUSED: q k v, in two steps or one */
enum { GUARD = 4096 }; /* bytes before and after an output */

static struct ctw_cuda cu;
static cudaEvent_t event[2];
static int n_failed;

static void must(cudaError_t e, const char *what)
{
    if (e != cudaSuccess) {
        printf("FAILED %s: %s\n", what, cudaGetErrorString(e));
        exit(1);
    }
}

static void *device(size_t bytes)
{
    void *p = NULL;
    must(cudaMalloc(&p, bytes), "cudaMalloc");
    return p;
}

/* ---- on the device ------------------------------------------------------------------------ */

static __device__ float random_at(uint64_t i, uint32_t seed)
{
    uint64_t z = (i + 1) * 0x9E3779B97F4A7C15u + seed * 0xD1B54A32D192ED03u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    z ^= z >> 31;
    float s = 0; /* about normal, variance 1 */
    for (int j = 0; j < 4; j++)
        s += (float)(z >> 16 * j & 0xFFFF) / 65536.0f - 0.5f;
    return s * 1.7320508f;
}

static __device__ double get(const void *p, int64_t i, enum ctw_dtype t)
{
    return t == CTW_F32    ? (double)((const float *)p)[i]
           : t == CTW_BF16 ? (double)__bfloat162float(((const __nv_bfloat16 *)p)[i])
                           : (double)__half2float(((const __half *)p)[i]);
}

static __global__ void fill(void *p, int64_t n, enum ctw_dtype t, float scale, uint32_t seed)
{
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        float v = random_at(i, seed) * scale;
        if (t == CTW_F32)
            ((float *)p)[i] = v;
        else if (t == CTW_BF16)
            ((__nv_bfloat16 *)p)[i] = __float2bfloat16_rn(v);
        else
            ((__half *)p)[i] = __float2half_rn(v);
    }
}

/* sum[r, c] of products, and of their magnitudes. */
static __global__ void sums(struct ctw_cuda_gemm g, double *sum, double *size)
{
    int64_t c = blockIdx.x * 32 + threadIdx.x, r = blockIdx.y * 8 + threadIdx.y;
    if (c >= g.n || r >= g.m)
        return;
    double s = 0, a = 0;
    for (int64_t i = 0; i < g.k; i++) {
        double v = get(g.x, r * g.ldx + i, g.dtype) * get(g.w, c * g.ldw + i, g.dtype);
        s += v;
        a += fabs(v);
    }
    sum[r * g.n + c] = s;
    size[r * g.n + c] = a;
}

static __device__ double activate(double g, enum ctw_activation act)
{
    if (act == CTW_ACT_SILU)
        return g / (1 + exp(-g));
    if (act == CTW_ACT_GELU)
        return 0.5 * g * erfc(-g * 0.70710678118654752);
    return 0.5 * g * (1 + tanh(0.79788456080286536 * (g + 0.044715 * g * g * g)));
}

struct counts {
    unsigned long long bad, guards;
    double worst; /* error over its bound; no atomics: the larger of racing writes may be lost */
};

/* Is y what g specifies? `before` is y's previous content, for g.add. */
static __global__ void compare(struct ctw_cuda_gemm g, const double *sum, const double *size,
                               const void *before, int what, enum ctw_activation act, counts *out)
{
    int64_t n = what == GATED ? g.n / 2 : g.n;
    int64_t c = blockIdx.x * 32 + threadIdx.x, r = blockIdx.y * 8 + threadIdx.y;
    if (r >= g.m || c >= g.ldy)
        return;
    if (c >= n) {
        if (((const uint16_t *)g.y)[(r * g.ldy + c) * (g.y_dtype == CTW_F32 ? 2 : 1)] != 0xA5A5)
            atomicAdd(&out->guards, 1ull);
        return;
    }
    double u = 1.0 / (1 << 23), steps = (double)(g.k / 16 + 8), want, bound;
    if (what == GATED) {
        int64_t i = c / CTW_CUDA_GATE_BLOCK * 2 * CTW_CUDA_GATE_BLOCK + c % CTW_CUDA_GATE_BLOCK;
        int64_t j = i + CTW_CUDA_GATE_BLOCK;
        double a = sum[r * g.n + i] + (g.bias ? g.bias[i] : 0);
        double b = sum[r * g.n + j] + (g.bias ? g.bias[j] : 0);
        want = activate(a, act) * b;
        bound = steps * u * (1.13 * size[r * g.n + i] * fabs(b) + fabs(a) * size[r * g.n + j]) +
                64 * u * fabs(a * b);
    } else {
        double old = what == ADDED ? get(before, r * g.ldy + c, g.y_dtype) : 0;
        want = sum[r * g.n + c] + (g.bias ? g.bias[c] : 0) + old;
        bound = steps * u * size[r * g.n + c] + 4 * u * (fabs(want) + fabs(old));
    }
    if (g.y_dtype != CTW_F32)
        bound += fabs(want) * (g.y_dtype == CTW_BF16 ? 1.0 / 250 : 1.0 / 2000) + 6e-8;
    double error = fabs(get(g.y, r * g.ldy + c, g.y_dtype) - want);
    if (!(error <= bound))
        atomicAdd(&out->bad, 1ull);
    if (error / bound > out->worst)
        out->worst = error / bound;
}

static __global__ void guards(const unsigned char *a, const unsigned char *b, int n, counts *out)
{
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        if (a[i] != 0xA5 || b[i] != 0xA5)
            atomicAdd(&out->guards, 1ull);
}

static __global__ void differ(const uint16_t *a, const uint16_t *b, int64_t n, unsigned long long *out)
{
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        if (a[i] != b[i])
            atomicAdd(out, 1ull);
}

/* ---- checks ------------------------------------------------------------------------------- */

/* The epilogue, in words. */
static const char *name_of(int what, enum ctw_dtype dtype, enum ctw_dtype y_dtype)
{
    static char s[64];
    snprintf(s, sizeof(s), "%s %s", dtype == CTW_F16 ? "f16" : "bf16",
             what == HEADED  ? "head"
             : what == SPLIT ? "store, split"
             : what == FUSED ? "qkv"
             : what == GATED ? "gated"
             : what == ADDED ? (y_dtype == CTW_F32 ? "add32" : "add16")
                             : (y_dtype == CTW_F32 ? "store32" : "store16"));
    return s;
}

static void run(const struct ctw_cuda_gemm *g, int what, enum ctw_activation act)
{
    struct ctw_err err;
    bool done = false;
    enum ctw_status st = what == GATED ? ctw_cuda_gate_hopper(&cu, g, act, &done, &err)
                                       : ctw_cuda_gemm_hopper(&cu, g, &done, &err);
    if (st != CTW_OK || !done) {
        printf("FAILED %lld x %lld x %lld: %s\n", (long long)g->m, (long long)g->n, (long long)g->k,
               st != CTW_OK ? err.msg : "declined");
        exit(1);
    }
}

static unsigned long long differences(const void *a, const void *b, size_t bytes)
{
    static unsigned long long *count;
    unsigned long long n = 0;
    if (count == NULL)
        count = (unsigned long long *)device(8);
    must(cudaMemsetAsync(count, 0, 8, cu.stream), "memset");
    differ<<<256, 256, 0, cu.stream>>>((const uint16_t *)a, (const uint16_t *)b, (int64_t)bytes / 2,
                                       count);
    must(cudaMemcpyAsync(&n, count, 8, cudaMemcpyDeviceToHost, cu.stream), "copy");
    must(cudaStreamSynchronize(cu.stream), "differences");
    return n;
}

struct arrays {
    char *x, *w, *y, *before;
    float *bias;
    double *sum, *size;
    counts *result;
};

static void check_one(const struct arrays *a, struct ctw_cuda_gemm g, int what, enum ctw_dtype y_dtype,
                      enum ctw_activation act, bool bias, counts *all)
{
    counts c;
    int64_t n = what == GATED ? g.n / 2 : g.n;
    g.y_dtype = y_dtype;
    g.ldy = (n + 7) / 8 * 8 + 8;
    g.add = what == ADDED;
    g.bias = bias ? a->bias : NULL;
    g.y = a->y + GUARD;
    size_t bytes = (size_t)(g.m * g.ldy) * ctw_dtype_bytes(y_dtype);
    must(cudaMemsetAsync(a->y, 0xA5, bytes + 2 * GUARD, cu.stream), "memset");
    if (what == ADDED)
        must(cudaMemcpy2DAsync(g.y, g.ldy * ctw_dtype_bytes(y_dtype), a->before,
                               g.ldy * ctw_dtype_bytes(y_dtype), n * ctw_dtype_bytes(y_dtype), g.m,
                               cudaMemcpyDeviceToDevice, cu.stream),
             "copy");
    must(cudaMemsetAsync(a->result, 0, sizeof(c), cu.stream), "memset");
    run(&g, what, act);
    dim3 grid((unsigned)(g.ldy + 31) / 32, (unsigned)(g.m + 7) / 8), block(32, 8);
    compare<<<grid, block, 0, cu.stream>>>(g, a->sum, a->size, a->before, what, act, a->result);
    guards<<<1, 256, 0, cu.stream>>>((unsigned char *)a->y, (unsigned char *)g.y + bytes, GUARD,
                                     a->result);
    must(cudaMemcpyAsync(&c, a->result, sizeof(c), cudaMemcpyDeviceToHost, cu.stream), "copy");
    must(cudaStreamSynchronize(cu.stream), "a product");
    if (c.bad || c.guards) {
        if (n_failed++ < 20)
            printf("WRONG %s m %lld n %lld k %lld act %d bias %d: %llu wrong, %llu guards, worst %.3g\n",
                   name_of(what, g.dtype, y_dtype), (long long)g.m, (long long)g.n, (long long)g.k,
                   (int)act, bias, c.bad, c.guards, c.worst);
    }
    all->bad += c.bad;
    all->guards += c.guards;
    all->worst = fmax(all->worst, c.worst);
}

static void check_shapes(void)
{
    const int ms[] = {1, 63, 64, 65, 129, 1000}, ns[] = {8, 72, 136, 256, 264, 1000};
    const int ks[] = {8, 64, 72, 576, 1536, 4096};
    const size_t most = 1024 * 4200 * 4;
    struct arrays a = {(char *)device(most), (char *)device(most), (char *)device(most),
                       (char *)device(most), (float *)device(65536), (double *)device(1000 * 1000 * 8),
                       (double *)device(1000 * 1000 * 8), (counts *)device(sizeof(counts))};
    fill<<<64, 256, 0, cu.stream>>>(a.bias, 65536 / 4, CTW_F32, 1, 3);
    for (int f16 = 0; f16 < 2; f16++) {
        enum ctw_dtype t = f16 ? CTW_F16 : CTW_BF16;
        counts all[7] = {};
        for (int i = 0; i < 216; i++) {
            struct ctw_cuda_gemm g = {};
            g.m = ms[i % 6], g.n = ns[i / 6 % 6], g.k = ks[i / 36];
            g.dtype = t;
            g.ldx = g.k + 8, g.ldw = g.k + 16;
            g.x = a.x, g.w = a.w;
            fill<<<512, 256, 0, cu.stream>>>(a.x, g.m * g.ldx, t, 1, i);
            fill<<<512, 256, 0, cu.stream>>>(a.w, g.n * g.ldw, t, 1 / sqrtf(g.k), i + 1000);
            dim3 grid((unsigned)(g.n + 31) / 32, (unsigned)(g.m + 7) / 8), block(32, 8);
            sums<<<grid, block, 0, cu.stream>>>(g, a.sum, a.size);
            bool bias = i / 6 % 2 == i % 2;
            fill<<<512, 256, 0, cu.stream>>>(a.before, 1000 * 1008, t, 1, 7);
            check_one(&a, g, STORED, t, CTW_ACT_SILU, bias, &all[0]);
            check_one(&a, g, STORED, CTW_F32, CTW_ACT_SILU, bias, &all[1]);
            check_one(&a, g, ADDED, t, CTW_ACT_SILU, bias, &all[2]);
            fill<<<512, 256, 0, cu.stream>>>(a.before, 1000 * 1008, CTW_F32, 1, 7);
            check_one(&a, g, ADDED, CTW_F32, CTW_ACT_SILU, bias, &all[3]);
            for (int act = 0; act < 3 && g.n % 16 == 0; act++)
                check_one(&a, g, GATED, t, (enum ctw_activation)act, bias, &all[4 + act]);
        }
        const char *names[] = {"store16", "store32", "add16", "add32", "silu", "gelu", "gelu_tanh"};
        for (int e = 0; e < 7; e++)
            printf("%s %s %s: %llu wrong, %llu guards, worst error %.2f of its bound\n",
                   all[e].bad || all[e].guards ? "FAILED" : "ok", f16 ? "f16" : "bf16", names[e],
                   all[e].bad, all[e].guards, all[e].worst);
    }
    cudaFree(a.x), cudaFree(a.w), cudaFree(a.y), cudaFree(a.before), cudaFree(a.bias);
    cudaFree(a.sum), cudaFree(a.size), cudaFree(a.result);
}

/* Rows alone, at other positions, under other tile orders: equal bits. */
static void check_company(void)
{
    const int64_t m = 3000, n = 2048, k = 4096, rows[] = {0, 63, 127, 128, 500, 2303, 2999};
    struct ctw_cuda_gemm g = {};
    g.n = n, g.k = g.ldx = g.ldw = k;
    char *x = (char *)device(m * k * 2), *w = (char *)device(n * k * 2);
    char *y = (char *)device(m * n * 4), *z = (char *)device(m * n * 4);
    for (int e = 0; e < 6; e++) {
        int what = e % 3;
        g.dtype = e < 3 ? CTW_BF16 : CTW_F16;
        g.y_dtype = what == GATED ? g.dtype : CTW_F32;
        g.add = what == ADDED;
        g.ldy = what == GATED ? n / 2 : n;
        g.x = x, g.w = w, g.y = y, g.m = m;
        size_t row = g.ldy * ctw_dtype_bytes(g.y_dtype);
        int before = what == ADDED ? 0x3F : 0; /* 0.747 */
        unsigned long long bad = 0;
        fill<<<512, 256, 0, cu.stream>>>(x, m * k, g.dtype, 1, 1);
        fill<<<512, 256, 0, cu.stream>>>(w, n * k, g.dtype, 1 / 64.0f, 2);
        must(cudaMemsetAsync(y, before, m * n * 4, cu.stream), "memset");
        run(&g, what, CTW_ACT_SILU);
        for (size_t i = 0; i < CTW_COUNT(rows); i++) {
            g.m = 1, g.x = x + rows[i] * k * 2, g.y = z;
            must(cudaMemsetAsync(z, before, row, cu.stream), "memset");
            run(&g, what, CTW_ACT_SILU);
            bad += differences(y + rows[i] * row, z, row);
        }
        g.m = m - 37, g.x = x + 37 * k * 2;
        must(cudaMemsetAsync(z, before, m * n * 4, cu.stream), "memset");
        run(&g, what, CTW_ACT_SILU);
        bad += differences(y + 37 * row, z, (m - 37) * row);
        g.m = m, g.x = x;
        for (int i = 0; i < 12; i++) {
            const int groups[] = {1, 8, 64};
            ctw_hopper_lead = i % 4;
            ctw_hopper_group = groups[i / 4];
            must(cudaMemsetAsync(z, before, m * n * 4, cu.stream), "memset");
            run(&g, what, CTW_ACT_SILU);
            bad += differences(y, z, m * row);
        }
        ctw_hopper_lead = 2, ctw_hopper_group = 8;
        n_failed += bad != 0;
        printf("%s company, %s: %llu differences\n", bad ? "FAILED" : "ok",
               name_of(what, g.dtype, g.y_dtype), bad);
    }
    cudaFree(x), cudaFree(w), cudaFree(y), cudaFree(z);
}

#include "tests/gpu/gemm_head.h"
#ifndef ALONE
#include "tests/gpu/gemm_qkv.h"
#endif
#include "tests/gpu/gemm_rates.h"
#include "tests/gpu/gemm_sums.h"

int main(int argc, char **argv)
{
    const char *only = argc > 1 ? argv[1] : "check";
    cudaDeviceProp p;
    must(cudaGetDeviceProperties(&p, 0), "asking the device");
    printf("%s, %d multiprocessors\n", p.name, p.multiProcessorCount);
    cu.hopper = true;
    cu.n_sm = p.multiProcessorCount;
    must(cudaStreamCreateWithFlags(&cu.stream, cudaStreamNonBlocking), "a stream");
    for (int i = 0; i < 2; i++)
        must(cudaEventCreate(&event[i]), "an event");
    cu.workspace = device(CTW_CUDA_WORKSPACE);
    if (cublasLtCreate(&cu.lt) != CUBLAS_STATUS_SUCCESS)
        return 1;
    if (strcmp(only, "check") == 0) {
        check_shapes();
        check_hard_sums();
        check_company();
        check_head();
#ifndef ALONE
        check_qkv();
#endif
        check_peer();
    }
    if (strcmp(only, "rates") == 0)
        rates(0);
    if (strcmp(only, "head") == 0)
        rates(FIRST_HEAD);
    if (strcmp(only, "tune") == 0)
        tune();
    printf("%s\n", n_failed ? "FAILED" : "all ok");
    return n_failed != 0;
}
