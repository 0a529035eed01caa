/* Opening backends; the calls that the checked wrapper refuses; the memory that operations take for
 * themselves. */
#include "ops.h"

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

/* Of a variant that does not run here, the error says what is missing; none is chosen by default
 * that runs by request alone. */
static void variants_say_what_they_lack(void **state)
{
    (void)state;
    struct ctw_backend *be;
    struct ctw_err err;
    struct ctw_backend_info info;
    OK(ctw_backend_open(&be, "cpu", NULL, &last_err));
    ctw_backend_get_info(be, &info);
    ctw_backend_close(be);
    for (int v = 0; ctw_cpu_variants[v] != NULL; v++) {
        const char *name = ctw_cpu_variants[v]->name, *lacks = ctw_cpu_variants[v]->lacks();
        if (ctw_cpu_variants[v]->by_request)
            assert_string_not_equal(info.variant, name);
        const struct ctw_backend_options opt = {.variant = name};
        const enum ctw_status st = ctw_backend_open(&be, "cpu", &opt, &err);
        assert_int_equal(st, lacks == NULL ? CTW_OK : CTW_EINVAL);
        if (st == CTW_OK) {
            ctw_backend_close(be);
            continue;
        }
        assert_non_null(strstr(err.msg, name));
        assert_non_null(strstr(err.msg, lacks));
        assert_non_null(strstr(err.msg, info.variant)); /* what runs here */
    }
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
        if (ctw_cpu_variants[v]->lacks() != NULL)
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
        cmocka_unit_test(opening_names_what_there_is),
        cmocka_unit_test(variants_say_what_they_lack),
        cmocka_unit_test(wrong_calls_are_refused),
        cmocka_unit_test(scratch_is_as_promised),
        cmocka_unit_test(scratch_is_small),
    };
    return cmocka_run_group_tests(tests, ops_setup, NULL);
}
