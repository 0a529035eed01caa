/* embed, act and qkv of every variant against the reference, and the calls that backend.c
 * refuses. */
#include "ops.h"

static const enum ctw_dtype dtypes[] = {CTW_F32, CTW_BF16, CTW_F16};

/* Row lengths around vectors and around the spans of 256 and 1024 in which rows are processed. */
static const int64_t dims[] = {1, 7, 8, 9, 16, 31, 64, 255, 256, 257, 576, 1023, 1025, 2049};

/* Three parts of the table, in a random order; each leaves other tokens' rows alone. */
static void embed_in_parts(struct ctw_backend *be, struct ctw_op_embed op,
                           const struct test_weight *w, struct buf *y)
{
    const int64_t cut[] = {0, 1 + rng_below(w->w.n / 2), w->w.n - 1, w->w.n};
    op.y = y->p;
    op.in_part = true;
    for (int64_t i = rng_below(3), n = 0; n < 3; n++, i = (i + 1) % 3) {
        struct rows_part part;
        rows_part_open(&part, w, cut[i], cut[i + 1] - cut[i]);
        op.table = &part.shard;
        op.id0 = (int32_t)cut[i];
        OK(ctw_embed(be, &op, &last_err));
    }
}

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
                                  .scale = s % 2 == 0 ? 1 : 27.75f,
                                  .add = s / 6 % 2 == 1};
        struct buf before = buf_random(dtype, N * k, 1, 0), want = buf_copy(&before, 0);
        op.y = want.p;
        OK(ctw_embed(c, &op, &last_err));
        buf_check(&want);
        const char *v;
        for (int i = 0; (v = fast_variant(i)) != NULL; i++) {
            struct ctw_backend *be = backend(v, 2);
            struct buf got = buf_copy(&before, 2 * (size_t)rng_below(9));
            op.y = got.p;
            OK(ctw_embed(be, &op, &last_err));
            assert_memory_equal(got.p, want.p, want.bytes); /* the same few roundings */
            buf_close(&got);
            got = buf_copy(&before, 0);
            if (w.w.format->id == CTW_FORMAT_dense && !op.add)
                embed_in_parts(be, op, &w, &got);
            assert_true(op.add || w.w.format->id != CTW_FORMAT_dense ||
                        memcmp(got.p, want.p, want.bytes) == 0);
            buf_close(&got);
            ctw_backend_close(be);
        }
        buf_close(&before);
        buf_close(&want);
        weight_close(&w);
    }
    ctw_backend_close(c);
}

/* ---- activations -------------------------------------------------------------------------- */

enum { N_ACTS = CTW_ACT_CLIP + 1 };

/* Parameters of a trained xIELU: ap, an = beta + a softplus, beta, eps. */
static void set_params(struct ctw_op_act *op)
{
    static const float xielu[CTW_ACT_PARAMS] = {0.8f, 1.3f, 0.5f, -1e-6f};
    if (op->act == CTW_ACT_XIELU)
        memcpy(op->param, xielu, sizeof(xielu));
    else
        op->param[0] = 0.75f;
}

/* The errors that NUMERICS.md states for act(g). */
static double act_bound(enum ctw_activation act, const float *param, double g)
{
    const double u = 0x1p-24;
    double value = ctw_cpu_activate(act, param, g), want = fabs(value);
    switch (act) {
    case CTW_ACT_SILU:
        return 4 * u * want;
    case CTW_ACT_GELU:
        return (8 + fmin(4, 2 * g * g)) * u * want;
    case CTW_ACT_GELU_TANH: /* cancels below 0, as tanh nears -1 */
        return 8 * u * fmax(want, fabs(g) * (g < -0.5));
    case CTW_ACT_RELU2:
        return u * want;
    case CTW_ACT_XIELU:
        if (g > 0)
            return 4 * u * want;
        return 24 * u * (fabs(value - param[2] * g) + fabs(param[2] * g));
    default:
        return 0;
    }
}

static void acts_agree_and_rows_are_alone(void **state)
{
    (void)state;
    enum { N = 19 };
    struct ctw_backend *c = backend("c", 1);
    for (size_t s = 0; s < 3 * N_ACTS * CTW_COUNT(dims); s += THIN) {
        int64_t dim = dims[s / 3 / N_ACTS], ldup = dim + rng_below(3);
        struct ctw_op_act op = {.act = (enum ctw_activation)(s / 3 % N_ACTS),
                                .dtype = dtypes[s % 3],
                                .n_tok = N,
                                .dim = dim,
                                .ldx = dim + rng_below(3),
                                .ldup = ldup,
                                .ldy = dim + rng_below(3)};
        set_params(&op);
        size_t es = ctw_dtype_bytes(op.dtype);
        struct buf x = buf_random(op.dtype, N * op.ldx, 2, 2 * (size_t)rng_below(9));
        struct buf up = buf_random(op.dtype, N * ldup, 1, 2 * (size_t)rng_below(9));
        struct buf before = buf_random(op.dtype, N * op.ldy, 1, 0), want = buf_copy(&before, 0);
        op.x = x.p;
        op.up = rng_below(2) == 0 ? up.p : NULL;
        op.y = want.p;
        OK(ctw_act(c, &op, &last_err));
        const char *v;
        for (int i = 0; (v = fast_variant(i)) != NULL; i++) {
            struct ctw_backend *be = backend(v, 2);
            struct buf got = buf_copy(&before, 2 * (size_t)rng_below(9));
            op.y = got.p;
            OK(ctw_act(be, &op, &last_err));
            for (int64_t e = 0; e < N * op.ldy; e++) {
                int64_t t = e / op.ldy, at = e % op.ldy;
                double w = ctw_load_float(want.p, op.dtype, e);
                if (at >= dim) { /* between rows: untouched */
                    assert_memory_equal(element(got.p, op.dtype, e), element(before.p, op.dtype, e),
                                        es);
                    continue;
                }
                double g = ctw_load_float(x.p, op.dtype, t * op.ldx + at);
                double by = op.up != NULL ? ctw_load_float(up.p, op.dtype, t * ldup + at) : 1;
                double bound = act_bound(op.act, op.param, g) * fabs(by) + 0x1p-24 * fabs(w);
                near(ctw_load_float(got.p, op.dtype, e), w,
                     bound + 2 * half_step(op.dtype, fabs(w) + bound), v, e);
            }
            for (int64_t t = 0; t < N; t++) { /* alone and in place */
                struct buf row = buf_open((size_t)dim * es, 2);
                struct ctw_op_act one = op;
                memcpy(row.p, element(x.p, op.dtype, t * op.ldx), row.bytes);
                one.n_tok = 1;
                one.x = one.y = row.p;
                one.ldx = one.ldy = dim;
                one.up = op.up != NULL ? element(up.p, op.dtype, t * ldup) : NULL;
                OK(ctw_act(be, &one, &last_err));
                assert_memory_equal(row.p, element(got.p, op.dtype, t * op.ldy), row.bytes);
                buf_close(&row);
            }
            buf_close(&got);
            ctw_backend_close(be);
        }
        buf_close(&x);
        buf_close(&up);
        buf_close(&before);
        buf_close(&want);
    }
    ctw_backend_close(c);
}

/* Values across the whole range: subnormals, infinities and NaN included. */
static void acts_are_accurate(void **state)
{
    (void)state;
    enum { N = 20000 };
    struct buf x = buf_open(N * sizeof(float), 0), y = buf_open(N * sizeof(float), 0);
    float *g = x.p, *got = y.p;
    for (int i = 0; i < N; i++)
        g[i] = i < 200 ? (float)(i - 100) : rng_normal() * ldexpf(1, -(int)(i % 140) + 5);
    g[0] = NAN, g[1] = INFINITY, g[2] = -0.0f, g[3] = -1e-6f, g[4] = -0.34f;
    struct ctw_op_act op = {.n_tok = 1, .dim = N, .x = g, .ldx = N, .y = got, .ldy = N};
    const char *v;
    for (int i = 0; (v = fast_variant_or_c(i)) != NULL; i++) {
        struct ctw_backend *be = backend(v, 2);
        for (int a = 0; a < N_ACTS; a++) {
            op.act = (enum ctw_activation)a;
            set_params(&op);
            OK(ctw_act(be, &op, &last_err));
            for (int t = 0; t < N; t++) {
                double want = ctw_cpu_activate(op.act, op.param, g[t]);
                near(got[t], (float)want,
                     act_bound(op.act, op.param, g[t]) + half_step(CTW_F32, want) + 0x1p-120, v, t);
            }
            assert_true(isnan(got[0]));
            assert_true(got[1] == (a == CTW_ACT_CLIP ? 0.75f : INFINITY));
        }
        ctw_backend_close(be);
    }
    buf_close(&x);
    buf_close(&y);
}

/* ---- q, k, v ------------------------------------------------------------------------------ */

struct qkv_shape {
    int n_head, n_kv, head, rot_dim;
};

enum { QKV_ROWS = 21, POSITIONS = 3000 };

struct qkv {
    struct ctw_op_qkv op;
    struct buf qkv, norms;
    float *cos_sin, *q_factor;
    int32_t positions[QKV_ROWS];
    int64_t sizes[3]; /* elements of q, k and v */
};

/* Each key head's query heads, its key and its value together, as in GPT-NeoX and Falcon; or the
 * sections in another order and apart. */
static void set_columns(struct qkv *p)
{
    const int64_t r = p->op.n_head / p->op.n_kv, head = p->op.head, n_kv = p->op.n_kv;
    if (rng_below(2) == 0)
        p->op.columns = (struct ctw_qkv_columns){.ld = n_kv * (r + 2) * head + 3,
                                                 .q = 1,
                                                 .k = 1 + r * head,
                                                 .v = 1 + (r + 1) * head,
                                                 .q_step = (r + 2) * head,
                                                 .kv_step = (r + 2) * head};
    else
        p->op.columns = (struct ctw_qkv_columns){.ld = n_kv * (r + 2) * (head + 1),
                                                 .v = 0,
                                                 .k = n_kv * (head + 1),
                                                 .q = 2 * n_kv * (head + 1),
                                                 .q_step = r * (head + 1),
                                                 .kv_step = head + 1};
}

static void qkv_open(struct qkv *p, const struct qkv_shape *h, enum ctw_dtype dtype, size_t form)
{
    memset(p, 0, sizeof(*p));
    int64_t n_q = h->n_head * h->head, n_kv = h->n_kv * h->head;
    p->op = (struct ctw_op_qkv){.dtype = dtype,
                                .n_tok = QKV_ROWS,
                                .n_head = h->n_head,
                                .n_kv = h->n_kv,
                                .head = h->head,
                                .norm_eps = 1e-6f,
                                .rot_dim = h->rot_dim};
    if (form / 4 % 2 == 1)
        set_columns(p);
    int64_t ld = p->op.columns.ld != 0 ? p->op.columns.ld : n_q + 2 * n_kv;
    p->qkv = buf_random(dtype, QKV_ROWS * ld, 2, 2 * (size_t)rng_below(9));
    p->op.qkv = p->qkv.p;
    p->op.norm_dtype = dtypes[rng_below(3)];
    p->norms = buf_random(p->op.norm_dtype, 2 * h->head, 1, 1);
    p->cos_sin = ctw_calloc((size_t)(POSITIONS * (h->rot_dim + 1)), sizeof(float));
    p->q_factor = ctw_calloc(POSITIONS, sizeof(float));
    for (int64_t i = 0; i < (int64_t)POSITIONS * h->rot_dim; i++)
        p->cos_sin[i] = (float)sin((double)i * 0.7);
    for (int i = 0; i < POSITIONS; i++)
        p->q_factor[i] = 1 + 0.001f * (float)i;
    for (int i = 0; i < QKV_ROWS; i++)
        p->positions[i] = (int32_t)(i == 0 ? POSITIONS - 1 : rng_below(POSITIONS));
    p->op.cos_sin = p->cos_sin;
    p->op.positions = p->positions;
    p->op.pairing = form % 2 == 0 ? CTW_ROPE_HALVES : CTW_ROPE_INTERLEAVED;
    if (form / 2 % 2 == 0) {
        p->op.q_norm = p->norms.p;
        p->op.k_norm = element(p->norms.p, p->op.norm_dtype, h->head);
    }
    if (form / 4 % 2 == 1 && rng_below(2) == 0) {
        p->op.q_factor = p->q_factor;
        p->op.norm_offset = 1;
    }
    p->sizes[0] = QKV_ROWS * n_q;
    p->sizes[1] = p->sizes[2] = form / 4 % 2 == 1 && rng_below(4) == 0 ? 0 : QKV_ROWS * n_kv;
}

static void qkv_close(struct qkv *p)
{
    buf_close(&p->qkv);
    buf_close(&p->norms);
    ctw_free(p->cos_sin);
    ctw_free(p->q_factor);
}

/* Of all rows, or of each row by itself; k and v are not asked for if their size is 0. */
static void qkv_run(const struct qkv *p, struct ctw_backend *be, bool apart, struct buf out[3])
{
    struct ctw_op_qkv op = p->op;
    size_t es = ctw_dtype_bytes(op.dtype);
    int64_t ld = (int64_t)(p->qkv.bytes / es) / QKV_ROWS;
    for (int i = 0; i < 3; i++)
        out[i] = buf_open((size_t)p->sizes[i] * es, 2 * (size_t)rng_below(9));
    op.n_tok = apart ? 1 : QKV_ROWS;
    for (int64_t t = 0; t < QKV_ROWS; t += op.n_tok) {
        op.qkv = element(p->qkv.p, op.dtype, t * ld);
        op.positions = p->positions + t;
        op.q = element(out[0].p, op.dtype, t * p->sizes[0] / QKV_ROWS);
        op.k = p->sizes[1] != 0 ? element(out[1].p, op.dtype, t * p->sizes[1] / QKV_ROWS) : NULL;
        op.v = p->sizes[2] != 0 ? element(out[2].p, op.dtype, t * p->sizes[2] / QKV_ROWS) : NULL;
        OK(ctw_qkv(be, &op, &last_err));
    }
}

/* The variant's q and k are near those in `want`, and its v is equal. */
static void variant_agrees(const char *v, const struct qkv *p, const struct buf want[3])
{
    struct ctw_backend *be = backend(v, 2);
    struct buf got[3], alone[3];
    const struct ctw_op_qkv *op = &p->op;
    qkv_run(p, be, false, got);
    qkv_run(p, be, true, alone);
    for (int i = 0; i < 2; i++) {
        for (int64_t e = 0; e < p->sizes[i]; e++) {
            double w = ctw_load_float(want[i].p, op->dtype, e);
            /* Normalised, |a| and |b| are below sqrt(head) times a norm weight (< 5.5); otherwise
             * below 13. A few roundings of each, which may cancel. */
            double size =
                op->q_norm != NULL ? (5.5 + (double)op->norm_offset) * sqrt(op->head) : 13;
            if (i == 0 && op->q_factor != NULL)
                size *= op->q_factor[p->positions[e * QKV_ROWS / p->sizes[0]]];
            near(ctw_load_float(got[i].p, op->dtype, e), w,
                 (op->head / 8 + 12) * 0x1p-24 * size + 2 * half_step(op->dtype, w), v, e);
        }
    }
    assert_memory_equal(got[2].p, want[2].p, want[2].bytes);
    for (int i = 0; i < 3; i++) {
        assert_memory_equal(alone[i].p, got[i].p, got[i].bytes);
        buf_close(&got[i]);
        buf_close(&alone[i]);
    }
    ctw_backend_close(be);
}

static void qkv_agrees(void **state)
{
    (void)state;
    static const struct qkv_shape shapes[] = {{9, 3, 64, 64},  {2, 2, 16, 16}, {4, 1, 128, 128},
                                              {3, 3, 40, 20},  {1, 1, 6, 2},   {2, 1, 33, 30},
                                              {5, 5, 256, 64}, {8, 2, 80, 0},  {2, 1, 512, 128}};
    struct ctw_backend *c = backend("c", 2);
    for (size_t s = 0; s < 48 * CTW_COUNT(shapes); s += THIN) {
        struct qkv p;
        struct buf want[3];
        qkv_open(&p, &shapes[s / 48], dtypes[s % 3], s / 3 % 8);
        qkv_run(&p, c, false, want);
        for (int j = 0; fast_variant(j) != NULL; j++)
            variant_agrees(fast_variant(j), &p, want);
        for (int i = 0; i < 3; i++)
            buf_close(&want[i]);
        qkv_close(&p);
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
    enum { N_TOK = 300 / SPARSE, MAX_K = 700, HEADS = 6, HEAD = 112, VOCAB = 3001 };
    for (int v = 0; ctw_cpu_variants[v] != NULL; v++) {
        if (!ctw_cpu_variants[v]->runs_here())
            continue;
        struct ctw_backend *be = backend(ctw_cpu_variants[v]->name, 3);
        const struct ctw_reserve reserve = {
            .n_tok = N_TOK, .max_k = MAX_K, .max_head = HEAD, .max_group = HEADS};
        size_t promised = ctw_backend_scratch_bytes(be, &reserve);
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
    const struct ctw_reserve reserve = {
        .n_tok = 4096, .max_k = 1536, .max_head = 64, .max_group = 3};
    assert_true(ctw_backend_scratch_bytes(be, &reserve) < (size_t)40 << 20);
    ctw_backend_close(be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embed_agrees),
        cmocka_unit_test(acts_agree_and_rows_are_alone),
        cmocka_unit_test(acts_are_accurate),
        cmocka_unit_test(qkv_agrees),
        cmocka_unit_test(opening_names_what_there_is),
        cmocka_unit_test(wrong_calls_are_refused),
        cmocka_unit_test(scratch_is_as_promised),
        cmocka_unit_test(scratch_is_small),
    };
    return cmocka_run_group_tests(tests, ops_setup, NULL);
}
