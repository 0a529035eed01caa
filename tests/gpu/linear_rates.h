/* Part of test_products.c: rates of an 8B model's products. */

enum { RATES_TABLE = 4096 };

static double rate(struct ctw_backend *be, struct ctw_op_linear *op, double flop)
{
    int n = 1;
    double s = 0;
    for (int warm = 0; warm < 3; warm++)
        OK(ctw_linear(be, op, &last_err));
    OK(ctw_backend_sync(be, &last_err));
    while (s < 0.15) {
        double from = now_s();
        for (int i = 0; i < n; i++)
            OK(ctw_linear(be, op, &last_err));
        OK(ctw_backend_sync(be, &last_err));
        s = now_s() - from;
        n = s < 0.15 ? 1 + (int)(n * fmin(100, 0.25 / (s + 1e-9))) : n;
    }
    return flop * n / s * 1e-12;
}

static const struct rated_layer {
    const char *name;
    int64_t n, k;
    enum ctw_epilogue epilogue;
    enum ctw_dtype dtype;
    bool bias;
} rated_layers[] = {{"qkv", 6144, 4096, CTW_EPI_STORE, CTW_BF16, false},
                    {"qkv bias", 6144, 4096, CTW_EPI_STORE, CTW_BF16, true},
                    {"o", 4096, 4096, CTW_EPI_ADD, CTW_BF16, false},
                    {"gate_up", 14336, 4096, CTW_EPI_GATE, CTW_BF16, false},
                    {"down", 4096, 14336, CTW_EPI_ADD, CTW_BF16, false},
                    {"qkv fp32", 6144, 4096, CTW_EPI_STORE, CTW_F32, false}};
static const int64_t rated_rows[] = {8192, 2048, 256};

static void rate_layer(struct ctw_backend *be, const char *variant, const struct rated_layer *layer,
                       char *table, int *at)
{
    int64_t n = layer->n, k = layer->k;
    int parts = layer->epilogue == CTW_EPI_GATE ? 2 : 1;
    enum ctw_dtype dtype = layer->dtype;
    enum ctw_dtype y_type = layer->epilogue == CTW_EPI_ADD ? CTW_F32 : dtype;
    struct test_weight like;
    weight_open(&like, dtype == CTW_F32 ? W_F32 : W_BF16, 1, 8, 0);
    like.w.n = n;
    like.w.k = k;
    like.w.row_bytes = (size_t)k * ctw_dtype_bytes(dtype);
    like.w.group_size = k;
    like.w.part[CTW_PART_VALUES].shape[0] = n;
    like.w.part[CTW_PART_VALUES].shape[1] = k;
    like.w.part[CTW_PART_VALUES].bytes = (size_t)n * like.w.row_bytes;
    struct ctw_weight weights[2] = {like.w, like.w};
    struct dev w[2], bias = dev_random(be, CTW_BF16, n),
                     x = dev_random(be, dtype, rated_rows[0] * k);
    struct dev y = dev_random(be, y_type, rated_rows[0] * n);
    struct ctw_weight_data data[2] = {0};
    struct ctw_shard shards[2] = {0};
    for (int q = 0; q < parts; q++) {
        w[q] = dev_random(be, dtype, n * k);
        data[q].part[CTW_PART_VALUES] = w[q].p;
        shards[q] = ctw_shard_of(&weights[q], &data[q]);
        shards[q].bias = layer->bias ? bias.p : NULL;
        shards[q].bias_dtype = CTW_BF16;
    }
    struct ctw_op_linear op = {.shards = shards,
                               .n_shards = parts,
                               .slot = CTW_SLOT_FIRST,
                               .dtype = dtype,
                               .epilogue = layer->epilogue,
                               .residual_dtype = CTW_F32,
                               .x = x.p,
                               .ldx = k,
                               .y = y.p,
                               .ldy = n};
    OK(ctw_prepare(be, &op, &last_err));
    *at += snprintf(table + *at, RATES_TABLE - (size_t)*at, "%-8s %-9s", variant, layer->name);
    for (size_t r = 0; r < CTW_COUNT(rated_rows); r++) {
        double from = now_s();
        op.n_tok = rated_rows[r];
        OK(ctw_linear(be, &op, &last_err));
        OK(ctw_backend_sync(be, &last_err));
        double first = now_s() - from;
        double flop = 2.0 * (double)(rated_rows[r] * n * parts) * (double)k;
        *at += snprintf(table + *at, RATES_TABLE - (size_t)*at, " %7.1f", rate(be, &op, flop));
        if (r == 0)
            printf("%s %s: first product %.3f s\n", variant, layer->name, first);
    }
    *at += snprintf(table + *at, RATES_TABLE - (size_t)*at, "\n");
    op.n_shards = 0;
    OK(ctw_prepare(be, &op, &last_err));
    for (int q = 0; q < parts; q++)
        dev_close(&w[q]);
    dev_close(&bias);
    dev_close(&x);
    dev_close(&y);
    weight_close(&like);
}

static void rates(void **state)
{
    (void)state;
    char table[RATES_TABLE] = "";
    int at = 0;
    for (size_t v = 0; v < CTW_COUNT(variants); v++) {
        struct ctw_backend *be = gpu(variants[v]);
        for (size_t i = 0; be != NULL && i < CTW_COUNT(rated_layers); i++)
            rate_layer(be, variants[v], &rated_layers[i], table, &at);
        ctw_backend_close(be);
    }
    printf("TFLOP/s  at m =      8192    2048     256\n%s", table);
}
