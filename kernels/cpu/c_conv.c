/* The definition of ctw_conv(), for every variant. */
#include "kernels/conv.h"
#include "kernels/cpu/cpu.h"
#include "kernels/math.h"

/* The input of the part's token at row `row`, which may lie before its first row. */
static float input_at(const struct ctw_op_conv *op, const struct ctw_seq_part *p, int64_t row,
                      int64_t col)
{
    const float *before = ctw_state_at(&op->states, p->before);
    int64_t behind = row - p->q_row; /* below 0: so many rows before the part's */
    if (behind < 0)
        return p->pos0 + behind < 0 ? 0 : before[(ctw_conv_behind(op) + behind) * op->dim + col];
    float v = ctw_load_float(op->x, op->dtype, row * op->ldx + ctw_conv_column(op, col));
    if (op->form == CTW_CONV_GATED)
        v *= ctw_load_float(op->x, op->dtype, row * op->ldx + 2 * op->dim + col);
    return v;
}

/* The part that has the row, or the last part before it. */
static const struct ctw_seq_part *part_of(const struct ctw_op_conv *op, int64_t row)
{
    int64_t low = 0, high = op->n_parts;
    while (high - low > 1) {
        int64_t mid = (low + high) / 2;
        if (op->parts[mid].q_row <= row)
            low = mid;
        else
            high = mid;
    }
    return &op->parts[low];
}

static void one_row(void *arg, int64_t row, int thread)
{
    (void)thread;
    const struct ctw_op_conv *op = arg;
    const struct ctw_seq_part *p = part_of(op, row);
    if (row < p->q_row || row >= p->q_row + p->n_q)
        return;
    for (int64_t col = 0; col < op->dim; col++) {
        float sum = op->bias == NULL ? 0 : ctw_load_float(op->bias, op->bias_dtype, col);
        for (int j = 0; j < op->taps; j++)
            sum += ctw_load_float(op->weight, op->weight_dtype, col * op->taps + j) *
                   input_at(op, p, row - (op->taps - 1 - j) * op->dilation, col);
        if (op->form == CTW_CONV_GATED)
            sum *= ctw_load_float(op->x, op->dtype, row * op->ldx + op->dim + col);
        else if (op->form == CTW_CONV_ADD)
            sum += input_at(op, p, row, col);
        else if (op->form == CTW_CONV_SILU)
            sum = (float)(sum / (1 + ctw_exp(-(double)sum)));
        ctw_store_float(op->y, op->dtype, row * op->ldy + col, sum);
    }
}

void ctw_conv_leave(const struct ctw_op_conv *op)
{
    const int64_t n = ctw_conv_behind(op);
    for (const struct ctw_seq_part *p = op->parts; p < op->parts + op->n_parts; p++) {
        float *after = ctw_state_at(&op->states, p->after);
        for (int64_t j = 0; after != NULL && j < n; j++)
            for (int64_t col = 0; col < op->dim; col++)
                after[j * op->dim + col] = input_at(op, p, p->q_row + p->n_q - n + j, col);
    }
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
