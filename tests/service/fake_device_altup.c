#include "fake_device_operands.h"
#include "kernels/altup.h"

static void read_weights(struct gpu *gpu, const struct ctw_stream_weights *w, int64_t n,
                         const char *what)
{
    if (w->at != NULL)
        gpu_read(gpu, w->at, area(1, 0, n, w->dtype), what);
}

void fake_check_altup(struct gpu *gpu, const struct ctw_op_altup *op)
{
    const int64_t rows = op->form == CTW_ALTUP_PREDICT ? op->n * op->n : op->n;
    gpu_check(gpu, op->x, area(op->n_tok, op->n * op->dim, op->n * op->dim, CTW_F32), "altup: x");
    if (op->r != NULL)
        gpu_check(gpu, op->r, area(op->n_tok, op->dim, op->dim, CTW_F32), "altup: r");
    read_weights(gpu, &op->norm, op->dim, "altup: norm");
    read_weights(gpu, &op->router, op->n * op->dim, "altup: router");
    read_weights(gpu, &op->coefs, rows * op->n, "altup: coefs");
}
