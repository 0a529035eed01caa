/* Part of test_products.c: rates of a comparison's operations: heads with and without logits,
 * divergences, differences of activations. */

enum { ROWS = 512, VOCAB = 128256, K = 4096 }; /* of an 8B model */

/* One model's logits on the GPU, and the head that makes them. */
struct rated {
    struct test_weight like;
    struct ctw_weight weight;
    struct ctw_weight_data data;
    struct ctw_shard shard;
    struct dev w, x, targets, out, logits, norms;
    struct ctw_op_head op;
};

static void rated_open(struct rated *r, struct ctw_backend *be)
{
    static int32_t targets[ROWS];
    memset(r, 0, sizeof(*r));
    weight_open(&r->like, W_BF16, 1, 8, 0);
    r->weight = r->like.w;
    r->weight.n = VOCAB;
    r->weight.k = K;
    r->weight.row_bytes = (size_t)K * 2;
    r->w = dev_random(be, CTW_BF16, (int64_t)VOCAB * K);
    r->x = dev_random(be, CTW_BF16, (int64_t)ROWS * K);
    r->targets = dev_open(be, targets, sizeof(targets), 0);
    r->out = dev_random(be, CTW_F32, 2 * ROWS);
    r->logits = dev_random(be, CTW_F32, (int64_t)ROWS * VOCAB);
    r->norms = dev_random(be, CTW_F32, 4 * ROWS);
    r->data.part[CTW_PART_VALUES] = r->w.p;
    r->shard = ctw_shard_of(&r->weight, &r->data);
    r->op = (struct ctw_op_head){.weight = &r->shard,
                                 .dtype = CTW_BF16,
                                 .scale = 0.05f,
                                 .n_vocab = VOCAB,
                                 .n_rows = ROWS,
                                 .x = r->x.p,
                                 .targets = (const void *)r->targets.p,
                                 .out = (void *)r->out.p};
}

static void rated_close(struct rated *r)
{
    struct dev *const all[] = {&r->w, &r->x, &r->targets, &r->out, &r->logits, &r->norms};
    for (size_t i = 0; i < CTW_COUNT(all); i++)
        dev_close(all[i]);
    weight_close(&r->like);
}

/* What one step of a comparison runs: heads without or with logits, divergences. */
enum work { HEADS, HEADS_STORED, DIVERGENCE };

/* Microseconds for ROWS rows. */
static double time_of(struct ctw_backend *be, const struct rated r[2], enum work work)
{
    int n = 0;
    double from = 0, s = 0;
    for (int warm = -3; s < 0.3; warm++) {
        if (warm == 0) {
            OK(ctw_backend_sync(be, &last_err));
            from = now_s();
        }
        struct ctw_op_divergence d = {.n_rows = ROWS};
        struct ctw_logits *const sides[2] = {&d.model, &d.reference};
        for (int i = 0; i < 2; i++) {
            struct ctw_op_head op = r[i].op;
            *sides[i] = (struct ctw_logits){VOCAB, (const void *)r[i].logits.p, VOCAB,
                                            (const void *)r[i].norms.p};
            if (work == HEADS_STORED) {
                op.logits = (void *)r[i].logits.p;
                op.ld_logits = VOCAB;
                op.norms = (void *)r[i].norms.p;
            }
            if (work != DIVERGENCE)
                OK(ctw_head(be, &op, &last_err));
        }
        d.out = (void *)r[0].x.p;
        if (work == DIVERGENCE)
            OK(ctw_divergence(be, &d, &last_err));
        if (warm < 0)
            continue;
        n++;
        if (n % 8 == 0) {
            OK(ctw_backend_sync(be, &last_err));
            s = now_s() - from;
        }
    }
    return 1e6 * s / n;
}

static void rates_of_heads(void **state)
{
    (void)state;
    for (size_t v = 0; v < CTW_COUNT(variants); v++) {
        struct ctw_backend *be = gpu(variants[v]);
        struct rated r[2];
        if (be == NULL)
            continue;
        rated_open(&r[0], be);
        rated_open(&r[1], be);
        double heads = time_of(be, r, HEADS), stored = time_of(be, r, HEADS_STORED);
        double divergence = time_of(be, r, DIVERGENCE);
        double bytes = 2.0 * ROWS * VOCAB * sizeof(float);
        printf(
            "%s, %d rows of %d logits: two heads %.0f us, with logits %.0f us, divergence %.0f us "
            "(%.2f us a row; two sweeps at %.0f GB/s)\n",
            variants[v], ROWS, VOCAB, heads, stored, divergence, divergence / ROWS,
            2 * bytes / divergence * 1e-3);
        rated_close(&r[0]);
        rated_close(&r[1]);
        ctw_backend_close(be);
    }
}

/* Of four windows of an 8B model. */
static void rate_of_differences(void **state)
{
    (void)state;
    enum { SEQS = 4, TOKENS = 2047, DIM = 4096, TIMES = 200 };
    struct ctw_backend *be = gpu("general");
    int64_t start[SEQS + 1], n_rows = SEQS * TOKENS;
    for (int64_t i = 0; i <= SEQS; i++)
        start[i] = i * TOKENS;
    struct dev starts = dev_open(be, start, sizeof(start), 0);
    struct dev x = dev_random(be, CTW_F32, n_rows * DIM), y = dev_random(be, CTW_F32, n_rows * DIM);
    struct dev rows = dev_random(be, CTW_F32, n_rows * 8), out = dev_random(be, CTW_F32, SEQS * 12);
    struct dev channels = dev_random(be, CTW_F32, SEQS * ctw_difference_blocks(DIM) * 4);
    const struct ctw_op_difference op = {.n_seqs = SEQS,
                                         .n_rows = n_rows,
                                         .dim = DIM,
                                         .start = (const void *)starts.p,
                                         .x = (const void *)x.p,
                                         .y = (const void *)y.p,
                                         .rows = (void *)rows.p,
                                         .channels = (void *)channels.p,
                                         .out = (void *)out.p};
    double from = 0;
    for (int i = -3; i < TIMES; i++) {
        if (i == 0) {
            OK(ctw_backend_sync(be, &last_err));
            from = now_s();
        }
        OK(ctw_difference(be, &op, &last_err));
    }
    OK(ctw_backend_sync(be, &last_err));
    double s = (now_s() - from) / TIMES;
    printf("difference of [%d, %d]: %.1f us, %.0f GB/s\n", (int)n_rows, DIM, 1e6 * s,
           4e-9 * (double)(n_rows * DIM * sizeof(float)) / s);
    struct dev *const all[] = {&starts, &x, &y, &rows, &channels, &out};
    for (size_t i = 0; i < CTW_COUNT(all); i++)
        dev_close(all[i]);
    ctw_backend_close(be);
}
