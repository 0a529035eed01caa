/*
 * Part of test_ops_linear.c and tests/gpu/test_products.c: products with random weights, in any
 * place, and their definition in double with its error bounds.
 */
#ifndef CTW_TESTS_LINEAR_PROBLEM_H
#define CTW_TESTS_LINEAR_PROBLEM_H

#include "activation.h"
#include "placed_weight.h"

struct shape {
    int64_t m, n, k;
};

enum { N_EPI = CTW_EPI_SCATTER + 1 };

/* ---- problems ----------------------------------------------------------------------------- */

enum { X_ROWS, X_WEIGHT, Y_ROWS, Y_WEIGHT, N_MORE };

struct problem {
    struct ctw_op_linear op;
    struct test_weight w[3];
    struct ctw_shard shards[3];
    int from[3];     /* the weight that a shard's rows belong to */
    struct buf x, y; /* y's previous content */
    int64_t n_columns;
    bool aligned;
    size_t x_shift, y_shift; /* bytes past a multiple of 256 */
    int64_t x_pool, y_pool;  /* rows of the arrays x and y */
    struct buf more[N_MORE]; /* or absent */
    double *want, *bound;    /* y as defined, and how far y may be from that; [n_tok, n_columns] */
};

/* The same on a device. */
struct placed {
    struct placed_weight w[3];
    struct ctw_shard shards[3];
    struct dev x, more[N_MORE];
};

/* n row numbers below `pool`; distinct: none twice. */
static struct buf row_numbers(int64_t n, int64_t pool, bool distinct)
{
    struct buf b = buf_open((size_t)n * sizeof(int32_t), 0);
    int32_t *rows = b.p, *all = malloc((size_t)pool * sizeof(*all));
    assert_non_null(all);
    for (int64_t i = 0; i < pool; i++)
        all[i] = (int32_t)i;
    for (int64_t i = 0; i < n; i++) {
        int64_t other = distinct ? i + rng_below(pool - i) : rng_below(pool);
        rows[i] = all[other];
        if (distinct)
            all[other] = all[i];
    }
    free(all);
    return b;
}

/* Rows gathered from a larger x, perhaps weighted; rows scattered to a larger y. */
static void give_rows(struct problem *p)
{
    bool gathers = p->op.epilogue == CTW_EPI_GATE || p->op.epilogue == CTW_EPI_STORE;
    if (gathers && rng_below(2) == 0) {
        p->x_pool = 1 + rng_below(2 * p->op.n_tok);
        p->more[X_ROWS] = row_numbers(p->op.n_tok, p->x_pool, false);
        p->op.x_rows = p->more[X_ROWS].p;
        if (rng_below(4) == 0) {
            p->more[X_WEIGHT] = buf_random(CTW_F32, p->op.n_tok, 1, 0);
            p->op.x_weight = p->more[X_WEIGHT].p;
        }
    }
    if (p->op.epilogue == CTW_EPI_SCATTER && rng_below(4) != 0) {
        p->y_pool = p->op.n_tok + rng_below(p->op.n_tok + 1);
        p->more[Y_ROWS] = row_numbers(p->op.n_tok, p->y_pool, true);
        p->op.y_rows = p->more[Y_ROWS].p;
    }
    if (p->op.epilogue == CTW_EPI_SCATTER && rng_below(4) != 0) {
        p->more[Y_WEIGHT] = buf_random(CTW_F32, p->op.n_tok, 1, 0);
        p->op.y_weight = p->more[Y_WEIGHT].p;
    }
}

/* Gate and up in turn: every other row of one matrix. */
static void give_steps(struct problem *p)
{
    struct ctw_shard *s = p->shards;
    int64_t bias_bytes = (int64_t)ctw_dtype_bytes(s[0].bias_dtype);
    s[1].row0 = s[0].row0 + 1;
    s[0].step = s[1].step = 2;
    if (s[0].bias != NULL)
        s[1].bias = (const char *)s[0].bias + bias_bytes;
}

/* aligned: strides that tensor cores support; else arbitrary ones. dense: whole matrices in bf16;
 * else of any kind, or rows of larger ones. */
static void problem_open(struct problem *p, const struct shape *s, enum ctw_dtype dtype,
                         enum ctw_epilogue epilogue, bool aligned, bool dense)
{
    memset(p, 0, sizeof(*p));
    p->op = (struct ctw_op_linear){
        .shards = p->shards, .n_shards = 1, .dtype = dtype, .epilogue = epilogue, .n_tok = s->m};
    p->op.act = (enum ctw_activation)rng_below(CTW_ACT_XIELU);
    p->op.slot = (enum ctw_slot)rng_below(CTW_N_SLOTS);
    p->op.residual_dtype = rng_below(3) == 0 ? dtype : CTW_F32;
    p->x_pool = p->y_pool = s->m;
    if (!dense && epilogue == CTW_EPI_GATE && rng_below(2) == 0) {
        p->op.glu.kind = (enum ctw_glu_kind)rng_below(CTW_GLU_BOUNDED + 1);
        p->op.glu.limit = rng_below(3) == 0 ? INFINITY : 1.5f;
        p->op.glu.alpha = 1.702f;
        p->op.act = rng_below(2) == 0 ? CTW_ACT_SILU : p->op.act;
    }
    if (!dense)
        give_rows(p);
    p->aligned = aligned;
    int64_t left = p->n_columns = s->n;
    if (epilogue == CTW_EPI_GATE) {
        p->op.n_shards = 2;
    } else if (s->n >= 3 && rng_below(2) == 0) {
        p->op.n_shards = 3;
    }
    for (int i = 0; i < p->op.n_shards; i++) {
        enum weight_kind kind;
        do
            kind = dense ? W_BF16 : (enum weight_kind)rng_below(N_WEIGHT_KINDS);
        while (!weight_possible(kind, s->k));
        int64_t n = s->n;
        if (epilogue != CTW_EPI_GATE) {
            n = i + 1 == p->op.n_shards ? left : 1 + rng_below(left - (p->op.n_shards - 1 - i));
            left -= n;
        }
        if (dense)
            weight_open(&p->w[i], kind, n, s->k, (int)rng_below(2));
        else
            weight_open_rows(&p->w[i], kind, n, s->k, (int)rng_below(2));
        p->shards[i] = p->w[i].shard;
        p->from[i] = i;
    }
    if (!dense && p->op.n_shards > 1 && rng_below(3) == 0) {
        weights_fuse(p->w, p->shards, p->op.n_shards, s->k);
        memset(p->from, 0, sizeof(p->from));
        if (epilogue == CTW_EPI_GATE && rng_below(2) == 0)
            give_steps(p);
    }
    p->op.ldx = aligned ? (s->k + 7) / 8 * 8 + 8 * rng_below(3) : s->k + rng_below(5);
    p->op.ldy = aligned ? (s->n + 7) / 8 * 8 + 8 * rng_below(3) : s->n + rng_below(5);
    p->x = buf_random(dtype, p->x_pool * p->op.ldx, 1, 0);
    p->y = buf_random(ctw_linear_y_dtype(&p->op), p->y_pool * p->op.ldy, 1, 0);
    p->op.x = p->x.p;
    p->x_shift = aligned ? 0 : ctw_dtype_bytes(dtype) * (size_t)rng_below(9);
    p->y_shift = aligned ? 0 : ctw_dtype_bytes(ctw_linear_y_dtype(&p->op)) * (size_t)rng_below(5);
}

static void problem_close(struct problem *p)
{
    for (int i = 0; i < p->op.n_shards; i++)
        weight_close(&p->w[i]);
    for (int i = 0; i < N_MORE; i++)
        if (p->more[i].base != NULL)
            buf_close(&p->more[i]);
    buf_close(&p->x);
    buf_close(&p->y);
    free(p->want);
}

static void place(struct placed *d, const struct problem *p, struct ctw_backend *be)
{
    memset(d, 0, sizeof(*d));
    for (int i = 0; i < p->op.n_shards; i++) {
        const struct buf *bias = &p->w[p->from[i]].bias;
        weight_place(&d->w[i], &p->w[i], be, p->aligned && rng_below(2) == 0);
        d->shards[i] = p->shards[i];
        d->shards[i].data = &d->w[p->from[i]].data;
        if (p->shards[i].bias != NULL)
            d->shards[i].bias = (const char *)d->w[p->from[i]].bias.p +
                                ((const char *)p->shards[i].bias - (const char *)bias->p);
    }
    d->x = dev_open(be, p->x.p, p->x.bytes, p->x_shift);
    for (int i = 0; i < N_MORE; i++)
        if (p->more[i].base != NULL)
            d->more[i] = dev_open(be, p->more[i].p, p->more[i].bytes, 4 * (size_t)rng_below(5));
}

static void unplace(struct placed *d)
{
    for (int i = 0; i < 3; i++)
        weight_unplace(&d->w[i]);
    for (int i = 0; i < N_MORE; i++)
        dev_close(&d->more[i]);
    dev_close(&d->x);
}

/* NULL if it was never opened. */
static const void *address(const struct dev *d)
{
    return d->p;
}

/* The whole product, with y in dy. */
static struct ctw_op_linear on_device(const struct problem *p, const struct placed *d,
                                      const struct dev *dy)
{
    struct ctw_op_linear op = p->op;
    op.shards = d->shards;
    op.x = d->x.p;
    op.y = dy->p;
    op.x_rows = address(&d->more[X_ROWS]);
    op.x_weight = address(&d->more[X_WEIGHT]);
    op.y_rows = address(&d->more[Y_ROWS]);
    op.y_weight = address(&d->more[Y_WEIGHT]);
    return op;
}

/* `piece` rows at a time; `prepared`: with the weights decoded ahead. */
static struct buf run(const struct problem *p, const struct placed *d, struct ctw_backend *be,
                      int64_t piece, bool prepared)
{
    struct buf y = buf_open(p->y.bytes, 0);
    struct dev dy = dev_open(be, p->y.p, p->y.bytes, p->y_shift);
    struct ctw_op_linear op = on_device(p, d, &dy);
    if (prepared)
        OK(ctw_prepare(be, &op, &last_err));
    for (int64_t t = 0; t < p->op.n_tok; t += op.n_tok) {
        op = on_device(p, d, &dy);
        op.n_tok = piece < p->op.n_tok - t ? piece : p->op.n_tok - t;
        op.x = element(op.x, op.dtype, op.x_rows != NULL ? 0 : t * op.ldx);
        op.y = element(op.y, ctw_linear_y_dtype(&op), op.y_rows != NULL ? 0 : t * op.ldy);
        op.x_rows = op.x_rows != NULL ? op.x_rows + t : NULL;
        op.x_weight = op.x_weight != NULL ? op.x_weight + t : NULL;
        op.y_rows = op.y_rows != NULL ? op.y_rows + t : NULL;
        op.y_weight = op.y_weight != NULL ? op.y_weight + t : NULL;
        OK(ctw_linear(be, &op, &last_err));
    }
    dev_read(&dy, y.p);
    dev_close(&dy);
    if (prepared) {
        op.n_shards = 0;
        OK(ctw_prepare(be, &op, &last_err));
    }
    return y;
}

/* ---- the definition ----------------------------------------------------------------------- */

/* A sum, and by how much a place may be off. */
struct sum {
    double value, error;
};

/*
 * On a CPU, a sum in fp32 of k products in sweeps of at most s words (two products each in pair
 * mode) has at most 2 * min(k, s) + k / s + 3 roundings of 2^-24 of sum |x w|. On a GPU, a chain of
 * k additions; tensor cores truncate instead of rounding: at most k steps of 2^-23; on random
 * numbers an eighth of that is ample.
 */
static double sum_error(double k)
{
    return CTW_ON_GPU ? (8 + k / 8) * 0x1p-23 : (2 * fmin(k, 320) + k / 192 + 3) * 0x1p-24;
}

/* Of row o of all shards, one after another; w: these rows. */
static struct sum sum_of(const struct problem *p, const float *x, const float *w, int64_t o)
{
    const struct ctw_shard *s = p->shards;
    const int64_t k = s->weight->k;
    w += o * k;
    while (o >= s->n)
        o -= s++->n;
    double bias =
        s->bias == NULL ? 0 : ctw_load_float(s->bias, s->bias_dtype, o * ctw_shard_step(s));
    double sum = bias, all = fabs(bias);
    for (int64_t c = 0; c < k; c++) {
        double v = (double)x[c] * w[c];
        sum += v;
        all += fabs(v);
    }
    return (struct sum){sum, sum_error((double)k) * all};
}

/* struct ctw_glu */
static double joined(const struct ctw_op_linear *op, double g, double u)
{
    const double limit = op->glu.limit, alpha = op->glu.alpha, m = fmin(g, limit);
    const double c = fmax(fmin(u, limit), -limit);
    switch (op->glu.kind) {
    case CTW_GLU_PLAIN:
        return activation(op->act, NULL, g) * u;
    case CTW_GLU_CLAMPED:
        return activation(op->act, NULL, m) * c;
    case CTW_GLU_CLAMPED_ACT:
        return fmin(activation(op->act, NULL, g), limit) * c;
    case CTW_GLU_OFFSET:
        return m / (1 + exp(-alpha * m)) * (c + 1);
    case CTW_GLU_SLOPED:
        return m / (1 + exp(-alpha * m)) * c;
    default:
        return alpha * tanh(g / alpha) / (1 + exp(-g)) *
               (isinf(limit) ? u : limit * tanh(u / limit));
    }
}

/*
 * Activations have a slope of at most 1.13 (relu2: twice its argument) and add a few roundings of
 * their own. A GPU may round gate and up to dtype. With an offset, up is larger by 1; clamps
 * enlarge no error.
 */
static double gate_error(const struct ctw_op_linear *op, struct sum g, struct sum u)
{
    double slope = 1.13, size = fabs(g.value), up = fabs(u.value);
    if (CTW_ON_GPU && op->dtype != CTW_F32) {
        g.error += half_step(op->dtype, size + g.error);
        u.error += half_step(op->dtype, up + u.error);
    }
    up += op->glu.kind == CTW_GLU_OFFSET ? 1 : 0;
    if (op->act == CTW_ACT_RELU2 && op->glu.kind < CTW_GLU_OFFSET) { /* of the square */
        g.error *= 2 * size + g.error;
        size *= size;
        slope = 1;
    }
    return slope * g.error * (up + u.error) + size * u.error + 16 * 0x1p-24 * size * up;
}

/* Element o of the product's row t, of its sum, or of those of gate and up. */
static void define_element(struct problem *p, int64_t t, int64_t o, struct sum g, struct sum u)
{
    const struct ctw_op_linear *op = &p->op;
    const enum ctw_dtype dtype = ctw_linear_y_dtype(op);
    double old =
        ctw_load_float(p->y.p, dtype, (op->y_rows != NULL ? op->y_rows[t] : t) * op->ldy + o);
    double want = g.value, error = g.error, size = fabs(g.value);
    if (op->epilogue == CTW_EPI_ADD) {
        want += old;
        error += (CTW_ON_GPU ? 0x1p-23 : 0x1p-24) * (size + fabs(old));
    } else if (op->epilogue == CTW_EPI_SCATTER) {
        double factor = op->y_weight != NULL ? op->y_weight[t] : 1;
        want = old + factor * g.value;
        error =
            fabs(factor) * (error + 0x1p-23 * size) + 0x1p-22 * (fabs(want) + fabs(factor) * size);
    } else if (op->epilogue == CTW_EPI_GATE) {
        want = joined(op, g.value, u.value);
        error = gate_error(op, g, u);
    }
    p->want[t * p->n_columns + o] = want;
    p->bound[t * p->n_columns + o] = error + half_step(dtype, fabs(want) + error) + 0x1p-120;
}

UNUSED_OK static void problem_define(struct problem *p)
{
    const struct ctw_op_linear *op = &p->op;
    const int64_t k = p->w[0].w.k, n = p->n_columns;
    const bool gated = op->epilogue == CTW_EPI_GATE;
    float *w = calloc((size_t)((2 * n + 1) * k), sizeof(*w)), *x = w + 2 * n * k, *row = w;
    p->want = calloc((size_t)(2 * op->n_tok * n), sizeof(*p->want));
    assert_non_null(w);
    assert_non_null(p->want);
    p->bound = p->want + op->n_tok * n;
    for (int i = 0; i < op->n_shards; i++)
        for (int64_t o = 0; o < p->shards[i].n; o++, row += k)
            weight_row(&p->w[p->from[i]], p->shards[i].row0 + o * ctw_shard_step(&p->shards[i]),
                       op->epilogue == CTW_EPI_LOGITS ? CTW_F32 : op->dtype, row);
    for (int64_t t = 0; t < op->n_tok; t++) {
        for (int64_t c = 0; c < k; c++) {
            int64_t from = (op->x_rows != NULL ? op->x_rows[t] : t) * op->ldx + c;
            float v = ctw_load_float(op->x, op->dtype, from);
            x[c] = op->x_weight != NULL ? ctw_round_float(v * op->x_weight[t], op->dtype) : v;
        }
        for (int64_t o = 0; o < n; o++)
            define_element(p, t, o, sum_of(p, x, w, o),
                           gated ? sum_of(p, x, w, n + o) : (struct sum){0});
    }
    free(w);
}

/* Beyond fp16, rounding gives infinity: as the number after the largest. */
static double value_of(enum ctw_dtype dtype, double v)
{
    return dtype == CTW_F16 && fabs(v) > 65504 ? copysign(65536, v) : v;
}

UNUSED_OK static void compare(const struct problem *p, const struct buf *got, const char *place)
{
    char what[200];
    const struct ctw_op_linear *op = &p->op;
    const enum ctw_dtype dtype = ctw_linear_y_dtype(op);
    const size_t es = ctw_dtype_bytes(dtype);
    snprintf(what, sizeof(what),
             "%s %s%s epilogue %d act %d glu %d%s%s m %" PRId64 " n %" PRId64 " k %" PRId64, place,
             ctw_dtype_name(op->dtype), p->aligned ? " aligned" : "", (int)op->epilogue,
             (int)op->act, (int)op->glu.kind, op->x_rows != NULL ? " gathered" : "",
             op->y_rows != NULL ? " scattered" : "", op->n_tok, p->n_columns, p->w[0].w.k);
    struct buf rest = buf_copy(&p->y, 0); /* what the product does not write stays */
    for (int64_t e = 0; e < op->n_tok * p->n_columns; e++) {
        int64_t t = e / p->n_columns, row = op->y_rows != NULL ? op->y_rows[t] : t;
        int64_t to = row * op->ldy + e % p->n_columns;
        near(value_of(dtype, ctw_load_float(got->p, dtype, to)), value_of(dtype, p->want[e]),
             p->bound[e], what, e);
        memcpy(element(rest.p, dtype, to), element(got->p, dtype, to), es);
    }
    if (memcmp(rest.p, got->p, rest.bytes) != 0)
        fail_msg("%s: elements between the rows were written", what);
    buf_close(&rest);
}

#endif
