/* The heads of latent attention, and gates of heads: the definitions, for every variant. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/math.h"

static char *at(const void *array, enum ctw_dtype dtype, int64_t i)
{
    return (char *)array + (size_t)i * ctw_dtype_bytes(dtype);
}

/* y = x turned, times factor, for op->turning elements; y may be x. */
static void turn(const struct ctw_op_latent *op, const float *cos_sin, double factor, const void *x,
                 int64_t from, void *y, int64_t to)
{
    int half = op->turning / 2;
    bool halves = op->pairing == CTW_ROPE_HALVES;
    for (int i = 0; i < half; i++) {
        int first = halves ? i : 2 * i, second = halves ? i + half : 2 * i + 1;
        double a = ctw_load_float(x, op->dtype, from + first);
        double b = ctw_load_float(x, op->dtype, from + second);
        double c = cos_sin[i], s = cos_sin[half + i];
        ctw_store_float(y, op->dtype, to + first, (float)((a * c - b * s) * factor));
        ctw_store_float(y, op->dtype, to + second, (float)((b * c + a * s) * factor));
    }
}

/* q[from ..] *= factor for n elements */
static void scale(const struct ctw_op_latent *op, double factor, int64_t from, int64_t n)
{
    for (int64_t i = from; factor != 1 && i < from + n; i++)
        ctw_store_float(op->q, op->dtype, i, (float)(ctw_load_float(op->q, op->dtype, i) * factor));
}

static void latent_one(void *arg, int64_t t, int thread)
{
    (void)thread;
    const struct ctw_op_latent *op = arg;
    const size_t own_bytes = (size_t)op->own * ctw_dtype_bytes(op->dtype);
    const size_t turning_bytes = (size_t)op->turning * ctw_dtype_bytes(op->dtype);
    const size_t value_bytes = (size_t)op->head_v * ctw_dtype_bytes(op->dtype);
    const int64_t head = op->own + op->turning;
    const float *cos_sin =
        op->cos_sin != NULL ? op->cos_sin + (int64_t)op->positions[t] * op->turning : NULL;
    double factor = op->q_factor != NULL ? op->q_factor[op->positions[t]] : 1;
    float turned[CTW_MAX_HEAD]; /* of op->dtype */
    memcpy(turned, at(op->k_turned, op->dtype, t * op->ld_turned), turning_bytes);
    if (cos_sin != NULL)
        turn(op, cos_sin, 1, op->k_turned, t * op->ld_turned, turned, 0);
    for (int64_t h = t * op->n_head; h < (t + 1) * op->n_head; h++) {
        const char *kv = at(op->kv, op->dtype, h * (op->own + op->head_v));
        scale(op, factor, h * head, cos_sin != NULL ? op->own : head);
        if (cos_sin != NULL)
            turn(op, cos_sin, factor, op->q, h * head + op->own, op->q, h * head + op->own);
        memcpy(at(op->k, op->dtype, h * head), kv, own_bytes);
        memcpy(at(op->k, op->dtype, h * head + op->own), turned, turning_bytes);
        memcpy(at(op->v, op->dtype, h * op->head_v), kv + own_bytes, value_bytes);
    }
}

enum ctw_status ctw_cpu_latent(struct ctw_cpu *cpu, const struct ctw_op_latent *op,
                               struct ctw_err *err)
{
    (void)err;
    struct ctw_op_latent copy = *op;
    ctw_threads_for(cpu->threads, op->n_tok, latent_one, &copy);
    return CTW_OK;
}

/* ln(1 + x) for x in 0..1, without losing a small x */
static double ln_1p(double x)
{
    double sum = 1 + x;
    return sum == 1 ? x : ctw_ln(sum) * (x / (sum - 1));
}

double ctw_cpu_softplus(double x)
{
    return fmax(x, 0) + ln_1p(ctw_exp(-fabs(x))); /* NaN stays by the second term */
}

static double gate_of(enum ctw_gate_kind kind, double x)
{
    if (kind == CTW_GATE_SIGMOID)
        return 1 / (1 + ctw_exp(-x));
    return ctw_cpu_softplus(x);
}

static void gate_one(void *arg, int64_t t, int thread)
{
    (void)thread;
    const struct ctw_op_gate *op = arg;
    for (int64_t g = 0; g < op->n_groups; g++) {
        double factor = gate_of(
            op->kind, ctw_load_float(op->x, op->dtype, t * op->ldx + ctw_gate_column(op, g)));
        int64_t from = t * op->ldy + g * op->size;
        for (int64_t i = from; i < from + op->size; i++)
            ctw_store_float(op->y, op->dtype, i,
                            (float)(ctw_load_float(op->y, op->dtype, i) * factor));
    }
}

enum ctw_status ctw_cpu_gate(struct ctw_cpu *cpu, const struct ctw_op_gate *op, struct ctw_err *err)
{
    (void)err;
    struct ctw_op_gate copy = *op;
    ctw_threads_for(cpu->threads, op->n_tok, gate_one, &copy);
    return CTW_OK;
}
