/* RoPE of the last elements of heads. Memory-bound: a block takes a token's row. */
#include "kernels/cuda/elements.h"
#include "kernels/turn.h"

enum { THREADS = 256 };

template <typename T>
static __global__ void __launch_bounds__(THREADS)
    turn_rows(const __grid_constant__ struct ctw_op_turn op)
{
    const int64_t t = blockIdx.x;
    const int half = op.turning / 2;
    const float *cos_sin = op.cos_sin + (int64_t)op.positions[t] * op.turning;
    for (int i = (int)threadIdx.x; i < op.n_head * half; i += THREADS) {
        int first, second;
        ctw_turn_pair(op.pairing, op.turning, i % half, &first, &second);
        T *x = (T *)op.x + t * op.ldx + (int64_t)(i / half + 1) * op.head - op.turning;
        float a = ctw_cuda_widen(x[first]), b = ctw_cuda_widen(x[second]);
        float sine = cos_sin[half + i % half];
        ctw_cuda_turn(&a, &b, cos_sin[i % half], op.back ? -sine : sine);
        ctw_cuda_narrow(a, x + first);
        ctw_cuda_narrow(b, x + second);
    }
}

enum ctw_status ctw_cuda_turn(struct ctw_cuda *cu, const struct ctw_op_turn *op,
                              struct ctw_err *err)
{
#define ROWS(T) turn_rows<T><<<(unsigned)op->n_tok, THREADS, 0, cu->stream>>>(*op)
    CTW_CUDA_FLOAT_SWITCH(op->dtype, ROWS);
#undef ROWS
    return ctw_cuda_launched("RoPE of heads", err);
}
