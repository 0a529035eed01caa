/*
 * Two products of experts in one kernel: see gemm_hopper_pair.h. Their weights are decoded ahead, or
 * are the checkpoint's own bytes: there is scratch for one product's only.
 */
#include "kernels/cuda/cuda.h"

enum ctw_status ctw_cuda_linear_pair(struct ctw_cuda *cu, const struct ctw_op_linear *gathered,
                                     const struct ctw_op_act *act,
                                     const struct ctw_op_linear *scattered, bool *done,
                                     struct ctw_err *err)
{
    struct ctw_cuda_gemm g = ctw_cuda_gemm_of(gathered), s = ctw_cuda_gemm_of(scattered);
    struct ctw_cuda_buffer *scratch = &cu->scratch[CTW_CUDA_PRODUCT];
    const struct ctw_cuda_ending end = ctw_cuda_ending_of(gathered, act);
    size_t first = ctw_gpu_bias_bytes(g.n);
    bool gate = gathered->epilogue == CTW_EPI_GATE, interleaved;
    *done = cu->hopper && g.m > 0 && s.m > 0 && ctw_cuda_gathers(cu, gathered) &&
            ctw_cuda_gather_hopper_can(cu, &g, &end) && ctw_cuda_scatter_hopper_can(cu, &s) &&
            ctw_cuda_weights_there(cu, gathered) &&
            ctw_cuda_weights_there(cu, scattered);
    if (!*done)
        return CTW_OK;
    enum ctw_status st = ctw_cuda_weights(cu, gathered, &g.w, &interleaved, err);
    if (st == CTW_OK)
        st = ctw_cuda_weights(cu, scattered, &s.w, &interleaved, err);
    if (st == CTW_OK)
        st = ctw_cuda_grow(cu, scratch, first + ctw_gpu_bias_bytes(s.n), err);
    if (st == CTW_OK)
        st = ctw_cuda_put_bias(cu, gathered, gate ? CTW_CUDA_GATE_BLOCK : 0, (char *)scratch->p, &g, err);
    if (st == CTW_OK)
        st = ctw_cuda_put_bias(cu, scattered, 0, (char *)scratch->p + first, &s, err);
    if (st == CTW_OK)
        st = ctw_cuda_pair_hopper(cu, &g, &end, &s, err);
    if (st == CTW_OK)
        st = ctw_cuda_weights_used(cu, gathered, err);
    return st == CTW_OK ? ctw_cuda_weights_used(cu, scattered, err) : st;
}
