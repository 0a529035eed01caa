/*
 * Are two algorithms for a kind of product bit-identical? They run on random numbers, and rows are
 * compared by 64-bit hashes: up to 2048 rows by as many columns as fit, then fewer rows by all
 * columns with the product's own weights. Windows of the same rows begin and end at different rows,
 * so a row is first, last and in between, alone and among other rows.
 */
#include "kernels/cuda/gemm/gemm.h"

#include <string.h>

#include "base/mem.h"
#include "kernels/cuda/elements.h"

enum { TRIED_ROWS = 2048 };
static_assert(CTW_GEMM_X_BYTES + CTW_GEMM_W_BYTES + CTW_GEMM_Y_BYTES + CTW_GEMM_BIAS_BYTES +
                      CTW_GEMM_HASHES * 8 <=
                  CTW_CUDA_CHOOSE,
              "memory");
static_assert(CTW_CUDA_CHUNK + 2 * (1 + 129 + 1000) <= CTW_GEMM_HASHES, "a hash a row of all windows");

/* ---- kernels ------------------------------------------------------------------------------ */

static __device__ __forceinline__ uint64_t mix(uint64_t v)
{
    v ^= v >> 30;
    v *= 0xbf58476d1ce4e5b9u;
    v ^= v >> 27;
    v *= 0x94d049bb133111ebu;
    return v ^ v >> 31;
}

/* p[i] from (seed, first + i): within -scale .. scale; if `coarse`, eighths, which are exact in
 * any dtype. */
static __global__ void random_kernel(void *p, enum ctw_dtype dtype, int64_t count, int64_t first,
                                     uint64_t seed, float scale, bool coarse)
{
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        uint64_t r = mix((uint64_t)(first + i) * 0x9e3779b97f4a7c15u + seed);
        float v = scale * (float)(int32_t)(r >> 32) * 0x1p-31f;
        if (coarse)
            v = ((float)(int)(r >> 58) - 32.0f) * 0.125f;
        ctw_cuda_put(p, dtype, i, v);
    }
}

/* hash[r] of row r's bits: a sum over columns, so the order does not matter. All NaN hash alike. */
static __global__ void hash_kernel(const void *y, enum ctw_dtype dtype, int64_t n, int64_t ld,
                                   uint64_t *hash)
{
    __shared__ uint64_t part[8];
    uint64_t sum = 0;
    int64_t row = blockIdx.x;
    for (int64_t c = threadIdx.x; c < n; c += 256) {
        uint32_t bits;
        if (dtype == CTW_F32) {
            bits = ((const uint32_t *)y)[row * ld + c];
            bits = (bits & 0x7fffffffu) > 0x7f800000u ? 0x7fffffffu : bits;
        } else {
            bits = ((const uint16_t *)y)[row * ld + c];
            bits = (bits & 0x7fffu) > (dtype == CTW_BF16 ? 0x7f80u : 0x7c00u) ? 0x7fffu : bits;
        }
        sum += mix((uint64_t)(c + 1) << 32 | bits);
    }
    for (int i = 16; i > 0; i /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, i);
    if (threadIdx.x % 32 == 0)
        part[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x != 0)
        return;
    for (int i = 1; i < 8; i++)
        sum += part[i];
    hash[row] = sum;
}

static void fill_random(struct ctw_gemm_trial *t, void *p, enum ctw_dtype dtype, int64_t count,
                        int64_t first, uint64_t seed, float scale, bool coarse)
{
    random_kernel<<<1024, 256, 0, t->cu->stream>>>(p, dtype, count, first, seed, scale, coarse);
}

/* ---- memory ------------------------------------------------------------------------------- */

static void add_window(struct ctw_gemm_stage *s, int64_t row, int64_t rows)
{
    if (row < 0 || row + rows > s->m || (s->n_windows > 0 && rows == s->m))
        return;
    s->window[s->n_windows].row = row;
    s->window[s->n_windows].rows = rows;
    s->n_windows++;
}

static void set_windows(struct ctw_gemm_stage *s)
{
    static const int64_t rows[] = {1, 129, 1000};
    add_window(s, 0, s->m);
    for (size_t i = 0; i < CTW_COUNT(rows); i++) {
        add_window(s, 0, rows[i]);
        add_window(s, s->m - rows[i], rows[i]);
    }
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* The sizes of the trial, determined by g's kind alone. False: rows are too long for the memory. */
static bool plan(struct ctw_gemm_trial *t)
{
    const struct ctw_cuda_gemm *g = t->g;
    int64_t y_bytes = (int64_t)ctw_dtype_bytes(g->y_dtype), ldy = (g->n + 7) / 8 * 8;
    int64_t rows = CTW_GEMM_X_BYTES / (2 * g->k);
    struct ctw_gemm_stage *tile = &t->tile, *whole = &t->whole;
    tile->m = least(rows, TRIED_ROWS);
    if (tile->m < 1)
        return false;
    int64_t most = least(CTW_GEMM_W_BYTES / (2 * g->k), CTW_GEMM_Y_BYTES / (y_bytes * tile->m));
    most -= most % (most < 128 ? 8 : 128);
    tile->n = least(g->n, most);
    whole->n = g->n;
    whole->m = least(least(rows, (CTW_GEMM_W_BYTES + CTW_GEMM_Y_BYTES) / (y_bytes * ldy)),
                     CTW_CUDA_CHUNK);
    return tile->n >= 1 && whole->m >= 1 && (g->bias == NULL || g->n * 6 + 512 <= CTW_GEMM_BIAS_BYTES);
}

static void set_stage(struct ctw_gemm_stage *s, const void *w, int64_t ldw, void *y, uint64_t *want)
{
    s->w = w;
    s->ldw = ldw;
    s->y = y;
    s->ldy = (s->n + 7) / 8 * 8;
    s->want = want;
    set_windows(s);
}

enum ctw_status ctw_gemm_trial_open(struct ctw_gemm_trial *t, struct ctw_cuda *cu,
                                    const struct ctw_cuda_gemm *g, bool *fits, struct ctw_err *err)
{
    memset(t, 0, sizeof(*t));
    t->cu = cu;
    t->g = g;
    *fits = plan(t);
    if (!*fits)
        return CTW_OK;
    t->host = (uint64_t *)ctw_calloc(3 * CTW_GEMM_HASHES, sizeof(uint64_t));
    if (t->host == NULL)
        return ctw_fail(err, CTW_ENOMEM, "cuda: out of memory");
    enum ctw_status st = ctw_cuda_check(cudaMalloc((void **)&t->base, CTW_CUDA_CHOOSE),
                                        "128 MiB to choose algorithms for products", err);
    if (st != CTW_OK)
        return st;
    t->x = t->base;
    t->w = t->x + CTW_GEMM_X_BYTES;
    char *y = t->w + CTW_GEMM_W_BYTES;
    t->bias = y + CTW_GEMM_Y_BYTES;
    t->bias_y = t->bias + (g->n * 4 + 255) / 256 * 256;
    t->hashes = (uint64_t *)(t->bias + CTW_GEMM_BIAS_BYTES);
    set_stage(&t->tile, t->w, g->k, y, t->host + CTW_GEMM_HASHES);
    set_stage(&t->whole, g->w, g->ldw, t->w, t->host + 2 * CTW_GEMM_HASHES);
    int64_t rows = t->tile.m > t->whole.m ? t->tile.m : t->whole.m;
    fill_random(t, t->x, g->dtype, rows * g->k, 0, 1, 1, false);
    if (g->bias != NULL) {
        fill_random(t, t->bias, CTW_F32, g->n, 0, 2, 0, true);
        fill_random(t, t->bias_y, g->y_dtype, g->n, 0, 2, 0, true);
    }
    return ctw_cuda_launched("filling", err);
}

void ctw_gemm_trial_close(struct ctw_gemm_trial *t)
{
    (void)cudaFree(t->base);
    ctw_free(t->host);
}

/* ---- running ------------------------------------------------------------------------------ */

struct ctw_cuda_gemm ctw_gemm_trial_product(const struct ctw_gemm_trial *t,
                                            const struct ctw_gemm_stage *s, int64_t row, int64_t rows)
{
    struct ctw_cuda_gemm g = *t->g;
    g.m = rows;
    g.n = s->n;
    g.x = t->x + row * g.k * 2;
    g.ldx = g.k;
    g.w = s->w;
    g.ldw = s->ldw;
    g.y = s->y;
    g.ldy = s->ldy;
    if (g.bias != NULL) {
        g.bias = (const float *)t->bias;
        g.bias_y = g.y_dtype == CTW_F32 ? NULL : t->bias_y;
    }
    return g;
}

enum ctw_status ctw_gemm_trial_run(struct ctw_gemm_trial *t, const struct ctw_gemm_algo *algo,
                                   const struct ctw_cuda_gemm *g, bool *done, struct ctw_err *err)
{
    if (algo->own)
        return ctw_cuda_gemm_hopper(t->cu, g, done, err);
    *done = ctw_gemm_lt_run(t->cu, g, &algo->lt) == CUBLAS_STATUS_SUCCESS;
    if (!*done)
        (void)cudaGetLastError(); /* clears a refused launch; a device error shows again */
    return CTW_OK;
}

/* The hashes of all windows, concatenated, in t->host. */
static enum ctw_status hash_windows(struct ctw_gemm_trial *t, const struct ctw_gemm_stage *s,
                                    const struct ctw_gemm_algo *algo, bool *done, struct ctw_err *err)
{
    enum ctw_status st = CTW_OK;
    int64_t at = 0;
    *done = true;
    for (int i = 0; st == CTW_OK && *done && i < s->n_windows; i++) {
        int64_t row = s->window[i].row, rows = s->window[i].rows;
        struct ctw_cuda_gemm g = ctw_gemm_trial_product(t, s, row, rows);
        /* The initial y is also a function of the row, and a product that skips an element must
         * not pass. */
        fill_random(t, g.y, g.y_dtype, rows * g.ldy, row * g.ldy, g.add ? 3 : 4 + (uint64_t)i, 16, false);
        st = ctw_gemm_trial_run(t, algo, &g, done, err);
        if (st != CTW_OK || !*done)
            break;
        hash_kernel<<<(unsigned)rows, 256, 0, t->cu->stream>>>(g.y, g.y_dtype, g.n, g.ldy,
                                                               t->hashes + at);
        at += rows;
        st = ctw_cuda_launched("comparing algorithms", err);
    }
    if (st == CTW_OK && *done)
        st = ctw_cuda_check(cudaMemcpyAsync(t->host, t->hashes, (size_t)at * sizeof(uint64_t),
                                            cudaMemcpyDeviceToHost, t->cu->stream),
                            "comparing algorithms", err);
    if (st == CTW_OK)
        st = ctw_cuda_check(cudaStreamSynchronize(t->cu->stream), "comparing algorithms", err);
    return st;
}

enum ctw_status ctw_gemm_trial_equal(struct ctw_gemm_trial *t, const struct ctw_gemm_algo *algo,
                                     bool is_reference, bool *equal, struct ctw_err *err)
{
    struct ctw_gemm_stage *stages[] = {&t->tile, &t->whole};
    /* The whole matrix's y uses the memory of the tile's w. */
    fill_random(t, t->w, t->g->dtype, t->tile.n * t->g->k, 0, 5, 1, false);
    *equal = true;
    for (int k = 0; k < (t->tile.n < t->whole.n ? 2 : 1) && *equal; k++) {
        struct ctw_gemm_stage *s = stages[k];
        enum ctw_status st = hash_windows(t, s, algo, equal, err);
        if (st != CTW_OK)
            return st;
        if (!*equal)
            break;
        if (is_reference)
            memcpy(s->want, t->host, (size_t)s->m * sizeof(uint64_t));
        const uint64_t *got = t->host;
        for (int i = 0; i < s->n_windows; i++) {
            size_t bytes = (size_t)s->window[i].rows * sizeof(*got);
            *equal = *equal && memcmp(got, s->want + s->window[i].row, bytes) == 0;
            got += s->window[i].rows;
        }
    }
    return CTW_OK;
}
