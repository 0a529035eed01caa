/* One product by cuBLASLt. */
#include "kernels/cuda/gemm/gemm.h"

static cudaDataType_t lt_type(enum ctw_dtype dtype)
{
    return dtype == CTW_F32 ? CUDA_R_32F : dtype == CTW_BF16 ? CUDA_R_16BF : CUDA_R_16F;
}

cublasStatus_t ctw_gemm_lt_open(struct ctw_gemm_lt *p, const struct ctw_cuda_gemm *g)
{
    cublasOperation_t trans = CUBLAS_OP_T;
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    const void *bias = g->y_dtype == CTW_F32 ? (const void *)g->bias : g->bias_y;
    cublasStatus_t s = cublasLtMatmulDescInit(&p->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (s == CUBLAS_STATUS_SUCCESS)
        s = cublasLtMatmulDescSetAttribute(&p->desc, CUBLASLT_MATMUL_DESC_TRANSA, &trans, sizeof(trans));
    if (s == CUBLAS_STATUS_SUCCESS && g->bias != NULL)
        s = cublasLtMatmulDescSetAttribute(&p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                                           sizeof(epilogue));
    if (s == CUBLAS_STATUS_SUCCESS && g->bias != NULL)
        s = cublasLtMatmulDescSetAttribute(&p->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias,
                                           sizeof(bias));
    cudaDataType_t in = lt_type(g->dtype), out = lt_type(g->y_dtype);
    uint64_t m = (uint64_t)g->m, n = (uint64_t)g->n, k = (uint64_t)g->k;
    if (s == CUBLAS_STATUS_SUCCESS)
        s = cublasLtMatrixLayoutInit(&p->a, in, k, n, g->ldw);
    if (s == CUBLAS_STATUS_SUCCESS)
        s = cublasLtMatrixLayoutInit(&p->b, in, k, m, g->ldx);
    if (s == CUBLAS_STATUS_SUCCESS)
        s = cublasLtMatrixLayoutInit(&p->d, out, n, m, g->ldy);
    return s;
}

cublasStatus_t ctw_gemm_lt_run(struct ctw_cuda *cu, const struct ctw_cuda_gemm *g,
                               const cublasLtMatmulAlgo_t *algo)
{
    struct ctw_gemm_lt p;
    float one = 1, beta = g->add ? 1 : 0;
    cublasStatus_t s = ctw_gemm_lt_open(&p, g);
    if (s == CUBLAS_STATUS_SUCCESS)
        s = cublasLtMatmul(cu->lt, &p.desc, &one, g->w, &p.a, g->x, &p.b, &beta, g->y, &p.d, g->y, &p.d,
                           algo, cu->workspace, CTW_CUDA_WORKSPACE, cu->stream);
    return s;
}

bool ctw_gemm_lt_takes(struct ctw_cuda *cu, const struct ctw_gemm_kind *kind, int64_t m,
                       const cublasLtMatmulAlgo_t *algo)
{
    struct ctw_cuda_gemm g = {};
    struct ctw_gemm_lt p;
    cublasLtMatmulHeuristicResult_t result;
    g.m = m;
    g.n = kind->n;
    g.k = g.ldx = g.ldw = kind->k;
    g.ldy = (kind->n + 7) / 8 * 8;
    g.dtype = kind->dtype;
    g.y_dtype = kind->y_dtype;
    g.bias = kind->bias ? (const float *)cu->workspace : NULL; /* only its alignment matters */
    g.bias_y = g.bias;
    return ctw_gemm_lt_open(&p, &g) == CUBLAS_STATUS_SUCCESS &&
           cublasLtMatmulAlgoCheck(cu->lt, &p.desc, &p.a, &p.b, &p.d, &p.d, algo, &result) ==
               CUBLAS_STATUS_SUCCESS &&
           result.workspaceSize <= CTW_CUDA_WORKSPACE;
}
