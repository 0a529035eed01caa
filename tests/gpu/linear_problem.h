/*
 * Part of test_linear.c: products with random weights, and their definition with its error
 * bounds.
 */
#ifndef CTW_TESTS_LINEAR_PROBLEM_H
#define CTW_TESTS_LINEAR_PROBLEM_H

#include "gpu_device.h"

struct shape {
    int64_t m, n, k;
};

enum { N_EPI = CTW_EPI_SCATTER + 1 };

/* Odd sizes, around tiles of 128 and steps of 16; then whole vectors, for cuBLASLt. */
static const struct shape shapes[] = {
    {1, 1, 1},        {1, 16, 8},      {2, 17, 16},     {3, 15, 31},    {5, 31, 32},
    {33, 127, 64},    {64, 128, 257},  {65, 129, 64},   {127, 130, 32}, {128, 16, 256},
    {129, 80, 96},    {257, 255, 17},  {13, 300, 321},  {4, 640, 576},  {1, 70, 4097},
    {300, 40, 48},    {600, 20, 16},   {1, 256, 512},   {7, 384, 1024}, {128, 512, 256},
    {129, 256, 768},  {300, 384, 640}, {31, 1152, 320}, {40, 8, 64},    {17, 576, 1536},
    {255, 192, 2048}, {40, 24, 64},    {40, 33, 64},    {100, 264, 72}, {999, 128, 128},
};

/* ---- problems ----------------------------------------------------------------------------- */

struct problem {
    struct ctw_op_linear op;
    struct test_weight w[3];
    struct ctw_shard shards[3];
    int from[3];     /* the weight that a shard's rows belong to */
    struct buf x, y; /* y's previous content */
    int64_t n_columns;
    bool aligned;
    size_t x_shift, y_shift; /* bytes past a multiple of 256 */
    float *rows;             /* all weights as products see them */
    int64_t x_pool, y_pool;  /* rows of the arrays x and y */
    struct buf x_rows, x_weight, y_rows, y_weight; /* or absent */
};

/* The same on a device. */
struct placed {
    struct ctw_weight_data data[3];
    struct ctw_shard shards[3];
    struct dev part[3][CTW_N_PARTS], bias[3], x;
    struct dev x_rows, x_weight, y_rows, y_weight;
};

static enum ctw_dtype y_dtype(const struct problem *p)
{
    if (p->op.epilogue == CTW_EPI_LOGITS || p->op.epilogue == CTW_EPI_SCATTER)
        return CTW_F32;
    return p->op.epilogue == CTW_EPI_ADD ? p->op.residual_dtype : p->op.dtype;
}

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
        p->x_rows = row_numbers(p->op.n_tok, p->x_pool, false);
        p->op.x_rows = p->x_rows.p;
        if (rng_below(4) == 0) {
            p->x_weight = buf_random(CTW_F32, p->op.n_tok, 1, 0);
            p->op.x_weight = p->x_weight.p;
        }
    }
    if (p->op.epilogue == CTW_EPI_SCATTER && rng_below(4) != 0) {
        p->y_pool = p->op.n_tok + rng_below(p->op.n_tok + 1);
        p->y_rows = row_numbers(p->op.n_tok, p->y_pool, true);
        p->op.y_rows = p->y_rows.p;
    }
    if (p->op.epilogue == CTW_EPI_SCATTER && rng_below(4) != 0) {
        p->y_weight = buf_random(CTW_F32, p->op.n_tok, 1, 0);
        p->op.y_weight = p->y_weight.p;
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
    p->y = buf_random(y_dtype(p), p->y_pool * p->op.ldy, 1, 0);
    p->op.x = p->x.p;
    p->x_shift = aligned ? 0 : ctw_dtype_bytes(dtype) * (size_t)rng_below(9);
    p->y_shift = aligned ? 0 : ctw_dtype_bytes(y_dtype(p)) * (size_t)rng_below(5);
}

static void problem_close(struct problem *p)
{
    for (int i = 0; i < p->op.n_shards; i++)
        weight_close(&p->w[i]);
    struct buf *more[] = {&p->x_rows, &p->x_weight, &p->y_rows, &p->y_weight};
    for (size_t i = 0; i < CTW_COUNT(more); i++)
        if (more[i]->base != NULL)
            buf_close(more[i]);
    buf_close(&p->x);
    buf_close(&p->y);
    free(p->rows);
}

/* The checkpoint's data is unaligned, as in its files. */
static void place(struct placed *d, const struct problem *p, struct ctw_backend *be)
{
    memset(d, 0, sizeof(*d));
    for (int i = 0; i < p->op.n_shards; i++) {
        const struct test_weight *w = &p->w[i], *from = &p->w[p->from[i]];
        d->shards[i] = p->shards[i];
        d->shards[i].data = &d->data[p->from[i]];
        for (int k = 0; k < CTW_N_PARTS; k++) {
            if (w->data.part[k] == NULL)
                continue;
            size_t misalign = p->aligned && rng_below(2) == 0 ? 0 : (size_t)rng_below(14);
            d->part[i][k] = dev_open(be, w->data.part[k], w->part[k].bytes, misalign);
            d->data[i].part[k] = d->part[i][k].p;
        }
        if (w->bias.base != NULL) {
            d->bias[i] = dev_open(be, w->bias.p, w->bias.bytes, (size_t)rng_below(7));
        }
        if (p->shards[i].bias != NULL)
            d->shards[i].bias = (const char *)d->bias[p->from[i]].p +
                                ((const char *)p->shards[i].bias - (const char *)from->bias.p);
    }
    d->x = dev_open(be, p->x.p, p->x.bytes, p->x_shift);
    const struct buf *from[] = {&p->x_rows, &p->x_weight, &p->y_rows, &p->y_weight};
    struct dev *to[] = {&d->x_rows, &d->x_weight, &d->y_rows, &d->y_weight};
    for (size_t i = 0; i < CTW_COUNT(from); i++)
        if (from[i]->base != NULL)
            *to[i] = dev_open(be, from[i]->p, from[i]->bytes, 4 * (size_t)rng_below(5));
}

static void unplace(struct placed *d)
{
    for (int i = 0; i < 3; i++) {
        for (int k = 0; k < CTW_N_PARTS; k++)
            if (d->part[i][k].base != NULL)
                dev_close(&d->part[i][k]);
        if (d->bias[i].base != NULL)
            dev_close(&d->bias[i]);
    }
    dev_close(&d->x);
    struct dev *more[] = {&d->x_rows, &d->x_weight, &d->y_rows, &d->y_weight};
    for (size_t i = 0; i < CTW_COUNT(more); i++)
        if (more[i]->base != NULL)
            dev_close(more[i]);
}

static struct buf run_cpu(const struct problem *p, struct ctw_backend *be)
{
    struct buf y = buf_copy(&p->y, 0);
    struct ctw_op_linear op = p->op;
    op.y = y.p;
    OK(ctw_linear(be, &op, &last_err));
    return y;
}

/* The whole product, with y in dy. */
static struct ctw_op_linear on_device(const struct problem *p, const struct placed *d,
                                      const struct dev *dy)
{
    struct ctw_op_linear op = p->op;
    op.shards = d->shards;
    op.x = d->x.p;
    op.y = dy->p;
    op.x_rows = op.x_rows != NULL ? (const int32_t *)d->x_rows.p : NULL;
    op.x_weight = op.x_weight != NULL ? (const float *)d->x_weight.p : NULL;
    op.y_rows = op.y_rows != NULL ? (const int32_t *)d->y_rows.p : NULL;
    op.y_weight = op.y_weight != NULL ? (const float *)d->y_weight.p : NULL;
    return op;
}

/* `piece` rows at a time; `prepared`: with the weights decoded ahead. */
static struct buf run_gpu(const struct problem *p, const struct placed *d, struct ctw_backend *be,
                          int64_t piece, bool prepared)
{
    struct buf y = buf_open(p->y.bytes, 0);
    struct dev dy = dev_open(be, p->y.p, p->y.bytes, p->y_shift);
    struct ctw_op_linear op = p->op;
    op.shards = d->shards;
    if (prepared)
        OK(ctw_prepare(be, &op, &last_err));
    for (int64_t t = 0; t < p->op.n_tok; t += piece) {
        op.n_tok = piece < p->op.n_tok - t ? piece : p->op.n_tok - t;
        op.x = element(d->x.p, op.dtype, op.x_rows != NULL ? 0 : t * op.ldx);
        op.y = element(dy.p, y_dtype(p), op.y_rows != NULL ? 0 : t * op.ldy);
        op.x_rows = op.x_rows != NULL ? (const int32_t *)(const void *)d->x_rows.p + t : NULL;
        op.x_weight = op.x_weight != NULL ? (const float *)(const void *)d->x_weight.p + t : NULL;
        op.y_rows = op.y_rows != NULL ? (const int32_t *)(const void *)d->y_rows.p + t : NULL;
        op.y_weight = op.y_weight != NULL ? (const float *)(const void *)d->y_weight.p + t : NULL;
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

/* ---- against the definition --------------------------------------------------------------- */

static void decode_rows(struct problem *p)
{
    int64_t k = p->w[0].w.k, at = 0;
    p->rows = malloc((size_t)(2 * p->n_columns * k) * sizeof(*p->rows));
    assert_non_null(p->rows);
    for (int i = 0; i < p->op.n_shards; i++)
        for (int64_t o = 0; o < p->shards[i].n; o++)
            weight_row(&p->w[p->from[i]], p->shards[i].row0 + o * ctw_shard_step(&p->shards[i]),
                       p->op.epilogue == CTW_EPI_LOGITS ? CTW_F32 : p->op.dtype, p->rows + k * at++);
}

/* sum of |x w| + |bias| for column o of token t, and the sum itself */
static double sums(const struct problem *p, int64_t t, int64_t o, double *sum)
{
    int i = 0;
    int64_t k = p->w[0].w.k;
    const float *row = p->rows + o * k;
    while (o >= p->shards[i].n)
        o -= p->shards[i++].n;
    const struct ctw_shard *s = &p->shards[i];
    *sum = s->bias == NULL ? 0 : ctw_load_float(s->bias, s->bias_dtype, o * ctw_shard_step(s));
    double all = fabs(*sum);
    for (int64_t c = 0; c < k; c++) {
        int64_t x_row = p->op.x_rows != NULL ? p->op.x_rows[t] : t;
        float x = ctw_load_float(p->op.x, p->op.dtype, x_row * p->op.ldx + c);
        if (p->op.x_weight != NULL)
            x = ctw_round_float(x * p->op.x_weight[t], p->op.dtype);
        double v = (double)x * row[c];
        *sum += v;
        all += fabs(v);
    }
    return all;
}

/*
 * A chain of k additions; tensor cores truncate instead of rounding: at most k steps of 2^-23 of
 * sum |x w|; on random numbers an eighth of that is ample. Gate and up may be rounded to dtype. With
 * an offset, up is larger by 1; clamps enlarge no error.
 */
static double bound(const struct problem *p, int64_t t, int64_t o, double want)
{
    double k = (double)p->w[0].w.k, sum, up;
    double u = (8 + k / 8) * 0x1p-23;
    double e = u * sums(p, t, o, &sum), tiny = 0x1p-120;
    if (p->op.epilogue == CTW_EPI_ADD)
        e += 0x1p-23 *
             (fabs(sum) + fabs((double)ctw_load_float(p->y.p, y_dtype(p), t * p->op.ldy + o)));
    if (p->op.epilogue == CTW_EPI_SCATTER) {
        double factor = p->op.y_weight != NULL ? fabs((double)p->op.y_weight[t]) : 1;
        e = factor * (e + 0x1p-23 * fabs(sum)) + 0x1p-22 * (fabs(want) + factor * fabs(sum));
    }
    if (p->op.epilogue == CTW_EPI_GATE) {
        double e_up = u * sums(p, t, o + p->n_columns, &up);
        if (p->op.dtype != CTW_F32) {
            e += half_step(p->op.dtype, fabs(sum) + e);
            e_up += half_step(p->op.dtype, fabs(up) + e_up);
        }
        up = fabs(up) + (p->op.glu.kind == CTW_GLU_OFFSET ? 1 : 0);
        if (p->op.act == CTW_ACT_RELU2 && p->op.glu.kind < CTW_GLU_OFFSET) { /* of the square */
            e = (2 * fabs(sum) + e) * e;
            sum *= sum;
        }
        e = 1.13 * e * (fabs(up) + e_up) + fabs(sum) * e_up + 16 * 0x1p-24 * fabs(sum * up);
    }
    return e + 2 * half_step(y_dtype(p), fabs(want) + e) + tiny;
}

/* Infinity in fp16 may be a rounding of what is near 65520: as the number after the largest. */
static double value_of(const struct buf *y, enum ctw_dtype dtype, int64_t at)
{
    double v = ctw_load_float(y->p, dtype, at);
    return dtype == CTW_F16 && isinf(v) ? copysign(65536, v) : v;
}

static void compare(const struct problem *p, const struct buf *got, const struct buf *want,
                    const char *variant)
{
    char what[200];
    snprintf(what, sizeof(what),
             "%s %s%s epilogue %d act %d glu %d%s%s m %" PRId64 " n %" PRId64 " k %" PRId64, variant,
             ctw_dtype_name(p->op.dtype), p->aligned ? " aligned" : "", (int)p->op.epilogue,
             (int)p->op.act, (int)p->op.glu.kind, p->op.x_rows != NULL ? " gathered" : "",
             p->op.y_rows != NULL ? " scattered" : "", p->op.n_tok, p->n_columns, p->w[0].w.k);
    int64_t some = 1 + p->op.n_tok * p->n_columns * p->w[0].w.k / 1000000;
    int64_t *from = calloc((size_t)p->y_pool, sizeof(*from)); /* 1 + the row of the product, or 0 */
    assert_non_null(from);
    for (int64_t t = 0; t < p->op.n_tok; t++)
        from[p->op.y_rows != NULL ? p->op.y_rows[t] : t] = t + 1;
    for (int64_t r = 0; r < p->y_pool; r++) {
        for (int64_t o = 0; o < p->op.ldy; o++) {
            int64_t at = r * p->op.ldy + o, t = from[r] - 1;
            double g = value_of(got, y_dtype(p), at), w = value_of(want, y_dtype(p), at);
            if (o >= p->n_columns || t < 0) { /* between rows, or no row: untouched */
                assert_memory_equal(element(got->p, y_dtype(p), at),
                                    element(p->y.p, y_dtype(p), at), ctw_dtype_bytes(y_dtype(p)));
                continue;
            }
            /* The exact bound is slow to compute: only if results differ by more than two
             * roundings. */
            if (!(fabs(g - w) <= 2 * half_step(y_dtype(p), w)) || rng_below(some) == 0)
                near(g, w, bound(p, t, o, w), what, at);
        }
    }
    free(from);
}

#endif
