#include "fake_device_operands.h"
#include "kernels/streams.h"

static void read_weights(struct gpu *gpu, const struct ctw_stream_weights *w, int64_t n,
                         const char *what)
{
    gpu_read(gpu, w->at, area(1, 0, n, w->dtype), what);
}

void fake_check_collapse(struct gpu *gpu, const struct ctw_op_collapse *op)
{
    const bool mixes = op->mix != NULL;
    int64_t width = op->n * op->dim, n_rows = ctw_stream_rows(op->n, mixes, op->n_sinkhorn);
    int64_t n_x = op->rows == NULL ? op->n_tok : 0;
    gpu_check_any(gpu, op->rows, (size_t)op->n_tok * sizeof(*op->rows), "collapse: rows");
    for (int64_t t = 0; op->rows != NULL && t < op->n_tok; t++)
        n_x = op->rows[t] >= n_x ? op->rows[t] + 1 : n_x;
    gpu_check(gpu, op->x, area(n_x, width, width, CTW_F32), "collapse: x");
    gpu_check(gpu, op->y, area(op->n_tok, op->dim, op->dim, CTW_F32), "collapse: y");
    gpu_check_any(gpu, op->mix, (size_t)(op->n_tok * ctw_stream_mix(op->n)) * sizeof(float),
                  "collapse: mix");
    gpu_check_any(gpu, op->bad, (size_t)n_x * sizeof(*op->bad), "collapse: bad");
    if (op->fn.at == NULL)
        return;
    read_weights(gpu, &op->fn, n_rows * width, "collapse: fn");
    read_weights(gpu, &op->base, n_rows, "collapse: base");
    read_weights(gpu, &op->scale, ctw_stream_scales(mixes, op->n_sinkhorn), "collapse: scale");
}

void fake_check_expand(struct gpu *gpu, const struct ctw_op_expand *op)
{
    int64_t width = op->n * op->dim;
    gpu_check(gpu, op->x, area(op->n_tok, width, width, CTW_F32), "expand: x");
    gpu_check(gpu, op->out, area(op->n_tok, op->dim, op->dim, op->dtype), "expand: out");
    const int64_t mix = op->apart ? op->n : ctw_stream_mix(op->n);
    gpu_check(gpu, op->mix, (size_t)(op->n_tok * mix) * sizeof(float), "expand: mix");
}
