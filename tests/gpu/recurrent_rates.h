/* Part of test_elementwise.cu: times of recurrences at published sizes, windows of 2048 and 8192
 * tokens, and of one. random_on_gpu() is of streams_rates.h. */
#include "kernels/delta.h"

static void do_delta(void *arg)
{
    OK(ctw_delta(&cu->backend, (struct ctw_op_delta *)arg, &last_err));
}

/* heads of 128 x 128; limit: of four multiply-adds of fp32 an element and token, or three. */
static void rate_delta(int n_key, int n_value, bool by_channel, int64_t n_seqs, int64_t length)
{
    enum { HEAD = 128, MOST = 64 };
    const int64_t n_tok = n_seqs * length, n_a = by_channel ? n_value * HEAD : n_value;
    const int64_t ldx = (2 * n_key + n_value) * HEAD, ldba = n_value + n_a;
    struct buf x = random_on_gpu(CTW_BF16, n_tok * ldx), ba = random_on_gpu(CTW_BF16, n_tok * ldba);
    struct buf own = random_on_gpu(CTW_F32, n_a),
               y = buf_open((size_t)(n_tok * n_value * HEAD) * 2, 0);
    struct ctw_seq_part parts[MOST];
    for (int64_t i = 0; i < n_seqs; i++) {
        const struct ctw_seq_part part = {i * length, length, 0, -1, -1};
        parts[i] = part;
    }
    struct ctw_op_delta op = {};
    op.dtype = CTW_BF16;
    op.n_tok = n_tok;
    op.n_key = n_key;
    op.n_value = n_value;
    op.key = op.value = HEAD;
    op.x = x.p;
    op.ldx = ldx;
    op.b = ba.p;
    op.a = ba.p + (size_t)n_value * 2;
    op.ldba = ldba;
    op.ba_step = n_value / n_key;
    op.by_channel = by_channel;
    op.a_log = op.dt_bias = own.p;
    op.a_log_dtype = op.dt_bias_dtype = CTW_F32;
    op.parts = parts;
    op.n_parts = n_seqs;
    op.y = y.p;
    op.ldy = (int64_t)n_value * HEAD;
    const double seconds = time_of(do_delta, &op, cu->stream);
    const double work = (double)n_tok * n_value * HEAD * HEAD * (by_channel ? 4 : 3);
    printf("delta rule, %d and %d heads, %s, %2d x %4d %8.1f us %7.4f us a token %6.2f T "
           "multiply-adds/s\n",
           n_key, n_value, by_channel ? "decays of channels" : "one decay", (int)n_seqs,
           (int)length, seconds * 1e6, seconds * 1e6 / (double)n_tok, work / seconds * 1e-12);
    buf_close(&x), buf_close(&ba), buf_close(&own), buf_close(&y);
}

static void rate_recurrent(void)
{
    static const int windows[][2] = {{33, 2048}, {8, 2048}, {2, 8192}, {1, 2048}};
    for (size_t i = 0; i < CTW_COUNT(windows); i++) {
        rate_delta(32, 32, true, windows[i][0], windows[i][1]);
        rate_delta(16, 48, false, windows[i][0], windows[i][1]);
    }
}
