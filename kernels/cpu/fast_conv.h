/*
 * Short convolutions: VL channels of some rows at a time, with the inputs of the last rows in
 * registers. Products and sums are rounded one by one, as in the definition: only SiLU differs.
 */
#ifndef CTW_KERNELS_CPU_FAST_CONV_H
#define CTW_KERNELS_CPU_FAST_CONV_H

enum { CONV_ROWS = 64 };

/* The inputs of VL channels, from column x_col of x on. */
INLINE vf conv_input(const struct ctw_op_conv *op, int64_t row, int64_t x_col)
{
    const int64_t at = row * op->ldx + x_col;
    vf v = load_words(op->x, op->dtype, at);
    return op->form == CTW_CONV_GATED ? vf_mul(v, load_words(op->x, op->dtype, at + 2 * op->dim))
                                      : v;
}

INLINE void store_words(void *p, enum ctw_dtype dtype, int64_t i, vf v)
{
    if (dtype == CTW_F32)
        vf_store((float *)p + i, v);
    else if (dtype == CTW_BF16)
        vf_store_bf16((uint16_t *)p + i, v);
    else
        vf_store_f16((uint16_t *)p + i, v);
}

/* Channels col .. of rows row0 .. end - 1 of a part. */
static void conv_columns(const struct ctw_op_conv *op, const struct ctw_seq_part *p, int64_t row0,
                         int64_t end, int64_t col)
{
    const float *before = ctw_state_at(&op->states, p->before);
    const int64_t x_col = ctw_conv_column(op, col);
    float numbers[CTW_MAX_TAPS + 1][VL];
    vf weight[CTW_MAX_TAPS], last[CTW_MAX_TAPS], bias;
    for (int64_t c = 0; c < VL; c++) {
        for (int j = 0; j < op->taps; j++)
            numbers[j][c] = ctw_load_float(op->weight, op->weight_dtype, (col + c) * op->taps + j);
        numbers[CTW_MAX_TAPS][c] =
            op->bias == NULL ? 0 : ctw_load_float(op->bias, op->bias_dtype, col + c);
    }
    bias = vf_load(numbers[CTW_MAX_TAPS]);
    for (int j = 0; j < op->taps; j++) {
        const int64_t row = row0 - op->taps + j, behind = row - p->q_row;
        weight[j] = vf_load(numbers[j]);
        if (j == 0 || p->pos0 + behind < 0)
            last[j] = vf_zero();
        else
            last[j] = behind < 0 ? vf_load(before + (op->taps - 1 + behind) * op->dim + col)
                                 : conv_input(op, row, x_col);
    }
    for (int64_t row = row0; row < end; row++) {
        vf sum = bias;
        for (int j = 0; j + 1 < op->taps; j++)
            last[j] = last[j + 1];
        last[op->taps - 1] = conv_input(op, row, x_col);
        for (int j = 0; j < op->taps; j++)
            sum = vf_add(sum, vf_mul(weight[j], last[j]));
        if (op->form == CTW_CONV_GATED)
            sum = vf_mul(sum, load_words(op->x, op->dtype, row * op->ldx + op->dim + x_col));
        else if (op->form == CTW_CONV_ADD)
            sum = vf_add(sum, last[op->taps - 1]);
        else if (op->form == CTW_CONV_SILU)
            vf_silu_each(&sum, 1);
        store_words(op->y, op->dtype, row * op->ldy + col, sum);
    }
}

/* Rows CONV_ROWS * item .. */
static void conv_rows(void *arg, int64_t item, int thread)
{
    const struct ctw_op_conv *op = arg;
    const int64_t first = item * CONV_ROWS, stop = min64(first + CONV_ROWS, op->n_tok);
    int64_t low = 0, high = op->n_parts;
    (void)thread;
    while (high - low > 1) {
        int64_t mid = (low + high) / 2;
        if (op->parts[mid].q_row <= first)
            low = mid;
        else
            high = mid;
    }
    for (int64_t i = low; i < op->n_parts && op->parts[i].q_row < stop; i++) {
        const struct ctw_seq_part *p = &op->parts[i];
        const int64_t row0 = max64(first, p->q_row), end = min64(stop, p->q_row + p->n_q);
        for (int64_t col = 0; row0 < end && col < op->dim; col += VL)
            conv_columns(op, p, row0, end, col);
    }
}

static enum ctw_status fast_conv(struct ctw_cpu *cpu, const struct ctw_op_conv *op,
                                 struct ctw_err *err)
{
    struct ctw_op_conv copy = *op;
    if (op->dim % VL != 0 || op->run % VL != 0 || op->dilation > 1)
        return ctw_cpu_conv_c(cpu, op, err);
    ctw_threads_for(cpu->threads, ceil_div(op->n_tok, CONV_ROWS), conv_rows, &copy);
    ctw_conv_leave(op);
    return CTW_OK;
}

#endif
