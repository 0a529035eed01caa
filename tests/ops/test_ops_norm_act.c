/* ctw_norm_act() gives the bits of ctw_norm() and ctw_act(), in every place. */
#include "places.h"

struct shape {
    int64_t n_tok, n_groups, dim;
    int64_t parts; /* rows of the activation in a row of the norm */
    enum ctw_activation act;
    int64_t gap; /* columns between rows of x and of the gate */
};

/* together: in one call, else in two. */
static struct buf run(struct ctw_backend *be, const struct ctw_op_norm *norm,
                               const struct ctw_op_act *act, const struct buf *x, bool together)
{
    struct ctw_op_norm n = *norm;
    struct ctw_op_act a = *act;
    struct buf y = buf_open(x->bytes, 0);
    void *device = upload(be, x->p, x->bytes);
    n.x = n.y = device;
    a.up = a.y = device;
    if (together) {
        OK(ctw_norm_act(be, &n, &a, &last_err));
    } else {
        OK(ctw_norm(be, &n, &last_err));
        OK(ctw_act(be, &a, &last_err));
    }
    OK(ctw_device_download(be, y.p, device, y.bytes, &last_err));
    ctw_device_free(be, device);
    return y;
}

static void agrees(struct ctw_backend *be)
{
    static const enum ctw_dtype kinds[] = {CTW_F32, CTW_BF16, CTW_F16};
    static const struct shape shapes[] = {
        {9, 6, 128, 1, CTW_ACT_SILU, 0},  {5, 6, 128, 3, CTW_ACT_SIGMOID, 8},
        {70, 2, 32, 2, CTW_ACT_SILU, 16}, {3, 3, 256, 1, CTW_ACT_SILU, 0},
        {4, 5, 20, 1, CTW_ACT_SILU, 3},   {3, 2, 64, 1, CTW_ACT_GELU, 0},
    };
    for (size_t i = 0; i < CTW_COUNT(shapes) * CTW_COUNT(kinds); i++) {
        const struct shape *s = &shapes[i / CTW_COUNT(kinds)];
        const enum ctw_dtype dtype = kinds[i % CTW_COUNT(kinds)], weights = kinds[i % 2];
        const int64_t row = s->n_groups * s->dim, width = row / s->parts, ld = width + s->gap;
        struct buf x = buf_random(dtype, s->n_tok * row, 2, 0);
        struct buf gate = buf_random(dtype, s->n_tok * s->parts * ld, 2, 0);
        struct buf weight = buf_random(weights, s->dim, 1, 0);
        void *device[] = {upload(be, gate.p, gate.bytes), upload(be, weight.p, weight.bytes)};
        const struct ctw_op_norm norm = {.kind = CTW_NORM_RMS,
                                         .dtype = dtype,
                                         .x_dtype = dtype,
                                         .n_tok = s->n_tok,
                                         .dim = s->dim,
                                         .n_groups = s->n_groups,
                                         .weight = device[1],
                                         .weight_dtype = weights,
                                         .weight_offset = (float)(i % 2),
                                         .eps = 1e-6f};
        const struct ctw_op_act act = {.act = s->act,
                                       .dtype = dtype,
                                       .n_tok = s->n_tok * s->parts,
                                       .dim = width,
                                       .x = device[0],
                                       .ldx = ld,
                                       .ldup = width,
                                       .ldy = width};
        struct buf apart = run(be, &norm, &act, &x, false);
        struct buf together = run(be, &norm, &act, &x, true);
        assert_memory_equal(apart.p, together.p, apart.bytes);
        struct buf *all[] = {&x, &gate, &weight, &apart, &together};
        for (size_t b = 0; b < CTW_COUNT(all); b++)
            buf_close(all[b]);
        for (size_t d = 0; d < CTW_COUNT(device); d++)
            ctw_device_free(be, device[d]);
    }
}

static void gated_norms_have_the_bits_of_both(void **state)
{
    (void)state;
    struct ctw_backend *be;
    for (int i = 0; (be = open_place(i, 1 + i % 3)) != NULL; i++) {
        agrees(be);
        ctw_backend_close(be);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gated_norms_have_the_bits_of_both),
    };
    return cmocka_run_group_tests(tests, ops_setup, NULL);
}
