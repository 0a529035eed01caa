/*
 * Products without tensor cores: y = x w^T (+ bias) (+ y), every sum one chain of fused
 * multiply-adds in the order of k, from zero. For the reference mode's products (fp32), and for
 * 16-bit products that cuBLASLt does not support (k or a leading dimension not a multiple of 8,
 * unaligned pointers).
 *
 * A block of 256 threads computes a tile of 128 rows and 128 columns, 8 x 8 per thread. It
 * processes k in steps of 16 through two buffers in shared memory. A step is loaded into registers
 * while the previous step is multiplied, so one barrier per step is enough: the buffer written was
 * read one step earlier.
 */
#include "kernels/cuda/elements.h"

enum { TILE = 128, STEP = 16, THREADS = 256, PITCH = TILE + 4, GROUP = 8 };

struct product {
    const void *x, *w;
    void *y;
    const float *bias;
    int64_t m, n, k, ldx, ldw, ldy;
    enum ctw_dtype y_dtype;
    bool add;
};

static __device__ float load(const void *p, enum ctw_dtype dtype, int64_t i)
{
    return dtype == CTW_F32    ? ((const float *)p)[i]
           : dtype == CTW_BF16 ? __bfloat162float(((const __nv_bfloat16 *)p)[i])
                               : __half2float(((const __half *)p)[i]);
}

/*
 * A thread's share of a 128 x 16 piece of x or w: rows row0 + 4 j (j 0..3), columns col and
 * col + 8. A warp's load touches 4 rows of 8 neighbours (whole 32-byte sectors of fp32), and its store
 * into [column][row] with rows 132 apart hits bank 4 column + row: 32 different banks.
 */
template <typename T> struct share {
    const T *p;    /* row row0, column col of the next step */
    int stride;    /* of 4 rows: dimensions are at most CTW_MAX_DIM */
    unsigned rows; /* bit j: row0 + 4 j is a row of the matrix */
};

template <typename T>
static __device__ share<T> share_of(const void *base, int64_t ld, int64_t first, int64_t n_rows)
{
    int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 8;
    share<T> s;
    s.p = (const T *)base + (first + row) * ld + lane % 8;
    s.stride = (int)(4 * ld);
    s.rows = 0;
    for (int j = 0; j < 4; j++)
        s.rows |= (first + row + 4 * j < n_rows ? 1u : 0u) << j;
    return s;
}

/* The next step; elements outside the matrix are 0. `left`: columns from its first column to the
 * end of k. */
template <typename T> static __device__ __forceinline__ void fetch(share<T> &s, int left, float v[8])
{
    int col = threadIdx.x % 8;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        bool in = (s.rows >> (i / 2) & 1) != 0 && col + 8 * (i % 2) < left;
        v[i] = in ? ctw_cuda_widen(s.p[(int64_t)(i / 2) * s.stride + 8 * (i % 2)]) : 0.0f;
    }
    s.p += STEP;
}

static __device__ __forceinline__ void put(float (*to)[PITCH], const float v[8])
{
    int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 8, col = lane % 8;
#pragma unroll
    for (int i = 0; i < 8; i++)
        to[col + 8 * (i % 2)][row + 4 * (i / 2)] = v[i];
}

/*
 * A thread's 8 rows are 4 at row0 and 4 at row0 + 16, its columns 4 at col0 and 4 at col0 + 32, so
 * that a warp (4 x 8 threads) covers 32 x 64 and its reads of 16 bytes are contiguous.
 */
static __device__ __forceinline__ void multiply(const float (*xs)[PITCH], const float (*ws)[PITCH],
                                                int row0, int col0, float acc[8][8])
{
#pragma unroll
    for (int c = 0; c < STEP; c++) {
        float a[8], b[8];
        *(float4 *)&a[0] = *(const float4 *)&xs[c][row0];
        *(float4 *)&a[4] = *(const float4 *)&xs[c][row0 + 16];
        *(float4 *)&b[0] = *(const float4 *)&ws[c][col0];
        *(float4 *)&b[4] = *(const float4 *)&ws[c][col0 + 32];
#pragma unroll
        for (int i = 0; i < 8; i++)
#pragma unroll
            for (int j = 0; j < 8; j++)
                acc[i][j] = fmaf(a[i], b[j], acc[i][j]);
    }
}

/* Blocks cover 8 tiles of rows before the next tile of columns, so that neighbouring blocks share w. */
template <typename T>
static __global__ void __launch_bounds__(THREADS, 2) product_kernel(struct product p)
{
    __shared__ __align__(16) float xs[2][STEP][PITCH], ws[2][STEP][PITCH];
    int64_t m_tiles = (p.m + TILE - 1) / TILE, n_tiles = (p.n + TILE - 1) / TILE;
    int64_t group = blockIdx.x / (GROUP * n_tiles), at = blockIdx.x - group * GROUP * n_tiles;
    int64_t high = m_tiles - group * GROUP < GROUP ? m_tiles - group * GROUP : GROUP;
    int64_t m0 = (group * GROUP + at % high) * TILE, n0 = at / high * TILE;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int row0 = warp % 4 * 32 + lane / 8 * 4, col0 = warp / 4 * 64 + lane % 8 * 4;
    share<T> x = share_of<T>(p.x, p.ldx, m0, p.m), w = share_of<T>(p.w, p.ldw, n0, p.n);
    float acc[8][8] = {}, xv[8], wv[8];
    int left = (int)p.k;
    fetch(x, left, xv);
    fetch(w, left, wv);
    put(xs[0], xv);
    put(ws[0], wv);
    __syncthreads();
    for (int now = 0; left > 0;) {
        left -= STEP;
        bool more = left > 0;
        if (more) {
            fetch(x, left, xv);
            fetch(w, left, wv);
        }
        multiply(xs[now], ws[now], row0, col0, acc);
        now ^= 1;
        if (more) {
            put(xs[now], xv);
            put(ws[now], wv);
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
        int64_t row = m0 + row0 + i % 4 + i / 4 * 16;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            int64_t col = n0 + col0 + j % 4 + j / 4 * 32;
            if (row >= p.m || col >= p.n)
                continue;
            float v = acc[i][j];
            if (p.bias != NULL)
                v += p.bias[col];
            if (p.add)
                v += load(p.y, p.y_dtype, row * p.ldy + col);
            ctw_cuda_put(p.y, p.y_dtype, row * p.ldy + col, v);
        }
    }
}

/* Instances: one for each dtype of x and w. */
enum ctw_status ctw_cuda_gemm_simt(struct ctw_cuda *cu, const struct ctw_cuda_gemm *g,
                                   struct ctw_err *err)
{
    struct product p = {g->x, g->w, g->y, g->bias,    g->m,    g->n, g->k,
                        g->ldx, g->ldw, g->ldy, g->y_dtype, g->add};
    int64_t tiles = (g->m + TILE - 1) / TILE * ((g->n + TILE - 1) / TILE);
    if (tiles > INT32_MAX)
        return ctw_fail(err, CTW_EUNSUP, "cuda: a product of %lld x %lld", (long long)g->m,
                        (long long)g->n);
    if (g->dtype == CTW_F32)
        product_kernel<float><<<(unsigned)tiles, THREADS, 0, cu->stream>>>(p);
    else if (g->dtype == CTW_BF16)
        product_kernel<__nv_bfloat16><<<(unsigned)tiles, THREADS, 0, cu->stream>>>(p);
    else
        product_kernel<__half><<<(unsigned)tiles, THREADS, 0, cu->stream>>>(p);
    return ctw_cuda_launched("multiplying matrices", err);
}
