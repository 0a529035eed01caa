/* What a product is to the files that prepare weights and that run it: its shape, and its bias. */
#include "kernels/cuda/elements.h"

enum { THREADS = 256 };

/* The router's own type, if its weights are of another one: its logits are not rounded. */
enum ctw_dtype ctw_cuda_w_dtype(const struct ctw_op_linear *op)
{
    enum ctw_dtype dtype = op->dtype;
    for (int i = 0; op->epilogue == CTW_EPI_LOGITS && i < op->n_shards; i++)
        dtype = op->shards[i].weight->dtype == op->dtype ? dtype : CTW_F32;
    return dtype;
}

struct ctw_cuda_gemm ctw_cuda_gemm_of(const struct ctw_op_linear *op)
{
    struct ctw_cuda_gemm g = {};
    g.m = op->n_tok;
    g.k = op->shards[0].weight->k;
    for (int i = 0; i < op->n_shards; i++)
        g.n += op->shards[i].n;
    g.dtype = ctw_cuda_w_dtype(op);
    g.x = op->x;
    g.ldx = op->ldx;
    g.ldw = g.k;
    g.y = op->y;
    g.ldy = op->ldy;
    g.add = op->epilogue == CTW_EPI_ADD;
    bool wide = op->epilogue == CTW_EPI_LOGITS || op->epilogue == CTW_EPI_SCATTER;
    g.y_dtype = g.add ? op->residual_dtype : wide ? CTW_F32 : op->dtype;
    g.x_rows = op->x_rows;
    g.y_rows = op->y_rows;
    g.y_weight = op->y_weight;
    return g;
}

struct ctw_cuda_ending ctw_cuda_ending_of(const struct ctw_op_linear *op,
                                          const struct ctw_op_act *act)
{
    struct ctw_cuda_ending end = {};
    end.kind = op->epilogue == CTW_EPI_GATE ? ctw_cuda_ending::CTW_CUDA_GATED
               : act != NULL                ? ctw_cuda_ending::CTW_CUDA_ACTIVATED
                                            : ctw_cuda_ending::CTW_CUDA_STORED;
    end.act = act != NULL ? act->act : op->act;
    end.glu = op->glu;
    return end;
}

struct bias_parts {
    const uint8_t *p[CTW_MAX_SHARDS]; /* NULL: zeros; unaligned */
    enum ctw_dtype dtype[CTW_MAX_SHARDS];
    int64_t n[CTW_MAX_SHARDS], step[CTW_MAX_SHARDS]; /* elements from a row's to the next row's */
    int count;
    int64_t block; /* block size of interleaved gate and up; 0: concatenated */
};

/* The shards' biases concatenated, in fp32 and, unless `narrow` is NULL, in y_dtype, which is 16
 * bits. */
static __global__ void bias_kernel(struct bias_parts b, int64_t n, enum ctw_dtype y_dtype,
                                   float *wide, uint16_t *narrow)
{
    int64_t o = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, row = o;
    if (o >= n)
        return;
    int s = 0;
    if (b.block > 0) {
        s = (int)(o / b.block % 2);
        row = o / (2 * b.block) * b.block + o % b.block;
    } else {
        while (s + 1 < b.count && row >= b.n[s])
            row -= b.n[s++];
    }
    float v = 0;
    if (b.p[s] != NULL) {
        const uint8_t *p = b.p[s] + row * b.step[s] * (int64_t)ctw_dtype_bytes(b.dtype[s]);
        uint32_t low = p[0] | (uint32_t)p[1] << 8;
        v = b.dtype[s] == CTW_BF16 ? ctw_bf16_to_f32((uint16_t)low)
            : b.dtype[s] == CTW_F16
                ? ctw_f16_to_f32((uint16_t)low)
                : ctw_bits_to_f32(low | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24);
    }
    wide[o] = v;
    if (narrow != NULL)
        narrow[o] = y_dtype == CTW_BF16 ? ctw_f32_to_bf16(v) : ctw_f32_to_f16(v);
}

bool ctw_cuda_has_bias(const struct ctw_op_linear *op)
{
    bool some = false;
    for (int i = 0; i < op->n_shards; i++)
        some = some || op->shards[i].bias != NULL;
    return some;
}

enum ctw_status ctw_cuda_join_bias(cudaStream_t stream, const struct ctw_op_linear *op, int64_t block,
                                   char *scratch, struct ctw_cuda_gemm *g, struct ctw_err *err)
{
    struct bias_parts b = {};
    bool exact = g->y_dtype != CTW_F32; /* in 16 bits */
    b.count = op->n_shards;
    b.block = block;
    for (int i = 0; i < op->n_shards; i++) {
        const struct ctw_shard *s = &op->shards[i];
        b.p[i] = (const uint8_t *)s->bias;
        b.dtype[i] = s->bias_dtype;
        b.n[i] = s->n;
        b.step[i] = ctw_shard_step(s);
        exact = exact && (s->bias == NULL || s->bias_dtype == g->y_dtype);
    }
    if (!ctw_cuda_has_bias(op))
        return CTW_OK;
    float *wide = (float *)scratch;
    uint16_t *narrow = exact ? (uint16_t *)(scratch + ctw_gpu_round_up(4 * g->n, 256)) : NULL;
    bias_kernel<<<(unsigned)((g->n + THREADS - 1) / THREADS), THREADS, 0, stream>>>(
        b, g->n, g->y_dtype, wide, narrow);
    g->bias = wide;
    g->bias_y = narrow;
    return ctw_cuda_launched("joining biases", err);
}
