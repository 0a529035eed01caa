/* ctw_head() with several targets of a row: the bits of a row for each target, in every place. */
#include "kernels/head_targets.h"
#include "places.h"

enum { TARGETS_ROWS = 41, TARGETS_MOST = 4 };

struct targets_case {
    enum weight_kind kind;
    enum ctw_dtype dtype;
    int64_t n, k;
    float softcap;
};

/* Rows, and the same with each row as often as it has targets. */
struct targets_problem {
    struct ctw_backend *be;
    struct ctw_op_head op;
    struct test_weight w;
    struct ctw_weight_data data;
    struct ctw_shard shard;
    int32_t first[TARGETS_ROWS + 1], targets[TARGETS_ROWS * TARGETS_MOST];
    int64_t n_targets;
    void *device[CTW_N_PARTS + 5]; /* the weight; rows, rows of targets, first, targets, results */
};

static void targets_draw(struct targets_problem *p, int64_t n_vocab)
{
    for (int64_t i = 0; i < TARGETS_ROWS; i++) {
        const int64_t n = i % 3 == 0 ? 1 : 1 + rng_below(TARGETS_MOST);
        p->first[i] = (int32_t)p->n_targets;
        for (int64_t j = 0; j < n; j++, p->n_targets++) {
            const bool near = j > 0 && i % 2 > 0; /* in one tile, or the same */
            const int64_t last = near ? p->targets[p->n_targets - 1] : 0;
            p->targets[p->n_targets] =
                (int32_t)(near ? (last + j - 1) % n_vocab : rng_below(n_vocab));
        }
    }
    p->first[TARGETS_ROWS] = (int32_t)p->n_targets;
}

static void targets_open(struct targets_problem *p, struct ctw_backend *be,
                         const struct targets_case *c)
{
    *p = (struct targets_problem){.be = be};
    weight_open(&p->w, c->kind, c->n, c->k, 0);
    targets_draw(p, c->n);
    const size_t row = (size_t)c->k * ctw_dtype_bytes(c->dtype);
    struct buf x = buf_random(c->dtype, TARGETS_ROWS * c->k, 3.0f / sqrtf((float)c->k), 0);
    struct buf all = buf_open((size_t)p->n_targets * row, 0);
    for (int64_t i = 0; i < TARGETS_ROWS; i++)
        for (int64_t t = p->first[i]; t < p->first[i + 1]; t++)
            memcpy((char *)all.p + (size_t)t * row, (char *)x.p + (size_t)i * row, row);
    for (int i = 0; i < CTW_N_PARTS; i++)
        if (p->w.data.part[i] != NULL)
            p->data.part[i] = p->device[i] =
                upload(be, p->w.data.part[i], p->w.w.part[i].bytes);
    void **more = p->device + CTW_N_PARTS;
    more[0] = upload(be, x.p, TARGETS_ROWS * row);
    more[1] = upload(be, all.p, (size_t)p->n_targets * row);
    more[2] = upload(be, p->first, sizeof(p->first));
    more[3] = upload(be, p->targets, sizeof(p->targets));
    more[4] = upload(be, NULL, sizeof(p->targets) / sizeof(int32_t) * sizeof(struct ctw_head_result));
    p->shard = p->w.shard;
    p->shard.data = &p->data;
    p->op = (struct ctw_op_head){.weight = &p->shard,
                                 .dtype = c->dtype,
                                 .scale = 0.5f,
                                 .softcap = c->softcap,
                                 .n_vocab = c->n,
                                 .targets = more[3],
                                 .out = more[4]};
    buf_close(&x);
    buf_close(&all);
}

static void targets_close(struct targets_problem *p)
{
    weight_close(&p->w);
    for (size_t i = 0; i < CTW_COUNT(p->device); i++)
        if (p->device[i] != NULL)
            ctw_device_free(p->be, p->device[i]);
}

/* The targets' results: of rows with several targets, `cut` at a time, or of a row for each. */
static struct buf targets_run(struct targets_problem *p, bool several, int64_t cut)
{
    const size_t bytes = (size_t)p->n_targets * sizeof(struct ctw_head_result);
    const size_t row = (size_t)p->w.w.k * ctw_dtype_bytes(p->op.dtype);
    struct buf out = buf_open(bytes, 0);
    memset(out.p, 0xff, bytes);
    OK(ctw_device_upload(p->be, p->op.out, out.p, bytes, &last_err));
    for (int64_t i = 0; i < (several ? TARGETS_ROWS : 1); i += cut) {
        struct ctw_op_head op = p->op;
        op.n_rows = several ? (i + cut < TARGETS_ROWS ? cut : TARGETS_ROWS - i) : p->n_targets;
        op.first_target = several ? (int32_t *)p->device[CTW_N_PARTS + 2] + i : NULL;
        op.x = (char *)p->device[CTW_N_PARTS + (several ? 0 : 1)] + (size_t)i * row;
        OK(ctw_head(p->be, &op, &last_err));
    }
    OK(ctw_device_download(p->be, out.p, p->op.out, bytes, &last_err));
    return out;
}

static void targets_of_a_row_have_the_bits_of_rows(void **state)
{
    static const struct targets_case cases[] = {
        {W_F32, CTW_F32, 1, 8, 0},         {W_F32, CTW_F32, 3000, 24, 0},
        {W_BF16, CTW_BF16, 5000, 128, 0},  {W_BF16, CTW_BF16, 700, 64, 20},
        {W_BF16, CTW_F16, 2600, 64, 0},    {W_F32, CTW_BF16, 2600, 72, 30},
    };
    (void)state;
    struct ctw_backend *be;
    for (int i = 0; (be = open_place(i, 1 + i % 3)) != NULL; i++) {
        for (size_t c = 0; c < CTW_COUNT(cases); c++) {
            struct targets_problem p;
            targets_open(&p, be, &cases[c]);
            struct buf want = targets_run(&p, false, p.n_targets);
            struct buf whole = targets_run(&p, true, TARGETS_ROWS), cut = targets_run(&p, true, 7);
            assert_memory_equal(whole.p, want.p, want.bytes);
            assert_memory_equal(cut.p, want.p, want.bytes);
            for (int64_t t = 0; t < p.n_targets; t++)
                assert_true(isfinite(((struct ctw_head_result *)want.p)[t].logprob));
            buf_close(&want);
            buf_close(&whole);
            buf_close(&cut);
            targets_close(&p);
        }
        ctw_backend_close(be);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(targets_of_a_row_have_the_bits_of_rows)};
    return cmocka_run_group_tests(tests, ops_setup, NULL);
}
