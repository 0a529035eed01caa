/*
 * Chooses algorithms for a kind of product: collects cuBLASLt's proposals, finds the class's reference,
 * keeps those that are equal to it bit for bit, and times these.
 *
 * Equality is tried on random numbers, by a 64-bit hash of each row: on up to 2048 rows by as many
 * columns as fit, then on all columns with the weights at hand. Windows of the same rows begin and end at
 * different ones, so a row is seen first, last and in between, alone and in company.
 */
#include "kernels/cuda/gemm.h"

#include <string.h>
#include <time.h>

#include "base/log.h"
#include "base/mem.h"

enum {
    X_BYTES = 56 << 20,
    W_BYTES = 32 << 20,
    Y_BYTES = 32 << 20, /* together with W_BYTES where the weights at hand are used */
    BIAS_BYTES = 4 << 20,
    MAX_HASHES = 16384,
    MAX_ROWS = 8192,
    TRIED_ROWS = 2048,
    MAX_CANDIDATES = 16,
    MAX_WINDOWS = 7,
    ROUNDS = 5
};
static_assert(X_BYTES + W_BYTES + Y_BYTES + BIAS_BYTES + MAX_HASHES * 8 <= CTW_CUDA_CHOOSE, "memory");

static const double MAX_SECONDS = 0.4; /* of timing */

struct window {
    int64_t row, rows;
};

/* One matrix w on which candidates are tried. */
struct stage {
    const void *w;
    int64_t n, m, ldw;
    char *y;
    int64_t ldy;
    struct window window[MAX_WINDOWS]; /* the first is all rows */
    int n_windows;
    uint64_t *want; /* host [m]: the reference's */
};

struct chooser {
    struct ctw_cuda *cu;
    const struct ctw_cuda_gemm *g;
    char *base; /* device */
    char *x, *w, *y, *bias, *bias_y;
    uint64_t *hashes; /* device */
    uint64_t *host;   /* [3][MAX_HASHES] */
    cudaEvent_t begin, end;
    struct stage stage[2];
    int n_stages;
    int64_t m_timed;
    struct ctw_gemm_algo candidate[MAX_CANDIDATES];
    bool equal[MAX_CANDIDATES];
    int n, n_first; /* n_first: those proposed for 2048 rows */
};

/* ---- kernels ------------------------------------------------------------------------------ */

static __device__ __forceinline__ uint64_t mix(uint64_t v)
{
    v ^= v >> 30;
    v *= 0xbf58476d1ce4e5b9u;
    v ^= v >> 27;
    v *= 0x94d049bb133111ebu;
    return v ^ v >> 31;
}

/* p[i] from (seed, first + i): within -scale .. scale; eighths, exact in any dtype, where `coarse`. */
static __global__ void random_kernel(void *p, enum ctw_dtype dtype, int64_t count, int64_t first,
                                     uint64_t seed, float scale, bool coarse)
{
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        uint64_t r = mix((uint64_t)(first + i) * 0x9e3779b97f4a7c15u + seed);
        float v = scale * (float)(int32_t)(r >> 32) * 0x1p-31f;
        if (coarse)
            v = ((float)(int)(r >> 58) - 32.0f) * 0.125f;
        if (dtype == CTW_F32)
            ((float *)p)[i] = v;
        else if (dtype == CTW_BF16)
            ((__nv_bfloat16 *)p)[i] = __float2bfloat16_rn(v);
        else
            ((__half *)p)[i] = __float2half_rn(v);
    }
}

/* hash[r] of row r's bits: a sum over columns, so its order is of no account. All NaN are one. */
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

static void fill_random(struct chooser *t, void *p, enum ctw_dtype dtype, int64_t count, int64_t first,
                        uint64_t seed, float scale, bool coarse)
{
    random_kernel<<<1024, 256, 0, t->cu->stream>>>(p, dtype, count, first, seed, scale, coarse);
}

/* ---- memory ------------------------------------------------------------------------------- */

static void add_window(struct stage *s, int64_t row, int64_t rows)
{
    if (row >= 0 && row + rows <= s->m && (s->n_windows == 0 || rows < s->m))
        s->window[s->n_windows++] = (struct window){row, rows};
}

static void set_windows(struct stage *s)
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

/* The sizes of what is tried, all by g's kind alone. False: rows are too long for the memory. */
static bool plan(struct chooser *t)
{
    const struct ctw_cuda_gemm *g = t->g;
    int64_t y_bytes = (int64_t)ctw_dtype_bytes(g->y_dtype), ldy = (g->n + 7) / 8 * 8;
    int64_t rows = X_BYTES / (2 * g->k);
    struct stage *tile = &t->stage[0], *whole = &t->stage[1];
    tile->m = least(rows, TRIED_ROWS);
    if (tile->m < 1)
        return false;
    int64_t most = least(W_BYTES / (2 * g->k), Y_BYTES / (y_bytes * tile->m));
    most -= most % (most < 128 ? 8 : 128);
    tile->n = least(g->n, most);
    whole->n = g->n;
    whole->m = least(least(rows, (W_BYTES + Y_BYTES) / (y_bytes * ldy)), MAX_ROWS);
    return tile->n >= 1 && whole->m >= 1 && (g->bias == NULL || g->n * 6 + 512 <= BIAS_BYTES);
}

static enum ctw_status chooser_open(struct chooser *t, struct ctw_err *err)
{
    const struct ctw_cuda_gemm *g = t->g;
    struct stage *tile = &t->stage[0], *whole = &t->stage[1];
    t->host = (uint64_t *)ctw_calloc(3 * MAX_HASHES, sizeof(uint64_t));
    if (t->host == NULL)
        return ctw_fail(err, CTW_ENOMEM, "cuda: out of memory");
    enum ctw_status st = ctw_cuda_check(cudaMalloc((void **)&t->base, CTW_CUDA_CHOOSE),
                                        "128 MiB to choose algorithms for products", err);
    if (st == CTW_OK)
        st = ctw_cuda_check(cudaEventCreate(&t->begin), "opening an event", err);
    if (st == CTW_OK)
        st = ctw_cuda_check(cudaEventCreate(&t->end), "opening an event", err);
    if (st != CTW_OK)
        return st;
    t->x = t->base;
    t->w = t->x + X_BYTES;
    t->y = t->w + W_BYTES;
    t->bias = t->y + Y_BYTES;
    t->bias_y = t->bias + (g->n * 4 + 255) / 256 * 256;
    t->hashes = (uint64_t *)(t->bias + BIAS_BYTES);
    t->m_timed = whole->m;
    *tile = (struct stage){t->w, tile->n, tile->m, g->k, t->y, (tile->n + 7) / 8 * 8, {}, 0, NULL};
    *whole = (struct stage){g->w, whole->n, whole->m, g->ldw, t->w, (g->n + 7) / 8 * 8, {}, 0, NULL};
    tile->want = t->host + MAX_HASHES;
    whole->want = tile->want + MAX_HASHES;
    set_windows(tile);
    set_windows(whole);
    t->n_stages = tile->n < g->n ? 2 : 1;
    fill_random(t, t->x, g->dtype, (tile->m > whole->m ? tile->m : whole->m) * g->k, 0, 1, 1, false);
    if (g->bias != NULL) {
        fill_random(t, t->bias, CTW_F32, g->n, 0, 2, 0, true);
        fill_random(t, t->bias_y, g->y_dtype, g->n, 0, 2, 0, true);
    }
    return ctw_cuda_launched("filling", err);
}

static void chooser_close(struct chooser *t)
{
    if (t->begin != NULL)
        (void)cudaEventDestroy(t->begin);
    if (t->end != NULL)
        (void)cudaEventDestroy(t->end);
    (void)cudaFree(t->base);
    ctw_free(t->host);
}

/* ---- running ------------------------------------------------------------------------------ */

/* rows `row` .. of x times the stage's w. */
static struct ctw_cuda_gemm product_of(const struct chooser *t, const struct stage *s, int64_t row,
                                       int64_t rows)
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

/* *done false: it does not do this product. */
static enum ctw_status run(struct chooser *t, const struct ctw_gemm_algo *algo,
                           const struct ctw_cuda_gemm *g, bool *done, struct ctw_err *err)
{
    if (algo->own)
        return ctw_cuda_gemm_hopper(t->cu, g, done, err);
    *done = ctw_gemm_lt_run(t->cu, g, &algo->lt) == CUBLAS_STATUS_SUCCESS;
    if (!*done)
        (void)cudaGetLastError(); /* of a refused launch; one that broke the device shows again */
    return CTW_OK;
}

/* The hashes of all windows, one after another, in t->host. */
static enum ctw_status hash_windows(struct chooser *t, const struct stage *s,
                                    const struct ctw_gemm_algo *algo, bool *done, struct ctw_err *err)
{
    enum ctw_status st = CTW_OK;
    int64_t at = 0;
    *done = true;
    for (int i = 0; st == CTW_OK && *done && i < s->n_windows; i++) {
        const struct window *w = &s->window[i];
        struct ctw_cuda_gemm g = product_of(t, s, w->row, w->rows);
        /* What y holds before is a row's own too, and what a product leaves out must not look done. */
        fill_random(t, g.y, g.y_dtype, w->rows * g.ldy, w->row * g.ldy, g.add ? 3 : 4 + (uint64_t)i, 16,
                    false);
        st = run(t, algo, &g, done, err);
        if (st != CTW_OK || !*done)
            break;
        hash_kernel<<<(unsigned)w->rows, 256, 0, t->cu->stream>>>(g.y, g.y_dtype, g.n, g.ldy,
                                                                  t->hashes + at);
        at += w->rows;
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

/* Does it give the reference's bits in every window? `is_reference`: its own, which are then kept. */
static enum ctw_status try_algo(struct chooser *t, const struct ctw_gemm_algo *algo, bool is_reference,
                                bool *equal, struct ctw_err *err)
{
    *equal = true;
    for (int k = 0; k < t->n_stages && *equal; k++) {
        struct stage *s = &t->stage[k];
        enum ctw_status st;
        if (k == 0)
            fill_random(t, t->w, t->g->dtype, s->n * t->g->k, 0, 5, 1, false);
        st = hash_windows(t, s, algo, equal, err);
        if (st != CTW_OK)
            return st;
        if (!*equal)
            break;
        if (is_reference)
            memcpy(s->want, t->host, (size_t)s->m * sizeof(uint64_t));
        const uint64_t *got = t->host;
        for (int i = 0; i < s->n_windows; i++) {
            const struct window *w = &s->window[i];
            *equal = *equal && memcmp(got, s->want + w->row, (size_t)w->rows * sizeof(*got)) == 0;
            got += w->rows;
        }
    }
    return CTW_OK;
}

/* ---- candidates --------------------------------------------------------------------------- */

static bool splits_k(const cublasLtMatmulAlgo_t *algo)
{
    int32_t splits = 1;
    uint32_t scheme = CUBLASLT_REDUCTION_SCHEME_NONE;
    size_t written;
    (void)cublasLtMatmulAlgoConfigGetAttribute(algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &splits,
                                               sizeof(splits), &written);
    (void)cublasLtMatmulAlgoConfigGetAttribute(algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme,
                                               sizeof(scheme), &written);
    return splits > 1 || scheme != CUBLASLT_REDUCTION_SCHEME_NONE;
}

/* cuBLASLt's proposals for m rows of g's kind, `count` at most. */
static void propose(struct chooser *t, int64_t m, int count)
{
    struct ctw_cuda_gemm g = *t->g;
    struct ctw_gemm_lt p;
    cublasLtMatmulPreferenceOpaque_t pref;
    cublasLtMatmulHeuristicResult_t result[MAX_CANDIDATES];
    uint64_t workspace = CTW_CUDA_WORKSPACE;
    uint32_t scheme = CUBLASLT_REDUCTION_SCHEME_NONE, align = 16;
    static const cublasLtMatmulPreferenceAttributes_t aligned[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    int n = 0;
    g.m = m;
    g.ldx = g.ldw = g.k; /* the kind's, not this call's */
    g.ldy = (g.n + 7) / 8 * 8;
    g.bias = g.bias != NULL ? (const float *)t->cu->workspace : NULL;
    g.bias_y = g.bias;
    bool ok = ctw_gemm_lt_open(&p, &g) == CUBLAS_STATUS_SUCCESS &&
              cublasLtMatmulPreferenceInit(&pref) == CUBLAS_STATUS_SUCCESS;
    ok = ok && cublasLtMatmulPreferenceSetAttribute(&pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                    &workspace, sizeof(workspace)) ==
                   CUBLAS_STATUS_SUCCESS;
    ok = ok && cublasLtMatmulPreferenceSetAttribute(&pref, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                                    &scheme, sizeof(scheme)) == CUBLAS_STATUS_SUCCESS;
    for (size_t i = 0; i < CTW_COUNT(aligned); i++)
        ok = ok && cublasLtMatmulPreferenceSetAttribute(&pref, aligned[i], &align, sizeof(align)) ==
                       CUBLAS_STATUS_SUCCESS;
    if (!ok || cublasLtMatmulAlgoGetHeuristic(t->cu->lt, &p.desc, &p.a, &p.b, &p.d, &p.d, &pref, count,
                                              result, &n) != CUBLAS_STATUS_SUCCESS)
        return;
    for (int i = 0; i < n && t->n < MAX_CANDIDATES - 1; i++) {
        bool known = result[i].state != CUBLAS_STATUS_SUCCESS || splits_k(&result[i].algo);
        for (int j = 0; j < t->n; j++)
            known = known ||
                    memcmp(&t->candidate[j].lt, &result[i].algo, sizeof(result[i].algo)) == 0;
        if (!known)
            t->candidate[t->n++].lt = result[i].algo;
    }
}

static void collect(struct chooser *t)
{
    static const struct {
        int64_t m;
        int count;
    } ask[] = {{2048, 8}, {8192, 6}, {129, 4}, {1024, 4}, {4096, 4}};
    for (size_t i = 0; i < CTW_COUNT(ask); i++) {
        propose(t, ask[i].m, ask[i].count);
        if (i == 0)
            t->n_first = t->n;
    }
}

/* ---- timing ------------------------------------------------------------------------------- */

static enum ctw_status time_algo(struct chooser *t, const struct ctw_gemm_algo *algo,
                                 const struct ctw_cuda_gemm *g, float *us, struct ctw_err *err)
{
    bool done = false;
    float ms = 0;
    enum ctw_status st = ctw_cuda_check(cudaEventRecord(t->begin, t->cu->stream), "timing", err);
    if (st == CTW_OK)
        st = run(t, algo, g, &done, err);
    if (st == CTW_OK)
        st = ctw_cuda_check(cudaEventRecord(t->end, t->cu->stream), "timing", err);
    if (st == CTW_OK)
        st = ctw_cuda_check(cudaEventSynchronize(t->end), "timing", err);
    if (st == CTW_OK)
        st = ctw_cuda_check(cudaEventElapsedTime(&ms, t->begin, t->end), "timing", err);
    *us = done ? 1000 * ms : 1e30f;
    return st;
}

static double now_s(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The fastest of the class for m rows. In rounds, so that a change of clocks meets all alike; what is
 * slow is left out after the second. */
static enum ctw_status fastest(struct chooser *t, const struct ctw_cuda_gemm *g, double until,
                               struct ctw_gemm_choice *out, struct ctw_err *err)
{
    float best[MAX_CANDIDATES], least_us = 1e30f;
    int at = 0;
    while (!t->equal[at]) /* the reference, if no other */
        at++;
    for (int round = 0; round < ROUNDS && (round < 2 || now_s() < until); round++) {
        for (int i = 0; i < t->n; i++) {
            float us;
            if (!t->equal[i] || (round >= 2 && best[i] > 1.2f * least_us))
                continue;
            enum ctw_status st = time_algo(t, &t->candidate[i], g, &us, err);
            if (st != CTW_OK)
                return st;
            best[i] = round <= 1 || us < best[i] ? us : best[i]; /* the first round warms up */
            if (round > 0 && best[i] < least_us) {
                least_us = best[i];
                at = i;
            }
        }
    }
    out->algo = t->candidate[at];
    out->us = least_us;
    out->m = g->m;
    return CTW_OK;
}

static enum ctw_status time_all(struct chooser *t, struct ctw_gemm_class *c, struct ctw_err *err)
{
    static const int64_t rows[CTW_GEMM_SIZES] = {256, 1024, MAX_ROWS};
    double start = now_s();
    enum ctw_status st = CTW_OK;
    for (int i = 0; st == CTW_OK && i < CTW_GEMM_SIZES; i++) {
        struct ctw_cuda_gemm g = product_of(t, &t->stage[1], 0, least(rows[i], t->m_timed));
        /* y will be overwritten by the product that asks, unless it is added to. */
        if (rows[i] > t->m_timed && t->g->m > t->m_timed && !t->g->add) {
            g.m = least(rows[i], t->g->m);
            g.x = t->g->x;
            g.ldx = t->g->ldx;
            g.y = t->g->y;
            g.ldy = t->g->ldy;
        }
        st = fastest(t, &g, start + MAX_SECONDS * (i + 1) / CTW_GEMM_SIZES, &c->choice[i], err);
    }
    return st;
}

/* ---- choosing ----------------------------------------------------------------------------- */

static enum ctw_status choose(struct chooser *t, struct ctw_gemm_class *c, struct ctw_err *err)
{
    enum ctw_status st = CTW_OK;
    int reference = -1;
    for (int i = 0; i < t->n_first && reference < 0; i++) {
        bool equal;
        st = try_algo(t, &t->candidate[i], true, &equal, err);
        if (st != CTW_OK)
            return st;
        if (equal)
            reference = i;
    }
    if (reference < 0)
        return CTW_OK;
    if (t->cu->hopper && !CTW_HOPPER_OWN_CLASS)
        t->candidate[t->n++].own = true;
    int n_equal = 0;
    for (int i = 0; st == CTW_OK && i < t->n; i++) {
        t->equal[i] = i == reference;
        if (i != reference)
            st = try_algo(t, &t->candidate[i], false, &t->equal[i], err);
        n_equal += t->equal[i];
    }
    if (st != CTW_OK)
        return st;
    c->library = true;
    c->reference = t->candidate[reference];
    ctw_debug("cuda: products of %lld x %lld: the reference is proposal %d, equal are %d of %d%s",
              (long long)c->kind.n, (long long)c->kind.k, reference, n_equal, t->n,
              !t->candidate[t->n - 1].own ? "" : t->equal[t->n - 1] ? ", ours too" : ", ours not");
    return time_all(t, c, err);
}

enum ctw_status ctw_gemm_choose(struct ctw_cuda *cu, const struct ctw_cuda_gemm *g,
                                struct ctw_gemm_class *c, struct ctw_err *err)
{
    struct chooser t = {};
    t.cu = cu;
    t.g = g;
    c->library = false;
    collect(&t);
    if (t.n_first == 0 || !plan(&t))
        return CTW_OK;
    enum ctw_status st = chooser_open(&t, err);
    if (st == CTW_OK)
        st = choose(&t, c, err);
    chooser_close(&t);
    return st;
}

/* cuBLASLt's own it must still take; ours, which may have changed since, is tried again. */
enum ctw_status ctw_gemm_still_right(struct ctw_cuda *cu, const struct ctw_cuda_gemm *g,
                                     const struct ctw_gemm_class *c, bool *right, struct ctw_err *err)
{
    struct ctw_gemm_algo own = {};
    own.own = true;
    bool any_own = false;
    *right = ctw_gemm_lt_takes(cu, &c->kind, 2048, &c->reference.lt);
    for (int i = 0; i < CTW_GEMM_SIZES; i++) {
        const struct ctw_gemm_choice *ch = &c->choice[i];
        any_own = any_own || ch->algo.own;
        *right = *right && (ch->algo.own || ctw_gemm_lt_takes(cu, &c->kind, ch->m, &ch->algo.lt));
    }
    if (!*right || !any_own)
        return CTW_OK;
    struct chooser t = {};
    t.cu = cu;
    t.g = g;
    *right = cu->hopper && !CTW_HOPPER_OWN_CLASS && plan(&t);
    if (!*right)
        return CTW_OK;
    enum ctw_status st = chooser_open(&t, err);
    if (st == CTW_OK)
        st = try_algo(&t, &c->reference, true, right, err);
    if (st == CTW_OK && *right)
        st = try_algo(&t, &own, false, right, err);
    chooser_close(&t);
    return st;
}
