/*
 * Linear layers: prepares weights and biases, runs one product (gemm.cu), and applies the epilogue.
 *
 * A bias is added to the fp32 sum. cuBLASLt takes a bias only in y's own type. If y is 16 bits and
 * the checkpoint's bias is of another type, the product therefore goes to scratch in fp32 and is
 * rounded from there: slower, not needed by any model that we know of, and still one rounding.
 */
#include "kernels/cuda/activations.h"
#include "kernels/cuda/elements.h"

enum {
    THREADS = 256,
    VECTOR = CTW_GPU_VECTOR,
    FEWEST_ROWS = CTW_GPU_FEWEST_ROWS,
    MOST_ROWS = 32768 /* limit of a grid's second dimension */
};

/* Rows of m that go through scratch at a time: [rows, ld] of `bytes` each. The parts are nearly
 * equal. */
static int64_t rows_at_once(const struct ctw_cuda *cu, int64_t m, int64_t ld, size_t bytes)
{
    int64_t most = ctw_gpu_product_bytes(cu->hopper) / (ld * (int64_t)bytes);
    most = most < FEWEST_ROWS ? (int64_t)FEWEST_ROWS : most - most % FEWEST_ROWS;
    most = most > MOST_ROWS ? (int64_t)MOST_ROWS : most;
    if (m <= most)
        return m;
    int64_t parts = (m + most - 1) / most;
    return ctw_gpu_round_up((m + parts - 1) / parts, FEWEST_ROWS);
}

/* ---- act(gate) * up ----------------------------------------------------------------------- */

/* 8 columns at once if rows and blocks of columns are whole vectors; otherwise single columns. */
struct gate {
    int m, n;  /* of y */
    int block; /* columns b * 2 block .. + block - 1 of p: gate, then up; n: each contiguous */
    int64_t ldp, ldy;
    enum ctw_activation act;
    bool vector;
    struct ctw_glu glu;
};

/* How gate and up are joined: act(g) * u with a smooth activation, or with ReLU or its square; or
 * any ctw_glu. */
enum joint { SMOOTH, RELU, ANY_GLU };

template <enum joint JOINT>
static __device__ __forceinline__ float joined(const struct gate &a, float g, float u)
{
    if (JOINT == ANY_GLU)
        return ctw_cuda_glu(a.act, a.glu, g, u);
    return (JOINT == RELU ? ctw_cuda_relu(a.act, g) : ctw_cuda_smooth(a.act, g)) * u;
}

template <enum joint JOINT, typename P, typename Y>
static __global__ void __launch_bounds__(THREADS) gate_kernel(struct gate a, const P *p, Y *y)
{
    int64_t row = blockIdx.y;
    int col = (int)(blockIdx.x * THREADS + threadIdx.x) * VECTOR;
    p += row * a.ldp;
    y += row * a.ldy;
    if (col >= a.n)
        return;
    if (a.vector) {
        int at = col / a.block * 2 * a.block + col % a.block;
        float g[VECTOR], u[VECTOR];
        ctw_cuda_load<true>(p + at, g);
        ctw_cuda_load<true>(p + at + a.block, u);
#pragma unroll
        for (int i = 0; i < VECTOR; i++)
            g[i] = joined<JOINT>(a, g[i], u[i]);
        ctw_cuda_store(y + col, g);
        return;
    }
    for (int c = col; c < a.n && c < col + VECTOR; c++) {
        int at = c / a.block * 2 * a.block + c % a.block;
        float g = ctw_cuda_widen(p[at]), u = ctw_cuda_widen(p[at + a.block]);
        ctw_cuda_narrow(joined<JOINT>(a, g, u), &y[c]);
    }
}

/* y = p, or y + p: the rest of a product that went to scratch in fp32. */
template <typename Y>
static __global__ void round_kernel(int64_t n, const float *p, int64_t ldp, Y *y, int64_t ldy,
                                    bool add)
{
    int64_t col = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y;
    if (col >= n)
        return;
    float v = p[row * ldp + col];
    if (add)
        v += ctw_cuda_widen(y[row * ldy + col]);
    ctw_cuda_narrow(v, &y[row * ldy + col]);
}

/* y[rows[t]] += weight[t] * p[t], in fp32. */
static __global__ void scatter_kernel(int64_t n, const float *p, int64_t ldp, float *y, int64_t ldy,
                                      const int32_t *rows, const float *weight)
{
    int64_t col = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y;
    if (col >= n)
        return;
    float *to = y + (rows == NULL ? row : (int64_t)rows[row]) * ldy + col;
    *to = fmaf(p[row * ldp + col], weight == NULL ? 1.0f : weight[row], *to);
}

/* ---- products through scratch ------------------------------------------------------------- */

template <enum joint JOINT>
static void launch_gate(struct ctw_cuda *cu, const struct gate *a, const void *p,
                        enum ctw_dtype p_dtype, void *y, enum ctw_dtype y_dtype)
{
    dim3 grid((unsigned)((a->n + THREADS * VECTOR - 1) / (THREADS * VECTOR)), (unsigned)a->m);
    cudaStream_t stream = cu->stream;
    if (p_dtype == CTW_BF16)
        gate_kernel<JOINT>
            <<<grid, THREADS, 0, stream>>>(*a, (const __nv_bfloat16 *)p, (__nv_bfloat16 *)y);
    else if (p_dtype == CTW_F16)
        gate_kernel<JOINT><<<grid, THREADS, 0, stream>>>(*a, (const __half *)p, (__half *)y);
    else if (y_dtype == CTW_F32)
        gate_kernel<JOINT><<<grid, THREADS, 0, stream>>>(*a, (const float *)p, (float *)y);
    else if (y_dtype == CTW_BF16)
        gate_kernel<JOINT><<<grid, THREADS, 0, stream>>>(*a, (const float *)p, (__nv_bfloat16 *)y);
    else
        gate_kernel<JOINT><<<grid, THREADS, 0, stream>>>(*a, (const float *)p, (__half *)y);
}

static void launch_round(struct ctw_cuda *cu, const struct ctw_cuda_gemm *part, void *y,
                         enum ctw_dtype y_dtype, int64_t ldy, bool add)
{
    dim3 grid((unsigned)((part->n + THREADS - 1) / THREADS), (unsigned)part->m);
    const float *p = (const float *)part->y;
    if (y_dtype == CTW_BF16)
        round_kernel<<<grid, THREADS, 0, cu->stream>>>(part->n, p, part->ldy, (__nv_bfloat16 *)y,
                                                       ldy, add);
    else
        round_kernel<<<grid, THREADS, 0, cu->stream>>>(part->n, p, part->ldy, (__half *)y, ldy,
                                                       add);
}

static void finish_gate(struct ctw_cuda *cu, const struct ctw_op_linear *op, struct gate *a,
                        const void *p, enum ctw_dtype p_dtype, void *y, enum ctw_dtype y_dtype)
{
    a->act = op->act;
    a->glu = op->glu;
    a->vector = a->block % VECTOR == 0 && a->n % VECTOR == 0 && a->ldy % VECTOR == 0 &&
                ctw_cuda_aligned16(op->y);
    if (op->glu.kind != CTW_GLU_PLAIN)
        launch_gate<ANY_GLU>(cu, a, p, p_dtype, y, y_dtype);
    else if (ctw_cuda_is_relu(op->act))
        launch_gate<RELU>(cu, a, p, p_dtype, y, y_dtype);
    else
        launch_gate<SMOOTH>(cu, a, p, p_dtype, y, y_dtype);
}

static void launch_scatter(struct ctw_cuda *cu, const struct ctw_op_linear *op,
                           const struct ctw_cuda_gemm *part, int64_t first)
{
    dim3 grid((unsigned)((part->n + THREADS - 1) / THREADS), (unsigned)part->m);
    float *y = (float *)op->y + (op->y_rows == NULL ? first * op->ldy : 0);
    scatter_kernel<<<grid, THREADS, 0, cu->stream>>>(
        part->n, (const float *)part->y, part->ldy, y, op->ldy,
        op->y_rows == NULL ? NULL : op->y_rows + first,
        op->y_weight == NULL ? NULL : op->y_weight + first);
}

/* Computes g's rows block by block into scratch, and stores them to op->y. */
static enum ctw_status through_scratch(struct ctw_cuda *cu, const struct ctw_op_linear *op,
                                       const struct ctw_cuda_gemm *g, char *scratch, int64_t block,
                                       struct ctw_err *err)
{
    enum ctw_status st = CTW_OK;
    bool exact = g->bias == NULL || g->bias_y != NULL;
    bool gated = op->epilogue == CTW_EPI_GATE;
    enum ctw_dtype y_dtype = g->y_dtype, p_dtype = gated && exact ? y_dtype : CTW_F32;
    int64_t ld = ctw_gpu_round_up(g->n, VECTOR), left = g->m;
    int64_t rows = rows_at_once(cu, g->m, ld, ctw_dtype_bytes(p_dtype));
    for (int64_t t = 0; st == CTW_OK && left > 0; t += rows, left -= rows) {
        struct ctw_cuda_gemm part = *g;
        part.m = left < rows ? left : rows;
        part.x = (const char *)g->x + (size_t)(t * g->ldx) * ctw_dtype_bytes(g->dtype);
        part.y = scratch;
        part.ldy = ld;
        part.y_dtype = p_dtype;
        part.add = false;
        part.bias_y = p_dtype == y_dtype ? g->bias_y : NULL;
        st = ctw_cuda_gemm(cu, &part, err);
        if (st != CTW_OK)
            return st;
        char *y = (char *)op->y + (size_t)(t * op->ldy) * ctw_dtype_bytes(y_dtype);
        if (gated) {
            int n = (int)(g->n / 2);
            struct gate a = {};
            a.m = (int)part.m;
            a.n = n;
            a.block = block > 0 ? (int)block : n;
            a.ldp = ld;
            a.ldy = op->ldy;
            finish_gate(cu, op, &a, scratch, p_dtype, y, y_dtype);
        } else if (op->epilogue == CTW_EPI_SCATTER) {
            launch_scatter(cu, op, &part, t);
        } else {
            launch_round(cu, &part, y, y_dtype, op->ldy, g->add);
        }
        st = ctw_cuda_launched("finishing a product", err);
    }
    return st;
}

/* ---- the operation ------------------------------------------------------------------------ */

/* A product with an epilogue of more than a sum, by a kernel that has it. *done false: there is
 * none, nothing was done. */
static enum ctw_status in_one_step(struct ctw_cuda *cu, const struct ctw_op_linear *op,
                                   const struct ctw_cuda_gemm *g, bool interleaved, bool *done,
                                   struct ctw_err *err)
{
    bool gated = op->epilogue == CTW_EPI_GATE;
    const struct ctw_cuda_ending end = ctw_cuda_ending_of(op, NULL);
    *done = false;
    if (!cu->hopper || gated != interleaved)
        return CTW_OK;
    if (op->epilogue == CTW_EPI_SCATTER) {
        *done = ctw_cuda_scatter_hopper_can(cu, g);
        return *done ? ctw_cuda_pair_hopper(cu, NULL, &end, g, err) : CTW_OK;
    }
    if (g->x_rows != NULL || op->glu.kind != CTW_GLU_PLAIN) {
        *done = ctw_cuda_gather_hopper_can(cu, g, &end);
        return *done ? ctw_cuda_gather_hopper(cu, g, &end, err) : CTW_OK;
    }
    return gated ? ctw_cuda_gate_hopper(cu, g, op->act, done, err) : CTW_OK;
}

static enum ctw_status multiply(struct ctw_cuda *cu, const struct ctw_op_linear *op,
                                struct ctw_cuda_gemm *g, bool interleaved, struct ctw_err *err)
{
    bool gated = op->epilogue == CTW_EPI_GATE, some = ctw_cuda_has_bias(op), done = false;
    bool scattered = op->epilogue == CTW_EPI_SCATTER;
    int64_t block = interleaved ? CTW_CUDA_GATE_BLOCK : 0, ld = ctw_gpu_round_up(g->n, VECTOR);
    /* Reserves all scratch for the following steps at once: growing scratch discards its content.
     */
    size_t first = some ? ctw_gpu_bias_bytes(g->n) : 0, bytes = first;
    /* cuBLASLt's 16-bit sums with y were observed to round the product before adding it. */
    bool narrow_sum = g->add && g->y_dtype != CTW_F32;
    if (gated || some || narrow_sum || scattered)
        bytes += (size_t)(rows_at_once(cu, g->m, ld, 4) * ld) * 4;
    if (gated && g->y_dtype != CTW_F32) {
        size_t narrow_bytes = first + (size_t)(rows_at_once(cu, g->m, ld, 2) * ld) * 2;
        bytes = bytes < narrow_bytes ? narrow_bytes : bytes;
    }
    enum ctw_status st = CTW_OK;
    if (!some) {
        st = in_one_step(cu, op, g, interleaved, &done, err);
        if (st != CTW_OK || done)
            return st;
    }
    struct ctw_cuda_buffer *scratch = &cu->scratch[CTW_CUDA_PRODUCT];
    st = ctw_cuda_grow(cu, scratch, bytes, err);
    if (st == CTW_OK && some)
        st = ctw_cuda_put_bias(cu, op, block, (char *)scratch->p, g, err);
    if (st == CTW_OK && some)
        st = in_one_step(cu, op, g, interleaved, &done, err);
    if (st != CTW_OK || done)
        return st;
    bool rounds_bias = some && g->y_dtype != CTW_F32 && g->bias_y == NULL;
    if (gated || narrow_sum || rounds_bias || scattered)
        return through_scratch(cu, op, g, (char *)scratch->p + first, block, err);
    return ctw_cuda_gemm(cu, g, err);
}

/* Must x pass through scratch? Not if the product gathers its rows itself, which depends on the
 * model alone. */
static bool needs_rows(const struct ctw_cuda *cu, const struct ctw_op_linear *op,
                       const struct ctw_cuda_gemm *g, bool interleaved)
{
    bool gated = op->epilogue == CTW_EPI_GATE;
    const struct ctw_cuda_ending end = ctw_cuda_ending_of(op, NULL);
    if (op->x_rows == NULL)
        return g->dtype != op->dtype;
    return op->x_weight != NULL || gated != interleaved ||
           !ctw_cuda_gather_hopper_can(cu, g, &end);
}

bool ctw_cuda_gathers(const struct ctw_cuda *cu, const struct ctw_op_linear *op)
{
    struct ctw_cuda_gemm g = ctw_cuda_gemm_of(op);
    return op->x_rows != NULL && !needs_rows(cu, op, &g, ctw_cuda_interleaves(cu, op));
}

static enum ctw_status multiply_gathered(struct ctw_cuda *cu, const struct ctw_op_linear *op,
                                         const struct ctw_cuda_gemm *g, bool interleaved,
                                         struct ctw_err *err)
{
    struct ctw_cuda_buffer *b = &cu->scratch[CTW_CUDA_ROWS];
    int64_t ld = ctw_gpu_round_up(g->k, VECTOR), rows = ctw_gpu_gathered_rows(g->k, g->dtype);
    rows = rows < op->n_tok ? rows : op->n_tok;
    enum ctw_status st =
        ctw_cuda_grow(cu, b, (size_t)(rows * ld) * ctw_dtype_bytes(g->dtype), err);
    for (int64_t t = 0; st == CTW_OK && t < op->n_tok; t += rows) {
        struct ctw_op_linear part = *op;
        part.n_tok = op->n_tok - t < rows ? op->n_tok - t : rows;
        st = ctw_cuda_gather(cu, op, t, part.n_tok, g->dtype, b->p, ld, err);
        part.x = b->p;
        part.ldx = ld;
        part.x_rows = NULL;
        part.x_weight = NULL;
        part.y = (char *)op->y + (size_t)(t * op->ldy) * ctw_dtype_bytes(g->y_dtype);
        struct ctw_cuda_gemm part_g = ctw_cuda_gemm_of(&part);
        part_g.w = g->w;
        if (st == CTW_OK)
            st = multiply(cu, &part, &part_g, interleaved, err);
    }
    return st;
}

enum ctw_status ctw_cuda_linear(struct ctw_cuda *cu, const struct ctw_op_linear *op,
                                struct ctw_err *err)
{
    struct ctw_cuda_gemm g = ctw_cuda_gemm_of(op);
    bool interleaved = false;
    if (op->n_tok == 0)
        return CTW_OK;
    enum ctw_status st = ctw_cuda_weights(cu, op, &g.w, &interleaved, err);
    if (st == CTW_OK && needs_rows(cu, op, &g, interleaved))
        st = multiply_gathered(cu, op, &g, interleaved, err);
    else if (st == CTW_OK)
        st = multiply(cu, op, &g, interleaved, err);
    return st != CTW_OK ? st : ctw_cuda_weights_used(cu, op, err);
}

enum ctw_status ctw_cuda_linear_act(struct ctw_cuda *cu, const struct ctw_op_linear *op,
                                    const struct ctw_op_act *act, bool *done, struct ctw_err *err)
{
    struct ctw_cuda_gemm g = ctw_cuda_gemm_of(op);
    const struct ctw_cuda_ending end = ctw_cuda_ending_of(op, act);
    bool interleaved = false;
    *done = op->x_weight == NULL && ctw_cuda_gather_hopper_can(cu, &g, &end);
    if (!*done)
        return CTW_OK;
    enum ctw_status st = ctw_cuda_weights(cu, op, &g.w, &interleaved, err);
    struct ctw_cuda_buffer *scratch = &cu->scratch[CTW_CUDA_PRODUCT];
    if (st == CTW_OK && ctw_cuda_has_bias(op))
        st = ctw_cuda_grow(cu, scratch, ctw_gpu_bias_bytes(g.n), err);
    if (st == CTW_OK)
        st = ctw_cuda_put_bias(cu, op, 0, (char *)scratch->p, &g, err);
    if (st == CTW_OK)
        st = ctw_cuda_gather_hopper(cu, &g, &end, err);
    return st == CTW_OK ? ctw_cuda_weights_used(cu, op, err) : st;
}

enum ctw_status ctw_cuda_linear_qkv(struct ctw_cuda *cu, const struct ctw_op_linear *op,
                                    const struct ctw_op_qkv *qkv, bool *done, struct ctw_err *err)
{
    struct ctw_cuda_gemm g = ctw_cuda_gemm_of(op);
    bool interleaved = false;
    *done = ctw_cuda_side_by_side(qkv) && ctw_cuda_qkv_hopper_can(cu, &g, qkv);
    if (!*done)
        return CTW_OK;
    enum ctw_status st = ctw_cuda_weights(cu, op, &g.w, &interleaved, err);
    if (st != CTW_OK)
        return st;
    struct ctw_cuda_buffer *scratch = &cu->scratch[CTW_CUDA_PRODUCT];
    if (ctw_cuda_has_bias(op))
        st = ctw_cuda_grow(cu, scratch, ctw_gpu_bias_bytes(g.n), err);
    if (st == CTW_OK)
        st = ctw_cuda_put_bias(cu, op, 0, (char *)scratch->p, &g, err);
    if (st == CTW_OK)
        st = ctw_cuda_qkv_hopper(cu, &g, qkv, done, err);
    enum ctw_status used = ctw_cuda_weights_used(cu, op, st == CTW_OK ? err : NULL);
    return st != CTW_OK ? st : used;
}
