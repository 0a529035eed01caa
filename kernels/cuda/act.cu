/*
 * Activations of stored rows, times `up` if there is one. Memory-bound: 8 elements per thread, 16
 * bytes at a time, contiguous across a warp's lanes.
 */
#include "kernels/cuda/activations.h"
#include "kernels/cuda/elements.h"

enum {
    THREADS = 256,
    VECTOR = 8,
    MOST_ROWS = 32768 /* of a grid; blocks take further rows in turn */
};

struct act {
    enum ctw_activation act;
    float param[CTW_ACT_PARAMS];
    int64_t n_tok, dim, ldx, ldup, ldy;
    const void *x, *up;
    void *y;
    bool vectors; /* rows can be read and written VECTOR elements at a time */
};

static __device__ __forceinline__ float activate(const struct act &a, float g)
{
    if (a.act == CTW_ACT_XIELU)
        return ctw_cuda_xielu(a.param, g);
    if (a.act == CTW_ACT_CLIP)
        return ctw_cuda_clip(a.param, g);
    if (a.act == CTW_ACT_SIGMOID)
        return 1.0f / (1.0f + expf(-g));
    return ctw_cuda_is_relu(a.act) ? ctw_cuda_relu(a.act, g) : ctw_cuda_smooth(a.act, g);
}

/* Columns blockIdx.x * THREADS * VECTOR .. of rows blockIdx.y, + gridDim.y, .. */
template <typename T>
__global__ void __launch_bounds__(THREADS) act_rows(const __grid_constant__ struct act a)
{
    int64_t col = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * VECTOR;
    if (col >= a.dim)
        return;
    for (int64_t t = blockIdx.y; t < a.n_tok; t += gridDim.y) {
        const T *x = (const T *)a.x + t * a.ldx, *up = (const T *)a.up + t * a.ldup;
        T *y = (T *)a.y + t * a.ldy;
        if (a.vectors) {
            float v[VECTOR], u[VECTOR];
            ctw_cuda_load<true>(x + col, v);
            if (a.up != NULL)
                ctw_cuda_load<true>(up + col, u);
#pragma unroll
            for (int i = 0; i < VECTOR; i++) {
                v[i] = activate(a, v[i]);
                v[i] = a.up != NULL ? v[i] * u[i] : v[i];
            }
            ctw_cuda_store(y + col, v);
            continue;
        }
        for (int64_t c = col; c < a.dim && c < col + VECTOR; c++) {
            float v = activate(a, ctw_cuda_widen(x[c]));
            ctw_cuda_narrow(a.up != NULL ? v * ctw_cuda_widen(up[c]) : v, y + c);
        }
    }
}

enum ctw_status ctw_cuda_act(struct ctw_cuda *cu, const struct ctw_op_act *op, struct ctw_err *err)
{
    if (op->n_tok == 0)
        return CTW_OK;
    struct act a = {};
    a.act = op->act;
    memcpy(a.param, op->param, sizeof(a.param));
    a.n_tok = op->n_tok;
    a.dim = op->dim;
    a.ldx = op->ldx;
    a.ldup = op->up != NULL ? op->ldup : 0;
    a.ldy = op->ldy;
    a.x = op->x;
    a.up = op->up;
    a.y = op->y;
    a.vectors = (a.dim | a.ldx | a.ldup | a.ldy) % VECTOR == 0 && ctw_cuda_aligned16(a.x) &&
                ctw_cuda_aligned16(a.up) && ctw_cuda_aligned16(a.y);
    dim3 grid((unsigned)((a.dim + THREADS * VECTOR - 1) / (THREADS * VECTOR)),
              (unsigned)(a.n_tok < MOST_ROWS ? a.n_tok : (int64_t)MOST_ROWS));
#define ROWS(T) act_rows<T><<<grid, THREADS, 0, cu->stream>>>(a)
    CTW_CUDA_FLOAT_SWITCH(op->dtype, ROWS);
#undef ROWS
    return ctw_cuda_launched("activation", err);
}
