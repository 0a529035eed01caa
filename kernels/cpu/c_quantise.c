/* Reference: quantised activations, element by element with the arithmetic of kernels/quantise.h.
 */
#include "kernels/cpu/cpu.h"

static void quantise_one(void *arg, int64_t t, int thread)
{
    (void)thread;
    const struct ctw_op_quantise *op = arg;
    const struct ctw_code_range r = ctw_code_range_of(op->how->codes, op->how->bits);
    int64_t n = op->how->group > 0 ? op->how->group : op->dim;
    int64_t from = (op->rows != NULL ? op->rows[t] : t) * op->ldx, to = t * op->ldy;
    for (int64_t at = 0; at < op->dim; at += n) {
        float lo = 0, hi = 0;
        uint32_t largest = 0;
        for (int64_t i = at; i < at + n; i++) {
            float v = ctw_load_float(op->x, op->dtype, from + i);
            uint32_t magnitude = ctw_f32_to_bits(v) & 0x7fffffffu;
            lo = v < lo ? v : lo;
            hi = v > hi ? v : hi;
            largest = magnitude > largest ? magnitude : largest;
        }
        struct ctw_quantised_group g =
            ctw_quantised_group_of(op->how, op->dtype, lo, hi, ctw_bits_to_f32(largest));
        for (int64_t i = at; i < at + n; i++) {
            float v = ctw_load_float(op->x, op->dtype, from + i);
            ctw_store_float(op->y, op->dtype, to + i, ctw_quantised(v, r, g));
        }
    }
}

enum ctw_status ctw_cpu_quantise_c(struct ctw_cpu *cpu, const struct ctw_op_quantise *op,
                                   struct ctw_err *err)
{
    (void)err;
    struct ctw_op_quantise copy = *op;
    ctw_threads_for(cpu->threads, op->n_tok, quantise_one, &copy);
    return CTW_OK;
}
