/* Part of test_attention.cu: the speed of attention, on long and short sequences of usual
 * shapes. */

__global__ void fill(uint16_t *p, size_t n, uint32_t seed, bool bf16)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        uint32_t x = (uint32_t)i * 2654435761u ^ seed;
        float s = -2;
        for (int k = 0; k < 4; k++) {
            x ^= x << 13, x ^= x >> 17, x ^= x << 5;
            s += (float)(x >> 8) * 0x1p-24f;
        }
        s *= 1.7f; /* about normal, standard deviation 1 */
        if (bf16)
            ((__nv_bfloat16 *)p)[i] = __float2bfloat16(s);
        else
            ((__half *)p)[i] = __float2half(s);
    }
}

static int by_size(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

/* Milliseconds of one operation: the median of those alone, and the mean of those without a pause. */
struct times {
    float alone, sustained;
};

/* sustained_ms: about how long the operations without a pause take together. */
static struct times time_op(struct ctw_cuda *cu, const struct ctw_op_attention *op, int sustained_ms)
{
    enum { TIMES = 30 };
    float ms[TIMES], all;
    cudaEvent_t a, b;
    CU(cudaEventCreate(&a));
    CU(cudaEventCreate(&b));
    for (int i = -3; i < TIMES; i++) {
        CU(cudaEventRecord(a, cu->stream));
        OK(ctw_cuda_attention(cu, op, &last_err));
        CU(cudaEventRecord(b, cu->stream));
        CU(cudaEventSynchronize(b));
        if (i >= 0)
            CU(cudaEventElapsedTime(&ms[i], a, b));
    }
    qsort(ms, TIMES, sizeof(ms[0]), by_size);
    int more = (int)(sustained_ms / ms[TIMES / 2]) + 1;
    CU(cudaEventRecord(a, cu->stream));
    for (int i = 0; i < more; i++)
        OK(ctw_cuda_attention(cu, op, &last_err));
    CU(cudaEventRecord(b, cu->stream));
    CU(cudaEventSynchronize(b));
    CU(cudaEventElapsedTime(&all, a, b));
    CU(cudaEventDestroy(a));
    CU(cudaEventDestroy(b));
    struct times t = {ms[TIMES / 2], all / (float)more};
    return t;
}

/* n sequences of `length` and, if extra > 0, one more of `extra` tokens; the keys of each in n_runs
 * runs, of which the last lies first. */
static void time_one(struct ctw_cuda *cu, const char *variant, int64_t n, int64_t length, int64_t extra,
                     int n_head, int n_kv, int head, int64_t window, int head_v = 0, int n_runs = 1)
{
    int64_t rows = n * length + extra, n_seqs = n + (extra > 0);
    head_v = head_v > 0 ? head_v : head;
    size_t q_n = (size_t)rows * n_head * head, k_n = (size_t)rows * n_kv * head;
    size_t v_n = (size_t)rows * n_kv * head_v;
    struct ctw_attn_seq *seqs = (struct ctw_attn_seq *)ctw_calloc(n_seqs, sizeof(*seqs));
    struct ctw_kv_run *runs = (struct ctw_kv_run *)ctw_calloc(n_seqs * n_runs, sizeof(*runs));
    uint16_t *q, *k, *v, *out;
    double flops = 0;
    int64_t at = 0;
    for (int64_t i = 0; i < n_seqs; i++) {
        int64_t len = i < n ? length : extra, w = window > 0 && window < len ? window : len;
        int64_t end = at + len;
        seqs[i].q_row = at;
        seqs[i].n_q = len;
        seqs[i].runs = &runs[i * n_runs];
        seqs[i].n_runs = n_runs;
        for (int64_t r = 0; r < n_runs; r++) { /* not of whole tiles */
            int64_t from = r == 0 ? 0 : len * r / n_runs - 5, to = len * (r + 1) / n_runs - 5;
            to = r + 1 == n_runs ? len : to;
            end -= to - from;
            runs[i * n_runs + r].row = end;
            runs[i * n_runs + r].n_tok = to - from;
        }
        at += len;
        flops += 2.0 * (head + head_v) * n_head * (0.5 * w * (w + 1) + (double)(len - w) * w);
    }
    CU(cudaMalloc((void **)&q, q_n * 2));
    CU(cudaMalloc((void **)&k, k_n * 2));
    CU(cudaMalloc((void **)&v, v_n * 2));
    CU(cudaMalloc((void **)&out, (size_t)rows * n_head * head_v * 2));
    fill<<<1024, 256>>>(q, q_n, 1, true);
    fill<<<1024, 256>>>(k, k_n, 2, true);
    fill<<<1024, 256>>>(v, v_n, 3, true);
    CU(cudaDeviceSynchronize());
    struct ctw_op_attention op;
    memset(&op, 0, sizeof(op));
    op.dtype = CTW_BF16;
    op.n_head = n_head, op.n_kv = n_kv, op.head = head, op.head_v = head_v, op.v_factor = 1;
    op.scale = 1.0f / sqrtf((float)head);
    op.window = window;
    op.q = q, op.k = k, op.v = v, op.out = out;
    op.seqs = seqs, op.n_seqs = n_seqs;
    /* About 0.7 s without a pause for shapes that are compared with others, 0.1 s for the rest. */
    struct times t = time_op(cu, &op, n_kv < n_head && head == 128 && length >= 2048 ? 700 : 100);
    printf("%-7s %5lld x %5lld + %5lld  heads %2d / %d of %3d and %3d window %4d runs %2d  %8.3f ms "
           "%6.1f TFLOP/s, sustained %6.1f\n",
           variant, (long long)n, (long long)length, (long long)extra, n_head, n_kv, head, head_v,
           (int)window, n_runs, (double)t.alone, flops / t.alone * 1e-9, flops / t.sustained * 1e-9);
    CU(cudaFree(q));
    CU(cudaFree(k));
    CU(cudaFree(v));
    CU(cudaFree(out));
    ctw_free(runs);
    ctw_free(seqs);
}

static void time_all(struct ctw_cuda *cu, const char *variant)
{
    time_one(cu, variant, 8, 2048, 0, 32, 8, 128, 0);
    time_one(cu, variant, 8, 2048, 0, 32, 8, 128, 0, 0, 16);
    time_one(cu, variant, 8, 2048, 0, 32, 8, 128, 0);
    time_one(cu, variant, 8, 2048, 0, 32, 8, 128, 0, 0, 16);
    time_one(cu, variant, 8, 2048, 0, 32, 8, 128, 0, 0, 40);
    time_one(cu, variant, 2, 8192, 0, 32, 8, 128, 0);
    time_one(cu, variant, 8, 2048, 0, 32, 8, 64, 0);
    time_one(cu, variant, 2, 8192, 0, 32, 8, 64, 0);
    time_one(cu, variant, 8, 2048, 0, 16, 8, 256, 0);
    time_one(cu, variant, 8, 2048, 0, 32, 32, 96, 0);
    time_one(cu, variant, 2, 8192, 0, 32, 8, 128, 1024);
    time_one(cu, variant, 160, 100, 0, 32, 8, 128, 0);
    time_one(cu, variant, 2000, 8, 8192, 32, 8, 128, 0);
    time_one(cu, variant, 4, 2048, 0, 128, 128, 192, 0, 128); /* DeepSeek-V3 */
}
