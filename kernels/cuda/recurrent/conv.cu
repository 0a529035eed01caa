/*
 * Short convolutions. Memory-bound: a thread has VECTOR neighbouring columns of some rows, or one
 * column where rows are not aligned or the number of taps is unusual, and the inputs of the last
 * taps - 1 rows in registers. Both forms give the same bits.
 */
#include "kernels/conv.h"
#include "kernels/cuda/elements.h"
#include "kernels/cuda/recurrent/seq_parts.h"

enum {
    THREADS = 128,
    ROWS = 32,   /* of a thread */
    VECTOR = 4,  /* columns of a thread */
    AT_ONCE = 4, /* rows that a thread of conv_vectors loads before it computes them */
    BLOCKS = 8   /* of a multiprocessor, so of 64 registers a thread: few would not hide loads */
};

struct conv {
    struct ctw_op_conv op;
    struct ctw_cuda_parts parts;
};

/* A part as a block uses it. */
struct piece {
    int first, end, pos0; /* rows; the position of the first */
    const float *before;
};

static __device__ __forceinline__ struct piece piece_of(const struct conv &a, int i)
{
    const struct ctw_cuda_part &p = a.parts.part[i];
    const struct piece piece = {p.row, p.row + p.n_tok, p.pos0,
                                (const float *)ctw_state_at(&a.op.states, p.before)};
    return piece;
}

/* The input of row `row` of a part, which may lie before its first. */
template <typename T>
static __device__ __forceinline__ float input_at(const struct ctw_op_conv &op,
                                                 const struct piece &p, int64_t row, int64_t col)
{
    const T *x = (const T *)op.x + row * op.ldx;
    if (row >= p.first)
        return op.form == CTW_CONV_GATED
                   ? ctw_cuda_widen(x[col]) * ctw_cuda_widen(x[2 * op.dim + col])
                   : ctw_cuda_widen(x[ctw_conv_column(&op, col)]);
    return p.pos0 + row - p.first < 0
               ? 0.0f
               : p.before[(ctw_conv_behind(&op) + row - p.first) * op.dim + col];
}

/* Columns of blockIdx.x, rows blockIdx.y * ROWS .. of the part blockIdx.z. */
template <typename T>
__global__ void __launch_bounds__(THREADS) conv_rows(const __grid_constant__ struct conv a)
{
    const struct ctw_op_conv &op = a.op;
    const int64_t col = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    const struct piece p = piece_of(a, blockIdx.z);
    if (col >= op.dim)
        return;
    for (int64_t row0 = p.first + (int64_t)blockIdx.y * ROWS; row0 < p.end;
         row0 += (int64_t)gridDim.y * ROWS) {
        float last[CTW_MAX_TAPS], weight[CTW_MAX_TAPS]; /* last[taps - 1]: the row's own input */
        for (int j = 0; j < op.taps; j++) {
            weight[j] = ctw_cuda_number(op.weight, op.weight_dtype, col * op.taps + j);
            last[j] = j == 0 ? 0.0f : input_at<T>(op, p, row0 - op.taps + j, col);
        }
        float bias = op.bias == NULL ? 0.0f : ctw_cuda_number(op.bias, op.bias_dtype, col);
        for (int64_t row = row0; row < row0 + ROWS && row < p.end; row++) {
            float sum = bias;
            for (int j = 0; j + 1 < op.taps; j++)
                last[j] = last[j + 1];
            last[op.taps - 1] = input_at<T>(op, p, row, col);
            for (int j = 0; j < op.taps; j++)
                sum += weight[j] * last[j];
            if (op.form == CTW_CONV_GATED)
                sum *= ctw_cuda_widen(((const T *)op.x)[row * op.ldx + op.dim + col]);
            else if (op.form == CTW_CONV_ADD)
                sum += last[op.taps - 1];
            else if (op.form == CTW_CONV_SILU)
                sum = sum / (1 + expf(-sum));
            ctw_cuda_narrow(sum, (T *)op.y + row * op.ldy + col);
        }
    }
}

/* With dilation: each tap's input is read anew. */
template <typename T>
__global__ void __launch_bounds__(THREADS) conv_dilated(const __grid_constant__ struct conv a)
{
    const struct ctw_op_conv &op = a.op;
    const int64_t col = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    const struct piece p = piece_of(a, blockIdx.z);
    if (col >= op.dim)
        return;
    for (int64_t row = p.first + blockIdx.y; row < p.end; row += gridDim.y) {
        float sum = op.bias == NULL ? 0.0f : ctw_cuda_number(op.bias, op.bias_dtype, col);
        for (int j = 0; j < op.taps; j++)
            sum += ctw_cuda_number(op.weight, op.weight_dtype, col * op.taps + j) *
                   input_at<T>(op, p, row - (op.taps - 1 - j) * op.dilation, col);
        if (op.form == CTW_CONV_GATED)
            sum *= ctw_cuda_widen(((const T *)op.x)[row * op.ldx + op.dim + col]);
        else if (op.form == CTW_CONV_ADD)
            sum += input_at<T>(op, p, row, col);
        else if (op.form == CTW_CONV_SILU)
            sum = sum / (1 + expf(-sum));
        ctw_cuda_narrow(sum, (T *)op.y + row * op.ldy + col);
    }
}

/* Of a row of x: the inputs; or two factors, and the gate. */
template <typename T, bool GATED> struct loaded {
    T of[GATED ? 3 : 1][VECTOR];
};

template <typename T, bool GATED>
static __device__ __forceinline__ void load_row(const struct ctw_op_conv &op, int64_t row,
                                                int64_t col, struct loaded<T, GATED> &l)
{
    const T *x = (const T *)op.x + row * op.ldx;
    const T *from[3] = {x + (GATED ? col : ctw_conv_column(&op, col)), x + 2 * op.dim + col,
                        x + op.dim + col};
#pragma unroll
    for (int j = 0; j < (GATED ? 3 : 1); j++)
#pragma unroll
        for (int i = 0; i < VECTOR * (int)sizeof(T) / 8; i++) {
            const uint2 v = ((const uint2 *)from[j])[i];
            memcpy(l.of[j] + i * (8 / sizeof(T)), &v, 8);
        }
}

/* The inputs of a row, as in input_at(). */
template <typename T, bool GATED>
static __device__ __forceinline__ void inputs_of(const struct loaded<T, GATED> &l,
                                                 float (&v)[VECTOR])
{
#pragma unroll
    for (int i = 0; i < VECTOR; i++) {
        v[i] = ctw_cuda_widen(l.of[0][i]);
        if constexpr (GATED)
            v[i] *= ctw_cuda_widen(l.of[1][i]);
    }
}

template <typename T, int TAPS, enum ctw_conv_form FORM>
__global__ void __launch_bounds__(THREADS, BLOCKS)
    conv_vectors(const __grid_constant__ struct conv a)
{
    constexpr bool GATED = FORM == CTW_CONV_GATED;
    const struct ctw_op_conv &op = a.op;
    const int64_t col = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * VECTOR;
    const struct piece p = piece_of(a, blockIdx.z);
    if (col >= op.dim)
        return;
    float weight[TAPS][VECTOR], bias[VECTOR];
#pragma unroll
    for (int i = 0; i < VECTOR; i++) {
        bias[i] = op.bias == NULL ? 0.0f : ctw_cuda_number(op.bias, op.bias_dtype, col + i);
#pragma unroll
        for (int j = 0; j < TAPS; j++)
            weight[j][i] = ctw_cuda_number(op.weight, op.weight_dtype, (col + i) * TAPS + j);
    }
    for (int row0 = p.first + (int)blockIdx.y * ROWS; row0 < p.end; row0 += (int)gridDim.y * ROWS) {
        const int stop = row0 + ROWS < p.end ? row0 + ROWS : p.end;
        float last[TAPS][VECTOR]; /* last[TAPS - 1]: the row's own inputs */
#pragma unroll
        for (int j = 1; j < TAPS; j++)
#pragma unroll
            for (int i = 0; i < VECTOR; i++)
                last[j][i] = input_at<T>(op, p, row0 - TAPS + j, col + i);
        for (int row = row0; row < stop; row += AT_ONCE) {
            struct loaded<T, GATED> rows[AT_ONCE];
#pragma unroll
            for (int r = 0; r < AT_ONCE; r++)
                load_row(op, row + r < stop ? row + r : stop - 1, col, rows[r]);
#pragma unroll
            for (int r = 0; r < AT_ONCE; r++) {
                float sum[VECTOR];
#pragma unroll
                for (int i = 0; i < (TAPS - 1) * VECTOR; i++)
                    last[i / VECTOR][i % VECTOR] = last[i / VECTOR + 1][i % VECTOR];
                inputs_of(rows[r], last[TAPS - 1]);
#pragma unroll
                for (int i = 0; i < VECTOR; i++) {
                    sum[i] = bias[i];
#pragma unroll
                    for (int j = 0; j < TAPS; j++)
                        sum[i] += weight[j][i] * last[j][i];
                    if constexpr (GATED)
                        sum[i] *= ctw_cuda_widen(rows[r].of[2][i]);
                    else if constexpr (FORM == CTW_CONV_ADD)
                        sum[i] += last[TAPS - 1][i];
                    else if constexpr (FORM == CTW_CONV_SILU)
                        sum[i] = sum[i] / (1 + expf(-sum[i]));
                }
                if (row + r < stop)
                    ctw_cuda_store((T *)op.y + (row + r) * op.ldy + col, sum);
            }
        }
    }
}

/* What the part blockIdx.y leaves. */
template <typename T>
__global__ void __launch_bounds__(THREADS) conv_leave(const __grid_constant__ struct conv a)
{
    const struct ctw_op_conv &op = a.op;
    const struct piece p = piece_of(a, blockIdx.y);
    const int64_t col = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    float *after = (float *)ctw_state_at(&op.states, a.parts.part[blockIdx.y].after);
    if (col >= op.dim || after == NULL)
        return;
    const int64_t n = ctw_conv_behind(&op);
    for (int64_t j = 0; j < n; j++)
        after[j * op.dim + col] = input_at<T>(op, p, p.end - n + j, col);
}

/* Can a thread take VECTOR columns? */
static bool are_vectors(const struct ctw_op_conv *op)
{
    return op->dim % VECTOR == 0 && op->ldx % VECTOR == 0 && op->ldy % VECTOR == 0 &&
           op->run % VECTOR == 0 && op->step % VECTOR == 0 && ctw_cuda_aligned16(op->x) &&
           ctw_cuda_aligned16(op->y) && op->dilation == 1 && (op->taps == 3 || op->taps == 4);
}

template <typename T, enum ctw_conv_form FORM>
static void launch_vectors(struct ctw_cuda *cu, dim3 grid, const struct conv &a)
{
    if (a.op.taps == 4)
        conv_vectors<T, 4, FORM><<<grid, THREADS, 0, cu->stream>>>(a);
    else
        conv_vectors<T, 3, FORM><<<grid, THREADS, 0, cu->stream>>>(a);
}

template <typename T>
static void launch_rows(struct ctw_cuda *cu, dim3 grid, bool vectors, const struct conv &a)
{
    if (a.op.dilation > 1)
        conv_dilated<T><<<grid, THREADS, 0, cu->stream>>>(a);
    else if (!vectors)
        conv_rows<T><<<grid, THREADS, 0, cu->stream>>>(a);
    else if (a.op.form == CTW_CONV_GATED)
        launch_vectors<T, CTW_CONV_GATED>(cu, grid, a);
    else if (a.op.form == CTW_CONV_ADD)
        launch_vectors<T, CTW_CONV_ADD>(cu, grid, a);
    else if (a.op.form == CTW_CONV_PLAIN)
        launch_vectors<T, CTW_CONV_PLAIN>(cu, grid, a);
    else
        launch_vectors<T, CTW_CONV_SILU>(cu, grid, a);
}

enum ctw_status ctw_cuda_conv(struct ctw_cuda *cu, const struct ctw_op_conv *op,
                              struct ctw_err *err)
{
    const unsigned columns = (unsigned)((op->dim + THREADS - 1) / THREADS);
    const bool vectors = are_vectors(op);
    struct conv a = {};
    a.op = *op;
    for (int64_t i = 0; i < op->n_parts; i += a.parts.n) {
        int64_t most = ctw_cuda_take_parts(&a.parts, op->parts + i, op->n_parts - i);
        int64_t blocks = (most + ROWS - 1) / ROWS;
        dim3 grid(columns, (unsigned)(blocks < 65535 ? blocks : 65535), (unsigned)a.parts.n);
        const dim3 leaving(columns, (unsigned)a.parts.n);
        if (vectors)
            grid.x = (columns + VECTOR - 1) / VECTOR;
#define CONV(T) launch_rows<T>(cu, grid, vectors, a)
        CTW_CUDA_FLOAT_SWITCH(op->dtype, CONV);
#undef CONV
#define LEAVE(T) conv_leave<T><<<leaving, THREADS, 0, cu->stream>>>(a)
        if (a.parts.leave && op->taps > 1)
            CTW_CUDA_FLOAT_SWITCH(op->dtype, LEAVE);
#undef LEAVE
    }
    return ctw_cuda_launched("convolution", err);
}
