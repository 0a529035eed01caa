/*
 * Experts that overlap. An expert is a gathered product (gate and up) and a scattered one (down). A
 * product of a few thousand rows leaves a quarter of the multiprocessors idle at its end. The next
 * expert's gathered product does not need this expert's scattered one, and the products of two
 * streams fill each other's ends; so do decoding kernels. Scattered products stay on the operations'
 * stream, one after another, in the order of the experts.
 *
 * Gathered product i of a row (the products between which only scattered ones were queued) may begin
 * when what was queued before the row has finished, and the scattered product i - 2, which read the
 * memory that it writes: y of consecutive gathered products must differ for that, otherwise a new row
 * begins. Whatever is queued on the operations' stream after it waits for it.
 */
#include "kernels/cuda/cuda.h"

enum ctw_status ctw_cuda_place_begin(struct ctw_cuda *cu, const struct ctw_op_linear *op, bool gathers,
                                     struct ctw_cuda_place *place, struct ctw_err *err)
{
    struct ctw_cuda_beside *b = &cu->beside;
    place->stream = NULL;
    place->scatters = op->epilogue == CTW_EPI_SCATTER && b->n > 0 && op->x == b->y;
    if (place->scatters)
        return CTW_OK;
    if (!gathers || !ctw_cuda_weights_there(cu, op)) {
        b->n = 0;
        return CTW_OK;
    }
    if (op->y == b->y)
        b->n = 0;
    enum ctw_status st = CTW_OK;
    if (b->n == 0)
        st = ctw_cuda_check(cudaEventRecord(b->began, cu->stream), "running beside", err);
    int which = (int)(b->n % 2);
    cudaEvent_t after = b->n < 2 ? b->began : b->scattered[which];
    if (st == CTW_OK)
        st = ctw_cuda_check(cudaStreamWaitEvent(b->stream[which], after, 0), "running beside", err);
    if (st != CTW_OK)
        return st;
    place->stream = cu->stream;
    b->y = op->y;
    b->n++;
    cu->stream = b->stream[which];
    cu->product = which == 0 ? CTW_CUDA_BESIDE : CTW_CUDA_BESIDE_TOO;
    return CTW_OK;
}

enum ctw_status ctw_cuda_place_end(struct ctw_cuda *cu, const struct ctw_cuda_place *place,
                                   struct ctw_err *err)
{
    struct ctw_cuda_beside *b = &cu->beside;
    int which = (int)((b->n + 1) % 2); /* of the last gathered product */
    if (place->scatters)
        return ctw_cuda_check(cudaEventRecord(b->scattered[which], cu->stream), "running", err);
    if (place->stream == NULL)
        return CTW_OK;
    cudaStream_t beside = cu->stream;
    cu->stream = place->stream;
    cu->product = CTW_CUDA_PRODUCT;
    enum ctw_status st =
        ctw_cuda_check(cudaEventRecord(b->gathered[which], beside), "running beside", err);
    if (st == CTW_OK)
        st = ctw_cuda_check(cudaStreamWaitEvent(cu->stream, b->gathered[which], 0), "running beside",
                            err);
    return st;
}
