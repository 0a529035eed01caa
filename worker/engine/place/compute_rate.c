#include "worker/engine/place/compute_rate.h"

#include "base/clock.h"
#include "base/mem.h"

/* kernels/backend.h: pass_flops are about one minute of work. */
static const double pass_flops_s = 60;

enum { N = 1024, K = 1024, MOST_ROWS = 1024 };

/* Seconds for a product of zeros, `n_tok` rows by a dense matrix; 0: the product cannot be
 * computed. */
static double product_s(struct ctw_backend *be, enum ctw_dtype dtype, int64_t n_tok, char *memory)
{
    size_t es = ctw_dtype_bytes(dtype);
    const struct ctw_weight weight = {.format = ctw_formats[CTW_FORMAT_dense],
                                      .n = N,
                                      .k = K,
                                      .dtype = dtype,
                                      .bits = (int)(8 * es),
                                      .group_size = K,
                                      .n_groups = 1,
                                      .row_bytes = K * es,
                                      .part[CTW_PART_VALUES] = {.bytes = (size_t)N * K * es}};
    const struct ctw_weight_data data = {.part[CTW_PART_VALUES] = memory};
    const struct ctw_shard shard = {.weight = &weight, .data = &data, .n = N};
    const struct ctw_op_linear op = {.shards = &shard,
                                     .n_shards = 1,
                                     .dtype = dtype,
                                     .epilogue = CTW_EPI_STORE,
                                     .n_tok = n_tok,
                                     .x = memory,
                                     .ldx = K,
                                     .y = memory + (size_t)N * K * es,
                                     .ldy = N};
    double from_s = ctw_now_s();
    return ctw_linear(be, &op, NULL) == CTW_OK ? ctw_now_s() - from_s : 0;
}

double ctw_compute_rate(struct ctw_backend *be, enum ctw_dtype dtype)
{
    const struct ctw_backend_traits *traits = ctw_backend_traits(be);
    const double enough_s = 0.01;
    struct ctw_backend_info info;
    char *memory = NULL;
    ctw_backend_get_info(be, &info);
    double rate = info.flops > 0 ? info.flops : traits->pass_flops / pass_flops_s;
    if (traits->host_memory)
        memory = ctw_calloc((size_t)(N + MOST_ROWS) * K, ctw_dtype_bytes(dtype));
    if (memory == NULL)
        return rate;
    for (int64_t n_tok = 16; n_tok <= MOST_ROWS; n_tok *= 4) { /* slow kernels stop early */
        double took_s = product_s(be, dtype, n_tok, memory);
        if (took_s > 0)
            rate = 2.0 * N * K * (double)n_tok / took_s;
        if (took_s <= 0 || took_s > enough_s)
            break;
    }
    ctw_free(memory);
    return rate;
}
