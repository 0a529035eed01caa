/*
 * Embedding: rows of a table, decoded; times a scale and added to y, if the model has that.
 * Memory-bound: 16 bytes at a time, contiguous across a warp's lanes.
 */
#include "kernels/cuda/elements.h"

enum {
    THREADS = 256,
    SUM_BYTES = 16 << 20 /* of scratch: rows that are decoded before they are added */
};

/* y [n] = x [n] * scale, or y + x * scale, rounded once. 8 elements per thread; y may be x. */
template <typename T, bool ADD>
__global__ void __launch_bounds__(THREADS)
    scale_rows(const T *x, T *y, int64_t n, float scale, bool aligned)
{
    int64_t at = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * 8;
    float v[8], old[8];
    if (at + 8 <= n && aligned) {
        ctw_cuda_load<false>(x + at, v);
        if (ADD)
            ctw_cuda_load<false>(y + at, old);
#pragma unroll
        for (int i = 0; i < 8; i++)
            v[i] = ADD ? __fadd_rn(__fmul_rn(v[i], scale), old[i]) : v[i] * scale;
        ctw_cuda_store(y + at, v);
        return;
    }
    for (int i = 0; i < 8 && at + i < n; i++) {
        float w = __fmul_rn(ctw_cuda_widen(x[at + i]), scale);
        ctw_cuda_narrow(ADD ? __fadd_rn(w, ctw_cuda_widen(y[at + i])) : w, y + at + i);
    }
}

static enum ctw_status scale(struct ctw_cuda *cu, const struct ctw_op_embed *op, const void *x,
                             void *y, int64_t n, struct ctw_err *err)
{
    unsigned blocks = (unsigned)((n + 8 * THREADS - 1) / (8 * THREADS));
    bool aligned = ctw_cuda_aligned16(x) && ctw_cuda_aligned16(y);
#define SCALE(T)                                                                                   \
    (op->add ? scale_rows<T, true> : scale_rows<T, false>)<<<blocks, THREADS, 0, cu->stream>>>(    \
        (const T *)x, (T *)y, n, op->scale, aligned)
    CTW_CUDA_FLOAT_SWITCH(op->dtype, SCALE);
#undef SCALE
    return ctw_cuda_launched("scaling embeddings", err);
}

/* to[t] = tokens[t], or 0 if the table of n rows has no such row. */
__global__ void __launch_bounds__(THREADS)
    known_tokens(const int32_t *tokens, int64_t n_tok, int64_t n, int32_t *to)
{
    int64_t t = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (t < n_tok)
        to[t] = tokens[t] < n ? tokens[t] : 0;
}

/* Part by part through scratch, of which products need more: see ctw_gpu_linear_scratch(). Behind
 * the rows lie their tokens. */
static enum ctw_status add_rows(struct ctw_cuda *cu, const struct ctw_op_embed *op,
                                struct ctw_err *err)
{
    int64_t k = op->table->weight->k, left = op->n_tok;
    size_t row_bytes = (size_t)k * ctw_dtype_bytes(op->dtype);
    const size_t each = row_bytes + sizeof(int32_t);
    int64_t most = (int64_t)(SUM_BYTES / each) > 0 ? (int64_t)(SUM_BYTES / each) : 1;
    int64_t rows = left < most ? left : most;
    const size_t ahead = ((size_t)rows * row_bytes + 3) / 4 * 4;
    struct ctw_cuda_buffer *b = &cu->scratch[CTW_CUDA_PRODUCT];
    enum ctw_status st = ctw_cuda_grow(cu, b, ahead + (size_t)rows * sizeof(int32_t), err);
    for (int64_t t = 0; st == CTW_OK && left > 0; t += rows, left -= rows) {
        int64_t n = left < rows ? left : rows;
        int32_t *tokens = (int32_t *)((char *)b->p + ahead);
        known_tokens<<<(unsigned)((n + THREADS - 1) / THREADS), THREADS, 0, cu->stream>>>(
            op->tokens + t, n, op->table->n, tokens);
        st = ctw_cuda_launched("tokens of a table", err);
        if (st == CTW_OK)
            st = ctw_cuda_decode_rows(cu, op->table, tokens, n, op->dtype, b->p, err);
        if (st == CTW_OK)
            st = scale(cu, op, b->p, (char *)op->y + (size_t)t * row_bytes, n * k, err);
    }
    return st;
}

/* y's row t = the row of token t, times the scale, if the part of the table has it. A block is a
 * token. Each value is rounded as by decoding and scale_rows(). Values may lie at any address. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    part_rows(const char *values, enum ctw_dtype dtype, const int32_t *tokens, int64_t id0, int64_t n,
              int64_t k, T *y, float scale)
{
    int64_t t = blockIdx.x, id = tokens[t] - id0;
    if (id < 0 || id >= n)
        return;
    for (int64_t i = threadIdx.x; i < k; i += THREADS) {
        T v;
        ctw_cuda_narrow(ctw_load_float(values, dtype, id * k + i), &v);
        if (scale != 1)
            ctw_cuda_narrow(__fmul_rn(ctw_cuda_widen(v), scale), &v);
        y[t * k + i] = v;
    }
}

static enum ctw_status embed_part(struct ctw_cuda *cu, const struct ctw_op_embed *op,
                                  struct ctw_err *err)
{
    const struct ctw_weight *w = op->table->weight;
    const char *values = (const char *)op->table->data->part[CTW_PART_VALUES];
    values += (size_t)op->table->row0 * w->row_bytes;
#define PART(T)                                                                                    \
    part_rows<T><<<(unsigned)op->n_tok, THREADS, 0, cu->stream>>>(                                 \
        values, w->dtype, op->tokens, op->id0, op->table->n, w->k, (T *)op->y, op->scale)
    CTW_CUDA_FLOAT_SWITCH(op->dtype, PART);
#undef PART
    return ctw_cuda_launched("a part of the embedding", err);
}

/* Rows are decoded into y's type; a scale is a second pass, because few models have one. */
enum ctw_status ctw_cuda_embed(struct ctw_cuda *cu, const struct ctw_op_embed *op,
                               struct ctw_err *err)
{
    int64_t n = op->n_tok * op->table->weight->k;
    if (n == 0)
        return CTW_OK;
    if (op->in_part)
        return embed_part(cu, op, err);
    if (op->add)
        return add_rows(cu, op, err);
    enum ctw_status st =
        ctw_cuda_decode_rows(cu, op->table, op->tokens, op->n_tok, op->dtype, op->y, err);
    return st != CTW_OK || op->scale == 1 ? st : scale(cu, op, op->y, op->y, n, err);
}
