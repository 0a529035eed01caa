/* Part of test_elementwise.cu: rates, counting bytes read and written, compared with a device
 * copy. */

static double copy_rate; /* bytes per second */

typedef void work_fn(void *arg);

/* The median time of a run on `stream`, in seconds. EACH runs between two events: an event takes
 * 1 to 2 us, a weight's decoder 40. */
static double time_of(work_fn *work, void *arg, cudaStream_t stream)
{
    enum { WARM = 3, RUNS = 11, EACH = 8 };
    cudaEvent_t event[RUNS + 1];
    float ms[RUNS];
    for (int i = 0; i <= RUNS; i++)
        must(cudaEventCreate(&event[i]), "event");
    for (int i = 0; i < WARM; i++)
        work(arg);
    must(cudaEventRecord(event[0], stream), "event");
    for (int i = 0; i < RUNS; i++) {
        for (int k = 0; k < EACH; k++)
            work(arg);
        must(cudaEventRecord(event[i + 1], stream), "event");
    }
    must(cudaDeviceSynchronize(), "running");
    for (int i = 0; i < RUNS; i++) {
        float t;
        int at = i;
        must(cudaEventElapsedTime(&t, event[i], event[i + 1]), "event");
        for (; at > 0 && ms[at - 1] > t; at--)
            ms[at] = ms[at - 1];
        ms[at] = t;
    }
    for (int i = 0; i <= RUNS; i++)
        must(cudaEventDestroy(event[i]), "event");
    return ms[RUNS / 2] * 1e-3 / EACH;
}

static void print_rate(const char *what, double seconds, double bytes)
{
    printf("%-52s %8.1f us %8.0f GB/s %5.1f %% of copy\n", what, seconds * 1e6,
           bytes / seconds * 1e-9, 100 * bytes / seconds / copy_rate);
}

struct copy_work {
    struct buf a, b;
};

static void do_copy(void *arg)
{
    struct copy_work *w = (struct copy_work *)arg;
    must(cudaMemcpyAsync(w->b.p, w->a.p, w->a.bytes, cudaMemcpyDeviceToDevice, cu->stream), "copy");
}

static void do_fill(void *arg)
{
    struct copy_work *w = (struct copy_work *)arg;
    must(cudaMemsetAsync(w->b.p, 1, w->b.bytes, cu->stream), "fill");
}

struct decode_work {
    const struct made *m;
    enum ctw_dtype dtype;
    void *dst;
    bool in_turn; /* as gate and up rows are */
};

static void do_decode(void *arg)
{
    struct decode_work *w = (struct decode_work *)arg;
    OK(ctw_cuda_decode_range(cu, cu->stream, &w->m->shard, 0, w->m->w.n, w->dtype, w->dst,
                             w->in_turn ? CTW_CUDA_GATE_BLOCK : 0,
                             w->in_turn ? 2 * CTW_CUDA_GATE_BLOCK : 0, &last_err));
}

static void rate_decode(const struct kind *c, enum ctw_dtype dtype)
{
    struct made m;
    weight_open(&m, c);
    size_t out = (size_t)(c->n * c->k) * ctw_dtype_bytes(dtype), in = ctw_weight_bytes(&m.w);
    struct buf dst = buf_open(2 * out, 0);
    char what[160];
    for (int in_turn = 0; in_turn < (c->n > 4096 ? 2 : 1); in_turn++) {
        struct decode_work w = {&m, dtype, dst.p, in_turn != 0};
        snprintf(what, sizeof(what), "decode %s [%d, %d] to %s%s", c->name, (int)c->n, (int)c->k,
                 ctw_dtype_name(dtype), in_turn ? ", interleaved" : "");
        print_rate(what, time_of(do_decode, &w, cu->stream), (double)(in + out));
    }
    buf_close(&dst);
    weight_close(&m);
}

static void do_embed(void *arg)
{
    OK(ctw_embed(&cu->backend, (struct ctw_op_embed *)arg, &last_err));
}

static void do_norm(void *arg)
{
    OK(ctw_norm(&cu->backend, (struct ctw_op_norm *)arg, &last_err));
}

static void do_qkv(void *arg)
{
    OK(ctw_qkv(&cu->backend, (struct ctw_op_qkv *)arg, &last_err));
}

static void do_head(void *arg)
{
    OK(ctw_head(&cu->backend, (struct ctw_op_head *)arg, &last_err));
}

static void rate_norm(int64_t n_tok, int64_t dim, enum ctw_dtype x_dtype, enum ctw_dtype dtype)
{
    float *values = (float *)host_random(x_dtype, n_tok * dim, 1);
    struct buf x = buf_from(values, (size_t)(n_tok * dim) * ctw_dtype_bytes(x_dtype), 0);
    struct buf y = buf_open((size_t)(n_tok * dim) * ctw_dtype_bytes(dtype), 0);
    struct ctw_op_norm op = {};
    op.dtype = dtype;
    op.n_tok = n_tok;
    op.dim = dim;
    op.x = op.weight = x.p;
    op.x_dtype = x_dtype;
    op.weight_dtype = CTW_BF16;
    op.eps = 1e-5f;
    op.y = y.p;
    char what[160];
    snprintf(what, sizeof(what), "norm [%d, %d] %s to %s", (int)n_tok, (int)dim,
             ctw_dtype_name(x_dtype), ctw_dtype_name(dtype));
    print_rate(what, time_of(do_norm, &op, cu->stream), (double)(x.bytes + y.bytes));
    free(values);
    buf_close(&x);
    buf_close(&y);
}

static void rate_qkv(int norms)
{
    enum { N = 8192, HEADS = 32, KV = 8, HEAD = 128, POSITIONS = 2048 };
    size_t bytes = (size_t)N * (HEADS + 2 * KV) * HEAD * 2;
    void *values = host_random(CTW_BF16, (int64_t)bytes / 2, 1);
    float *angles = (float *)host_random(CTW_F32, POSITIONS * HEAD, 1);
    int32_t *positions = (int32_t *)malloc(N * sizeof(*positions));
    for (int i = 0; i < N; i++)
        positions[i] = i % POSITIONS;
    struct buf x = buf_from(values, bytes, 0), y = buf_open(bytes, 0);
    struct buf t = buf_from(angles, POSITIONS * HEAD * sizeof(float), 0);
    struct buf p = buf_from(positions, N * sizeof(*positions), 0);
    struct ctw_op_qkv op = {};
    op.dtype = CTW_BF16;
    op.n_tok = N;
    op.n_head = HEADS;
    op.n_kv = KV;
    op.head = op.rot_dim = HEAD;
    op.qkv = x.p;
    op.q_norm = op.k_norm = norms ? x.p : NULL;
    op.norm_dtype = CTW_BF16;
    op.norm_eps = 1e-6f;
    op.positions = (int32_t *)p.p;
    op.cos_sin = (float *)t.p;
    op.q = y.p;
    op.k = y.p + (size_t)N * HEADS * HEAD * 2;
    op.v = y.p + (size_t)N * (HEADS + KV) * HEAD * 2;
    print_rate(norms ? "qkv 8192 x 32/8/8 heads of 128, with norms"
                     : "qkv 8192 x 32/8/8 heads of 128",
               time_of(do_qkv, &op, cu->stream), 2.0 * (double)bytes);
    free(values), free(angles), free(positions);
    buf_close(&x), buf_close(&y), buf_close(&t), buf_close(&p);
}

/* Embedding from, and the head over, the table of an 8B model. */
static void rate_table(void)
{
    enum { N = 8192, VOCAB = 128256, K = 4096 };
    static const struct kind kind = {"",    DENSE, 16, CTW_BF16, 0, NO_ZEROS,
                                     false, false, 0,  VOCAB,    64};
    struct made m;
    weight_open(&m, &kind); /* its values are replaced by enough for K columns */
    m.w.k = m.w.group_size = K;
    m.w.row_bytes = K * 2;
    uint16_t *noise = (uint16_t *)malloc((size_t)VOCAB * K * 2);
    for (size_t i = 0; i < (size_t)VOCAB * K / 2; i++) /* +-2^-7 .. 2^-5 */
        ((uint32_t *)noise)[i] = (rng() & 0x80ff80ff) | 0x3c003c00;
    struct buf table = buf_from(noise, (size_t)VOCAB * K * 2, 0),
               x = buf_from(noise, (size_t)N * K * 2, 0);
    struct buf y = buf_open((size_t)N * K * 4, 0),
               out = buf_open(N * sizeof(struct ctw_head_result), 0);
    m.device.part[CTW_PART_VALUES] = table.p;
    int32_t *ids = (int32_t *)malloc(N * sizeof(*ids));
    for (int i = 0; i < N; i++)
        ids[i] = (int32_t)(rng() % VOCAB);
    struct buf ids_d = buf_from(ids, N * sizeof(*ids), 0);
    struct ctw_op_embed embed = {&m.shard, CTW_F32, 1, false, N, (int32_t *)ids_d.p, y.p};
    print_rate("embed 8192 x 4096 BF16 to F32", time_of(do_embed, &embed, cu->stream),
               (double)N * K * 6);
    struct ctw_op_head head = {&m.shard,
                               CTW_BF16,
                               1,
                               0,
                               VOCAB,
                               N,
                               x.p,
                               (int32_t *)ids_d.p,
                               (struct ctw_head_result *)out.p};
    double seconds = time_of(do_head, &head, cu->stream);
    printf("%-52s %8.1f us %8.0f TFLOP/s\n", "head 8192 x 128256, k 4096", seconds * 1e6,
           2.0 * N * VOCAB * K / seconds * 1e-12);
    m.w.k = m.w.group_size = 64; /* what is not the product */
    m.w.row_bytes = 128;
    seconds = time_of(do_head, &head, cu->stream);
    print_rate("head 8192 x 128256, k 64 (logits out and in)", seconds, 2.0 * N * VOCAB * 4);
    free(noise), free(ids);
    buf_close(&table), buf_close(&x), buf_close(&y), buf_close(&out), buf_close(&ids_d);
    weight_close(&m);
}

/* clang-format off */
static const struct kind kinds_timed[] = {
    {"int4 g128", PACK, 4, CTW_BF16, 128, NO_ZEROS, false, false, 0, 4096, 14336},
    {"int4 g128", PACK, 4, CTW_BF16, 128, NO_ZEROS, false, false, 0, 14336, 4096},
    {"int4 g128 zeros", PACK, 4, CTW_BF16, 128, PACKED_ZEROS, false, false, 0, 4096, 14336},
    {"int4 g32", PACK, 4, CTW_F16, 32, NO_ZEROS, false, false, 0, 4096, 14336},
    {"int8 channel", PACK, 8, CTW_BF16, 0, NO_ZEROS, false, false, 0, 4096, 14336},
    {"nvfp4", NVFP4, 4, CTW_F32, 3210, NO_ZEROS, false, false, 0, 4096, 14336},
    {"bf16", DENSE, 16, CTW_BF16, 0, NO_ZEROS, false, false, 0, 14336, 4096},
    {"int3 g128", PACK, 3, CTW_BF16, 128, NO_ZEROS, false, false, 0, 4096, 14336},
    {"int6 g128", PACK, 6, CTW_BF16, 128, NO_ZEROS, false, false, 0, 4096, 14336},
    {"nvfp4 modelopt", NVFP4_MODELOPT, 4, CTW_F32, 3210, NO_ZEROS, false, false, 0, 4096, 14336},
    {"nvfp4, small global scale", NVFP4, 4, CTW_F32, 37, NO_ZEROS, false, false, 0, 4096, 14336},
    {"int2 g64 zeros", PACK, 2, CTW_BF16, 64, PACKED_ZEROS, false, false, 0, 4096, 14336},
    {"int3 g128 zeros", PACK, 3, CTW_BF16, 128, PACKED_ZEROS, false, false, 0, 4096, 14336},
    {"int3 g128 whole codes", PACK, 3, CTW_BF16, 128, NO_ZEROS, false, true, 0, 4096, 14336},
    {"int5 channel", PACK, 5, CTW_BF16, 0, NO_ZEROS, false, false, 0, 4096, 14336},
    {"int7 channel", PACK, 7, CTW_BF16, 0, NO_ZEROS, false, false, 0, 4096, 14336},
    {"int4 g128 by index, symmetric", PACK, 4, CTW_BF16, 128, NO_ZEROS, true, false, 0, 4096, 14336},
    {"int4 g128 by index", PACK, 4, CTW_BF16, 128, PACKED_ZEROS, true, false, 0, 14336, 4096},
    {"fp8 channel", FLOAT8, 8, CTW_BF16, 0, NO_ZEROS, false, false, 0, 4096, 14336},
    {"fp8 blocks", FLOAT8, 8, CTW_BF16, -128, NO_ZEROS, false, false, 0, 4096, 14336},
    {"fp8 channel, fp32 scales", FLOAT8, 8, CTW_F32, 0, NO_ZEROS, false, false, 0, 4096, 14336},
    {"int8 bytes channel", INT8, 8, CTW_BF16, 0, NO_ZEROS, false, false, 0, 4096, 14336},
    {"int8 bytes g128 zeros", INT8, 8, CTW_BF16, 128, INT8_ZEROS, false, false, 0, 4096, 14336},
    {"mxfp8", MXFP8, 8, CTW_BF16, 32, NO_ZEROS, false, false, 0, 4096, 14336},
    {"mxfp6", MXFP6, 6, CTW_BF16, 32, NO_ZEROS, false, false, 0, 4096, 14336},
    {"mxfp4", MXFP4, 4, CTW_BF16, 32, NO_ZEROS, false, false, 0, 4096, 14336},
    {"gptq int4 g128", GPTQ, 4, CTW_F16, 128, PACKED_ZEROS, false, false, 0, 4096, 14336},
    {"gptq int4 g128", GPTQ, 4, CTW_F16, 128, PACKED_ZEROS, false, false, 0, 14336, 4096},
    {"gptq int8 g128", GPTQ, 8, CTW_F16, 128, PACKED_ZEROS, false, false, 0, 4096, 14336},
    {"gptq int4 g128 by index", GPTQ, 4, CTW_F16, 128, PACKED_ZEROS, true, false, 0, 4096, 14336},
    {"awq g128", AWQ, 4, CTW_F16, 128, PACKED_ZEROS, false, false, 0, 4096, 14336},
    {"awq g128", AWQ, 4, CTW_F16, 128, PACKED_ZEROS, false, false, 0, 14336, 4096},
    {"int8 g128 by index", PACK, 8, CTW_BF16, 128, PACKED_ZEROS, true, false, 0, 4096, 14336},
    {"GGUF Q4_K", GGML, CTW_BLOCK_Q4_K, CTW_F32, 0, NO_ZEROS, false, false, 0, 4096, 14336},
    {"GGUF Q6_K", GGML, CTW_BLOCK_Q6_K, CTW_F32, 0, NO_ZEROS, false, false, 0, 4096, 14336},
    {"GGUF Q5_K", GGML, CTW_BLOCK_Q5_K, CTW_F32, 0, NO_ZEROS, false, false, 0, 4096, 14336},
    {"GGUF Q3_K", GGML, CTW_BLOCK_Q3_K, CTW_F32, 0, NO_ZEROS, false, false, 0, 4096, 14336},
    {"GGUF Q2_K", GGML, CTW_BLOCK_Q2_K, CTW_F32, 0, NO_ZEROS, false, false, 0, 4096, 14336},
    {"GGUF Q8_0", GGML, CTW_BLOCK_Q8_0, CTW_F32, 0, NO_ZEROS, false, false, 0, 4096, 14336},
    {"GGUF Q4_0", GGML, CTW_BLOCK_Q4_0, CTW_F32, 0, NO_ZEROS, false, false, 0, 4096, 14336},
    {"GGUF Q4_1", GGML, CTW_BLOCK_Q4_1, CTW_F32, 0, NO_ZEROS, false, false, 0, 4096, 14336},
    {"GGUF Q5_0", GGML, CTW_BLOCK_Q5_0, CTW_F32, 0, NO_ZEROS, false, false, 0, 4096, 14336},
    {"GGUF Q5_1", GGML, CTW_BLOCK_Q5_1, CTW_F32, 0, NO_ZEROS, false, false, 0, 4096, 14336},
    {"GGUF IQ4_XS", GGML, CTW_BLOCK_IQ4_XS, CTW_F32, 0, NO_ZEROS, false, false, 0, 4096, 14336},
    {"GGUF IQ4_NL", GGML, CTW_BLOCK_IQ4_NL, CTW_F32, 0, NO_ZEROS, false, false, 0, 4096, 14336},
    {"GGUF MXFP4", GGML, CTW_BLOCK_MXFP4, CTW_F32, 0, NO_ZEROS, false, false, 0, 4096, 14336},
    {"GGUF NVFP4", GGML, CTW_BLOCK_NVFP4, CTW_F32, 0, NO_ZEROS, false, false, 0, 4096, 14336},
    {"GGUF IQ3_S", GGML, CTW_BLOCK_IQ3_S, CTW_F32, 0, NO_ZEROS, false, false, 0, 4096, 14336},
    {"GGUF IQ2_XS", GGML, CTW_BLOCK_IQ2_XS, CTW_F32, 0, NO_ZEROS, false, false, 0, 4096, 14336},
    {"GGUF IQ1_M", GGML, CTW_BLOCK_IQ1_M, CTW_F32, 0, NO_ZEROS, false, false, 0, 4096, 14336},
    {"GGUF TQ1_0", GGML, CTW_BLOCK_TQ1_0, CTW_F32, 0, NO_ZEROS, false, false, 0, 4096, 14336},
    {"GGUF Q4_K, odd address", GGML, CTW_BLOCK_Q4_K, CTW_F32, 0, NO_ZEROS, false, false, 1, 4096, 14336},
    {"MLX 4 bit g64", MLX, 4, CTW_BF16, 64, NO_ZEROS, false, false, 0, 4096, 14336},
    {"MLX 4 bit g32", MLX, 4, CTW_BF16, 32, NO_ZEROS, false, false, 0, 4096, 14336},
    {"MLX 8 bit g64", MLX, 8, CTW_BF16, 64, NO_ZEROS, false, false, 0, 4096, 14336},
    {"MLX 6 bit g64", MLX, 6, CTW_BF16, 64, NO_ZEROS, false, false, 0, 4096, 14336},
    {"MLX 3 bit g64", MLX, 3, CTW_BF16, 64, NO_ZEROS, false, false, 0, 4096, 14336},
    {"MLX nvfp4", NVFP4_MLX, 4, CTW_F32, 3210, NO_ZEROS, false, false, 0, 4096, 14336},
    {"NF4", BNB, 4, CTW_BF16, 64, NO_ZEROS, false, false, 0, 4096, 14336},
    {"NF4, nested", BNB, 4, CTW_U8, 64, NO_ZEROS, false, false, 0, 4096, 14336},
    {"EXL3 4 bit, mul1", EXL3, 8, CTW_F16, 2, NO_ZEROS, false, false, 0, 4096, 14336},
    {"EXL3 4 bit, mcg", EXL3, 8, CTW_F16, 1, NO_ZEROS, false, false, 0, 4096, 14336},
    {"EXL3 3 bit, mul1", EXL3, 6, CTW_F16, 2, NO_ZEROS, false, false, 0, 4096, 14336},
    {"EXL3 6 bit, mul1", EXL3, 12, CTW_F16, 2, NO_ZEROS, false, false, 0, 4096, 14336},
};
/* clang-format on */

#include "streams_rates.h"

#include "recurrent_rates.h"

/* All rates; or only the rates of weights whose name contains `word`; or of streams. */
static void print_rates(const char *word)
{
    struct copy_work copy = {buf_open((size_t)1 << 29, 0), buf_open((size_t)1 << 29, 0)};
    copy_rate = 2.0 * (double)copy.a.bytes / time_of(do_copy, &copy, cu->stream);
    double fill_rate = (double)copy.b.bytes / time_of(do_fill, &copy, cu->stream);
    size_t whole = copy.a.bytes;
    copy.a.bytes = copy.b.bytes = (size_t)70
                                  << 20; /* reads and writes what decoding 4096 x 14336 does */
    double small_rate = 2.0 * (double)copy.a.bytes / time_of(do_copy, &copy, cu->stream);
    copy.a.bytes = copy.b.bytes = whole;
    printf("device copy %.0f GB/s, read and written (of 70 MiB: %.0f); filling %.0f GB/s\n",
           copy_rate * 1e-9, small_rate * 1e-9, fill_rate * 1e-9);
    buf_close(&copy.a);
    buf_close(&copy.b);
    if (word == NULL || strcmp(word, "streams") == 0)
        rate_streams();
    if (word == NULL || strcmp(word, "recurrent") == 0)
        rate_recurrent();
    for (size_t i = 0; i < CTW_COUNT(kinds_timed); i++)
        if (word == NULL || strstr(kinds_timed[i].name, word) != NULL)
            rate_decode(&kinds_timed[i],
                        kinds_timed[i].format == PACK ? kinds_timed[i].dtype : CTW_BF16);
    if (word != NULL)
        return;
    rate_decode(&kinds_timed[6], CTW_F32);
    rate_norm(8192, 4096, CTW_F32, CTW_BF16);
    rate_norm(8192, 8192, CTW_F32, CTW_BF16);
    rate_norm(8192, 5120, CTW_F32, CTW_F16);
    rate_norm(32768, 576, CTW_F32, CTW_BF16);
    rate_qkv(0);
    rate_qkv(1);
    rate_table();
}
