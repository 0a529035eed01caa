/*
 * Products by cuBLASLt, in row-major terms: fp32 sums, no split of k, no reduction outside a tile.
 * The algorithm for a kind of product is chosen at its first use (rule in gemm.h), that is, in the
 * first pass through a model: about five kinds, up to half a second per kind, or no time if the
 * file of choices has them.
 *
 * cuBLASLt takes a bias only in D's type, so with 16 bits only a bias that is exact in that type.
 * If it has no algorithm with a bias for fp32 results, the bias goes into y first and the product
 * is added to it (not with 16 bits, for which cuBLASLt would round the product before adding it).
 */
#include "kernels/cuda/gemm/gemm.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"

/* Depends only on properties that all rows of a product share, so that all rows take the same
 * path. */
static bool library_can(const struct ctw_cuda_gemm *g)
{
    uintptr_t at = (uintptr_t)g->x | (uintptr_t)g->w | (uintptr_t)g->y;
    bool narrow = g->y_dtype != CTW_F32;
    return at % 16 == 0 && g->k % 8 == 0 && g->ldx % 8 == 0 && g->ldw % 8 == 0 &&
           g->ldy % (narrow ? 8 : 4) == 0 && !(g->bias != NULL && narrow && g->bias_y == NULL);
}

/* ---- classes ------------------------------------------------------------------------------ */

static bool same_kind(const struct ctw_gemm_kind *a, const struct ctw_gemm_kind *b)
{
    return a->n == b->n && a->k == b->k && a->dtype == b->dtype && a->y_dtype == b->y_dtype &&
           a->add == b->add && a->bias == b->bias;
}

static int attribute(const cublasLtMatmulAlgo_t *algo, cublasLtMatmulAlgoConfigAttributes_t what)
{
    int32_t v = 0; /* a cluster's shape is two bytes, the other attributes are four */
    size_t bytes = what == CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID ? 2 : 4, written;
    return cublasLtMatmulAlgoConfigGetAttribute(algo, what, &v, bytes, &written) ==
                   CUBLAS_STATUS_SUCCESS
               ? v
               : -1;
}

/* Writes the class's line, including the newline. */
static void describe(const struct ctw_gemm_class *c, char *out, size_t cap)
{
    const struct ctw_gemm_kind *k = &c->kind;
    int n = snprintf(out, cap, "n %lld k %lld %s to %s%s%s:%s", (long long)k->n, (long long)k->k,
                     ctw_dtype_name(k->dtype), ctw_dtype_name(k->y_dtype), k->add ? " add" : "",
                     k->bias ? " bias" : "", c->library ? "" : " not cuBLASLt");
    for (int s = 0; c->library && s < CTW_GEMM_SIZES; s++) {
        const struct ctw_gemm_choice *ch = &c->choice[s];
        const cublasLtMatmulAlgo_t *lt = &ch->algo.lt;
        char name[80] = "ours";
        if (!ch->algo.own)
            snprintf(name, sizeof(name), "cublaslt %d/tile %d/stages %d/cluster %d",
                     attribute(lt, CUBLASLT_ALGO_CONFIG_ID),
                     attribute(lt, CUBLASLT_ALGO_CONFIG_TILE_ID),
                     attribute(lt, CUBLASLT_ALGO_CONFIG_STAGES_ID),
                     attribute(lt, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID));
        n += snprintf(out + n, cap - (size_t)n, " [m %lld] %s %.1f us %.0f TFLOP/s", (long long)ch->m,
                      name, ch->us, 2e-6 * (double)ch->m * (double)k->n * (double)k->k / ch->us);
    }
}

/* The class of g, chosen now if this is its first use. */
static enum ctw_status class_of(struct ctw_cuda *cu, const struct ctw_cuda_gemm *g,
                                const struct ctw_gemm_class **out, struct ctw_err *err)
{
    struct ctw_gemm_kind kind = {g->n, g->k, g->dtype, g->y_dtype, g->add, g->bias != NULL};
    struct ctw_gemm_class *c = NULL;
    for (size_t i = 0; c == NULL && i < cu->gemms->n; i++)
        if (same_kind(&cu->gemms->classes[i].kind, &kind))
            c = &cu->gemms->classes[i];
    *out = c;
    if (c != NULL && !c->from_file)
        return CTW_OK;
    bool right = false;
    enum ctw_status st = CTW_OK;
    if (c != NULL) {
        st = ctw_gemm_still_right(cu, g, c, &right, err);
        if (st == CTW_OK && !right)
            ctw_warn("cuda: the saved algorithm for products of %lld x %lld is no longer valid; choosing "
                     "again",
                     (long long)g->n, (long long)g->k);
    }
    if (st != CTW_OK)
        return st;
    if (!right) {
        struct ctw_gemm_class fresh = {};
        fresh.kind = kind;
        st = ctw_gemm_choose(cu, g, &fresh, err);
        if (st != CTW_OK)
            return st;
        if (c == NULL && (c = ctw_gemm_add(cu->gemms)) == NULL)
            return ctw_fail(err, CTW_ENOMEM, "cuda: out of memory");
        *c = fresh;
        if (c->library)
            ctw_gemm_file_save(cu);
    }
    c->from_file = false;
    *out = c;
    char line[768];
    describe(c, line, sizeof(line));
    ctw_debug("cuda: products: %s%s", right ? "remembered: " : "", line);
    return CTW_OK;
}

static enum ctw_status run_class(struct ctw_cuda *cu, const struct ctw_cuda_gemm *g,
                                 const struct ctw_gemm_class *c, struct ctw_err *err)
{
    const struct ctw_gemm_algo *algo = &c->choice[g->m <= 256 ? 0 : g->m <= 1024 ? 1 : 2].algo;
    bool done = false;
    if (algo->own) {
        enum ctw_status st = ctw_cuda_gemm_hopper(cu, g, &done, err);
        if (st != CTW_OK || done)
            return st;
        algo = &c->reference;
    }
    cublasStatus_t s = ctw_gemm_lt_run(cu, g, &algo->lt);
    if (s == CUBLAS_STATUS_NOT_SUPPORTED || s == CUBLAS_STATUS_INVALID_VALUE)
        s = ctw_gemm_lt_run(cu, g, &c->reference.lt); /* same bits, and strides supported */
    if (s == CUBLAS_STATUS_SUCCESS)
        return CTW_OK;
    return ctw_fail(err, CTW_EDEVICE, "cuda: cuBLASLt fails on a product [%lld, %lld] x %lld: %s",
                    (long long)g->m, (long long)g->k, (long long)g->n, cublasLtGetStatusString(s));
}

/* ---- a bias added first ------------------------------------------------------------------- */

static __global__ void fill_kernel(int64_t m, int64_t n, const float *bias, float *y, int64_t ldy,
                                   bool add)
{
    int64_t col = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (col >= n)
        return;
    float b = bias[col];
    for (int64_t row = blockIdx.y; row < m; row += gridDim.y) {
        int64_t at = row * ldy + col;
        y[at] = add ? y[at] + b : b;
    }
}

/* Puts the bias into y, which is fp32. Exact, except for the rounding if the bias is added to
 * existing values; the product is added afterwards. */
static enum ctw_status fill_bias(struct ctw_cuda *cu, struct ctw_cuda_gemm *g, struct ctw_err *err)
{
    dim3 grid((unsigned)((g->n + 255) / 256), (unsigned)(g->m < 4096 ? g->m : 4096));
    fill_kernel<<<grid, 256, 0, cu->stream>>>(g->m, g->n, g->bias, (float *)g->y, g->ldy, g->add);
    g->bias = NULL;
    g->bias_y = NULL;
    g->add = true;
    return ctw_cuda_launched("writing biases", err);
}

/* ---- the operation ------------------------------------------------------------------------ */

/* A kind for which cuBLASLt has no algorithm that follows the rules. */
static enum ctw_status without_library(struct ctw_cuda *cu, const struct ctw_cuda_gemm *g,
                                       struct ctw_err *err)
{
    bool done = false;
    enum ctw_status st = cu->hopper ? ctw_cuda_gemm_hopper(cu, g, &done, err) : CTW_OK;
    if (st != CTW_OK || done)
        return st;
    if (!cu->gemms->warned)
        ctw_warn("cuda: cuBLASLt has no algorithm for products of %lld x %lld (%s to %s) that gives "
                 "equal bits at every number of rows; these run without tensor cores",
                 (long long)g->n, (long long)g->k, ctw_dtype_name(g->dtype), ctw_dtype_name(g->y_dtype));
    cu->gemms->warned = true;
    return ctw_cuda_gemm_simt(cu, g, err);
}

enum ctw_status ctw_cuda_gemm(struct ctw_cuda *cu, const struct ctw_cuda_gemm *g, struct ctw_err *err)
{
    if (g->m == 0 || g->n == 0)
        return CTW_OK;
    if (g->dtype == CTW_F32)
        return ctw_cuda_gemm_simt(cu, g, err);
    if (CTW_HOPPER_OWN_CLASS && cu->hopper) {
        bool done = false;
        enum ctw_status st = ctw_cuda_gemm_hopper(cu, g, &done, err);
        if (st != CTW_OK || done)
            return st;
    }
    if (!library_can(g))
        return ctw_cuda_gemm_simt(cu, g, err);
    const struct ctw_gemm_class *c;
    enum ctw_status st = class_of(cu, g, &c, err);
    if (st != CTW_OK)
        return st;
    if (c->library)
        return run_class(cu, g, c, err);
    if (g->bias == NULL || g->y_dtype != CTW_F32)
        return without_library(cu, g, err);
    struct ctw_cuda_gemm rest = *g;
    rest.bias = NULL;
    rest.bias_y = NULL;
    rest.add = true;
    st = class_of(cu, &rest, &c, err);
    if (st != CTW_OK)
        return st;
    if (!c->library)
        return without_library(cu, g, err);
    rest = *g;
    st = fill_bias(cu, &rest, err);
    return st != CTW_OK ? st : run_class(cu, &rest, c, err);
}

/* ---- opening, closing, reporting ---------------------------------------------------------- */

enum ctw_status ctw_cuda_gemms_open(struct ctw_cuda *cu, struct ctw_err *err)
{
    cu->gemms = (struct ctw_cuda_gemms *)ctw_calloc(1, sizeof(*cu->gemms));
    if (cu->gemms == NULL)
        return ctw_fail(err, CTW_ENOMEM, "cuda: out of memory");
    return ctw_gemm_file_open(cu, err);
}

void ctw_cuda_gemms_close(struct ctw_cuda *cu)
{
    if (cu->gemms == NULL)
        return;
    ctw_free(cu->gemms->classes);
    ctw_free(cu->gemms->path);
    ctw_free(cu->gemms);
    cu->gemms = NULL;
}

size_t ctw_cuda_gemms_describe(const struct ctw_cuda *cu, char *buf, size_t cap)
{
    size_t at = 0;
    char line[768];
    if (cap > 0)
        buf[0] = '\0';
    for (size_t i = 0; cu->gemms != NULL && i < cu->gemms->n; i++) {
        if (cu->gemms->classes[i].from_file) /* not used yet */
            continue;
        describe(&cu->gemms->classes[i], line, sizeof(line));
        int n = snprintf(at < cap ? buf + at : NULL, at < cap ? cap - at : 0, "%s\n", line);
        at += (size_t)n;
    }
    return at;
}
