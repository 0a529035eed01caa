/* Products and heads of weights that are decoded in bands (EXL3), against the same of their decoded
 * values, which lie in a dense weight: equal bits. */
#include "ops.h"

enum { N = 270, K = 200, TOKENS = 7, PADDED_N = 384, PADDED_K = 256 };

struct pair {
    struct test_weight coded, plain; /* [N, K], the values of `coded` */
};

static void pair_open(struct pair *p, int64_t bits, int codebook)
{
    struct test_weight *t = &p->coded;
    memset(p, 0, sizeof(*p));
    for (int i = 0; i < CTW_N_PARTS; i++)
        t->w.part[i].n_dims = -1;
    t->w.names = ctw_part_names_find("exl3");
    t->w.n = N;
    t->w.k = K;
    set_part(t, CTW_PART_VALUES, CTW_I16, PADDED_K / 16 * PADDED_N / 16, 16 * bits);
    struct ctw_part *values = &t->w.part[CTW_PART_VALUES];
    *values = (struct ctw_part){.dtype = CTW_I16,
                                .n_dims = 3,
                                .shape = {PADDED_K / 16, PADDED_N / 16, 16 * bits},
                                .bytes = values->bytes};
    set_part(t, CTW_PART_COLUMN_SCALE, CTW_F16, PADDED_K, 1);
    set_part(t, CTW_PART_SCALE, CTW_F16, PADDED_N, 1);
    t->w.part[CTW_PART_COLUMN_SCALE].n_dims = t->w.part[CTW_PART_SCALE].n_dims = 1;
    const struct ctw_quant_args args = {.present = true, .symmetric = true};
    OK(ctw_format_find(&t->w.format, t->w.names, t->w.part, &last_err));
    OK(t->w.format->check(&t->w, &args, NULL, &last_err));
    t->w.codebook = codebook; /* in files a tensor's presence */
    t->shard = ctw_shard_of(&t->w, &t->data);
    weight_open(&p->plain, W_F16, N, K, 0);
    ctw_weight_decode(&t->w, &t->data, 0, N, CTW_F16, p->plain.part[CTW_PART_VALUES].p, K);
}

static void pair_close(struct pair *p)
{
    weight_close(&p->coded);
    weight_close(&p->plain);
}

/* Rows row0 .. row0+n-1 as shards, the last of which may be of a dense weight. */
struct cut {
    enum ctw_epilogue epilogue;
    int n_shards;
    int64_t rows[3][2]; /* row0, n */
    bool dense_last;
};

static const struct cut cuts[] = {
    {CTW_EPI_STORE, 1, {{0, N}}, false},
    {CTW_EPI_STORE, 3, {{100, 40}, {3, 5}, {127, 2}}, false},
    {CTW_EPI_STORE, 2, {{64, 150}, {10, 40}}, true},
    {CTW_EPI_GATE, 2, {{0, 130}, {130, 130}}, false},
    {CTW_EPI_LOGITS, 1, {{120, 16}}, false},
};

static void products(void **state)
{
    (void)state;
    static const enum ctw_dtype dtypes[] = {CTW_BF16, CTW_F16, CTW_F32};
    const char *v;
    for (int i = 0; i < 3 * (int)CTW_COUNT(cuts); i++) {
        const struct cut *c = &cuts[i / 3];
        const enum ctw_dtype dtype = dtypes[i % 3];
        struct pair p;
        pair_open(&p, 1 + i % 8, i % 3);
        struct buf x = buf_open(TOKENS * K * 4, 0), y[2];
        for (int64_t e = 0; e < TOKENS * K; e++)
            ctw_store_float(x.p, dtype, e, rng_normal());
        for (int at = 0; (v = fast_variant(at)) != NULL; at++) {
            struct ctw_backend *be = backend(v, 1 + at % 3);
            for (int plain = 0; plain < 2; plain++) {
                struct ctw_shard shards[3];
                for (int s = 0; s < c->n_shards; s++) {
                    bool dense = plain || (c->dense_last && s == c->n_shards - 1);
                    shards[s] = dense ? p.plain.shard : p.coded.shard;
                    shards[s].row0 = c->rows[s][0];
                    shards[s].n = c->rows[s][1];
                }
                y[plain] = buf_open(TOKENS * 2 * N * 4, 0);
                memset(y[plain].p, 0, TOKENS * 2 * N * 4);
                OK(ctw_linear(be,
                              &(struct ctw_op_linear){.shards = shards,
                                                      .n_shards = c->n_shards,
                                                      .slot = CTW_SLOT_FIRST,
                                                      .dtype = dtype,
                                                      .epilogue = c->epilogue,
                                                      .act = CTW_ACT_SILU,
                                                      .n_tok = TOKENS,
                                                      .x = x.p,
                                                      .ldx = K,
                                                      .y = y[plain].p,
                                                      .ldy = 2 * N},
                              &last_err));
            }
            assert_memory_equal(y[0].p, y[1].p, TOKENS * 2 * N * 4);
            buf_close(&y[0]);
            buf_close(&y[1]);
            ctw_backend_close(be);
        }
        buf_close(&x);
        pair_close(&p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(products)};
    return cmocka_run_group_tests(tests, ops_setup, NULL);
}
