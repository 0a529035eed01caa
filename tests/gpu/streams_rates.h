/* Part of test_elementwise.cu: rates of residual streams and of what latent and pooled attention do
 * beside products, of published sizes, compared with a device copy. Bytes: of each number once read
 * and once written. */
#include "kernels/pool.h"
#include "kernels/streams.h"
#include "kernels/turn.h"

enum { RATE_TOKENS = 8448 };

static void do_collapse(void *arg)
{
    OK(ctw_collapse(&cu->backend, (struct ctw_op_collapse *)arg, &last_err));
}

static void do_expand(void *arg)
{
    OK(ctw_expand(&cu->backend, (struct ctw_op_expand *)arg, &last_err));
}

static void do_turn(void *arg)
{
    OK(ctw_turn(&cu->backend, (struct ctw_op_turn *)arg, &last_err));
}

static void do_gate(void *arg)
{
    OK(ctw_gate(&cu->backend, (struct ctw_op_gate *)arg, &last_err));
}

static struct buf random_on_gpu(enum ctw_dtype dtype, int64_t n)
{
    void *values = host_random(dtype, n, 1);
    struct buf b = buf_from(values, (size_t)n * ctw_dtype_bytes(dtype), 0);
    free(values);
    return b;
}

/* Hyper-connections; n_sinkhorn 0: without comb. Prints what a branch takes, too. */
static void rate_hyper(int64_t dim, int n_sinkhorn, enum ctw_dtype fn_dtype)
{
    enum { N = 4 };
    const int64_t rows = ctw_stream_rows(N, true, n_sinkhorn), n_tok = RATE_TOKENS;
    struct buf x = random_on_gpu(CTW_F32, n_tok * N * dim),
               out = random_on_gpu(CTW_BF16, n_tok * dim);
    struct buf fn = random_on_gpu(fn_dtype, rows * N * dim), few = random_on_gpu(fn_dtype, rows);
    struct buf y = buf_open((size_t)(n_tok * dim) * 4, 0),
               mix = buf_open((size_t)(n_tok * ctw_stream_mix(N)) * 4, 0);
    struct ctw_op_collapse collapse = {};
    collapse.n_tok = n_tok;
    collapse.dim = dim;
    collapse.n = N;
    collapse.x = (const float *)x.p;
    collapse.fn.at = fn.p;
    collapse.base.at = collapse.scale.at = few.p;
    collapse.fn.dtype = collapse.base.dtype = collapse.scale.dtype = fn_dtype;
    collapse.norm_eps = collapse.eps = 1e-6f;
    collapse.n_sinkhorn = n_sinkhorn;
    collapse.mix = (float *)mix.p;
    collapse.y = (float *)y.p;
    struct ctw_op_expand expand = {};
    expand.n_tok = n_tok;
    expand.dim = dim;
    expand.n = N;
    expand.mix = (const float *)mix.p;
    expand.out = out.p;
    expand.dtype = CTW_BF16;
    expand.x = (float *)x.p;
    const double read = (double)x.bytes + (double)y.bytes,
                 joined = 2.0 * (double)x.bytes + (double)out.bytes;
    double first = time_of(do_collapse, &collapse, cu->stream);
    double second = time_of(do_expand, &expand, cu->stream);
    char what[160];
    snprintf(what, sizeof(what), "streams %d x 4 x %d, fn [%d] %s: collapse", (int)n_tok, (int)dim,
             (int)rows, ctw_dtype_name(fn_dtype));
    print_rate(what, first, read);
    print_rate("    expand", second, joined);
    print_rate("    both", first + second, read + joined);
    collapse.n_tok = 2048;
    print_rate("    collapse of 2048 tokens", time_of(do_collapse, &collapse, cu->stream),
               read * 2048 / RATE_TOKENS);
    buf_close(&x), buf_close(&out), buf_close(&fn), buf_close(&few), buf_close(&y), buf_close(&mix);
}

/* The last 64 elements of 64 heads of 512; gates of the elements of 64 heads of 128. */
static void rate_turn_and_gate(void)
{
    enum { HEADS = 64, HEAD = 512, TURNING = 64, POSITIONS = 2048, GATED = 64 * 128 };
    const int64_t n = (int64_t)RATE_TOKENS * HEADS * HEAD;
    struct buf x = random_on_gpu(CTW_BF16, n), angles = random_on_gpu(CTW_F32, POSITIONS * TURNING);
    int32_t *of = (int32_t *)malloc(RATE_TOKENS * sizeof(*of));
    for (int i = 0; i < RATE_TOKENS; i++)
        of[i] = i % POSITIONS;
    struct buf positions = buf_from(of, RATE_TOKENS * sizeof(*of), 0);
    struct ctw_op_turn turn = {};
    turn.dtype = CTW_BF16;
    turn.n_tok = RATE_TOKENS;
    turn.n_head = HEADS;
    turn.head = HEAD;
    turn.turning = TURNING;
    turn.pairing = CTW_ROPE_INTERLEAVED;
    turn.positions = (const int32_t *)positions.p;
    turn.cos_sin = (const float *)angles.p;
    turn.x = x.p;
    turn.ldx = HEADS * HEAD;
    print_rate("RoPE of the last 64 of 64 x 512", time_of(do_turn, &turn, cu->stream),
               2.0 * RATE_TOKENS * HEADS * TURNING * 2);
    struct ctw_op_gate gate = {};
    gate.kind = CTW_GATE_SIGMOID;
    gate.dtype = CTW_BF16;
    gate.n_tok = RATE_TOKENS;
    gate.n_groups = GATED;
    gate.size = 1;
    gate.x = x.p;
    gate.y = x.p + (size_t)RATE_TOKENS * GATED * 2;
    gate.ldx = gate.ldy = GATED;
    print_rate("gates of 8192 elements", time_of(do_gate, &gate, cu->stream),
               3.0 * RATE_TOKENS * GATED * 2);
    free(of);
    buf_close(&x), buf_close(&angles), buf_close(&positions);
}

/* Attention over pooled keys of windows of 2048 tokens: TFLOP/s of the keys that queries see. */
static void do_pool_attention(void *arg)
{
    OK(ctw_pool_attention(&cu->backend, (struct ctw_op_pool_attention *)arg, &last_err));
}

static void rate_pooled(int64_t block)
{
    enum { HEADS = 64, HEAD = 512, SEQS = 4, LENGTH = 2048, WINDOW = 128 };
    const int64_t n_tok = SEQS * LENGTH;
    struct buf q = random_on_gpu(CTW_BF16, n_tok * HEADS * HEAD),
               k = random_on_gpu(CTW_BF16, n_tok * HEAD);
    struct buf pooled = random_on_gpu(CTW_BF16, n_tok * HEAD),
               sinks = random_on_gpu(CTW_F32, HEADS);
    struct buf out = buf_open(q.bytes, 0);
    struct ctw_kv_run runs[SEQS];
    struct ctw_attn_seq seqs[SEQS];
    double n_keys = 0;
    for (int i = 0; i < SEQS; i++) {
        runs[i] = {i * LENGTH, LENGTH};
        seqs[i] = {};
        seqs[i].q_row = i * LENGTH;
        seqs[i].n_q = LENGTH;
        seqs[i].runs = &runs[i];
        seqs[i].n_runs = 1;
        for (int64_t p = 0; p < LENGTH; p++)
            n_keys += (double)((p + 1) / block + (p + 1 < WINDOW ? p + 1 : WINDOW));
    }
    struct ctw_op_pool_attention op = {};
    op.dtype = CTW_BF16;
    op.n_head = HEADS;
    op.head = HEAD;
    op.scale = 0.044f;
    op.window = WINDOW;
    op.block = block;
    op.q = q.p;
    op.k = k.p;
    op.pooled = pooled.p;
    op.ld_pooled = HEAD;
    op.sinks = sinks.p;
    op.sinks_dtype = CTW_F32;
    op.seqs = seqs;
    op.n_seqs = SEQS;
    op.out = out.p;
    const double s = time_of(do_pool_attention, &op, cu->stream);
    printf("pooled attention, 4 x 2048, 64 heads of 512, blocks of %-4d %8.1f us %8.1f TFLOP/s\n",
           (int)block, s * 1e6, 4.0 * HEADS * HEAD * n_keys / s * 1e-12);
    buf_close(&q), buf_close(&k), buf_close(&pooled), buf_close(&sinks), buf_close(&out);
}

static void rate_streams(void)
{
    rate_hyper(4096, 20, CTW_F32);
    rate_hyper(4096, 20, CTW_BF16);
    rate_hyper(4096, 0, CTW_F32);
    rate_turn_and_gate();
    rate_pooled(4);
    rate_pooled(128);
}
