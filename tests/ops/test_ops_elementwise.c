/* embed, norm and qkv of every variant against the reference, and the calls that backend.c
 * refuses. */
#include "ops.h"

static const enum ctw_dtype dtypes[] = {CTW_F32, CTW_BF16, CTW_F16};

/* Row lengths around vectors and around the spans of 256 and 1024 in which rows are processed. */
static const int64_t dims[] = {1, 7, 8, 9, 16, 31, 64, 255, 256, 257, 576, 1023, 1025, 2049};

static void embed_agrees(void **state)
{
    (void)state;
    enum { VOCAB = 50, N = 37 };
    struct ctw_backend *c = backend("c", 1);
    for (size_t s = 0; s < 3 * CTW_COUNT(dims); s++) {
        int64_t k = dims[s / 3];
        enum ctw_dtype dtype = dtypes[s % 3];
        enum weight_kind kind = (enum weight_kind)rng_below(N_WEIGHT_KINDS);
        struct test_weight w;
        weight_open(&w, weight_possible(kind, k) ? kind : W_BF16, VOCAB, k, 0);
        int32_t tokens[N];
        for (int i = 0; i < N; i++)
            tokens[i] = (int32_t)(i == 0 ? VOCAB - 1 : rng_below(VOCAB));
        struct ctw_op_embed op = {.table = &w.shard,
                                  .dtype = dtype,
                                  .n_tok = N,
                                  .tokens = tokens,
                                  .scale = s % 2 == 0 ? 1 : 27.75f};
        struct buf want = buf_open((size_t)(N * k) * ctw_dtype_bytes(dtype), 0);
        op.y = want.p;
        OK(ctw_embed(c, &op, &last_err));
        buf_check(&want);
        const char *v;
        for (int i = 0; (v = fast_variant(i)) != NULL; i++) {
            struct ctw_backend *be = backend(v, 2);
            struct buf got = buf_open(want.bytes, 2 * (size_t)rng_below(9));
            op.y = got.p;
            OK(ctw_embed(be, &op, &last_err));
            assert_memory_equal(got.p, want.p, want.bytes); /* exact: one product, one rounding */
            buf_close(&got);
            ctw_backend_close(be);
        }
        buf_close(&want);
        weight_close(&w);
    }
    ctw_backend_close(c);
}

struct norm {
    struct ctw_op_norm op;
    struct buf x, weight;
};

static void norm_open(struct norm *p, int64_t n_tok, int64_t dim, enum ctw_dtype dtype)
{
    enum ctw_dtype weight_dtype = dtypes[rng_below(3)];
    enum ctw_dtype x_dtype = rng_below(2) == 0 ? dtype : CTW_F32;
    p->x = buf_random(x_dtype, n_tok * dim, 3, 4 * (size_t)rng_below(5));
    p->weight = buf_random(weight_dtype, dim, 1, (size_t)rng_below(9));
    p->op = (struct ctw_op_norm){.dtype = dtype,
                                 .n_tok = n_tok,
                                 .dim = dim,
                                 .x = p->x.p,
                                 .x_dtype = x_dtype,
                                 .weight = p->weight.p,
                                 .weight_dtype = weight_dtype,
                                 .weight_offset = (float)rng_below(2),
                                 .eps = 1e-5f};
}

static void norm_close(struct norm *p)
{
    buf_close(&p->x);
    buf_close(&p->weight);
}

static struct buf norm_run(const struct norm *p, struct ctw_backend *be)
{
    size_t bytes = (size_t)(p->op.n_tok * p->op.dim) * ctw_dtype_bytes(p->op.dtype);
    struct buf y = buf_open(bytes, 4 * (size_t)rng_below(5));
    struct ctw_op_norm op = p->op;
    op.y = y.p;
    OK(ctw_norm(be, &op, &last_err));
    buf_check(&y);
    return y;
}

static void norm_agrees_and_rows_are_alone(void **state)
{
    (void)state;
    enum { N = 35 };
    struct ctw_backend *c = backend("c", 2);
    for (size_t s = 0; s < 3 * CTW_COUNT(dims); s++) {
        struct norm p;
        norm_open(&p, N, dims[s / 3], dtypes[s % 3]);
        struct buf want = norm_run(&p, c);
        const char *v;
        for (int i = 0; (v = fast_variant(i)) != NULL; i++) {
            struct ctw_backend *be = backend(v, 3);
            struct buf got = norm_run(&p, be);
            for (int64_t e = 0; e < N * p.op.dim; e++) {
                /* half of dim / lanes + a few roundings of the sum, under the root */
                double w = ctw_load_float(want.p, p.op.dtype, e);
                double u = ((double)p.op.dim / 8 + 12) * 0x1p-24 * fabs(w);
                near(ctw_load_float(got.p, p.op.dtype, e), w,
                     u + 2 * half_step(p.op.dtype, fabs(w) + u), v, e);
            }
            for (int64_t t = 0; t < N; t += 4) { /* alone, by its number, and in place */
                struct buf row = buf_open(want.bytes / N, 4);
                struct ctw_op_norm op = p.op;
                op.rows = &t;
                op.y = row.p;
                op.n_tok = 1;
                OK(ctw_norm(be, &op, &last_err));
                assert_memory_equal(row.p, element(got.p, p.op.dtype, t * p.op.dim), row.bytes);
                if (op.x_dtype == op.dtype) {
                    memcpy(row.p, element(p.op.x, p.op.dtype, t * p.op.dim), row.bytes);
                    op.x = row.p;
                    op.rows = NULL;
                    OK(ctw_norm(be, &op, &last_err));
                    assert_memory_equal(row.p, element(got.p, p.op.dtype, t * p.op.dim), row.bytes);
                }
                buf_close(&row);
            }
            buf_close(&got);
            ctw_backend_close(be);
        }
        buf_close(&want);
        norm_close(&p);
    }
    ctw_backend_close(c);
}

/* Rows that are not finite get the stamp, unless they already have one; other rows keep their
 * value. */
static void norm_marks_bad_rows(void **state)
{
    (void)state;
    enum { N = 40 };
    for (int v = 0; ctw_cpu_variants[v] != NULL; v++) {
        if (!ctw_cpu_variants[v]->runs_here())
            continue;
        struct ctw_backend *be = backend(ctw_cpu_variants[v]->name, 2);
        struct norm p;
        int16_t bad[N];
        norm_open(&p, N, 100, CTW_F32);
        for (int i = 0; i < N; i++)
            bad[i] = -1;
        bad[9] = 3;
        ctw_store_float(p.x.p, CTW_F32, 4 * 100 + 99, NAN);
        ctw_store_float(p.x.p, CTW_F32, 9 * 100, INFINITY);
        ctw_store_float(p.x.p, CTW_F32, 17 * 100 + 50, -INFINITY);
        ctw_store_float(p.x.p, CTW_F32, 30 * 100 + 50, 1e20f); /* whose square is not finite */
        p.op.bad = bad;
        p.op.stamp = 7;
        struct buf y = norm_run(&p, be);
        for (int i = 0; i < N; i++)
            assert_int_equal(bad[i], i == 9 ? 3 : i == 4 || i == 17 || i == 30 ? 7 : -1);
        buf_close(&y);
        const int64_t rows[] = {3, 17, 30}; /* marks go by x's rows */
        bad[17] = -1;
        p.op.rows = rows;
        p.op.n_tok = 3;
        p.op.stamp = 8;
        y = norm_run(&p, be);
        assert_int_equal(bad[3], -1);
        assert_int_equal(bad[17], 8);
        assert_int_equal(bad[30], 7);
        buf_close(&y);
        norm_close(&p);
        ctw_backend_close(be);
    }
}

struct qkv_shape {
    int n_head, n_kv, head, rot_dim;
};

/* The variant's q and k are near those in `want`, and its v is equal. */
static void variant_agrees(const char *v, struct ctw_op_qkv op, const struct buf want[3],
                           const int64_t sizes[3])
{
    struct ctw_backend *be = backend(v, 2);
    struct buf got[3];
    for (int i = 0; i < 3; i++)
        got[i] = buf_open(want[i].bytes, 2 * (size_t)rng_below(9));
    op.q = got[0].p, op.k = got[1].p, op.v = got[2].p;
    OK(ctw_qkv(be, &op, &last_err));
    for (int i = 0; i < 2; i++) {
        for (int64_t e = 0; e < sizes[i]; e++) {
            double w = ctw_load_float(want[i].p, op.dtype, e);
            /* Normalised, |a| and |b| are below sqrt(head) times a norm weight (< 5.5); otherwise
             * below 13. A few roundings of each, which may cancel. */
            double size = op.q_norm != NULL ? 5.5 * sqrt(op.head) : 13;
            near(ctw_load_float(got[i].p, op.dtype, e), w,
                 (op.head / 8 + 12) * 0x1p-24 * size + 2 * half_step(op.dtype, w), v, e);
        }
    }
    assert_memory_equal(got[2].p, want[2].p, want[2].bytes);
    for (int i = 0; i < 3; i++)
        buf_close(&got[i]);
    ctw_backend_close(be);
}

static void qkv_agrees(void **state)
{
    (void)state;
    enum { N = 21, POSITIONS = 3000 };
    static const struct qkv_shape shapes[] = {{9, 3, 64, 64},  {2, 2, 16, 16}, {4, 1, 128, 128},
                                              {3, 3, 40, 20},  {1, 1, 6, 2},   {2, 1, 33, 30},
                                              {5, 5, 256, 64}, {8, 2, 80, 0}};
    struct ctw_backend *c = backend("c", 2);
    for (size_t s = 0; s < 12 * CTW_COUNT(shapes); s++) {
        const struct qkv_shape *h = &shapes[s / 12];
        enum ctw_dtype dtype = dtypes[s % 3];
        int64_t n_q = h->n_head * h->head, n_kv = h->n_kv * h->head;
        struct buf qkv = buf_random(dtype, N * (n_q + 2 * n_kv), 2, 2 * (size_t)rng_below(9));
        enum ctw_dtype norm_dtype = dtypes[rng_below(3)];
        struct buf norms = buf_random(norm_dtype, 2 * h->head, 1, 1);
        float *cos_sin = ctw_calloc((size_t)(POSITIONS * (h->rot_dim + 1)), sizeof(float));
        int32_t positions[N];
        for (int64_t i = 0; i < (int64_t)POSITIONS * h->rot_dim; i++)
            cos_sin[i] = (float)sin((double)i * 0.7);
        for (int i = 0; i < N; i++)
            positions[i] = (int32_t)(i == 0 ? POSITIONS - 1 : rng_below(POSITIONS));
        struct ctw_op_qkv op = {.dtype = dtype,
                                .n_tok = N,
                                .n_head = h->n_head,
                                .n_kv = h->n_kv,
                                .head = h->head,
                                .qkv = qkv.p,
                                .norm_eps = 1e-6f,
                                .rot_dim = h->rot_dim,
                                .positions = positions,
                                .cos_sin = cos_sin};
        op.norm_dtype = norm_dtype;
        op.pairing = s / 3 % 2 == 0 ? CTW_ROPE_HALVES : CTW_ROPE_INTERLEAVED;
        if (s / 6 % 2 == 0) {
            op.q_norm = norms.p;
            op.k_norm = element(norms.p, op.norm_dtype, h->head);
        }
        int64_t sizes[3] = {N * n_q, N * n_kv, N * n_kv};
        struct buf want[3];
        for (int i = 0; i < 3; i++)
            want[i] = buf_open((size_t)sizes[i] * ctw_dtype_bytes(dtype), 0);
        op.q = want[0].p, op.k = want[1].p, op.v = want[2].p;
        OK(ctw_qkv(c, &op, &last_err));
        for (int j = 0; fast_variant(j) != NULL; j++)
            variant_agrees(fast_variant(j), op, want, sizes);
        for (int i = 0; i < 3; i++)
            buf_close(&want[i]);
        buf_close(&qkv);
        buf_close(&norms);
        ctw_free(cos_sin);
    }
    ctw_backend_close(c);
}

static void opening_names_what_there_is(void **state)
{
    (void)state;
    struct ctw_backend *be;
    struct ctw_err err;
    assert_int_equal(ctw_backend_open(&be, "gpu", NULL, &err), CTW_EINVAL);
    assert_non_null(strstr(err.msg, "gpu"));
    assert_non_null(strstr(err.msg, "cpu"));
    struct ctw_backend_options opt = {.variant = "sse9"};
    assert_int_equal(ctw_backend_open(&be, "cpu", &opt, &err), CTW_EINVAL);
    assert_non_null(strstr(err.msg, "sse9"));
    assert_non_null(strstr(err.msg, "c"));
    opt = (struct ctw_backend_options){.variant = "c", .n_threads = -3};
    assert_int_equal(ctw_backend_open(&be, "cpu", &opt, &err), CTW_EINVAL);
    for (int64_t n = 1; n <= 4; n++) { /* out of memory at any allocation */
        ctw_mem_fail_at(n);
        enum ctw_status st =
            ctw_backend_open(&be, NULL, &(struct ctw_backend_options){.n_threads = 2}, &err);
        ctw_mem_fail_at(0);
        if (st == CTW_OK)
            ctw_backend_close(be);
        else
            assert_int_equal(st, CTW_ENOMEM);
    }
    OK(ctw_backend_open(&be, "auto", NULL, &last_err));
    struct ctw_backend_info info;
    ctw_backend_get_info(be, &info);
    assert_string_equal(info.backend, "cpu");
    assert_true(strlen(info.device) > 0);
    ctw_backend_close(be);
    ctw_backend_close(NULL);
}

/* Bugs of the caller are caught before they reach memory. */
static void wrong_calls_are_refused(void **state)
{
    (void)state;
    struct ctw_backend *be = backend(NULL, 1);
    struct ctw_err err;
    struct test_weight a, b;
    weight_open(&a, W_F32, 4, 8, 0);
    weight_open(&b, W_F32, 4, 9, 0);
    struct ctw_shard shards[2] = {a.shard, b.shard};
    float x[16] = {0}, y[16];
    struct ctw_op_linear op = {
        .shards = shards, .n_shards = 2, .n_tok = 1, .x = x, .ldx = 9, .y = y, .ldy = 8};
    assert_int_equal(ctw_linear(be, &op, &err), CTW_EINTERNAL); /* k differs */
    op.n_shards = 1;
    op.ldx = 7;
    assert_int_equal(ctw_linear(be, &op, &err), CTW_EINTERNAL);
    op.ldx = 8;
    op.dtype = CTW_I8;
    assert_int_equal(ctw_linear(be, &op, &err), CTW_EINTERNAL);
    op.dtype = CTW_F32;
    assert_int_equal(ctw_linear(be, &op, &err), CTW_OK);
    op.epilogue = CTW_EPI_ADD;
    op.residual_dtype = CTW_I8;
    assert_int_equal(ctw_linear(be, &op, &err), CTW_EINTERNAL);
    struct ctw_op_norm norm = {.n_tok = 1, .dim = 4, .x = x, .weight = x, .y = x};
    assert_int_equal(ctw_norm(be, &norm, &err), CTW_OK); /* in place */
    norm.dtype = CTW_BF16;
    assert_int_equal(ctw_norm(be, &norm, &err), CTW_EINTERNAL); /* of another size */
    struct ctw_kv_run run = {0, 3};
    struct ctw_attn_seq seq = {.n_q = 4, .runs = &run, .n_runs = 1};
    struct ctw_op_attention attn = {.n_head = 1,
                                    .n_kv = 1,
                                    .head = 4,
                                    .q = x,
                                    .k = x,
                                    .v = x,
                                    .out = y,
                                    .seqs = &seq,
                                    .n_seqs = 1};
    assert_int_equal(ctw_attention(be, &attn, &err), CTW_EINTERNAL); /* a key too few */
    run.n_tok = 4;
    assert_int_equal(ctw_attention(be, &attn, &err), CTW_OK);
    attn.head = CTW_MAX_HEAD + 1;
    assert_int_equal(ctw_attention(be, &attn, &err), CTW_EUNSUP);
    weight_close(&a);
    weight_close(&b);
    ctw_backend_close(be);
}

/* The scratch that operations allocate is at most what the planner was told. */
static void scratch_is_as_promised(void **state)
{
    (void)state;
    enum { N_TOK = 300 / THIN, MAX_K = 700, HEADS = 6, HEAD = 112, VOCAB = 3001 };
    for (int v = 0; ctw_cpu_variants[v] != NULL; v++) {
        if (!ctw_cpu_variants[v]->runs_here())
            continue;
        struct ctw_backend *be = backend(ctw_cpu_variants[v]->name, 3);
        size_t promised =
            ctw_backend_scratch_bytes(be, &(struct ctw_reserve){.n_tok = N_TOK, .max_k = MAX_K});
        struct test_weight w;
        weight_open(&w, W_BF16, VOCAB, MAX_K, 0);
        struct buf x = buf_random(CTW_F32, (int64_t)N_TOK * MAX_K, 1, 0);
        struct buf y = buf_open((size_t)N_TOK * VOCAB * sizeof(float), 0);
        int32_t tokens[N_TOK] = {0};
        struct ctw_kv_run runs[N_TOK];
        struct ctw_attn_seq seqs[N_TOK];
        for (int i = 0; i < N_TOK; i++) { /* one block of queries each, the most there can be */
            runs[i] = (struct ctw_kv_run){i, 1};
            seqs[i] = (struct ctw_attn_seq){.q_row = i, .n_q = 1, .runs = &runs[i], .n_runs = 1};
        }
        struct ctw_op_embed embed = {
            .table = &w.shard, .scale = 1, .n_tok = N_TOK, .tokens = tokens, .y = y.p};
        struct ctw_op_linear linear = {.shards = &w.shard,
                                       .n_shards = 1,
                                       .n_tok = N_TOK,
                                       .x = x.p,
                                       .ldx = MAX_K,
                                       .y = y.p,
                                       .ldy = VOCAB};
        struct ctw_op_attention attention = {.n_head = HEADS,
                                             .n_kv = 1,
                                             .head = HEAD,
                                             .scale = 1,
                                             .q = x.p,
                                             .k = x.p,
                                             .v = x.p,
                                             .out = y.p,
                                             .seqs = seqs,
                                             .n_seqs = N_TOK};
        struct ctw_op_head head = {.weight = &w.shard,
                                   .scale = 1,
                                   .n_vocab = VOCAB,
                                   .n_rows = N_TOK,
                                   .x = x.p,
                                   .targets = tokens,
                                   .out = y.p};
        OK(ctw_embed(be, &embed, &last_err));
        OK(ctw_linear(be, &linear, &last_err));
        OK(ctw_attention(be, &attention, &last_err));
        OK(ctw_head(be, &head, &last_err));
        size_t taken = ((struct ctw_cpu *)be)->scratch_bytes;
        assert_true(taken > 0);
        assert_true(taken <= promised);
        buf_close(&x);
        buf_close(&y);
        weight_close(&w);
        ctw_backend_close(be);
    }
}

/* SmolLM2-135M in chunks of 4096 tokens on two threads: little compared with the activations. */
static void scratch_is_small(void **state)
{
    (void)state;
    struct ctw_backend *be = backend(NULL, 2);
    const struct ctw_reserve reserve = {.n_tok = 4096, .max_k = 1536};
    assert_true(ctw_backend_scratch_bytes(be, &reserve) < (size_t)40 << 20);
    ctw_backend_close(be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embed_agrees),
        cmocka_unit_test(norm_agrees_and_rows_are_alone),
        cmocka_unit_test(norm_marks_bad_rows),
        cmocka_unit_test(qkv_agrees),
        cmocka_unit_test(opening_names_what_there_is),
        cmocka_unit_test(wrong_calls_are_refused),
        cmocka_unit_test(scratch_is_as_promised),
        cmocka_unit_test(scratch_is_small),
    };
    return cmocka_run_group_tests(tests, ops_setup, NULL);
}
