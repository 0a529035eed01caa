/*
 * Chooses algorithms for a kind of product: collects cuBLASLt's proposals, finds the class's
 * reference, keeps the algorithms that are bit-identical to it (gemm_trial.cu), and times them.
 */
#include "kernels/cuda/gemm/gemm.h"

#include <string.h>
#include <time.h>

#include "base/log.h"

enum { MAX_CANDIDATES = 16, ROUNDS = 5 };

static const double MAX_SECONDS = 0.4; /* of timing */

struct chooser {
    struct ctw_gemm_trial trial;
    cudaEvent_t begin, end;
    struct ctw_gemm_algo candidate[MAX_CANDIDATES];
    bool equal[MAX_CANDIDATES];
    int n, n_first; /* n_first: the proposals for 2048 rows */
};

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

/* cuBLASLt's proposals for m rows of g's kind, at most `count`. */
static void propose(struct chooser *t, int64_t m, int count)
{
    struct ctw_cuda_gemm g = *t->trial.g;
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
    g.bias = g.bias != NULL ? (const float *)t->trial.cu->workspace : NULL;
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
    if (!ok || cublasLtMatmulAlgoGetHeuristic(t->trial.cu->lt, &p.desc, &p.a, &p.b, &p.d, &p.d, &pref,
                                              count, result, &n) != CUBLAS_STATUS_SUCCESS)
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
    } ask[] = {{2048, 8}, {CTW_CUDA_CHUNK, 6}, {129, 4}, {1024, 4}, {4096, 4}};
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
    enum ctw_status st = ctw_cuda_check(cudaEventRecord(t->begin, t->trial.cu->stream), "timing", err);
    if (st == CTW_OK)
        st = ctw_gemm_trial_run(&t->trial, algo, g, &done, err);
    if (st == CTW_OK)
        st = ctw_cuda_check(cudaEventRecord(t->end, t->trial.cu->stream), "timing", err);
    if (st == CTW_OK)
        st = ctw_cuda_check(cudaEventSynchronize(t->end), "timing", err);
    if (st == CTW_OK)
        st = ctw_cuda_check(cudaEventElapsedTime(&ms, t->begin, t->end), "timing", err);
    *us = done ? 1000 * ms : 1e30f;
    return st;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static double now_s(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The fastest of the class for m rows. Timed in rounds, so that a change of clock rate affects
 * all alike; slow algorithms are dropped after the second round. */
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
    static const int64_t rows[CTW_GEMM_SIZES] = {256, 1024, CTW_CUDA_CHUNK};
    const struct ctw_gemm_trial *tr = &t->trial;
    double start = now_s();
    enum ctw_status st = CTW_OK;
    for (int i = 0; st == CTW_OK && i < CTW_GEMM_SIZES; i++) {
        struct ctw_cuda_gemm g = ctw_gemm_trial_product(tr, &tr->whole, 0, least(rows[i], tr->whole.m));
        /* y will be overwritten by the requested product, unless the product is added to y. */
        if (rows[i] > tr->whole.m && tr->g->m > tr->whole.m && !tr->g->add) {
            g.m = least(rows[i], tr->g->m);
            g.x = tr->g->x;
            g.ldx = tr->g->ldx;
            g.y = tr->g->y;
            g.ldy = tr->g->ldy;
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
        st = ctw_gemm_trial_equal(&t->trial, &t->candidate[i], true, &equal, err);
        if (st != CTW_OK)
            return st;
        if (equal)
            reference = i;
    }
    if (reference < 0)
        return CTW_OK;
    if (t->trial.cu->hopper && !CTW_HOPPER_OWN_CLASS)
        t->candidate[t->n++].own = true;
    int n_equal = 0;
    for (int i = 0; st == CTW_OK && i < t->n; i++) {
        t->equal[i] = i == reference;
        if (i != reference)
            st = ctw_gemm_trial_equal(&t->trial, &t->candidate[i], false, &t->equal[i], err);
        n_equal += t->equal[i];
    }
    if (st != CTW_OK)
        return st;
    c->library = true;
    c->reference = t->candidate[reference];
    ctw_debug("cuda: products of %lld x %lld: the reference is proposal %d; %d of %d are equal%s",
              (long long)c->kind.n, (long long)c->kind.k, reference, n_equal, t->n,
              !t->candidate[t->n - 1].own ? "" : t->equal[t->n - 1] ? ", with ours" : ", not ours");
    return time_all(t, c, err);
}

enum ctw_status ctw_gemm_choose(struct ctw_cuda *cu, const struct ctw_cuda_gemm *g,
                                struct ctw_gemm_class *c, struct ctw_err *err)
{
    struct chooser t = {};
    bool fits = false;
    t.trial.cu = cu;
    t.trial.g = g;
    c->library = false;
    collect(&t);
    if (t.n_first == 0)
        return CTW_OK;
    enum ctw_status st = ctw_gemm_trial_open(&t.trial, cu, g, &fits, err);
    if (st == CTW_OK && fits)
        st = ctw_cuda_check(cudaEventCreate(&t.begin), "opening an event", err);
    if (st == CTW_OK && fits)
        st = ctw_cuda_check(cudaEventCreate(&t.end), "opening an event", err);
    if (st == CTW_OK && fits)
        st = choose(&t, c, err);
    if (t.begin != NULL)
        (void)cudaEventDestroy(t.begin);
    if (t.end != NULL)
        (void)cudaEventDestroy(t.end);
    ctw_gemm_trial_close(&t.trial);
    return st;
}

/* cuBLASLt must still accept its algorithm; our own kernel may have changed and is tried again. */
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
    *right = cu->hopper && !CTW_HOPPER_OWN_CLASS;
    if (!*right)
        return CTW_OK;
    struct ctw_gemm_trial t;
    enum ctw_status st = ctw_gemm_trial_open(&t, cu, g, right, err);
    if (st == CTW_OK && *right)
        st = ctw_gemm_trial_equal(&t, &c->reference, true, right, err);
    if (st == CTW_OK && *right)
        st = ctw_gemm_trial_equal(&t, &own, false, right, err);
    ctw_gemm_trial_close(&t);
    return st;
}
