/* The definition of ctw_conv(), for every variant. */
#include "kernels/conv.h"
#include "kernels/cpu/cpu.h"
#include "kernels/math.h"

/* The input of the sequence's token at row `row` of the call, which may lie before its first row.
 */
static float input_at(const struct ctw_op_conv *op, const struct ctw_attn_seq *s, int64_t row,
                      int64_t col)
{
    int64_t behind = row - s->q_row; /* below 0: so many rows before the call's */
    if (behind < 0)
        return s->pos0 + behind < 0 ? 0 : op->before[(op->taps - 1 + behind) * op->dim + col];
    float v = ctw_load_float(op->x, op->dtype, row * op->ldx + ctw_conv_column(op, col));
    if (op->form == CTW_CONV_GATED)
        v *= ctw_load_float(op->x, op->dtype, row * op->ldx + 2 * op->dim + col);
    return v;
}

static const struct ctw_attn_seq *sequence_of(const struct ctw_op_conv *op, int64_t row)
{
    int64_t low = 0, high = op->n_seqs;
    while (high - low > 1) {
        int64_t mid = (low + high) / 2;
        if (op->seqs[mid].q_row <= row)
            low = mid;
        else
            high = mid;
    }
    return &op->seqs[low];
}

static void one_row(void *arg, int64_t row, int thread)
{
    (void)thread;
    const struct ctw_op_conv *op = arg;
    const struct ctw_attn_seq *s = sequence_of(op, row);
    for (int64_t col = 0; col < op->dim; col++) {
        float sum = op->bias == NULL ? 0 : ctw_load_float(op->bias, op->bias_dtype, col);
        for (int j = 0; j < op->taps; j++)
            sum += ctw_load_float(op->weight, op->weight_dtype, col * op->taps + j) *
                   input_at(op, s, row - op->taps + 1 + j, col);
        if (op->form == CTW_CONV_GATED)
            sum *= ctw_load_float(op->x, op->dtype, row * op->ldx + op->dim + col);
        else
            sum = (float)(sum / (1 + ctw_exp(-(double)sum)));
        ctw_store_float(op->y, op->dtype, row * op->ldy + col, sum);
    }
}

void ctw_conv_leave(const struct ctw_op_conv *op)
{
    const struct ctw_attn_seq *last = &op->seqs[op->n_seqs - 1];
    for (int64_t j = 0; j < op->taps - 1; j++)
        for (int64_t col = 0; col < op->dim; col++)
            op->after[j * op->dim + col] =
                input_at(op, last, last->q_row + last->n_q - op->taps + 1 + j, col);
}

enum ctw_status ctw_cpu_conv_c(struct ctw_cpu *cpu, const struct ctw_op_conv *op,
                               struct ctw_err *err)
{
    (void)err;
    struct ctw_op_conv copy = *op;
    ctw_threads_for(cpu->threads, op->n_tok, one_row, &copy);
    ctw_conv_leave(op);
    return CTW_OK;
}
