/* ctw_embed() against its definition, bit by bit, in every place; and a table in parts. */
#include "placed_weight.h"

static const enum ctw_dtype dtypes[] = {CTW_F32, CTW_BF16, CTW_F16};

/* Around vectors and around the spans of 256 and 1024 in which a CPU processes rows. */
static const int64_t dims[] = {1, 7, 8, 9, 16, 31, 64, 255, 256, 257, 576, 1023, 1025, 2049};

enum { VOCAB = 50, N_TOK = 37 };

/* y as defined. */
static void define(const struct ctw_op_embed *op, const struct test_weight *w, void *y)
{
    float *row = calloc((size_t)w->w.k, sizeof(*row));
    assert_non_null(row);
    for (int64_t t = 0; t < op->n_tok; t++) {
        weight_row(w, w->shard.row0 + op->tokens[t], op->dtype, row);
        for (int64_t i = 0; i < w->w.k; i++) {
            int64_t to = t * w->w.k + i;
            float v = row[i] * op->scale;
            ctw_store_float(y, op->dtype, to, op->add ? v + ctw_load_float(y, op->dtype, to) : v);
        }
    }
    free(row);
}

/* Three parts of the table, in a random order; each leaves other tokens' rows alone. */
static void embed_parts(struct ctw_backend *be, struct ctw_op_embed op)
{
    const struct ctw_shard *whole = op.table;
    const int64_t cut[] = {0, 1 + rng_below(whole->n / 2), whole->n - 1, whole->n};
    op.in_part = true;
    for (int64_t i = rng_below(3), n = 0; n < 3; n++, i = (i + 1) % 3) {
        struct rows_part part;
        rows_part_open(&part, whole, cut[i], cut[i + 1] - cut[i]);
        op.table = &part.shard;
        op.id0 = (int32_t)cut[i];
        OK(ctw_embed(be, &op, &last_err));
    }
}

static void check(struct ctw_backend *be, struct ctw_op_embed op, const struct test_weight *w,
                  const struct buf *before, const struct buf *want, const char *name)
{
    struct placed_weight table;
    weight_place(&table, w, be, rng_below(2) == 0);
    struct dev tokens = dev_open(be, op.tokens, sizeof(*op.tokens) * N_TOK, 0);
    struct buf got = buf_open(before->bytes, 0);
    bool parts = w->w.format->id == CTW_FORMAT_dense && !op.add;
    for (int way = 0; way < (parts ? 2 : 1); way++) { /* whole; in parts */
        size_t shift = (size_t)rng_below(2) * (size_t)rng_below(9);
        struct dev y = dev_open(be, before->p, before->bytes, shift * ctw_dtype_bytes(op.dtype));
        op.table = &table.shard;
        op.tokens = (const void *)tokens.p;
        op.y = y.p;
        if (way == 0)
            OK(ctw_embed(be, &op, &last_err));
        else
            embed_parts(be, op);
        dev_read(&y, got.p);
        dev_close(&y);
        if (memcmp(got.p, want->p, want->bytes) != 0)
            fail_msg("%s %s%s, k %d, scale %g%s", name, ctw_dtype_name(op.dtype),
                     way == 0 ? "" : " in parts", (int)w->w.k, (double)op.scale,
                     op.add ? ", added" : "");
    }
    buf_close(&got);
    dev_close(&tokens);
    weight_unplace(&table);
}

static void places_agree_with_the_definition(void **state)
{
    (void)state;
    struct ctw_backend *be[MAX_PLACES];
    const int n = open_places(be);
    for (size_t s = 0; s < 6 * CTW_COUNT(dims); s++) {
        const int64_t k = dims[s / 6];
        const enum ctw_dtype dtype = dtypes[s % 3];
        enum weight_kind kind = (enum weight_kind)rng_below(N_WEIGHT_KINDS);
        struct test_weight w;
        weight_open_rows(&w, s % 2 == 0 && weight_possible(kind, k) ? kind : W_BF16, VOCAB, k, 0);
        int32_t tokens[N_TOK];
        for (int i = 0; i < N_TOK; i++)
            tokens[i] = (int32_t)(i == 0 ? VOCAB - 1 : rng_below(VOCAB));
        const struct ctw_op_embed op = {.dtype = dtype,
                                        .n_tok = N_TOK,
                                        .tokens = tokens,
                                        .scale = rng_below(2) == 0 ? 1 : 27.75f,
                                        .add = rng_below(3) == 0};
        struct buf before = buf_random(dtype, N_TOK * k, 1, 0), want = buf_copy(&before, 0);
        define(&op, &w, want.p);
        for (int i = 0; i < n; i++)
            check(be[i], op, &w, &before, &want, place_name(i));
        buf_close(&before);
        buf_close(&want);
        weight_close(&w);
    }
    close_places(be, n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(places_agree_with_the_definition),
    };
    return cmocka_run_group_tests(tests, ops_setup, NULL);
}
