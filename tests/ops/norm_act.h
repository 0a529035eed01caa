/* Part of test_ops_norm.c and tests/gpu/test_delta.c: ctw_norm_act() gives the bits of ctw_norm()
 * and ctw_act(), on any backend. */
#ifndef CTW_TESTS_NORM_ACT_H
#define CTW_TESTS_NORM_ACT_H

#include "ops.h"

struct norm_act_shape {
    int64_t n_tok, n_groups, dim;
    int64_t parts; /* rows of the activation in a row of the norm */
    enum ctw_activation act;
    int64_t gap; /* columns between rows of x and of the gate */
};

static void *norm_act_upload(struct ctw_backend *be, const struct buf *from)
{
    void *to;
    OK(ctw_device_alloc(be, &to, from->bytes, &last_err));
    OK(ctw_device_upload(be, to, from->p, from->bytes, &last_err));
    return to;
}

/* together: in one call, else in two. */
static struct buf norm_act_run(struct ctw_backend *be, const struct ctw_op_norm *norm,
                               const struct ctw_op_act *act, const struct buf *x, bool together)
{
    struct ctw_op_norm n = *norm;
    struct ctw_op_act a = *act;
    struct buf y = buf_open(x->bytes, 0);
    void *device = norm_act_upload(be, x);
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

static void norm_act_agrees(struct ctw_backend *be)
{
    static const enum ctw_dtype kinds[] = {CTW_F32, CTW_BF16, CTW_F16};
    static const struct norm_act_shape shapes[] = {
        {9, 6, 128, 1, CTW_ACT_SILU, 0},  {5, 6, 128, 3, CTW_ACT_SIGMOID, 8},
        {70, 2, 32, 2, CTW_ACT_SILU, 16}, {3, 3, 256, 1, CTW_ACT_SILU, 0},
        {4, 5, 20, 1, CTW_ACT_SILU, 3},   {3, 2, 64, 1, CTW_ACT_GELU, 0},
    };
    for (size_t i = 0; i < CTW_COUNT(shapes) * CTW_COUNT(kinds); i++) {
        const struct norm_act_shape *s = &shapes[i / CTW_COUNT(kinds)];
        const enum ctw_dtype dtype = kinds[i % CTW_COUNT(kinds)], weights = kinds[i % 2];
        const int64_t row = s->n_groups * s->dim, width = row / s->parts, ld = width + s->gap;
        struct buf x = buf_random(dtype, s->n_tok * row, 2, 0);
        struct buf gate = buf_random(dtype, s->n_tok * s->parts * ld, 2, 0);
        struct buf weight = buf_random(weights, s->dim, 1, 0);
        void *device[] = {norm_act_upload(be, &gate), norm_act_upload(be, &weight)};
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
        struct buf apart = norm_act_run(be, &norm, &act, &x, false);
        struct buf together = norm_act_run(be, &norm, &act, &x, true);
        assert_memory_equal(apart.p, together.p, apart.bytes);
        struct buf *all[] = {&x, &gate, &weight, &apart, &together};
        for (size_t b = 0; b < CTW_COUNT(all); b++)
            buf_close(all[b]);
        for (size_t d = 0; d < CTW_COUNT(device); d++)
            ctw_device_free(be, device[d]);
    }
}

#endif
