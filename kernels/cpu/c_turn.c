/* RoPE of the last elements of heads: the definition, for every variant. */
#include "kernels/cpu/cpu.h"
#include "kernels/turn.h"

static void turn_one(void *arg, int64_t t, int thread)
{
    (void)thread;
    const struct ctw_op_turn *op = arg;
    const int half = op->turning / 2;
    const float *cos_sin = op->cos_sin + (int64_t)op->positions[t] * op->turning;
    for (int h = 0; h < op->n_head; h++)
        for (int i = 0; i < half; i++) {
            int first, second;
            ctw_turn_pair(op->pairing, op->turning, i, &first, &second);
            int64_t at = t * op->ldx + (int64_t)(h + 1) * op->head - op->turning;
            double a = ctw_load_float(op->x, op->dtype, at + first);
            double b = ctw_load_float(op->x, op->dtype, at + second);
            double c = cos_sin[i], s = op->back ? -cos_sin[half + i] : cos_sin[half + i];
            ctw_store_float(op->x, op->dtype, at + first, (float)(a * c - b * s));
            ctw_store_float(op->x, op->dtype, at + second, (float)(b * c + a * s));
        }
}

enum ctw_status ctw_cpu_turn(struct ctw_cpu *cpu, const struct ctw_op_turn *op, struct ctw_err *err)
{
    (void)err;
    struct ctw_op_turn copy = *op;
    ctw_threads_for(cpu->threads, op->n_tok, turn_one, &copy);
    return CTW_OK;
}
