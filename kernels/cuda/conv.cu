/*
 * Short convolutions. Memory-bound: a thread has one column of some rows, and the inputs of the last
 * taps - 1 rows in registers; a warp's lanes have neighbouring columns.
 */
#include "kernels/conv.h"
#include "kernels/cuda/elements.h"

enum {
    THREADS = 128,
    ROWS = 32,       /* of a thread */
    SEQUENCES = 128, /* of a launch, which has them as arguments */
};

struct conv {
    struct ctw_op_conv op;
    int n_seqs;
    int64_t row[SEQUENCES + 1]; /* of each sequence's first token; the end */
    int64_t pos0;               /* of the first sequence of the launch */
};

/* The input of row `row` of the sequence that begins at row `first`. */
template <typename T>
static __device__ __forceinline__ float input_at(const struct ctw_op_conv &op, int64_t first,
                                                 int64_t pos0, int64_t row, int64_t col)
{
    const T *x = (const T *)op.x + row * op.ldx;
    if (row >= first)
        return op.form == CTW_CONV_GATED
                   ? ctw_cuda_widen(x[col]) * ctw_cuda_widen(x[2 * op.dim + col])
                   : ctw_cuda_widen(x[ctw_conv_column(&op, col)]);
    return pos0 + row - first < 0 ? 0.0f
                                  : op.before[(op.taps - 1 + row - first) * op.dim + col];
}

/* Columns of blockIdx.x, rows blockIdx.y * ROWS .. of the sequence blockIdx.z. */
template <typename T>
__global__ void __launch_bounds__(THREADS) conv_rows(const __grid_constant__ struct conv a)
{
    const struct ctw_op_conv &op = a.op;
    const int64_t col = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    const int64_t first = a.row[blockIdx.z], end = a.row[blockIdx.z + 1];
    const int64_t pos0 = blockIdx.z == 0 ? a.pos0 : 0;
    if (col >= op.dim)
        return;
    for (int64_t row0 = first + (int64_t)blockIdx.y * ROWS; row0 < end;
         row0 += (int64_t)gridDim.y * ROWS) {
        float last[CTW_MAX_TAPS], weight[CTW_MAX_TAPS]; /* last[taps - 1]: the row's own input */
        for (int j = 0; j < op.taps; j++) {
            weight[j] = ctw_cuda_number(op.weight, op.weight_dtype, col * op.taps + j);
            last[j] = j == 0 ? 0.0f
                             : input_at<T>(op, first, pos0, row0 - op.taps + j, col);
        }
        float bias = op.bias == NULL ? 0.0f : ctw_cuda_number(op.bias, op.bias_dtype, col);
        for (int64_t row = row0; row < row0 + ROWS && row < end; row++) {
            float sum = bias;
            for (int j = 0; j + 1 < op.taps; j++)
                last[j] = last[j + 1];
            last[op.taps - 1] = input_at<T>(op, first, pos0, row, col);
            for (int j = 0; j < op.taps; j++)
                sum += weight[j] * last[j];
            if (op.form == CTW_CONV_GATED)
                sum *= ctw_cuda_widen(((const T *)op.x)[row * op.ldx + op.dim + col]);
            else
                sum = sum / (1 + expf(-sum));
            ctw_cuda_narrow(sum, (T *)op.y + row * op.ldy + col);
        }
    }
}

/* What the sequence of rows first .. end - 1 leaves. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    conv_leave(const __grid_constant__ struct ctw_op_conv op, int64_t first, int64_t end,
               int64_t pos0)
{
    const int64_t col = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (col >= op.dim)
        return;
    for (int j = 0; j < op.taps - 1; j++)
        op.after[j * op.dim + col] = input_at<T>(op, first, pos0, end - op.taps + 1 + j, col);
}

enum ctw_status ctw_cuda_conv(struct ctw_cuda *cu, const struct ctw_op_conv *op,
                              struct ctw_err *err)
{
    const unsigned columns = (unsigned)((op->dim + THREADS - 1) / THREADS);
    const struct ctw_attn_seq *last = &op->seqs[op->n_seqs - 1];
    for (int64_t i = 0; i < op->n_seqs; i += SEQUENCES) {
        struct conv a = {};
        int64_t most = 0;
        a.op = *op;
        a.pos0 = op->seqs[i].pos0;
        for (; a.n_seqs < SEQUENCES && i + a.n_seqs < op->n_seqs; a.n_seqs++) {
            const struct ctw_attn_seq *s = &op->seqs[i + a.n_seqs];
            a.row[a.n_seqs] = s->q_row;
            a.row[a.n_seqs + 1] = s->q_row + s->n_q;
            most = s->n_q > most ? s->n_q : most;
        }
        int64_t blocks = (most + ROWS - 1) / ROWS;
        dim3 grid(columns, (unsigned)(blocks < 65535 ? blocks : 65535), (unsigned)a.n_seqs);
#define CONV(T) conv_rows<T><<<grid, THREADS, 0, cu->stream>>>(a)
        CTW_CUDA_FLOAT_SWITCH(op->dtype, CONV);
#undef CONV
    }
#define LEAVE(T)                                                                                   \
    conv_leave<T><<<columns, THREADS, 0, cu->stream>>>(*op, last->q_row, last->q_row + last->n_q,  \
                                                       last->pos0)
    CTW_CUDA_FLOAT_SWITCH(op->dtype, LEAVE);
#undef LEAVE
    return ctw_cuda_launched("convolution", err);
}
